// Rows of JSON: lines, or the elements of an array, which are found by counting brackets outside strings.
#include <algorithm>
#include <optional>
#include <string_view>

#include "llm/train/row_files.hpp"
#include "llm/train/row_limits.hpp"

namespace attend::llm {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

void read_lines(io::TextStream& in, const OnRow& on_row) {
  for (std::string_view line = in.line(kMaxRowBytes); !line.empty(); line = in.line(kMaxRowBytes)) {
    if (line.find_first_not_of(kSpace) == std::string_view::npos) continue;
    const std::string place = in.name() + ":" + std::to_string(in.line_number());
    if (line.size() + 4 > kMaxRowBytes) {
      while (!line.empty() && !line.ends_with('\n')) line = in.line(kMaxRowBytes);
      on_row(place, [&]() -> io::Json { throw too_long(place); });
      continue;
    }
    on_row(place, [&] {
      in.check(line);
      return io::parse_json(line, place, kRowLimits);
    });
  }
}

// Hands over each element of an array as its last byte comes in.
class ArrayReader {
 public:
  ArrayReader(io::TextStream& in, const OnRow& on_row) : in_(in), on_row_(on_row) {}

  void run() {
    for (std::string_view piece = in_.line(kPiece); !piece.empty() && state_ != State::broken; piece = in_.line(kPiece))
      scan(piece);
    if (state_ == State::item) {
      problem_ = place() + ": the file ends inside this item: it was cut short";
      finish();
    } else if (state_ != State::done && state_ != State::broken) {
      broken("the array does not end with ]: the file was cut short");
    }
  }

 private:
  enum class State { open, value, item, next, done, broken };
  static constexpr std::size_t kPiece = std::size_t{64} << 10;

  std::string place() const { return in_.name() + ":" + std::to_string(line_) + ": item " + std::to_string(number_); }

  void scan(std::string_view piece) {
    std::size_t begin = 0;  // of the item's part in this piece
    for (std::size_t i = 0; i < piece.size() && state_ != State::broken; ++i) {
      if (state_ == State::item) {
        const End end = item_byte(piece[i]);
        if (end == End::no) continue;
        keep(piece.substr(begin, i + (end == End::with ? 1 : 0) - begin));
        finish();
        if (end == End::with) continue;
      }
      if (kSpace.find(piece[i]) == std::string_view::npos) between(piece, i, begin);
    }
    if (state_ == State::item) keep(piece.substr(begin));
  }

  // A byte that is not inside an item.
  void between(std::string_view piece, std::size_t i, std::size_t& begin) {
    const char c = piece[i];
    if (state_ == State::open) {
      state_ = State::value;  // c is '[': that is how the file was recognised
    } else if (state_ == State::value && (c != ']' || number_ > 0)) {
      if (c == ',' || c == ']') return broken(std::string("expected a value, not ") + c);
      begin_item(c);
      begin = i;
    } else if (state_ == State::done) {
      broken("there is text after the end of the array");
    } else if (c == ']') {
      state_ = State::done;
    } else if (c == ',') {
      state_ = State::value;
    } else {
      broken("expected , or ] between two items");
    }
  }

  void begin_item(char c) {
    state_ = State::item;
    ++number_, line_ = in_.line_number();
    item_.clear(), problem_.clear();
    depth_ = c == '{' || c == '[' ? 1 : 0;
    in_string_ = c == '"', escaped_ = false;
  }

  enum class End { no, with, before };  // whether the item ends, with or before this byte
  End item_byte(char c) {
    if (in_string_) {
      if (escaped_) {
        escaped_ = false;
      } else if (c == '\\') {
        escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
        return depth_ == 0 ? End::with : End::no;
      }
      return End::no;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') return depth_ == 0 ? End::before : --depth_ == 0 ? End::with : End::no;
    return depth_ == 0 && (c == ',' || kSpace.find(c) != std::string_view::npos) ? End::before : End::no;
  }

  void keep(std::string_view part) {
    if (!problem_.empty()) return;
    if (item_.size() + part.size() > kMaxRowBytes) {
      problem_ = too_long(place()).what();
      item_.clear();
      return;
    }
    try {
      in_.check(part);
    } catch (const io::FileError& error) {
      problem_ = error.what();
    }
    item_ += part;
  }

  void finish() {
    state_ = State::next;
    const std::string at = place();
    on_row_(at, [&] {
      if (!problem_.empty()) throw io::FileError(problem_);
      return io::parse_json(item_, at, kRowLimits);
    });
  }

  // Where one item ends and the next begins is no longer known.
  void broken(const std::string& why) {
    state_ = State::broken;
    const std::string at = in_.name() + ":" + std::to_string(in_.line_number());
    on_row_(at, [&]() -> io::Json {
      throw io::FileError(at + ": after item " + std::to_string(number_) + ": " + why +
                          "; the rest of the file cannot be read");
    });
  }

  io::TextStream& in_;
  const OnRow& on_row_;
  State state_ = State::open;
  std::string item_, problem_;
  std::int64_t number_ = 0, line_ = 0;
  std::int64_t depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace

void read_json_rows(io::TextStream& in, const OnRow& on_row) {
  const std::string_view begin = in.peek(4096);
  const std::size_t first = begin.find_first_not_of(kSpace);
  if (first != std::string_view::npos && begin[first] == '[')
    ArrayReader(in, on_row).run();
  else
    read_lines(in, on_row);
}

}  // namespace attend::llm
