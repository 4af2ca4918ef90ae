// `attend lab`: experiments that conclude from their own run, and exercises that name the mistake.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include "command.hpp"
#include "interrupt.hpp"
#include "io/atomic_file.hpp"
#include "io/file_error.hpp"
#include "labs/exercises/check.hpp"
#include "labs/exercises/drivers.hpp"
#include "labs/lab.hpp"
#include "labs/pictures.hpp"
#include "labs/terminal.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct LabArguments {
  std::vector<std::string> words;
  std::string out, python;
  double seconds = 20;
  bool chinese = false, json = false, about = false, quick = false, no_colour = false;
};

labs::Language language_of(const LabArguments& a) {
  return a.chinese ? labs::Language::zh : labs::Language::en;
}

// "NAME --dim 512 --heads=8": the words, and parameters of the lab by name.
std::map<std::string, std::string> parameters_in(const std::vector<std::string>& rest,
                                                 std::vector<std::string>& words) {
  std::map<std::string, std::string> given;
  for (std::size_t n = 0; n < rest.size(); ++n) {
    if (!rest[n].starts_with("--") || rest[n].size() < 3) {
      words.push_back(rest[n]);
      continue;
    }
    const std::size_t equals = rest[n].find('=');
    const std::string name = rest[n].substr(2, equals == std::string::npos ? equals : equals - 2);
    if (equals != std::string::npos)
      given[name] = rest[n].substr(equals + 1);
    else if (n + 1 < rest.size())
      given[name] = rest[++n];
    else
      throw labs::Refused(labs::say("--{} needs a value", "--{} 需要一个值", name));
  }
  return given;
}

labs::Report run_with_progress(const labs::Lab& lab, const labs::Arguments& arguments) {
  ProgressBar bar(lab.name, 100, "%");
  return labs::run_lab(lab, arguments, [&](double share) {
    check_interrupted();
    bar.update(static_cast<std::int64_t>(share * 100));
  });
}

int run_one(const LabArguments& a, const labs::Lab& lab, const std::map<std::string, std::string>& given) {
  const labs::Language language = language_of(a);
  const labs::Arguments arguments(lab.parameters, given, a.quick);
  draw::Screen screen = look_at_screen(!a.no_colour);
  if (a.chinese) screen.language = draw::Language::chinese;
  if (a.json && a.about) {
    fmt::print("{}\n", labs::to_json(lab));
    return kSuccess;
  }
  if (!a.json) {
    fmt::print("{}", labs::introduction(lab, arguments, language, screen));
    (void)std::fflush(stdout);
  }
  if (a.about) return kSuccess;
  const labs::Report report = run_with_progress(lab, arguments);
  fmt::print("{}", a.json ? labs::to_json(report) + "\n" : labs::outcome(report, language, screen));
  if (a.out.empty()) return kSuccess;
  const auto written = with_progress("drawing", [&] { return labs::write_pictures(report, language, a.out); });
  if (!a.json)
    for (const std::filesystem::path& path : written) fmt::print("{}\n", io::printable(path.string()));
  return kSuccess;
}

int run_new(const LabArguments& a, const std::filesystem::path& file) {
  const std::string ending = file.extension().string(), name = file.stem().string();
  if (ending != ".py" && ending != ".cpp")
    throw labs::Refused(labs::say("got '{}', expected a new file ending in .py or .cpp, such as sdpa.py",
                                  "得到“{}”，应为以 .py 或 .cpp 结尾的新文件，例如 sdpa.py", file.string()));
  if (std::filesystem::exists(file))
    throw labs::Refused(
        labs::say("{} is there already; nothing was changed", "{} 已经存在，没有改动任何内容", file.string()));
  const std::string text =
      ending == ".py" ? labs::python_template(name, a.chinese) : labs::cpp_template(name, a.chinese);
  io::write_file_atomically(file, std::as_bytes(std::span(text)));
  const labs::Exercise* exercise = labs::find_exercise(name);
  const labs::Language language = language_of(a);
  const labs::Text what =
      exercise != nullptr ? labs::same("{}", exercise->name) : labs::say("all exercises", "全部练习");
  fmt::print("{}", labs::say("{}: {}. Write it, then: attend lab check {}\n",
                             "{}：{}。写好以后运行：attend lab check {} --zh\n", io::printable(file.string()),
                             what.in(language), io::printable(file.string()))
                       .in(language));
  return kSuccess;
}

int run_check(const LabArguments& a, const std::filesystem::path& file) {
  const labs::Language language = language_of(a);
  const labs::CheckResult result = with_progress("checking", [&] {
    return labs::check_file(file, {.seconds = a.seconds, .python = a.python, .on_wait = check_interrupted});
  });
  if (a.json) {
    fmt::print("{}\n", labs::to_json(result));
    return result.all_right() ? kSuccess : kFailure;
  }
  const int columns = look_at_screen(!a.no_colour).columns;
  if (!result.failure.en.empty())
    fmt::print("{}\n", labs::wrapped(io::printable_text(result.failure.in(language)), columns));
  for (const labs::Verdict& v : result.verdicts) {
    const char* mark = v.kind == labs::Verdict::Kind::right       ? "✓"
                       : v.kind == labs::Verdict::Kind::unwritten ? "·"
                                                                  : "✗";
    fmt::print("{}\n", labs::wrapped(fmt::format("{} {}{}{}", mark, v.exercise, a.chinese ? "：" : ": ",
                                                 io::printable_text(v.text.in(language))),
                                     columns));
    if (v.kind == labs::Verdict::Kind::wrong)
      fmt::print("{}", labs::say("  why: attend lab {}\n", "  为什么：attend lab {} --zh\n", v.lab).in(language));
  }
  if (result.sandbox) fmt::print("{}\n", labs::wrapped(labs::sandbox_words(*result.sandbox).in(language), columns));
  return result.all_right() ? kSuccess : kFailure;
}

int run(LabArguments& a, const std::vector<std::string>& rest) {
  const std::map<std::string, std::string> given = parameters_in(rest, a.words);
  const labs::Language language = language_of(a);
  if (a.words.empty() && a.json) {
    std::string list;
    for (const labs::Lab& lab : labs::all_labs()) list += (list.empty() ? "" : ",\n") + labs::to_json(lab);
    fmt::print("[{}]\n", list);
    return kSuccess;
  }
  if (a.words.empty()) {
    fmt::print("{}", labs::list_of_labs(language, look_at_screen(!a.no_colour)));
    return kSuccess;
  }
  if (a.words.front() == "new" || a.words.front() == "check") {
    if (a.words.size() != 2 || !given.empty())
      throw labs::Refused(labs::say("expected: attend lab {} FILE", "用法：attend lab {} 文件", a.words.front()));
    return a.words.front() == "new" ? run_new(a, a.words[1]) : run_check(a, a.words[1]);
  }
  if (a.words.size() > 1)
    throw labs::Refused(labs::say("got '{}' after the lab's name, expected nothing", "实验名后面多了“{}”", a.words[1]));
  return run_one(a, labs::lab_called(a.words.front()), given);
}

}  // namespace

Command add_lab(Program& program) {
  auto a = std::make_shared<LabArguments>();
  const Subcommand app = program.add_subcommand("lab", "Experiments that teach attention, in English and Chinese");
  app.add_flag("--zh", a->chinese, "In Chinese");
  app.add_option("--out,-o", a->out, "Put the figures there as PNG and SVG").type_name("FOLDER");
  app.add_flag("--about", a->about, "The question and the parameters, without running it");
  app.add_flag("--json", a->json, "The report as JSON, in both languages");
  app.add_flag("--quick", a->quick,
               "With small sizes: seconds instead of a minute; a conclusion that fails then is not decided");
  app.add_flag("--no-colour", a->no_colour, "Plain characters");
  app.add_option("--python", a->python, "check: this Python instead of the first that has NumPy").type_name("PATH");
  app.add_option("--seconds", a->seconds, "check: how long the file may run").check(real_number(1, 600)).show_default();
  app.take_rest();
  app.footer(
      "attend lab [NAME [--PARAMETER VALUE ...]], attend lab new FILE, attend lab check FILE\n\n"
      "A lab asks a question, tells you to guess, measures on this machine, and concludes from its own numbers: where\n"
      "the run contradicts a sentence, it says so. Parameters come after its name; --about lists them.\n"
      "\nExamples:\n"
      "  attend lab                          the labs, in the order of the course\n"
      "  attend lab scale                    why scores are divided by the square root of d\n"
      "  attend lab scale --zh               in Chinese\n"
      "  attend lab by-hand --dim 8 --words \"the dog saw the cat\"\n"
      "  attend lab rope --about             what it asks, and what can be changed\n"
      "\nExercises: write softmax, scaled_dot_product_attention, multi_head_attention, repeat_kv, rope, causal_mask "
      "and\n"
      "KVCache yourself; what is wrong is found by running the known mistakes and comparing.\n"
      "  attend lab new sdpa.py              a file to start from (softmax, sdpa, mha, repeat_kv, rope, causal_mask,\n"
      "                                      kv_cache, or any other name for all of them); .cpp for C++\n"
      "  attend lab check sdpa.py            grade it; it runs in a sandbox, and the last line says\n"
      "                                      what the sandbox is made of on this system");
  return {app, [a, app] {
            return run_stoppable("attend lab",
                                 [&] { return labs::said_in(language_of(*a), [&] { return run(*a, app.rest()); }); });
          }};
}

}  // namespace attend::cli
