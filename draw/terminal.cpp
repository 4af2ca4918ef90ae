// Maps drawn with characters.
#include "draw/terminal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "base/utf8.hpp"
#include "draw/colours.hpp"
#include "draw/columns.hpp"

namespace attend::draw {
namespace {

constexpr int kMargin = 9;  // columns left of the map, for the labels of queries
constexpr const char* kReset = "\x1b[0m";

// `layer` is 38 for the character and 48 for what is behind it.
std::string escape(Colours colours, int layer, const Rgb& rgb) {
  if (colours == Colours::full) return fmt::format("\x1b[{};2;{};{};{}m", layer, rgb[0], rgb[1], rgb[2]);
  // The 6 x 6 x 6 cube of the xterm palette, whose steps are 0, 95, 135, ..., 255.
  const auto step = [](int x) { return x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40; };
  return fmt::format("\x1b[{};5;{}m", layer, 16 + 36 * step(rgb[0]) + 6 * step(rgb[1]) + step(rgb[2]));
}

// A line of half blocks: the upper half shows row `top`, the lower half row `top` + 1.
std::string coloured_line(const HeadMap& map, Colours colours, double brightest, std::int64_t top) {
  std::string line;
  const auto paint = [&](int layer, double share) {
    line += escape(colours, layer, viridis(brightness(share, brightest)));
  };
  for (std::int64_t col = 0; col < map.cells; ++col) {
    const double upper = map.share(top, col);
    const double lower = top + 1 < map.cells ? map.share(top + 1, col) : std::nan("");
    if (std::isnan(upper) && std::isnan(lower)) {
      line += ' ';
      continue;
    }
    const bool upper_only = std::isnan(lower);
    paint(38, std::isnan(upper) ? lower : upper);
    if (!upper_only && !std::isnan(upper)) paint(48, lower);
    line += std::isnan(upper) ? "▄" : "▀";
    line += kReset;
  }
  return line;
}

constexpr std::string_view kShades = ".:-=+*#%@";  // a space is what the mask hides

char shade(double bright) {
  return kShades[static_cast<std::size_t>(std::lround(bright * static_cast<double>(kShades.size() - 1)))];
}

std::string plain_line(const HeadMap& map, double brightest, std::int64_t top) {
  std::string line;
  for (std::int64_t col = 0; col < map.cells; ++col) {
    double sum = 0, rows = 0;
    for (std::int64_t row = top; row < std::min(top + 2, map.cells); ++row) {
      if (std::isnan(map.share(row, col))) continue;
      sum += map.share(row, col);
      ++rows;
    }
    line += rows == 0 ? ' ' : shade(brightness(sum / rows, brightest));
  }
  return line;
}

std::string legend(Colours colours, double brightest) {
  std::string bar;
  constexpr int kSteps = 24;
  for (int i = 0; i < (colours == Colours::none ? static_cast<int>(kShades.size()) : kSteps); ++i) {
    if (colours == Colours::none) {
      bar += kShades[static_cast<std::size_t>(i)];
    } else {
      bar += escape(colours, 38, viridis(i / (kSteps - 1.0))) + "█";
    }
  }
  if (colours != Colours::none) bar += kReset;
  return fmt::format("0 {} {:.2g}{} (square-root scale)", bar, brightest, brightest < 1 ? " or more" : "");
}

// The tokens at every quarter of a power of two: 0, 1024, 2048, 3072 of 4096.
std::int64_t tick_of(const HeadMap& map) {
  return std::max<std::int64_t>(map.cell * 8,
                                static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(map.length))) / 4);
}

constexpr int kLongestLabel = 14;

int label_columns(const std::vector<std::string>& words) {
  int most = 0;
  for (const std::string& word : words) most = std::max(most, columns_of(word));
  return std::min(most, kLongestLabel);
}

// The words read from top to bottom, side by side, each ending at the last line.
std::vector<std::string> downward(const std::vector<std::string>& words, int wide) {
  std::vector<std::vector<std::string>> letters;  // of each word, padded to the width of a cell
  std::size_t most = 0;
  for (const std::string& word : words) {
    std::vector<std::string>& all = letters.emplace_back();
    const std::string text = cut_to(word, kLongestLabel);
    for (std::size_t place = 0; place < text.size();) {
      const CodePoint c = code_point(text, place);
      const int columns = columns_of(c.value);
      // A wide letter has no room in a narrow cell; a mark alone is left out.
      if (columns > wide) all.push_back("?");
      if (columns > 0 && columns <= wide)
        all.push_back(text.substr(place, c.bytes) + std::string(static_cast<std::size_t>(wide - columns), ' '));
      place += c.bytes;
    }
    most = std::max(most, all.size());
  }
  std::vector<std::string> lines(most);
  for (std::size_t n = 0; n < most; ++n) {
    for (const std::vector<std::string>& word : letters) {
      const std::size_t above = most - word.size();
      lines[n] += n < above ? std::string(static_cast<std::size_t>(wide), ' ') : word[n - above];
    }
    while (lines[n].ends_with(' ')) lines[n].pop_back();
  }
  return lines;
}

}  // namespace

std::string emphasised(const Screen& screen, const std::string& text) {
  return screen.colours == Colours::none ? text : "\x1b[1m" + text + kReset;
}

std::int64_t cells_that_fit(const Screen& screen) {
  return std::clamp<std::int64_t>(screen.columns - kMargin - 2, 8, 64);
}

std::string heat_map(const HeadMap& map, const Screen& screen) {
  const double brightest = map.brightest();
  const std::int64_t tick = tick_of(map);
  std::string keys(static_cast<std::size_t>(kMargin), ' ');
  for (std::int64_t token = 0; token < map.length; token += tick) {
    keys.resize(std::max(keys.size() + (token > 0), static_cast<std::size_t>(kMargin + token / map.cell)), ' ');
    keys += fmt::format("{}", token);
  }
  std::string out = fmt::format("{:{}}keys\n{}\n", "", kMargin, keys);
  for (std::int64_t top = 0; top < map.cells; top += 2) {
    // A label stands on the line that holds its token.
    const std::int64_t first = top * map.cell, token = (first + tick - 1) / tick * tick;
    const std::string label = token < first + 2 * map.cell && token < map.length ? fmt::format("{}", token) : "";
    out += fmt::format("{:>{}} ", label, kMargin - 1);
    out += screen.colours == Colours::none ? plain_line(map, brightest, top)
                                           : coloured_line(map, screen.colours, brightest, top);
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out + fmt::format("\n{:{}}{}\n", "", kMargin, legend(screen.colours, brightest));
}

bool words_fit(const std::vector<std::string>& words, const Screen& screen) {
  return label_columns(words) + 1 + static_cast<int>(words.size()) < screen.columns;
}

std::string word_map(const HeadMap& map, const std::vector<std::string>& words, const Screen& screen) {
  const double brightest = map.brightest();
  const int margin = label_columns(words), count = static_cast<int>(words.size());
  const int wide = margin + 1 + 2 * count < screen.columns ? 2 : 1;  // columns of a cell: two are about a square
  std::string out = fmt::format("{:{}} keys\n", "", margin);
  for (const std::string& line : downward(words, wide)) out += fmt::format("{:{}} {}\n", "", margin, line);
  for (std::int64_t row = 0; row < map.cells; ++row) {
    const std::string label = cut_to(words[static_cast<std::size_t>(row)], margin);
    out += std::string(static_cast<std::size_t>(margin - columns_of(label)), ' ') + label + ' ';
    for (std::int64_t col = 0; col <= row; ++col) {
      const double bright = brightness(map.share(row, col), brightest);
      const bool plain = screen.colours == Colours::none;
      if (!plain) out += escape(screen.colours, 48, viridis(bright));
      out += std::string(static_cast<std::size_t>(wide), plain ? shade(bright) : ' ');
      if (!plain) out += kReset;
    }
    out += '\n';
  }
  return out + fmt::format("\n{:{}} {}\n", "", margin, legend(screen.colours, brightest));
}

}  // namespace attend::draw
