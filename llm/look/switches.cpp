// Switches as text: NAME=VALUE@PLACE, read and written.
#include <algorithm>
#include <charconv>
#include <optional>

#include "attend/error.hpp"
#include "attend/llm/look.hpp"
#include "io/closest.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"

namespace attend::llm {
namespace {

constexpr const char* kExpected[] = {
    "scale=off",
    "temperature=T with T from 1e-6 to 1e6",
    "mask=full, mask=causal, mask=window:W or mask=sinks:S+W",
    "padding=FROM-TO: keys FROM to TO - 1 are hidden",
    "knock=zero@LAYER.HEAD or knock=mean@LAYER.HEAD",
    "only=layer@LAYER.HEAD or only=model@LAYER.HEAD, with :mean behind for the mean instead of zero",
    "positions=off",
    "shuffle=SEED",
};
constexpr std::string_view kNames[] = {"scale", "temperature", "mask",      "padding",
                                       "knock", "only",        "positions", "shuffle"};

class SwitchReader {
 public:
  explicit SwitchReader(std::string_view text) : text_(text) {}

  Switch read() {
    std::string_view rest = text_;
    if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
      read_place(rest.substr(at + 1));
      rest = rest.substr(0, at);
    }
    const std::size_t equals = rest.find('=');
    const std::string name(rest.substr(0, equals));
    std::size_t kind = 0;
    while (kind < std::size(kNames) && kNames[kind] != name) ++kind;
    if (kind == std::size(kNames)) {
      const std::vector<std::string> known(std::begin(kNames), std::end(kNames));
      throw InvalidArgument("a switch is '" + io::printable(name, 40) + "', expected one of " +
                            io::joined(known, ", ") + io::did_you_mean(name, known));
    }
    one_.kind = static_cast<Switch::Kind>(kind);
    read_value(equals == std::string_view::npos ? "" : rest.substr(equals + 1));
    return one_;
  }

 private:
  [[noreturn]] void refuse() const {
    throw InvalidArgument("the switch '" + io::printable(std::string(text_), 80) + "' is not understood, expected " +
                          kExpected[static_cast<std::size_t>(one_.kind)]);
  }
  template <class T>
  std::optional<T> number(std::string_view text) const {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return {};
    return value;
  }
  std::int64_t count(std::string_view text, std::int64_t least) const {
    const auto value = number<std::int64_t>(text);
    if (!value || *value < least) refuse();
    return *value;
  }
  // Two numbers around a sign.
  std::pair<std::int64_t, std::int64_t> pair(std::string_view text, char between, std::int64_t least) const {
    const std::size_t at = text.find(between);
    if (at == std::string_view::npos) refuse();
    return {count(text.substr(0, at), 0), count(text.substr(at + 1), least)};
  }

  void read_place(std::string_view text) {
    const auto whole = [&](std::string_view part) {
      const auto value = number<std::int64_t>(part);
      if (!value || *value < 0)
        throw InvalidArgument("the place '" + io::printable(std::string(text), 40) + "' of the switch '" +
                              io::printable(std::string(text_), 80) +
                              "' is not understood, expected LAYER or LAYER.HEAD, from 0, such as 3.5");
      return *value;
    };
    const std::size_t dot = text.find('.');
    one_.where.layer = whole(text.substr(0, dot));
    if (dot != std::string_view::npos) one_.where.head = whole(text.substr(dot + 1));
  }

  void read_value(std::string_view value) {
    using Kind = Switch::Kind;
    switch (one_.kind) {
      case Kind::scale:
      case Kind::positions:
        if (value != "off") refuse();
        break;
      case Kind::heat: {
        const auto t = number<double>(value);
        if (!t || !(*t >= 1e-6 && *t <= 1e6)) refuse();
        one_.temperature = *t;
        break;
      }
      case Kind::mask:
        read_mask(value);
        break;
      case Kind::padding:
        std::tie(one_.hidden_from, one_.hidden_to) = pair(value, '-', 0);
        if (one_.hidden_to <= one_.hidden_from) refuse();
        break;
      case Kind::knock_out:
        if (value != "zero" && value != "mean") refuse();
        one_.mean = value == "mean";
        break;
      case Kind::only:
        if (value.ends_with(":mean")) {
          one_.mean = true;
          value.remove_suffix(5);
        }
        if ((value != "layer" && value != "model") || one_.where.head < 0) refuse();
        one_.whole_model = value == "model";
        break;
      case Kind::shuffle: {
        const auto seed = number<std::uint64_t>(value);
        if (!seed || one_.where != HeadPlace{}) refuse();
        one_.seed = *seed;
        break;
      }
    }
  }

  void read_mask(std::string_view value) {
    if (value == "full") {
      one_.mask = Switch::Mask::full;
    } else if (value == "causal") {
      one_.mask = Switch::Mask::causal;
    } else if (value.starts_with("window:")) {
      one_.mask = Switch::Mask::window;
      one_.window = count(value.substr(7), 1);
    } else if (value.starts_with("sinks:")) {
      one_.mask = Switch::Mask::sinks;
      std::tie(one_.sinks, one_.window) = pair(value.substr(6), '+', 1);
    } else {
      refuse();
    }
  }

  std::string_view text_;
  Switch one_;
};

std::string value_of(const Switch& one) {
  using Kind = Switch::Kind;
  switch (one.kind) {
    case Kind::scale:
    case Kind::positions:
      return "off";
    case Kind::heat: {
      std::string text(32, ' ');  // the shortest that reads back as the same number
      const auto end = std::to_chars(text.data(), text.data() + text.size(), one.temperature).ptr;
      text.resize(std::min(text.size(), static_cast<std::size_t>(end - text.data())));
      return text;
    }
    case Kind::mask:
      switch (one.mask) {
        case Switch::Mask::full:
          return "full";
        case Switch::Mask::causal:
          return "causal";
        case Switch::Mask::window:
          return "window:" + std::to_string(one.window);
        case Switch::Mask::sinks:
          return "sinks:" + std::to_string(one.sinks) + "+" + std::to_string(one.window);
      }
      return "";
    case Kind::padding:
      return std::to_string(one.hidden_from) + "-" + std::to_string(one.hidden_to);
    case Kind::knock_out:
      return one.mean ? "mean" : "zero";
    case Kind::only:
      return std::string(one.whole_model ? "model" : "layer") + (one.mean ? ":mean" : "");
    case Kind::shuffle:
      return std::to_string(one.seed);
  }
  return "";
}

}  // namespace

Switch parse_switch(std::string_view text) {
  return SwitchReader(text).read();
}

std::vector<Switch> parse_switches(std::string_view text) {
  std::vector<Switch> switches;
  constexpr std::string_view kBetween = ", \t\n";
  for (std::size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;
       at = text.find_first_not_of(kBetween, at)) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    switches.push_back(parse_switch(text.substr(at, end - at)));
    at = end;
  }
  return switches;
}

std::string to_text(const Switch& one) {
  std::string text(kNames[static_cast<std::size_t>(one.kind)]);
  text.append("=").append(value_of(one));
  if (one.where.layer >= 0) text.append("@").append(std::to_string(one.where.layer));
  if (one.where.head >= 0) text.append(".").append(std::to_string(one.where.head));
  return text;
}

std::string to_text(std::span<const Switch> switches) {
  std::string text;
  for (const Switch& one : switches) text.append(text.empty() ? "" : ",").append(to_text(one));
  return text;
}

}  // namespace attend::llm
