// The terminal that standard output goes to.
#include "screen.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "io/environment.hpp"
#include "io/file_error.hpp"

namespace attend::cli {

draw::Screen look_at_screen(bool allowed) {
  draw::Screen screen;
  if (::isatty(STDOUT_FILENO) == 0) return screen;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) screen.columns = size.ws_col;
  const std::string_view term = io::environment("TERM"), depth = io::environment("COLORTERM");
  if (!allowed || !io::environment("NO_COLOR").empty() || term.empty() || term == "dumb") return screen;
  screen.colours = depth == "truecolor" || depth == "24bit" ? draw::Colours::full : draw::Colours::palette;
  return screen;
}

std::string for_screen(std::string_view text) {
  return ::isatty(STDOUT_FILENO) != 0 ? io::printable_text(text) : std::string(text);
}

void tell(std::string_view line) {
  (void)std::fputs((io::printable_text(line) + "\n").c_str(), stderr);
}

}  // namespace attend::cli
