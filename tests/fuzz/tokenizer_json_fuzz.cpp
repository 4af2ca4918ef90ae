// tokenizer.json made of anything: refused with a FileError, or a tokenizer that keeps its promises.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"
#include "llm/text/tokenizer.hpp"
#include "llm/text/unicode.hpp"
#include "seeded.hpp"

namespace {

void check(bool ok) {
  if (!ok) attend::test::stop("a tokenizer broke its promise");
}

void use(const attend::llm::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<attend::llm::Token> tokens = tokenizer.encode(text);
  for (const attend::llm::Token token : tokens) {
    check(token >= 0 && token < tokenizer.vocabulary());
    const std::string_view piece = tokenizer.piece(token);
    if (!piece.empty()) check(tokenizer.find(piece).has_value());
  }
  const std::string decoded = tokenizer.decode(tokens);
  check(attend::is_utf8(decoded));
  attend::llm::StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const attend::llm::Token token : tokens) streamed += stream.push(token);
  check(streamed + stream.finish() == decoded);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = {
      R"({
"added_tokens": [{"id": 4, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                  "special": true}],
"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
                  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]},
"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
  {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<e>"}}, {"Sequence": {"id": "A"}}],
   "special_tokens": {"<e>": {"ids": [4]}}}]},
"decoder": {"type": "ByteLevel"},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "byte_fallback": false,
          "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}})",
      R"({
"added_tokens": [],
"normalizer": {"type": "BertNormalizer", "lowercase": true},
"pre_tokenizer": {"type": "BertPreTokenizer"},
"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 0]},
"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
          "vocab": {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3}}})"};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > std::size_t{1} << 20) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = attend::llm::tokenizer_from_json(text, "t");
    use(tokenizer, text.substr(0, 300));
    use(tokenizer, "The <|im_end|> 12's \xF0\x9F\x98\x80 [SEP]  \n\xC3");
  } catch (const attend::io::FileError&) {
    return 0;
  }
  return 0;
}
