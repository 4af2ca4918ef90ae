// The window over a mapped file is the file; over a compressed one it is what was unpacked and not yet taken.
#include "io/text_stream.hpp"

#include <algorithm>
#include <utility>

namespace attend::io {
namespace {

constexpr std::size_t kPiece = std::size_t{256} << 10;   // bytes that are unpacked at once
constexpr std::size_t kRelease = std::size_t{16} << 20;  // taken bytes of a mapped file that stay in memory

}  // namespace

TextStream::TextStream(const std::filesystem::path& path) : file_(path), origin_{.name = path.string()} {
  unpacker_ = unpacker_of(file_.bytes(), origin_.name);
  if (unpacker_ == nullptr)
    window_ = as_text(file_.bytes());
  else
    origin_.is_file = false;  // iconv cannot read it
  at_ = byte_order_mark(peek(3));
}

TextStream::~TextStream() {
  not_needed_now(file_.bytes());
}

bool TextStream::unpack_more() {
  if (unpacker_ == nullptr) return false;
  if (at_ >= kPiece) {
    const std::size_t gone = at_ / 2 * 2;  // likely_encoding() looks at pairs of bytes
    origin_.lines_before += std::count(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(gone), '\n');
    origin_.bytes_before += static_cast<std::int64_t>(gone);
    buffer_.erase(0, gone);
    at_ -= gone;
  }
  const std::size_t old = buffer_.size();
  buffer_.resize(old + kPiece);
  const std::size_t made = unpacker_->read(std::span(buffer_).subspan(old));
  buffer_.resize(old + made);
  window_ = buffer_;
  return made > 0;
}

std::string_view TextStream::peek(std::size_t least) {
  while (window_.size() - at_ < least && unpack_more()) {
  }
  return window_.substr(at_);
}

// A large file does not fill the process's memory as it is read.
void TextStream::release_taken() {
  if (unpacker_ != nullptr || at_ - released_ < kRelease) return;
  not_needed_now(file_.bytes().subspan(released_, at_ - released_));
  released_ = at_;
}

std::string_view TextStream::line(std::size_t most) {
  release_taken();
  if (std::exchange(line_ended_, false)) ++line_;
  std::string_view text;
  std::size_t end = std::string_view::npos;
  for (std::size_t least = std::min(most + 1, kPiece);; least = std::min(most + 1, 2 * least)) {
    const std::size_t searched = text.size();
    text = peek(least).substr(0, most + 1);
    end = text.find('\n', searched);
    if (end != std::string_view::npos || text.size() < least || text.size() > most) break;
  }
  std::size_t size = std::min(end == std::string_view::npos ? text.size() : end + 1, most);
  // A character of UTF-8 has up to three bytes after its first.
  for (int back = 0; back < 3 && size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80; ++back)
    --size;
  at_ += size;
  line_ended_ = size > 0 && text[size - 1] == '\n';
  return text.substr(0, size);
}

void TextStream::check(std::string_view part) const {
  const auto begin = static_cast<std::size_t>(part.data() - window_.data());
  check_utf8(window_, begin, begin + part.size(), origin_);
}

std::int64_t TextStream::bytes_read() const {
  return static_cast<std::int64_t>(unpacker_ == nullptr ? at_ : unpacker_->used());
}

}  // namespace attend::io
