// Reads and writes safetensors.
#include "io/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <unordered_set>

#include "attend/error.hpp"
#include "base/checked.hpp"
#include "io/atomic_file.hpp"
#include "io/json.hpp"

namespace attend::io {
namespace {

constexpr std::size_t kLengthBytes = 8;
// Some 30,000 tensors: models of more come in several files. A header of 2 MB would take 100 in memory without it.
constexpr std::size_t kMostValues = 300'000;

struct KnownDType {
  std::string_view name;
  int bits;
};
constexpr std::array<KnownDType, 19> kDTypes = {{{"BOOL", 8},
                                                 {"U8", 8},
                                                 {"I8", 8},
                                                 {"F8_E4M3", 8},
                                                 {"F8_E5M2", 8},
                                                 {"F8_E8M0", 8},
                                                 {"I16", 16},
                                                 {"U16", 16},
                                                 {"F16", 16},
                                                 {"BF16", 16},
                                                 {"I32", 32},
                                                 {"U32", 32},
                                                 {"F32", 32},
                                                 {"F64", 64},
                                                 {"I64", 64},
                                                 {"U64", 64},
                                                 {"C64", 64},
                                                 {"F4", 4},
                                                 {"F6_E2M3", 6}}};

// Where the entry being read stands, for messages.
struct Entry {
  const std::string& what;
  const std::string& name;

  [[noreturn]] void fail(const std::string& text) const {
    throw FileError(what + ": tensor " + json_quoted(name) + ": " + text);
  }
};

const Json& field(const Entry& entry, const Json& value, const char* name) {
  const Json* found = value.find(name);
  if (found == nullptr) entry.fail(std::string("has no \"") + name + "\"");
  return *found;
}

std::int64_t whole(const Entry& entry, const Json& value, const char* what) {
  const std::int64_t* x = value.integer();
  if (x == nullptr || *x < 0)
    entry.fail(std::string(what) + " holds " + (x ? std::to_string(*x) : value.kind()) +
               ", expected whole numbers >= 0");
  return *x;
}

// Bytes of `count` elements; types narrower than a byte must fill whole ones.
std::int64_t bytes_of(const Entry& entry, const StoredTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) try {
      count = checked_product("shape", {count, size});
    } catch (const InvalidArgument&) {
      entry.fail("its shape has more elements than 2^63");
    }
  const int bits = safetensors_bits(tensor.dtype);
  try {
    const std::int64_t all = checked_product("bits", {count, bits});
    if (all % 8 != 0)
      entry.fail("its " + std::to_string(count) + " elements of " + tensor.dtype + " fill no whole bytes");
    return all / 8;
  } catch (const InvalidArgument&) {
    entry.fail("its shape has more bytes than 2^60");
  }
}

StoredTensor read_entry(const std::string& what, const std::string& name, const Json& value,
                        std::span<const std::byte> data) {
  const Entry entry{what, name};
  if (value.object() == nullptr) entry.fail(std::string("is ") + value.kind() + ", expected an object");
  StoredTensor tensor;
  tensor.name = name;
  const std::string* dtype = field(entry, value, "dtype").string();
  if (dtype == nullptr || safetensors_bits(*dtype) == 0)
    entry.fail("dtype is " + (dtype ? json_quoted(*dtype) : field(entry, value, "dtype").kind()) +
               ", expected one such as \"F32\" or \"BF16\"");
  tensor.dtype = *dtype;
  const Json::Array* shape = field(entry, value, "shape").array();
  if (shape == nullptr)
    entry.fail(std::string("shape is ") + field(entry, value, "shape").kind() + ", expected an array");
  for (const Json& size : *shape) tensor.shape.push_back(whole(entry, size, "shape"));
  const Json::Array* offsets = field(entry, value, "data_offsets").array();
  if (offsets == nullptr || offsets->size() != 2) entry.fail("data_offsets is not a pair of numbers");
  const std::int64_t begin = whole(entry, (*offsets)[0], "data_offsets"),
                     end = whole(entry, (*offsets)[1], "data_offsets");
  if (begin > end || static_cast<std::uint64_t>(end) > data.size())
    entry.fail("data_offsets are [" + std::to_string(begin) + ", " + std::to_string(end) +
               "], expected a range inside the " + std::to_string(data.size()) + " bytes behind the header");
  const std::int64_t bytes = bytes_of(entry, tensor);
  if (bytes != end - begin)
    entry.fail("its shape takes " + std::to_string(bytes) + " bytes and its data_offsets " +
               std::to_string(end - begin));
  tensor.data = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
  return tensor;
}

void read_metadata(const std::string& what, const Json& value, Metadata& metadata) {
  if (value.object() == nullptr) throw FileError(what + ": __metadata__ is " + value.kind() + ", expected an object");
  for (const auto& [key, text] : *value.object()) {
    if (text.string() == nullptr)
      throw FileError(what + ": __metadata__ " + json_quoted(key) + " is " + text.kind() + ", expected a string");
    metadata.emplace_back(key, *text.string());
  }
}

}  // namespace

int safetensors_bits(std::string_view dtype) {
  const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const KnownDType& d) { return d.name == dtype; });
  return known == kDTypes.end() ? 0 : known->bits;
}

std::vector<StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& what,
                                            Metadata& metadata) {
  if (bytes.size() < kLengthBytes)
    throw FileError(what + ": it has " + std::to_string(bytes.size()) +
                    " bytes, expected at least 8: a safetensors file "
                    "begins with the length of its header");
  std::uint64_t length = 0;
  for (std::size_t n = kLengthBytes; n-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(bytes[n]);
  const std::size_t room = bytes.size() - kLengthBytes;
  if (length > Safetensors::kMostHeaderBytes || length > room)
    throw FileError(what + ": its header should have " + std::to_string(length) + " bytes, expected at most " +
                    std::to_string(std::min(room, Safetensors::kMostHeaderBytes)));
  const auto header_bytes = static_cast<std::size_t>(length);
  const std::string_view text = as_text(bytes.subspan(kLengthBytes, header_bytes));
  if (text.empty() || text.front() != '{') throw FileError(what + ": its header does not begin with {");
  const Json header =
      parse_json(text, what + ": header", {.bytes = Safetensors::kMostHeaderBytes, .depth = 8, .values = kMostValues});
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);

  std::vector<StoredTensor> tensors;
  for (const auto& [name, value] : *header.object()) {
    if (name == "__metadata__")
      read_metadata(what, value, metadata);
    else
      tensors.push_back(read_entry(what, name, value, data));
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tuple(a.data.data(), a.data.size(), std::string_view(a.name)) <
           std::tuple(b.data.data(), b.data.size(), std::string_view(b.name));
  });
  const std::byte* expected = data.data();
  for (const StoredTensor& tensor : tensors) {
    if (tensor.data.data() != expected)
      throw FileError(what + ": tensor " + json_quoted(tensor.name) + " begins at byte " +
                      std::to_string(tensor.data.data() - data.data()) + ", expected " +
                      std::to_string(expected - data.data()) + ": no holes, no overlaps");
    expected += tensor.data.size();
  }
  if (expected != data.data() + data.size())
    throw FileError(what + ": " + std::to_string(data.data() + data.size() - expected) +
                    " bytes at the end belong to no tensor");
  return tensors;
}

Safetensors::Safetensors(const std::filesystem::path& path)
    : file_(path), tensors_(parse_safetensors(file_.bytes(), path.string(), metadata_)) {
  for (std::size_t n = 0; n < tensors_.size(); ++n) places_.emplace(tensors_[n].name, n);
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &tensors_[place->second];
}

namespace {

constexpr const char* kWriter = "write_safetensors";

// Its bytes in the file.
std::uint64_t check_tensor(const StoredTensor& tensor) {
  if (safetensors_bits(tensor.dtype) == 0)
    throw InvalidArgument(std::string(kWriter) + ": " + json_quoted(tensor.name) + " has the unknown dtype " +
                          json_quoted(tensor.dtype));
  const std::string what = kWriter;
  try {
    return static_cast<std::uint64_t>(bytes_of({what, tensor.name}, tensor));
  } catch (const FileError& error) {
    throw InvalidArgument(error.what());
  }
}

void check_bytes(const StoredTensor& tensor, std::uint64_t got, std::uint64_t expected) {
  if (got != expected)
    throw InvalidArgument(std::string(kWriter) + ": " + json_quoted(tensor.name) + " has " + std::to_string(got) +
                          " bytes, expected " + std::to_string(expected) + " for its shape");
}

std::string metadata_text(const Metadata& metadata) {
  std::string text = "\"__metadata__\":{";
  for (std::size_t n = 0; n < metadata.size(); ++n) {
    text += n > 0 ? "," : "";
    text += json_quoted(metadata[n].first) + ":" + json_quoted(metadata[n].second);
  }
  return text + "}";
}

// Fills `sizes` with the bytes of each tensor.
std::string make_header(std::span<const StoredTensor> tensors, const Metadata& metadata,
                        std::vector<std::uint64_t>& sizes) {
  std::string header = "{";
  if (!metadata.empty()) header += metadata_text(metadata);
  std::unordered_set<std::string_view> names = {"__metadata__"};
  std::uint64_t at = 0;
  for (const StoredTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      throw InvalidArgument(std::string(kWriter) + ": the name " + json_quoted(tensor.name) + " repeats");
    sizes.push_back(check_tensor(tensor));
    header += header.size() > 1 ? "," : "";
    header += json_quoted(tensor.name) + ":{\"dtype\":" + json_quoted(tensor.dtype) + ",\"shape\":[";
    for (std::size_t n = 0; n < tensor.shape.size(); ++n) {
      header += n > 0 ? "," : "";
      header += std::to_string(tensor.shape[n]);
    }
    header += "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + sizes.back()) + "]}";
    at += sizes.back();
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');  // so that the tensors' bytes are aligned
  return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                       const Metadata& metadata, const PutTensor& content) {
  std::vector<std::uint64_t> sizes;
  const std::string header = make_header(tensors, metadata, sizes);
  if (!content)
    for (std::size_t n = 0; n < tensors.size(); ++n) check_bytes(tensors[n], tensors[n].data.size(), sizes[n]);
  std::array<std::byte, kLengthBytes> length{};
  for (std::size_t n = 0; n < kLengthBytes; ++n) length[n] = static_cast<std::byte>(header.size() >> (8 * n) & 0xFF);
  stream_file_atomically(path, [&](const PutBytes& put) {
    put(length);
    put(std::as_bytes(std::span(header)));
    for (std::size_t n = 0; n < tensors.size(); ++n)
      if (content)
        check_bytes(tensors[n], put_and_count(n, content, put), sizes[n]);
      else
        put(tensors[n].data);
  });
}

}  // namespace attend::io
