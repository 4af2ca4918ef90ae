// Checks of arguments that several sub-commands use.
#include "command.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <system_error>

namespace attend::cli {
namespace {

// All of the text is the number, as people write it: CLI11 itself takes "" for 0, "010" for 8 and clips what is too
// large.
template <class Number>
bool is_whole(const std::string& text, Number least, Number most) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && std::to_string(value) == text && value >= least && value <= most;
}

template <class Number>
CLI::Validator whole(Number least, Number most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        if (is_whole(text, least, most)) return {};
        return fmt::format("got '{}', expected a whole number from {} to {}", text, least, most);
      },
      "");
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return whole(least, most);
}

CLI::Validator seed_number() {
  return whole(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max());
}

CLI::Validator real_number(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
        if (number && value >= least && value <= most) return {};
        return fmt::format("got '{}', expected a number from {} to {}", text, least, most);
      },
      "");
}

}  // namespace attend::cli
