// The normalizers, one pass over the text each.
#include "llm/text/normalizer.hpp"

#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

template <class Put>
std::string each(std::string_view text, const Put& put) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (std::size_t place = 0; place < text.size();) {
    const CodePoint c = code_point(text, place);
    put(out, c.value);
    place += c.bytes;
  }
  return out;
}

void clean(std::string& out, char32_t c) {
  if (c == 0 || c == 0xFFFD || is_bert_control(c)) return;
  append_utf8(out, (traits(c) & kSpace) != 0 ? U' ' : c);
}

void space_chinese(std::string& out, char32_t c) {
  const bool chinese = is_chinese(c);
  if (chinese) out += ' ';
  append_utf8(out, c);
  if (chinese) out += ' ';
}

std::string step(Normal normal, std::string_view text) {
  switch (normal) {
    case Normal::nfc:
      return nfc(text);
    case Normal::nfd:
      return nfd(text);
    case Normal::lowercase:
      return each(text, append_lowercase);
    case Normal::strip_combining:
      return each(text, [](std::string& out, char32_t c) {
        if (!is_combining_mark(c)) append_utf8(out, c);
      });
    case Normal::strip_nonspacing:
      return each(text, [](std::string& out, char32_t c) {
        if (!is_nonspacing_mark(c)) append_utf8(out, c);
      });
    case Normal::bert_clean:
      return each(text, clean);
    case Normal::bert_chinese:
      return each(text, space_chinese);
  }
  return std::string(text);
}

}  // namespace

std::string Normalizer::apply(std::string_view text) const {
  std::string now(text);
  for (const Normal normal : steps_) now = step(normal, now);
  return now;
}

}  // namespace attend::llm
