// Tools in the words of each family's template: how a model is told of them, and how its calls are written.
#include <algorithm>

#include "attend/error.hpp"
#include "io/json_text.hpp"
#include "llm/text/chat_template.hpp"

namespace attend::llm {
namespace {

io::Json parsed(const std::string& text, const char* what) {
  try {
    return io::parse_json(text, what);
  } catch (const io::FileError& error) {
    throw InvalidArgument(std::string("chat: ") + error.what());
  }
}

std::string call_text(const ToolCall& call, const char* key, bool with_id = false) {
  std::string text = "{\"name\": ";
  text += io::json_quoted(call.name);
  text.append(", \"").append(key).append("\": ");
  text += io::json_text(parsed(call.arguments.empty() ? "{}" : call.arguments, "arguments"), true);
  if (with_id) text.append(", \"id\": ").append(io::json_quoted(call.id));
  return text += '}';
}

std::string tagged_words(std::span<const std::string> tools) {
  std::string text =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
      "signatures within <tools></tools> XML tags:\n<tools>";
  for (const std::string& tool : tools) text.append("\n").append(io::json_text(parsed(tool, "tool"), true));
  return text +
         "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
         "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
         "<args-json-object>}\n</tool_call>";
}

// What SmolLM2 was taught with; its template has no words of its own for tools.
std::string tagged_list_words(std::span<const std::string> tools) {
  std::string text =
      "You are an expert in composing functions. You are given a question and a set of possible functions. \nBased on "
      "the question, you will need to make one or more function/tool calls to achieve the purpose. \nIf none of the "
      "functions can be used, point it out and refuse to answer. \nIf the given question lacks the parameters required "
      "by the function, also point it out.\n\nYou have access to the following tools:\n<tools>[";
  for (std::size_t i = 0; i < tools.size(); ++i)
    text.append(i > 0 ? ", " : "").append(io::json_text(parsed(tools[i], "tool"), true));
  return text +
         "]</tools>\n\nThe output MUST strictly adhere to the following format, and NO other text MUST be included.\n"
         "The example format is as follows. Please make sure the parameter type is correct. If no function call is "
         "needed, please make the tool calls an empty list '[]'.\n<tool_call>[\n{\"name\": \"func_name1\", "
         "\"arguments\": {\"argument1\": \"value1\", \"argument2\": \"value2\"}},\n... (more tool calls as "
         "required)\n]</tool_call>";
}

std::string llama_words(std::span<const std::string> tools) {
  std::string text =
      "Given the following functions, please respond with a JSON for a function call with its proper arguments that "
      "best answers the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": dictionary of "
      "argument name and its value}.Do not use variables.\n\n";
  for (const std::string& tool : tools) text.append(io::json_lines(parsed(tool, "tool"), 4)).append("\n\n");
  return text;
}

// Its template writes the fields of a function one by one, texts as they stand.
std::string mistral_words(std::span<const std::string> tools) {
  std::string text;
  for (const std::string& one : tools) {
    const io::Json tool = parsed(one, "tool");
    const io::Json* function = tool.find("function");
    if (function == nullptr || function->object() == nullptr)
      throw InvalidArgument("chat: a tool has no \"function\", expected {\"type\": \"function\", \"function\": {...}}");
    std::string fields;
    for (const auto& [key, value] : *function->object()) {
      if (key == "return") continue;
      fields.append(fields.empty() ? "\"" : ", \"").append(key).append("\": ");
      if (value.string() != nullptr)
        fields.append("\"").append(*value.string()).append("\"");
      else
        fields += io::json_text(value, true);
    }
    text.append(text.empty() ? "[" : ", ").append(R"({"type": "function", "function": {)").append(fields).append("}}");
  }
  return text += ']';
}

std::string list_words(std::span<const ToolCall> calls, bool with_ids) {
  std::string text;
  for (const ToolCall& call : calls)
    text.append(text.empty() ? "[" : ", ").append(call_text(call, "arguments", with_ids));
  return text += ']';
}

}  // namespace

std::string tools_words(const ChatStyle& style, std::span<const std::string> tools) {
  switch (style.tools) {
    case ToolForm::none:
      break;
    case ToolForm::tagged:
      return tagged_words(tools);
    case ToolForm::tagged_list:
      return tagged_list_words(tools);
    case ToolForm::llama:
      return llama_words(tools);
    case ToolForm::mistral:
      return mistral_words(tools);
  }
  throw InvalidArgument("chat: the template " + style.name + " has no place for tools");
}

std::string calls_words(const ChatStyle& style, std::span<const ToolCall> calls) {
  switch (style.tools) {
    case ToolForm::none:
      break;
    case ToolForm::tagged: {
      std::string text;
      for (const ToolCall& call : calls)
        text.append(text.empty() ? "" : "\n")
            .append("<tool_call>\n")
            .append(call_text(call, "arguments"))
            .append("\n</tool_call>");
      return text;
    }
    case ToolForm::tagged_list:
      return std::string("<tool_call>").append(list_words(calls, false)).append("</tool_call>");
    case ToolForm::llama:
      if (calls.size() != 1)
        throw InvalidArgument("chat: " + std::to_string(calls.size()) + " calls in one message, and the template " +
                              style.name + " has a place for one");
      return call_text(calls.front(), "parameters");
    case ToolForm::mistral: {
      // Its ids have nine letters and digits, says its template.
      const auto good = [](const ToolCall& call) {
        return call.id.size() == 9 && std::all_of(call.id.begin(), call.id.end(), [](unsigned char c) {
                 return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
               });
      };
      for (const ToolCall& call : calls)
        if (!good(call))
          throw InvalidArgument("chat: the id of a call is " + io::json_quoted(call.id.substr(0, 40)) +
                                ", expected nine letters and digits, as the template " + style.name + " asks for");
      return list_words(calls, true);
    }
  }
  throw InvalidArgument("chat: the template " + style.name + " has no place for calls of functions");
}

}  // namespace attend::llm
