// Trains or takes a tokenizer, and writes tokens.
#include "llm/train/prepare.hpp"

#include <algorithm>
#include <optional>
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

// ChatML as Transformers' template language has it.
constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

void write_text(const fs::path& path, std::string_view text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

void add_words(const Record& record, TokenizerTrainer& trainer) {
  if (record.kind == DataKind::text) trainer.add(record.text);
  for (const auto* chat : {&record.chat, &record.rejected}) {
    for (const Message& message : *chat) {
      trainer.add(message.role + "\n");
      trainer.add(message.content);
      for (const ToolCall& call : message.calls) trainer.add(call.name + " " + call.arguments);
    }
  }
  for (const std::string& tool : record.tools) trainer.add(tool);
}

// Why there is nothing to work with, if rows were skipped.
std::string first_skipped(const ReadReport& report) {
  if (report.reasons.empty()) return "";
  return ": " + std::to_string(report.skipped) + " of " + std::to_string(report.rows) +
         " records were skipped, the first at " + report.reasons.front().first + ": " + report.reasons.front().reason;
}

}  // namespace

void train_tokenizer(RecordReader& reader, const TokenizerTraining& training, const std::string& pre,
                     const fs::path& folder, const PrepareProgress& progress) {
  TokenizerTrainer trainer(pre);
  reader.read([&](const Record& record) { add_words(record, trainer); }, progress, "counting words");
  if (trainer.words() == 0)
    throw io::FileError("there is no text to learn a tokenizer from" + first_skipped(reader.report()));
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
                                             std::span<const Message> chat, std::span<const std::string> tools) {
  const auto is_learned = [](const Message& m) { return m.role == "assistant" && m.learned; };
  const auto last = std::find_if(chat.rbegin(), chat.rend(), is_learned);
  const std::vector<ChatPart> parts =
      style.training_parts(chat.first(static_cast<std::size_t>(chat.rend() - last)), tools);
  std::vector<std::int32_t> tokens;
  // Tokens do not reach across the ends of an answer: prompt and answer are encoded as a model meets them.
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    std::vector<TextPart> views;
    for (end = begin; end < parts.size() && parts[end].answer == parts[begin].answer; ++end)
      views.push_back({parts[end].text, parts[end].trusted});
    const std::int64_t answer = parts[begin].answer;
    const bool learned = answer >= 0 && chat[static_cast<std::size_t>(answer)].learned;
    for (const Token token : tokenizer.encode_parts(views)) tokens.push_back(learned ? token : ~token);
  }
  return tokens;
}

DataInfo prepare(const PrepareOptions& options, ReadReport* report) {
  RecordReader reader(options.inputs, options.skip_broken, options.column);
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
  std::int64_t used = 0;
  const auto encoded = [&](const Record& record) -> std::vector<std::vector<std::int32_t>> {
    if (record.kind == DataKind::text) return {encode_text(tokenizer, record.text)};
    if (!style) {
      if (tokenizer.chat_template().empty())
        throw io::FileError("the tokenizer has no chat template, which chats need");
      style = ChatTemplate::detect(tokenizer.chat_template());
    }
    std::vector<std::vector<std::int32_t>> documents = {
        encode_learnt_chat(tokenizer, *style, record.chat, record.tools)};
    if (record.kind == DataKind::preference)
      documents.push_back(encode_learnt_chat(tokenizer, *style, record.rejected, record.tools));
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
          return reader.skip(record, error.what());
        }
        all_tell = all_tell && record.nats > 0;
        info.nats += record.nats;
        info.bytes += std::ssize(record.text);
        for (const Message& m : record.chat) info.bytes += std::ssize(m.content);
        for (const auto& document : documents) writer.add(document);
        ++used;
      },
      options.progress, "writing tokens");
  if (used == 0) throw io::FileError("the inputs hold no document" + first_skipped(reader.report()));
  info.skipped = reader.skipped();
  if (report != nullptr) *report = reader.report();
  if (!all_tell) info.nats = 0;
  return writer.commit(info);
}

}  // namespace attend::llm
