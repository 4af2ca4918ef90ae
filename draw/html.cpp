// One HTML file that holds everything.
#include "draw/html.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "draw/labels.hpp"
#include "draw/svg_text.hpp"

namespace attend::draw {
namespace {

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t n = 0; n < 3; ++n)
      three = three << 8 | (at + n < bytes.size() ? static_cast<unsigned char>(bytes[at + n]) : 0u);
    for (std::size_t n = 0; n < 4; ++n) out += at + n > bytes.size() ? '=' : kDigits[three >> (18 - 6 * n) & 63];
  }
  return out;
}

std::string data_address(const Picture& picture, Theme theme, Language language) {
  return "data:image/svg+xml;base64," + base64(to_svg(picture, {.theme = theme, .language = language}));
}

// The reader's own choice of light or dark decides which of both is shown.
std::string figure(const Picture& picture, Language language) {
  const std::string title = std::visit([](const auto& what) { return what.captions.title; }, picture);
  return fmt::format(
      "<figure><picture><source media=\"(prefers-color-scheme: dark)\" srcset=\"{}\">\n<img src=\"{}\" alt=\"{}\">"
      "</picture></figure>\n",
      data_address(picture, Theme::dark, language), data_address(picture, Theme::light, language),
      escaped_xml(printable(title)));
}

constexpr const char* kStyle = R"(:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  background: #fff; color: #1f2328 }
figure { margin: 1.5rem 0; overflow-x: auto } img { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) { body { background: #10141b; color: #e8edf3 } })";

}  // namespace

std::string to_html(const Page& page) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"{}\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src "
      "'unsafe-inline'\">\n"
      "<title>{}</title>\n<style>\n{}\n</style>\n</head>\n<body>\n<h1>{}</h1>\n",
      page.language == Language::chinese ? "zh-CN" : "en", escaped_xml(printable(page.title)), kStyle,
      escaped_xml(printable(page.title)));
  for (const Section& section : page.sections) {
    out += "<section>\n";
    if (!section.heading.empty()) out += fmt::format("<h2>{}</h2>\n", escaped_xml(printable(section.heading)));
    for (const std::string& text : section.paragraphs) out += fmt::format("<p>{}</p>\n", escaped_xml(printable(text)));
    for (const Picture& picture : section.pictures) out += figure(picture, page.language);
    out += "</section>\n";
  }
  if (!page.json.empty())
    out += fmt::format("<script type=\"application/octet-stream\" id=\"data\">{}</script>\n", base64(page.json));
  return out + "</body>\n</html>\n";
}

}  // namespace attend::draw
