// <tool_call>{"name": ..., "arguments": {...}}</tool_call>, written and read.
#include "apps/server/tools.hpp"

#include <algorithm>

#include "apps/server/router.hpp"
#include "attend/error.hpp"
#include "io/json_text.hpp"
#include "llm/constrain/json_grammar.hpp"

namespace attend::server {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr const char* kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool known(const std::vector<Tool>& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; });
}

// {"name": ..., "arguments" or "parameters": {...} or "{...}"}
std::optional<ToolCall> as_call(const io::Json& value, const std::vector<Tool>& tools) {
  const io::Json* name = value.find("name");
  const io::Json* arguments = value.find("arguments");
  if (arguments == nullptr) arguments = value.find("parameters");
  if (name == nullptr || name->string() == nullptr || !known(tools, *name->string())) return std::nullopt;
  if (arguments == nullptr || arguments->is_null()) return ToolCall{*name->string(), "{}"};
  if (arguments->string() != nullptr) return ToolCall{*name->string(), *arguments->string()};
  if (arguments->object() == nullptr) return std::nullopt;
  return ToolCall{*name->string(), io::json_text(*arguments)};
}

// One call, or an array of them; nothing when it is neither.
std::vector<ToolCall> calls_in(std::string_view text, const std::vector<Tool>& tools) {
  std::vector<ToolCall> calls;
  try {
    const io::Json value = io::parse_json(trimmed(text), "call", {.bytes = kBodyBytes, .depth = kJsonDepth});
    static const io::Json::Array kNone;
    const io::Json::Array one = value.array() != nullptr ? kNone : io::Json::Array{value};
    for (const io::Json& item : value.array() != nullptr ? *value.array() : one) {
      const auto call = as_call(item, tools);
      if (!call) return {};
      calls.push_back(*call);
    }
  } catch (const FileError&) {  // no JSON: words
  }
  return calls;
}

}  // namespace

std::string tools_text(const std::vector<Tool>& tools) {
  std::string text =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
      "signatures within <tools></tools> XML tags:\n<tools>";
  for (const Tool& tool : tools) text += "\n" + tool.text;
  return text +
         "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
         "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
         "<args-json-object>}\n</tool_call>";
}

std::string calls_text(const std::string& content, const std::vector<ToolCall>& calls) {
  std::string text = content;
  for (const ToolCall& call : calls) {
    if (!text.empty()) text += "\n";
    text += std::string(kOpen) + "\n{\"name\": " + io::json_quoted(call.name) + ", \"arguments\": " + call.arguments +
            "}\n" + std::string(kClose);
  }
  return text;
}

std::shared_ptr<const llm::ByteGrammar> call_grammar(const std::vector<Tool>& tools) {
  // Each tool's call as a schema of its own; references inside its parameters have to find their place again.
  std::vector<llm::WrappedSchema> forms;
  for (const Tool& tool : tools)
    forms.push_back({std::string(kOpen) + "\n{\"name\": " + io::json_quoted(tool.name) + ", \"arguments\": ",
                     tool.parameters.is_null() ? io::Json(io::Json::Object{}) : tool.parameters,
                     "}\n" + std::string(kClose), "tools." + tool.name + ".parameters"});
  return llm::wrapped_schemas_grammar(forms);
}

ParsedAnswer parse_calls(std::string_view answer, const std::vector<Tool>& tools) {
  ParsedAnswer parsed;
  if (trimmed(answer).starts_with('{') || trimmed(answer).starts_with('[')) {
    parsed.calls = calls_in(answer, tools);
    if (!parsed.calls.empty()) return parsed;
  }
  std::string_view rest = answer;
  for (std::size_t open; (open = rest.find(kOpen)) != std::string_view::npos;) {
    const std::size_t first = open + kOpen.size();
    const std::size_t last = std::min(rest.find(kClose, first), rest.size());
    const std::vector<ToolCall> calls = calls_in(rest.substr(first, last - first), tools);
    const std::size_t end = std::min(last + kClose.size(), rest.size());
    // What only looked like a call is kept as it stands.
    parsed.content += calls.empty() ? rest.substr(0, end) : rest.substr(0, open);
    parsed.calls.insert(parsed.calls.end(), calls.begin(), calls.end());
    rest = rest.substr(end);
  }
  parsed.content += rest;
  if (!parsed.calls.empty()) parsed.content = trimmed(parsed.content);
  return parsed;
}

std::size_t surely_content(std::string_view answer) {
  const std::size_t first = answer.find_first_not_of(kSpace);
  if (first == std::string_view::npos || answer[first] == '{' || answer[first] == '[') return 0;
  if (const std::size_t open = answer.find(kOpen); open != std::string_view::npos) return open;
  for (std::size_t n = std::min(answer.size(), kOpen.size() - 1); n > 0; --n)
    if (answer.substr(answer.size() - n) == kOpen.substr(0, n)) return answer.size() - n;
  return answer.size();
}

}  // namespace attend::server
