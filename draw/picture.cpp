// A picture as SVG, PNG or PDF: checked, laid out, drawn.
#include "draw/picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attend/error.hpp"
#include "draw/drawing.hpp"
#include "draw/labels.hpp"
#include "draw/pen.hpp"
#include "draw/svg_text.hpp"

namespace attend::draw {
namespace {

Drawing drawing_of_picture(const Picture& picture, const Style& style) {
  if (!(style.pixels >= 1 && style.pixels <= 4))
    throw InvalidArgument(fmt::format("picture: {} pixels a unit, expected 1 to 4", style.pixels));
  return std::visit(
      [&](const auto& what) {
        check(what);
        return drawing_of(what, style);
      },
      picture);
}

const Captions& captions_of(const Picture& picture) {
  return std::visit([](const auto& what) -> const Captions& { return what.captions; }, picture);
}

// All texts that a user gave.
struct TextCollector {
  std::vector<std::string> texts;

  void add(const std::vector<std::string>& more) {
    for (const std::string& text : more) texts.push_back(token_label(text, 64));
  }
  void operator()(const HeatMap& map) {
    for (const TokenAxis* axis : {&map.across, &map.down}) {
      texts.push_back(axis->name);
      add(axis->labels);
    }
    texts.push_back(map.colours.unit);
  }
  void operator()(const TokenLines& lines) {
    add(lines.queries);
    add(lines.keys);
    for (const auto& head : lines.heads) texts.push_back(head.name);
  }
  void operator()(const HeadSheet& sheet) {
    add(sheet.layer_names);
    for (const auto& cell : sheet.cells) texts.push_back(cell.badge);
    texts.push_back(sheet.colours.unit);
  }
  void operator()(const Chart& chart) {
    for (const Panel& panel : chart.panels) {
      add({panel.title, panel.across.name, panel.up.name});
      for (const Series& series : panel.series) texts.push_back(series.name);
    }
  }
  void operator()(const Bars& bars) {
    add(bars.labels);
    for (const auto& kind : bars.kinds) texts.push_back(kind.name);
    texts.push_back(bars.across.name);
  }
};

}  // namespace

std::string to_svg(const Picture& picture, const Style& style) {
  if (style.theme == Theme::readers) {
    const auto in = [&](Theme theme) { return to_svg(picture, {theme, style.language, style.pixels}); };
    return svg_of_both(in(Theme::light), in(Theme::dark));
  }
  return svg_of(drawing_of_picture(picture, style), captions_of(picture).title);
}

std::vector<std::byte> to_png(const Picture& picture, const Style& style) {
  return png_of(drawing_of_picture(picture, style), style.pixels);
}

std::vector<std::byte> to_pdf(const Picture& picture, const Style& style) {
  return pdf_of(drawing_of_picture(picture, style));
}

std::vector<std::byte> to_file_bytes(const std::string& name, const Picture& picture, const Style& style) {
  if (name.ends_with(".png")) return to_png(picture, style);
  if (name.ends_with(".pdf")) return to_pdf(picture, style);
  if (!name.ends_with(".svg"))
    throw InvalidArgument(fmt::format("picture: '{}' ends neither in .png, .svg nor .pdf", printable(name)));
  const std::string svg = to_svg(picture, style);
  const auto* bytes = reinterpret_cast<const std::byte*>(svg.data());
  return {bytes, bytes + svg.size()};
}

std::string font_advice(const Picture& picture) {
  TextCollector collector;
  std::visit(collector, picture);
  const Captions& captions = captions_of(picture);
  collector.texts.push_back(captions.title);
  collector.texts.insert(collector.texts.end(), captions.lines.begin(), captions.lines.end());
  const int unknown = unknown_characters(collector.texts);
  if (unknown == 0) return "";
  return fmt::format(
      "{} of the picture's characters {} in no font here and drawn as boxes; a font for Chinese, Japanese and Korean "
      "comes with: apt-get install fonts-noto-cjk",
      unknown, unknown == 1 ? "is" : "are");
}

}  // namespace attend::draw
