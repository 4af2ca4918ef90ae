// From answers to a verdict: right, or which mistake it is.
#include <algorithm>
#include <cmath>

#include "io/json.hpp"
#include "labs/exercises/check.hpp"
#include "labs/lab.hpp"

namespace attend::labs {
namespace {

std::string shape_words(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const Mistake& mistake_called(const Exercise& exercise, const std::string& name) {
  return *std::find_if(exercise.mistakes.begin(), exercise.mistakes.end(),
                       [&](const Mistake& m) { return m.name == name; });
}

bool all_match(const Exercise& exercise, const std::vector<const Case*>& cases, const std::vector<Array>& answers,
               const Mistakes& made) {
  for (std::size_t n = 0; n < cases.size(); ++n)
    if (!same_answer(answers[n], exercise.answer(*cases[n], made))) return false;
  return true;
}

Text in_case(const Case& c, const Text& text) {
  return {fmt::format("case \"{}\": {}", c.what.en, text.en), fmt::format("用例“{}”：{}", c.what.zh, text.zh)};
}

// float64 is right too: under NumPy 2 a float32 array divided by np.sqrt(d) becomes one.
bool accepts_dtype(const Exercise& exercise, const std::string& dtype) {
  return exercise.name == "causal_mask" ? dtype == "bool" : dtype == "float32" || dtype == "float64";
}

Text dtype_words(const Exercise& exercise, const std::string& dtype) {
  if (exercise.name == "causal_mask")
    return say("the numbers are right, but they come back as {}, expected bool: True where a query may look.",
               "数是对的，但返回的是 {}，应为 bool：True 表示可以看。", dtype);
  return say("the numbers are right, but they come back as {}, expected float32 (float64 counts as right too).",
             "数是对的，但返回的是 {}，应为 float32（float64 也算对）。", dtype);
}

Text right_words(const std::vector<Answer>& answers) {
  if (std::none_of(answers.begin(), answers.end(), [](const Answer& a) { return a.dtype == "float64"; }))
    return say("right, on all cases.", "正确，所有用例都通过了。");
  return say(
      "right, on all cases. It returns float64, which takes twice the memory: in NumPy 2 a float32 array divided "
      "by np.sqrt(d) becomes float64; divided by math.sqrt(d) it stays float32.",
      "正确，所有用例都通过了。返回的是 float64，内存多占一倍：NumPy 2 中 float32 数组除以 np.sqrt(d) 会变成 "
      "float64，除以 math.sqrt(d) 则仍是 float32。");
}

// What is wrong besides the numbers: other dtypes, inputs that were written to.
void judge_manners(const Exercise& exercise, const std::vector<Answer>& answers, Verdict& verdict) {
  for (const Answer& a : answers)
    if (!a.changed.empty()) {
      verdict.mistakes = {"mutated_input"};
      verdict.text =
          say("the answers are right, but the input {} is changed: the caller still needs it. Work on a copy.",
              "答案是对的，但改动了输入 {}：调用者还要用它。请在副本上操作。", a.changed.front());
      return;
    }
  for (const Answer& a : answers)
    if (!accepts_dtype(exercise, a.dtype)) {
      verdict.mistakes = {"wrong_dtype"};
      verdict.text = dtype_words(exercise, a.dtype);
      return;
    }
  verdict.kind = Verdict::Kind::right;
  verdict.lab.clear();
  verdict.text = right_words(answers);
}

// The first number that differs, for a mistake that nobody has a name for.
Text first_difference(const Exercise& exercise, const std::vector<const Case*>& cases,
                      const std::vector<Array>& answers) {
  for (std::size_t n = 0; n < cases.size(); ++n) {
    const Array expected = exercise.answer(*cases[n], {}), &got = answers[n];
    if (same_answer(got, expected)) continue;
    if (got.shape != expected.shape)
      return in_case(*cases[n],
                     say("no known mistake; the shape is {}, expected {}.", "不是已知的错误；形状是 {}，应为 {}。",
                         shape_words(got.shape), shape_words(expected.shape)));
    for (std::size_t i = 0; i < got.data.size(); ++i)
      if (!same_answer({{1}, {got.data[i]}, Kind::real}, {{1}, {expected.data[i]}, Kind::real}))
        return in_case(*cases[n],
                       say("no known mistake; element {} is {:g}, expected {:g}.",
                           "不是已知的错误；第 {} 个元素是 {:g}，应为 {:g}。", i, got.data[i], expected.data[i]));
  }
  return say("no known mistake.", "不是已知的错误。");
}

// An answer that is not a number.
bool judge_failure(const Case& c, const Answer& a, Verdict& verdict) {
  using Kind = Answer::Kind;
  switch (a.kind) {
    case Kind::value:
      return false;
    case Kind::unwritten:
      verdict.kind = Verdict::Kind::unwritten;
      verdict.text = say("not written yet.", "还没有写。");
      return true;
    case Kind::none:
      verdict.mistakes = {"returned_nothing"};
      verdict.text =
          say("it returns nothing (None): is a \"return\" missing?", "没有返回值（None）：是不是漏了 return？");
      return true;
    case Kind::exit:
      verdict.kind = Verdict::Kind::stopped;
      verdict.text =
          say("it left the program (exit) instead of returning an answer.", "它退出了程序（exit），没有返回答案。");
      return true;
    case Kind::memory:
      verdict.kind = Verdict::Kind::stopped;
      verdict.text =
          say("it wanted more memory than it may have, and was stopped.", "它要的内存超过了限制，已被停止。");
      return true;
    case Kind::error: {
      const bool refused = was_refused(a.message);
      verdict.mistakes = {"error"};
      if (refused) verdict.kind = Verdict::Kind::stopped;
      verdict.text = in_case(c, refused ? refused_words(a.message) : Text{a.message, a.message});
      return true;
    }
    case Kind::missing:
      verdict.kind = Verdict::Kind::stopped;
      verdict.text = a.message.empty() ? say("it was stopped before it answered.", "还没有回答就被停止了。")
                                       : Text{a.message, a.message};
      return true;
  }
  return false;
}

}  // namespace

bool same_answer(const Array& got, const Array& expected) {
  if (got.shape != expected.shape) return false;
  for (std::size_t n = 0; n < got.data.size(); ++n) {
    const float a = got.data[n], b = expected.data[n];
    if (std::isnan(a) || std::isnan(b)) {
      if (std::isnan(a) != std::isnan(b)) return false;
    } else if (std::isinf(a) || std::isinf(b)) {
      if (a != b) return false;
    } else if (std::abs(a - b) > 1e-3F * std::max(1.0F, std::abs(b))) {
      return false;
    }
  }
  return true;
}

std::vector<std::string> matching_mistakes(const Exercise& exercise, const std::vector<const Case*>& cases,
                                           const std::vector<Array>& answers) {
  for (const Mistake& m : exercise.mistakes)
    if (all_match(exercise, cases, answers, {m.name})) return {m.name};
  for (std::size_t a = 0; a < exercise.mistakes.size(); ++a)
    for (std::size_t b = a + 1; b < exercise.mistakes.size(); ++b)
      if (all_match(exercise, cases, answers, {exercise.mistakes[a].name, exercise.mistakes[b].name}))
        return {exercise.mistakes[a].name, exercise.mistakes[b].name};
  return {};
}

Verdict judge_answers(const Exercise& exercise, const std::vector<const Case*>& cases,
                      const std::vector<Answer>& answers) {
  Verdict verdict{Verdict::Kind::wrong, exercise.name, {}, {}, exercise.lab};
  std::vector<Array> values;
  for (std::size_t n = 0; n < cases.size(); ++n) {
    if (judge_failure(*cases[n], answers[n], verdict)) return verdict;
    values.push_back(answers[n].value);
  }
  if (all_match(exercise, cases, values, {})) {
    judge_manners(exercise, answers, verdict);
    return verdict;
  }
  verdict.mistakes = matching_mistakes(exercise, cases, values);
  if (verdict.mistakes.empty()) {
    verdict.text = first_difference(exercise, cases, values);
    return verdict;
  }
  for (const std::string& name : verdict.mistakes) {
    const Text& text = mistake_called(exercise, name).text;
    verdict.text.en += (verdict.text.en.empty() ? "" : " And: ") + text.en;
    verdict.text.zh += (verdict.text.zh.empty() ? "" : "另外：") + text.zh;
  }
  return verdict;
}

bool CheckResult::all_right() const {
  return !verdicts.empty() &&
         std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.kind == Verdict::Kind::right; });
}

bool was_refused(const std::string& message) {
  return message.find("Operation not permitted") != std::string::npos;
}

Text refused_words(const std::string& message) {
  return say("{} (starting processes, writing files and using the network are not allowed here)",
             "{}（这里不允许启动其他进程、写文件或使用网络）", message);
}

std::vector<std::string> names_of(const Layers& layers) {
  std::vector<std::string> names;
  if (layers.namespaces) names.emplace_back("namespaces");
  if (layers.file_tree) names.emplace_back("file-tree");
  if (layers.landlock) names.emplace_back("landlock");
  names.emplace_back("system-calls");
  return names;
}

Text sandbox_words(const Layers& layers) {
  const std::string list = fmt::format("{}", fmt::join(names_of(layers), ", "));
  if (layers.file_tree || layers.landlock) return say("sandbox: {}", "沙箱：{}", list);
  return say("sandbox: {}; this system does not keep the program from reading your files",
             "沙箱：{}；这个系统无法阻止程序读取你的文件", list);
}

std::string to_json(const CheckResult& result) {
  static const char* const kKinds[] = {"right", "wrong", "unwritten", "stopped"};
  const auto both = [](const Text& text) {
    io::JsonObject object;
    object.string("en", text.en);
    object.string("zh", text.zh);
    return object.text();
  };
  std::string list;
  for (const Verdict& v : result.verdicts) {
    io::JsonObject one;
    one.string("exercise", v.exercise);
    one.string("verdict", kKinds[static_cast<std::size_t>(v.kind)]);
    std::string mistakes;
    for (const std::string& name : v.mistakes) mistakes += (mistakes.empty() ? "" : ",") + io::json_quoted(name);
    one.put("mistakes", "[" + mistakes + "]");
    one.put("text", both(v.text));
    one.string("lab", v.lab);
    list += (list.empty() ? "" : ",") + one.text();
  }
  io::JsonObject object;
  object.put("verdicts", "[" + list + "]");
  if (!result.failure.en.empty()) object.put("failure", both(result.failure));
  object.truth("all_right", result.all_right());
  if (result.sandbox) {
    std::string layers;
    for (const std::string& name : names_of(*result.sandbox))
      layers += (layers.empty() ? "" : ",") + io::json_quoted(name);
    object.put("sandbox", "[" + layers + "]");
  }
  return object.text();
}

}  // namespace attend::labs
