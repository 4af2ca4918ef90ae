// `attend quiz`: questions about attention, graded; wrong answers lead to the lab that shows it.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "command.hpp"
#include "labs/lab.hpp"
#include "labs/quiz/quiz.hpp"
#include "labs/terminal.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct QuizArguments {
  bool chinese = false, json = false, progress = false, again = false, list = false;
  std::int64_t count = 10;
  std::string lab, answer;
  std::string question;
};

class Quiz {
 public:
  explicit Quiz(const QuizArguments& a)
      : a_(a),
        language_(a.chinese ? labs::Language::zh : labs::Language::en),
        screen_(look_at_screen(true)),
        file_(labs::progress_file()),
        progress_(labs::read_progress(file_)) {}

  int run() {
    return labs::said_in(language_, [&] { return answer(); });
  }

 private:
  int answer() {
    if (!a_.lab.empty()) (void)labs::lab_called(a_.lab);
    if (a_.json) {
      fmt::print("{}\n", labs::quiz_json(progress_));
      return kSuccess;
    }
    if (a_.progress) return show_progress();
    if (!a_.question.empty()) return ask_one();
    return ask_some();
  }

  void print(const labs::Text& text) const { fmt::print("{}", text.in(language_)); }
  void print_wrapped(const std::string& text, int indent = 0) const {
    fmt::print("{}\n", labs::wrapped(text, std::min(screen_.columns, 96), indent));
  }

  void put(const labs::Question& q) const {
    print_wrapped(q.text.in(language_));
    for (std::size_t n = 0; n < q.choices.size(); ++n)
      print_wrapped(fmt::format("{}) {}", static_cast<char>('a' + static_cast<int>(n)), q.choices[n].in(language_)), 2);
  }

  // Grades, tells and remembers.
  bool take(const labs::Question& q, labs::Grade grade) {
    labs::Tally& tally = progress_[q.name];
    tally.last_right = grade == labs::Grade::right;
    ++(tally.last_right ? tally.right : tally.wrong);
    labs::write_progress(file_, progress_);
    print(tally.last_right ? labs::say("✓ right. ", "✓ 答对了。")
                           : labs::say("✗ it is {}. ", "✗ 正确答案是 {}。", labs::right_answer(q, language_)));
    fmt::print("\n");
    print_wrapped(q.why.in(language_), 2);
    if (!tally.last_right) print(labs::say("  see: attend lab {}\n", "  看看这个实验：attend lab {} --zh\n", q.lab));
    return tally.last_right;
  }

  int ask_one() {
    const labs::Question* q = labs::find_question(a_.question);
    if (q == nullptr)
      throw labs::Refused(labs::say("there is no question '{}'; attend quiz --list names them",
                                    "没有名为“{}”的题；attend quiz --list --zh 列出全部", a_.question));
    if (a_.answer.empty()) {
      put(*q);
      return kSuccess;
    }
    const labs::Grade grade = labs::grade(*q, a_.answer);
    if (grade == labs::Grade::unreadable)
      throw labs::Refused({fmt::format("got '{}', expected {}", a_.answer, expected(*q).en),
                           fmt::format("得到“{}”，应为{}", a_.answer, expected(*q).zh)});
    return take(*q, grade) ? kSuccess : kFailure;
  }

  static labs::Text expected(const labs::Question& q) {
    if (q.kind != labs::Question::Kind::choice) return labs::say("a number", "一个数");
    return labs::say("a letter from a to {}", "a 到 {} 中的一个字母",
                     static_cast<char>('a' + static_cast<int>(q.choices.size()) - 1));
  }

  // Those that were never answered, then those answered wrongly, in the order of the course.
  std::vector<const labs::Question*> chosen() const {
    std::vector<const labs::Question*> fresh, wrong, right;
    for (const labs::Question& q : labs::all_questions()) {
      if (!a_.lab.empty() && q.lab != a_.lab) continue;
      const auto found = progress_.find(q.name);
      (found == progress_.end() ? fresh : found->second.last_right ? right : wrong).push_back(&q);
    }
    wrong.insert(wrong.end(), fresh.begin(), fresh.end());
    if (a_.again) wrong.insert(wrong.end(), right.begin(), right.end());
    if (static_cast<std::int64_t>(wrong.size()) > a_.count) wrong.resize(static_cast<std::size_t>(a_.count));
    return wrong;
  }

  int ask_some() {
    if (a_.list) {
      for (const labs::Question& q : labs::all_questions())
        fmt::print("{:<18} {:<17} {}\n", q.name, q.lab, q.text.in(language_));
      return kSuccess;
    }
    const std::vector<const labs::Question*> questions = chosen();
    if (questions.empty()) {
      print(labs::say("Nothing is left to ask{}; --again asks all once more.\n",
                      "没有要问的了{}；加 --again 可以从头再来。\n", a_.lab.empty() ? "" : " (" + a_.lab + ")"));
      return kSuccess;
    }
    std::int64_t right = 0, asked = 0;
    for (const labs::Question* q : questions) {
      fmt::print("\n{}/{}  ", asked + 1, questions.size());
      put(*q);
      std::string line;
      labs::Grade grade = labs::Grade::unreadable;
      while (grade == labs::Grade::unreadable) {
        print(labs::say("{}, or q to stop: ", "请输入{}，或输入 q 结束：", expected(*q).in(language_)));
        (void)std::fflush(stdout);
        if (!std::getline(std::cin, line)) return summary(right, asked);
        const std::string plain = labs::plain_answer(line);
        if (plain == "q" || plain == "Q") return summary(right, asked);
        grade = labs::grade(*q, line);
      }
      ++asked;
      right += take(*q, grade) ? 1 : 0;
    }
    return summary(right, asked);
  }

  int summary(std::int64_t right, std::int64_t asked) const {
    print(labs::say(
        "\n{} of {} right. What you got wrong comes first next time; attend quiz --progress shows where you stand.\n",
        "\n{1} 题答对 {0} 题。答错的下次先问；attend quiz --progress --zh 查看进度。\n", right, asked));
    return kSuccess;
  }

  int show_progress() const {
    std::map<std::string, std::pair<int, int>> by_lab;
    std::vector<std::string> order;
    int right = 0;
    for (const labs::Question& q : labs::all_questions()) {
      if (!by_lab.contains(q.lab)) order.push_back(q.lab);
      const auto found = progress_.find(q.name);
      const bool known = found != progress_.end() && found->second.last_right;
      by_lab[q.lab].first += known ? 1 : 0;
      ++by_lab[q.lab].second;
      right += known ? 1 : 0;
    }
    for (const std::string& lab : order) fmt::print("{:<18} {:>3} / {}\n", lab, by_lab[lab].first, by_lab[lab].second);
    print(labs::say("{} of {} questions answered right; kept in {}\n", "共 {1} 题，已答对 {0} 题；记录在 {2}\n", right,
                    labs::all_questions().size(), file_.string()));
    return kSuccess;
  }

  const QuizArguments& a_;
  labs::Language language_;
  draw::Screen screen_;
  std::filesystem::path file_;
  labs::QuizProgress progress_;
};

}  // namespace

Command add_quiz(Program& program) {
  auto a = std::make_shared<QuizArguments>();
  const Subcommand app = program.add_subcommand("quiz", "Questions about attention, graded");
  app.add_option("question", a->question, "One question by its name; without one, those not yet answered right")
      .type_name("QUESTION");
  app.add_option("--answer", a->answer, "Grade this answer to it and leave").type_name("ANSWER");
  app.add_flag("--zh", a->chinese, "In Chinese");
  app.add_option("--count,-n", a->count, "How many to ask").check(whole_number(1, 1000)).show_default();
  app.add_option("--lab", a->lab, "Only those that belong to this lab").type_name("NAME");
  app.add_flag("--again", a->again, "Also those answered right before");
  app.add_flag("--list", a->list, "The questions, without answers");
  app.add_flag("--progress", a->progress, "How many were answered right, by lab");
  app.add_flag("--json", a->json, "All questions, answers and the progress, in both languages");
  app.footer(
      "Answers that can be computed are computed, by this engine, when the program starts. What was answered wrongly "
      "is\n"
      "asked first the next time. Progress is kept in $XDG_STATE_HOME/attend/quiz.json (or ~/.local/state/attend).\n"
      "\nExamples:\n"
      "  attend quiz                         ten questions\n"
      "  attend quiz --zh --lab masks        those of one lab, in Chinese\n"
      "  attend quiz sd-512 --answer 22.6    one, without being asked");
  return {app, [a] { return Quiz(*a).run(); }};
}

}  // namespace attend::cli
