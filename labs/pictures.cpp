// A report's figures as pictures.
#include "labs/pictures.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "io/atomic_file.hpp"

namespace attend::labs {
namespace {

std::vector<std::string> words_of(const std::vector<Text>& labels, Language language) {
  std::vector<std::string> words;
  for (const Text& label : labels) words.push_back(label.in(language));
  return words;
}

// Weights are never below 0; scores and outputs may be.
draw::ColourScale colours_of(const Rows& rows) {
  draw::ColourScale colours{.unit = ""};
  for (const auto& row : rows)
    if (std::any_of(row.begin(), row.end(), [](double value) { return std::isfinite(value) && value < 0; }))
      colours.palette = draw::Palette::difference;
  if (colours.palette == draw::Palette::difference) colours.scaling = draw::Scaling::linear;
  return colours;
}

}  // namespace

draw::Picture picture_of(const MapFigure& map, Language language) {
  draw::HeatMap picture;
  picture.captions.title = map.title.in(language);
  picture.values.rows = static_cast<std::int64_t>(map.values.size());
  picture.values.cols = map.values.empty() ? 0 : static_cast<std::int64_t>(map.values.front().size());
  for (const auto& row : map.values)
    for (const double value : row) picture.values.values.push_back(std::isfinite(value) ? value : draw::kMasked);
  picture.across = {map.columns_are.in(language), words_of(map.column_labels, language)};
  picture.down = {map.rows_are.in(language), words_of(map.row_labels, language)};
  picture.colours = colours_of(map.values);
  picture.numbers = map.digits;
  return picture;
}

draw::Picture picture_of(const CurvesFigure& figure, Language language) {
  draw::Panel panel;
  panel.across = {figure.across.in(language), figure.log_x ? 2.0 : 0.0};
  panel.up = {figure.up.in(language), figure.log_y ? 10.0 : 0.0};
  for (const Curve& curve : figure.curves) panel.series.push_back({curve.name.in(language), curve.points});
  draw::Chart chart;
  chart.captions.title = figure.title.in(language);
  chart.panels.push_back(std::move(panel));
  return chart;
}

std::vector<std::filesystem::path> write_pictures(const Report& report, Language language,
                                                  const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  const draw::Style style{.language = language == Language::zh ? draw::Language::chinese : draw::Language::english};
  std::vector<std::filesystem::path> written;
  const auto write = [&](const std::string& name, const draw::Picture& picture) {
    for (const char* ending : {".png", ".svg"}) {
      written.push_back(folder / (report.lab->name + "-" + name + ending));
      io::write_file_atomically(written.back(), draw::to_file_bytes(written.back().string(), picture, style));
    }
  };
  for (const Block& block : report.results.blocks) {
    if (const auto* map = std::get_if<MapFigure>(&block)) write(map->name, picture_of(*map, language));
    if (const auto* curves = std::get_if<CurvesFigure>(&block)) write(curves->name, picture_of(*curves, language));
  }
  return written;
}

}  // namespace attend::labs
