// Maps drawn with characters: words or numbers on the axes, sheets of heads, lines between tokens.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/utf8.hpp"
#include "draw/characters.hpp"
#include "draw/columns.hpp"
#include "draw/labels.hpp"

namespace attend::draw {
namespace {

constexpr int kBeside = 9;  // columns left of a map, for the numbers of queries
constexpr std::size_t kLongestLabel = 14;
constexpr int kNumberColumns = 6;  // of a cell that shows its number

// The tokens at every quarter of a power of two: 0, 1024, 2048, 3072 of 4096.
std::int64_t tick_of(const TokenAxis& axis, std::int64_t cells) {
  const std::int64_t tokens = axis.tokens > 0 ? axis.tokens : cells * axis.per_cell;
  return std::max<std::int64_t>(axis.per_cell * 8,
                                static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens))) / 4);
}

std::string numbers_across(const TokenAxis& axis, std::int64_t cells, int margin) {
  const std::int64_t tick = tick_of(axis, cells), end = axis.first + cells * axis.per_cell;
  std::string line(static_cast<std::size_t>(margin), ' ');
  bool first = true;
  for (std::int64_t token = first_multiple(axis.first, tick); token < end; token += tick, first = false) {
    const auto column = static_cast<std::size_t>(margin + (token - axis.first) / axis.per_cell);
    line.resize(std::max(line.size() + (first ? 0 : 1), column), ' ');
    line += std::to_string(token);
  }
  return line;
}

// A label stands on the line that holds its token.
std::string number_down(const TokenAxis& axis, std::int64_t cells, std::int64_t row, std::int64_t rows) {
  const std::int64_t tick = tick_of(axis, cells), from = axis.first + row * axis.per_cell;
  const std::int64_t token = first_multiple(from, tick);
  const bool here = token < from + rows * axis.per_cell && row + (token - from) / axis.per_cell < cells;
  return here ? std::to_string(token) : "";
}

// Two rows of cells a line.
std::string half_block_map(const HeatMap& map, const Screen& screen) {
  const ColourScale scale = decided(map.colours, {&map.values});
  const Grid& g = map.values;
  std::string out = fmt::format("{:{}}{}\n{}\n", "", kBeside, translated(map.across.name, screen.language),
                                numbers_across(map.across, g.cols, kBeside));
  for (std::int64_t top = 0; top < g.rows; top += 2) {
    out += fmt::format("{:>{}} ", number_down(map.down, g.rows, top, 2), kBeside - 1) + two_rows(g, scale, screen, top);
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out + fmt::format("\n{:{}}{}\n", "", kBeside, terminal_legend({&g}, scale, screen));
}

// The words read from top to bottom, side by side, each ending at the last line.
std::vector<std::string> downward(const std::vector<std::string>& words, int wide) {
  std::vector<std::vector<std::string>> letters;  // of each word, padded to the width of a cell
  std::size_t most = 0;
  for (const std::string& text : words) {
    std::vector<std::string>& all = letters.emplace_back();
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

// A row a line, words on both axes.
std::string word_map(const HeatMap& map, const Screen& screen) {
  const ColourScale scale = decided(map.colours, {&map.values});
  const std::vector<std::string> across = screen_labels(map.across.labels, kLongestLabel, screen),
                                 down = screen_labels(map.down.labels, kLongestLabel, screen);
  const int margin = widest(down), count = static_cast<int>(across.size());
  const int wide = margin + 1 + 2 * count < screen.columns ? 2 : 1;  // columns of a cell: two are about a square
  std::string out = fmt::format("{:{}} {}\n", "", margin, translated(map.across.name, screen.language));
  for (const std::string& line : downward(across, wide)) out += fmt::format("{:{}} {}\n", "", margin, line);
  for (std::int64_t row = 0; row < map.values.rows; ++row) {
    out += right_aligned(down[static_cast<std::size_t>(row)], margin) + ' ';
    for (std::int64_t col = 0; col < map.values.cols; ++col)
      out += cell_text(map.values.at(row, col), scale, screen, wide);
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out + fmt::format("\n{:{}} {}\n", "", margin, terminal_legend({&map.values}, scale, screen));
}

// How the numbers of some grids are written: all in one way, chosen by the largest.
struct NumberFormat {
  double largest = 0;
  int columns = kNumberColumns;  // of a cell, with a space behind

  explicit NumberFormat(const std::vector<const Grid*>& grids) {
    for (const Grid* grid : grids)
      for (const double value : grid->values)
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    for (const Grid* grid : grids)
      for (const double value : grid->values) columns = std::max(columns, columns_of(text(value)) + 1);
  }
  std::string text(double value) const {
    if (std::isnan(value)) return "";
    if (value == kEvicted) return "x";
    if (!std::isfinite(value) || largest >= 1e5 || (largest < 0.01 && largest > 0)) return fmt::format("{:.1e}", value);
    return fmt::format("{:.{}f}", value, largest < 100 ? 2 : largest < 1000 ? 1 : 0);
  }
};

std::string number_cell(double value, const NumberFormat& format, const ColourScale& scale, const Screen& screen) {
  std::string shown = right_aligned(format.text(value), format.columns - 1) + ' ';
  if (plain(screen) || !std::isfinite(value)) return shown;
  const Rgb behind = cell_colour(value, scale, ink_of(Theme::dark));
  return escape(screen.colours, 48, behind) + escape(screen.colours, 38, readable_on(behind)) + shown + kReset;
}

std::vector<std::string> number_labels(const TokenAxis& axis, std::int64_t cells, std::size_t most,
                                       const Screen& screen) {
  if (!axis.labels.empty()) return screen_labels(axis.labels, most, screen);
  std::vector<std::string> labels;
  for (std::int64_t n = 0; n < cells; ++n) labels.push_back(std::to_string(axis.first + n * axis.per_cell));
  return labels;
}

// A small matrix with its numbers.
std::string number_map(const HeatMap& map, const Screen& screen, const std::vector<std::string>& across,
                       NumberFormat format) {
  const ColourScale scale = decided(map.colours, {&map.values});
  const std::vector<std::string> down = number_labels(map.down, map.values.rows, kLongestLabel, screen);
  const int margin = widest(down);
  format.columns = std::max(format.columns, widest(across) + 1);
  std::string out =
      fmt::format("{:{}} {}\n{:{}} ", "", margin, translated(map.across.name, screen.language), "", margin);
  for (const std::string& label : across) out += right_aligned(label, format.columns - 1) + ' ';
  out.back() = '\n';
  for (std::int64_t row = 0; row < map.values.rows; ++row) {
    out += right_aligned(down[static_cast<std::size_t>(row)], margin) + ' ';
    for (std::int64_t col = 0; col < map.values.cols; ++col)
      out += number_cell(map.values.at(row, col), format, scale, screen);
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  return out + fmt::format("\n{:{}} {}\n", "", margin, terminal_legend({&map.values}, scale, screen));
}

// Empty where a table of numbers does not fit.
std::string number_map(const HeatMap& map, const Screen& screen) {
  constexpr std::int64_t kMost = 16;  // rows and columns that are read as numbers
  const Grid& g = map.values;
  if (!map.numbers || g.rows > kMost || g.cols > kMost) return "";
  const NumberFormat format({&g});
  for (const std::size_t label : {std::size_t{10}, std::size_t{kNumberColumns - 1}}) {
    const std::vector<std::string> across = number_labels(map.across, g.cols, label, screen);
    const int cell = std::max(format.columns, widest(across) + 1);
    if (static_cast<int>(kLongestLabel) + 1 + cell * static_cast<int>(g.cols) < screen.columns)
      return number_map(map, screen, across, format);
  }
  return "";
}

}  // namespace

std::int64_t cells_that_fit(const Screen& screen) {
  return std::clamp<std::int64_t>(screen.columns - kBeside - 2, 8, 64);
}

bool words_fit(const std::vector<std::string>& words, const Screen& screen) {
  return widest(screen_labels(words, kLongestLabel, screen)) + 1 + static_cast<int>(words.size()) < screen.columns;
}

std::string in_characters(const HeatMap& map, const Screen& screen) {
  const bool words = !map.across.labels.empty() && !map.down.labels.empty();
  if (std::string numbers = number_map(map, screen); !numbers.empty()) return numbers;
  if (words && map.values.cols < screen.columns) {
    const int beside = widest(screen_labels(map.down.labels, kLongestLabel, screen));
    if (beside + 1 + static_cast<int>(map.values.cols) < screen.columns) return word_map(map, screen);
  }
  const std::int64_t most = cells_that_fit(screen);
  if (std::max(map.values.rows, map.values.cols) <= most) return half_block_map(map, screen);
  HeatMap shown = pooled(map, most, Pooling::peak);
  const std::int64_t n = shown.across.per_cell / map.across.per_cell;
  const std::string note = screen.language == Language::chinese ? fmt::format("每格：{0} x {0} 中的最大值", n)
                                                                : fmt::format("each cell: the largest of {0} x {0}", n);
  return half_block_map(shown, screen) + fmt::format("{:{}}{}\n", "", kBeside, note);
}

namespace {

struct SheetLayout {
  int cell = 0, margin = 0;
  bool maps = false;
  std::int64_t heads_a_block = 0;
};

SheetLayout sheet_layout(const HeadSheet& sheet, const std::vector<std::string>& names, const NumberFormat& format,
                         const Screen& screen) {
  SheetLayout at;
  at.maps = std::any_of(sheet.cells.begin(), sheet.cells.end(), [](const auto& c) { return c.map.values.size() > 1; });
  at.margin = std::max(4, widest(names)) + 1;
  const int room = screen.columns - at.margin - 1;
  at.cell = format.columns - 1;
  for (const int size : {16, 12, 8, 6, 4})
    if (at.maps) {
      at.cell = size;
      if (static_cast<int>(sheet.heads) * (size + 1) <= room) break;
    }
  // Where not all heads fit: in blocks, below one another.
  at.heads_a_block = std::clamp<std::int64_t>(room / (at.cell + 1), 1, sheet.heads);
  return at;
}

// "|- KV 0 -|" over the heads that share it.
std::string bracket_line(const HeadSheet& sheet, const SheetLayout& at, std::int64_t from, std::int64_t to) {
  const std::int64_t group = sheet.heads / sheet.kv_heads;
  std::string line(static_cast<std::size_t>(at.margin), ' ');
  for (std::int64_t head = from; head < to;) {
    const std::int64_t end = std::min(to, (head / group + 1) * group);
    const int columns = static_cast<int>(end - head) * (at.cell + 1) - 1;
    const std::string name = fmt::format("KV {}", head / group);
    line += '|' + fmt::format("{:-^{}}", columns - 2 >= static_cast<int>(name.size()) ? name : "", columns - 2) + "| ";
    head = end;
  }
  return line + "\n";
}

std::string sheet_row(const HeadSheet& sheet, const SheetLayout& at, std::int64_t layer, std::int64_t from,
                      std::int64_t to, const std::string& name, const NumberFormat& format, const ColourScale& scale,
                      const Screen& screen) {
  const auto cell_of = [&](std::int64_t head) -> const HeadSheet::Cell& {
    return sheet.cells[static_cast<std::size_t>(layer * sheet.heads + head)];
  };
  std::string out;
  const auto line = [&](const std::string& label, const auto& text) {
    out += right_aligned(label, at.margin - 1) + ' ';
    for (std::int64_t head = from; head < to; ++head) out += text(cell_of(head)) + ' ';
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  };
  if (!at.maps) {
    out += right_aligned(name, at.margin - 1) + ' ';
    for (std::int64_t head = from; head < to; ++head) {
      const Grid& map = cell_of(head).map;
      out += map.empty() ? padded("", format.columns) : number_cell(map.values[0], format, scale, screen);
    }
    while (out.back() == ' ') out.pop_back();
    return out + "\n";
  }
  std::vector<HeatMap> small;
  for (std::int64_t head = from; head < to; ++head)
    small.push_back(cell_of(head).map.empty() ? HeatMap{.values = grid_of(1, 1, kMasked)}
                                              : pooled({.values = cell_of(head).map}, at.cell, Pooling::peak));
  std::int64_t tallest = 0;
  for (const HeatMap& map : small) tallest = std::max(tallest, map.values.rows);
  for (std::int64_t top = 0; top < tallest; top += 2) {
    out += right_aligned(top == 0 ? name : "", at.margin - 1) + ' ';
    for (const HeatMap& map : small) {
      const bool there = top < map.values.rows;
      out += (there ? two_rows(map.values, scale, screen, top) : "") +
             std::string(static_cast<std::size_t>(at.cell - (there ? map.values.cols : 0) + 1), ' ');
    }
    while (out.back() == ' ') out.pop_back();
    out += '\n';
  }
  if (std::any_of(sheet.cells.begin(), sheet.cells.end(), [](const auto& c) { return !c.badge.empty(); }))
    line("", [&](const auto& c) { return padded(printable(c.badge), at.cell); });
  return out;
}

}  // namespace

std::string in_characters(const HeadSheet& sheet, const Screen& screen) {
  const std::int64_t layers = std::ssize(sheet.cells) / sheet.heads;
  std::vector<const Grid*> maps;
  for (const HeadSheet::Cell& cell : sheet.cells) maps.push_back(&cell.map);
  const ColourScale scale = decided(sheet.colours, maps);
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    names.push_back(sheet.layer_names.empty()
                        ? std::to_string(layer)
                        : token_label(sheet.layer_names[static_cast<std::size_t>(layer)], 12, plain(screen)));
  const NumberFormat format(maps);
  const SheetLayout at = sheet_layout(sheet, names, format, screen);
  std::string out;
  for (std::int64_t from = 0; from < sheet.heads; from += at.heads_a_block) {
    const std::int64_t to = std::min(sheet.heads, from + at.heads_a_block);
    if (sheet.kv_heads > 0 && sheet.kv_heads < sheet.heads) out += bracket_line(sheet, at, from, to);
    out += right_aligned(words_of(screen.language).head, at.margin - 1) + ' ';
    for (std::int64_t head = from; head < to; ++head) {
      const std::string number = std::to_string(head);
      out += (at.maps ? padded(number, at.cell) : right_aligned(number, at.cell)) + ' ';
    }
    while (out.back() == ' ') out.pop_back();
    out += '\n';
    for (std::int64_t layer = 0; layer < layers; ++layer)
      out += sheet_row(sheet, at, layer, from, to, names[static_cast<std::size_t>(layer)], format, scale, screen);
    out += '\n';
  }
  return out + terminal_legend(maps, scale, screen) + "\n";
}

std::string in_characters(const TokenLines& lines, const Screen& screen) {
  constexpr std::size_t kMost = 4;  // keys named for a query
  const std::vector<std::string> queries = screen_labels(lines.queries, kLongestLabel, screen),
                                 keys = screen_labels(lines.keys, kLongestLabel, screen);
  const int margin = widest(queries);
  std::string out;
  for (std::size_t h = 0; h < lines.heads.size(); ++h) {
    const Grid& weights = lines.heads[h].weights;
    const Rgb colour = line_style(h + 1, ink_of(Theme::dark)).colour;
    if (!lines.heads[h].name.empty()) out += coloured(screen, colour, printable(lines.heads[h].name)) + "\n";
    for (std::int64_t i = 0; i < weights.rows; ++i) {
      if (lines.query >= 0 && lines.query != i) continue;
      std::vector<std::pair<double, std::int64_t>> best;
      for (std::int64_t j = 0; j < weights.cols; ++j)
        if (std::isfinite(weights.at(i, j)) && weights.at(i, j) >= lines.least) best.emplace_back(-weights.at(i, j), j);
      std::sort(best.begin(), best.end());
      if (best.size() > kMost) best.resize(kMost);
      std::string line = right_aligned(queries[static_cast<std::size_t>(i)], margin) + (plain(screen) ? " ->" : " →");
      for (const auto& [less, j] : best) {
        const std::string one = fmt::format("  {} {:.2f}", keys[static_cast<std::size_t>(j)], -less);
        if (columns_of(line) + columns_of(one) < screen.columns) line += one;
      }
      out += line + "\n";
    }
  }
  const Words& words = words_of(screen.language);
  return out + "\n" + fmt::format(fmt::runtime(words.less_than), short_number(lines.least)) + "\n";
}

}  // namespace attend::draw
