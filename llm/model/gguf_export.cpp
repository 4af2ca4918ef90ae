// A GGUF file with its matrices in another format; everything else is copied.
#include <algorithm>

#include "llm/model/export.hpp"
#include "llm/model/stored_numbers.hpp"

namespace attend::llm {
namespace {

constexpr const char* kFileType = "general.file_type";

// llama.cpp's number for a file whose matrices are mostly of this format.
std::int64_t file_type(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return 0;
    case WeightFormat::f16:
      return 1;
    case WeightFormat::q8_0:
      return 7;
    default:
      return 32;  // bf16
  }
}

// Tables of positions and token types are added to embeddings, not multiplied: they are never quantised.
bool is_table(std::string_view name) {
  return name.starts_with("position_embd.") || name.starts_with("token_types.");
}

// Norms, biases and other vectors keep their format. Rows that are not whole blocks of q8_0 become f16.
WeightFormat format_to_write(const io::GgufTensor& t, WeightFormat asked) {
  const WeightFormat own = format_of_ggml(t.type);
  if (t.shape.size() < 2 || (!is_plain(asked) && is_table(t.name))) return own;
  return t.shape.back() % block_of(asked).numbers == 0 ? asked : WeightFormat::f16;
}

std::vector<io::GgufEntry> copied_settings(const io::Gguf& gguf, WeightFormat format) {
  std::vector<io::GgufEntry> entries;
  for (std::size_t n = 0; n < gguf.values().size(); ++n) {
    const std::string_view key = gguf.values()[n].first;
    if (key != "general.alignment" && key != kFileType)
      entries.push_back({std::string(key), io::GgufType::array, gguf.stored_value(n)});
  }
  entries.push_back({kFileType, io::GgufType::u32, file_type(format)});
  return entries;
}

// A piece at a time: whole blocks of every format.
void put_tensor(const io::GgufTensor& t, WeightFormat to, const std::string& file, const io::PutBytes& put) {
  constexpr std::int64_t kNumbers = std::int64_t{1} << 18;
  const WeightFormat from = format_of_ggml(t.type);
  const auto step = static_cast<std::size_t>(kNumbers / block_of(from).numbers * block_of(from).bytes);
  for (std::size_t at = 0; at < t.data.size(); at += step)
    put_numbers({from, t.data.subspan(at, std::min(step, t.data.size() - at))}, to, {file, std::string(t.name)}, put);
}

}  // namespace

void convert_gguf(const ModelFiles& files, const std::filesystem::path& path, const ExportOptions& options) {
  if (!options.format)
    throw io::FileError(files.path().string() +
                        ": is GGUF already; ask for a type to convert its weights: --type f32, f16, bf16 or q8_0");
  const io::Gguf& gguf = *files.gguf();
  std::vector<io::GgufTensor> tensors = gguf.tensors();
  std::vector<WeightFormat> formats;
  for (io::GgufTensor& t : tensors) {
    formats.push_back(format_to_write(t, *options.format));
    t.type = ggml_number(formats.back());
  }
  std::int64_t done = 0;
  io::write_gguf(path, copied_settings(gguf, *options.format), tensors, [&](std::size_t n, const io::PutBytes& put) {
    const io::GgufTensor& source = gguf.tensors()[n];
    put_tensor(source, formats[n], files.path().string(), put);
    io::not_needed_now(source.data);
    done += std::ssize(source.data);
    if (options.progress) options.progress(std::min(done, files.bytes()), files.bytes());
  });
}

}  // namespace attend::llm
