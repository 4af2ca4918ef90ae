// Running a learner's file on the cases of the exercises.
#include "labs/exercises/check.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "attend/error.hpp"
#include "io/environment.hpp"
#include "io/temporary.hpp"
#include "labs/exercises/drivers.hpp"
#include "labs/exercises/sandbox.hpp"

namespace attend::labs {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTorchMemory = std::int64_t{8} << 30;  // importing it maps several GiB
constexpr std::uintmax_t kLargestFile = 1 << 20;

struct AskedCase {
  const Exercise* exercise;
  const Case* one;
};

std::string number(float value) {
  return std::isnan(value) ? "nan" : std::isinf(value) ? (value > 0 ? "inf" : "-inf") : fmt::format("{:.9g}", value);
}

std::string written(const std::vector<AskedCase>& cases) {
  std::string text;
  for (const AskedCase& c : cases) {
    text += "case " + c.exercise->name + "\n";
    for (const auto& [name, a] : c.one->arrays) {
      text += fmt::format("array {} {} {}", name,
                          a.kind == Kind::real    ? "f"
                          : a.kind == Kind::whole ? "i"
                                                  : "b",
                          a.shape.size());
      for (const std::int64_t side : a.shape) text += fmt::format(" {}", side);
      for (const float value : a.data) text += " " + number(value);
      text += "\n";
    }
    for (const auto& [name, value] : c.one->wholes) text += fmt::format("whole {} {}\n", name, value);
    for (const auto& [name, value] : c.one->reals) text += fmt::format("real {} {:.17g}\n", name, value);
    text += "end\n";
  }
  return text;
}

// What a driver wrote, line by line. Whatever is not as a driver writes it counts as no answer.
struct Written {
  bool started = false, done = false;
  std::string fatal, fatal_message;
  std::vector<std::string> has;
  std::vector<Answer> answers;
  bool loaded = false;
};

Answer read_answer(std::istringstream& words) {
  Answer a;
  std::size_t rank = 0;
  std::int64_t count = 1;
  if (!(words >> a.dtype >> rank) || rank > 8) return a;
  for (std::size_t n = 0; n < rank; ++n) {
    std::int64_t side = 0;
    if (!(words >> side) || side < 0 || side > 1000000) return a;
    a.value.shape.push_back(side);
    count *= side;
    if (count > 10000000) return a;
  }
  std::string text;
  for (std::int64_t n = 0; n < count; ++n) {
    if (!(words >> text)) return a;
    a.value.data.push_back(std::strtof(text.c_str(), nullptr));
  }
  a.kind = Answer::Kind::value;
  return a;
}

Written read_answers(const fs::path& path, std::size_t cases) {
  Written out;
  out.answers.resize(cases);
  std::ifstream file(path);
  std::size_t at = cases;
  std::vector<std::string> changed;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    out.started = true;
    std::string rest = line.size() > word.size() ? line.substr(word.size() + 1) : "";
    if (word == "begin" && rest != "load") {
      at = static_cast<std::size_t>(std::strtoul(rest.c_str(), nullptr, 10));
      changed.clear();
      if (at >= cases) return out;
    } else if (word == "has") {
      out.loaded = true;
      for (std::string name; words >> name;) out.has.push_back(name);
    } else if (word == "fatal") {
      words >> out.fatal;
      out.fatal_message = rest.size() > out.fatal.size() ? rest.substr(out.fatal.size() + 1) : "";
    } else if (word == "done") {
      out.done = true;
    } else if (word == "changed") {
      changed.push_back(rest);
    } else if (at < cases) {
      Answer& a = out.answers[at];
      if (word == "answer") a = read_answer(words);
      if (word == "none") a.kind = Answer::Kind::none;
      if (word == "unwritten") a.kind = Answer::Kind::unwritten;
      if (word == "exit") a.kind = Answer::Kind::exit;
      if (word == "memory") a.kind = Answer::Kind::memory;
      if (word == "error") {
        a.kind = Answer::Kind::error;
        a.message = rest;
      }
      a.changed = changed;
    }
  }
  return out;
}

// A program of PATH, as a path; empty: it is not there.
std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  std::istringstream folders{std::string(io::environment("PATH"))};
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

std::string text_of(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) throw Refused(say("{}: no such file", "{}：没有这个文件", file.string()));
  if (fs::file_size(file) > kLargestFile)
    throw Refused(say("{}: larger than 1 MiB, expected a small source file", "{}：超过 1 MiB，应为一个小的源文件",
                      file.string()));
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw Refused(say("{}: cannot be read", "{}：无法读取", file.string()));
  return text.str();
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw FileError(path.string() + ": cannot be written");
}

// Why a run that did not end well ended.
Text reason(const Outcome& outcome, const Limits& limits) {
  switch (outcome.end) {
    case Outcome::End::timed_out:
      return say("it ran for more than {:g} seconds and was stopped: an endless loop?",
                 "运行超过 {:g} 秒，已被停止：是不是死循环？", limits.seconds);
    case Outcome::End::signalled:
      return say("it was ended by signal {} (a bad pointer, or memory beyond {} MiB)",
                 "被信号 {} 终止（指针出错，或内存超过 {} MiB）", outcome.code, limits.memory >> 20);
    case Outcome::End::exited:
      return say("it left the program (exit code {}) before it had answered", "还没回答完就退出了程序（退出码 {}）",
                 outcome.code);
    case Outcome::End::not_started:
      break;
  }
  return say("it could not be started", "无法启动");
}

CheckResult failed(Text why) {
  CheckResult result;
  result.failure = std::move(why);
  return result;
}

CheckResult judge_run(const std::vector<AskedCase>& cases, const Written& written, const Outcome& outcome,
                      const Limits& limits) {
  if (written.fatal == "exit")
    return failed(say("the file leaves the program (exit) when it is loaded.", "文件一加载就退出了程序（exit）。"));
  if (written.fatal == "memory")
    return failed(say("the file wanted more than {} MiB when it was loaded, and was stopped.",
                      "文件加载时要的内存超过 {} MiB，已被停止。", limits.memory >> 20));
  if (!written.fatal.empty()) {
    const bool process = written.fatal_message.find("Operation not permitted") != std::string::npos;
    return failed(process ? say("the file cannot be loaded: {} (starting other processes is not allowed here)",
                                "文件无法加载：{}（这里不允许启动其他进程）", written.fatal_message)
                          : say("the file cannot be loaded: {}", "文件无法加载：{}", written.fatal_message));
  }
  const Text why = reason(outcome, limits);
  if (!written.loaded) return failed({"while the file was loaded " + why.en + ".", "文件加载时" + why.zh + "。"});
  CheckResult result;
  for (const Exercise& e : all_exercises()) {
    if (std::find(written.has.begin(), written.has.end(), e.name) == written.has.end()) continue;
    std::vector<const Case*> asked;
    std::vector<Answer> answers;
    for (std::size_t n = 0; n < cases.size(); ++n)
      if (cases[n].exercise == &e) {
        asked.push_back(cases[n].one);
        answers.push_back(written.answers[n]);
      }
    Verdict verdict = judge_answers(e, asked, answers);
    const bool unanswered =
        std::any_of(answers.begin(), answers.end(), [](const Answer& a) { return a.kind == Answer::Kind::missing; });
    if (verdict.kind == Verdict::Kind::stopped && unanswered && !written.done) verdict.text = why;
    result.verdicts.push_back(std::move(verdict));
  }
  if (result.verdicts.empty()) {
    std::vector<std::string> names;
    for (const Exercise& e : all_exercises()) names.push_back(e.name);
    const std::string list = fmt::format("{}", fmt::join(names, ", "));
    result.failure =
        say("the file has none of the functions that are graded: {}.", "文件里没有要批改的函数：{}。", list);
  }
  return result;
}

// Pythons to try, as paths: the first that has NumPy serves.
std::vector<std::string> pythons(const std::string& asked) {
  std::vector<std::string> names = {asked}, paths;
  if (asked.empty()) names = {std::string(io::environment("ATTEND_PYTHON")), "python3", "/usr/bin/python3"};
  for (const std::string& name : names) {
    const std::string path = name.empty() ? "" : find_program(name);
    if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

CheckResult check_python(const fs::path& file, const std::string& source, const fs::path& folder,
                         const std::vector<AskedCase>& cases, const CheckOptions& options) {
  write_text(folder / "driver.py", kPythonDriver);
  Limits limits{.seconds = options.seconds};
  if (source.find("import torch") != std::string::npos || source.find("from torch") != std::string::npos) {
    limits.memory = kTorchMemory;
    limits.seconds = std::max(limits.seconds, 60.0);  // importing it takes long
  }
  const std::vector<std::string> paths = pythons(options.python);
  for (const std::string& python : paths) {
    const Outcome outcome = run_limited({python, (folder / "driver.py").string(), fs::absolute(file).string(),
                                         (folder / "cases").string(), (folder / "answers").string()},
                                        folder, limits);
    const Written written = read_answers(folder / "answers", cases.size());
    if (written.started && written.fatal != "numpy") return judge_run(cases, written, outcome, limits);
  }
  if (paths.empty() && !options.python.empty())
    return failed(say("{} is no program that can be run.", "{} 不是可以运行的程序。", options.python));
  if (paths.empty())
    return failed(say("there is no python3: install it (Debian: apt install python3-numpy).",
                      "没有找到 python3：请先安装（Debian：apt install python3-numpy）。"));
  const std::string tried = fmt::format("{}", fmt::join(paths, ", "));
  return failed(say("{} has no NumPy: apt install python3-numpy, or pip install numpy; --python names another one.",
                    "{} 没有 NumPy：请 apt install python3-numpy 或 pip install numpy；也可以用 --python 指定另一个。",
                    tried));
}

// The exercises whose names a C++ file defines, as macros for the driver.
std::string macros_for(const std::string& source) {
  std::string macros;
  for (const std::string& name : functions_in(source)) macros += "#define HAS_" + name + " 1\n";
  return macros;
}

CheckResult check_cpp(const fs::path& file, const std::string& source, const fs::path& folder,
                      const std::vector<AskedCase>& cases, const CheckOptions& options) {
  const std::string named(io::environment("CXX"));
  const std::string compiler = find_program(named.empty() ? "c++" : named);
  if (compiler.empty())
    return failed(say("there is no C++ compiler: install one (Debian: apt install g++).",
                      "没有找到 C++ 编译器：请先安装（Debian：apt install g++）。"));
  const std::string macros = macros_for(source);
  write_text(folder / "main.cpp",
             "#include <cstddef>\n#include \"" + fs::absolute(file).string() + "\"\n" + macros + kCppDriver);
  const Outcome compiled = run_limited(
      {compiler, "-std=c++20", "-O1", "-w", "-o", (folder / "program").string(), (folder / "main.cpp").string()},
      folder, {.seconds = 60, .memory = std::int64_t{4} << 30, .may_start_processes = true});
  if (compiled.end != Outcome::End::exited || compiled.code != 0) {
    std::string shown;
    std::istringstream lines(compiled.output);
    int count = 0;
    for (std::string line; count < 12 && std::getline(lines, line); ++count) shown += "\n" + line;
    return failed(say("the file does not compile:{}", "编译失败：{}", shown));
  }
  const Limits limits{.seconds = options.seconds};
  const Outcome outcome = run_limited(
      {(folder / "program").string(), (folder / "cases").string(), (folder / "answers").string()}, folder, limits);
  return judge_run(cases, read_answers(folder / "answers", cases.size()), outcome, limits);
}

}  // namespace

CheckResult check_file(const fs::path& file, const CheckOptions& options) {
  const std::string ending = file.extension().string();
  const bool cpp = ending == ".cpp" || ending == ".cc" || ending == ".cxx";
  if (!cpp && ending != ".py")
    throw Refused(say("{}: got a file ending in '{}', expected .py or .cpp", "{}：文件以“{}”结尾，应为 .py 或 .cpp",
                      file.string(), ending));
  const std::string source = text_of(file);
  const io::Temporary folder(fs::temp_directory_path() / "attend-lab", io::Temporary::Kind::folder);
  std::vector<AskedCase> cases;
  for (const Exercise& e : all_exercises())
    for (const Case& c : e.cases)
      if (!cpp || c.for_cpp) cases.push_back({&e, &c});
  write_text(folder.path() / "cases", written(cases));
  return cpp ? check_cpp(file, source, folder.path(), cases, options)
             : check_python(file, source, folder.path(), cases, options);
}

}  // namespace attend::labs
