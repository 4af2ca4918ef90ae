// A Hugging Face folder: tokenizer.json or vocab.txt, and the settings beside it.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "io/json_view.hpp"
#include "io/mapped_file.hpp"
#include "llm/text/tokenizer_data.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;
using io::JsonCursor;
using io::JsonView;

bool flag(const JsonView& config, const char* key, bool otherwise) {
  const std::optional<JsonView> value = config.find(key);
  return value ? value->boolean().value_or(otherwise) : otherwise;
}

// BERT as its first files were: one token a line.
std::unique_ptr<TokenizerData> from_vocabulary(const fs::path& path, const JsonView& config) {
  const io::MappedFile file(path);
  const std::string_view text = io::as_text(file.bytes());
  if (!is_utf8(text)) throw io::FileError(path.string() + ": expected UTF-8");
  TokenizerPlan plan;
  plan.what = path.string();
  plan.each_token = [text](const TokenizerPlan::TakeToken& take) {
    std::string_view rest = text;
    for (std::int64_t id = 0; !rest.empty(); ++id) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      take(line, id);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  };
  plan.each_token([&](std::string_view line, std::int64_t id) {
    ++plan.tokens;
    for (const std::string_view name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
      if (line != name) continue;
      AddedToken token;
      token.content = name;
      token.id = static_cast<Token>(id);
      token.special = true;
      plan.add(std::move(token));
    }
  });
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
void read_special(const JsonView& config, TokenizerData& data) {
  SpecialTokens& special = data.special;
  const std::array<std::pair<const char*, std::optional<Token>*>, 7> names = {{{"bos_token", &special.bos},
                                                                               {"eos_token", &special.eos},
                                                                               {"pad_token", &special.pad},
                                                                               {"unk_token", &special.unknown},
                                                                               {"cls_token", &special.cls},
                                                                               {"sep_token", &special.sep},
                                                                               {"mask_token", &special.mask}}};
  std::string buffer;
  for (const auto& [key, token] : names) {
    std::optional<JsonView> value = config.find(key);
    if (value && value->is_object()) value = value->find("content");
    if (!value || !value->is_string()) continue;
    const Token found = data.by_piece.find(data.pieces, value->string(buffer));
    if (found >= 0) *token = found;
  }
}

// A template, or several by name.
std::string read_chat_template(const JsonView& config, const std::string& what) {
  const std::optional<JsonView> value = config.find("chat_template");
  if (!value || value->is_null()) return "";
  if (value->is_string()) return value->string();
  if (!value->is_array()) {
    throw io::FileError(what + ".chat_template: expected a string or an array, got " + value->kind());
  }
  for (JsonCursor c(*value); c.next();) {
    const std::optional<JsonView> name = c.value().find("name"), source = c.value().find("template");
    if (!name || !name->is_string() || !source || !source->is_string()) {
      throw io::FileError(what + ".chat_template: expected objects with name and template");
    }
    if (name->string() == "default") return source->string();
  }
  return "";
}

}  // namespace

Tokenizer tokenizer_from_folder(const fs::path& folder) {
  const fs::path config_path = folder / "tokenizer_config.json", json_path = folder / "tokenizer.json",
                 text_path = folder / "vocab.txt", jinja_path = folder / "chat_template.jinja";
  std::error_code ignored;
  const auto there = [&](const fs::path& path) { return fs::exists(path, ignored); };
  io::MappedFile config_file;
  JsonView config;
  if (there(config_path)) {
    config_file = io::MappedFile(config_path);
    config = io::view_json(io::as_text(config_file.bytes()), config_path.string());
    if (!config.is_object()) {
      throw io::FileError(config_path.string() + ": expected an object, got " + config.kind());
    }
  }
  std::unique_ptr<TokenizerData> data;
  if (there(json_path)) {
    const io::MappedFile file(json_path);
    data = tokenizer_data_from_json(io::as_text(file.bytes()), json_path.string());
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
