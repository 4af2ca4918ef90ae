// Lines with editing and history, by libedit.
#include <histedit.h>

#include <cstdio>
#include <utility>

#include "io/environment.hpp"
#include "line_reader.hpp"
#include "terminal_lines.hpp"

namespace attend::cli {

namespace {

constexpr int kLinesKept = 1000;
constexpr char kEscapes = '\1';  // around what takes no room on the screen

}  // namespace

struct LineReader::Editor {
  explicit Editor(std::string shown) : prompt(std::move(shown)) {
    history = ::history_init();
    edit = ::el_init("attend", stdin, stdout, stderr);
    if (edit == nullptr || history == nullptr) return;
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kLinesKept);
    ::history(history, &event, H_SETUNIQUE, 1);
    ::el_set(edit, EL_CLIENTDATA, this);
    ::el_set(edit, EL_PROMPT_ESC, prompt_of, kEscapes);
    ::el_set(edit, EL_EDITOR, "emacs");
    ::el_set(edit, EL_SIGNAL, 1);  // Ctrl-C leaves the terminal as it was; a new size is seen
    ::el_set(edit, EL_HIST, ::history, history);
    bind_keys();
    redraw_lines();
    ::el_source(edit, nullptr);  // the user's ~/.editrc has the last word
  }
  ~Editor() {
    if (edit != nullptr) ::el_end(edit);
    if (history != nullptr) ::history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  bool works() const { return edit != nullptr && history != nullptr; }

  static char* prompt_of(EditLine* line) {
    Editor* self = nullptr;
    ::el_get(line, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }
  // What the keys of common terminals send; libedit knows few of them by itself.
  void bind_keys() const {
    constexpr std::pair<const char*, const char*> kKeys[] = {
        {"\\e[3~", "ed-delete-next-char"}, {"\\e[H", "ed-move-to-beg"},  {"\\e[F", "ed-move-to-end"},
        {"\\e[1~", "ed-move-to-beg"},      {"\\e[4~", "ed-move-to-end"}, {"\\eOH", "ed-move-to-beg"},
        {"\\eOF", "ed-move-to-end"},       {"\\e[1;5D", "ed-prev-word"}, {"\\e[1;5C", "em-next-word"},
        {"^R", "em-inc-search-prev"},      {"^W", "ed-delete-prev-word"}};
    for (const auto& [key, command] : kKeys) ::el_set(edit, EL_BIND, key, command, nullptr);
  }

  // Inserting and deleting on the screen counts characters where it should count columns, and leaves a line with wide
  // ones in pieces; without these abilities of the terminal libedit writes the rest of the line anew.
  void redraw_lines() const {
    for (const char* ability : {"ic", "IC", "im", "ei", "ip", "dc", "DC", "dm", "ed"})
      ::el_set(edit, EL_SETTC, ability, "", nullptr);
  }

  std::string prompt;
  History* history = nullptr;
  EditLine* edit = nullptr;
};

LineReader::LineReader(std::string prompt, bool bold) : prompt_(std::move(prompt)) {
  const std::string shown =
      bold ? std::string(1, kEscapes) + "\x1b[1m" + kEscapes + prompt_ + kEscapes + "\x1b[0m" + kEscapes : prompt_;
  const std::string_view terminal = io::environment("TERM");
  if (!terminal.empty() && terminal != "dumb") editor_ = std::make_unique<Editor>(shown);
  if (editor_ != nullptr && !editor_->works()) editor_.reset();
  if (editor_ == nullptr) erase_whole_characters();
}

LineReader::~LineReader() = default;

std::optional<std::string> LineReader::read() {
  if (editor_ == nullptr) return read_plain_line(prompt_);
  (void)std::fflush(stdout);
  int count = 0;
  const char* line = ::el_gets(editor_->edit, &count);
  if (line == nullptr || count <= 0) return std::nullopt;
  std::string text(line, static_cast<std::size_t>(count));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  HistEvent event;
  if (text.find_first_not_of(" \t") != std::string::npos) ::history(editor_->history, &event, H_ENTER, text.c_str());
  return text;
}

}  // namespace attend::cli
