// Reads what stands beside config.json: generation_config.json, and Sentence Transformers' settings of an encoder.
#include <algorithm>
#include <array>
#include <limits>

#include "llm/model/config_check.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;

struct PoolingName {
  const char *flag, *name;  // as older files say it, and newer ones
  PoolingKind kind;         // none: not supported
};
// The mean by the root of the length has the direction of the mean, and embeddings have length 1.
constexpr std::array<PoolingName, 6> kPoolings = {
    {{"pooling_mode_cls_token", "cls", PoolingKind::first_token},
     {"pooling_mode_mean_tokens", "mean", PoolingKind::mean},
     {"pooling_mode_max_tokens", "max", PoolingKind::max},
     {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingKind::mean},
     {"pooling_mode_weightedmean_tokens", "weightedmean", PoolingKind::none},
     {"pooling_mode_lasttoken", "lasttoken", PoolingKind::none}}};

PoolingKind read_pooling(const Fields& f) {
  const auto named = f.maybe_string({"pooling_mode"});
  std::string modes;
  std::optional<PoolingKind> kind;
  for (const PoolingName& pooling : kPoolings) {
    if (named ? *named != pooling.name : !f.maybe_boolean({pooling.flag}).value_or(false)) continue;
    modes += (modes.empty() ? "" : ", ") + std::string(pooling.name);
    kind = kind ? PoolingKind::none : pooling.kind;  // several would be put one behind the other
  }
  if (!kind || *kind == PoolingKind::none)
    f.refuse("pooling_mode", "is " +
                                 (named           ? io::json_quoted(*named)
                                  : modes.empty() ? "not given"
                                                  : modes) +
                                 ", expected one of cls, mean, max");
  return *kind;
}

// The parts that a text passes: the encoder, pooling, length 1. Anything else would change the embedding.
fs::path pooling_folder(const fs::path& folder) {
  fs::path pooling = folder / "1_Pooling";
  const fs::path path = folder / "modules.json";
  if (!fs::exists(path)) return pooling;
  const io::Json json = io::read_json(path, kConfigLimits);
  if (json.array() == nullptr) throw io::FileError(path.string() + ": is " + json.kind() + ", expected a list");
  for (const io::Json& entry : *json.array()) {
    const Fields module(entry, path.string() + ": a module");
    const std::string type = module.maybe_string({"type"}).value_or("");
    const std::string kind = type.substr(type.rfind('.') + 1), place = module.maybe_string({"path"}).value_or("");
    if (kind == "Pooling" && !place.empty() && place.find('/') == std::string::npos && place != "..")
      pooling = folder / place;
    else if (kind != "Transformer" && kind != "Pooling" && kind != "Normalize")
      module.refuse("type", "is " + io::json_quoted(type) + ", expected Transformer, Pooling or Normalize");
  }
  return pooling;
}

// The ranges are those of check_sampling(). Some files switch top-k off with -1.
SamplingSettings read_sampling(const Fields& f) {
  SamplingSettings s;
  s.temperature = f.maybe_number({"temperature"}, 0, 100);
  s.top_p = f.maybe_number({"top_p"}, 0, 1);
  s.min_p = f.maybe_number({"min_p"}, 0, 1);
  s.repetition_penalty = f.maybe_number({"repetition_penalty"}, 0.01, 100);
  s.top_k = f.maybe_integer({"top_k"}, -1, std::numeric_limits<std::int32_t>::max());
  if (s.top_k == -1) s.top_k = 0;
  if (!f.maybe_boolean({"do_sample"}).value_or(true)) s.temperature = 0;
  return s;
}

}  // namespace

void read_beside_config(const fs::path& folder, ModelConfig& c) {
  if (const fs::path path = folder / "generation_config.json"; c.causal && fs::exists(path)) {
    const io::Json json = io::read_json(path, kConfigLimits);
    const Fields fields(json, path.string());
    const auto eos = token_ids(fields.find({"eos_token_id"}), c.vocabulary);
    if (!eos.empty()) c.eos = eos;
    c.sampling = read_sampling(fields);
  }
  if (c.causal) return;
  if (const fs::path path = pooling_folder(folder) / "config.json"; fs::exists(path)) {
    const io::Json json = io::read_json(path, kConfigLimits);
    c.pooling = read_pooling(Fields(json, path.string()));
  }
  if (const fs::path path = folder / "sentence_bert_config.json"; fs::exists(path)) {
    const io::Json json = io::read_json(path, kConfigLimits);
    const auto most = Fields(json, path.string()).maybe_integer({"max_seq_length"}, 1, kMostContext);
    if (most) c.longest_text = std::min(*most, c.context);
  }
}

}  // namespace attend::llm
