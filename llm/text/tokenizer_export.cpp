// Byte-level BPE between tokenizer.json and GGUF. Both spell tokens with the same stand-ins for bytes.
#include "llm/text/tokenizer_export.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "llm/text/pre_tokenizer.hpp"
#include "llm/text/tokenizer.hpp"

namespace attend::llm {
namespace {

using io::GgufEntry;
using io::GgufType;
using io::Json;

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

const std::string* text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value == nullptr ? nullptr : value->string();
}

// The cut that one step of a pre_tokenizer makes; none for a ByteLevel that only spells bytes.
void read_step(const Json& step, std::optional<Split>& split, bool& digits, const std::string& what) {
  const std::string* type = text_of(step, "type");
  if (type == nullptr) throw io::FileError(what + ": a pre_tokenizer has no type");
  if (*type == "Sequence") {
    const Json* steps = step.find("pretokenizers");
    if (steps != nullptr && steps->array() != nullptr)
      for (const Json& inner : *steps->array()) read_step(inner, split, digits, what);
  } else if (*type == "ByteLevel") {
    const Json* uses = step.find("use_regex");
    const bool regex = uses == nullptr || uses->boolean() == nullptr || *uses->boolean();
    if (regex) split = Split::gpt2;
  } else if (*type == "Digits") {
    digits = true;
  } else if (*type == "Split") {
    const Json* pattern = step.find("pattern");
    const std::string* regex = pattern == nullptr ? nullptr : text_of(*pattern, "Regex");
    if (regex != nullptr) split = split_of_pattern(*regex);
  } else {
    throw io::FileError(what + ": GGUF has no name for the pre_tokenizer " + io::json_quoted(*type));
  }
}

const PreName& pre_name(const Json& json, const std::string& what) {
  std::optional<Split> split;
  bool digits = false;
  if (const Json* pre = json.find("pre_tokenizer"); pre != nullptr && !pre->is_null())
    read_step(*pre, split, digits, what);
  for (const PreName& name : kNames)
    if (split == name.split && digits == name.digits_first) return name;
  throw io::FileError(what + ": GGUF has no name for this pre_tokenizer");
}

// "a token", or {"content": "a token", ...}.
const std::string* token_text(const Json* value) {
  if (value == nullptr) return nullptr;
  return value->string() != nullptr ? value->string() : text_of(*value, "content");
}

std::string merge_text(const Json& merge, const std::string& what) {
  if (merge.string() != nullptr) return *merge.string();
  const Json::Array* pair = merge.array();
  if (pair == nullptr || pair->size() != 2 || (*pair)[0].string() == nullptr || (*pair)[1].string() == nullptr)
    throw io::FileError(what + ": a merge is neither \"a b\" nor [\"a\", \"b\"]");
  return *(*pair)[0].string() + " " + *(*pair)[1].string();
}

}  // namespace

std::vector<GgufEntry> gguf_tokenizer(const Json& json, const Json* config, std::int64_t vocabulary,
                                      const std::string& what) {
  const Tokenizer checked = tokenizer_from_json(json, what);  // whatever is wrong with the file is said here
  const Json* model = json.find("model");
  const std::string* type = model == nullptr ? nullptr : text_of(*model, "type");
  if (type == nullptr || *type != "BPE") throw io::FileError(what + ": only byte-level BPE can be written to GGUF");
  if (checked.vocabulary() > vocabulary)
    throw io::FileError(what + ": has " + std::to_string(checked.vocabulary()) + " tokens, and the model " +
                        std::to_string(vocabulary));
  constexpr std::int64_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;
  std::vector<std::string> tokens(static_cast<std::size_t>(vocabulary));
  std::vector<std::int64_t> types(tokens.size(), kUnused);
  const auto put = [&](const std::string& text, const Json* id, std::int64_t kind) {
    const auto at = static_cast<std::size_t>(*id->integer());
    tokens[at] = text;
    types[at] = kind;
  };
  for (const auto& [text, id] : *model->find("vocab")->object()) put(text, &id, kNormal);
  if (const Json* added = json.find("added_tokens"); added != nullptr && added->array() != nullptr)
    for (const Json& token : *added->array()) {
      const Json* special = token.find("special");
      const bool control = special != nullptr && special->boolean() != nullptr && *special->boolean();
      put(*text_of(token, "content"), token.find("id"), control ? kControl : kUserDefined);
    }
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (types[i] == kUnused) tokens[i] = "[PAD" + std::to_string(i) + "]";
  std::vector<std::string> merges;
  for (const Json& merge : *model->find("merges")->array()) merges.push_back(merge_text(merge, what));

  std::vector<GgufEntry> entries = {
      {"tokenizer.ggml.model", GgufType::string, std::string("gpt2")},
      {"tokenizer.ggml.pre", GgufType::string, std::string(pre_name(json, what).gguf)},
      {"tokenizer.ggml.tokens", GgufType::string, std::move(tokens)},
      {"tokenizer.ggml.token_type", GgufType::i32, std::move(types)},
      {"tokenizer.ggml.merges", GgufType::string, std::move(merges)},
  };
  const auto id = [&](const char* key, const char* name) {
    const std::string* text = config == nullptr ? nullptr : token_text(config->find(name));
    const auto token = text == nullptr ? std::nullopt : checked.find(*text);
    if (token) entries.push_back({key, GgufType::u32, std::int64_t{*token}});
  };
  id("tokenizer.ggml.bos_token_id", "bos_token");
  id("tokenizer.ggml.eos_token_id", "eos_token");
  id("tokenizer.ggml.padding_token_id", "pad_token");
  id("tokenizer.ggml.unknown_token_id", "unk_token");
  const std::vector<Token> nothing = checked.encode("", true);
  entries.push_back({"tokenizer.ggml.add_bos_token", GgufType::boolean, !nothing.empty()});
  const std::string* chat = config == nullptr ? nullptr : text_of(*config, "chat_template");
  if (chat != nullptr) entries.push_back({"tokenizer.chat_template", GgufType::string, *chat});
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
