// Holds back only what may be a mark, or line ends before one.
#include "apps/server/thought_reader.hpp"

#include <algorithm>
#include <utility>

namespace attend::server {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";
constexpr std::size_t kMaxSpace = 64;  // bytes that are held back

// How much of the end of `text` may be the beginning of `mark`.
std::size_t begun(std::string_view text, std::string_view mark) {
  std::size_t n = std::min(text.size(), mark.size() - 1);
  while (n > 0 && text.substr(text.size() - n) != mark.substr(0, n)) --n;
  return n;
}

std::size_t without_line_ends(std::string_view text) {
  return text.find_last_not_of('\n') + 1;
}

}  // namespace

ThoughtReader::ThoughtReader(Begin begin)
    : reads_(begin != Begin::content),
      at_(begin == Begin::content  ? At::content
          : begin == Begin::either ? At::start
                                   : At::thought),
      line_start_(true) {}

bool ThoughtReader::is_mark(std::string_view text) const {
  return reads_ && (text == kOpen || text == kClose);
}

ThoughtReader::Piece ThoughtReader::take(std::string_view text, bool last) {
  held_ += text;
  Piece piece;
  if (at_ == At::start && !begin()) {
    if (!last) return piece;
    at_ = At::content;
  }
  if (at_ == At::thought && !think(piece) && last) {
    piece.thoughts += held_;
    held_.clear();
  }
  if (at_ == At::gap) {
    held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
    if (!held_.empty()) at_ = At::content;
  }
  if (at_ == At::content) piece.content += std::exchange(held_, "");
  return piece;
}

// False while it is not certain whether the text begins with thoughts.
bool ThoughtReader::begin() {
  const std::size_t at = std::min(held_.find_first_not_of(" \n"), held_.size());
  const std::string_view said = std::string_view(held_).substr(at);
  if (at <= kMaxSpace && said.size() < kOpen.size() && kOpen.starts_with(said)) return false;
  at_ = said.starts_with(kOpen) ? At::thought : At::content;
  if (at_ == At::thought) held_.erase(0, at + kOpen.size());
  return true;
}

// False while the thoughts go on.
bool ThoughtReader::think(Piece& piece) {
  if (line_start_) held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
  const std::size_t end = held_.find(kClose);
  const std::string_view sure =
      std::string_view(held_).substr(0, end != std::string::npos ? end : held_.size() - begun(held_, kClose));
  const std::size_t count = std::max(without_line_ends(sure), sure.size() - std::min(sure.size(), kMaxSpace));
  piece.thoughts += held_.substr(0, count);
  if (count > 0) line_start_ = false;
  if (end == std::string::npos) {
    held_.erase(0, count);
    return false;
  }
  held_.erase(0, end + kClose.size());
  at_ = At::gap;
  return true;
}

}  // namespace attend::server
