// Figures of a report as pictures, and drawn with characters.
#include <algorithm>
#include <cmath>
#include <limits>

#include "labs/pictures.hpp"
#include "labs/terminal.hpp"

namespace attend::labs {
namespace {

std::vector<std::string> in_language(const std::vector<Text>& texts, Language language) {
  std::vector<std::string> all;
  for (const Text& text : texts) all.push_back(text.in(language));
  return all;
}

draw::Screen screen_in(const draw::Screen& screen, Language language) {
  draw::Screen made = screen;
  made.language = language == Language::zh ? draw::Language::chinese : draw::Language::english;
  return made;
}

// A logarithmic axis has marks at powers of ten; within two of them, at powers of two.
double base_of(const CurvesFigure& figure, bool across) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const Curve& curve : figure.curves)
    for (const auto& [x, y] : curve.points) {
      const double value = across ? x : y;
      if (!std::isfinite(value) || value <= 0) continue;
      least = std::min(least, value);
      most = std::max(most, value);
    }
  return most > 100 * least ? 10 : 2;
}

// Above the drawing: titles are sentences here, and wrap.
std::string titled(const Text& title, Language language, const draw::Screen& screen, draw::Picture picture) {
  std::visit([](auto& what) { what.captions = {}; }, picture);
  return wrapped(title.in(language), screen.columns) + "\n" + draw::to_terminal(picture, screen_in(screen, language));
}

}  // namespace

draw::Picture picture_of(const MapFigure& figure, Language language) {
  draw::HeatMap map{.captions = {figure.title.in(language)},
                    .across = {figure.columns_are.in(language)},
                    .down = {figure.rows_are.in(language)},
                    .colours = {.unit = ""},
                    .numbers = figure.digits};
  map.values.rows = std::ssize(figure.values);
  map.values.cols = figure.values.empty() ? 0 : std::ssize(figure.values.front());
  bool negative = false;
  for (const auto& row : figure.values)
    for (const double value : row) {
      map.values.values.push_back(std::isfinite(value) ? value : draw::kMasked);
      negative = negative || value < 0;
    }
  if (negative) map.colours.palette = draw::Palette::difference;
  map.across.labels = in_language(figure.column_labels, language);
  map.down.labels = in_language(figure.row_labels, language);
  return map;
}

draw::Picture picture_of(const CurvesFigure& figure, Language language) {
  draw::Panel panel{"",
                    {},
                    {figure.across.in(language), figure.log_x ? base_of(figure, true) : 0},
                    {figure.up.in(language), figure.log_y ? base_of(figure, false) : 0}};
  for (const Curve& curve : figure.curves) panel.series.push_back({curve.name.in(language), curve.points});
  return draw::Chart{{figure.title.in(language)}, {std::move(panel)}};
}

std::string to_terminal(const MapFigure& map, Language language, const draw::Screen& screen) {
  return titled(map.title, language, screen, picture_of(map, language));
}

std::string to_terminal(const CurvesFigure& figure, Language language, const draw::Screen& screen) {
  return titled(figure.title, language, screen, picture_of(figure, language));
}

}  // namespace attend::labs
