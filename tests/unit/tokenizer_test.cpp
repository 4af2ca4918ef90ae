// Tokenizers: the ids and texts of the golden files, streams, untrusted text, folders and GGUF.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "llm/text/pre_tokenizer.hpp"
#include "llm/text/unicode.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using test::golden_tokenizer;
using Tokens = std::vector<Token>;

const std::vector<std::string> kFamilies = {"gpt2", "smollm2", "qwen2", "llama3", "tekken", "bert"};

class TokenizerFamily : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerFamily, GivesTheIdsOfHuggingFace) {
  const Tokenizer tokenizer = golden_tokenizer(GetParam());
  const io::Json cases = test::golden_json("cases.json");
  const io::Json::Array& texts = *cases.find("texts")->array();
  const io::Json& family = *cases.find("families")->find(GetParam());
  ASSERT_GT(texts.size(), 30U);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = *texts[i].string();
    const Tokens tokens = tokenizer.encode(text);
    EXPECT_EQ(tokens, test::tokens_of((*family.find("ids")->array())[i])) << text;
    const std::string* decoded = (*family.find("decoded")->array())[i].string();  // null: the text itself
    EXPECT_EQ(tokenizer.decode(tokens, true), decoded == nullptr ? text : *decoded) << text;
  }
}

TEST_P(TokenizerFamily, StreamsWhatItDecodes) {
  const Tokenizer tokenizer = golden_tokenizer(GetParam());
  std::mt19937 random(5);
  const auto size = static_cast<Token>(tokenizer.vocabulary());
  for (int round = 0; round < 300; ++round) {
    Tokens tokens(random() % 30);
    for (Token& token : tokens) token = static_cast<Token>(random()) % (size + 3);  // negative ones and too large ones
    for (const bool skip_special : {false, true}) {
      StreamDecoder stream(tokenizer, skip_special);
      std::string text;
      for (const Token token : tokens) {
        const std::string piece = stream.push(token);
        EXPECT_TRUE(is_utf8(piece));
        text += piece;
      }
      text += stream.finish();
      EXPECT_EQ(text, tokenizer.decode(tokens, skip_special));
    }
  }
}

TEST_P(TokenizerFamily, TakesAnyBytes) {
  const Tokenizer tokenizer = golden_tokenizer(GetParam());
  std::mt19937 random(6);
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 4 == 0 ? random() : 'a' + random() % 4);
    EXPECT_EQ(tokenizer.encode(bytes), tokenizer.encode(utf8_repaired(bytes)));
    if (GetParam() != "bert" && GetParam() != "qwen2") {  // those two change the text
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes, false)), utf8_repaired(bytes));
    }
  }
}

TEST_P(TokenizerFamily, EncodesPartsAsOneText) {
  const Tokenizer tokenizer = golden_tokenizer(GetParam());
  const std::string text = "The attention<|im_end|> of the [SEP]<think> model's 1234 你好，世界";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    if (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) continue;
    const TextPart parts[] = {{std::string_view(text).substr(0, cut), true},
                              {std::string_view(text).substr(cut), true}};
    EXPECT_EQ(tokenizer.encode_parts(parts), tokenizer.encode(text, false)) << cut;
  }
  const TextPart untrusted[] = {{text, false}};
  EXPECT_EQ(tokenizer.encode_parts(untrusted), tokenizer.encode(text, false, false));
  for (const Token token : tokenizer.encode_parts(untrusted)) {
    EXPECT_TRUE(!tokenizer.is_special(token) || token == tokenizer.special().unknown);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFamily, testing::ValuesIn(kFamilies),
                         [](const auto& name) { return name.param; });

TEST(Tokenizer, PutsSpecialTokensAroundTheText) {
  const Tokenizer llama = golden_tokenizer("llama3"), bert = golden_tokenizer("bert");
  EXPECT_EQ(llama.encode("").size(), 1U);
  EXPECT_EQ(llama.encode("")[0], llama.special().bos);
  EXPECT_TRUE(llama.special().add_bos);
  EXPECT_FALSE(llama.special().add_eos);
  EXPECT_TRUE(llama.encode("", false).empty());
  EXPECT_EQ(bert.encode(""), (Tokens{*bert.special().cls, *bert.special().sep}));
  EXPECT_EQ(bert.special().cls, bert.find("[CLS]"));
  EXPECT_EQ(bert.special().unknown, bert.find("[UNK]"));
  EXPECT_EQ(bert.special().mask, bert.find("[MASK]"));
  EXPECT_FALSE(golden_tokenizer("gpt2").special().add_bos);
}

TEST(Tokenizer, KnowsPieces) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  EXPECT_EQ(tokenizer.vocabulary(), 421);
  EXPECT_EQ(tokenizer.find("<|im_start|>"), 1);
  EXPECT_EQ(tokenizer.piece(1), "<|im_start|>");
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_EQ(tokenizer.find("<think>"), 420);
  EXPECT_FALSE(tokenizer.is_special(420));
  const std::optional<Token> the = tokenizer.find(" the");
  ASSERT_TRUE(the);
  EXPECT_EQ(tokenizer.piece(*the), " the");
  EXPECT_FALSE(tokenizer.is_special(*the));
  EXPECT_EQ(tokenizer.find("Ġthe"), std::nullopt);
  ASSERT_TRUE(tokenizer.find("\xFF"));
  EXPECT_EQ(tokenizer.piece(*tokenizer.find("\xFF")), "\xFF");
  for (const Token outside : {-1, 421, 1 << 30}) {
    EXPECT_EQ(tokenizer.piece(outside), "");
    EXPECT_FALSE(tokenizer.is_special(outside));
    EXPECT_EQ(tokenizer.decode(Tokens{outside, *the}), " the");
  }
}

TEST(Tokenizer, HoldsBackHalfACharacter) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const std::string smile = "\xF0\x9F\x98\x80";
  StreamDecoder stream(tokenizer);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(stream.push(*tokenizer.find(smile.substr(i, 1))), "");
  EXPECT_EQ(stream.push(*tokenizer.find(smile.substr(3))), smile);
  EXPECT_EQ(stream.push(*tokenizer.find("\xF0")), "");
  EXPECT_EQ(stream.push(*tokenizer.find("a")),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(stream.push(*tokenizer.find("\xE4")), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, LeavesSpecialTokensOfUntrustedTextAsText) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const Token start = 1, end = 2;
  EXPECT_EQ(tokenizer.encode("<|im_end|>"), (Tokens{end}));
  const Tokens plain = tokenizer.encode("<|im_end|>", true, false);
  EXPECT_GT(plain.size(), 1U);
  EXPECT_EQ(tokenizer.decode(plain), "<|im_end|>");

  // What a message ends with does not reach into the template's own token, and the other way around.
  const TextPart parts[] = {
      {"<|im_start|>", true}, {"<|im_start|", false}, {">", true}, {"<|im_end|>", false}, {"<|im_end|>", true}};
  const Tokens tokens = tokenizer.encode_parts(parts);
  EXPECT_EQ(tokens.front(), start);
  EXPECT_EQ(tokens.back(), end);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), start), 1);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), end), 1);
  EXPECT_EQ(tokenizer.decode(tokens), "<|im_start|><|im_start|><|im_end|><|im_end|>");

  const TextPart late[] = {{"<|im_end|", true}, {">", false}};
  EXPECT_EQ(tokenizer.encode_parts(late), plain);

  // A character cut at the border stays cut.
  const TextPart cut[] = {{"\xC3", false}, {"\xA9", true}};
  EXPECT_EQ(tokenizer.decode(tokenizer.encode_parts(cut)), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Tokenizer, MovesWhileAStreamReads) {
  Tokenizer first = golden_tokenizer("gpt2");
  StreamDecoder stream(first);
  const Tokens tokens = first.encode("The attention");
  const Tokenizer second = std::move(first);
  std::string text;
  for (const Token token : tokens) text += stream.push(token);
  EXPECT_EQ(text + stream.finish(), "The attention");
  EXPECT_EQ(second.encode("The attention"), tokens);
}

// Expected ids are those of Hugging Face's `tokenizers`.
TEST(Tokenizer, FindsAddedTokensAsTheirFlagsSay) {
  const auto added = [](int id, const char* content, const char* flag, bool special) {
    std::string json = "{\"id\": " + std::to_string(id) + ", \"content\": \"" + content + "\", \"special\": ";
    json += special ? "true" : "false";
    for (const char* name : {"single_word", "lstrip", "rstrip", "normalized"}) {
      json += std::string(", \"") + name + "\": " + (std::string_view(name) == flag ? "true" : "false");
    }
    return json + "}";
  };
  const std::string json = R"({"normalizer": {"type": "Lowercase"}, "decoder": {"type": "ByteLevel"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "model": {"vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3}, "merges": ["a b"]}, "added_tokens": [)" +
                           added(4, "<l>", "lstrip", true) + "," + added(5, "<r>", "rstrip", true) + "," +
                           added(6, "<w>", "single_word", true) + "," + added(7, "bA", "normalized", false) + "," +
                           added(8, "<l", "", false) + "," + added(9, "ba b", "", false) + "]}";
  const Tokenizer tokenizer = tokenizer_from_json(json, "t");
  const std::vector<std::pair<std::string, Tokens>> cases = {{"a <l> a", {0, 4, 2, 0}},
                                                             {"a<r>  a", {0, 5, 0}},
                                                             {"a<w>", {0}},
                                                             {"a <w> a", {0, 2, 6, 2, 0}},
                                                             {"a\u200D<w>", {0}},
                                                             {"<w>_", {}},
                                                             {"BAab", {7, 3}},
                                                             {"<l", {8}},
                                                             {"<<l>", {4}},
                                                             {"ba ba b", {9, 0, 2, 1}},
                                                             {"  <l>  <r>  <l>", {4, 2, 2, 5, 4}},
                                                             {"a <r> <l> a", {0, 2, 5, 4, 2, 0}}};
  for (const auto& [text, tokens] : cases) EXPECT_EQ(tokenizer.encode(text), tokens) << text;
  EXPECT_EQ(tokenizer.encode("a <l> a", true, false), (Tokens{0, 2, 2, 0}));
  EXPECT_EQ(tokenizer.encode("<lBA", true, false), (Tokens{8, 7}));
}

// Special tokens are found only where all their bytes are trusted, in the text as it is and in the normalised text.
TEST(Tokenizer, FindsSpecialTokensWhollyWithinTrustedParts) {
  const auto added = [](int id, const char* content, bool normalized) {
    return "{\"id\": " + std::to_string(id) + ", \"content\": \"" + content +
           "\", \"special\": true, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": " +
           (normalized ? "true" : "false") + "}";
  };
  const std::string json = R"({"normalizer": {"type": "Lowercase"}, "decoder": {"type": "ByteLevel"},
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "model": {"vocab": {"a": 0, "b": 1, "c": 2, "<": 3, ">": 4}, "merges": []}, "added_tokens": [)" +
                           added(5, "<c>", false) + "," + added(6, "AB", true) + "]}";
  const Tokenizer tokenizer = tokenizer_from_json(json, "t");
  const auto tokens = [&](const std::vector<TextPart>& parts) { return tokenizer.encode_parts(parts); };
  EXPECT_EQ(tokens({{"<c>", true}}), (Tokens{5}));
  EXPECT_EQ(tokens({{"<c>", false}}), (Tokens{3, 2, 4}));
  EXPECT_EQ(tokens({{"<c", true}, {">", true}}), (Tokens{5}));  // parts next to each other are one
  EXPECT_EQ(tokens({{"<c", true}, {">", false}}), (Tokens{3, 2, 4}));
  EXPECT_EQ(tokens({{"<", false}, {"c>", true}}), (Tokens{3, 2, 4}));
  EXPECT_EQ(tokens({{"a", false}, {"<c>", true}, {"<c>", false}, {"<c>", true}}), (Tokens{0, 5, 3, 2, 4, 5}));
  EXPECT_EQ(tokens({{"aB", true}}), (Tokens{6}));
  EXPECT_EQ(tokens({{"aB", false}}), (Tokens{0, 1}));
  EXPECT_EQ(tokens({{"a", true}, {"b", false}}), (Tokens{0, 1}));
  EXPECT_EQ(tokens({{"<c>", true}, {"ab", false}, {"<c>", true}}), (Tokens{5, 0, 1, 5}));
  EXPECT_EQ(tokens({{"ab<c>", true}, {"b", false}}), (Tokens{6, 5, 1}));
  EXPECT_EQ(tokens({}), Tokens{});
}

// A character whose bytes come in several tokens is given when it is whole, and what is left at the end is repaired.
TEST(Tokenizer, AStreamHoldsBackWhatIsNotWhole) {
  const Tokenizer tokenizer = golden_tokenizer("gpt2");
  const std::string text = "é😀";
  StreamDecoder stream(tokenizer);
  std::string streamed;
  std::size_t given = 0;
  for (const char byte : text) {
    const std::optional<Token> token = tokenizer.find(std::string(1, byte));
    ASSERT_TRUE(token);
    const std::string piece = stream.push(*token);
    if (!piece.empty()) ++given;
    streamed += piece;
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(given, 2U);
  EXPECT_EQ(stream.push(*tokenizer.find("\xF0")), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

// "Ġ" is the byte of a space, and so is the added token.
TEST(Tokenizer, OfTwoTokensOfTheSameBytesTheAddedOneIsFound) {
  const Tokenizer tokenizer = tokenizer_from_json(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [], "vocab": {"a": 0, "Ġ": 1}},
          "added_tokens": [{"id": 2, "content": " ", "special": false, "single_word": false, "lstrip": false,
                            "rstrip": false, "normalized": false}]})",
                                                  "t");
  EXPECT_EQ(tokenizer.find(" "), 2);
  EXPECT_EQ(tokenizer.encode("a a"), (Tokens{0, 2, 0}));
}

TEST(Tokenizer, AStreamBeginsAgainAfterItsEnd) {
  const Tokenizer tokenizer = tokenizer_from_json(R"({"pre_tokenizer": {"type": "BertPreTokenizer"},
          "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
          "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "a": 1, "##b": 2, ".": 3}}})",
                                                  "t");
  StreamDecoder stream(tokenizer);
  for (int twice = 0; twice < 2; ++twice) {
    std::string text;
    for (const Token token : {1, 2, 1, 3}) text += stream.push(token);
    EXPECT_EQ(text + stream.finish(), "ab a.");
  }
}

// (?i:'s) of the patterns: the long s is an s in another case.
TEST(PreTokenizer, ShortFormsInAnyCase) {
  const auto words = [](Split split, const std::string& text) {
    PreTokenizer::Words found;
    std::deque<std::string> made;
    PreTokenizer({split}).split(text, found, made);
    return std::vector<std::string>(found.begin(), found.end());
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words(Split::llama3, "a'ſb'LL'x"), (Words{"a", "'ſ", "b", "'LL", "'x"}));
  EXPECT_EQ(words(Split::qwen2, "'S12"), (Words{"'S", "1", "2"}));
  EXPECT_EQ(words(Split::gpt2, "a'ſb's'S"), (Words{"a", "'", "ſb", "'s", "'", "S"}));
}

// --- folders ---

class TokenizerFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("attend_tokenizer_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const char* name, const std::string& text) { std::ofstream(folder_ / name, std::ios::binary) << text; }
  fs::path folder_;
};

TEST_F(TokenizerFolder, ReadsSettingsBesideIt) {
  write("tokenizer.json", test::golden_text("gpt2.json"));
  EXPECT_EQ(tokenizer_from_folder(folder_).special().eos, std::nullopt);
  write("tokenizer_config.json",
        R"({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": null,
            "unk_token": "<nowhere>", "chat_template": [{"name": "tool_use", "template": "no"},
                                                         {"name": "default", "template": "yes"}]})");
  const Tokenizer tokenizer = tokenizer_from_folder(folder_);
  EXPECT_EQ(tokenizer.special().bos, 1);
  EXPECT_EQ(tokenizer.special().eos, 2);
  EXPECT_EQ(tokenizer.special().pad, std::nullopt);
  EXPECT_EQ(tokenizer.special().unknown, std::nullopt);
  EXPECT_FALSE(tokenizer.special().add_bos);
  EXPECT_EQ(tokenizer.chat_template(), "yes");
  write("chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(tokenizer_from_folder(folder_).chat_template(), "{{ messages }}");
}

// What Transformers writes for "no limit".
TEST_F(TokenizerFolder, LongNumbersThatNobodyNeedsAreReadOver) {
  std::string json = test::golden_text("gpt2.json");
  const std::string number = "1000000000000000019884624838656";
  json.insert(json.find('{') + 1, "\"model_max_length\": " + number + ", ");
  write("tokenizer.json", json);
  write("tokenizer_config.json",
        "{\"model_max_length\": " + number + ", \"eos_token\": \"<|im_end|>\", \"x\": -1e999}");
  EXPECT_EQ(tokenizer_from_folder(folder_).special().eos, 2);
}

TEST_F(TokenizerFolder, ReadsAVocabularyAlone) {
  const Tokenizer golden = golden_tokenizer("bert");
  std::string lines;
  for (Token token = 0; token < golden.vocabulary(); ++token) lines += std::string(golden.piece(token)) + "\r\n";
  write("vocab.txt", lines);
  const Tokenizer tokenizer = tokenizer_from_folder(folder_);
  EXPECT_EQ(tokenizer.vocabulary(), golden.vocabulary());
  const std::string text = "The Models' [MASK] Zürich 你好 don't!";
  EXPECT_EQ(tokenizer.encode(text), golden.encode(text));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), golden.decode(golden.encode(text)));
  write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_NE(tokenizer_from_folder(folder_).encode(text), golden.encode(text));
}

TEST_F(TokenizerFolder, SaysWhatIsMissing) {
  const auto refusal = [&] {
    try {
      tokenizer_from_folder(folder_);
    } catch (const io::FileError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal().find("neither tokenizer.json nor vocab.txt"), std::string::npos);
  write("vocab.txt", "[PAD]\nword\n");
  EXPECT_NE(refusal().find("unknown token \"[UNK]\""), std::string::npos);
  write("vocab.txt", "[PAD]\n[UNK]\n");
  EXPECT_NE(refusal().find("no [CLS]"), std::string::npos);
  write("vocab.txt", "[UNK]\n\xFF\n");
  EXPECT_NE(refusal().find("UTF-8"), std::string::npos);
  write("tokenizer_config.json", "[]");
  EXPECT_NE(refusal().find("expected an object"), std::string::npos);
  write("tokenizer.json", test::golden_text("gpt2.json"));
  write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_NE(refusal().find("chat_template"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": [{"name": 1}]})");
  EXPECT_NE(refusal().find("name and template"), std::string::npos);
}

// --- GGUF ---

// The golden tokenizer as llama.cpp's converter writes it.
test::GgufFile gguf_of(const std::string& family, const std::string& pre) {
  const io::Json json = test::golden_json(family + ".json");
  const Tokenizer golden = golden_tokenizer(family);
  std::vector<std::string> tokens(static_cast<std::size_t>(golden.vocabulary())), merges;
  std::vector<std::int32_t> types(tokens.size(), 1);
  for (const auto& [text, id] : *json.find("model")->find("vocab")->object()) {
    tokens[static_cast<std::size_t>(*id.integer())] = text;
  }
  for (const io::Json& token : *json.find("added_tokens")->array()) {
    const auto id = static_cast<std::size_t>(*token.find("id")->integer());
    tokens[id] = *token.find("content")->string();
    types[id] = *token.find("special")->boolean() ? 3 : 4;
  }
  test::GgufFile file;
  if (family == "bert") {
    for (std::string& token : tokens) {
      if (token.starts_with("##")) {
        token.erase(0, 2);
      } else if (!(token.starts_with("[") && token.ends_with("]"))) {
        token.insert(0, "\xE2\x96\x81");
      }
    }
  } else {
    for (const io::Json& merge : *json.find("model")->find("merges")->array()) {
      merges.push_back(*(*merge.array())[0].string() + " " + *(*merge.array())[1].string());
    }
    file.texts("tokenizer.ggml.merges", merges);
    file.text("tokenizer.ggml.pre", pre);
  }
  file.text("tokenizer.ggml.model", family == "bert" ? "bert" : "gpt2");
  file.texts("tokenizer.ggml.tokens", tokens);
  file.integers("tokenizer.ggml.token_type", types);
  return file;
}

TEST(TokenizerGguf, GivesTheSameIdsAsJson) {
  const std::vector<std::pair<std::string, std::string>> families = {
      {"gpt2", "gpt-2"},       {"gpt2", "default"},  {"smollm2", "smollm"}, {"qwen2", "qwen2"},
      {"llama3", "llama-bpe"}, {"tekken", "tekken"}, {"bert", ""}};
  const io::Json cases = test::golden_json("cases.json");
  for (const auto& [family, pre] : families) {
    test::GgufFile file = gguf_of(family, pre);
    if (family == "llama3") file.integer("tokenizer.ggml.bos_token_id", 0);
    const Tokenizer golden = golden_tokenizer(family), tokenizer = test::gguf_tokenizer(file);
    EXPECT_EQ(tokenizer.vocabulary(), golden.vocabulary());
    for (const io::Json& text : *cases.find("texts")->array()) {
      const Tokens tokens = tokenizer.encode(*text.string());
      EXPECT_EQ(tokens, golden.encode(*text.string())) << family << ": " << *text.string();
      EXPECT_EQ(tokenizer.decode(tokens, true), golden.decode(tokens, true)) << family << ": " << *text.string();
    }
  }
}

TEST(TokenizerGguf, ReadsSpecialTokensAndTemplate) {
  test::GgufFile file = gguf_of("gpt2", "gpt-2");
  file.integer("tokenizer.ggml.bos_token_id", 1);
  file.integer("tokenizer.ggml.eos_token_id", 2);
  file.integer("tokenizer.ggml.padding_token_id", 0);
  file.boolean("tokenizer.ggml.add_bos_token", true);
  file.boolean("tokenizer.ggml.add_eos_token", true);
  file.text("tokenizer.chat_template", "{{ x }}");
  const Tokenizer tokenizer = test::gguf_tokenizer(file);
  EXPECT_EQ(tokenizer.special().bos, 1);
  EXPECT_EQ(tokenizer.special().eos, 2);
  EXPECT_EQ(tokenizer.special().pad, 0);
  EXPECT_EQ(tokenizer.encode(""), (Tokens{1, 2}));
  EXPECT_EQ(tokenizer.chat_template(), "{{ x }}");
}

}  // namespace
}  // namespace attend::llm
