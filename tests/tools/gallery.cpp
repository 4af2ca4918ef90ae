// One of every picture that draw/ makes, in light and dark, English and Chinese, to be looked at.
// usage: gallery FOLDER
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include "draw/columns.hpp"
#include "draw/html.hpp"
#include "draw/picture.hpp"
#include "draw/terminal.hpp"
#include "io/atomic_file.hpp"

namespace {

using namespace attend;
using namespace attend::draw;

// Weights of a made-up head: a sink, the token before, and one from far away.
Grid weights(std::int64_t tokens, int kind = 0) {
  Grid grid = grid_of(tokens, tokens, kMasked);
  for (std::int64_t i = 0; i < tokens; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j <= i; ++j) {
      double& w = grid.at(i, j);
      w = 0.02 + (j == 0 ? 1.5 : 0) + (j + 1 == i ? 3 - kind % 3 : 0) + (j == i / 2 ? 1 + kind % 4 : 0) +
          0.3 * std::exp(-0.5 * static_cast<double>(i - j));
      sum += w;
    }
    for (std::int64_t j = 0; j <= i; ++j) grid.at(i, j) /= sum;
  }
  return grid;
}

std::vector<std::string> english() {
  return {"<|im_start|>",
          "user",
          "\n",
          "What",
          " does",
          " a",
          " comp",
          "iler",
          " do",
          "?",
          "<|im_end|>",
          "\n",
          " antidisestablishmentarianism",
          " &",
          " <b>"};
}
std::vector<std::string> chinese() {
  return {"<|im_start|>", "用户",   "\n", "注意力", "机制", "是",     "什么", "？",
          "\xE4\xB8",     " token", "，", "请",     "用",   "一句话", "说明"};
}

HeatMap word_map(const std::vector<std::string>& words, std::string title, std::vector<std::string> lines) {
  HeatMap map{.captions = {std::move(title), std::move(lines)}, .values = weights(std::ssize(words))};
  map.across.labels = map.down.labels = words;
  return map;
}

HeatMap evicted_map() {
  HeatMap map = word_map(english(), "A streaming cache: 2 sinks and the last 6",
                         {"What the cache has forgotten is grey, with a cross"});
  for (std::int64_t i = 0; i < map.values.rows; ++i)
    for (std::int64_t j = 2; j < i - 5; ++j) map.values.at(i, j) = kEvicted;
  return map;
}

HeatMap difference_map() {
  HeatMap map =
      word_map(english(), "Head 5 knocked out, minus before", {"orange: more attention than before; blue: less"});
  const Grid other = weights(map.values.rows, 2);
  for (std::size_t n = 0; n < map.values.values.size(); ++n) map.values.values[n] -= other.values[n];
  map.colours = {.palette = Palette::difference, .scaling = Scaling::linear, .unit = "change of the weight"};
  return map;
}

HeatMap many_labels(std::int64_t tokens) {
  std::vector<std::string> words;
  for (std::int64_t n = 0; n < tokens; ++n)
    words.push_back(n % 7 == 3 ? "中文" : n % 5 == 0 ? " token" : " w" + std::to_string(n));
  return word_map(words, std::to_string(tokens) + " labelled tokens", {});
}

HeatMap long_map() {
  HeatMap map{.captions = {"head 0 of 8",
                           {"it looks for repeats", "4096 tokens, dim 64, f32, causal", "cell: 8 queries x 8 keys"}},
              .values = weights(512)};
  map.across.per_cell = map.down.per_cell = 8;
  map.colours.palette = Palette::cividis;
  return map;
}

TokenLines token_lines(const std::vector<std::string>& words, int heads) {
  TokenLines lines{
      .captions = {"Lines between tokens", {"layer 3 of a made-up model"}}, .queries = words, .keys = words};
  for (int h = 0; h < heads; ++h) lines.heads.push_back({"head " + std::to_string(h), weights(std::ssize(words), h)});
  return lines;
}

HeadSheet sheet(bool maps) {
  HeadSheet sheet{
      .captions = {maps ? "Where all heads look" : "Entropy of all heads", {"6 layers of 9 heads over 3 KV heads"}},
      .heads = 9,
      .kv_heads = 3};
  for (int n = 0; n < 54; ++n) {
    HeadSheet::Cell cell;
    if (maps)
      cell = {weights(24, n), n % 5 == 0 ? "induction .62" : n % 3 == 0 ? "mixed" : "previous .81"};
    else
      cell.map = grid_of(1, 1, std::abs(std::sin(0.4 * n)) * 3);
    if (n == 13) cell.map = {};
    sheet.cells.push_back(std::move(cell));
  }
  if (!maps) sheet.colours = {.scaling = Scaling::linear, .unit = "entropy, nats"};
  return sheet;
}

Chart curves() {
  Series train{"training"}, validation{"validation"}, wide{"a longer name, with 中文 in it: length^1.98, 3.1 MiB"};
  for (int n = 1; n <= 200; ++n) {
    train.points.emplace_back(n * 10, 2.1 + 4 * std::exp(-n / 30.0) + 0.08 * std::sin(n * 1.7));
    if (n % 20 == 0) validation.points.emplace_back(n * 10, 2.2 + 4 * std::exp(-n / 30.0));
  }
  Panel loss{"Loss", {train, validation}, {.name = "step"}, {.name = "nats a token"}};
  for (double length = 1024; length <= 65536; length *= 2) wide.points.emplace_back(length, 1e-9 * length * length);
  Series linear{"window 1024"};
  for (double length = 1024; length <= 65536; length *= 2) linear.points.emplace_back(length, 1e-6 * length);
  Panel time{
      "Time against length",
      {linear, wide},
      {.name = "tokens", .base = 2, .label = [](double v) { return std::to_string(static_cast<int>(v / 1024)) + "k"; }},
      {.name = "seconds", .base = 10}};
  return {{"A run and its cost",
           {"made up, to look at the drawing"},
           "BUSY MACHINE: others took 41 % of the CPUs meanwhile; not fit to be published"},
          {loss, time}};
}

Bars bars(bool chinese_words) {
  Bars made{.captions = {chinese_words ? "下一个词元的概率" : "Next token, before and after head 5 is knocked out"},
            .labels = chinese_words ? std::vector<std::string>{"机制", "模型", "网络", "，", "\n"}
                                    : std::vector<std::string>{" translates", " compiles", " is", "\n", " a"},
            .kinds = {{chinese_words ? "之前" : "before", {0.52, 0.21, 0.11, 0.04, 0.01}},
                      {chinese_words ? "之后" : "after", {0.12, 0.33, 0.18, 0.2, 0.002}}},
            .across = {.name = chinese_words ? "概率" : "probability"}};
  return made;
}

Bars ratios() {
  return {.captions = {"How many times as fast"},
          .labels = {"L512 causal", "L4096 causal", "decode", "L1024 window"},
          .kinds = {{"float32", {1.4, 2.2, 0.8, 3.9}, {{1.2, 1.5}, {2.0, 2.3}, {0.7, 0.9}, {3.5, 4.4}}}},
          .across = {.name = "times PyTorch", .base = 2},
          .origin = 1};
}

Bars changes() {
  return {.captions = {"Contributions"}, .labels = {" cat", " dog", " 鸟"}, .kinds = {{"", {0.8, -0.5, 0.2}}}};
}

std::map<std::string, Picture> all() {
  HeatMap dots = word_map(english(), "The same as dots", {"area: the weight"}),
          sheared = by_distance(word_map(english(), "By distance", {}));
  dots.mark = Mark::dot;
  TokenLines one = token_lines(chinese(), 1);
  one.query = 9;
  HeatMap difference_dots = difference_map();
  difference_dots.mark = Mark::dot;
  HeatMap small{.captions = {"Scores"},
                .values = {2, 3, {1.25, -0.5, 12.345, 0, -3, 0.001}},
                .colours = {.palette = Palette::difference, .unit = "score"}};
  HeatMap row{.captions = {"One row of a long text"}, .values = grid_of(1, 1024, 0.0)};
  for (int n = 0; n < 1024; ++n) row.values.at(0, n) = std::pow(std::sin(n * 0.05), 8) / 100;
  HeatMap logarithmic = long_map();
  logarithmic.colours = {.scaling = Scaling::logarithmic};
  return {
      {"words", word_map(english(), "layer 3, head 5", {"SmolLM2, reading a question", "cell: one query and one key"})},
      {"chinese", word_map(chinese(), "第 3 层，第 5 头：注意力", {"读一个问题时的权重", "每格：一个查询与一个键"})},
      {"dots", dots},
      {"difference", difference_map()},
      {"difference-dots", difference_dots},
      {"evicted", evicted_map()},
      {"distance", sheared},
      {"long", long_map()},
      {"logarithmic", logarithmic},
      {"long-distance", by_distance(long_map())},
      {"labels64", many_labels(64)},
      {"labels128", many_labels(128)},
      {"labels200", many_labels(200)},
      {"small", small},
      {"row", row},
      {"lines", token_lines(english(), 3)},
      {"lines-one", one},
      {"sheet", sheet(true)},
      {"sheet-numbers", sheet(false)},
      {"curves", curves()},
      {"bars", bars(false)},
      {"bars-chinese", bars(true)},
      {"ratios", ratios()},
      {"changes", changes()}};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    (void)std::fputs("usage: gallery FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = arguments[1];
  std::filesystem::create_directories(folder);
  use_utf8();
  Page page{.title = "Gallery", .sections = {{}}, .json = "{\"made\": true}"};
  for (const auto& [name, picture] : all()) {
    const Language language = name.find("chinese") != std::string::npos ? Language::chinese : Language::english;
    for (const Theme theme : {Theme::light, Theme::dark})
      for (const char* ending : {".png", ".svg", ".pdf"}) {
        const std::string file = name + (theme == Theme::dark ? "-dark" : "") + ending;
        io::write_file_atomically(folder / file, to_file_bytes(file, picture, {.theme = theme, .language = language}));
      }
    if (name != "labels200" && name != "labels128") page.sections[0].pictures.push_back(picture);
    for (const Colours colours : {Colours::none, Colours::palette, Colours::full}) {
      const std::string text = to_terminal(picture, {.colours = colours, .language = language});
      const std::string file = name + "-" + std::to_string(static_cast<int>(colours)) + ".txt";
      io::write_file_atomically(folder / file, std::as_bytes(std::span(text)));
    }
    const std::string advice = font_advice(picture);
    if (!advice.empty()) (void)std::printf("%s: %s\n", name.c_str(), advice.c_str());
  }
  const std::string html = to_html(page);
  io::write_file_atomically(folder / "gallery.html", std::as_bytes(std::span(html)));
  return 0;
}
