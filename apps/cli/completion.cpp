// attend completion SHELL: the shell's completions, made from what --help says. Hidden; the build installs what it
// prints.
#include <fmt/format.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "describe.hpp"

namespace attend::cli {
namespace {

std::string replaced(std::string_view text, std::string_view characters, std::string_view before) {
  std::string out;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) out += before;
    out += c;
  }
  return out;
}

// In single quotes: as in sh, and as in fish.
std::string sh_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}
std::string fish_quoted(std::string_view text) {
  return "'" + replaced(text, "\\'", "\\") + "'";
}

std::string names_of(const std::vector<OptionText>& options) {
  std::string names;
  for (const OptionText& option : options)
    for (const std::string& name : option.names) names += (names.empty() ? "" : " ") + name;
  return names;
}

// `text` with each word replaced by its value.
std::string filled(std::string text, std::initializer_list<std::pair<std::string_view, std::string_view>> values) {
  for (const auto& [word, value] : values) text.replace(text.find(word), word.size(), value);
  return text;
}

// bash.

constexpr const char* kBash = R"sh(# bash completion of attend, made by 'attend completion bash'.
_attend_words() { mapfile -t COMPREPLY < <(compgen -W "$*" -- "$current"); }
_attend_files() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$current")
}
_attend_models() {
  local names
  names=$("${COMP_WORDS[0]}" completion models 2>/dev/null)
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current"; compgen -f -- "$current")
}
_attend() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' words='' rest='' word
  # --option=value is three words here.
  if [[ $current == = ]]; then
    current=''
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  COMPREPLY=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ $word != -* ]]; then
      command=$word
      break
    fi
  done
  case $command:$before in
@VALUES@  esac
  case $command in
@WORDS@  esac
  if [[ $rest == commands ]]; then
    _attend_words @COMMANDS@ "$words"
  elif [[ $current == -* ]]; then
    _attend_words "$words"
  else
    $rest
  fi
}
complete -F _attend attend
)sh";

// What offers the values of an option or a positional.
std::string bash_values(const OptionText& option) {
  switch (option.takes) {
    case Takes::choice:
      return fmt::format("_attend_words {}", fmt::join(option.choices, " "));
    case Takes::model:
      return "_attend_models";
    case Takes::path:
      return "_attend_files";
    default:
      return ":";
  }
}

std::string bash(const ProgramText& text) {
  std::string values, words = fmt::format("    '') words='{}'; rest=commands ;;\n", names_of(text.self.options));
  std::string commands;
  for (const CommandText& command : text.commands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    for (const OptionText& option : command.options) {
      if (option.takes == Takes::nothing) continue;
      std::string names;
      for (const std::string& name : option.names)
        names += fmt::format("{}{}:{}", names.empty() ? "" : "|", command.name, name);
      values += fmt::format("    {}) {}; return ;;\n", names, bash_values(option));
    }
    // The positionals share what they offer: the first that offers anything decides.
    std::string rest = ":";
    for (const OptionText& p : command.positionals)
      if (rest == ":") rest = bash_values(p);
    words += fmt::format("    {}) words='{}'; rest={} ;;\n", command.name, names_of(command.options), sh_quoted(rest));
  }
  return filled(kBash, {{"@VALUES@", values}, {"@WORDS@", words}, {"@COMMANDS@", commands}});
}

// zsh.

constexpr const char* kZsh = R"sh(#compdef attend
# zsh completion of attend, made by 'attend completion zsh'.
_attend_models() {
  local -a names
  names=(${(f)"$(attend completion models 2>/dev/null)"})
  _alternative 'models:model:compadd -a names' 'files:file:_files'
}
_attend() {
  local context state state_descr line
  typeset -A opt_args
  _arguments -C@OPTIONS@ \
    '1:command:->command' '*::argument:->argument'
  case $state in
    command)
      local -a commands
      commands=(
@COMMANDS@      )
      _describe command commands
      ;;
    argument)
      case $words[1] in
@CASES@      esac
      ;;
  esac
}
_attend "$@"
)sh";

std::string zsh_values(const OptionText& option) {
  switch (option.takes) {
    case Takes::choice:
      return fmt::format("({})", fmt::join(option.choices, " "));
    case Takes::model:
      return "_attend_models";
    case Takes::path:
      return "_files";
    default:
      return " ";
  }
}

// One argument of _arguments for each name: '(-n --tokens)--tokens=[text]:N: '.
std::string zsh_option(const OptionText& option) {
  std::string out, all = names_of({option});
  for (const std::string& name : option.names) {
    std::string spec = option.repeats ? "*" : fmt::format("({})", all);
    spec += name;
    if (option.takes != Takes::nothing) spec += name.starts_with("--") ? "=" : "+";
    spec += fmt::format("[{}]", replaced(option.text, "[]\\", "\\"));
    if (option.takes != Takes::nothing) spec += fmt::format(":{}:{}", option.value, zsh_values(option));
    out += fmt::format(" \\\n        {}", sh_quoted(spec));
  }
  return out;
}

std::string zsh(const ProgramText& text) {
  std::string own, list, cases;
  for (const OptionText& option : text.self.options) own += zsh_option(option);
  for (const CommandText& command : text.commands) {
    list += fmt::format("        {}\n", sh_quoted(command.name + ":" + command.text));
    std::string arguments;
    for (const OptionText& option : command.options) arguments += zsh_option(option);
    for (const OptionText& p : command.positionals) {
      const std::string spec = fmt::format("{}:{}:{}", p.repeats ? "*" : "", p.names.front(), zsh_values(p));
      arguments += fmt::format(" \\\n        {}", sh_quoted(p.repeats || p.required ? spec : ":" + spec));
    }
    cases += fmt::format("    {})\n      _arguments -s{}\n      ;;\n", command.name, arguments);
  }
  return filled(kZsh, {{"@OPTIONS@", own}, {"@COMMANDS@", list}, {"@CASES@", cases}});
}

// fish.

std::string fish_values(const OptionText& option) {
  switch (option.takes) {
    case Takes::nothing:
      return "";
    case Takes::choice:
      return fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
    case Takes::model:
      return " -r -F -a '(attend completion models 2>/dev/null)'";
    case Takes::path:
      return " -r -F";
    default:
      return " -x";
  }
}

std::string fish_option(const std::string& when, const OptionText& option) {
  std::string line = fmt::format("complete -c attend -n {}", fish_quoted(when));
  for (const std::string& name : option.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  return line + fish_values(option) + " -d " + fish_quoted(option.text) + "\n";
}

std::string fish(const ProgramText& text) {
  std::string out = "# fish completion of attend, made by 'attend completion fish'.\ncomplete -c attend -f\n";
  for (const OptionText& option : text.self.options) out += fish_option("__fish_use_subcommand", option);
  for (const CommandText& command : text.commands) {
    const std::string when = "__fish_seen_subcommand_from " + command.name;
    out += fmt::format("complete -c attend -n __fish_use_subcommand -a {} -d {}\n", command.name,
                       fish_quoted(command.text));
    for (const OptionText& option : command.options) out += fish_option(when, option);
    for (const OptionText& p : command.positionals) {
      if (p.takes == Takes::other) continue;
      std::string values = fish_values(p);
      if (values.starts_with(" -r")) values.erase(0, 3);
      out += fmt::format("complete -c attend -n {}{}\n", fish_quoted(when), values);
    }
  }
  return out;
}

void print_completion(const std::string& shell, const ProgramText& text) {
  if (shell == "bash") fmt::print("{}", bash(text));
  if (shell == "zsh") fmt::print("{}", zsh(text));
  if (shell == "fish") fmt::print("{}", fish(text));
  if (shell != "models") return;
  for (const std::string& name : llm::stored_names()) fmt::print("{}\n", name);
  fmt::print("{}\n", llm::embedded_model());
}

}  // namespace

Command add_completion(Program& program) {
  auto shell = std::make_shared<std::string>();
  const Subcommand app =
      program.add_subcommand("completion", "Print a shell's completions; models: the names that they offer");
  app.hide();
  app.add_option("shell", *shell, "Which").required().check(one_of({"bash", "zsh", "fish", "models"}));
  return {app, [&program, shell] {
            print_completion(*shell, program.describe());
            return kSuccess;
          }};
}

}  // namespace attend::cli
