// The pen over Cairo and Pango: the one file that sees them.
#include "draw/pen.hpp"

#include <cairo-pdf.h>
#include <cairo-svg.h>
#include <cairo.h>
#include <fmt/format.h>
#include <pango/pangocairo.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <numbers>
#include <stdexcept>

#include "attend/error.hpp"
#include "draw/labels.hpp"
#include "draw/svg_text.hpp"

#ifdef ATTEND_SANITIZED
// The sanitizers do not see inside these libraries. What fontconfig keeps for Pango's fonts looks lost to them, Cairo's
// PDF does lose some, and Pango's own thread looks like a race.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libfontconfig\nleak:libcairo";
}
extern "C" const char* __lsan_default_options() {
  return "print_suppressions=0";
}
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libfontconfig.so\nrace:libfontconfig\nrace:libpango\nrace:libglib\nrace:libcairo";
}
#endif

namespace attend::draw {
namespace {

// The first has even digits and is nearly always there; two have the characters of Chinese, in the forms that readers
// of simplified Chinese expect. What none of them has comes from any font that does.
constexpr const char* kFamilies = "DejaVu Sans, Noto Sans CJK SC, WenQuanYi Micro Hei, sans-serif";
constexpr double kMostPixels = 24000;  // along a side; Cairo's images end at 32767

template <auto function>
struct Release {
  template <class T>
  void operator()(T* it) const {
    function(it);
  }
};
using Surface = std::unique_ptr<cairo_surface_t, Release<cairo_surface_destroy>>;
using Cairo = std::unique_ptr<cairo_t, Release<cairo_destroy>>;
using Layout = std::unique_ptr<PangoLayout, Release<g_object_unref>>;
using Context = std::unique_ptr<PangoContext, Release<g_object_unref>>;
using FontOptions = std::unique_ptr<cairo_font_options_t, Release<cairo_font_options_destroy>>;
using FontDescription = std::unique_ptr<PangoFontDescription, Release<pango_font_description_free>>;

// Lengths of text do not depend on what is drawn on, so that a layout fits all of SVG, PNG and PDF.
Layout layout_of(const std::string& text, const Font& font) {
  const Context context(pango_font_map_create_context(pango_cairo_font_map_get_default()));
  const FontOptions options(cairo_font_options_create());
  cairo_font_options_set_antialias(options.get(), CAIRO_ANTIALIAS_GRAY);
  cairo_font_options_set_hint_style(options.get(), CAIRO_HINT_STYLE_NONE);
  cairo_font_options_set_hint_metrics(options.get(), CAIRO_HINT_METRICS_OFF);
  pango_cairo_context_set_font_options(context.get(), options.get());
  pango_cairo_context_set_resolution(context.get(), 96);
  pango_context_set_round_glyph_positions(context.get(), FALSE);
  pango_context_set_base_dir(context.get(), PANGO_DIRECTION_LTR);
  Layout layout(pango_layout_new(context.get()));
  const FontDescription description(pango_font_description_new());
  pango_font_description_set_family_static(description.get(), kFamilies);
  pango_font_description_set_absolute_size(description.get(), font.size * PANGO_SCALE);
  if (font.bold) pango_font_description_set_weight(description.get(), PANGO_WEIGHT_BOLD);
  pango_layout_set_font_description(layout.get(), description.get());
  pango_layout_set_auto_dir(layout.get(), FALSE);
  pango_layout_set_single_paragraph_mode(layout.get(), TRUE);
  const std::string line = printable(text);
  pango_layout_set_text(layout.get(), line.data(), static_cast<int>(std::min<std::size_t>(line.size(), 1 << 16)));
  return layout;
}

double width_of(PangoLayout* layout) {
  int width = 0;
  pango_layout_get_size(layout, &width, nullptr);
  return static_cast<double>(width) / PANGO_SCALE;
}

cairo_status_t append(void* bytes, const unsigned char* data, unsigned int count) {
  auto& all = *static_cast<std::vector<std::byte>*>(bytes);
  const auto* from = reinterpret_cast<const std::byte*>(data);
  all.insert(all.end(), from, from + count);
  return CAIRO_STATUS_SUCCESS;
}

void check(cairo_status_t status) {
  if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
  if (status != CAIRO_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("picture: {}", cairo_status_to_string(status)));
}

void check_size(const Drawing& drawing, double pixels) {
  const double longest = std::max(drawing.width, drawing.height) * pixels;
  if (!(longest <= kMostPixels))
    throw InvalidArgument(fmt::format("picture: {:.0f} pixels along a side, expected at most {:.0f}: draw fewer cells",
                                      longest, kMostPixels));
}

// Draws it all and says what texts there were.
std::vector<Pen::Written> paint(const Drawing& drawing, cairo_surface_t* surface, double pixels) {
  const Cairo cairo(cairo_create(surface));
  cairo_scale(cairo.get(), pixels, pixels);
  Pen pen(cairo.get());
  drawing.paint(pen);
  check(cairo_status(cairo.get()));
  return pen.written();
}

std::vector<std::byte> bytes_of_vector_surface(cairo_surface_t* (*create)(cairo_write_func_t, void*, double, double),
                                               void (*prepare)(cairo_surface_t*), const Drawing& drawing,
                                               std::vector<Pen::Written>& written) {
  check_size(drawing, 1);
  std::vector<std::byte> bytes;
  const Surface surface(create(append, &bytes, drawing.width, drawing.height));
  check(cairo_surface_status(surface.get()));
  prepare(surface.get());
  written = paint(drawing, surface.get(), 1);
  cairo_surface_finish(surface.get());
  check(cairo_surface_status(surface.get()));
  return bytes;
}

}  // namespace

void Pen::set(const Colour& c) {
  cairo_set_source_rgba(cairo_, c.rgb[0] / 255.0, c.rgb[1] / 255.0, c.rgb[2] / 255.0, c.alpha);
}

void Pen::set(const Stroke& stroke) {
  const double dashes[] = {stroke.on, stroke.off};
  cairo_set_line_width(cairo_, stroke.width);
  cairo_set_dash(cairo_, dashes, stroke.off > 0 ? 2 : 0, 0);
}

void Pen::fill(const Box& box, const Colour& colour) {
  set(colour);
  cairo_rectangle(cairo_, box.left, box.top, box.width, box.height);
  cairo_fill(cairo_);
}

void Pen::frame(const Box& box, const Stroke& stroke, const Colour& colour) {
  set(colour);
  set(stroke);
  cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_MITER);
  cairo_rectangle(cairo_, box.left, box.top, box.width, box.height);
  cairo_stroke(cairo_);
}

void Pen::line(const Points& points, const Stroke& stroke, const Colour& colour) {
  if (points.empty()) return;
  set(colour);
  set(stroke);
  cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
  cairo_new_path(cairo_);  // a text leaves a point behind
  for (const auto& [x, y] : points) cairo_line_to(cairo_, x, y);
  cairo_stroke(cairo_);
}

void Pen::wave(double x0, double y0, double x1, double y1, double width, const Colour& colour) {
  set(colour);
  set(Stroke{.width = width});
  cairo_move_to(cairo_, x0, y0);
  cairo_curve_to(cairo_, (x0 + x1) / 2, y0, (x0 + x1) / 2, y1, x1, y1);
  cairo_stroke(cairo_);
}

void Pen::dot(double x, double y, double radius, const Colour& colour) {
  set(colour);
  cairo_new_sub_path(cairo_);
  cairo_arc(cairo_, x, y, radius, 0, 2 * std::numbers::pi);
  cairo_fill(cairo_);
}

void Pen::image(const Box& box, std::int64_t cols, std::int64_t rows, const std::vector<Rgb>& pixels) {
  // Some viewers of SVG smooth what they enlarge: there a cell is as many pixels as it will nearly have on a screen.
  const bool svg = cairo_surface_get_type(cairo_get_target(cairo_)) == CAIRO_SURFACE_TYPE_SVG;
  const auto times = [&](double length, std::int64_t cells) {
    return svg ? std::max<std::int64_t>(1, std::llround(2 * length / static_cast<double>(cells))) : 1;
  };
  const std::int64_t across = times(box.width, cols), down = times(box.height, rows);
  const std::int64_t width = cols * across, height = rows * down;
  const Surface surface(
      cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width), static_cast<int>(height)));
  check(cairo_surface_status(surface.get()));
  cairo_surface_flush(surface.get());
  auto* data = cairo_image_surface_get_data(surface.get());
  const std::int64_t stride = cairo_image_surface_get_stride(surface.get());
  for (std::int64_t y = 0; y < height; ++y) {
    auto* line = reinterpret_cast<std::uint32_t*>(data + y * stride);
    for (std::int64_t x = 0; x < width; ++x) {
      const Rgb& c = pixels[static_cast<std::size_t>(y / down * cols + x / across)];
      line[x] = std::uint32_t{c[0]} << 16 | std::uint32_t{c[1]} << 8 | c[2];
    }
  }
  cairo_surface_mark_dirty(surface.get());
  cairo_save(cairo_);
  cairo_translate(cairo_, box.left, box.top);
  cairo_scale(cairo_, box.width / static_cast<double>(width), box.height / static_cast<double>(height));
  cairo_set_source_surface(cairo_, surface.get(), 0, 0);
  cairo_pattern_set_filter(cairo_get_source(cairo_), CAIRO_FILTER_NEAREST);
  cairo_paint(cairo_);  // filled instead, an SVG would hold it as a pattern, which viewers blur
  cairo_restore(cairo_);
}

void Pen::text(const Place& place, const Font& font, const Colour& colour, const std::string& text) {
  if (text.empty()) return;
  const Layout layout = layout_of(text, font);
  if (place.room > 0 && width_of(layout.get()) > place.room) {
    pango_layout_set_width(layout.get(), static_cast<int>(place.room * PANGO_SCALE));
    pango_layout_set_ellipsize(layout.get(), PANGO_ELLIPSIZE_END);
  }
  // The width that is written, not that of the room.
  PangoRectangle extents;
  pango_layout_get_extents(layout.get(), nullptr, &extents);
  const double width = static_cast<double>(extents.width) / PANGO_SCALE;
  const double back = place.anchor == Anchor::start ? 0 : place.anchor == Anchor::middle ? width / 2 : width;
  // Letters of all fonts stand on the line that the first font's would: half a capital below the middle.
  const double baseline = static_cast<double>(pango_layout_get_baseline(layout.get())) / PANGO_SCALE;
  set(colour);
  cairo_save(cairo_);
  cairo_translate(cairo_, place.x, place.y);
  if (place.upward) cairo_rotate(cairo_, -std::numbers::pi / 2);
  cairo_move_to(cairo_, -back - static_cast<double>(extents.x) / PANGO_SCALE, 0.36 * font.size - baseline);
  pango_cairo_show_layout(cairo_, layout.get());
  cairo_restore(cairo_);
  written_.push_back({place, font, width, printable(text)});
}

double text_width(const std::string& text, const Font& font) {
  return width_of(layout_of(text, font).get());
}

std::vector<std::string> wrapped(const std::string& text, const Font& font, double width) {
  const std::string line = printable(text);
  const Layout layout = layout_of(line, font);
  pango_layout_set_width(layout.get(), static_cast<int>(width * PANGO_SCALE));
  pango_layout_set_wrap(layout.get(), PANGO_WRAP_WORD_CHAR);
  std::vector<std::string> lines;
  for (int n = 0; n < pango_layout_get_line_count(layout.get()); ++n) {
    const PangoLayoutLine* part = pango_layout_get_line_readonly(layout.get(), n);
    std::string& made = lines.emplace_back(
        line.substr(static_cast<std::size_t>(part->start_index), static_cast<std::size_t>(part->length)));
    while (made.ends_with(' ')) made.pop_back();
  }
  return lines;
}

int unknown_characters(const std::vector<std::string>& texts) {
  int count = 0;
  for (const std::string& text : texts) count += pango_layout_get_unknown_glyphs_count(layout_of(text, {}).get());
  return count;
}

std::vector<std::byte> png_of(const Drawing& drawing, double pixels) {
  check_size(drawing, pixels);
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24,
                                                   static_cast<int>(std::lround(drawing.width * pixels)),
                                                   static_cast<int>(std::lround(drawing.height * pixels))));
  check(cairo_surface_status(surface.get()));
  paint(drawing, surface.get(), pixels);
  std::vector<std::byte> bytes;
  check(cairo_surface_write_to_png_stream(surface.get(), append, &bytes));
  return bytes;
}

std::vector<std::byte> pdf_of(const Drawing& drawing) {
  // Without a date, which would make every file another one.
  const auto prepare = [](cairo_surface_t* surface) {
    cairo_pdf_surface_set_metadata(surface, CAIRO_PDF_METADATA_CREATE_DATE, "");
  };
  std::vector<Pen::Written> written;
  return bytes_of_vector_surface(cairo_pdf_surface_create_for_stream, prepare, drawing, written);
}

std::string svg_of(const Drawing& drawing, const std::string& title) {
  const auto prepare = [](cairo_surface_t* surface) {
    cairo_svg_surface_set_document_unit(surface, CAIRO_SVG_UNIT_PX);
  };
  std::vector<Pen::Written> written;
  const std::vector<std::byte> bytes =
      bytes_of_vector_surface(cairo_svg_surface_create_for_stream, prepare, drawing, written);
  return with_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, title, written);
}

}  // namespace attend::draw
