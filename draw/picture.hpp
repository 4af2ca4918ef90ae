// Pictures as plain data, and the same picture as SVG, PNG or PDF. draw/terminal.hpp draws them with characters.
//
//   HeatMap map{.captions = {"layer 3, head 5", {"SmolLM2 reading a question"}}, .values = grid_of(weights, T, T,
//   true)}; map.across.labels = map.down.labels = tokens;             // raw pieces: spaces and control characters are
//   made visible io::write_file_atomically(path, to_png(map, {.theme = Theme::dark}));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "draw/colours.hpp"
#include "draw/grid.hpp"

namespace attend::draw {

struct Captions {
  std::string title;
  std::vector<std::string> lines{};  // below the title, as they are; long ones wrap
  std::string warning{};             // below the picture, so that it is seen: "BUSY MACHINE: ..."
};

// One side of a grid.
struct TokenAxis {
  std::string name;                   // "keys"
  std::vector<std::string> labels{};  // a token a cell; none: numbers
  std::int64_t first = 0;             // the number of the first cell's first token
  std::int64_t per_cell = 1;          // tokens of a cell
  std::int64_t tokens = 0;            // in all: the last cell may hold fewer; 0: cells * per_cell
};

enum class Mark : std::uint8_t { cell, dot };  // dots: their area is the number

// Rows down, columns across: weights of one head by token or pooled, differences of two, any small matrix.
struct HeatMap {
  Captions captions{};
  Grid values{};
  TokenAxis across{"keys"}, down{"queries"};
  ColourScale colours{};
  Mark mark = Mark::cell;
  bool numbers = true;  // written into cells that are large enough
};

inline constexpr std::int64_t kLabelledCells = 128;  // up to so many every token has its label
inline constexpr std::int64_t kMostCells = 2048;     // along a side of a picture; pool what has more

// The same map sheared: x is how far back a key lies, query - key. Both axes need the same tokens a cell.
HeatMap by_distance(const HeatMap& map);

enum class Pooling : std::uint8_t {
  mass,  // a cell's share of attention: summed over keys, the mean over queries
  peak,  // its largest value, by size: averages hide needles
};
// The same map with at most so many cells along a side, each of them n x n of the others'. Labels go where n > 1.
HeatMap pooled(const HeatMap& map, std::int64_t most_cells, Pooling pooling);

// Queries on the left, keys on the right, a line for each weight: as BertViz draws them.
struct TokenLines {
  struct Head {
    std::string name;
    Grid weights;  // [queries, keys]
  };
  Captions captions{};
  std::vector<std::string> queries{}, keys{};
  std::vector<Head> heads{};  // a colour each; how dark a line is says the weight
  double least = 0.02;        // smaller weights have no line; the legend says so
  std::int64_t query = -1;    // only the lines of this one; -1: all
};

// Small multiples of all heads of a model, rows are layers. Query heads that share a KV head stand under one bracket.
struct HeadSheet {
  struct Cell {
    Grid map{};           // a small map, or one number (1 x 1); empty: not measured
    std::string badge{};  // "induction 0.62"
  };
  Captions captions{};
  std::int64_t heads = 0, kv_heads = 0;    // kv_heads 0: as many as heads
  std::vector<Cell> cells{};               // [layers, heads]
  std::vector<std::string> layer_names{};  // none: 0, 1, ...
  ColourScale colours{};
};

// An axis of numbers.
struct ValueAxis {
  std::string name{};
  double base = 0;                             // of a logarithmic axis: ticks at its powers; 0: linear
  std::function<std::string(double)> label{};  // of a tick; none: short decimal notation
};

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points{};  // x rising; on logarithmic axes above 0, others are left out
};

// Lines of one chart: loss against steps, time against length.
struct Panel {
  std::string title;
  std::vector<Series> series{};  // the same place in every panel has the same colour; empty ones are left out
  ValueAxis across{}, up{};
};

struct Chart {
  Captions captions{};
  std::vector<Panel> panels{};
};

// Bars across, a group for each label: probabilities of the next token before and after, contributions, ratios.
struct Bars {
  struct Kind {
    std::string name;
    std::vector<double> values{};                     // one for each label; NaN: none
    std::vector<std::pair<double, double>> spread{};  // low and high of each value, or empty
    std::string panel{};                              // kinds of another panel stand beside, with the same labels
  };
  Captions captions{};
  std::vector<std::string> labels{};
  std::vector<Kind> kinds{};
  ValueAxis across{};
  double origin = 0;                           // where bars begin; 1 for ratios on a logarithmic axis
  std::function<std::string(double)> label{};  // written behind a bar; none: as the axis writes it
};

using Picture = std::variant<HeatMap, TokenLines, HeadSheet, Chart, Bars>;

enum class Theme : std::uint8_t { light, dark, readers };  // readers: an SVG of both, and the viewer's setting decides
enum class Language : std::uint8_t { english, chinese };   // of the legend's own words

struct Style {
  Theme theme = Theme::light;
  Language language = Language::english;
  double pixels = 2;  // of a PNG, for each unit of an SVG: 1 to 4
};

// All of them throw InvalidArgument where sizes do not fit together. The same picture gives the same bytes on the same
// machine with the same fonts. Letters in an SVG are outlines, so that it looks the same everywhere; its text lies over
// them, unseen, for search, selection and screen readers.
std::string to_svg(const Picture& picture, const Style& style = {});
std::vector<std::byte> to_png(const Picture& picture, const Style& style = {});
std::vector<std::byte> to_pdf(const Picture& picture, const Style& style = {});
// By the ending of the file's name: .svg, .png or .pdf; throws InvalidArgument for another.
std::vector<std::byte> to_file_bytes(const std::string& name, const Picture& picture, const Style& style = {});

// What to tell the user where no font here has some of a picture's characters: they are drawn as boxes. Empty if all is
// well.
std::string font_advice(const Picture& picture);

}  // namespace attend::draw
