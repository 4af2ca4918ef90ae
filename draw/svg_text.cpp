// Cairo's SVG made whole: its outlines stay as they are.
#include "draw/svg_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>

namespace attend::draw {
namespace {

constexpr char kPrefix = '\x01';  // of a name until the prefix is known; no SVG may hold it

// Cairo numbers its names by a counter of the process. Here they are numbered as they come.
std::string with_numbered_names(std::string_view svg) {
  std::map<std::string_view, std::size_t> names;
  std::string out;
  out.reserve(svg.size());
  while (!svg.empty()) {
    std::size_t next = svg.size(), length = 0;
    for (const std::string_view before : {"id=\"", "href=\"#", "url(#"}) {
      const std::size_t at = svg.find(before);
      if (at < next) next = at, length = before.size();
    }
    out += svg.substr(0, next + length);
    svg.remove_prefix(next + length);
    if (length == 0) break;
    const std::size_t end = std::min(svg.find_first_of("\")"), svg.size());
    out += fmt::format("{}{}", kPrefix, names.try_emplace(svg.substr(0, end), names.size()).first->second);
    svg.remove_prefix(end);
  }
  return out;
}

// The same picture has the same names, two pictures in one page have different ones: they begin with a hash (FNV-1a).
std::string with_stable_names(std::string_view svg) {
  const std::string numbered = with_numbered_names(svg);
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : numbered) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  const std::string prefix = fmt::format("p{:08x}-", static_cast<std::uint32_t>(hash ^ hash >> 32));
  std::string out;
  out.reserve(numbered.size() + numbered.size() / 16);
  for (const char c : numbered) {
    if (c == kPrefix)
      out += prefix;
    else
      out += c;
  }
  return out;
}

// Cairo writes six decimals; a thousandth of a unit is enough, but for the factors of a matrix.
std::string with_short_numbers(std::string_view svg) {
  constexpr std::size_t kDecimals = 3;
  std::string out;
  out.reserve(svg.size());
  for (std::size_t at = 0; at < svg.size();) {
    if (svg.substr(at).starts_with("matrix(")) {
      const std::size_t end = std::min(svg.find(')', at), svg.size());
      out += svg.substr(at, end - at);
      at = end;
      continue;
    }
    out += svg[at++];
    if (out.back() != '.') continue;
    const std::size_t end = std::min(svg.find_first_not_of("0123456789", at), svg.size());
    out += svg.substr(at, std::min(kDecimals, end - at));
    at = end;
  }
  return out;
}

std::string text_element(const Pen::Written& w) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  const std::string turn =
      w.place.upward ? fmt::format(" transform=\"rotate(-90 {:.6g} {:.6g})\"", w.place.x, w.place.y) : "";
  return fmt::format(
      "<text x=\"{:.6g}\" y=\"{:.6g}\" font-size=\"{:g}\" text-anchor=\"{}\" textLength=\"{:.4g}\"{}>{}</text>\n",
      w.place.x, w.place.y + (w.place.upward ? 0 : 0.36 * w.font.size), w.font.size,
      kAnchors[static_cast<int>(w.place.anchor)], w.width, turn, escaped_xml(w.text));
}

}  // namespace

std::string escaped_xml(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return safe;
}

std::string svg_of_both(const std::string& light, const std::string& dark) {
  const auto open = [](const std::string& svg) { return svg.find('>', svg.find("<svg ")) + 1; };
  const auto inside = [&](const std::string& svg) { return svg.substr(open(svg), svg.rfind("</svg>") - open(svg)); };
  return light.substr(0, open(light)) +
         "\n<style>.dark{display:none}@media(prefers-color-scheme:dark){.light{display:none}.dark{display:inline}}</"
         "style>\n"
         "<g class=\"light\">" +
         inside(light) + "</g>\n<g class=\"dark\">" + inside(dark) + "</g>\n</svg>\n";
}

std::string with_text(std::string_view svg, const std::string& title, const std::vector<Pen::Written>& written) {
  std::string out = with_stable_names(with_short_numbers(svg));
  if (const std::size_t open = out.find("<svg "); open != std::string::npos) {
    out.insert(out.find('>', open) + 1, fmt::format("\n<title>{}</title>", escaped_xml(title)));
    out.insert(open + 5, "role=\"img\" ");
  }
  constexpr std::string_view kImage = "<image ";
  for (std::size_t at = 0; (at = out.find(kImage, at)) != std::string::npos; at += kImage.size())
    out.insert(at + kImage.size(), "style=\"image-rendering:pixelated\" ");
  std::string layer = "<g fill-opacity=\"0\" font-family=\"sans-serif\" xml:space=\"preserve\">\n";
  for (const Pen::Written& w : written) layer += text_element(w);
  const std::size_t end = out.rfind("</svg>");
  out.insert(end == std::string::npos ? out.size() : end, layer + "</g>\n");
  return out;
}

}  // namespace attend::draw
