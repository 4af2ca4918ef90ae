// Reads PyTorch's .pth: the zip around it, and what the calls in its pickle mean.
#include "io/pth.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "attend/error.hpp"
#include "base/checked.hpp"
#include "io/json.hpp"
#include "io/pickle.hpp"

namespace attend::io {
namespace {

// What bounds time and memory where values of the pickle are used again and again.
constexpr std::size_t kMostDepth = 64, kMostVisits = std::size_t{1} << 19, kMostTensors = std::size_t{1} << 16,
                      kMostDims = 16, kLongestName = 512;

struct StorageClass {
  std::string_view name, dtype;
};
constexpr std::array<StorageClass, 11> kStorages = {{{"torch.FloatStorage", "F32"},
                                                     {"torch.HalfStorage", "F16"},
                                                     {"torch.BFloat16Storage", "BF16"},
                                                     {"torch.DoubleStorage", "F64"},
                                                     {"torch.LongStorage", "I64"},
                                                     {"torch.IntStorage", "I32"},
                                                     {"torch.ShortStorage", "I16"},
                                                     {"torch.CharStorage", "I8"},
                                                     {"torch.ByteStorage", "U8"},
                                                     {"torch.BoolStorage", "BOOL"},
                                                     {"torch.ComplexFloatStorage", "C64"}}};

constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2", kParameter = "torch._utils._rebuild_parameter";

// Values beside tensors that checkpoints carry; they are read over.
constexpr std::array<std::string_view, 15> kOthers = {"collections.OrderedDict",
                                                      kTensor,
                                                      kParameter,
                                                      "torch.Size",
                                                      "torch.device",
                                                      "torch.float32",
                                                      "torch.float16",
                                                      "torch.bfloat16",
                                                      "torch.float64",
                                                      "torch.int64",
                                                      "torch.int32",
                                                      "torch.int16",
                                                      "torch.int8",
                                                      "torch.uint8",
                                                      "torch.bool"};

constexpr auto kKnown = [] {
  std::array<std::string_view, kOthers.size() + kStorages.size()> names{};
  std::size_t n = 0;
  for (const std::string_view name : kOthers) names[n++] = name;
  for (const StorageClass& storage : kStorages) names[n++] = storage.name;
  return names;
}();

// Dicts that hold the state dict of a checkpoint.
constexpr std::array<std::string_view, 4> kWrappers = {"state_dict", "model_state_dict", "model", "module"};

class StateDict {
 public:
  StateDict(const Zip& zip, std::string_view folder, const Pickle& pickle, const std::string& what,
            std::vector<StoredTensor>& out)
      : zip_(zip), folder_(folder), pickle_(pickle), what_(what), out_(out) {}

  void read() {
    PickleValue root = pickle_.root();
    if (root.kind != PickleKind::dict)
      throw FileError(what_ + ": it holds " + kind_name(root.kind) + ", expected a state dict");
    for (std::size_t level = 0; level < kWrappers.size(); ++level)
      if (const PickleValue* inner = wrapped(root); inner != nullptr) root = *inner;
    visit("", root, 0);
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& text) const {
    throw FileError(what_ + ": " + (name.empty() ? "its dict" : "tensor " + json_quoted(name)) + " " + text);
  }

  bool is_tensor(const PickleValue& value) const {
    if (value.kind != PickleKind::call) return false;
    const std::string_view function = pickle_.items(value)[0].text;
    return function == kTensor || function == kParameter;
  }

  // The state dict inside a checkpoint: only where the outer dict has no tensors of its own.
  const PickleValue* wrapped(const PickleValue& dict) const {
    const std::span<const PickleValue> items = pickle_.items(dict);
    const PickleValue* found = nullptr;
    std::size_t best = kWrappers.size();
    for (std::size_t n = 0; n + 1 < items.size(); n += 2) {
      if (is_tensor(items[n + 1])) return nullptr;
      if (items[n].kind != PickleKind::text || items[n + 1].kind != PickleKind::dict) continue;
      for (std::size_t w = 0; w < best; ++w)
        if (items[n].text == kWrappers[w]) {
          best = w;
          found = &items[n + 1];
        }
    }
    return found;
  }

  void visit(const std::string& name, const PickleValue& value, std::size_t depth) {
    if (depth > kMostDepth) fail(name, "lies deeper than " + std::to_string(kMostDepth) + " dicts");
    if (++visits_ > kMostVisits || out_.size() > kMostTensors) fail(name, "comes after too many others");
    if (is_tensor(value)) return add(name, value);
    const std::span<const PickleValue> items = pickle_.items(value);
    const std::string prefix = name.empty() ? "" : name + ".";
    if (value.kind == PickleKind::list || value.kind == PickleKind::tuple)
      for (std::size_t n = 0; n < items.size(); ++n) visit(prefix + std::to_string(n), items[n], depth + 1);
    if (value.kind == PickleKind::dict)
      for (std::size_t n = 0; n + 1 < items.size(); n += 2)
        visit(prefix + key_name(name, items[n]), items[n + 1], depth + 1);
  }
  std::string key_name(const std::string& parent, const PickleValue& key) const {
    if (key.kind == PickleKind::integer) return std::to_string(key.integer);
    if (key.kind != PickleKind::text)
      fail(parent, std::string("has ") + kind_name(key.kind) + " as a key below it, expected text");
    if (key.text.size() > kLongestName - std::min(kLongestName, parent.size()))
      fail(parent, "has names below it that are longer than " + std::to_string(kLongestName) + " bytes");
    return std::string(key.text);
  }

  void add(const std::string& name, PickleValue value) {
    // A parameter is a tensor with flags around it. Each call lies behind those in its tuple: this ends.
    while (pickle_.items(value)[0].text == kParameter) {
      const std::span<const PickleValue> arguments = arguments_of(value);
      if (arguments.empty() || !is_tensor(arguments[0])) fail(name, "is a parameter of no tensor");
      value = arguments[0];
    }
    const std::span<const PickleValue> arguments = arguments_of(value);
    if (arguments.size() < 4) fail(name, "has " + std::to_string(arguments.size()) + " fields, expected at least 4");
    StoredTensor tensor;
    tensor.name = name;
    const std::span<const std::byte> storage = storage_of(name, arguments[0], tensor.dtype);
    tensor.shape = sizes_of(name, arguments[2], "shape");
    const std::int64_t elements = elements_of(name, tensor.shape);
    check_contiguous(name, tensor.shape, sizes_of(name, arguments[3], "strides"), elements);
    const std::int64_t size = safetensors_bits(tensor.dtype) / 8;
    const auto held = static_cast<std::int64_t>(storage.size()) / size;
    const std::int64_t offset = whole(name, arguments[1], "offset");
    // An empty view may lie anywhere: torch keeps its offset.
    if (elements > 0 && (elements > held || offset > held - elements))
      fail(name, "has " + std::to_string(elements) + " elements from " + std::to_string(offset) +
                     " on, and its storage has " + std::to_string(held));
    if (elements > 0)
      tensor.data = storage.subspan(static_cast<std::size_t>(offset * size), static_cast<std::size_t>(elements * size));
    out_.push_back(std::move(tensor));
  }
  std::span<const PickleValue> arguments_of(const PickleValue& call) const {
    return pickle_.items(pickle_.items(call)[1]);
  }

  std::int64_t whole(const std::string& name, const PickleValue& value, const char* field) const {
    if (value.kind != PickleKind::integer || value.integer < 0)
      fail(name, std::string("has ") +
                     (value.kind == PickleKind::integer ? std::to_string(value.integer) : kind_name(value.kind)) +
                     " in its " + field + ", expected a whole number >= 0");
    return value.integer;
  }
  std::vector<std::int64_t> sizes_of(const std::string& name, const PickleValue& value, const char* field) const {
    if (value.kind != PickleKind::tuple)
      fail(name, std::string("has ") + kind_name(value.kind) + " as its " + field + ", expected a tuple");
    if (pickle_.items(value).size() > kMostDims)
      fail(name, "has " + std::to_string(pickle_.items(value).size()) + " dimensions, expected at most " +
                     std::to_string(kMostDims));
    std::vector<std::int64_t> sizes;
    for (const PickleValue& item : pickle_.items(value)) sizes.push_back(whole(name, item, field));
    return sizes;
  }
  std::int64_t elements_of(const std::string& name, const std::vector<std::int64_t>& shape) const {
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) try {
        elements = checked_product("shape", {elements, size});
      } catch (const InvalidArgument&) {
        fail(name, "has more than 2^63 elements");
      }
    return elements;
  }
  void check_contiguous(const std::string& name, const std::vector<std::int64_t>& shape,
                        const std::vector<std::int64_t>& strides, std::int64_t elements) const {
    if (strides.size() != shape.size())
      fail(name,
           "has " + std::to_string(shape.size()) + " dimensions and " + std::to_string(strides.size()) + " strides");
    if (elements == 0) return;
    std::int64_t expected = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (shape[d] != 1 && strides[d] != expected)
        fail(name, "is a view that is not contiguous (dimension " + std::to_string(d) + " has the stride " +
                       std::to_string(strides[d]) + ", expected " + std::to_string(expected) +
                       "): save it after .contiguous()");
      expected *= shape[d];  // at most the number of elements
    }
  }

  std::span<const std::byte> storage_of(const std::string& name, const PickleValue& value, std::string& dtype) const {
    if (value.kind != PickleKind::persistent)
      fail(name, std::string("has ") + kind_name(value.kind) + " as its storage");
    const std::span<const PickleValue> id = pickle_.items(pickle_.items(value)[0]);
    if (id.size() < 5 || id[0].text != "storage" || id[1].kind != PickleKind::global || id[2].kind != PickleKind::text)
      fail(name, "has a storage that is not described as torch describes them");
    for (const StorageClass& storage : kStorages)
      if (id[1].text == storage.name) dtype = storage.dtype;
    if (dtype.empty()) fail(name, "has a storage of the class " + std::string(id[1].text));
    const std::string path = std::string(folder_) + "data/" + std::string(id[2].text.substr(0, 100));
    const ZipEntry* entry = zip_.find(path);
    if (entry == nullptr) fail(name, "has its bytes in " + json_quoted(path) + ", which the file lacks");
    const std::span<const std::byte> bytes = zip_.view(*entry);
    const std::int64_t count = whole(name, id[4], "storage");
    const std::int64_t size = safetensors_bits(dtype) / 8;
    if (bytes.size() % static_cast<std::size_t>(size) != 0 ||
        static_cast<std::uint64_t>(count) != bytes.size() / static_cast<std::size_t>(size))
      fail(name, "has a storage of " + std::to_string(count) + " elements of " + dtype + ", and " + json_quoted(path) +
                     " has " + std::to_string(bytes.size()) + " bytes");
    return bytes;
  }

  const Zip& zip_;
  std::string_view folder_;
  const Pickle& pickle_;
  const std::string& what_;
  std::vector<StoredTensor>& out_;
  std::size_t visits_ = 0;
};

// Files of PyTorch before 1.6 are pickles one behind the other, without a zip around them.
void refuse_old_format(std::span<const std::byte> bytes, const std::string& what) {
  if (bytes.size() >= 2 && bytes[0] == std::byte{0x80} && bytes[1] <= std::byte{5})
    throw FileError(what +
                    ": it is in PyTorch's old format, without a zip around it; with PyTorch at hand: "
                    "torch.save(torch.load(old, weights_only=True), new)");
}

// The pickle's entry: "<any folder>/data.pkl".
const ZipEntry& pickle_entry(const Zip& zip, const std::string& what) {
  const ZipEntry* found = nullptr;
  for (const ZipEntry& entry : zip.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash == entry.name.npos || entry.name.substr(slash + 1) != "data.pkl") continue;
    if (found != nullptr) throw FileError(what + ": it holds two pickles");
    found = &entry;
  }
  if (found == nullptr)
    throw FileError(what + ": it is a zip archive without a data.pkl, expected a file of torch.save");
  return *found;
}

}  // namespace

Pth::Pth(std::unique_ptr<const Zip> zip, const std::string& what) : zip_(std::move(zip)) {
  const ZipEntry& entry = pickle_entry(*zip_, what);
  const std::string_view folder = entry.name.substr(0, entry.name.find('/') + 1);
  if (const ZipEntry* order = zip_->find(std::string(folder) + "byteorder"); order != nullptr)
    if (const auto said = zip_->read(*order, 64); as_text(said) != "little")
      throw FileError(what + ": its byte order is " + json_quoted(as_text(said)) + ", expected little");
  const PickleLimits limits;
  const std::vector<std::byte> bytes = zip_->read(entry, limits.bytes);
  const Pickle pickle(bytes, kKnown, what + ": data.pkl", limits);
  StateDict(*zip_, folder, pickle, what, tensors_).read();
  for (std::size_t n = 0; n < tensors_.size(); ++n)
    if (!places_.emplace(tensors_[n].name, n).second)
      throw FileError(what + ": the name " + json_quoted(tensors_[n].name) + " stands twice");
}

Pth::Pth(const std::filesystem::path& path)
    : Pth(
          [&] {
            refuse_old_format(MappedFile(path).bytes(), path.string());
            return std::make_unique<const Zip>(path);
          }(),
          path.string()) {}

Pth parse_pth(std::span<const std::byte> bytes, const std::string& what) {
  refuse_old_format(bytes, what);
  return Pth(std::make_unique<const Zip>(parse_zip(bytes, what)), what);
}

const StoredTensor* Pth::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &tensors_[place->second];
}

}  // namespace attend::io
