// Running a learner's file on the cases of the exercises.
#include "labs/exercises/check.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "attend/error.hpp"
#include "io/environment.hpp"
#include "io/temporary.hpp"
#include "labs/exercises/drivers.hpp"

namespace attend::labs {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTorchMemory = std::int64_t{8} << 30;  // importing it maps several GiB
constexpr std::int64_t kCompilerMemory = std::int64_t{2} << 30;
constexpr double kCompilerSeconds = 60, kProbeSeconds = 20;
constexpr std::size_t kLargestFile = 1 << 20;
constexpr std::size_t kLongestMessage = 400, kLongestName = 40;  // bytes, of what a learner's program says

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
  a.dtype = io::printable(a.dtype, kLongestName);
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

Written read_answers(const std::string& text, std::size_t cases) {
  Written out;
  out.answers.resize(cases);
  std::istringstream file(text);
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
      out.fatal_message =
          rest.size() > out.fatal.size() ? io::printable(rest.substr(out.fatal.size() + 1), kLongestMessage) : "";
    } else if (word == "done") {
      out.done = true;
    } else if (word == "changed") {
      changed.push_back(io::printable(rest, kLongestName));
    } else if (at < cases) {
      Answer& a = out.answers[at];
      if (word == "answer") a = read_answer(words);
      if (word == "none") a.kind = Answer::Kind::none;
      if (word == "unwritten") a.kind = Answer::Kind::unwritten;
      if (word == "exit") a.kind = Answer::Kind::exit;
      if (word == "memory") a.kind = Answer::Kind::memory;
      if (word == "error") {
        a.kind = Answer::Kind::error;
        a.message = io::printable(rest, kLongestMessage);
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

// Opened without blocking and checked before it is read: a FIFO or a device is not a source file.
std::string text_of(const fs::path& file) {
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat status{};
  if (opened < 0 || ::fstat(opened, &status) != 0 || !S_ISREG(status.st_mode)) {
    const bool there = opened >= 0 || errno != ENOENT;
    if (opened >= 0) ::close(opened);
    throw Refused(there ? say("{}: cannot be read, expected a source file", "{}：无法读取，应为源文件", file.string())
                        : say("{}: no such file", "{}：没有这个文件", file.string()));
  }
  std::string text(kLargestFile + 1, '\0');
  std::size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < text.size(); size += static_cast<std::size_t>(std::max<ssize_t>(got, 0)))
    got = ::read(opened, text.data() + size, text.size() - size);
  ::close(opened);
  if (size > kLargestFile)
    throw Refused(say("{}: larger than 1 MiB, expected a small source file", "{}：超过 1 MiB，应为一个小的源文件",
                      file.string()));
  text.resize(size);
  return text;
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
    case Outcome::End::flooded:
      return say("it wrote more than {} MiB and was stopped", "输出超过 {} MiB，已被停止", kMaxWritten >> 20);
    case Outcome::End::not_started:
      break;
  }
  return say("it could not be started in a sandbox ({})", "无法在沙箱中启动（{}）", std::strerror(outcome.code));
}

CheckResult failed(Text why) {
  CheckResult result;
  result.failure = std::move(why);
  return result;
}

CheckResult judge_answers_of(const std::vector<AskedCase>& cases, const Written& written, const Outcome& outcome,
                             const Limits& limits) {
  if (written.fatal == "exit")
    return failed(say("the file leaves the program (exit) when it is loaded.", "文件一加载就退出了程序（exit）。"));
  if (written.fatal == "memory")
    return failed(say("the file wanted more than {} MiB when it was loaded, and was stopped.",
                      "文件加载时要的内存超过 {} MiB，已被停止。", limits.memory >> 20));
  if (!written.fatal.empty()) {
    const std::string& message = written.fatal_message;
    const Text what = was_refused(message) ? refused_words(message) : Text{message, message};
    return failed({"the file cannot be loaded: " + what.en, "文件无法加载：" + what.zh});
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

CheckResult judge_run(const std::vector<AskedCase>& cases, const Written& written, const Outcome& outcome,
                      const Limits& limits) {
  CheckResult result = judge_answers_of(cases, written, outcome, limits);
  if (outcome.end != Outcome::End::not_started) result.sandbox = outcome.held;
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

// What the user's Python says of itself, outside of the sandbox and before the learner's file is looked at.
constexpr const char* kProbe = R"PY(
import importlib.util, os, sys
paths = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable)), *sys.path]
numpy = importlib.util.find_spec("numpy") is not None
os.write(3, "\n".join([sys.executable, "numpy" if numpy else "", *(p for p in paths if p)]).encode())
)PY";

struct Python {
  std::string program;  // empty: it cannot be run
  bool has_numpy = false;
  std::vector<std::string> paths;  // where its modules are
};

Python ask_python(const std::string& path, const fs::path& folder, const std::function<void()>& on_wait) {
  const Outcome outcome = run_sandboxed({.kind = SandboxedProgram::Kind::trusted,
                                         .argv = {path, "-c", kProbe},
                                         .folder = folder,
                                         .limits = {.seconds = kProbeSeconds}},
                                        {}, on_wait);
  Python python;
  std::istringstream lines(outcome.answers);
  std::string numpy;
  std::getline(lines, python.program);
  std::getline(lines, numpy);
  python.has_numpy = numpy == "numpy";
  for (std::string line; std::getline(lines, line);) python.paths.push_back(line);
  return python;
}

// Where a program's libraries are if it is not one of the system's: "/opt/llvm/bin/c++" has them in "/opt/llvm".
std::string installed_in(const std::string& program) {
  std::error_code error;
  const fs::path real = fs::canonical(program, error);
  return real.parent_path().parent_path().string();
}

// The folder of one check: the learner's file, a copy; the driver, and a program where one is compiled.
struct Workplace {
  fs::path folder, learner;
  const std::vector<AskedCase>& cases;
  const CheckOptions& options;
};

CheckResult check_python(const Workplace& work, const std::string& source) {
  write_text(work.folder / "driver.py", kPythonDriver);
  Limits limits{.seconds = work.options.seconds};
  if (source.find("import torch") != std::string::npos || source.find("from torch") != std::string::npos) {
    limits.memory = kTorchMemory;
    limits.seconds = std::max(limits.seconds, 60.0);  // importing it takes long
  }
  const std::vector<std::string> paths = pythons(work.options.python);
  for (const std::string& path : paths) {
    const Python python = ask_python(path, work.folder, work.options.on_wait);
    if (!python.has_numpy) continue;
    const Outcome outcome =
        run_sandboxed({.argv = {python.program, (work.folder / "driver.py").string(), work.learner.string()},
                       .folder = work.folder,
                       .readable = python.paths,
                       .input = written(work.cases),
                       .limits = limits},
                      work.options.layers, work.options.on_wait);
    const Written answers = read_answers(outcome.answers, work.cases.size());
    if (answers.fatal != "numpy") return judge_run(work.cases, answers, outcome, limits);
  }
  if (paths.empty() && !work.options.python.empty())
    return failed(say("{} is not a program that can be run.", "{} 不是可以运行的程序。", work.options.python));
  if (paths.empty())
    return failed(say("there is no python3: install it (Debian: apt install python3-numpy).",
                      "没有找到 python3：请先安装（Debian：apt install python3-numpy）。"));
  const std::string tried = fmt::format("{}", fmt::join(paths, ", "));
  return failed(say("{} has no NumPy: apt install python3-numpy, or pip install numpy; --python names another one.",
                    "{} 没有 NumPy：请 apt install python3-numpy 或 pip install numpy；也可以用 --python 指定另一个。",
                    tried));
}

void erase_all(std::string& text, const std::string& part) {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos;) text.erase(at, part.size());
}

// The first lines of what a compiler said, with the learner's file by its name.
std::string beginning_of(const std::string& output, const Workplace& work) {
  std::string shown;
  std::istringstream lines(output);
  int count = 0;
  for (std::string line; count < 12 && std::getline(lines, line); ++count) {
    erase_all(line, work.learner.parent_path().string() + "/");
    erase_all(line, work.folder.string() + "/");
    shown += "\n" + io::printable(line, kLongestMessage);
  }
  return shown;
}

CheckResult check_cpp(const Workplace& work, const std::string& source) {
  const std::string named(io::environment("CXX"));
  const std::string compiler = find_program(named.empty() ? "c++" : named);
  if (compiler.empty())
    return failed(say("there is no C++ compiler: install one (Debian: apt install g++).",
                      "没有找到 C++ 编译器：请先安装（Debian：apt install g++）。"));
  std::string text = "#include <cstddef>\n#include \"" + work.learner.string() + "\"\n";
  for (const std::string& name : functions_in(source)) text += "#define HAS_" + name + " 1\n";
  write_text(work.folder / "main.cpp", text + kCppDriver);
  const Limits compiling{.seconds = kCompilerSeconds, .memory = kCompilerMemory};
  const std::string program = (work.folder / "program").string();
  const Outcome compiled =
      run_sandboxed({.kind = SandboxedProgram::Kind::compiler,
                     .argv = {compiler, "-std=c++20", "-O1", "-w", "-o", program, (work.folder / "main.cpp").string()},
                     .folder = work.folder,
                     .readable = {installed_in(compiler)},
                     .limits = compiling},
                    work.options.layers, work.options.on_wait);
  if (compiled.end != Outcome::End::exited) {
    const Text why = reason(compiled, compiling);
    return failed({"while the file was compiled " + why.en + ".", "编译时" + why.zh + "。"});
  }
  if (compiled.code != 0) {
    const std::string shown = beginning_of(compiled.output, work);
    return failed(say("the file does not compile:{}", "编译失败：{}", shown));
  }
  const Limits limits{.seconds = work.options.seconds};
  const Outcome outcome =
      run_sandboxed({.argv = {program}, .folder = work.folder, .input = written(work.cases), .limits = limits},
                    work.options.layers, work.options.on_wait);
  return judge_run(work.cases, read_answers(outcome.answers, work.cases.size()), outcome, limits);
}

// The name under which a learner knows the file, if it cannot be mistaken for anything else.
std::string plain_name(const fs::path& file, const std::string& ending) {
  const std::string name = file.filename().string();
  const bool plain = name.size() < 100 && name.find_first_not_of(
                                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_-+.") == std::string::npos;
  return plain ? name : "exercise" + ending;
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
  const fs::path place = fs::canonical(folder.path());
  const Workplace work{place, place / "learner" / plain_name(file, ending), cases, options};
  fs::create_directory(place / "learner");
  write_text(work.learner, source);
  return cpp ? check_cpp(work, source) : check_python(work, source);
}

}  // namespace attend::labs
