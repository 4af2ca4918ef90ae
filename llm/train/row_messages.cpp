// Roles, contents, reasoning and calls of tools, under the names that datasets give them.
#include "llm/train/row_messages.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/json_text.hpp"
#include "llm/train/python_literal.hpp"
#include "llm/train/row_limits.hpp"

namespace attend::llm {
namespace {

constexpr std::array<std::pair<std::string_view, const char*>, 15> kRoles = {{
    {"system", "system"},
    {"developer", "system"},
    {"user", "user"},
    {"human", "user"},
    {"prompter", "user"},
    {"assistant", "assistant"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"model", "assistant"},
    {"function_call", "assistant"},
    {"tool", "tool"},
    {"tool_response", "tool"},
    {"function", "tool"},
    {"function_response", "tool"},
    {"observation", "tool"},
}};

std::string role_of(const Fields& f) {
  const auto given = f.maybe_string({"role", "from"});
  if (!given) f.refuse("role", "is missing");
  for (const auto& [name, role] : kRoles)
    if (*given == name) return role;
  f.refuse("role", "is " + io::json_quoted(*given) +
                       ", expected system, user, assistant or tool, or ShareGPT's human, gpt, function_call or "
                       "observation");
}

// OpenAI's list of parts, of which only text can be used.
std::string parts_text(const Fields& f, const char* field, const io::Json::Array& parts) {
  std::string text;
  for (const io::Json& item : parts) {
    const Fields part(item, f.what() + ": \"" + field + "\"");
    const std::string type = part.maybe_string({"type"}).value_or("text");
    if (type != "text" && type != "refusal")
      part.refuse("type", "is " + io::json_quoted(type) + ", expected text: pictures and sound are not supported");
    text += part.maybe_string({"text", "refusal"}).value_or("");
  }
  return text;
}

std::optional<std::string> content_of(const Fields& f) {
  std::string field;
  const io::Json* value = f.find({"content", "value"}, &field);
  if (value == nullptr) return f.maybe_string({"refusal"});
  if (const auto* parts = value->array()) return parts_text(f, field.c_str(), *parts);
  return f.maybe_string({field.c_str()});
}

// {"name", "arguments"}, perhaps inside "function"; the arguments are an object, or JSON of one.
ToolCall call_of(const io::Json& value, const std::string& what) {
  const Fields outer(value, what);
  const io::Json* inner = outer.find({"function"});
  const Fields f(inner != nullptr ? *inner : value, what);
  ToolCall call;
  call.id = outer.maybe_string({"id"}).value_or("");
  const auto name = f.maybe_string({"name"});
  if (!name) f.refuse("name", "is missing in a call of a tool");
  call.name = *name;
  const io::Json* arguments = f.find({"arguments", "parameters"});
  if (arguments == nullptr)
    call.arguments = "{}";
  else
    call.arguments = arguments->string() != nullptr ? *arguments->string() : io::json_text(*arguments);
  return call;
}

// A list of values in a field, or one value, be it as JSON in a text.
std::vector<io::Json> values_of(const Fields& f, const char* field) {
  io::Json parsed;
  const io::Json* value = row_list(f, field, parsed);
  if (value == nullptr || value->is_null()) return {};
  if (const auto* list = value->array()) return *list;
  return {*value};
}

void add_calls(const Fields& f, Message& message) {
  for (const char* field : {"tool_calls", "function_call"})
    for (const io::Json& one : values_of(f, field))
      message.calls.push_back(call_of(one, f.what() + ": \"" + field + "\""));
}

// In ShareGPT a call is the whole of a message.
void take_call_of_content(const Fields& f, Message& message) {
  const std::string what = f.what() + ": the call of a tool";
  const io::Json value = io::parse_json(message.content, what, kRowLimits);
  if (const auto* list = value.array())
    for (const io::Json& one : *list) message.calls.push_back(call_of(one, what));
  else
    message.calls.push_back(call_of(value, what));
  message.content.clear();
}

// Templates with a place for thoughts find them in the content, where others show them as they are.
void add_reasoning(const Fields& f, Message& message) {
  const auto reasoning = f.maybe_string({"reasoning_content", "reasoning", "thinking"});
  if (!reasoning || reasoning->empty()) return;
  constexpr std::string_view kEnd = "</think>";
  if (message.role != "assistant") f.refuse("reasoning_content", "is in a message whose role is " + message.role);
  if (reasoning->find(kEnd) != std::string::npos || message.content.find(kEnd) != std::string::npos)
    f.refuse("reasoning_content", "is given, and the message holds </think> as text, which would end it early");
  message.content = "<think>\n" + *reasoning + "\n</think>\n\n" + message.content;
}

Message message_of(const io::Json& value, const std::string& what, std::vector<std::string>& tools) {
  const Fields f(value, what);
  Message message;
  message.role = role_of(f);
  auto content = content_of(f);
  add_calls(f, message);
  if (!content && message.calls.empty() && f.find({"reasoning_content", "reasoning", "thinking"}) == nullptr)
    f.refuse("content", "is missing");
  message.content = std::move(content).value_or("");
  if (f.maybe_string({"role", "from"}) == "function_call") take_call_of_content(f, message);
  add_reasoning(f, message);
  message.call_id = f.maybe_string({"tool_call_id"}).value_or("");
  if (const auto weight = f.maybe_number({"weight"}, 0, 1)) {
    if (*weight != 0 && *weight != 1) f.refuse("weight", "is " + io::json_number(*weight) + ", expected 0 or 1");
    message.learned = *weight == 1;
  }
  for (std::string& tool : row_tools(f, {"tools", "functions"})) tools.push_back(std::move(tool));
  return message;
}

// CSV holds lists as texts.
bool is_list_of_messages(const Fields& row, const char* name) {
  if (!row.maybe_string({name}).value_or("").starts_with("[{")) return false;
  io::Json parsed;
  try {
    (void)row_list(row, name, parsed);
  } catch (const io::FileError&) {
    return false;
  }
  const auto is_message = [](const io::Json& one) {
    return (one.find("role") != nullptr && one.find("content") != nullptr) ||
           (one.find("from") != nullptr && one.find("value") != nullptr);
  };
  return parsed.array() != nullptr && !parsed.array()->empty() &&
         std::all_of(parsed.array()->begin(), parsed.array()->end(), is_message);
}

}  // namespace

const io::Json* row_list(const Fields& row, const char* name, io::Json& parsed) {
  const io::Json* value = row.find({name});
  if (value == nullptr || value->string() == nullptr) return value;
  if (value->string()->find_first_not_of(" \t\r\n") == std::string::npos) return nullptr;
  const std::string what = row.what() + ": \"" + name + "\"";
  try {
    parsed = io::parse_json(*value->string(), what, kRowLimits);
  } catch (const io::FileError&) {
    parsed = io::parse_json(json_of_python(*value->string()), what + ", as JSON or a list of Python", kRowLimits);
  }
  return &parsed;
}

std::vector<Message> row_messages(const Fields& row, const char* name, const char* role,
                                  std::vector<std::string>& tools) {
  const io::Json* value = row.find({name});
  if (value == nullptr) row.refuse(name, "is missing");
  if (value->string() != nullptr && *role != '\0' && !is_list_of_messages(row, name)) return {{role, *value->string()}};
  const std::string what = row.what() + ": \"" + name + "\"";
  if (value->object() != nullptr) return {message_of(*value, what, tools)};
  io::Json parsed;
  const bool is_json = value->string() != nullptr && value->string()->starts_with('[');
  if (is_json) value = row_list(row, name, parsed);
  if (value->array() == nullptr)
    row.refuse(name, std::string("is ") + value->kind() +
                         (*role == '\0' ? ", expected a list of messages" : ", expected a text or messages"));
  std::vector<Message> chat;
  for (const io::Json& item : *value->array()) chat.push_back(message_of(item, what, tools));
  return chat;
}

std::vector<std::string> row_tools(const Fields& fields, std::initializer_list<const char*> names) {
  std::vector<std::string> tools;
  for (const char* name : names) {
    for (const io::Json& tool : values_of(fields, name)) {
      if (tool.is_null()) continue;
      if (tool.object() == nullptr)
        fields.refuse(name, std::string("holds ") + tool.kind() + ", expected definitions of tools, objects");
      tools.push_back(io::json_text(tool));
    }
  }
  return tools;
}

}  // namespace attend::llm
