// The families of chat templates, and telling them apart by their sources.
#include <algorithm>
#include <utility>

#include "io/json.hpp"
#include "llm/text/chat_template.hpp"

namespace attend::llm {
namespace {

using Family = ChatStyle::Family;
using Thoughts = ChatStyle::Thoughts;
using System = ChatStyle::System;
using std::string_view;

constexpr string_view kEmptyThought = "<think>\n\n</think>\n\n";

ChatStyle mistral(const char* name, const char* before_question, const char* after_question, const char* before_answer,
                  System place, ToolForm tools) {
  ChatStyle style;
  style.name = name;
  style.family = Family::mistral;
  style.tools = tools;
  style.end = "</s>";
  style.before_question = before_question;
  style.after_question = after_question;
  style.before_answer = before_answer;
  style.system_place = place;
  return style;
}

std::vector<ChatStyle> make_styles() {
  std::vector<ChatStyle> all;
  const auto chatml = [&](const char* name, const char* system, bool tool_answers) -> ChatStyle& {
    ChatStyle style;
    style.name = name;
    style.system = system;
    style.tool_answers = tool_answers;
    return all.emplace_back(std::move(style));
  };
  chatml("chatml", "", false);
  chatml("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face", false).tools =
      ToolForm::tagged_list;
  chatml("qwen2", "You are a helpful assistant.", false);
  chatml("qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", true);
  ChatStyle& qwen3 = chatml("qwen3", "", true);
  qwen3.thoughts = Thoughts::latest;
  qwen3.opening_thinking = "";  // the model begins them itself
  qwen3.opening_at_once = kEmptyThought;
  ChatStyle& thinking = chatml("qwen3-thinking", "", true);
  thinking.thoughts = Thoughts::latest;
  thinking.opening = "<think>\n";
  thinking.opening_thinking = thinking.opening;
  chatml("minimind", "You are a helpful assistant", true);
  ChatStyle& minimind3 = chatml("minimind3", "", true);
  minimind3.thoughts = Thoughts::always;
  minimind3.opening = kEmptyThought;
  minimind3.opening_thinking = "<think>\n";
  minimind3.opening_at_once = kEmptyThought;
  for (const bool bare : {false, true}) {
    ChatStyle& style = bare ? chatml("minimind-v1-2024", "", false)
                            : chatml("minimind-v1", "你是 MiniMind，是一个有用的人工智能助手。", false);
    style.family = Family::minimind1;
    style.tools = ToolForm::none;
    style.start = "<s>";
    style.end = "</s>";
    style.bare_system = bare;
  }
  for (const bool dated : {false, true}) {
    ChatStyle& style = chatml(dated ? "llama-3.1" : "llama-3", "", false);
    style.family = Family::llama3;
    style.tools = dated ? ToolForm::llama : ToolForm::none;
    style.end = "<|eot_id|>";
    style.dated = dated;
  }
  all.push_back(mistral("mistral", " [INST] ", " [/INST]", " ", System::first_question, ToolForm::none));
  all.push_back(mistral("mistral-v0.1", "[INST] ", " [/INST]", "", System::never, ToolForm::none));
  all.push_back(mistral("mistral-v0.3", "[INST] ", "[/INST]", " ", System::last_question, ToolForm::mistral));
  all.push_back(mistral("mistral-nemo", "[INST]", "[/INST]", "", System::last_question, ToolForm::mistral));
  ChatStyle& zephyr = chatml("zephyr", "", false);
  zephyr.family = Family::zephyr;
  zephyr.tools = ToolForm::none;
  zephyr.end = "</s>";
  return all;
}

bool has(string_view text, string_view part) {
  return text.find(part) != string_view::npos;
}

// What stands between `before` and `after` inside one string of the source; "" if nothing does.
std::string literal_between(string_view source, string_view before, string_view after) {
  std::size_t end = 0;  // each character is looked at once or twice, however often the two stand there
  for (std::size_t at = 0; (at = source.find(before, at)) != string_view::npos;) {
    at += before.size();
    if (end < at) end = source.find(after, at);
    if (end == string_view::npos) break;
    const string_view text = source.substr(at, end - at);
    const std::size_t other = text.find_first_of("'\"{}");
    if (!text.empty() && other == string_view::npos) return std::string(text);
    if (!text.empty()) at += other;  // whatever begins before it has it inside, too
  }
  return "";
}

// The answer to come begins with <think>: a string that ends so and is all that is printed.
bool opens_with_thought(string_view source) {
  constexpr string_view kOpening = "<|im_start|>assistant\n<think>\n";
  for (std::size_t at = 0; (at = source.find(kOpening, at)) != string_view::npos;) {
    at += kOpening.size();
    const std::size_t next = source.find_first_not_of("'\" -", at);
    if (next != string_view::npos && source[next] == '}') return true;
  }
  return false;
}

ChatStyle detect_chatml(string_view source) {
  const string_view start = has(source, "<|im_start|>") ? "<|im_start|>" : "<s>";
  const string_view end = start == "<s>" ? "</s>" : "<|im_end|>";
  const std::string system = literal_between(source, std::string(start) + "system\n", end);
  const bool thoughts = has(source, "reasoning_content");
  ChatStyle style = *find_chat_style("chatml");
  if (has(source, std::string(end) + "\n" + std::string(start) + "assistant\n")) {
    style = *find_chat_style(has(source, std::string(start) + "system\n") ? "minimind-v1" : "minimind-v1-2024");
  } else if (has(source, "open_thinking")) {
    style = *find_chat_style("minimind3");
  } else if (thoughts) {
    style = *find_chat_style(opens_with_thought(source) ? "qwen3-thinking" : "qwen3");
  } else {
    style.tool_answers = has(source, "<tool_response>");
    for (const ChatStyle& known : chat_styles()) {
      const bool same = known.family == Family::chatml && known.thoughts == Thoughts::kept;
      if (same && known.system == system && known.tool_answers == style.tool_answers) style = known;
    }
  }
  style.start = start;
  style.end = end;
  style.system = system;
  return style;
}

ChatStyle detect_mistral(string_view source) {
  const bool before = has(source, "' [INST] ") || has(source, "\" [INST] "), after = has(source, " [/INST]");
  const bool space = has(source, "[INST] ");
  ChatStyle style = *find_chat_style(before  ? "mistral"
                                     : after ? "mistral-v0.1"
                                     : space ? "mistral-v0.3"
                                             : "mistral-nemo");
  if (!has(source, "[AVAILABLE_TOOLS]")) style.tools = ToolForm::none;
  return style;
}

}  // namespace

const std::vector<ChatStyle>& chat_styles() {
  static const std::vector<ChatStyle> all = make_styles();
  return all;
}

const ChatStyle* find_chat_style(string_view name) {
  for (const ChatStyle& style : chat_styles()) {
    if (style.name == name) return &style;
  }
  return nullptr;
}

ChatStyle detect_chat_style(string_view jinja_source) {
  // A line end is written as one or as \n.
  std::string source;
  source.reserve(jinja_source.size());
  for (std::size_t i = 0; i < jinja_source.size(); ++i) {
    const bool line_end = jinja_source.substr(i, 2) == "\\n";
    source += line_end ? '\n' : jinja_source[i];
    if (line_end) ++i;
  }

  if (has(source, "<|im_start|>") || has(source, "<s>system\n") || has(source, "</s>\n<s>assistant\n"))
    return detect_chatml(source);
  if (has(source, "<|start_header_id|>")) {
    return *find_chat_style(has(source, "Cutting Knowledge Date") ? "llama-3.1" : "llama-3");
  }
  if (has(source, "[INST]") && !has(source, "<<SYS>>") && !has(source, "[SYSTEM_PROMPT]")) {
    return detect_mistral(source);
  }
  if (has(source, "<|user|>\n") && has(source, "<|assistant|>") && !has(source, "<|end|>")) {
    return *find_chat_style("zephyr");
  }
  std::string text = "chat template not recognised: it has none of <|im_start|>, <|start_header_id|>, [INST] (without ";
  text += "<<SYS>> and [SYSTEM_PROMPT]), <|user|> (without <|end|>); it begins with ";
  text += io::json_quoted(jinja_source.substr(0, 100)) + "; known are:";
  for (const ChatStyle& style : chat_styles()) text += " " + style.name;
  throw io::FileError(text);
}

}  // namespace attend::llm
