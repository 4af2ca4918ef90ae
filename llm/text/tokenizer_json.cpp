// tokenizer.json of Hugging Face's `tokenizers`, read in place: a tree of its values would take many times the file.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json_view.hpp"
#include "llm/text/tokenizer_data.hpp"

namespace attend::llm {
namespace {

using io::FileError;
using io::JsonCursor;
using io::JsonView;

// A value and its path, for messages.
class Field {
 public:
  Field(const JsonView& json, std::string path) : json_(json), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& text) const { throw FileError(path_ + ": " + text); }
  [[noreturn]] void expected(const std::string& kind) const {
    refuse(std::string("expected ") + kind + ", got " + got());
  }

  bool is_null() const { return json_.is_null(); }
  std::optional<Field> find(std::string_view key) const {  // nothing where it is missing or null
    const std::optional<JsonView> value = member(key);
    if (!value || value->is_null()) return std::nullopt;
    return Field(*value, path_ + "." + std::string(key));
  }
  Field at(std::string_view key) const {
    const std::optional<JsonView> value = member(key);
    if (!value) refuse("there is no \"" + std::string(key) + "\"");
    return Field(*value, path_ + "." + std::string(key));
  }
  // Calls take(element) with each Field of an array.
  template <class Take>
  void each(const Take& take) const {
    std::size_t i = 0;
    for (JsonCursor c(array()); c.next(); ++i) take(Field(c.value(), path_ + "[" + std::to_string(i) + "]"));
  }

  const JsonView& object() const {
    if (!json_.is_object()) expected("an object");
    return json_;
  }
  const JsonView& array() const {
    if (!json_.is_array()) expected("an array");
    return json_;
  }
  std::size_t size() const { return array().size(); }
  const std::string& path() const { return path_; }
  std::size_t bytes() const { return json_.text().size(); }  // in the file
  std::string string() const {
    if (!json_.is_string()) expected("a string");
    return json_.string();
  }
  bool boolean() const {
    const std::optional<bool> value = json_.boolean();
    if (!value) expected("true or false");
    return *value;
  }
  std::int64_t integer() const {
    const std::optional<std::int64_t> value = json_.integer();
    if (!value) expected("a whole number");
    return *value;
  }
  double number() const {
    const std::optional<double> value = json_.number();
    if (!value) expected("a number");
    return *value;
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
  std::string type() const { return at("type").string(); }

  // For an object with large members: the first members are found without reading the others again.
  Field indexed() const {
    constexpr std::size_t kMostIndexed = 64;
    Field field = *this;
    field.index_ = std::make_shared<std::vector<std::pair<std::string, JsonView>>>();
    std::string buffer;
    for (JsonCursor c(object()); c.next();) {
      if (field.index_->size() == kMostIndexed) return *this;  // not a file as any program writes it
      field.index_->emplace_back(c.key().string(buffer).substr(0, kLongestIndexed), c.value());
    }
    return field;
  }

 private:
  static constexpr std::size_t kLongestIndexed = 64;  // bytes of a key; no key looked up has as many

  std::optional<JsonView> member(std::string_view key) const {
    if (index_ == nullptr) return object().find(key);
    for (const auto& [name, value] : *index_)
      if (name == key) return value;
    return std::nullopt;
  }
  std::string got() const {
    std::string buffer;
    if (json_.is_string()) return shown(json_.string(buffer));
    if (json_.integer()) return std::to_string(*json_.integer());
    if (json_.boolean()) return *json_.boolean() ? "true" : "false";
    return json_.kind();
  }

  JsonView json_;
  std::string path_;
  std::shared_ptr<std::vector<std::pair<std::string, JsonView>>> index_;
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
  const std::string type = field.type();
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
    all.each([&](const Field& step) {
      read_normalizer(step, steps);
      check_steps(all, steps);
    });
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
  const std::string behavior = field.at("behavior").string();
  const bool invert = field.boolean("invert", false);
  if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert)) {
    field.at("behavior").expected("Isolated, or Removed with invert");
  }
  splits.steps.push_back(*known);
}

void read_pre_tokenizer(const Field& field, Splits& splits) {
  if (splits.byte_level) field.refuse("nothing may follow ByteLevel, which turns characters into bytes");
  const std::string type = field.type();
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
    all.each([&](const Field& step) {
      read_pre_tokenizer(step, splits);
      check_steps(all, splits.steps);
    });
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
  check_around(ids, tokens.size() + ids.size());
  ids.each([&](const Field& id) { tokens.push_back(id.token()); });
}

void read_template(const Field& field, std::vector<Token>& before, std::vector<Token>& after) {
  const Field single = field.at("single");
  check_around(single, std::max<std::size_t>(single.size(), 1) - 1);  // each special token is looked up
  bool text = false;
  single.each([&](const Field& piece) {
    if (const std::optional<Field> special = piece.find("SpecialToken")) {
      append_special(field.at("special_tokens"), *special, text ? after : before);
    } else if (const std::optional<Field> sequence = piece.find("Sequence")) {
      if (text) piece.refuse("the text may come only once");
      if (sequence->at("id").string() != "A") sequence->at("id").expected("\"A\"");
      text = true;
    } else {
      piece.expected("SpecialToken or Sequence");
    }
  });
  if (!text) single.refuse("the text, {\"Sequence\": {\"id\": \"A\"}}, is missing");
}

Token second(const Field& pair) {
  if (pair.size() != 2) pair.expected("a token and its id");
  Token token = -1;
  bool first = true;
  pair.each([&](const Field& part) {
    if (std::exchange(first, false))
      (void)part.string();
    else
      token = part.token();
  });
  return token;
}

void read_post_processor(const Field& field, TokenizerData& data) {
  const std::string type = field.type();
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
    all.each([&](const Field& processor) { read_post_processor(processor, data); });
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
  for (JsonCursor c(vocabulary.object()); c.next(); ++plan.tokens)
    if (!c.value().integer()) Field(c.value(), vocabulary.path() + "." + c.key().string()).expected("an id");
  plan.each_token = [json = vocabulary.object()](const TokenizerPlan::TakeToken& take) {
    std::string text;
    for (JsonCursor c(json); c.next();) take(c.key().string(text), *c.value().integer());
  };
}

// "a b", or ["a", "b"].
template <class Take>
void read_merge(const Field& merges, std::size_t i, const JsonView& merge, const Take& take) {
  const auto field = [&](const JsonView& json, const std::string& rest = "") {
    return Field(json, merges.path() + "[" + std::to_string(i) + "]" + rest);
  };
  std::string left, right;
  if (merge.is_string()) {
    const std::string_view text = merge.string(left);
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      field(merge).expected("two tokens with one space between them");
    return take(text.substr(0, space), text.substr(space + 1));
  }
  if (!merge.is_array()) field(merge).expected("an array");
  JsonCursor c(merge);
  const bool has_first = c.next();
  const JsonView first = c.value();
  const bool has_second = has_first && c.next();
  const JsonView second = c.value();
  if (!has_second || c.next()) field(merge).expected("two tokens");
  if (!first.is_string()) field(first, "[0]").expected("a string");
  if (!second.is_string()) field(second, "[1]").expected("a string");
  take(first.string(left), second.string(right));
}

void read_merges(const Field& merges, BpePlan& bpe) {
  bpe.merges = merges.size();
  if (bpe.merges > kMostMerges) {
    merges.refuse(std::to_string(bpe.merges) + " merges, expected at most " + std::to_string(kMostMerges));
  }
  bpe.each_merge = [merges](const BpePlan::TakeMerge& take) {
    std::size_t i = 0;
    for (JsonCursor c(merges.array()); c.next(); ++i) read_merge(merges, i, c.value(), take);
  };
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
  all.each([&](const Field& field) {
    AddedToken token;
    token.content = field.at("content").string();
    token.id = field.at("id").token();
    token.special = field.at("special").boolean();
    token.single_word = field.at("single_word").boolean();
    token.lstrip = field.at("lstrip").boolean();
    token.rstrip = field.at("rstrip").boolean();
    token.normalized = field.at("normalized").boolean();
    plan.add(std::move(token));
  });
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

// The small parts are read by looking up one field after the other, each time from the beginning of the part. The
// largest of any model has 1 MiB.
Field small_part(const Field& part) {
  constexpr std::size_t kMostBytes = std::size_t{8} << 20;
  if (part.bytes() > kMostBytes)
    part.refuse("it has " + std::to_string(part.bytes()) + " bytes, expected at most " + std::to_string(kMostBytes));
  return part;
}

std::string model_type(const Field& model) {
  if (model.find("type")) return model.type();
  return model.find("merges") ? "BPE" : "";  // old files do not say
}

}  // namespace

std::unique_ptr<TokenizerData> tokenizer_data_from_json(std::string_view json, const std::string& what) {
  const Field root = Field(io::view_json(json, what), what).indexed();
  auto data = std::make_unique<TokenizerData>();
  TokenizerPlan plan;
  plan.what = what;

  const Field model = root.at("model").indexed();
  const std::string type = model_type(model);
  const bool word_piece = type == "WordPiece";
  if (!word_piece && type != "BPE") model.at("type").expected("BPE or WordPiece");

  if (const std::optional<Field> normalizer = root.find("normalizer")) {
    std::vector<Normal> steps;
    read_normalizer(small_part(*normalizer), steps);
    data->normalizer = Normalizer(std::move(steps));
  }
  Splits splits;
  const Field pre_tokenizer = small_part(root.at("pre_tokenizer"));
  if (!pre_tokenizer.is_null()) read_pre_tokenizer(pre_tokenizer, splits);
  if (splits.byte_level == word_piece) {
    pre_tokenizer.refuse(word_piece ? "ByteLevel does not go with WordPiece"
                                    : "there is no ByteLevel, and BPE is supported on bytes alone");
  }
  data->pre_tokenizer = PreTokenizer(std::move(splits.steps));
  const Field decoder = small_part(root.at("decoder"));
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
  if (const std::optional<Field> post = root.find("post_processor")) read_post_processor(small_part(*post), *data);
  check_ids(*data, what);
  name_special(*data, word_piece);
  return data;
}

Tokenizer tokenizer_from_json(std::string_view tokenizer_json, const std::string& what) {
  return Tokenizer(tokenizer_data_from_json(tokenizer_json, what));
}

}  // namespace attend::llm
