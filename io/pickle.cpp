// A stack machine for the harmless part of Python's pickles.
#include "io/pickle.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "base/keyed_hash.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {
namespace {

constexpr std::string_view kOrderedDict = "collections.OrderedDict";

// Opcodes that this machine does not know, and that a reader of messages may want to have named.
struct Refused {
  std::uint8_t code;
  const char* name;
};
constexpr std::array<Refused, 21> kRefused = {{{'o', "OBJ, which makes an object"},
                                               {0x81, "NEWOBJ, which makes an object"},
                                               {0x92, "NEWOBJ_EX, which makes an object"},
                                               {0x82, "EXT1, which names a class by a number"},
                                               {0x83, "EXT2, which names a class by a number"},
                                               {0x84, "EXT4, which names a class by a number"},
                                               {'P', "PERSID of protocol 0"},
                                               {'I', "INT of protocol 0"},
                                               {'L', "LONG of protocol 0"},
                                               {'F', "FLOAT of protocol 0"},
                                               {'S', "STRING of protocol 0"},
                                               {'V', "UNICODE of protocol 0"},
                                               {'g', "GET of protocol 0"},
                                               {'p', "PUT of protocol 0"},
                                               {0x8b, "LONG4"},
                                               {0x8f, "EMPTY_SET"},
                                               {0x90, "ADDITEMS"},
                                               {0x91, "FROZENSET"},
                                               {0x96, "BYTEARRAY8"},
                                               {0x97, "NEXT_BUFFER"},
                                               {0x98, "READONLY_BUFFER"}}};

}  // namespace

const char* kind_name(PickleKind kind) {
  static constexpr const char* kNames[] = {"None",   "a boolean", "a whole number", "a number",
                                           "text",   "a number",  "a class",        "a tuple",
                                           "a list", "a dict",    "a call",         "a reference"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::span<const PickleValue> Pickle::items(const PickleValue& value) const {
  if (value.kind < PickleKind::tuple) return {};
  return items_[static_cast<std::size_t>(value.integer)];
}

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> bytes, std::span<const std::string_view> known, const std::string& what,
            Pickle& out)
      : left_(bytes), known_(known), what_(what), out_(out) {}

  void run(std::size_t most_steps) {
    for (std::size_t step = 0; step < most_steps; ++step) {
      if (const auto code = take_number<1>(); code == '.')
        return stop();
      else if (!push_constant(code) && !collect(code) && !remember(code) && !call(code))
        refuse_opcode(static_cast<std::uint8_t>(code));
    }
    fail("it has more than " + std::to_string(most_steps) + " steps");
  }

 private:
  using Values = std::vector<PickleValue>;

  [[noreturn]] void fail(const std::string& text) const { throw FileError(what_ + ": " + text); }
  [[noreturn]] void refuse_opcode(std::uint8_t code) const {
    const auto known = std::find_if(kRefused.begin(), kRefused.end(), [&](const Refused& r) { return r.code == code; });
    fail("it has the opcode " + (known == kRefused.end() ? std::to_string(code) : known->name) +
         ", which no state dict needs: refused");
  }

  // The bytes.
  std::span<const std::byte> take(std::uint64_t size) {
    if (size > left_.size())
      fail("it ends inside an opcode: " + std::to_string(size) + " bytes are wanted and " +
           std::to_string(left_.size()) + " are left");
    const std::span<const std::byte> taken = left_.first(static_cast<std::size_t>(size));
    left_ = left_.subspan(static_cast<std::size_t>(size));
    return taken;
  }
  template <int kBytes>
  std::uint64_t take_number() {
    std::uint64_t x = 0;
    const std::span<const std::byte> bytes = take(kBytes);
    for (std::size_t n = kBytes; n-- > 0;) x = x << 8 | std::to_integer<std::uint64_t>(bytes[n]);
    return x;
  }
  std::string_view take_line() {
    const std::string_view rest = as_text(left_.first(std::min<std::size_t>(left_.size(), 1024)));
    const std::size_t length = rest.find('\n');
    if (length == rest.npos) fail("it has a name without an end");
    return as_text(take(length + 1)).substr(0, length);
  }

  // The stack. A mark hides what is below it.
  void push(PickleKind kind, std::int64_t integer = 0, std::string_view text = {}) {
    stack_.push_back({kind, integer, text});
  }
  PickleValue pop() {
    if (stack_.size() <= floor()) fail("it takes a value from an empty stack");
    const PickleValue value = stack_.back();
    stack_.pop_back();
    return value;
  }
  const PickleValue& top() {
    if (stack_.size() <= floor()) fail("it takes a value from an empty stack");
    return stack_.back();
  }
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Values pop_to_mark() {
    if (marks_.empty()) fail("it looks for a mark, and there is none");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Values values(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }
  Values pop_values(std::size_t count) {
    Values values(count);
    while (count-- > 0) values[count] = pop();
    return values;
  }
  void push_items(PickleKind kind, Values values) {
    out_.items_.push_back(std::move(values));
    push(kind, static_cast<std::int64_t>(out_.items_.size() - 1));
  }

  bool push_constant(std::uint64_t code) {
    switch (code) {
      case 'N':
        push(PickleKind::none);
        break;
      case 0x88:
      case 0x89:
        push(PickleKind::boolean, code == 0x88);
        break;
      case 'J':
        push(PickleKind::integer, static_cast<std::int32_t>(take_number<4>()));
        break;
      case 'K':
        push(PickleKind::integer, static_cast<std::int64_t>(take_number<1>()));
        break;
      case 'M':
        push(PickleKind::integer, static_cast<std::int64_t>(take_number<2>()));
        break;
      case 0x8a:
        push_long(take(take_number<1>()));
        break;
      case 'G':  // the only number with its highest byte first
        push(PickleKind::real, static_cast<std::int64_t>(__builtin_bswap64(take_number<8>())));
        break;
      case 'X':
      case 'T':
      case 'B':
        push(PickleKind::text, 0, as_text(take(take_number<4>())));
        break;
      case 0x8c:
      case 'U':
      case 'C':
        push(PickleKind::text, 0, as_text(take(take_number<1>())));
        break;
      case 0x8d:
      case 0x8e:
        push(PickleKind::text, 0, as_text(take(take_number<8>())));
        break;
      default:
        return false;
    }
    return true;
  }

  // Two's complement, as many bytes as it takes.
  void push_long(std::span<const std::byte> bytes) {
    if (bytes.size() > 8) return push(PickleKind::other);
    std::uint64_t x = 0;
    for (std::size_t n = bytes.size(); n-- > 0;) x = x << 8 | std::to_integer<std::uint64_t>(bytes[n]);
    if (!bytes.empty() && bytes.size() < 8 && (std::to_integer<int>(bytes.back()) & 0x80) != 0)
      x |= ~std::uint64_t{0} << (8 * bytes.size());
    push(PickleKind::integer, static_cast<std::int64_t>(x));
  }

  bool collect(std::uint64_t code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        break;
      case ')':
        push_items(PickleKind::tuple, {});
        break;
      case ']':
        push_items(PickleKind::list, {});
        break;
      case '}':
        push_items(PickleKind::dict, {});
        break;
      case 't':
        push_items(PickleKind::tuple, pop_to_mark());
        break;
      case 'l':
        push_items(PickleKind::list, pop_to_mark());
        break;
      case 'd':
        push_items(PickleKind::dict, pairs(pop_to_mark()));
        break;
      case 0x85:
      case 0x86:
      case 0x87:
        push_items(PickleKind::tuple, pop_values(code - 0x84));
        break;
      case 'a':
        extend(PickleKind::list, pop_values(1));
        break;
      case 'e':
        extend(PickleKind::list, pop_to_mark());
        break;
      case 's':
        extend(PickleKind::dict, pop_values(2));
        break;
      case 'u':
        extend(PickleKind::dict, pairs(pop_to_mark()));
        break;
      default:
        return false;
    }
    return true;
  }
  Values pairs(Values values) const {
    if (values.size() % 2 != 0) fail("it has a key without a value");
    return values;
  }
  void extend(PickleKind kind, const Values& more) {
    const PickleValue target = top();
    if (target.kind != kind)
      fail(std::string("it adds to ") + kind_name(target.kind) + ", expected " + kind_name(kind));
    Values& items = out_.items_[static_cast<std::size_t>(target.integer)];
    items.insert(items.end(), more.begin(), more.end());
  }

  bool remember(std::uint64_t code) {
    switch (code) {
      case 0x80:
        if (const auto protocol = take_number<1>(); protocol < 2 || protocol > 5)
          fail("it has the protocol " + std::to_string(protocol) + ", expected 2 to 5");
        break;
      case 0x95:  // a frame: only its length, which says nothing that the opcodes do not say
        if (take_number<8>() > left_.size()) fail("it has a frame that ends behind it");
        break;
      case '0':
        pop();
        break;
      case '1':
        pop_to_mark();
        break;
      case '2':
        stack_.push_back(PickleValue(top()));
        break;
      case 'q':
        memo_[take_number<1>()] = top();
        break;
      case 'r':
        memo_[take_number<4>()] = top();
        break;
      case 0x94:
        memo_[memo_.size()] = top();
        break;
      case 'h':
        recall(take_number<1>());
        break;
      case 'j':
        recall(take_number<4>());
        break;
      default:
        return false;
    }
    return true;
  }
  void recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail("it asks for value " + std::to_string(place) + ", which it did not keep");
    stack_.push_back(found->second);
  }

  bool call(std::uint64_t code) {
    switch (code) {
      case 'c': {
        const std::string_view module = take_line();
        push_global(module, take_line());
        break;
      }
      case 'i': {  // names a class and makes an object of it at once: refused whatever it is, by its name if it has one
        const std::string_view module = take_line();
        refuse_global(module, take_line());
      }
      case 0x93: {
        const PickleValue name = pop(), module = pop();
        if (name.kind != PickleKind::text || module.kind != PickleKind::text) fail("it names a class by no text");
        push_global(module.text, name.text);
        break;
      }
      case 'R':
        reduce();
        break;
      case 'b':
        build();
        break;
      case 'Q':
        push_items(PickleKind::persistent, pop_values(1));
        break;
      default:
        return false;
    }
    return true;
  }
  [[noreturn]] void refuse_global(std::string_view module, std::string_view name) const {
    fail("it asks Python to call " +
         json_quoted(std::string(module.substr(0, 200)).append(".").append(name.substr(0, 200))) +
         ": refused, since only tensors, numbers and text are read (save the state dict alone, or as safetensors)");
  }
  void push_global(std::string_view module, std::string_view name) {
    for (const std::string_view known : known_)
      if (known.size() == module.size() + 1 + name.size() && known.starts_with(module) && known.ends_with(name) &&
          known[module.size()] == '.')
        return push(PickleKind::global, 0, known);
    refuse_global(module, name);
  }
  void reduce() {
    const PickleValue arguments = pop(), function = pop();
    if (function.kind != PickleKind::global || arguments.kind != PickleKind::tuple)
      fail(std::string("it calls ") + kind_name(function.kind) + " with " + kind_name(arguments.kind) +
           ", expected a class and a tuple");
    if (function.text != kOrderedDict) return push_items(PickleKind::call, {function, arguments});
    if (!out_.items(arguments).empty()) fail("it makes an OrderedDict from values, expected an empty one");
    push_items(PickleKind::dict, {});
  }
  // A state dict carries versions of its modules as an attribute, which says nothing about tensors.
  void build() {
    pop();
    if (top().kind != PickleKind::dict)
      fail(std::string("it sets attributes of ") + kind_name(top().kind) + ", expected an OrderedDict");
  }

  void stop() {
    out_.root_ = pop();
    if (!stack_.empty() || !marks_.empty()) fail("it ends with more than one value");
    if (!left_.empty()) fail("it has " + std::to_string(left_.size()) + " bytes behind its end");
  }

  std::span<const std::byte> left_;
  std::span<const std::string_view> known_;
  const std::string& what_;
  Pickle& out_;
  Values stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, PickleValue, KeyedHash> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> known, const std::string& what,
               const PickleLimits& limits) {
  if (bytes.size() > limits.bytes)
    throw FileError(what + ": it has " + std::to_string(bytes.size()) + " bytes, expected at most " +
                    std::to_string(limits.bytes));
  Unpickler(bytes, known, what, *this).run(limits.steps);
}

}  // namespace attend::io
