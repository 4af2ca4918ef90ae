// attend man: the manual page, made from what --help says.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "attend/runtime.hpp"
#include "command.hpp"
#include "describe.hpp"

namespace attend::cli {
namespace {

// Text for roff: its escape character and its hyphen, and a line may not begin with one of its commands.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string capitals(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

// The next piece of `text` before `end`, which is taken off with it.
std::string_view take(std::string_view& text, std::string_view end) {
  const std::size_t at = std::min(text.find(end), text.size());
  const std::string_view piece = text.substr(0, at);
  text.remove_prefix(std::min(at + end.size(), text.size()));
  return piece;
}

// Indented lines stay as they are, others are filled.
std::string body(std::string_view lines) {
  std::string out;
  bool kept = false;
  while (!lines.empty()) {
    const std::string_view line = take(lines, "\n");
    const bool keep = line.starts_with("  ");
    if (keep != kept) out += keep ? ".PP\n.nf\n.RS\n" : ".RE\n.fi\n.PP\n";
    kept = keep;
    out += escaped(keep ? line.substr(2) : line) + "\n";
  }
  return kept ? out + ".RE\n.fi\n" : out;
}

// How long the title is that a piece of a footer opens with: "Examples:" on a line of its own, "Exit codes: 0 ..."; 0:
// none.
std::size_t title_length(std::string_view piece) {
  const std::size_t colon = piece.find(':');
  if (colon == std::string_view::npos) return 0;
  const std::string_view title = piece.substr(0, colon);
  const bool words = title.find_first_of(".,;\n") == std::string_view::npos && std::ranges::count(title, ' ') <= 1;
  return words ? colon : 0;
}

// A footer is pieces with an empty line between them. The program's titles become sections, a command's stay in its
// text.
std::string footer(std::string_view text, bool sections) {
  std::string out;
  while (!text.empty()) {
    std::string_view piece = take(text, "\n\n");
    const std::size_t title = title_length(piece);
    const std::string words = escaped(piece.substr(0, title));
    if (title == 0)
      out += ".PP\n";
    else
      out += sections ? fmt::format(".SH {}\n", capitals(words)) : fmt::format(".PP\n.B {}:\n", words);
    if (title > 0) piece.remove_prefix(std::min(title + 2, piece.size()));
    out += body(piece);
  }
  return out;
}

// "\fB\-n\fR, \fB\-\-tokens\fR \fIN\fR", and what it is for.
std::string option(const OptionText& text) {
  std::string names;
  for (const std::string& name : text.names)
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", escaped(name));
  if (!text.value.empty()) names += fmt::format(" \\fI{}\\fR", escaped(text.value));
  std::string more;
  if (text.takes == Takes::choice) more = fmt::format("one of {}", fmt::join(text.choices, ", "));
  if (!text.preset.empty()) more += fmt::format("{}default {}", more.empty() ? "" : "; ", text.preset);
  if (!more.empty()) more = fmt::format(" ({})", more);
  return fmt::format(".TP\n{}\n{}\n", names, escaped(text.text + more));
}

// "attend generate [options] model [prompt]"
std::string synopsis(const CommandText& command) {
  std::string line = fmt::format("\\fBattend {}\\fR [\\fIoptions\\fR]", escaped(command.name));
  for (const OptionText& p : command.positionals) {
    const std::string name = fmt::format("\\fI{}\\fR{}", escaped(p.names.front()), p.repeats ? " ..." : "");
    line += p.required ? " " + name : fmt::format(" [{}]", name);
  }
  return line;
}

std::string manual(const ProgramText& text) {
  std::string out = fmt::format(
      ".\\\" Made by 'attend man' from what the program says of itself.\n.TH ATTEND 1 \"\" \"attend {}\" \"User "
      "Commands\"\n"
      ".SH NAME\nattend \\- exact attention on the CPU, and language models on it\n"
      ".SH SYNOPSIS\n\\fBattend\\fR \\fIcommand\\fR [\\fIoptions\\fR] ...\n.SH DESCRIPTION\n{}\n"
      "Every command explains itself: \\fBattend\\fR \\fIcommand\\fR \\fB\\-\\-help\\fR.\n.SH OPTIONS\n",
      version(), escaped(text.self.text));
  for (const OptionText& o : text.self.options) out += option(o);
  out += ".SH COMMANDS\n";
  for (const CommandText& command : text.commands) {
    out += fmt::format(".SS {}\n{}\n.PP\n{}.\n", escaped(command.name), synopsis(command), escaped(command.text));
    for (const OptionText& p : command.positionals) out += option(p);
    for (const OptionText& o : command.options) out += option(o);
    out += footer(command.footer, false);
  }
  return out + footer(text.self.footer, true);
}

}  // namespace

Command add_man(Program& program) {
  const Subcommand app = program.add_subcommand("man", "Print the manual page");
  app.hide();
  return {app, [&program] {
            fmt::print("{}", manual(program.describe()));
            return kSuccess;
          }};
}

}  // namespace attend::cli
