// tokenizer.json of Hugging Face's `tokenizers`.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llm/text/tokenizer_data.hpp"

namespace attend::llm {
namespace {

using io::FileError;
using io::Json;

// A value and where it stands, for messages.
class Field {
 public:
  Field(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& text) const { throw FileError(path_ + ": " + text); }
  [[noreturn]] void expected(const std::string& kind) const {
    refuse(std::string("expected ") + kind + ", got " + got());
  }

  bool is_null() const { return json_->is_null(); }
  std::optional<Field> find(std::string_view key) const {  // nothing where it is missing or null
    object();
    const Json* value = json_->find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;
    return Field(*value, path_ + "." + std::string(key));
  }
  Field at(std::string_view key) const {
    object();
    const Json* value = json_->find(key);
    if (value == nullptr) refuse("there is no \"" + std::string(key) + "\"");
    return Field(*value, path_ + "." + std::string(key));
  }
  Field at(std::size_t i) const { return Field(array()[i], path_ + "[" + std::to_string(i) + "]"); }

  const Json::Object& object() const {
    return json_->object() != nullptr ? *json_->object() : wrong<Json::Object>("an object");
  }
  const Json::Array& array() const {
    return json_->array() != nullptr ? *json_->array() : wrong<Json::Array>("an array");
  }
  const std::string& string() const {
    return json_->string() != nullptr ? *json_->string() : wrong<std::string>("a string");
  }
  bool boolean() const { return json_->boolean() != nullptr ? *json_->boolean() : wrong<bool>("true or false"); }
  std::int64_t integer() const {
    return json_->integer() != nullptr ? *json_->integer() : wrong<std::int64_t>("a whole number");
  }
  double number() const {
    double x = 0;
    if (!json_->number(x)) expected("a number");
    return x;
  }
  Token token() const {
    const std::int64_t id = integer();
    if (id < 0 || id > std::numeric_limits<Token>::max()) expected("an id of 0 to 2147483647");
    return static_cast<Token>(id);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    const std::optional<Field> field = find(key);
    return field ? field->boolean() : otherwise;
  }
  const std::string& type() const { return at("type").string(); }

 private:
  template <class T>
  [[noreturn]] const T& wrong(const char* kind) const {
    expected(kind);
  }
  std::string got() const {
    if (json_->string() != nullptr) return shown(*json_->string());
    if (json_->integer() != nullptr) return std::to_string(*json_->integer());
    if (json_->boolean() != nullptr) return *json_->boolean() ? "true" : "false";
    return json_->kind();
  }

  const Json* json_;
  std::string path_;
};

// --- normalizer and pre_tokenizer ---

constexpr std::size_t kMostSteps = 16;  // each is a pass over the text

template <class Step>
void check_steps(const Field& field, const std::vector<Step>& steps) {
  if (steps.size() <= kMostSteps) return;
  field.refuse(std::to_string(steps.size()) + " steps, expected at most " + std::to_string(kMostSteps));
}

void read_bert_normalizer(const Field& field, std::vector<Normal>& steps) {
  const bool lowercase = field.boolean("lowercase", true);
  if (field.boolean("clean_text", true)) steps.push_back(Normal::bert_clean);
  if (field.boolean("handle_chinese_chars", true)) steps.push_back(Normal::bert_chinese);
  if (field.boolean("strip_accents", lowercase)) {
    steps.push_back(Normal::nfd);
    steps.push_back(Normal::strip_nonspacing);
  }
  if (lowercase) steps.push_back(Normal::lowercase);
}

void read_normalizer(const Field& field, std::vector<Normal>& steps) {
  const std::string& type = field.type();
  if (type == "NFC") {
    steps.push_back(Normal::nfc);
  } else if (type == "NFD") {
    steps.push_back(Normal::nfd);
  } else if (type == "Lowercase") {
    steps.push_back(Normal::lowercase);
  } else if (type == "StripAccents") {
    steps.push_back(Normal::strip_combining);
  } else if (type == "BertNormalizer") {
    read_bert_normalizer(field, steps);
  } else if (type == "Sequence") {
    const Field all = field.at("normalizers");
    for (std::size_t i = 0; i < all.array().size(); ++i) {
      read_normalizer(all.at(i), steps);
      check_steps(all, steps);
    }
  } else {
    field.at("type").expected("NFC, NFD, Lowercase, StripAccents, BertNormalizer or Sequence");
  }
}

struct Splits {
  std::vector<Split> steps;
  bool byte_level = false;
};

void read_split(const Field& field, Splits& splits) {
  const Field pattern = field.at("pattern");
  if (!pattern.find("Regex")) pattern.expected("a Regex");
  const std::optional<Split> known = split_of_pattern(pattern.at("Regex").string());
  if (!known) {
    std::string text = "the pattern " + io::json_quoted(pattern.at("Regex").string()) + " is not supported; known are:";
    for (const std::string& regex : known_patterns()) text += "\n  " + regex;
    pattern.at("Regex").refuse(text);
  }
  // The known patterns match every character, so what is removed between matches is nothing.
  const std::string& behavior = field.at("behavior").string();
  const bool invert = field.boolean("invert", false);
  if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert)) {
    field.at("behavior").expected("Isolated, or Removed with invert");
  }
  splits.steps.push_back(*known);
}

void read_pre_tokenizer(const Field& field, Splits& splits) {
  if (splits.byte_level) field.refuse("nothing may follow ByteLevel, which turns characters into bytes");
  const std::string& type = field.type();
  if (type == "ByteLevel") {
    if (field.at("add_prefix_space").boolean()) splits.steps.push_back(Split::prefix_space);
    if (field.boolean("use_regex", true)) splits.steps.push_back(Split::gpt2);
    splits.byte_level = true;
  } else if (type == "Digits") {
    splits.steps.push_back(field.boolean("individual_digits", false) ? Split::digits_individual : Split::digits);
  } else if (type == "BertPreTokenizer") {
    splits.steps.push_back(Split::bert);
  } else if (type == "Split") {
    read_split(field, splits);
  } else if (type == "Sequence") {
    const Field all = field.at("pretokenizers");
    for (std::size_t i = 0; i < all.array().size(); ++i) {
      read_pre_tokenizer(all.at(i), splits);
      check_steps(all, splits.steps);
    }
  } else {
    field.at("type").expected("ByteLevel, Digits, BertPreTokenizer, Split or Sequence");
  }
}

// --- post_processor ---

constexpr std::size_t kMostAround = 64;  // tokens around every text; the models there are have three at most

void check_around(const Field& field, std::size_t tokens) {
  if (tokens <= kMostAround) return;
  field.refuse("it puts more than " + std::to_string(kMostAround) + " tokens around a text");
}

void append_special(const Field& special_tokens, const Field& piece, std::vector<Token>& tokens) {
  const Field ids = special_tokens.at(piece.at("id").string()).at("ids");
  check_around(ids, tokens.size() + ids.array().size());
  for (std::size_t i = 0; i < ids.array().size(); ++i) tokens.push_back(ids.at(i).token());
}

void read_template(const Field& field, std::vector<Token>& before, std::vector<Token>& after) {
  const Field single = field.at("single");
  check_around(single, std::max<std::size_t>(single.array().size(), 1) - 1);  // each special token is looked up
  bool text = false;
  for (std::size_t i = 0; i < single.array().size(); ++i) {
    const Field piece = single.at(i);
    if (const std::optional<Field> special = piece.find("SpecialToken")) {
      append_special(field.at("special_tokens"), *special, text ? after : before);
    } else if (const std::optional<Field> sequence = piece.find("Sequence")) {
      if (text) piece.refuse("the text may come only once");
      if (sequence->at("id").string() != "A") sequence->at("id").expected("\"A\"");
      text = true;
    } else {
      piece.expected("SpecialToken or Sequence");
    }
  }
  if (!text) single.refuse("the text, {\"Sequence\": {\"id\": \"A\"}}, is missing");
}

Token second(const Field& pair) {
  if (pair.array().size() != 2) pair.expected("a token and its id");
  pair.at(0).string();
  return pair.at(1).token();
}

void read_post_processor(const Field& field, TokenizerData& data) {
  const std::string& type = field.type();
  std::vector<Token> before, after;
  if (type == "TemplateProcessing") {
    read_template(field, before, after);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    before.push_back(second(field.at("cls")));
    after.push_back(second(field.at("sep")));
    data.special.cls = before[0];
    data.special.sep = after[0];
  } else if (type == "Sequence") {
    const Field all = field.at("processors");
    for (std::size_t i = 0; i < all.array().size(); ++i) read_post_processor(all.at(i), data);
  } else if (type != "ByteLevel") {  // that one only moves offsets
    field.at("type").expected("TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing or Sequence");
  }
  check_around(field, data.before.size() + before.size());
  check_around(field, data.after.size() + after.size());
  // Of several, each goes around what the one before it made.
  data.before.insert(data.before.begin(), before.begin(), before.end());
  data.after.insert(data.after.end(), after.begin(), after.end());
}

// --- model, added tokens, decoder ---

void read_vocabulary(const Field& vocabulary, TokenizerPlan& plan) {
  plan.vocabulary.reserve(vocabulary.object().size());
  for (const auto& [text, id] : vocabulary.object()) {
    if (id.integer() == nullptr) vocabulary.at(text).expected("an id");
    plan.vocabulary.push_back({text, *id.integer()});
  }
}

void read_merges(const Field& merges, BpePlan& bpe) {
  if (merges.array().size() > kMostMerges) {
    merges.refuse(std::to_string(merges.array().size()) + " merges, expected at most " + std::to_string(kMostMerges));
  }
  bpe.merges.reserve(merges.array().size());
  for (std::size_t i = 0; i < merges.array().size(); ++i) {
    const Json& merge = merges.array()[i];
    if (merge.string() != nullptr) {
      const std::string_view text = *merge.string();
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        merges.at(i).expected("two tokens with one space between them");
      }
      bpe.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      const Field pair = merges.at(i);
      if (pair.array().size() != 2) pair.expected("two tokens");
      bpe.merges.emplace_back(pair.at(0).string(), pair.at(1).string());
    }
  }
}

void refuse_unless_empty(const Field& model, std::string_view key) {
  const std::optional<Field> field = model.find(key);
  if (field && !field->string().empty()) field->expected("null: byte-level BPE has none");
}

BpePlan read_bpe(const Field& model) {
  BpePlan bpe;
  refuse_unless_empty(model, "continuing_subword_prefix");
  refuse_unless_empty(model, "end_of_word_suffix");
  if (model.boolean("byte_fallback", false)) {
    model.at("byte_fallback").expected("false: SentencePiece's BPE is not supported, byte-level BPE is");
  }
  if (const std::optional<Field> dropout = model.find("dropout")) {
    if (dropout->number() != 0) dropout->expected("null: merges left out at random are for training");
  }
  bpe.ignore_merges = model.boolean("ignore_merges", false);
  bpe.fuse_unknown = model.boolean("fuse_unk", false);
  if (const std::optional<Field> unknown = model.find("unk_token")) bpe.unknown = unknown->string();
  read_merges(model.at("merges"), bpe);
  return bpe;
}

// A piece is looked for at each place of a word, so this bounds what a byte of text can cost. All known models have
// 100.
constexpr std::int64_t kLongestWord = 256;

WordPiecePlan read_word_piece(const Field& model) {
  WordPiecePlan plan;
  plan.unknown = model.at("unk_token").string();
  plan.prefix = model.at("continuing_subword_prefix").string();
  if (plan.prefix.empty()) model.at("continuing_subword_prefix").expected("a prefix such as \"##\"");
  plan.longest_word = model.at("max_input_chars_per_word").integer();
  if (plan.longest_word < 1 || plan.longest_word > kLongestWord)
    model.at("max_input_chars_per_word").expected("1 to " + std::to_string(kLongestWord));
  return plan;
}

void read_added_tokens(const Field& all, TokenizerPlan& plan) {
  for (std::size_t i = 0; i < all.array().size(); ++i) {
    const Field field = all.at(i);
    AddedToken token;
    token.content = field.at("content").string();
    token.id = field.at("id").token();
    token.special = field.at("special").boolean();
    token.single_word = field.at("single_word").boolean();
    token.lstrip = field.at("lstrip").boolean();
    token.rstrip = field.at("rstrip").boolean();
    token.normalized = field.at("normalized").boolean();
    plan.added.push_back(std::move(token));
  }
}

void check_ids(const TokenizerData& data, const std::string& what) {
  for (const std::vector<Token>* tokens : {&data.before, &data.after}) {
    for (const Token token : *tokens) {
      if (!data.present(token)) {
        throw FileError(what + ": post_processor: there is no token of id " + std::to_string(token));
      }
    }
  }
}

void name_special(TokenizerData& data, bool word_piece) {
  SpecialTokens& special = data.special;
  special.add_bos = !data.before.empty();
  special.add_eos = !data.after.empty();
  if (special.add_bos) (word_piece ? special.cls : special.bos) = data.before.front();
  if (special.add_eos) (word_piece ? special.sep : special.eos) = data.after.back();
  if (!word_piece) return;
  const auto named = [&](const char* piece) {
    const Token token = data.by_piece.find(data.pieces, piece);
    return token < 0 ? std::nullopt : std::optional(token);
  };
  special.pad = named("[PAD]");
  special.mask = named("[MASK]");
}

std::string model_type(const Field& model) {
  if (model.find("type")) return model.type();
  return model.find("merges") ? "BPE" : "";  // old files do not say
}

}  // namespace

std::unique_ptr<TokenizerData> tokenizer_data_from_json(const Json& json, const std::string& what) {
  const Field root(json, what);
  auto data = std::make_unique<TokenizerData>();
  TokenizerPlan plan;
  plan.what = what;

  const Field model = root.at("model");
  const std::string type = model_type(model);
  const bool word_piece = type == "WordPiece";
  if (!word_piece && type != "BPE") model.at("type").expected("BPE or WordPiece");

  if (const std::optional<Field> normalizer = root.find("normalizer")) {
    std::vector<Normal> steps;
    read_normalizer(*normalizer, steps);
    data->normalizer = Normalizer(std::move(steps));
  }
  Splits splits;
  const Field pre_tokenizer = root.at("pre_tokenizer");
  if (!pre_tokenizer.is_null()) read_pre_tokenizer(pre_tokenizer, splits);
  if (splits.byte_level == word_piece) {
    pre_tokenizer.refuse(word_piece ? "ByteLevel does not go with WordPiece"
                                    : "there is no ByteLevel, and BPE is supported on bytes alone");
  }
  data->pre_tokenizer = PreTokenizer(std::move(splits.steps));
  const Field decoder = root.at("decoder");
  if (decoder.type() != (word_piece ? "WordPiece" : "ByteLevel")) {
    decoder.at("type").expected(word_piece ? "WordPiece" : "ByteLevel");
  }
  if (const std::optional<Field> added = root.find("added_tokens")) read_added_tokens(*added, plan);
  read_vocabulary(model.at("vocab"), plan);

  if (word_piece) {
    finish_word_piece(*data, plan, read_word_piece(model));
    data->prefix = decoder.at("prefix").string();
    data->cleanup = decoder.boolean("cleanup", true);
  } else {
    finish_bpe(*data, plan, read_bpe(model));
  }
  if (const std::optional<Field> post = root.find("post_processor")) read_post_processor(*post, *data);
  check_ids(*data, what);
  name_special(*data, word_piece);
  return data;
}

Tokenizer tokenizer_from_json(const Json& tokenizer_json, const std::string& what) {
  return Tokenizer(tokenizer_data_from_json(tokenizer_json, what));
}

}  // namespace attend::llm
