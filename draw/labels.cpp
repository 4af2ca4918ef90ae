// Tokens as a reader sees them.
#include "draw/labels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/utf8.hpp"

namespace attend::draw {
namespace {

// Of direction, of no width, or a line end: what a reader would not see, and a layout would obey.
bool invisible(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C ||
         (c >= 0x200B && c <= 0x200F && c != 0x200D) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
         c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

std::string escaped(char32_t c) {
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  if (c == '\r') return "\\r";
  return c < 0x100 ? fmt::format("\\x{:02x}", static_cast<unsigned>(c))
                   : fmt::format("\\u{:04x}", static_cast<unsigned>(c));
}

// Bytes that are no whole character, as tokens of bytes have them: \xe4\xb8, told apart from one another.
std::string with_bytes_escaped(std::string_view piece) {
  std::string out;
  for (std::size_t place = 0; place < piece.size();) {
    const Utf8Step step = utf8_step(piece, place);
    if (step.kind == Utf8Step::Kind::whole)
      out.append(piece, place, step.bytes);
    else
      for (std::size_t n = 0; n < step.bytes; ++n) out += escaped(static_cast<unsigned char>(piece[place + n]));
    place += step.bytes;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  const std::string whole = utf8_repaired(text);
  std::string out;
  out.reserve(whole.size());
  for (std::size_t place = 0; place < whole.size();) {
    const CodePoint c = code_point(whole, place);
    if (invisible(c.value))
      out += escaped(c.value);
    else
      out.append(whole, place, c.bytes);
    place += c.bytes;
  }
  return out;
}

std::string token_label(std::string_view piece, std::size_t most, bool ascii) {
  // No more is read than can be shown: a token may be a megabyte.
  const bool beyond = piece.size() > 8 * most;
  const std::string text = printable(with_bytes_escaped(piece.substr(0, std::min(piece.size(), 8 * most))));
  if (text.empty()) return ascii ? "''" : "∅";
  const std::size_t first = std::min(text.find_first_not_of(' '), text.size()), last = text.find_last_not_of(' ');
  const std::string space = ascii ? "_" : "␣", more = ascii ? ".." : "…";
  std::string out;
  std::size_t count = 0;
  for (std::size_t place = 0; place < text.size();) {
    const CodePoint c = code_point(text, place);
    const bool edge = place < first || (last != std::string::npos && place > last);
    const bool ends = place + c.bytes == text.size() && !beyond;
    if (++count == most && !ends) return out + more;
    out += edge ? space : text.substr(place, c.bytes);
    place += c.bytes;
  }
  return out;
}

std::vector<std::string> token_labels(const std::vector<std::string>& pieces, std::size_t most, bool ascii) {
  std::vector<std::string> labels;
  std::transform(pieces.begin(), pieces.end(), std::back_inserter(labels),
                 [&](const std::string& piece) { return token_label(piece, most, ascii); });
  return labels;
}

}  // namespace attend::draw
