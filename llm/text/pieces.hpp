// Texts by id in one block of memory: eight bytes each in addition to their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attend::llm {

class Pieces {
 public:
  static constexpr std::size_t kLongest = (std::size_t{1} << 18) - 1;  // bytes of a text

  Pieces() = default;
  // `count` empty texts; memory for `bytes` of text is reserved.
  Pieces(std::size_t count, std::size_t bytes) : ranges_(count) { bytes_.reserve(bytes); }
  explicit Pieces(std::span<const std::string> texts) : Pieces(texts.size(), 0) {
    for (std::size_t id = 0; id < texts.size(); ++id) set(id, texts[id]);
  }

  std::size_t size() const { return ranges_.size(); }
  std::string_view operator[](std::size_t id) const {
    return {bytes_.data() + ranges_[id].begin, static_cast<std::size_t>(ranges_[id].size)};
  }
  // `text` has at most kLongest bytes and is not a view of these texts. Views become invalid, unless the new text is
  // at most as long as the old one: it is written in its place.
  void set(std::size_t id, std::string_view text) {
    Range& range = ranges_[id];
    if (text.size() > range.size) {
      range.begin = bytes_.size() & kBegin;
      bytes_.append(text);
    } else {
      bytes_.replace(range.begin, text.size(), text);
    }
    range.size = text.size() & kLongest;
  }

 private:
  static constexpr std::uint64_t kBegin = (std::uint64_t{1} << 46) - 1;
  struct Range {
    std::uint64_t begin : 46 = 0, size : 18 = 0;
  };
  std::vector<Range> ranges_;
  std::string bytes_;
};

}  // namespace attend::llm
