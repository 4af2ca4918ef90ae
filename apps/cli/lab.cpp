// `attend lab`: experiments that conclude from their own run, and exercises that name the mistake.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>

#include "command.hpp"
#include "interrupt.hpp"
#include "labs/lab.hpp"
#include "labs/terminal.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct LabArguments {
  std::vector<std::string> words;
  std::string out;
  bool chinese = false, json = false, about = false, quick = false, no_colour = false;
};

// "--dim 512 --heads=8": parameters of the lab, by name.
std::map<std::string, std::string> parameters_in(const std::vector<std::string>& rest) {
  std::map<std::string, std::string> given;
  for (std::size_t n = 0; n < rest.size(); ++n) {
    if (!rest[n].starts_with("--") || rest[n].size() < 3)
      throw UsageError(fmt::format("got '{}', expected a parameter such as --dim 512", rest[n]));
    const std::size_t equals = rest[n].find('=');
    const std::string name = rest[n].substr(2, equals == std::string::npos ? equals : equals - 2);
    if (equals != std::string::npos)
      given[name] = rest[n].substr(equals + 1);
    else if (n + 1 < rest.size())
      given[name] = rest[++n];
    else
      throw UsageError(fmt::format("--{} needs a value", name));
  }
  return given;
}

labs::Report run_with_progress(const labs::Lab& lab, const labs::Arguments& arguments) {
  ProgressBar bar(lab.name, 1000, "‰");
  return labs::run_lab(lab, arguments, [&](double share) {
    check_interrupted();
    bar.update(static_cast<std::int64_t>(share * 1000));
  });
}

int run_one(const LabArguments& a, const labs::Lab& lab, const std::map<std::string, std::string>& given) {
  const labs::Language language = a.chinese ? labs::Language::zh : labs::Language::en;
  const labs::Arguments arguments(lab.parameters, given, a.quick);
  const draw::Screen screen = look_at_screen(!a.no_colour);
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
  return kSuccess;
}

int run(const LabArguments& a, const std::vector<std::string>& rest) {
  const labs::Language language = a.chinese ? labs::Language::zh : labs::Language::en;
  if (a.words.empty()) {
    fmt::print("{}", labs::list_of_labs(language, look_at_screen(!a.no_colour)));
    return kSuccess;
  }
  const std::map<std::string, std::string> given = parameters_in(rest);
  if (a.words.size() > 1) throw UsageError(fmt::format("got '{}' after the lab's name, expected nothing", a.words[1]));
  return run_one(a, labs::lab_called(a.words.front()), given);
}

}  // namespace

Command add_lab(Program& program) {
  auto a = std::make_shared<LabArguments>();
  const Subcommand app = program.add_subcommand("lab", "Experiments that teach attention, in English and Chinese");
  app.add_option("name", a->words, "Which lab; without one, all are listed").type_name("NAME");
  app.add_flag("--zh", a->chinese, "In Chinese (中文)");
  app.add_option("--out,-o", a->out, "Put the figures there as PNG and SVG").type_name("FOLDER");
  app.add_flag("--about", a->about, "The question and the parameters, without running it");
  app.add_flag("--json", a->json, "The report as JSON, in both languages");
  app.add_flag("--quick", a->quick, "With small sizes: seconds instead of a minute, and noisier");
  app.add_flag("--no-colour", a->no_colour, "Plain characters");
  app.take_rest();
  app.footer(
      "A lab asks a question, tells you to guess, measures on this machine, and concludes from its own numbers: where\n"
      "the run contradicts a sentence, it says so. Parameters come after its name; --about lists them.\n"
      "\nExamples:\n"
      "  attend lab                          the labs, in the order of the course\n"
      "  attend lab scale                    why scores are divided by the square root of d\n"
      "  attend lab scale --zh               in Chinese\n"
      "  attend lab by-hand --dim 8 --words \"the dog saw the cat\"\n"
      "  attend lab rope --about             what it asks, and what can be changed");
  return {app, [a, app] { return run_stoppable("attend lab", [&] { return run(*a, app.rest()); }); }};
}

}  // namespace attend::cli
