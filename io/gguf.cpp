// Reads GGUF. Parsers subtract, never add: what is left is compared with what is asked for.
#include "io/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "io/json.hpp"

namespace attend::io {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian, and read as it lies");

constexpr std::uint64_t kMostDims = 4, kDefaultAlignment = 32, kMostAlignment = 1 << 16, kLongestName = 1 << 16,
                        kMostSettings = 1 << 15, kMostTensors = 1 << 15;  // an entry of 13 bytes takes 1,000

std::size_t size_of(GgufType type) {  // 0 for strings and arrays
  static constexpr std::size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

template <class T>
T load(const std::byte* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

}  // namespace

GgmlBlock ggml_block(std::uint32_t type) {
  switch (type) {
    case 0:
      return {"F32", 1, 4};
    case 1:
      return {"F16", 1, 2};
    case 2:
      return {"Q4_0", 32, 18};
    case 3:
      return {"Q4_1", 32, 20};
    case 6:
      return {"Q5_0", 32, 22};
    case 7:
      return {"Q5_1", 32, 24};
    case 8:
      return {"Q8_0", 32, 34};
    case 12:
      return {"Q4_K", 256, 144};
    case 13:
      return {"Q5_K", 256, 176};
    case 14:
      return {"Q6_K", 256, 210};
    case 30:
      return {"BF16", 1, 2};
    default:
      return {nullptr, 0, 0};
  }
}

std::uint64_t ggml_bytes(const GgufTensor& tensor, const std::string& what) {
  const auto fail = [&](const std::string& text) {
    throw FileError(what + ": tensor " + json_quoted(tensor.name) + " has " + text);
  };
  const GgmlBlock block = ggml_block(tensor.type);
  if (block.numbers == 0)
    fail("the type " + std::to_string(tensor.type) +
         ", expected one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K");
  const std::int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % block.numbers != 0)
    fail("rows of " + std::to_string(row) + ", expected a multiple of " + std::to_string(block.numbers) + " for " +
         block.name);
  std::uint64_t bytes = static_cast<std::uint64_t>(block.bytes);
  bool overflow = __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(row / block.numbers), &bytes);
  for (std::size_t d = 0; d + 1 < tensor.shape.size(); ++d)
    overflow |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(tensor.shape[d]), &bytes);
  if (overflow) fail("more bytes than 2^64");
  return bytes;
}

std::vector<std::string_view> GgufArray::strings() const {
  std::vector<std::string_view> out;
  out.reserve(type == GgufType::string ? count : 0);
  each_string([&](std::string_view text) { out.push_back(text); });
  return out;
}

namespace {

// Calls f with element n of a numeric array, as its own type.
template <class F>
void each_number(const GgufArray& array, F&& f) {
  const auto run = [&]<class T>(T) {
    for (std::uint64_t n = 0; n < array.count; ++n) f(load<T>(array.bytes.data() + n * sizeof(T)));
  };
  switch (array.type) {
    case GgufType::u8:
    case GgufType::boolean:
      return run(std::uint8_t{});
    case GgufType::i8:
      return run(std::int8_t{});
    case GgufType::u16:
      return run(std::uint16_t{});
    case GgufType::i16:
      return run(std::int16_t{});
    case GgufType::u32:
      return run(std::uint32_t{});
    case GgufType::i32:
      return run(std::int32_t{});
    case GgufType::f32:
      return run(float{});
    case GgufType::u64:
      return run(std::uint64_t{});
    case GgufType::i64:
      return run(std::int64_t{});
    case GgufType::f64:
      return run(double{});
    case GgufType::string:
    case GgufType::array:
      break;
  }
}

}  // namespace

std::vector<double> GgufArray::numbers() const {
  std::vector<double> out;
  out.reserve(type == GgufType::string ? 0 : count);
  each_number(*this, [&](auto x) { out.push_back(static_cast<double>(x)); });
  return out;
}

std::vector<std::int64_t> GgufArray::integers() const {
  std::vector<std::int64_t> out;
  bool whole = true;
  each_number(*this, [&]<class T>(T x) {
    if constexpr (std::is_floating_point_v<T>) {
      whole = false;
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      whole = whole && x <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      out.push_back(static_cast<std::int64_t>(x));
    } else {
      out.push_back(static_cast<std::int64_t>(x));
    }
  });
  if (!whole) out.clear();
  return out;
}

// Takes the bytes from the front, each piece checked against what is left.
class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, const std::string& what, Gguf& out)
      : all_(bytes), left_(bytes), what_(what), out_(out) {}

  void read() {
    if (left_.size() < 4 || as_text(left_.first(4)) != "GGUF") fail("it does not begin with \"GGUF\"");
    left_ = left_.subspan(4);
    out_.version_ = take<std::uint32_t>("the version");
    if (out_.version_ != 2 && out_.version_ != 3)
      fail("its version is " + std::to_string(out_.version_) + ", expected 2 or 3" +
           (out_.version_ % 65536 == 0 ? " (a big-endian file)" : ""));
    const auto tensors = take<std::uint64_t>("the number of tensors");
    const auto values = take<std::uint64_t>("the number of settings");
    // The least an entry takes: a key's length, a type and a byte; a name's length, dims, type and offset.
    check_count("settings", values, 8 + 4 + 1);
    check_count("tensors", tensors, 8 + 4 + 4 + 8);
    if (values > kMostSettings) fail_count("settings", values, kMostSettings);
    if (tensors > kMostTensors) fail_count("tensors", tensors, kMostTensors);
    for (std::uint64_t n = 0; n < values; ++n) read_value();
    for (std::uint64_t n = 0; n < tensors; ++n) read_tensor();
    place_tensors();
  }

 private:
  [[noreturn]] void fail(const std::string& text) const { throw FileError(what_ + ": " + text); }

  template <class T>
  T take(const char* of) {
    if (left_.size() < sizeof(T)) fail(std::string("it ends inside ") + of);
    const T x = load<T>(left_.data());
    left_ = left_.subspan(sizeof(T));
    return x;
  }
  void check_count(const char* what, std::uint64_t count, std::uint64_t least_bytes) const {
    if (count > left_.size() / least_bytes)
      fail("it should hold " + std::to_string(count) + " " + what + ", more than fit in the " +
           std::to_string(left_.size()) + " bytes that are left");
  }
  [[noreturn]] void fail_count(const char* what, std::uint64_t count, std::uint64_t most) const {
    fail("it should hold " + std::to_string(count) + " " + what + ", expected at most " + std::to_string(most));
  }
  std::string_view take_string(const char* of, std::uint64_t longest = std::numeric_limits<std::uint64_t>::max()) {
    const auto length = take<std::uint64_t>(of);
    if (length > left_.size() || length > longest)
      fail(std::string(of) + " should have " + std::to_string(length) + " bytes, " +
           (length > left_.size() ? std::to_string(left_.size()) + " are left"
                                  : "expected at most " + std::to_string(longest)));
    const std::string_view text = as_text(left_.first(static_cast<std::size_t>(length)));
    left_ = left_.subspan(static_cast<std::size_t>(length));
    return text;
  }

  GgufType take_type(std::string_view key) {
    const auto type = take<std::uint32_t>("a type");
    if (type > static_cast<std::uint32_t>(GgufType::f64))
      fail("setting " + json_quoted(key) + " has the type " + std::to_string(type) + ", expected 0 to 12");
    return static_cast<GgufType>(type);
  }

  GgufArray take_array(std::string_view key) {
    GgufArray array;
    array.type = take_type(key);
    if (array.type == GgufType::array) fail("setting " + json_quoted(key) + " is an array of arrays");
    array.count = take<std::uint64_t>("an array's length");
    const std::size_t size = size_of(array.type);
    check_count(("elements of " + json_quoted(key)).c_str(), array.count, size == 0 ? 8 : size);
    const std::span<const std::byte> start = left_;
    if (size == 0)
      for (std::uint64_t n = 0; n < array.count; ++n) take_string("a string of an array");
    else
      left_ = left_.subspan(static_cast<std::size_t>(array.count) * size);
    array.bytes = start.first(start.size() - left_.size());
    return array;
  }

  GgufValue take_value(std::string_view key) {
    switch (take_type(key)) {
      case GgufType::u8:
        return std::int64_t{take<std::uint8_t>("a setting")};
      case GgufType::i8:
        return std::int64_t{take<std::int8_t>("a setting")};
      case GgufType::u16:
        return std::int64_t{take<std::uint16_t>("a setting")};
      case GgufType::i16:
        return std::int64_t{take<std::int16_t>("a setting")};
      case GgufType::u32:
        return std::int64_t{take<std::uint32_t>("a setting")};
      case GgufType::i32:
        return std::int64_t{take<std::int32_t>("a setting")};
      case GgufType::i64:
        return take<std::int64_t>("a setting");
      case GgufType::u64: {
        const auto x = take<std::uint64_t>("a setting");
        if (x > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
          fail("setting " + json_quoted(key) + " is " + std::to_string(x) + ", expected less than 2^63");
        return static_cast<std::int64_t>(x);
      }
      case GgufType::f32:
        return double{take<float>("a setting")};
      case GgufType::f64:
        return take<double>("a setting");
      case GgufType::boolean: {
        const auto x = take<std::uint8_t>("a setting");
        if (x > 1) fail("setting " + json_quoted(key) + " is a boolean of " + std::to_string(x) + ", expected 0 or 1");
        return x == 1;
      }
      case GgufType::string:
        return take_string("a setting");
      case GgufType::array:
        break;
    }
    return take_array(key);
  }

  void read_value() {
    const std::string_view key = take_string("a setting's name", kLongestName);
    if (!out_.value_places_.emplace(key, out_.values_.size()).second)
      fail("setting " + json_quoted(key) + " stands twice");
    const std::span<const std::byte> start = left_;
    out_.values_.emplace_back(key, take_value(key));
    out_.stored_values_.push_back(start.first(start.size() - left_.size()));
  }

  void read_tensor() {
    GgufTensor tensor;
    tensor.name = take_string("a tensor's name", kLongestName);
    if (!out_.tensor_places_.emplace(tensor.name, out_.tensors_.size()).second)
      fail("tensor " + json_quoted(tensor.name) + " stands twice");
    const auto dims = take<std::uint32_t>("a tensor's number of dimensions");
    if (dims > kMostDims)
      fail("tensor " + json_quoted(tensor.name) + " has " + std::to_string(dims) + " dimensions, expected at most 4");
    for (std::uint32_t d = 0; d < dims; ++d) {
      const auto size = take<std::uint64_t>("a tensor's shape");
      if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail("tensor " + json_quoted(tensor.name) + " has a dimension of " + std::to_string(size));
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
    }
    tensor.type = take<std::uint32_t>("a tensor's type");
    offsets_.push_back(take<std::uint64_t>("a tensor's offset"));
    out_.tensors_.push_back(std::move(tensor));
  }

  std::uint64_t alignment() const {
    const GgufValue* value = out_.value("general.alignment");
    if (value == nullptr) return kDefaultAlignment;
    const auto* x = std::get_if<std::int64_t>(value);
    if (x == nullptr || *x < 8 || *x > static_cast<std::int64_t>(kMostAlignment) || (*x & (*x - 1)) != 0)
      fail("general.alignment is " + (x ? std::to_string(*x) : "not a whole number") +
           ", expected a power of two from 8 to 65536");
    return static_cast<std::uint64_t>(*x);
  }

  // The tensors lie behind the header in order, each from the next multiple of the alignment on.
  void place_tensors() {
    const std::uint64_t align = alignment();
    const auto rounded = [&](std::uint64_t x) { return (x + align - 1) / align * align; };
    const std::uint64_t header = rounded(all_.size() - left_.size());
    if (out_.tensors_.empty()) return;
    if (header > all_.size()) fail("it ends before its tensors begin");
    const std::span<const std::byte> data = all_.subspan(static_cast<std::size_t>(header));
    std::uint64_t expected = 0;
    for (std::size_t n = 0; n < out_.tensors_.size(); ++n) {
      GgufTensor& tensor = out_.tensors_[n];
      if (offsets_[n] != expected)
        fail("tensor " + json_quoted(tensor.name) + " begins at " + std::to_string(offsets_[n]) + ", expected " +
             std::to_string(expected));
      const std::uint64_t bytes = ggml_bytes(tensor, what_);
      if (expected > data.size() || bytes > data.size() - expected)
        fail("tensor " + json_quoted(tensor.name) + " needs " + std::to_string(bytes) + " bytes from " +
             std::to_string(expected) + " on, the file has " + std::to_string(data.size()) + " bytes for tensors");
      tensor.data = data.subspan(static_cast<std::size_t>(expected), static_cast<std::size_t>(bytes));
      expected = rounded(expected + bytes);
    }
  }

  std::span<const std::byte> all_, left_;
  const std::string& what_;
  Gguf& out_;
  std::vector<std::uint64_t> offsets_;
};

Gguf::Gguf(const std::filesystem::path& path) : file_(path) {
  GgufReader(file_.bytes(), path.string(), *this).read();
}

Gguf parse_gguf(std::span<const std::byte> bytes, const std::string& what) {
  Gguf gguf;
  GgufReader(bytes, what, gguf).read();
  return gguf;
}

const GgufValue* Gguf::value(std::string_view key) const {
  const auto place = value_places_.find(key);
  return place == value_places_.end() ? nullptr : &values_[place->second].second;
}
const GgufTensor* Gguf::tensor(std::string_view name) const {
  const auto place = tensor_places_.find(name);
  return place == tensor_places_.end() ? nullptr : &tensors_[place->second];
}

}  // namespace attend::io
