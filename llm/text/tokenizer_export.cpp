// Byte-level BPE between tokenizer.json and GGUF. Both spell tokens with the same stand-ins for bytes.
#include "llm/text/tokenizer_export.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "llm/text/pre_tokenizer.hpp"
#include "llm/text/tokenizer.hpp"

namespace attend::llm {
namespace {

using io::GgufEntry;
using io::GgufType;
using io::JsonCursor;
using io::JsonView;

// What llama.cpp calls a way to cut words, and how tokenizer.json writes it.
struct PreName {
  const char* gguf;
  Split split;
  bool digits_first;
  const char* normalizer;
};
constexpr std::array kNames = {
    PreName{"gpt-2", Split::gpt2, false, "null"},
    PreName{"smollm", Split::gpt2, true, "null"},
    PreName{"qwen2", Split::qwen2, false, R"({"type": "NFC"})"},
    PreName{"llama-bpe", Split::llama3, false, "null"},
    PreName{"tekken", Split::tekken, false, "null"},
};

std::string text_of(const JsonView& object, std::string_view key) {  // "" where it is not a string
  const std::optional<JsonView> value = object.find(key);
  return value ? value->string() : "";
}

// The cut that one step of a pre_tokenizer makes; none for a ByteLevel that only spells bytes.
void read_step(const JsonView& step, std::optional<Split>& split, bool& digits, const std::string& what) {
  const std::string type = text_of(step, "type");
  if (type.empty()) throw io::FileError(what + ": a pre_tokenizer has no type");
  if (type == "Sequence") {
    if (const std::optional<JsonView> steps = step.find("pretokenizers"); steps && steps->is_array())
      for (JsonCursor c(*steps); c.next();) read_step(c.value(), split, digits, what);
  } else if (type == "ByteLevel") {
    const std::optional<JsonView> uses = step.find("use_regex");
    if (!uses || uses->boolean().value_or(true)) split = Split::gpt2;
  } else if (type == "Digits") {
    digits = true;
  } else if (type == "Split") {
    const std::optional<JsonView> pattern = step.find("pattern");
    if (pattern && pattern->find("Regex")) split = split_of_pattern(text_of(*pattern, "Regex"));
  } else {
    throw io::FileError(what + ": GGUF has no name for the pre_tokenizer " + io::json_quoted(type));
  }
}

const PreName& pre_name(const JsonView& json, const std::string& what) {
  std::optional<Split> split;
  bool digits = false;
  if (const std::optional<JsonView> pre = json.find("pre_tokenizer"); pre && !pre->is_null())
    read_step(*pre, split, digits, what);
  for (const PreName& name : kNames)
    if (split == name.split && digits == name.digits_first) return name;
  throw io::FileError(what + ": GGUF has no name for this pre_tokenizer");
}

// "a token", or {"content": "a token", ...}; empty where it is neither.
std::optional<std::string> token_text(std::optional<JsonView> value) {
  if (value && !value->is_string()) value = value->find("content");
  return value && value->is_string() ? std::optional(value->string()) : std::nullopt;
}

// The ids of special tokens, and whether one begins every text.
std::vector<GgufEntry> special_tokens(const Tokenizer& tokenizer, const JsonView& config) {
  std::vector<GgufEntry> entries;
  const auto id = [&](const char* key, const char* name) {
    const std::optional<std::string> text = token_text(config.find(name));
    const auto token = text ? tokenizer.find(*text) : std::nullopt;
    if (token) entries.push_back({key, GgufType::u32, std::int64_t{*token}});
  };
  id("tokenizer.ggml.bos_token_id", "bos_token");
  id("tokenizer.ggml.eos_token_id", "eos_token");
  id("tokenizer.ggml.padding_token_id", "pad_token");
  id("tokenizer.ggml.unknown_token_id", "unk_token");
  entries.push_back({"tokenizer.ggml.add_bos_token", GgufType::boolean, !tokenizer.encode("", true).empty()});
  return entries;
}

std::string merge_text(const JsonView& merge) {
  if (merge.is_string()) return merge.string();
  JsonCursor c(merge);
  c.next();
  const std::string left = c.value().string();
  c.next();
  return left + " " + c.value().string();
}

// What ggml calls the kinds of tokens.
constexpr std::int64_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// By id, from a file that was checked.
void read_tokens(const JsonView& json, const JsonView& model, std::vector<std::string>& tokens,
                 std::vector<std::int64_t>& types) {
  const auto put = [&](std::string text, const JsonView& id, std::int64_t kind) {
    const auto at = static_cast<std::size_t>(*id.integer());
    tokens[at] = std::move(text);
    types[at] = kind;
  };
  for (JsonCursor c(*model.find("vocab")); c.next();) put(c.key().string(), c.value(), kNormal);
  if (const std::optional<JsonView> added = json.find("added_tokens"))
    for (JsonCursor c(*added); c.next();)
      put(text_of(c.value(), "content"), *c.value().find("id"),
          c.value().find("special")->boolean() == true ? kControl : kUserDefined);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (types[i] == kUnused) tokens[i] = "[PAD" + std::to_string(i) + "]";
}

}  // namespace

std::vector<GgufEntry> gguf_tokenizer(std::string_view tokenizer_json, const JsonView& config, std::int64_t vocabulary,
                                      const std::string& what) {
  std::int64_t size = 0;
  std::vector<GgufEntry> special = [&] {
    const Tokenizer checked =
        tokenizer_from_json(tokenizer_json, what);  // whatever is wrong with the file is said here
    size = checked.vocabulary();
    return special_tokens(checked, config);
  }();
  const JsonView json = io::view_json(tokenizer_json, what), model = *json.find("model");
  if (text_of(model, "type") != "BPE") throw io::FileError(what + ": only byte-level BPE can be written to GGUF");
  if (size > vocabulary)
    throw io::FileError(what + ": has " + std::to_string(size) + " tokens, and the model " +
                        std::to_string(vocabulary));
  std::vector<std::string> tokens(static_cast<std::size_t>(vocabulary));
  std::vector<std::int64_t> types(tokens.size(), kUnused);
  read_tokens(json, model, tokens, types);
  const JsonView pairs = *model.find("merges");
  std::vector<std::string> merges;
  merges.reserve(pairs.size());
  for (JsonCursor c(pairs); c.next();) merges.push_back(merge_text(c.value()));

  std::vector<GgufEntry> entries;
  const auto put = [&](const char* key, GgufType type, GgufEntry::Value value) {
    entries.push_back({key, type, std::move(value)});
  };
  put("tokenizer.ggml.model", GgufType::string, std::string("gpt2"));
  put("tokenizer.ggml.pre", GgufType::string, std::string(pre_name(json, what).gguf));
  put("tokenizer.ggml.tokens", GgufType::string, std::move(tokens));
  put("tokenizer.ggml.token_type", GgufType::i32, std::move(types));
  put("tokenizer.ggml.merges", GgufType::string, std::move(merges));
  std::move(special.begin(), special.end(), std::back_inserter(entries));
  if (const auto chat = config.find("chat_template"); chat && chat->is_string())
    put("tokenizer.chat_template", GgufType::string, chat->string());
  return entries;
}

std::string tokenizer_json(const SpelledTokenizer& spelled) {
  const auto known =
      std::find_if(kNames.begin(), kNames.end(), [&](const PreName& n) { return spelled.pre == n.gguf; });
  if (known == kNames.end())
    throw io::FileError("the pre-tokenizer " + io::json_quoted(spelled.pre) + " cannot be written");
  const std::vector<std::string>&tokens = spelled.tokens, &merges = spelled.merges;
  std::string json = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  const char* comma = "";
  for (const Token token : spelled.special) {
    json += std::string(comma) + "\n    {\"id\": " + std::to_string(token) +
            ", \"content\": " + io::json_quoted(tokens[static_cast<std::size_t>(token)]) +
            ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}";
    comma = ",";
  }
  json += std::string("\n  ],\n  \"normalizer\": ") + known->normalizer + ",\n  \"pre_tokenizer\": ";
  const std::string bytes = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )";
  if (known->split == Split::gpt2 && !known->digits_first) {
    json += bytes + "true}";
  } else {
    json += R"({"type": "Sequence", "pretokenizers": [)";
    if (known->digits_first) {
      json += R"({"type": "Digits", "individual_digits": true}, )" + bytes + "true}]}";
    } else {
      std::string regex;
      for (const std::string& pattern : known_patterns())
        if (split_of_pattern(pattern) == known->split) regex = pattern;
      json += R"({"type": "Split", "pattern": {"Regex": )" + io::json_quoted(regex) +
              R"(}, "behavior": "Isolated", "invert": false}, )" + bytes + "false}]}";
    }
  }
  json += ",\n  \"post_processor\": " + bytes + "true},\n  \"decoder\": " + bytes +
          "true},\n  \"model\": {\"type\": \"BPE\", "
          "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "
          "\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": ";
  json +=
      std::string(known->split == Split::llama3 || known->split == Split::tekken ? "true" : "false") + ", \"vocab\": {";
  for (std::size_t i = 0; i < tokens.size(); ++i)
    json += std::string(i == 0 ? "" : ", ") + io::json_quoted(tokens[i]) + ": " + std::to_string(i);
  json += "}, \"merges\": [";
  for (std::size_t i = 0; i < merges.size(); ++i) json += std::string(i == 0 ? "" : ", ") + io::json_quoted(merges[i]);
  json += "]}\n}\n";
  return json;
}

TokenizerTexts tokenizer_texts(const io::Gguf& gguf, const std::string& what) {
  const Tokenizer checked = tokenizer_from_gguf(gguf, what);
  const auto text = [&](std::string_view key) -> std::string {
    const io::GgufValue* value = gguf.value(key);
    const auto* string = value == nullptr ? nullptr : std::get_if<std::string_view>(value);
    return string == nullptr ? "" : std::string(*string);
  };
  if (text("tokenizer.ggml.model") != "gpt2")
    throw io::FileError(what + ": only byte-level BPE can be written as tokenizer.json");
  std::string pre = text("tokenizer.ggml.pre");
  if (pre.empty() || pre == "default") pre = "gpt-2";
  const auto known = std::find_if(kNames.begin(), kNames.end(), [&](const PreName& name) { return pre == name.gguf; });
  if (known == kNames.end())
    throw io::FileError(what + ": the pre-tokenizer " + io::json_quoted(pre) + " cannot be written");
  const auto array = [&](std::string_view key) -> const io::GgufArray& {
    return std::get<io::GgufArray>(*gguf.value(key));
  };
  const auto tokens = array("tokenizer.ggml.tokens").strings(), merges = array("tokenizer.ggml.merges").strings();

  SpelledTokenizer spelled{known->gguf, {tokens.begin(), tokens.end()}, {merges.begin(), merges.end()}, {}};
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (checked.is_special(static_cast<Token>(i))) spelled.special.push_back(static_cast<Token>(i));
  std::string json = tokenizer_json(spelled);

  std::string config = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"";
  const auto special = [&](const char* key, const std::optional<Token>& token) {
    if (token)
      config += std::string(",\n  \"") + key + "\": " + io::json_quoted(tokens[static_cast<std::size_t>(*token)]);
  };
  special("bos_token", checked.special().bos);
  special("eos_token", checked.special().eos);
  special("pad_token", checked.special().pad);
  special("unk_token", checked.special().unknown);
  if (!checked.chat_template().empty()) config += ",\n  \"chat_template\": " + io::json_quoted(checked.chat_template());
  return {std::move(json), config + "\n}\n"};
}

}  // namespace attend::llm
