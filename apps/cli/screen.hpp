// The terminal: whether it takes colours, how a map is drawn on it, and a line that tells what takes long.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "head_map.hpp"

namespace attend::cli {

enum class Colours { none, palette, full };  // none, the 256 of xterm, 24 bits

struct Screen {
  Colours colours = Colours::none;
  int columns = 80;
};
// Of standard output: colours only on a terminal, and neither with NO_COLOR nor when not `allowed`.
Screen look_at_screen(bool allowed);

// `text` set off from the rest where there are colours.
std::string emphasised(const Screen& screen, const std::string& text);

// At most this many cells fit beside the labels.
std::int64_t cells_that_fit(const Screen& screen);
// Two rows of cells a line, with axes and a legend: coloured half blocks, or shades of plain characters.
std::string draw(const HeadMap& map, const Screen& screen);

// The same for a map of single tokens, with their words on both axes: a row a line.
bool words_fit(const std::vector<std::string>& words, const Screen& screen);
std::string draw_words(const HeadMap& map, const std::vector<std::string>& words, const Screen& screen);

// From one second on, and only on a terminal, a line on standard error says what is going on; gone when it is done.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void tick();
  std::string label_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

// What `work` gives; the line is gone before anything else can be printed.
template <class Work>
auto with_progress(const char* label, const Work& work) {
  const Progress progress(label);
  return work();
}

}  // namespace attend::cli
