// A lab's report for a terminal: text that wraps, tables, and the order of its parts.
#include "labs/terminal.hpp"

#include <algorithm>
#include <array>

#include "draw/columns.hpp"

namespace attend::labs {
namespace {

constexpr int kWidest = 96;  // columns of running text: longer lines are hard to read

// The length of the UTF-8 character that begins with this byte.
std::size_t bytes_of(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Pieces that must not be broken: a word with the spaces before it, or one Chinese character with the marks that may
// not begin a line.
std::vector<std::string> pieces_of(const std::string& text) {
  static constexpr std::string_view kClosing = "，。；：！？、）」』”》…", kOpening = "（「『“《";
  std::vector<std::string> pieces;
  bool open = false;     // the last piece is a word that goes on
  bool bracket = false;  // the last piece ends in a mark that may not end a line
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = std::min(bytes_of(text[at]), text.size() - at);
    const std::string one = text.substr(at, size);
    at += size;
    const bool wide = draw::columns_of(one) == 2;
    const bool opens = size == 3 && kOpening.find(one) != kOpening.npos;
    if (bracket) {
      pieces.back() += one;
      open = !wide;
    } else if (one == " ") {
      pieces.push_back(one);
      open = true;
    } else if (wide && size == 3 && kClosing.find(one) != kClosing.npos && !pieces.empty()) {
      pieces.back() += one;
      open = false;
    } else if (wide) {
      if (open && !pieces.empty() && pieces.back().find_first_not_of(' ') == std::string::npos)
        pieces.back() += one;
      else
        pieces.push_back(one);
      open = false;
    } else {
      if (!open) pieces.emplace_back();
      pieces.back() += one;
      open = true;
    }
    bracket = opens;
  }
  return pieces;
}

std::string padded(const std::string& text, int width, bool right) {
  const std::string space(static_cast<std::size_t>(std::max(0, width - draw::columns_of(text))), ' ');
  return right ? space + text : text + space;
}

int text_columns(const draw::Screen& screen) {
  return std::min(screen.columns, kWidest);
}

// The headings of a report.
enum class Part { question, guess, results, conclusions, lesson, why, parameters };
const std::string& heading(Part part, Language language) {
  static const std::array<Text, 7> kHeadings = {say("The question", "问题"),
                                                say("Guess first", "先猜一猜"),
                                                say("What came out", "实验结果"),
                                                say("Conclusions", "结论"),
                                                say("What lessons say", "常见教程的说法"),
                                                say("Why", "为什么"),
                                                say("Parameters", "可以调的参数")};
  return kHeadings[static_cast<std::size_t>(part)].in(language);
}

std::string titled(const draw::Screen& screen, const std::string& title) {
  return "\n" + draw::emphasised(screen, title) + "\n";
}

std::string paragraph(const Text& text, Language language, const draw::Screen& screen, int indent = 0) {
  return wrapped(text.in(language), text_columns(screen), indent) + "\n";
}

const Text& judgement(const Conclusion& conclusion) {
  static const Text kHolds = say("✓ holds", "✓ 成立"), kFails = say("✗ does not hold on this run", "✗ 这次运行不成立"),
                    kOpen = say("? not decided, --quick is too small for this", "? 无法判断，--quick 的规模太小");
  return conclusion.holds ? kHolds : conclusion.decided ? kFails : kOpen;
}

std::string parameters_of(const Lab& lab, const Arguments& arguments, Language language, const draw::Screen& screen) {
  if (lab.parameters.empty()) return {};
  std::string text = titled(screen, heading(Part::parameters, language));
  for (const Parameter& p : lab.parameters) {
    const std::string value = arguments.text(p.name);
    const std::string range = p.words ? std::string() : fmt::format(" [{}..{}]", p.least, p.most);
    text += wrapped(fmt::format("--{} {}{}  {}", p.name, value.empty() ? "..." : value, range, p.help.in(language)),
                    text_columns(screen), 2) +
            "\n";
  }
  return text;
}

}  // namespace

std::string wrapped(const std::string& text, int columns, int indent) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::string out = margin;
  int used = indent;
  std::size_t at = 0;
  while (true) {
    const std::size_t end = text.find('\n', at);
    for (const std::string& piece : pieces_of(text.substr(at, end == text.npos ? end : end - at))) {
      const int width = draw::columns_of(piece);
      if (used + width > columns && used > indent) {
        out += "\n" + margin;
        used = indent;
        const std::string bare = piece.substr(std::min(piece.find_first_not_of(' '), piece.size()));
        out += bare;
        used += draw::columns_of(bare);
      } else {
        out += piece;
        used += width;
      }
    }
    if (end == text.npos) return out;
    out += "\n" + margin;
    used = indent;
    at = end + 1;
  }
}

std::string to_terminal(const Table& table, Language language, const draw::Screen& screen) {
  std::vector<int> widths;
  for (const Text& column : table.columns) widths.push_back(draw::columns_of(column.in(language)));
  for (const auto& row : table.rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], draw::columns_of(row[c].in(language)));
  const auto line = [&](const std::vector<Text>& cells) {
    std::string text = " ";
    for (std::size_t c = 0; c < cells.size(); ++c) text += " " + padded(cells[c].in(language), widths[c], c > 0) + " ";
    while (text.ends_with(' ')) text.pop_back();
    return text + "\n";
  };
  std::string text = wrapped(table.title.in(language), text_columns(screen)) + "\n";
  text += draw::emphasised(screen, line(table.columns));
  for (const auto& row : table.rows) text += line(row);
  return text;
}

std::string introduction(const Lab& lab, const Arguments& arguments, Language language, const draw::Screen& screen) {
  std::string text = draw::emphasised(screen, lab.title.in(language)) + "\n";
  text += titled(screen, heading(Part::question, language)) + paragraph(lab.question, language, screen);
  text += titled(screen, heading(Part::guess, language)) + paragraph(lab.guess, language, screen);
  return text + parameters_of(lab, arguments, language, screen);
}

std::string outcome(const Report& report, Language language, const draw::Screen& screen) {
  std::string text = titled(screen, heading(Part::results, language));
  bool first = true;
  for (const Block& block : report.results.blocks) {
    if (!first) text += "\n";
    first = false;
    text += std::visit(
        [&](const auto& one) -> std::string {
          if constexpr (std::is_same_v<std::decay_t<decltype(one)>, Text>)
            return paragraph(one, language, screen);
          else
            return to_terminal(one, language, screen);
        },
        block);
  }
  text += titled(screen, heading(Part::conclusions, language));
  for (const Conclusion& conclusion : report.conclusions) {
    text += wrapped(fmt::format("{}{}{}", judgement(conclusion).in(language), language == Language::en ? ": " : "：",
                                conclusion.text.in(language)),
                    text_columns(screen), 2) +
            "\n";
  }
  text += titled(screen, heading(Part::lesson, language)) + paragraph(report.lab->lesson, language, screen);
  text += titled(screen, heading(Part::why, language));
  for (const Text& why : report.lab->why) text += paragraph(why, language, screen);
  return text;
}

std::string list_of_labs(Language language, const draw::Screen& screen) {
  Table table{say("Labs: each asks a question, measures, and concludes from its own numbers.",
                  "实验列表：每个实验提出一个问题，实际测量，再从自己的数字得出结论。"),
              {say("name", "名称"), say("minutes", "分钟"), say("runs for", "运行"), say("question", "内容")},
              {}};
  int minutes = 0;
  for (const Lab& lab : all_labs()) {
    minutes += lab.minutes;
    table.rows.push_back({same("{}", lab.name), same("{}", lab.minutes), same("{} s", lab.seconds), lab.title});
  }
  std::string text = wrapped(table.title.in(language), text_columns(screen)) + "\n";
  for (const auto& row : table.rows)
    text +=
        fmt::format("  {} {} {}  {}\n", padded(row[0].in(language), 18, false), padded(row[1].in(language), 4, true),
                    language == Language::en ? "min" : "分钟", row[3].in(language));
  text += say("{} labs, about {} minutes in all. Next: attend lab {}\n",
              "共 {} 个实验，全部做完约 {} 分钟。从这里开始：attend lab {} --zh\n", all_labs().size(), minutes,
              all_labs().front().name)
              .in(language);
  return text;
}

}  // namespace attend::labs
