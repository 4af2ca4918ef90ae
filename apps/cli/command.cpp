// The parser: sub-commands and their arguments over CLI11, and what it finds wrong, in words.
#include "command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <system_error>

#include "describe.hpp"
#include "io/closest.hpp"

namespace attend::cli {
namespace {

// All of the text is the number, as people write it: CLI11 itself takes "" for 0, "010" for 8 and clips what is too
// large.
template <class Number>
bool is_whole(const std::string& text, Number least, Number most) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && std::to_string(value) == text && value >= least && value <= most;
}

template <class Number>
Check whole(Number least, Number most) {
  return text_that([=](const std::string& text) -> std::string {
    if (is_whole(text, least, most)) return {};
    return fmt::format("got '{}', expected a whole number from {} to {}", text, least, most);
  });
}

// What CLI11 says, and the name that may have been meant.
std::string explain(const CLI::ParseError& error, CLI::App& program, const CLI::App* command) {
  const CLI::App& app = command != nullptr ? *command : program;
  const std::vector<std::string> left = program.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || left.empty()) return error.what();
  const std::string& typed = left.front();
  std::vector<std::string> names;
  if (typed.starts_with("-")) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string name = typed.substr(0, typed.find('='));
    std::string positionals;
    bool bare = false;  // it is one of those that are given without a name
    for (const CLI::Option* option : app.get_options()) {
      if (!option->get_positional()) continue;
      positionals += " [" + option->get_name(true) + "]";
      bare = bare || name == "--" + option->get_name(true);
    }
    if (bare)
      return fmt::format("'{}' stands without its name: attend {}{}", name.substr(2), app.get_name(), positionals);
    return error.what() + io::did_you_mean(name, names);
  }
  if (command != nullptr) return error.what();
  for (const CLI::App* other : program.get_subcommands({}))
    if (!other->get_group().empty()) names.push_back(other->get_name());
  return fmt::format("there is no command '{}'{}", typed, io::did_you_mean(typed, names));
}

// ---- what the program tells about itself, read out of CLI11's objects ----

// "NAME:{f32,bf16}": the words in braces, as CLI11 writes those of IsMember; none: no such list.
std::vector<std::string> choices_in(std::string_view type) {
  std::vector<std::string> words;
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}', open);
  if (open == std::string_view::npos || close == std::string_view::npos) return words;
  std::string_view list = type.substr(open + 1, close - open - 1);
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    words.emplace_back(list.substr(0, comma));
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return words;
}

Takes what_it_takes(const OptionText& option, std::string_view type) {
  if (!option.choices.empty()) return Takes::choice;
  if (type == "MODEL") return Takes::model;
  if (type == "PATH" || type == "OUT" || type.ends_with("FILE") || type.ends_with("FOLDER")) return Takes::path;
  return Takes::other;
}

OptionText describe_option(const CLI::Option& option) {
  OptionText text;
  text.text = option.get_description();
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (option.get_positional()) text.names.push_back(option.get_name(true));
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    text.value = type.substr(0, type.find(':'));
    text.preset = option.get_default_str();
    text.choices = choices_in(type);
    text.takes = what_it_takes(text, type);
  }
  text.required = option.get_required();
  text.repeats = option.get_items_expected_max() > 1;
  return text;
}

CommandText describe_command(const CLI::App& app) {
  CommandText text;
  text.name = app.get_name();
  text.text = app.get_description();
  text.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return !o->get_group().empty(); }))
    (option->get_positional() ? text.positionals : text.options).push_back(describe_option(*option));
  return text;
}

}  // namespace

Check text_that(std::function<std::string(const std::string& text)> fault) {
  return std::make_shared<CLI::Validator>([fault = std::move(fault)](std::string& text) { return fault(text); }, "");
}

Check whole_number(std::int64_t least, std::int64_t most) {
  return whole(least, most);
}

Check seed_number() {
  return whole(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max());
}

Check real_number(double least, double most) {
  return text_that([=](const std::string& text) -> std::string {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
    if (number && value >= least && value <= most) return {};
    return fmt::format("got '{}', expected a number from {} to {}", text, least, most);
  });
}

Check one_of(const std::vector<std::string>& names) {
  return std::make_shared<CLI::IsMember>(names);
}

Check existing_file() {
  return std::make_shared<CLI::Validator>(CLI::ExistingFile);
}

Option Option::required() const {
  option_->required();
  return *this;
}
Option Option::check(const Check& check) const {
  option_->check(*check);
  return *this;
}
Option Option::type_name(const char* name) const {
  option_->type_name(name);
  return *this;
}
Option Option::show_default() const {
  option_->capture_default_str();
  return *this;
}
Option Option::needs(const Option& other) const {
  option_->needs(other.option_);
  return *this;
}
Option Option::excludes(const Option& other) const {
  option_->excludes(other.option_);
  return *this;
}
bool Option::given() const {
  return option_->count() > 0;
}

Option Subcommand::add_option(const char* names, std::string& value, const char* about) const {
  return Option(app_->add_option(names, value, about));
}
Option Subcommand::add_option(const char* names, std::vector<std::string>& values, const char* about) const {
  return Option(app_->add_option(names, values, about));
}
Option Subcommand::add_option(const char* names, std::int64_t& value, const char* about) const {
  return Option(app_->add_option(names, value, about));
}
Option Subcommand::add_option(const char* names, std::uint64_t& value, const char* about) const {
  return Option(app_->add_option(names, value, about));
}
Option Subcommand::add_option(const char* names, int& value, const char* about) const {
  return Option(app_->add_option(names, value, about));
}
Option Subcommand::add_option(const char* names, double& value, const char* about) const {
  return Option(app_->add_option(names, value, about));
}
Option Subcommand::add_flag(const char* names, bool& value, const char* about) const {
  return Option(app_->add_flag(names, value, about));
}
void Subcommand::footer(const std::string& text) const {
  app_->footer(text);
}
void Subcommand::alias(const char* name) const {
  app_->alias(name);
}

void Subcommand::hide() const {
  app_->group("");
}

void Subcommand::take_rest() const {
  app_->allow_extras();
}

std::vector<std::string> Subcommand::rest() const {
  return app_->remaining();
}

Program::Program(const char* about, const std::string& version, const char* footer)
    : app_(std::make_unique<CLI::App>(about, "attend")) {
  app_->set_version_flag("--version", version, "Print the version and exit");
  app_->require_subcommand(0, 1);
  app_->get_formatter()->column_width(28);
  app_->footer(footer);
}

Program::~Program() = default;

Subcommand Program::add_subcommand(const char* name, const char* about) {
  return Subcommand(app_->add_subcommand(name, about));
}

ProgramText Program::describe() const {
  ProgramText text;
  text.self = describe_command(*app_);
  for (const CLI::App* app : app_->get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); }))
    text.commands.push_back(describe_command(*app));
  return text;
}

const Command* Program::parse(int argc, char** argv, std::span<const Command> commands, std::string& who) {
  who = app_->get_name();
  const auto parsed = [&]() -> const Command* {
    for (const Command& command : commands)
      if (command.subcommand.app_->parsed()) {
        who += " " + command.subcommand.app_->get_name();
        return &command;
      }
    return nullptr;
  };
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // help, or the version
      app_->exit(error);
      return nullptr;
    }
    const Command* command = parsed();
    throw UsageError(fmt::format("{}\nSee '{} --help'.",
                                 explain(error, *app_, command != nullptr ? command->subcommand.app_ : nullptr), who));
  }
  const Command* command = parsed();
  if (command == nullptr) fmt::print("{}", app_->help());
  return command;
}

}  // namespace attend::cli
