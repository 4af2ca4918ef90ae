// Tokenizer files that cannot be used: each is refused, with words of its own that name the place.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm {
namespace {

const std::string kBpe = R"({
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
          "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}})";

const std::string kBert = R"({
"added_tokens": [],
"normalizer": {"type": "BertNormalizer", "lowercase": true},
"pre_tokenizer": {"type": "BertPreTokenizer"},
"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 1], "cls": ["[CLS]", 0]},
"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
          "vocab": {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3}}})";

std::string refusal(const std::string& text) {
  try {
    tokenizer_from_json(text, "t.json");
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}

struct Bad {
  std::string from, to;  // an edit of the good file
  std::string says;      // what the error must say
};

void expect_refusals(const std::string& good, const std::vector<Bad>& cases) {
  ASSERT_EQ(refusal(good), "");
  std::set<std::string> seen;
  for (const Bad& bad : cases) {
    std::string text = good;
    const std::size_t place = text.find(bad.from);
    ASSERT_NE(place, std::string::npos) << bad.from;
    text.replace(place, bad.from.size(), bad.to);
    const std::string error = refusal(text);
    EXPECT_NE(error.find(bad.says), std::string::npos) << bad.to << "\n  says: " << error << "\n  not: " << bad.says;
    EXPECT_EQ(error.rfind("t.json", 0), 0U) << error;
    EXPECT_TRUE(seen.insert(error).second) << error;
  }
}

TEST(BadTokenizer, Bpe) {
  const std::string added = R"("content": "<e>")", vocabulary = R"({"a": 0, "b": 1, "ab": 2, "Ġ": 3})";
  const std::string second = R"("special": true}])";
  const std::string token =
      R"("single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true)";
  expect_refusals(
      kBpe,
      {
          // the outside
          {kBpe, "[]", "t.json: expected an object, got an array"},
          {kBpe, "5", "t.json: expected an object, got 5"},
          {R"("model":)", R"("modell":)", "there is no \"model\""},
          {R"("decoder":)", R"("dec":)", "there is no \"decoder\""},
          {R"("pre_tokenizer":)", R"("pre":)", "there is no \"pre_tokenizer\""},
          {R"("decoder": {"type": "ByteLevel"})", R"("decoder": null)", "t.json.decoder: expected an object"},
          {R"("decoder": {"type": "ByteLevel"})", R"("decoder": {"type": "Metaspace"})",
           R"(t.json.decoder.type: expected ByteLevel, got "Metaspace")"},
          // model
          {R"("type": "BPE")", R"("type": "Unigram")",
           R"(t.json.model.type: expected BPE or WordPiece, got "Unigram")"},
          {R"("type": "BPE")", R"("type": 3)", "t.json.model.type: expected a string, got 3"},
          {R"("dropout": null)", R"("dropout": 0.1)", "t.json.model.dropout: expected null"},
          {R"("dropout": null)", R"("dropout": "no")", "t.json.model.dropout: expected a number"},
          {R"("byte_fallback": false)", R"("byte_fallback": true)", "t.json.model.byte_fallback: expected false"},
          {R"("byte_fallback": false)", R"("byte_fallback": 0)", "byte_fallback: expected true or false, got 0"},
          {R"("continuing_subword_prefix": null)", R"("continuing_subword_prefix": "##")",
           "continuing_subword_prefix: expected null"},
          {R"("continuing_subword_prefix": null)", R"("end_of_word_suffix": "</w>")",
           "end_of_word_suffix: expected null"},
          {R"("unk_token": null)", R"("unk_token": "<unk>")", "the unknown token \"<unk>\" is not in the vocabulary"},
          {R"("unk_token": null)", R"("unk_token": 0)", "t.json.model.unk_token: expected a string, got 0"},
          {R"("unk_token": null)", R"("ignore_merges": "yes")", "ignore_merges: expected true or false"},
          // vocabulary
          {vocabulary, "{}", "the vocabulary is empty"},
          {vocabulary, "[]", "t.json.model.vocab: expected an object, got an array"},
          {vocabulary, R"({"a": 0, "b": 0, "ab": 2, "Ġ": 3})", "tokens \"a\" and \"b\" have the same id 0"},
          {vocabulary, R"({"a": -1, "b": 1, "ab": 2, "Ġ": 3})", "token \"a\" has id -1, expected 0 to"},
          {vocabulary, R"({"a": 2000000000, "b": 1, "ab": 2, "Ġ": 3})", "token \"a\" has id 2000000000"},
          {vocabulary, R"({"a": 99999999999, "b": 1, "ab": 2, "Ġ": 3})", "has id 99999999999"},
          {vocabulary, R"({"a": "0", "b": 1, "ab": 2, "Ġ": 3})", "t.json.model.vocab.a: expected an id, got \"0\""},
          {vocabulary, R"({"a": 0.5, "b": 1, "ab": 2, "Ġ": 3})", "t.json.model.vocab.a: expected an id, got a number"},
          {vocabulary, R"({"a": 0, "b": 1, "Ġ": 3, "x": 2})", "merge 0, \"a\" with \"b\": token \"ab\" is not in"},
          {vocabulary, R"({"a": 0, "a": 1})", "a"},
          // merges
          {R"(["a b"])", R"(["a c"])", "token \"c\" is not in the vocabulary"},
          {R"(["a b"])", R"(["ab"])",
           "t.json.model.merges[0]: expected two tokens with one space between them, got \"ab\""},
          {R"(["a b"])", R"(["a b a"])", "merges[0]: expected two tokens with one space between them, got \"a b a\""},
          {R"(["a b"])", R"([["a", "b"], ["a"]])", "t.json.model.merges[1]: expected two tokens, got an array"},
          {R"(["a b"])", R"([["a", 1]])", "t.json.model.merges[0][1]: expected a string, got 1"},
          {R"(["a b"])", R"([7])", "t.json.model.merges[0]: expected an array, got 7"},
          {R"(["a b"])", R"({"a": "b"})", "t.json.model.merges: expected an array, got an object"},
          {R"(, "merges": ["a b"])", "", "there is no \"merges\""},
          // normalizer, pre_tokenizer
          {R"({"type": "NFC"})", R"({"type": "NFKC"})", "t.json.normalizer.normalizers[0].type: expected NFC, NFD"},
          {R"({"type": "NFC"})", R"("NFC")", "t.json.normalizer.normalizers[0]: expected an object, got \"NFC\""},
          {R"([{"type": "NFC"}])",
           std::string("[") +
               [] {
                 std::string all;
                 for (int i = 0; i < 40; ++i) all += std::string(i == 0 ? "" : ",") + R"({"type": "NFC"})";
                 return all;
               }() +
               "]",
           "normalizers: 17 steps, expected at most 16"},
          {R"("normalizers":)", R"("steps":)", "t.json.normalizer: there is no \"normalizers\""},
          {R"({"type": "Digits", "individual_digits": true})", R"({"type": "Whitespace"})",
           "pretokenizers[0].type: expected ByteLevel, Digits"},
          {R"({"type": "Digits", "individual_digits": true})", R"({"type": "Digits", "individual_digits": 1})",
           "individual_digits: expected true or false, got 1"},
          {R"({"type": "Digits", "individual_digits": true})", R"({"type": "ByteLevel", "add_prefix_space": false})",
           "pretokenizers[1]: nothing may follow ByteLevel"},
          {R"("add_prefix_space": false, )", "", "there is no \"add_prefix_space\""},
          {R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})", R"({"type": "Digits"})",
           "t.json.pre_tokenizer: there is no ByteLevel"},
          {R"({"type": "Digits", "individual_digits": true})",
           R"({"type": "Split", "pattern": {"Regex": "\\d+"}, "behavior": "Isolated", "invert": false})",
           "the pattern \"\\\\d+\" is not supported; known are:"},
          {R"({"type": "Digits", "individual_digits": true})",
           R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false})",
           "pattern: expected a Regex"},
          {R"({"type": "Digits", "individual_digits": true})",
           R"re({"type": "Split", "pattern": {"Regex": "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}, "behavior": "Removed", "invert": false})re",
           "behavior: expected Isolated, or Removed with invert, got \"Removed\""},
          // post_processor
          {R"({"type": "ByteLevel"},)", R"({"type": "Custom"},)", "processors[0].type: expected TemplateProcessing"},
          {R"({"Sequence": {"id": "A"}})", R"({"Sequence": {"id": "B"}})", "id: expected \"A\", got \"B\""},
          {R"(, {"Sequence": {"id": "A"}})", "", "single: the text, {\"Sequence\": {\"id\": \"A\"}}, is missing"},
          {R"({"Sequence": {"id": "A"}})", R"({"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}})",
           "single[2]: the text may come only once"},
          {R"({"Sequence": {"id": "A"}})", R"({"Other": 1})", "single[1]: expected SpecialToken or Sequence"},
          {R"({"<e>": {"ids": [4]}})", R"({"<f>": {"ids": [4]}})", "special_tokens: there is no \"<e>\""},
          {R"("ids": [4])", R"("ids": [40])", "post_processor: there is no token of id 40"},
          {R"("ids": [4])", R"("ids": [-4])", "ids[0]: expected an id of 0 to 2147483647, got -4"},
          // added_tokens
          {R"("id": 4)", R"("id": 9)", "added token \"<e>\" has id 9, expected 4, the next one"},
          {R"("id": 4)", R"("id": 0)", "added token \"<e>\" has id 0, expected 4, the next one"},
          {R"("id": 4)", R"("id": 4000000000)", "added_tokens[0].id: expected an id of 0 to 2147483647"},
          {R"("id": 4)", R"("id": "4")", "added_tokens[0].id: expected a whole number, got \"4\""},
          {added, R"("content": "a")", "added token \"a\" has id 4, expected 0, its id in the vocabulary"},
          {added, R"("content": "")", "the added token of id 4 is empty"},
          {added, std::string("\"content\": \"").append(5000, 'x') + "\"", "has 5000 bytes, expected at most 4096"},
          {R"("normalized": false,)", R"("normalized": null,)",
           "added_tokens[0].normalized: expected true or false, got"},
          {R"("single_word": false, )", "", "added_tokens[0]: there is no \"single_word\""},
          {second, R"("special": true}, {"id": 4, "content": "<e>", )" + token + "}]",
           "added token \"<e>\" is there twice"},
          {second, R"("special": true}, 3])", "added_tokens[1]: expected an object, got 3"},
      });
}

TEST(BadTokenizer, WordPiece) {
  expect_refusals(
      kBert,
      {
          {R"("[UNK]": 2)", R"("[unk]": 2)", "the unknown token \"[UNK]\" is not in the vocabulary"},
          {R"("unk_token": "[UNK]", )", "", "t.json.model: there is no \"unk_token\""},
          {R"("continuing_subword_prefix": "##")", R"("continuing_subword_prefix": "")",
           "expected a prefix such as \"##\""},
          {R"("max_input_chars_per_word": 100)", R"("max_input_chars_per_word": 0)", "expected 1 to 256, got 0"},
          {R"("max_input_chars_per_word": 100)", R"("max_input_chars_per_word": 257)", "expected 1 to 256, got 257"},
          {R"("max_input_chars_per_word": 100)", R"("max_input_chars_per_word": 1e2)", "expected a whole number"},
          {R"({"type": "BertPreTokenizer"})", R"({"type": "ByteLevel", "add_prefix_space": true})",
           "ByteLevel does not go with WordPiece"},
          {R"("type": "WordPiece", "prefix")", R"("type": "ByteLevel", "prefix")", "decoder.type: expected WordPiece"},
          {R"("prefix": "##", )", "", "t.json.decoder: there is no \"prefix\""},
          {R"(["[SEP]", 1])", R"(["[SEP]"])", "sep: expected a token and its id"},
          {R"(["[SEP]", 1])", R"([1, "[SEP]"])", "sep[0]: expected a string, got 1"},
          {R"(["[CLS]", 0])", R"(["[CLS]", 77])", "there is no token of id 77"},
          {R"("a": 3)", std::string("\"").append((8U << 20) + 1, 'a') + "\": 3", "bytes, expected at most 8388608"},
          {R"("lowercase": true)", R"("lowercase": 1)", "normalizer.lowercase: expected true or false"},
      });
}

TEST(BadTokenizer, HalfAFile) {
  for (const std::string& good : {kBpe, kBert}) {
    for (std::size_t size = 0; size < good.size(); ++size) EXPECT_NE(refusal(good.substr(0, size)), "");
  }
}

// Every value of the file replaced by every kind of value: an error or a tokenizer, never a crash.
TEST(BadTokenizer, AnyValueInAnyPlace) {
  const std::vector<std::string> values = {"null", "true", "-1", "3", "1e300", "\"x\"", "[]", "{}", "[[]]"};
  int refused = 0;
  for (const std::string& good : {kBpe, kBert}) {
    for (std::size_t colon = good.find(": "); colon != std::string::npos; colon = good.find(": ", colon + 1)) {
      const std::size_t end = good.find_first_of(",}", colon);
      for (const std::string& value : values) {
        std::string text = good;
        text.replace(colon + 2, end - colon - 2, value);
        refused += refusal(text).empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(refused, 300);
}

// --- GGUF ---

struct GgufParts {
  std::string model = "gpt2", pre = "gpt-2";
  std::vector<std::string> tokens = {"a", "b", "ab", "<e>"}, merges = {"a b"};
  std::vector<std::int32_t> types = {1, 1, 1, 3};
  std::function<void(test::GgufFile&)> more = [](test::GgufFile&) {};
};

std::string refusal(const GgufParts& parts) {
  test::GgufFile file;
  file.text("tokenizer.ggml.model", parts.model);
  file.text("tokenizer.ggml.pre", parts.pre);
  if (!parts.tokens.empty()) file.texts("tokenizer.ggml.tokens", parts.tokens);
  if (!parts.merges.empty()) file.texts("tokenizer.ggml.merges", parts.merges);
  if (!parts.types.empty()) file.integers("tokenizer.ggml.token_type", parts.types);
  parts.more(file);
  try {
    test::gguf_tokenizer(file);
  } catch (const io::FileError& error) {
    return error.what();
  }
  return "";
}

TEST(BadTokenizer, Gguf) {
  using File = test::GgufFile;
  ASSERT_EQ(refusal(GgufParts()), "");
  const std::vector<std::pair<GgufParts, std::string>> cases = {
      {{.model = "llama"}, "m.gguf: tokenizer.ggml.model: \"llama\" is not supported; known are: gpt2, bert"},
      {{.model = ""}, "tokenizer.ggml.model: \"\" is not supported"},
      {{.pre = "martian"}, "tokenizer.ggml.pre: \"martian\" is not supported; known are: default, gpt-2"},
      {{.tokens = {}}, "there is no tokenizer.ggml.tokens"},
      {{.merges = {}}, "there is no tokenizer.ggml.merges"},
      {{.tokens = {"a", "b", "ab", "a"}}, "token \"a\" is there twice, as 0 and as 3"},
      {{.tokens = {"a", "b", "ab", "\xFF"}}, "tokenizer.ggml.tokens[3]: expected UTF-8"},
      {{.merges = {"ab"}}, "tokenizer.ggml.merges[0]: expected two tokens with a space between them, got \"ab\""},
      {{.merges = {"a "}}, "ggml.merges[0]: expected two tokens with a space between them, got \"a \""},
      {{.merges = {"a b", ""}}, "merges[1]: expected two tokens"},
      {{.merges = {"a b", "ab b"}}, "merge 1, \"ab\" with \"b\": token \"abb\" is not in the vocabulary"},
      {{.merges = {"x b"}}, "token \"x\" is not in the vocabulary"},
      {{.types = {1, 1, 1}}, "tokenizer.ggml.token_type: has 3 entries, expected 4"},
      {{.types = {1, 1, 1, 1, 1}}, "tokenizer.ggml.token_type: has 5 entries, expected 4"},
      {{.more = [](File& f) { f.integer("tokenizer.ggml.bos_token_id", 4); }},
       "tokenizer.ggml.bos_token_id: 4, expected 0 to 3"},
      {{.more = [](File& f) { f.integer("tokenizer.ggml.eos_token_id", 4000000000U); }},
       "tokenizer.ggml.eos_token_id: 4000000000, expected 0 to 3"},
      {{.more = [](File& f) { f.text("tokenizer.ggml.padding_token_id", "3"); }},
       "tokenizer.ggml.padding_token_id: expected a whole number"},
      {{.more = [](File& f) { f.boolean("tokenizer.ggml.add_bos_token", true); }},
       "add_bos_token: true, but there is no tokenizer.ggml.bos_token_id"},
      {{.more = [](File& f) { f.boolean("tokenizer.ggml.add_eos_token", true); }},
       "add_eos_token: true, but there is no tokenizer.ggml.eos_token_id"},
      {{.more = [](File& f) { f.integer("tokenizer.ggml.add_bos_token", 1); }},
       "tokenizer.ggml.add_bos_token: expected true or false"},
      {{.more = [](File& f) { f.integer("tokenizer.chat_template", 1); }},
       "tokenizer.chat_template: expected a string"},
      {{.types = {}, .more = [](File& f) { f.texts("tokenizer.ggml.token_type", {"1", "1", "1", "1"}); }},
       "tokenizer.ggml.token_type: expected an array of whole numbers"},
      {{.tokens = {}, .more = [](File& f) { f.integers("tokenizer.ggml.tokens", {1, 2}); }},
       "tokenizer.ggml.tokens: expected an array of strings"},
      {{.tokens = {}, .types = {}, .more = [](File& f) { f.texts("tokenizer.ggml.tokens", {}); }},
       "the vocabulary is empty"},
      {{.model = "bert"}, "the unknown token \"[UNK]\" is not in the vocabulary"},
      {{.model = "bert", .tokens = {"[UNK]", "b", "ab", "[SEP]"}}, "tokenizer.ggml.tokens: there is no [CLS]"},
      {{.model = "bert",
        .tokens = {"[UNK]",
                   "\xE2\x96\x81"
                   "a",
                   "ab", "ab"}},
       "token \"##ab\" is there twice"},
  };
  std::set<std::string> seen;
  for (const auto& [parts, says] : cases) {
    const std::string error = refusal(parts);
    EXPECT_NE(error.find(says), std::string::npos) << "says: " << error << "\n  not: " << says;
    EXPECT_TRUE(seen.insert(error).second) << error;
  }
}

}  // namespace
}  // namespace attend::llm
