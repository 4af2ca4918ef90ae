// Checks of arguments that several sub-commands use.
#include "command.hpp"

#include <fmt/format.h>

#include <charconv>

namespace attend::cli {

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        if (whole && value >= least && value <= most) return {};
        return fmt::format("got '{}', expected a whole number from {} to {}", text, least, most);
      },
      "");
}

}  // namespace attend::cli
