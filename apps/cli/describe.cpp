// Reads the description of the program out of CLI11's objects.
#include "describe.hpp"

#include <string_view>

namespace attend::cli {
namespace {

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

ProgramText describe(const CLI::App& program) {
  ProgramText text;
  text.self = describe_command(program);
  for (const CLI::App* app : program.get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); }))
    text.commands.push_back(describe_command(*app));
  return text;
}

}  // namespace attend::cli
