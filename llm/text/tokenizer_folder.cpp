// A Hugging Face folder: tokenizer.json or vocab.txt, and the settings beside it.
#include <array>
#include <string>
#include <utility>

#include "io/mapped_file.hpp"
#include "llm/text/tokenizer_data.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::Json;

bool flag(const Json& config, const char* key, bool otherwise) {
  const Json* value = config.find(key);
  return value != nullptr && value->boolean() != nullptr ? *value->boolean() : otherwise;
}

// BERT as its first files were: one token a line.
std::unique_ptr<TokenizerData> from_vocabulary(const fs::path& path, const Json& config) {
  const io::MappedFile file(path);
  std::string_view text = io::as_text(file.bytes());
  if (!is_utf8(text)) throw io::FileError(path.string() + ": expected UTF-8");
  TokenizerPlan plan;
  plan.what = path.string();
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    plan.vocabulary.push_back({line, static_cast<std::int64_t>(plan.vocabulary.size())});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  for (const VocabularyEntry& entry : plan.vocabulary) {
    for (const std::string_view name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
      if (entry.text != name) continue;
      AddedToken token;
      token.content = name;
      token.id = static_cast<Token>(entry.id);
      token.special = true;
      plan.added.push_back(std::move(token));
    }
  }
  auto data = std::make_unique<TokenizerData>();
  const bool lowercase = flag(config, "do_lower_case", true);
  std::vector<Normal> steps = {Normal::bert_clean};
  if (flag(config, "tokenize_chinese_chars", true)) steps.push_back(Normal::bert_chinese);
  if (flag(config, "strip_accents", lowercase)) steps.insert(steps.end(), {Normal::nfd, Normal::strip_nonspacing});
  if (lowercase) steps.push_back(Normal::lowercase);
  data->normalizer = Normalizer(std::move(steps));
  data->pre_tokenizer = PreTokenizer({Split::bert});
  data->cleanup = true;
  finish_word_piece(*data, plan, {});
  const auto need = [&](const char* piece) {
    const Token token = data->by_piece.find(data->pieces, piece);
    if (token < 0) throw io::FileError(plan.what + ": the vocabulary has no " + piece);
    return token;
  };
  data->before = {need("[CLS]")};
  data->after = {need("[SEP]")};
  data->special.cls = data->before[0];
  data->special.sep = data->after[0];
  data->special.add_bos = data->special.add_eos = true;
  return data;
}

// "<s>" or {"content": "<s>", ...}. A token that the vocabulary lacks stays unset: some files name one they never had.
void read_special(const Json& config, TokenizerData& data) {
  SpecialTokens& special = data.special;
  const std::array<std::pair<const char*, std::optional<Token>*>, 7> names = {{{"bos_token", &special.bos},
                                                                               {"eos_token", &special.eos},
                                                                               {"pad_token", &special.pad},
                                                                               {"unk_token", &special.unknown},
                                                                               {"cls_token", &special.cls},
                                                                               {"sep_token", &special.sep},
                                                                               {"mask_token", &special.mask}}};
  for (const auto& [key, token] : names) {
    const Json* value = config.find(key);
    if (value != nullptr && value->object() != nullptr) value = value->find("content");
    if (value == nullptr || value->string() == nullptr) continue;
    const Token found = data.by_piece.find(data.pieces, *value->string());
    if (found >= 0) *token = found;
  }
}

// A template, or several by name.
std::string read_chat_template(const Json& config, const std::string& what) {
  const Json* value = config.find("chat_template");
  if (value == nullptr || value->is_null()) return "";
  if (value->string() != nullptr) return *value->string();
  if (value->array() == nullptr) {
    throw io::FileError(what + ".chat_template: expected a string or an array, got " + value->kind());
  }
  for (const Json& entry : *value->array()) {
    const Json* name = entry.find("name");
    const Json* source = entry.find("template");
    if (name == nullptr || name->string() == nullptr || source == nullptr || source->string() == nullptr) {
      throw io::FileError(what + ".chat_template: expected objects with name and template");
    }
    if (*name->string() == "default") return *source->string();
  }
  return "";
}

}  // namespace

Tokenizer tokenizer_from_folder(const fs::path& folder) {
  const fs::path config_path = folder / "tokenizer_config.json", json_path = folder / "tokenizer.json",
                 text_path = folder / "vocab.txt", jinja_path = folder / "chat_template.jinja";
  std::error_code ignored;
  const auto there = [&](const fs::path& path) { return fs::exists(path, ignored); };
  Json config;
  if (there(config_path)) {
    config = io::read_json(config_path);
    if (config.object() == nullptr) {
      throw io::FileError(config_path.string() + ": expected an object, got " + config.kind());
    }
  }
  std::unique_ptr<TokenizerData> data;
  if (there(json_path)) {
    data = tokenizer_data_from_json(io::read_json(json_path), json_path.string());
  } else if (there(text_path)) {
    data = from_vocabulary(text_path, config);
  } else {
    throw io::FileError(folder.string() + ": there is neither tokenizer.json nor vocab.txt");
  }
  read_special(config, *data);
  if (there(jinja_path)) {
    const io::MappedFile file(jinja_path);
    data->chat_template = io::as_text(file.bytes());
  } else {
    data->chat_template = read_chat_template(config, config_path.string());
  }
  return Tokenizer(std::move(data));
}

}  // namespace attend::llm
