// The tokenizer inside a GGUF file.
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "llm/text/tokenizer_data.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

using io::FileError;
using io::Gguf;
using io::GgufArray;
using io::GgufValue;

constexpr std::string_view kWordStart = "\xE2\x96\x81";  // U+2581: llama.cpp's mark of a word that no ## continues

// token_type of ggml. Others are ordinary.
constexpr std::int64_t kUnknownType = 2, kControlType = 3, kUserDefinedType = 4;

class Reader {
 public:
  Reader(const Gguf& gguf, std::string what) : gguf_(gguf), what_(std::move(what)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& text) const {
    throw FileError(what_ + ": tokenizer." + key + ": " + text);
  }
  const std::string& what() const { return what_; }

  template <class T>
  const T* find(const std::string& key, const char* kind) const {
    const GgufValue* value = gguf_.value(std::string("tokenizer.") + key);
    if (value == nullptr) return nullptr;
    const T* typed = std::get_if<T>(value);
    if (typed == nullptr) refuse(key, std::string("expected ") + kind);
    return typed;
  }
  std::string text(const std::string& key) const {
    const auto* value = find<std::string_view>(key, "a string");
    return value == nullptr ? "" : std::string(*value);
  }
  const GgufArray& strings(const std::string& key, std::size_t most) const {
    const auto* value = find<GgufArray>(key, "an array of strings");
    if (value == nullptr) throw FileError(what_ + ": there is no tokenizer." + key);
    if (value->type != io::GgufType::string) refuse(key, "expected an array of strings");
    if (value->count > most) {
      refuse(key, "has " + std::to_string(value->count) + " strings, expected at most " + std::to_string(most));
    }
    std::size_t i = 0;
    value->each_string([&](std::string_view text) {
      if (!is_utf8(text)) refuse(key + "[" + std::to_string(i) + "]", "expected UTF-8, got " + shown(text));
      ++i;
    });
    return *value;
  }
  std::vector<std::int64_t> types(std::size_t tokens) const {
    const auto* value = find<GgufArray>("ggml.token_type", "an array of whole numbers");
    if (value == nullptr) return std::vector<std::int64_t>(tokens, 1);
    if (value->count != tokens) {  // before they are unpacked: a byte of them becomes eight
      refuse("ggml.token_type", "has " + std::to_string(value->count) + " entries, expected " + std::to_string(tokens) +
                                    ", one for each of ggml.tokens");
    }
    std::vector<std::int64_t> all = value->integers();
    if (all.size() != tokens) refuse("ggml.token_type", "expected an array of whole numbers");
    return all;
  }
  std::optional<Token> id(const std::string& key, std::size_t tokens) const {
    const auto* value = find<std::int64_t>("ggml." + key, "a whole number");
    if (value == nullptr) return std::nullopt;
    if (*value < 0 || static_cast<std::uint64_t>(*value) >= tokens) {
      refuse("ggml." + key, std::to_string(*value) + ", expected 0 to " + std::to_string(tokens - 1));
    }
    return static_cast<Token>(*value);
  }
  bool flag(const std::string& key, bool otherwise) const {
    const auto* value = find<bool>("ggml." + key, "true or false");
    return value == nullptr ? otherwise : *value;
  }

 private:
  const Gguf& gguf_;
  std::string what_;
};

struct Pre {
  std::string_view name;
  Split split;
  bool digits_first = false, nfc = false, ignore_merges = false, add_bos = false;
};

// llama.cpp's names of pre-tokenizers. NFC is what Hugging Face's files of these models ask for.
constexpr std::array kPres = {
    Pre{.name = "", .split = Split::gpt2},
    Pre{.name = "default", .split = Split::gpt2},
    Pre{.name = "gpt-2", .split = Split::gpt2},
    Pre{.name = "phi-2", .split = Split::gpt2},
    Pre{.name = "olmo", .split = Split::gpt2},
    Pre{.name = "smollm", .split = Split::gpt2, .digits_first = true},
    Pre{.name = "starcoder", .split = Split::gpt2, .digits_first = true},
    Pre{.name = "qwen2", .split = Split::qwen2, .nfc = true},
    Pre{.name = "deepseek-r1-qwen", .split = Split::qwen2, .nfc = true},
    Pre{.name = "qwen35", .split = Split::qwen35, .nfc = true},
    Pre{.name = "llama-bpe", .split = Split::llama3, .ignore_merges = true, .add_bos = true},
    Pre{.name = "llama-v3", .split = Split::llama3, .ignore_merges = true, .add_bos = true},
    Pre{.name = "llama3", .split = Split::llama3, .ignore_merges = true, .add_bos = true},
    Pre{.name = "tekken", .split = Split::tekken, .ignore_merges = true, .add_bos = true},
};

const Pre& find_pre(const Reader& reader) {
  const std::string name = reader.text("ggml.pre");
  std::string known;
  for (const Pre& pre : kPres) {
    if (pre.name == name) return pre;
    if (!pre.name.empty()) known.append(known.empty() ? "" : ", ").append(pre.name);
  }
  reader.refuse("ggml.pre", shown(name) + " is not supported; known are: " + known);
}

// The plan of a vocabulary whose ids are the positions of its tokens.
TokenizerPlan plan_of(const Reader& reader, std::size_t tokens,
                      std::function<void(const TokenizerPlan::TakeToken&)> each) {
  TokenizerPlan plan;
  plan.what = reader.what() + ": tokenizer.ggml";
  plan.tokens = tokens;
  plan.each_token = std::move(each);
  const std::vector<std::int64_t> types = reader.types(tokens);
  plan.each_token([&](std::string_view text, std::int64_t id) {
    const std::int64_t type = types[static_cast<std::size_t>(id)];
    if ((type != kUnknownType && type != kControlType && type != kUserDefinedType) || text.empty()) return;
    AddedToken token;
    token.content = text;
    token.id = static_cast<Token>(id);
    token.special = type != kUserDefinedType;
    plan.add(std::move(token));
  });
  return plan;
}

void read_special(const Reader& reader, std::size_t tokens, SpecialTokens& special) {
  const std::array<std::pair<const char*, std::optional<Token>*>, 8> names = {{
      {"bos_token_id", &special.bos},
      {"eos_token_id", &special.eos},
      {"padding_token_id", &special.pad},
      {"unknown_token_id", &special.unknown},
      {"cls_token_id", &special.cls},
      {"seperator_token_id", &special.sep},  // as the format spells it
      {"separator_token_id", &special.sep},
      {"mask_token_id", &special.mask},
  }};
  for (const auto& [key, token] : names) {
    if (const std::optional<Token> id = reader.id(key, tokens)) *token = id;
  }
}

void read_bpe(const Reader& reader, const GgufArray& tokens, TokenizerData& data) {
  const Pre& pre = find_pre(reader);
  const TokenizerPlan plan = plan_of(reader, tokens.count, [&tokens](const TokenizerPlan::TakeToken& take) {
    std::int64_t id = 0;
    tokens.each_string([&](std::string_view text) { take(text, id++); });
  });
  BpePlan bpe;
  bpe.ignore_merges = pre.ignore_merges;
  const GgufArray& merges = reader.strings("ggml.merges", kMostMerges);
  bpe.merges = merges.count;
  bpe.each_merge = [&](const BpePlan::TakeMerge& take) {
    std::size_t i = 0;
    merges.each_string([&](std::string_view merge) {
      const std::size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || space + 1 == merge.size()) {
        reader.refuse("ggml.merges[" + std::to_string(i) + "]",
                      "expected two tokens with a space between them, got " + shown(merge));
      }
      take(merge.substr(0, space), merge.substr(space + 1));
      ++i;
    });
  };
  if (pre.nfc) data.normalizer = Normalizer({Normal::nfc});
  data.pre_tokenizer =
      pre.digits_first ? PreTokenizer({Split::digits_individual, pre.split}) : PreTokenizer({pre.split});
  finish_bpe(data, plan, bpe);
  read_special(reader, tokens.count, data.special);
  SpecialTokens& special = data.special;
  special.add_bos = reader.flag("add_bos_token", pre.add_bos && special.bos);
  special.add_eos = reader.flag("add_eos_token", false);
  if (special.add_bos && !special.bos)
    reader.refuse("ggml.add_bos_token", "true, but there is no tokenizer.ggml.bos_token_id");
  if (special.add_eos && !special.eos)
    reader.refuse("ggml.add_eos_token", "true, but there is no tokenizer.ggml.eos_token_id");
  if (special.add_bos) data.before = {*special.bos};
  if (special.add_eos) data.after = {*special.eos};
}

// llama.cpp writes "▁word" for a word and "ing" for ##ing; names in brackets stay.
std::string_view bert_token(std::string_view text, std::string& buffer) {
  if (text.starts_with('[') && text.ends_with(']')) return text;
  if (text.starts_with(kWordStart)) return text.substr(kWordStart.size());
  return buffer.assign("##").append(text);
}

void read_bert(const Reader& reader, const GgufArray& tokens, TokenizerData& data) {
  const TokenizerPlan plan = plan_of(reader, tokens.count, [&tokens](const TokenizerPlan::TakeToken& take) {
    std::string buffer;
    std::int64_t id = 0;
    tokens.each_string([&](std::string_view text) { take(bert_token(text, buffer), id++); });
  });
  // The format has no place for the settings of the normalizer: lower case, as llama.cpp takes it.
  data.normalizer =
      Normalizer({Normal::bert_clean, Normal::bert_chinese, Normal::nfd, Normal::strip_nonspacing, Normal::lowercase});
  data.pre_tokenizer = PreTokenizer({Split::bert});
  data.cleanup = true;
  finish_word_piece(data, plan, {});
  read_special(reader, tokens.count, data.special);
  SpecialTokens& special = data.special;
  const auto name = [&](std::optional<Token>& token, const char* piece) {
    if (token) return;
    const Token found = data.by_piece.find(data.pieces, piece);
    if (found < 0) reader.refuse("ggml.tokens", std::string("there is no ") + piece);
    token = found;
  };
  if (!special.cls) special.cls = special.bos;
  if (!special.sep) special.sep = special.eos;
  name(special.cls, "[CLS]");
  name(special.sep, "[SEP]");
  special.add_bos = special.add_eos = true;
  data.before = {*special.cls};
  data.after = {*special.sep};
}

}  // namespace

Tokenizer tokenizer_from_gguf(const Gguf& gguf, const std::string& what) {
  const Reader reader(gguf, what);
  const std::string model = reader.text("ggml.model");
  const GgufArray& tokens = reader.strings("ggml.tokens", kMostTokens);
  auto data = std::make_unique<TokenizerData>();
  if (model == "gpt2") {
    read_bpe(reader, tokens, *data);
  } else if (model == "bert") {
    read_bert(reader, tokens, *data);
  } else {
    reader.refuse("ggml.model", shown(model) + " is not supported; known are: gpt2, bert");
  }
  data->chat_template = reader.text("chat_template");
  return Tokenizer(std::move(data));
}

}  // namespace attend::llm
