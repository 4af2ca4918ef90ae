// Writes a state dict as torch.save does: a zip of stored entries, with a pickle that names the tensors.
#include <zlib.h>

#include <cstring>
#include <limits>
#include <string>

#include "io/pth.hpp"

namespace attend::io {
namespace {

template <class T>
void append(std::string& to, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof value);
}

// Opcodes of protocol 2.
class PickleWriter {
 public:
  PickleWriter() { text_ = std::string("\x80\x02", 2); }
  void op(char c) { text_ += c; }
  void global(const char* module, const char* name) {
    text_ += 'c';
    text_ += module;
    text_ += '\n';
    text_ += name;
    text_ += '\n';
  }
  void string(std::string_view s) {
    text_ += 'X';
    append(text_, static_cast<std::uint32_t>(s.size()));
    text_ += s;
  }
  void whole(std::int64_t value) {
    if (value <= std::numeric_limits<std::int32_t>::max()) {
      text_ += 'J';
      append(text_, static_cast<std::int32_t>(value));
    } else {
      text_ += "\x8a\x08";
      append(text_, value);
    }
  }
  void empty_ordered_dict() {
    global("collections", "OrderedDict");
    text_ += ")R";
  }
  std::string take() { return std::move(text_) + '.'; }

 private:
  std::string text_;
};

const char* storage_class(std::string_view dtype) {
  return dtype == "F32" ? "FloatStorage" : dtype == "F16" ? "HalfStorage" : "BFloat16Storage";
}

std::string state_dict(std::span<const StoredTensor> tensors) {
  PickleWriter p;
  p.empty_ordered_dict();
  p.op('(');
  for (std::size_t n = 0; n < tensors.size(); ++n) {
    const StoredTensor& t = tensors[n];
    std::int64_t count = 1;
    for (const std::int64_t extent : t.shape) count *= extent;
    p.string(t.name);
    p.global("torch._utils", "_rebuild_tensor_v2");
    p.op('(');
    p.op('(');
    p.string("storage");
    p.global("torch", storage_class(t.dtype));
    p.string(std::to_string(n));
    p.string("cpu");
    p.whole(count);
    p.op('t');
    p.op('Q');
    p.whole(0);
    p.op('(');
    for (const std::int64_t extent : t.shape) p.whole(extent);
    p.op('t');
    p.op('(');
    std::int64_t stride = count;
    for (const std::int64_t extent : t.shape) p.whole(stride /= extent);
    p.op('t');
    p.op('\x89');
    p.empty_ordered_dict();
    p.op('t');
    p.op('R');
  }
  p.op('u');
  return p.take();
}

// Stored entries; a data entry begins on a multiple of 64 bytes, as torch.save has it.
class ZipWriter {
 public:
  explicit ZipWriter(const PutBytes& put) : put_(put) {}

  void add(const std::string& name, std::span<const std::byte> bytes) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
    if (bytes.size() > kMost || at_ > kMost - bytes.size())
      throw FileError("a .pth beyond 4 GiB cannot be written; write a folder or GGUF");
    const auto crc =
        static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    std::string extra;
    const std::uint64_t begin = at_ + kLocal + name.size();
    append<std::uint16_t>(extra, 0x4246);
    const auto pad = static_cast<std::uint16_t>((64 - (begin + 4) % 64) % 64);
    append<std::uint16_t>(extra, pad);
    extra.append(pad, 'Z');

    std::string fields;  // that both headers have
    append<std::uint16_t>(fields, 0);
    append<std::uint16_t>(fields, 0);
    append<std::uint32_t>(fields, 0x00210000);  // 1980-01-01: the same file from the same model
    append(fields, crc);
    append(fields, static_cast<std::uint32_t>(bytes.size()));
    append(fields, static_cast<std::uint32_t>(bytes.size()));
    append(fields, static_cast<std::uint16_t>(name.size()));

    append<std::uint32_t>(directory_, 0x02014b50);
    append<std::uint16_t>(directory_, 20);
    append<std::uint16_t>(directory_, 20);
    directory_ += fields;
    directory_.append(12, '\0');  // no extra field, comment, disk, attributes
    append(directory_, static_cast<std::uint32_t>(at_));
    directory_ += name;
    ++count_;

    std::string header;
    append<std::uint32_t>(header, 0x04034b50);
    append<std::uint16_t>(header, 20);
    header += fields;
    append(header, static_cast<std::uint16_t>(extra.size()));
    put(header + name + extra);
    put_(bytes);
    at_ += bytes.size();
  }

  void finish() {
    std::string end;
    const std::uint64_t start = at_;
    put(directory_);
    append<std::uint32_t>(end, 0x06054b50);
    append<std::uint32_t>(end, 0);
    append(end, count_);
    append(end, count_);
    append(end, static_cast<std::uint32_t>(directory_.size()));
    append(end, static_cast<std::uint32_t>(start));
    append<std::uint16_t>(end, 0);
    put(end);
  }

 private:
  static constexpr std::uint64_t kLocal = 30;  // bytes of a local header before its name

  void put(const std::string& text) {
    put_(std::as_bytes(std::span(text)));
    at_ += text.size();
  }

  const PutBytes& put_;
  std::string directory_;
  std::uint64_t at_ = 0;
  std::uint16_t count_ = 0;
};

}  // namespace

void write_pth(const std::filesystem::path& path, std::span<const StoredTensor> tensors, const PutTensor& content) {
  constexpr std::size_t kMostEntries = 65000;
  if (tensors.size() > kMostEntries) throw FileError(path.string() + ": too many tensors for a .pth");
  stream_file_atomically(path, [&](const PutBytes& put) {
    ZipWriter zip(put);
    const auto add_text = [&](const char* name, const std::string& text) {
      zip.add(name, std::as_bytes(std::span(text)));
    };
    add_text("archive/data.pkl", state_dict(tensors));
    add_text("archive/byteorder", "little");
    for (std::size_t n = 0; n < tensors.size(); ++n) {
      std::vector<std::byte> bytes;
      content(n, [&](std::span<const std::byte> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); });
      zip.add("archive/data/" + std::to_string(n), bytes);
    }
    add_text("archive/version", "3\n");
    zip.finish();
  });
}

}  // namespace attend::io
