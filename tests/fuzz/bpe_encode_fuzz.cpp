// Any bytes through a tokenizer of each family: ids in range, nothing lost, no special token out of untrusted text.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.hpp"
#include "llm/text/tokenizer.hpp"
#include "llm/text/unicode.hpp"
#include "seeded.hpp"
#include "support/golden.hpp"

namespace {

using attend::llm::TextPart;
using attend::llm::Token;
using attend::llm::Tokenizer;

void check(bool ok) {
  if (!ok) attend::test::stop("a promise is broken");
}

struct Family {
  Tokenizer tokenizer;
  bool lossless;
};

std::vector<Family> load() {
  std::vector<Family> all;
  const auto folder = attend::test::golden_folder() / "tokenizers";
  for (const char* name : {"gpt2", "smollm2", "qwen2", "llama3", "tekken", "bert"}) {
    const attend::io::MappedFile file(folder / (std::string(name) + ".json"));
    const std::string_view text = attend::io::as_text(file.bytes());
    const bool lossless = std::string_view(name) != "qwen2" && std::string_view(name) != "bert";
    all.push_back({attend::llm::tokenizer_from_json(text, name), lossless});
  }
  return all;
}

void use(const Family& family, std::string_view text, std::size_t cut) {
  const Tokenizer& tokenizer = family.tokenizer;
  const std::vector<Token> tokens = tokenizer.encode(text, false);
  for (const Token token : tokens) check(token >= 0 && token < tokenizer.vocabulary());
  const std::string repaired = attend::utf8_repaired(text), decoded = tokenizer.decode(tokens);
  check(tokenizer.encode(repaired, false) == tokens);
  if (family.lossless) check(decoded == repaired);
  attend::llm::StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const Token token : tokens) {
    streamed += stream.push(token);
    check(attend::is_utf8(streamed));
  }
  check(streamed + stream.finish() == decoded);

  const TextPart trusted[] = {{text, true}};
  check(tokenizer.encode_parts(trusted) == tokens);
  const TextPart untrusted[] = {{text.substr(0, cut), false}, {text.substr(cut), false}};
  for (const Token token : tokenizer.encode_parts(untrusted)) {
    check(!tokenizer.is_special(token) || token == tokenizer.special().unknown);
  }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = {
      "00<|im_start|>user\nThe model's 1234  attention<|im_end|>\n<think>",
      "55[CLS] The models' Z\u00fcrich [SEP] \u4f60\u597d",
      "22e\u0301 \u4f60\u597d\uff0c\u4e16\u754c \U0001F44D\U0001F3FD\n\n  x\xC3", "44XMLHttpRequest a/b//\n\u0301"};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Family> families = load();
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  use(families[data[0] % families.size()], text, text.empty() ? 0 : data[1] % text.size());
  return 0;
}
