// What all pictures share.
#include "draw/drawing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace attend::draw {
namespace {

constexpr Ink kLight = {{255, 255, 255}, {31, 35, 40},  {89, 99, 110}, {222, 226, 231}, {238, 240, 243},
                        {158, 166, 175}, {179, 38, 30}, {0, 114, 178}, {213, 94, 0},    false};
constexpr Ink kDark = {{16, 20, 27},    {232, 237, 243}, {150, 160, 172}, {48, 55, 65},   {33, 39, 48},
                       {104, 113, 125}, {255, 140, 110}, {86, 180, 233},  {240, 140, 50}, true};

constexpr Words kEnglish = {"masked",
                            "evicted",
                            " or more",
                            {"square-root scale", "linear scale", "logarithmic scale"},
                            "the more weight, the stronger the line (square root)",
                            "weights below {} are not drawn",

                            "KV",
                            "layer",
                            "head"};
constexpr Words kChinese = {"被掩码遮住",
                            "已淘汰",
                            " 以上",
                            {"平方根刻度", "线性刻度", "对数刻度"},
                            "权重越大，线越浓（平方根）",
                            "小于 {} 的权重不画",

                            "KV",
                            "层",
                            "头"};

constexpr double kBarWidth = 200, kBarHeight = 10, kSwatch = 12;
constexpr double kDotShares[] = {1.0 / 16, 0.25, 1.0};  // of the highest value

}  // namespace

const Ink& ink_of(Theme theme) {
  return theme == Theme::dark ? kDark : kLight;
}

const Words& words_of(Language language) {
  return language == Language::chinese ? kChinese : kEnglish;
}

std::string translated(const std::string& text, Language language) {
  static constexpr std::pair<const char*, const char*> kTexts[] = {
      {"keys", "键"},
      {"queries", "查询"},
      {"share of the query's attention", "占该查询注意力的份额"},
      {kHowFarBack, "向前多远：查询 − 键"},
  };
  if (language == Language::english) return text;
  for (const auto& [english, chinese] : kTexts)
    if (text == english) return chinese;
  return text;
}

LineStyle line_style(std::size_t index, const Ink& ink, double width) {
  static constexpr Rgb kColours[] = {{0, 114, 178}, {213, 94, 0},   {0, 158, 115}, {204, 121, 167},
                                     {230, 159, 0}, {86, 180, 233}, {140, 86, 75}};
  static constexpr Stroke kStrokes[] = {{2, 0, 0}, {2, 6, 4}, {2, 2, 3}};
  constexpr std::size_t kCount = std::size(kColours) + 1;
  const std::size_t colour = index % kCount;
  Stroke stroke = kStrokes[index / kCount % std::size(kStrokes)];
  stroke.width = width;
  Rgb rgb = colour == 0 ? ink.text : kColours[colour - 1];
  if (ink.dark && colour == 1) rgb = {64, 156, 220};  // the blue is too dark there
  return {rgb, stroke};
}

Sheet::Sheet(const Captions& captions, double width, double height, const Style& style) : ink_(ink_of(style.theme)) {
  constexpr double kLeastWidth = 300;
  width_ = std::max({width, kLeastWidth, std::min(text_width(captions.title, kTitleFont), 900.0)});
  if (!captions.title.empty()) title_ = wrapped(captions.title, kTitleFont, width_ + 1);
  const auto add = [&](std::vector<std::string>& to, const std::string& text) {
    if (text.empty()) return;
    const std::vector<std::string> lines = wrapped(text, kSmallFont, width_ + 1);
    to.insert(to.end(), lines.begin(), lines.end());
  };
  for (const std::string& line : captions.lines) add(lines_, line);
  add(warning_, captions.warning);
  top_ = kMargin + 22 * static_cast<double>(title_.size()) + 16 * static_cast<double>(lines_.size());
  if (top_ > kMargin) top_ += 12;
  width_ = std::ceil(width_);  // whole, so that no pixel at the edge is half covered
  height_ = std::ceil(top_ + height + kMargin + 16 * static_cast<double>(warning_.size()));
}

Drawing Sheet::drawing(std::function<void(Pen&)> contents) const {
  const auto paint = [sheet = *this, contents = std::move(contents)](Pen& pen) {
    pen.fill({0, 0, sheet.width_ + 2 * kMargin, sheet.height_}, {sheet.ink_.paper});
    double y = kMargin + 8;
    for (const std::string& line : sheet.title_) {
      pen.text({kMargin, y}, kTitleFont, {sheet.ink_.text}, line);
      y += 22;
    }
    for (const std::string& line : sheet.lines_) {
      pen.text({kMargin, y}, kSmallFont, {sheet.ink_.quiet}, line);
      y += 16;
    }
    contents(pen);
    y = sheet.height_ - kMargin - 16 * static_cast<double>(sheet.warning_.size()) + 12;
    for (const std::string& line : sheet.warning_) {
      pen.text({kMargin, y}, kSmallFont, {sheet.ink_.warning}, line);
      y += 16;
    }
  };
  return {width_ + 2 * kMargin, height_, paint};
}

ColourScale decided(const ColourScale& scale, const std::vector<const Grid*>& grids) {
  ColourScale made = scale;
  if (!(made.high > 0) || !std::isfinite(made.high)) made.high = highest_of(grids);
  return made;
}

Rgb cell_colour(double value, const ColourScale& scale, const Ink& ink) {
  if (std::isnan(value)) return ink.masked;
  if (value == kEvicted) return ink.evicted;
  return colour_at(place_of(value, scale), scale.palette, ink.dark);
}

Legend::Legend(const std::vector<const Grid*>& grids, const ColourScale& scale, Mark mark, const Style& style)
    : scale_(decided(scale, grids)), mark_(mark), ink_(ink_of(style.theme)), more_("") {
  const Words& words = words_of(style.language);
  unit_ = translated(scale.unit, style.language);
  if (mark == Mark::cell)
    unit_ += fmt::format("{}({})", unit_.empty() ? "" : " ", words.scaling[static_cast<int>(scale.scaling)]);
  bool masked = false, evicted = false;
  for (const Grid* grid : grids)
    for (const double value : grid->values) {
      masked = masked || std::isnan(value);
      evicted = evicted || value == kEvicted;
      if (std::isfinite(value) && std::abs(value) > scale_.high * (1 + 1e-9)) more_ = words.or_more;
    }
  if (masked) others_.emplace_back(words.masked, ink_.masked);
  if (evicted) others_.emplace_back(words.evicted, ink_.evicted);
  scale_width_ = kBarWidth + text_width(short_number(scale_.high) + more_, kLegendFont) + 16;
  if (mark == Mark::dot) {
    scale_width_ = 0;
    for (const double share : kDotShares) scale_width_ += dot_room() + text_width(dot_label(share), kLegendFont);
  }
  width_ = scale_width_;
  for (const auto& [name, colour] : others_) width_ += kSwatch + 22 + text_width(name, kLegendFont);
  width_ = std::max(width_, text_width(unit_, kLegendFont));
}

void Legend::draw_bar(Pen& pen, double left, double top) const {
  constexpr int kSteps = 100;
  std::vector<Rgb> pixels;
  for (int n = 0; n < kSteps; ++n) pixels.push_back(colour_at((n + 0.5) / kSteps, scale_.palette, ink_.dark));
  pen.image({left, top, kBarWidth, kBarHeight}, kSteps, 1, pixels);
  pen.frame({left, top, kBarWidth, kBarHeight}, {.width = 0.75}, {ink_.quiet});
  const bool logarithmic = scale_.scaling == Scaling::logarithmic;  // its numbers are long
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    if (logarithmic && (part == 0.25 || part == 0.75)) continue;
    const double x = left + part * kBarWidth, value = value_at(part, scale_);
    pen.line({{x, top + kBarHeight}, {x, top + kBarHeight + 4}}, {}, {ink_.quiet});
    std::string label = fmt::format("{:.2g}", value);
    if (scale_.palette != Palette::difference && part == 0 && logarithmic)
      label = "≤ " + short_number(scale_.high / kLogarithmicRange);
    const Anchor anchor = part == 0 ? Anchor::start : part == 1 && *more_ == '\0' ? Anchor::end : Anchor::middle;
    if (part < 1 || *more_ == '\0')
      pen.text({x, top + kBarHeight + 11, anchor}, kLegendFont, {ink_.text}, label);
    else  // its number under the mark, the words behind
      pen.text({x - text_width(label, kLegendFont) / 2, top + kBarHeight + 11}, kLegendFont, {ink_.text},
               label + more_);
  }
}

double Legend::dot_room() const {
  return scale_.palette == Palette::difference ? 52 : 32;
}

std::string Legend::dot_label(double share) const {
  const std::string sign = scale_.palette == Palette::difference ? "∓" : "";
  return sign + fmt::format("{:.2g}", share * scale_.high) + (share == 1 ? more_ : "");
}

void Legend::draw_dots(Pen& pen, double left, double top) const {
  double x = left;
  for (const double share : kDotShares) {
    const double radius = 8 * std::sqrt(share), text = x + dot_room() - 12;
    pen.dot(x + 8, top + 8, radius, {ink_.first});
    if (scale_.palette == Palette::difference) pen.dot(x + 28, top + 8, radius, {ink_.second});
    pen.text({text, top + 8}, kLegendFont, {ink_.text}, dot_label(share));
    x = text + 12 + text_width(dot_label(share), kLegendFont);
  }
}

void Legend::draw(Pen& pen, double left, double top) const {
  pen.text({left, top + 8}, kLegendFont, {ink_.quiet}, unit_);
  if (mark_ == Mark::dot)
    draw_dots(pen, left, top + 18);
  else
    draw_bar(pen, left, top + 18);
  double x = left + scale_width_;
  for (const auto& [name, colour] : others_) {
    const Box swatch{x, top + 17, kSwatch, kSwatch};
    pen.fill(swatch, {colour});
    pen.frame(swatch, {.width = 0.75}, {ink_.quiet});
    pen.text({x + kSwatch + 5, top + 23}, kLegendFont, {ink_.text}, name);
    x += kSwatch + 22 + text_width(name, kLegendFont);
  }
}

Rgb readable_on(const Rgb& behind) {
  const double bright = 0.299 * behind[0] + 0.587 * behind[1] + 0.114 * behind[2];
  return bright > 140 ? Rgb{20, 20, 24} : Rgb{245, 247, 250};
}

std::string short_number(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e6 || size < 1e-4) return fmt::format("{:.2g}", value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

double Ticks::part(double value) const {
  return ((base > 0 ? std::log(value) / std::log(base) : value) - low) / (high - low);
}

bool Ticks::holds(double value) const {
  return std::isfinite(value) && (base <= 0 || value > 0);
}

Ticks ticks_of(double least, double most, double base, bool whole) {
  if (base > 0) {
    Ticks ticks{std::log(least) / std::log(base), std::log(most) / std::log(base), base};
    constexpr double kNearly = 1e-9;
    if (whole) ticks.low = std::floor(ticks.low + kNearly), ticks.high = std::ceil(ticks.high - kNearly);
    ticks.high = std::max(ticks.low + 1, ticks.high);
    const double every = std::max(1.0, std::ceil((ticks.high - ticks.low) / 12));
    const double first = std::ceil(ticks.low - kNearly);
    const auto more = static_cast<int>(std::floor((ticks.high + kNearly - first) / every));
    for (int n = 0; n <= more; ++n) ticks.values.push_back(std::pow(base, first + n * every));
    return ticks;
  }
  // From the first round number below, with four to ten marks.
  const double span = std::max({most - least, std::abs(most) * 1e-9, 1e-300});
  const double power = std::pow(10, std::floor(std::log10(span)));
  const double step = span / power < 2 ? power / 5 : span / power < 5 ? power / 2 : power;
  Ticks ticks{std::floor(least / step + 1e-9) * step, std::ceil(most / step - 1e-9) * step, 0};
  if (ticks.high <= ticks.low) ticks.high = ticks.low + step;
  const auto count = static_cast<int>(std::round((ticks.high - ticks.low) / step));
  for (int n = 0; n <= count; ++n) {
    const double value = ticks.low + n * step;
    ticks.values.push_back(std::abs(value) < step * 1e-6 ? 0 : value);
  }
  return ticks;
}

std::string tick_label(const ValueAxis& axis, double value) {
  return axis.label ? axis.label(value) : fmt::format("{:.6g}", value);
}

}  // namespace attend::draw
