// The files of prepared documents, checked before they are used.
#include "llm/train/dataset.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/atomic_file.hpp"
#include "llm/model/fields.hpp"

namespace attend::llm {
namespace {

constexpr std::array kKinds = {"text", "chat", "preference"};
constexpr std::int64_t kMany = std::int64_t{1} << 48;

DataInfo read_info(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "data.json";
  if (!std::filesystem::exists(path))
    throw io::FileError(folder.string() + ": holds no data.json, expected a folder that `attend prepare` wrote");
  const io::Json json = io::read_json(path);
  const Fields f(json, path.string());
  DataInfo info;
  const std::string kind = f.maybe_string({"kind"}).value_or("");
  const auto known = std::find(kKinds.begin(), kKinds.end(), kind);
  if (known == kKinds.end()) f.refuse("kind", "is " + io::json_quoted(kind) + ", expected text, chat or preference");
  info.kind = static_cast<DataKind>(known - kKinds.begin());
  info.documents = f.integer({"documents"}, 1, kMany);
  info.tokens = f.integer({"tokens"}, 1, kMany);
  info.learnt = f.integer({"learnt"}, 0, info.tokens);
  info.bytes = f.integer({"bytes"}, 0, kMany);
  info.skipped = f.integer({"skipped"}, 0, kMany);
  info.vocabulary = f.integer({"vocabulary"}, 1, std::int64_t{1} << 24);
  info.nats = f.maybe_number({"nats"}, 0, 1e300).value_or(0);
  info.tokenizer = f.maybe_string({"tokenizer_sha256"}).value_or("");
  return info;
}

std::string to_json(const DataInfo& i) {
  io::JsonObject json(true);
  json.string("kind", name(i.kind));
  json.number("documents", i.documents);
  json.number("tokens", i.tokens);
  json.number("learnt", i.learnt);
  json.number("bytes", i.bytes);
  json.number("skipped", i.skipped);
  json.number("vocabulary", i.vocabulary);
  json.number("nats", i.nats);
  json.string("tokenizer_sha256", i.tokenizer);
  return json.text();
}

void put(std::ofstream& file, const void* data, std::size_t bytes) {
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!file) throw io::FileError(std::string("cannot write the tokens: ") + std::strerror(errno));
}

}  // namespace

const char* name(DataKind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
}

Dataset::Dataset(const std::filesystem::path& folder)
    : folder_(folder), info_(read_info(folder)), tokens_(folder / "tokens.bin"), starts_(folder / "documents.bin") {
  const auto size = [&](const io::MappedFile& file, std::int64_t expected) {
    if (std::ssize(file.bytes()) != expected)
      throw io::FileError(file.path().string() + ": has " + std::to_string(file.bytes().size()) + " bytes, expected " +
                          std::to_string(expected) + " by data.json; prepare the documents again");
  };
  size(tokens_, 4 * info_.tokens);
  size(starts_, 8 * (info_.documents + 1));
  if (info_.kind == DataKind::preference && info_.documents % 2 != 0)
    throw io::FileError(folder.string() + ": has an odd number of documents, expected pairs");
}

DocumentTokens Dataset::document(std::int64_t n) const {
  std::array<std::int64_t, 2> ends;
  std::memcpy(ends.data(), starts_.bytes().data() + 8 * n, sizeof ends);
  if (ends[0] < 0 || ends[1] < ends[0] || ends[1] > info_.tokens)
    throw io::FileError(starts_.path().string() + ": document " + std::to_string(n) + " does not lie in tokens.bin");
  const auto* all = reinterpret_cast<const std::int32_t*>(tokens_.bytes().data());
  const DocumentTokens tokens{all + ends[0], all + ends[1]};
  for (const std::int32_t stored : tokens)
    if (token_of(stored) >= info_.vocabulary)
      throw io::FileError(tokens_.path().string() + ": document " + std::to_string(n) + " holds token " +
                          std::to_string(token_of(stored)) + ", expected less than " +
                          std::to_string(info_.vocabulary));
  return tokens;
}

DatasetWriter::DatasetWriter(const std::filesystem::path& folder, bool replace)
    : folder_(folder, replace),
      tokens_(folder_.path() / "tokens.bin", std::ios::binary),
      starts_(folder_.path() / "documents.bin", std::ios::binary) {
  put(starts_, &count_, sizeof count_);
}

void DatasetWriter::add(std::span<const std::int32_t> document) {
  put(tokens_, document.data(), document.size_bytes());
  count_ += std::ssize(document);
  for (const std::int32_t token : document) learnt_ += token >= 0;
  ++documents_;
  put(starts_, &count_, sizeof count_);
}

DataInfo DatasetWriter::commit(DataInfo info) {
  info.documents = documents_, info.tokens = count_, info.learnt = learnt_;
  for (std::ofstream* file : {&tokens_, &starts_}) {
    file->close();
    if (!*file) throw io::FileError(std::string("cannot write the tokens: ") + std::strerror(errno));
  }
  const std::string json = to_json(info);
  io::write_file_atomically(folder_.path() / "data.json", std::as_bytes(std::span(json)));
  folder_.commit();
  return info;
}

}  // namespace attend::llm
