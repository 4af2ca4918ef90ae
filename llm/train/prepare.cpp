// Reads texts, trains or takes a tokenizer, and writes tokens.
#include "llm/train/prepare.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "io/atomic_file.hpp"
#include "io/sha256.hpp"
#include "io/utf8_text.hpp"
#include "llm/model/embedded.hpp"
#include "llm/model/fields.hpp"
#include "llm/model/files.hpp"
#include "llm/text/tokenizer_export.hpp"

namespace attend::llm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBetween = "<|endoftext|>";
constexpr std::size_t kLongestText = std::size_t{1} << 20;  // a longer text is cut at the end of a line
constexpr io::JsonLimits kLineLimits{.bytes = std::size_t{16} << 20, .depth = 16, .values = std::size_t{1} << 18};

// ChatML as Transformers' template language has it.
constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void write_text(const fs::path& path, std::string_view text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

bool is_lines(const fs::path& path) {
  return has_extension(path, ".jsonl") || has_extension(path, ".json");
}

std::vector<Message> read_chat(const Fields& f, const char* name) {
  const io::Json* list = f.find({name});
  if (list == nullptr || list->array() == nullptr)
    f.refuse(name, list == nullptr ? "is missing" : std::string("is ") + list->kind() + ", expected a list");
  std::vector<Message> chat;
  for (const io::Json& item : *list->array()) {
    const Fields turn(item, f.what() + ": \"" + name + "\"");
    const auto role = turn.maybe_string({"role", "from"});
    const auto content = turn.maybe_string({"content", "value"});
    if (!role) turn.refuse("role", "is missing");
    if (!content) turn.refuse("content", "is missing");
    const std::string& r = *role;
    chat.push_back({r == "human" ? "user" : r == "gpt" ? "assistant" : r, *content});
  }
  if (chat.empty()) f.refuse(name, "is empty, expected messages");
  if (std::none_of(chat.begin(), chat.end(), [](const Message& m) { return m.role == "assistant"; }))
    f.refuse(name, "has no message of the assistant, so there is nothing to learn");
  if (chat.front().role == "assistant") f.refuse(name, "begins with the assistant, expected a question before");
  return chat;
}

Record read_record(std::string_view line, const std::string& what) {
  const io::Json json = io::parse_json(line, what, kLineLimits);
  const Fields f(json, what);
  Record record;
  record.place = what;
  record.nats = f.maybe_number({"nats"}, 0, 1e12).value_or(0);
  if (const auto text = f.maybe_string({"text"})) {
    record.text = *text;
    if (record.text.empty()) f.refuse("text", "is empty");
    return record;
  }
  if (f.find({"conversations", "messages"}) != nullptr) {
    record.kind = DataKind::chat;
    record.chat = read_chat(f, f.find({"conversations"}) != nullptr ? "conversations" : "messages");
    return record;
  }
  if (f.find({"chosen", "rejected"}) != nullptr) {
    record.kind = DataKind::preference;
    record.chat = read_chat(f, "chosen");
    record.rejected = read_chat(f, "rejected");
    return record;
  }
  throw io::FileError(what + ": expected one of \"text\", \"conversations\", or \"chosen\" with \"rejected\"");
}

// The parts of a rendered chat behind its first `bytes` bytes.
std::vector<ChatPart> behind(std::vector<ChatPart> parts, std::size_t bytes) {
  std::vector<ChatPart> rest;
  for (ChatPart& part : parts) {
    const std::size_t cut = std::min(bytes, part.text.size());
    bytes -= cut;
    part.text.erase(0, cut);
    if (!part.text.empty()) rest.push_back(std::move(part));
  }
  return rest;
}

void append(const Tokenizer& tokenizer, const std::vector<ChatPart>& parts, bool learnt,
            std::vector<std::int32_t>& out) {
  std::vector<TextPart> views;
  for (const ChatPart& part : parts) views.push_back({part.text, part.trusted});
  for (const Token token : tokenizer.encode_parts(views)) out.push_back(learnt ? token : ~token);
}

}  // namespace

RecordReader::RecordReader(const std::vector<fs::path>& inputs, bool skip_broken) : skip_broken_(skip_broken) {
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (!fs::exists(input, error)) throw io::FileError(input.string() + ": there is no such file or folder");
    if (!fs::is_directory(input, error)) {
      if (!fs::is_regular_file(input, error))
        throw io::FileError(input.string() + ": is not a regular file, expected a text file or a folder");
      files_.push_back(input);
      continue;
    }
    std::vector<fs::path> found;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(input))
      if (entry.is_regular_file() &&
          (is_lines(entry.path()) || has_extension(entry.path(), ".txt") || has_extension(entry.path(), ".md")))
        found.push_back(entry.path());
    if (found.empty()) throw io::FileError(input.string() + ": holds no .txt, .md or .jsonl file");
    std::sort(found.begin(), found.end());
    files_.insert(files_.end(), found.begin(), found.end());
  }
  for (const fs::path& file : files_) bytes_ += static_cast<std::int64_t>(fs::file_size(file));
}

void RecordReader::read_text(const io::MappedFile& file, const std::function<void(const Record&)>& take) {
  const std::string_view all = io::as_text(file.bytes());
  const io::TextOrigin origin{file.path().string()};
  Record record;
  record.place = origin.name;
  const auto finish = [&](std::size_t at) {
    while (!record.text.empty() && (record.text.back() == '\n' || record.text.back() == '\r')) record.text.pop_back();
    if (!record.text.empty()) take(record);
    record.text.clear();
    tell_(static_cast<std::int64_t>(at));
  };
  for (std::size_t at = io::byte_order_mark(all); at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
    io::check_utf8(all, at, end, origin);
    std::string_view line = all.substr(at, end - at);
    at = end;
    std::string_view bare = line;
    while (!bare.empty() && (bare.back() == '\n' || bare.back() == '\r')) bare.remove_suffix(1);
    if (bare == kBetween) {
      finish(at);
      continue;
    }
    io::append_with_lf(record.text, line);
    if (record.text.size() >= kLongestText) finish(at);
  }
  finish(all.size());
}

void RecordReader::read_lines(const io::MappedFile& file, const std::function<void(const Record&)>& take) {
  const std::string_view all = io::as_text(file.bytes());
  const io::TextOrigin origin{file.path().string()};
  std::int64_t number = 0;
  for (std::size_t at = io::byte_order_mark(all); at < all.size();) {
    const std::size_t begin = at, end = std::min(all.find('\n', at), all.size());
    const std::string_view line = all.substr(begin, end - begin);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::optional<Record> record;
    try {
      io::check_utf8(all, begin, end, origin);
      record = read_record(line, origin.name + ":" + std::to_string(number));
    } catch (const io::FileError&) {
      if (!skip_broken_) throw;
      ++skipped_;
    }
    if (record) take(*record);
    tell_(static_cast<std::int64_t>(std::min(at, all.size())));
  }
}

void RecordReader::read(const std::function<void(const Record&)>& take, const PrepareProgress& progress,
                        const char* stage) {
  before_ = skipped_ = 0;
  tell_ = [&](std::int64_t here) {
    if (progress) progress(stage, before_ + here, bytes_);
  };
  for (const fs::path& path : files_) {
    const io::MappedFile file(path);
    if (is_lines(path))
      read_lines(file, take);
    else
      read_text(file, take);
    before_ += std::ssize(file.bytes());
    io::not_needed_now(file.bytes());
  }
}

void train_tokenizer(RecordReader& reader, const TokenizerTraining& training, const std::string& pre,
                     const fs::path& folder, const PrepareProgress& progress) {
  TokenizerTrainer trainer(pre);
  reader.read(
      [&](const Record& record) {
        if (record.kind == DataKind::text) trainer.add(record.text);
        for (const auto* chat : {&record.chat, &record.rejected})
          for (const Message& message : *chat) {
            trainer.add(message.role + "\n");
            trainer.add(message.content);
          }
      },
      progress, "counting words");
  if (trainer.words() == 0) throw io::FileError("there is no text to learn a tokenizer from");
  const SpelledTokenizer spelled = trainer.train(training, [&](std::int64_t done, std::int64_t all) {
    if (progress) progress("learning merges", done, all);
  });
  write_text(folder / "tokenizer.json", tokenizer_json(spelled));
  write_text(folder / "tokenizer_config.json",
             "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": \"<|im_start|>\",\n  "
             "\"eos_token\": \"<|im_end|>\",\n  \"pad_token\": \"<|endoftext|>\",\n  \"add_bos_token\": false,\n  "
             "\"chat_template\": " +
                 io::json_quoted(kChatMl) + "\n}\n");
}

bool has_tokenizer(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::is_directory(path, error) ? path : path.parent_path();
  return has_extension(path, ".gguf") || fs::exists(folder / "tokenizer.json", error) ||
         fs::exists(folder / "vocab.txt", error);
}

void copy_tokenizer(const fs::path& from, const fs::path& folder) {
  if (has_extension(from, ".gguf")) {
    const io::Gguf gguf = open_gguf(from);
    const TokenizerTexts texts = tokenizer_texts(gguf, from.string());
    write_text(folder / "tokenizer.json", texts.tokenizer_json);
    write_text(folder / "tokenizer_config.json", texts.config_json);
    return;
  }
  std::error_code error;
  const fs::path source = fs::is_directory(from, error) ? from : from.parent_path();
  if (!has_tokenizer(from)) throw io::FileError(from.string() + ": holds no tokenizer.json and no vocab.txt");
  for (const char* file : {"tokenizer.json", "vocab.txt", "tokenizer_config.json", "chat_template.jinja"})
    if (fs::exists(source / file, error))
      io::write_file_atomically(folder / file, io::MappedFile(source / file).bytes());
}

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (const Token token : tokenizer.encode(text, true, false)) tokens.push_back(token);
  const auto eos = tokenizer.special().eos;
  const bool ended = !tokens.empty() && tokenizer.special().sep && tokens.back() == *tokenizer.special().sep;
  if (eos && !ended && (tokens.empty() || tokens.back() != *eos)) tokens.push_back(*eos);
  return tokens;
}

std::vector<std::int32_t> encode_learnt_chat(const Tokenizer& tokenizer, const ChatTemplate& style,
                                             std::span<const Message> chat) {
  std::vector<std::int32_t> tokens;
  std::string done;
  for (std::size_t i = 0; i < chat.size(); ++i) {
    if (chat[i].role != "assistant") continue;
    // What stands before the answer, and the answer with its end: each as a model meets them.
    for (const bool answer : {false, true}) {
      const auto some = chat.first(answer ? i + 1 : i);
      const std::string text = style.render(some, !answer);
      if (!text.starts_with(done))
        throw InvalidArgument("the chat template " + style.name() +
                              " writes earlier turns anew when one is added: chats cannot be learnt with it");
      append(tokenizer, behind(style.parts(some, !answer), done.size()), answer, tokens);
      done = text;
    }
  }
  return tokens;
}

DataInfo prepare(const PrepareOptions& options) {
  RecordReader reader(options.inputs, options.skip_broken);
  DatasetWriter writer(options.out, options.replace);
  if (options.tokenizer.empty())
    train_tokenizer(reader, options.training, "smollm", writer.path(), options.progress);
  else
    copy_tokenizer(options.tokenizer, writer.path());
  const Tokenizer tokenizer = tokenizer_from_folder(writer.path());
  std::optional<ChatTemplate> style;
  DataInfo info;
  info.vocabulary = tokenizer.vocabulary();
  const bool json = fs::exists(writer.path() / "tokenizer.json");
  info.tokenizer = io::sha256(io::MappedFile(writer.path() / (json ? "tokenizer.json" : "vocab.txt")).bytes());
  bool first = true, all_tell = true;
  std::int64_t used = 0, unusable = 0;
  const auto encoded = [&](const Record& record) -> std::vector<std::vector<std::int32_t>> {
    if (record.kind == DataKind::text) return {encode_text(tokenizer, record.text)};
    if (!style) {
      if (tokenizer.chat_template().empty())
        throw io::FileError("the tokenizer has no chat template, which chats need");
      style = ChatTemplate::detect(tokenizer.chat_template());
    }
    std::vector<std::vector<std::int32_t>> documents = {encode_learnt_chat(tokenizer, *style, record.chat)};
    if (record.kind == DataKind::preference)
      documents.push_back(encode_learnt_chat(tokenizer, *style, record.rejected));
    return documents;
  };
  reader.read(
      [&](const Record& record) {
        if (first) info.kind = record.kind;
        if (record.kind != info.kind && (record.kind == DataKind::preference || info.kind == DataKind::preference))
          throw io::FileError(record.place + ": is " + name(record.kind) + " behind " + name(info.kind) +
                              ", expected one kind; prepare them apart");
        if (record.kind == DataKind::chat) info.kind = DataKind::chat;  // texts may stand among chats
        first = false;
        std::vector<std::vector<std::int32_t>> documents;
        try {
          documents = encoded(record);
        } catch (const InvalidArgument& error) {  // a chat that the template has no place for
          if (!options.skip_broken) throw io::FileError(record.place + ": " + error.what());
          ++unusable;
          return;
        }
        all_tell = all_tell && record.nats > 0;
        info.nats += record.nats;
        info.bytes += std::ssize(record.text);
        for (const Message& m : record.chat) info.bytes += std::ssize(m.content);
        for (const auto& document : documents) writer.add(document);
        ++used;
      },
      options.progress, "writing tokens");
  if (used == 0) throw io::FileError("the inputs hold no document");
  info.skipped = reader.skipped() + unusable;
  if (!all_tell) info.nats = 0;
  return writer.commit(info);
}

}  // namespace attend::llm
