// Checks UTF-8, and guesses other encodings by what their bytes can and cannot be.
#include "io/utf8_text.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "base/utf8.hpp"
#include "io/file_error.hpp"
#include "io/mapped_file.hpp"

namespace attend::io {
namespace {

constexpr std::size_t kSample = std::size_t{64} << 10;

std::uint8_t byte_at(std::string_view text, std::size_t place) {
  return static_cast<std::uint8_t>(text[place]);
}
bool within(std::uint8_t x, std::uint8_t low, std::uint8_t high) {
  return low <= x && x <= high;
}

// The first byte in [begin, end) that is wrong, or end. UTF-16 of ASCII is valid UTF-8 but for its meaning: a zero byte
// is wrong as well.
std::size_t first_wrong(std::string_view all, std::size_t begin, std::size_t end) {
  const std::string_view text = all.substr(0, end);
  for (std::size_t place = begin; place < end;) {
    const Utf8Step step = utf8_step(text, place);
    if (step.kind != Utf8Step::Kind::whole || text[place] == '\0') return place;
    place += step.bytes;
  }
  return end;
}

// Text that is UTF-8 but for a few bytes: most of its characters beyond ASCII are whole.
bool is_mostly_utf8(std::string_view sample) {
  std::size_t whole = 0, broken = 0;
  for (std::size_t place = utf8::ascii_run(sample, 0); place < sample.size(); place = utf8::ascii_run(sample, place)) {
    const Utf8Step step = utf8_step(sample, place);
    if (step.kind != Utf8Step::Kind::cut) ++(step.kind == Utf8Step::Kind::whole ? whole : broken);
    place += step.bytes;
  }
  return whole > 4 * broken;
}

// A code unit that texts are mostly made of: ASCII, Western, Greek, Cyrillic, punctuation, Chinese, Japanese, Korean.
// ASCII in the other byte order would be Chinese characters whose low byte is zero.
bool is_likely_unit(unsigned unit) {
  const auto in = [&](unsigned low, unsigned high) { return low <= unit && unit <= high; };
  if (unit < 0x80) return unit >= 0x20 || in('\t', '\r');
  if ((unit & 0xFF) == 0) return unit == 0x3000 || unit == 0x4E00;
  return in(0xA0, 0x24F) || in(0x370, 0x52F) || in(0x2010, 0x206F) || in(0x3000, 0x30FF) || in(0x3400, 0x9FFF) ||
         in(0xAC00, 0xD7A3) || in(0xFF00, 0xFFEF);
}

// UTF-16 without a mark, in bytes of which some are zero: the byte order in which nearly all units are likely.
std::string utf16_by_units(std::string_view all, std::size_t begin, std::size_t end) {
  std::size_t units = 0, little = 0, big = 0;
  for (std::size_t place = begin + begin % 2; place + 1 < end; place += 2, ++units) {
    const unsigned first = byte_at(all, place), second = byte_at(all, place + 1);
    little += is_likely_unit(second << 8 | first) ? 1U : 0U;
    big += is_likely_unit(first << 8 | second) ? 1U : 0U;
  }
  if (10 * std::max(little, big) < 9 * units || little == big) return "";
  return little > big ? "UTF-16LE" : "UTF-16BE";
}

bool has_control(std::string_view sample) {
  return std::any_of(sample.begin(), sample.end(), [](char c) {
    const auto byte = static_cast<std::uint8_t>(c);
    return (byte < 0x20 && (byte < '\b' || byte > '\r') && byte != 0x1B) || byte == 0x7F;
  });
}

// Every byte belongs to a character of GB18030, and at least half of those of two bytes are ones that GB2312 has:
// accented letters before ASCII ones look like the others.
bool is_gb18030(std::string_view sample) {
  std::size_t pairs = 0, common = 0;
  for (std::size_t place = 0; place < sample.size();) {
    const std::uint8_t lead = byte_at(sample, place);
    if (lead < 0x80) {
      ++place;
      continue;
    }
    if (!within(lead, 0x81, 0xFE)) return false;
    if (place + 1 == sample.size()) break;  // cut by the sample's end
    const std::uint8_t second = byte_at(sample, place + 1);
    if (within(second, 0x30, 0x39)) {
      if (place + 4 > sample.size()) break;
      if (!within(byte_at(sample, place + 2), 0x81, 0xFE) || !within(byte_at(sample, place + 3), 0x30, 0x39))
        return false;
      place += 4;
      continue;
    }
    if (second < 0x40 || second == 0x7F || second == 0xFF) return false;
    ++pairs;
    common += within(lead, 0xA1, 0xF7) && second >= 0xA1 ? 1U : 0U;
    place += 2;
  }
  return pairs > 0 && 2 * common >= pairs;
}

// One byte a character, most of them ASCII, as Western languages have it.
std::string western(std::string_view sample) {
  std::size_t beyond = 0;
  bool windows = false;
  for (std::size_t place = 0; place < sample.size(); ++place) {
    const std::uint8_t byte = byte_at(sample, place);
    if (byte == 0x81 || byte == 0x8D || byte == 0x8F || byte == 0x90 || byte == 0x9D) return "";
    windows = windows || within(byte, 0x80, 0x9F);
    beyond += byte >= 0x80 ? 1U : 0U;
  }
  if (3 * beyond > sample.size()) return "";
  return windows ? "WINDOWS-1252" : "ISO-8859-1";
}

// A word of a shell.
std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && word.front() != '-' && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("/._-+=:,@").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string advice(const std::string& encoding, const TextOrigin& origin) {
  if (encoding.empty()) return "it does not look like text";
  // -c drops what is broken.
  const std::string from = encoding == "UTF-8" ? "iconv -c -f UTF-8 -t UTF-8" : "iconv -f " + encoding + " -t UTF-8";
  const std::string looks = encoding == "UTF-8" ? "it looks like UTF-8 with damaged bytes; drop them: "
                                                : "it looks like " + encoding + "; convert it: ";
  if (!origin.is_file) return looks + from;
  const std::filesystem::path path(origin.name);
  const std::string target = (path.parent_path() / path.stem()).string() + ".utf8" + path.extension().string();
  return looks + from + " " + (path.native().front() == '-' ? "-- " : "") + quoted(origin.name) + " > " +
         quoted(target);
}

}  // namespace

std::string likely_encoding(std::string_view all, std::size_t at) {
  if (all.starts_with(std::string_view("\xFF\xFE\0\0", 4))) return "UTF-32LE";
  if (all.starts_with(std::string_view("\0\0\xFE\xFF", 4))) return "UTF-32BE";
  if (all.starts_with("\xFF\xFE")) return "UTF-16LE";
  if (all.starts_with("\xFE\xFF")) return "UTF-16BE";
  const std::size_t begin = at < kSample / 2 ? 0 : at - kSample / 2, end = std::min(all.size(), begin + kSample);
  std::string_view sample = all.substr(begin, end - begin);
  if (sample.find('\0') != std::string_view::npos) return utf16_by_units(all, begin, end);
  if (has_control(sample)) return "";
  if (is_mostly_utf8(sample)) return "UTF-8";
  // The sample may begin inside a character: after an ASCII one, or at the first that is wrong, it does not.
  std::string_view whole = sample;
  if (begin > 0) {
    const std::size_t line = sample.find('\n');
    whole.remove_prefix(line < at - begin ? line + 1 : at - begin);
  }
  return is_gb18030(whole) ? "GB18030" : western(sample);
}

void check_utf8(std::string_view all, std::size_t begin, std::size_t end, const TextOrigin& origin) {
  const std::size_t at = first_wrong(all, begin, end);
  if (at == end) return;
  char byte[8];
  (void)std::snprintf(byte, sizeof byte, "0x%02x", byte_at(all, at));
  const std::int64_t line =
      1 + origin.lines_before + std::count(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const std::int64_t place = origin.bytes_before + static_cast<std::int64_t>(at);
  throw FileError(origin.name + ":" + std::to_string(line) + ": byte " + std::to_string(place) + " is " + byte +
                  ", expected text in UTF-8; " + advice(likely_encoding(all, at), origin));
}

std::size_t byte_order_mark(std::string_view text) {
  return text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
}

void append_with_lf(std::string& out, std::string_view text) {
  while (true) {
    const std::size_t at = text.find("\r\n");
    out += text.substr(0, at);
    if (at == std::string_view::npos) return;
    text.remove_prefix(at + 1);
  }
}

std::string utf8_text(std::string_view all, const TextOrigin& origin) {
  check_utf8(all, 0, all.size(), origin);
  std::string text;
  text.reserve(all.size());
  append_with_lf(text, all.substr(byte_order_mark(all)));
  return text;
}

std::string read_utf8_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return utf8_text(as_text(file.bytes()), {path.string()});
}

}  // namespace attend::io
