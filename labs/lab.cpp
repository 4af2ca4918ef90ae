// Running a lab: its arguments checked, its numbers measured and judged.
#include "labs/lab.hpp"

#include <charconv>
#include <chrono>
#include <stdexcept>

#include "io/closest.hpp"

namespace attend::labs {
namespace {

std::int64_t whole_number(const Parameter& p, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= p.least && value <= p.most) return value;
  throw Refused(say("{} is '{}', expected a whole number from {} to {}", "{} 是“{}”，应为 {} 到 {} 之间的整数", p.name,
                    text, p.least, p.most));
}

Text not_among(const Text& kind, const std::string& name, const std::vector<std::string>& names) {
  const std::string list = fmt::format("{}", fmt::join(names, ", ")), closest = io::closest(name, names);
  Text text = {fmt::format("there is no {} '{}', there are: {}", kind.en, name, list),
               fmt::format("没有名为“{}”的{}，可选：{}", name, kind.zh, list)};
  if (closest.empty()) return text;
  const Text meant = say("; did you mean '{}'?", "；你是不是想说“{}”？", closest);
  return {text.en + meant.en, text.zh + meant.zh};
}

}  // namespace

double Numbers::at(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) throw std::logic_error(fmt::format("nobody measured '{}'", name));
  return found->second;
}

Arguments::Arguments(std::span<const Parameter> parameters, const std::map<std::string, std::string>& given, bool quick)
    : quick_(quick) {
  for (const Parameter& p : parameters) {
    if (p.words)
      words_[p.name] = p.preset_words;
    else
      numbers_[p.name] = quick ? p.quick : p.preset;
  }
  for (const auto& [name, text] : given) {
    std::vector<std::string> names;
    const Parameter* meant = nullptr;
    for (const Parameter& p : parameters) {
      names.push_back(p.name);
      if (p.name == name) meant = &p;
    }
    if (meant == nullptr)
      throw Refused(names.empty()
                        ? say("there is no parameter '{}': this lab has none", "没有参数“{}”：这个实验没有参数", name)
                        : not_among(say("parameter", "参数"), name, names));
    if (meant->words)
      words_[name] = text;
    else
      numbers_[name] = whole_number(*meant, text);
  }
}

std::int64_t Arguments::operator[](std::string_view name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) throw std::logic_error(fmt::format("no parameter '{}'", name));
  return found->second;
}

const std::string& Arguments::words(std::string_view name) const {
  const auto found = words_.find(name);
  if (found == words_.end()) throw std::logic_error(fmt::format("no parameter '{}'", name));
  return found->second;
}

std::string Arguments::text(std::string_view name) const {
  const auto found = words_.find(name);
  return found != words_.end() ? found->second : std::to_string((*this)[name]);
}

const Lab* find_lab(std::string_view name) {
  for (const Lab& lab : all_labs())
    if (lab.name == name) return &lab;
  return nullptr;
}

const Lab& lab_called(const std::string& name) {
  if (const Lab* lab = find_lab(name)) return *lab;
  std::vector<std::string> names;
  for (const Lab& lab : all_labs()) names.push_back(lab.name);
  throw Refused(not_among(say("lab", "实验"), name, names));
}

Report run_lab(const Lab& lab, const Arguments& arguments, const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  Results results = lab.measure(arguments, progress ? progress : [](double) {});
  std::vector<Conclusion> conclusions = lab.judge(results.numbers);
  for (Conclusion& one : conclusions) one.decided = one.holds || !arguments.quick();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  return {&lab, arguments, std::move(results), std::move(conclusions), passed.count()};
}

}  // namespace attend::labs
