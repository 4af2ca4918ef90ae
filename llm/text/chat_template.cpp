// Rendering chats.
#include "llm/text/chat_template.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "attend/error.hpp"
#include "io/json.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

using Family = ChatStyle::Family;
using Thoughts = ChatStyle::Thoughts;
using System = ChatStyle::System;
using std::string_view;

constexpr string_view kThink = "<think>", kThought = "</think>";

// As Python's strip() of the one character, and of white space.
string_view strip_left(string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}
string_view strip_right(string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}
bool python_space(char32_t c) {
  return (traits(c) & kSpace) != 0 || (c >= 0x1C && c <= 0x1F);
}
std::string strip_space(string_view raw) {
  const std::string whole = utf8_repaired(raw);
  string_view text = whole;
  while (!text.empty() && python_space(code_point(text, 0).value)) text.remove_prefix(code_point(text, 0).bytes);
  while (!text.empty()) {
    const std::size_t last = previous_place(text, text.size());
    if (!python_space(code_point(text, last).value)) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

class Renderer {
 public:
  // mark_answers: parts name the answer that they belong to.
  Renderer(const ChatStyle& style, std::span<const Message> messages, std::span<const std::string> tools,
           bool mark_answers)
      : style_(style), messages_(messages), mark_answers_(mark_answers) {
    if (messages.empty()) throw InvalidArgument("chat: there are no messages");
    for (std::size_t i = 0; i < messages.size(); ++i) check_role(i);
    if (!tools.empty()) tools_ = tools_words(style, tools);
  }

  std::vector<ChatPart> run(bool add_generation_prompt) {
    switch (style_.family) {
      case Family::chatml:
        chatml(add_generation_prompt);
        break;
      case Family::minimind1:
        minimind1();
        break;
      case Family::llama3:
        llama3(add_generation_prompt);
        break;
      case Family::mistral:
        mistral_turns();
        break;
      case Family::zephyr:
        zephyr(add_generation_prompt);
        break;
    }
    return std::move(parts_);
  }

 private:
  void own(string_view text) { put(text, true); }
  void content(string_view text) { put(text, false); }
  void put(string_view text, bool trusted) {
    if (text.empty()) return;
    if (parts_.empty() || parts_.back().trusted != trusted || parts_.back().answer != answer_)
      parts_.push_back({"", trusted, answer_});
    parts_.back().text += text;
  }
  // What follows is written by the model, if message i is an assistant's.
  void begin_answer(std::size_t i) {
    if (mark_answers_ && is(i, "assistant")) answer_ = static_cast<std::int64_t>(i);
  }
  void end_turn(string_view text) {
    own(text);
    answer_ = -1;
  }

  [[noreturn]] void refuse(std::size_t i, const std::string& text) const {
    throw InvalidArgument("chat: message " + std::to_string(i) + ": " + text);
  }
  // Roles are written into the template's own text, so they are the known ones alone.
  void check_role(std::size_t i) const {
    const std::string& role = messages_[i].role;
    const bool tools = style_.tools != ToolForm::none;
    if (has_calls(i) && !tools) refuse(i, style_.name + " has no place for calls of functions");
    if (has_calls(i) && role != "assistant") refuse(i, "calls of functions, and its role is " + io::json_quoted(role));
    if (role == "system" || role == "user" || role == "assistant" || (tools && role == "tool")) return;
    refuse(i, "role " + io::json_quoted(role) + ", expected system, user" +
                  (tools ? ", assistant or tool" : " or assistant"));
  }
  bool is(std::size_t i, string_view role) const { return i < messages_.size() && messages_[i].role == role; }
  bool has_calls(std::size_t i) const { return !messages_[i].calls.empty(); }
  void calls(std::size_t i, bool behind_text) {
    if (!has_calls(i)) return;
    if (behind_text) own("\n");
    content(calls_words(style_, messages_[i].calls));
  }

  void turn(std::size_t i) {
    own(style_.start + messages_[i].role + "\n");
    begin_answer(i);
    content(messages_[i].content);
    calls(i, !messages_[i].content.empty());
    end_turn(style_.end + "\n");
  }

  // The system message with the tools behind it.
  std::size_t told_tools() {
    const bool given = is(0, "system");
    own(style_.start + "system\n");
    if (given) {
      content(messages_[0].content);
      own("\n\n");
    } else if (!style_.system.empty() && style_.tools == ToolForm::tagged) {
      own(style_.system + "\n\n");
    }
    content(tools_);
    own(style_.end + "\n");
    return given ? 1 : 0;
  }

  void chatml(bool add_generation_prompt) {
    std::size_t first = 0;
    if (!tools_.empty()) {
      first = told_tools();
    } else if (!is(0, "system") && !style_.system.empty()) {
      own(style_.start + "system\n" + style_.system + style_.end + "\n");
    }
    const std::size_t question = last_question();
    for (std::size_t i = first; i < messages_.size(); ++i) {
      if (style_.tool_answers && is(i, "tool")) {
        tool_answer(i);
      } else if (style_.thoughts != Thoughts::kept && is(i, "assistant")) {
        answer(i, i > question);
      } else {
        turn(i);
      }
    }
    if (add_generation_prompt) own(style_.start + "assistant\n" + style_.opening);
  }

  // The last message of a user that is not a tool's answer in disguise; without one, the last message.
  std::size_t last_question() const {
    for (std::size_t i = messages_.size(); i-- > 0;) {
      const std::string& text = messages_[i].content;
      if (is(i, "user") && !(text.starts_with("<tool_response>") && text.ends_with("</tool_response>"))) return i;
    }
    return messages_.size() - 1;
  }

  void tool_answer(std::size_t i) {
    if (i == 0 || !is(i - 1, "tool")) own(style_.start + "user");
    own("\n<tool_response>\n");
    content(messages_[i].content);
    own("\n</tool_response>");
    if (!is(i + 1, "tool")) own(style_.end + "\n");
  }

  void answer(std::size_t i, bool after_question) {
    string_view text = messages_[i].content, thought;
    if (const std::size_t end = text.find(kThought); end != string_view::npos) {
      thought = strip_right(text.substr(0, end));
      if (const std::size_t begin = thought.rfind(kThink); begin != string_view::npos) {
        thought.remove_prefix(begin + kThink.size());
      }
      thought = strip_left(thought);
      text = strip_left(text.substr(text.rfind(kThought) + kThought.size()));
    }
    const bool last = i + 1 == messages_.size(), said = !text.empty();
    const bool shown = style_.thoughts == Thoughts::always || (after_question && (last || !thought.empty()));
    own(style_.start + "assistant\n");
    if (shown) {
      // What the generation prompt opens is not the answer's.
      const std::string opened = thought.empty() ? style_.opening : style_.opening_thinking.value_or("");
      if (opened.empty()) begin_answer(i);
      own("<think>\n");
      if (opened == "<think>\n") begin_answer(i);
      content(strip_right(strip_left(thought)));
      own("\n</think>\n\n");
      text = strip_left(text);
    }
    begin_answer(i);
    content(text);
    calls(i, said);
    end_turn(style_.end + "\n");
  }

  void minimind1() {
    if (!style_.bare_system) own(style_.start + "system\n");
    if (is(0, "system")) {
      content(messages_[0].content);
    } else {
      own(style_.system);
    }
    if (!style_.bare_system) own(style_.end + "\n");
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (is(i, "user")) {
        own(style_.start + "user\n");
        content(messages_[i].content);
        own(style_.end + "\n" + style_.start + "assistant\n");
      } else if (is(i, "assistant")) {
        begin_answer(i);
        content(messages_[i].content);
        end_turn(style_.end + "\n");
      }
    }
  }

  void llama3(bool add_generation_prompt) {
    own("<|begin_of_text|>");
    std::size_t first = 0;
    if (style_.dated) {
      llama_head("system");
      if (!tools_.empty()) own("Environment: ipython\n");
      own("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
      if (is(0, "system")) content(strip_space(messages_[first++].content));
      own(style_.end);
    }
    if (!tools_.empty()) {
      if (!is(first, "user")) refuse(first, "expected a user's: " + style_.name + " tells of tools in the first");
      llama_head("user");
      content(tools_ + strip_space(messages_[first++].content));
      own(style_.end);
    }
    for (std::size_t i = first; i < messages_.size(); ++i) {
      const bool answer = is(i, "tool");
      llama_head(answer ? "ipython" : messages_[i].role);
      begin_answer(i);
      if (has_calls(i)) {
        calls(i, false);
      } else {
        content(answer ? io::json_quoted(messages_[i].content) : strip_space(messages_[i].content));
      }
      end_turn(style_.end);
    }
    if (add_generation_prompt) llama_head("assistant");
  }
  void llama_head(string_view role) {
    own("<|start_header_id|>");
    own(role);
    own("<|end_header_id|>\n\n");
  }

  void mistral_turns() {
    const std::size_t first = is(0, "system") ? 1 : 0;
    if (first == 1 && style_.system_place == System::never) refuse(0, style_.name + " has no place for system");
    const std::string gap = style_.before_question.ends_with(' ') ? " " : "";
    own("<s>");
    std::size_t turns = 0;
    for (std::size_t i = first; i < messages_.size(); ++i) {
      if (is(i, "tool")) {
        mistral_tool_answer(i, gap);
        continue;
      }
      if (has_calls(i)) {
        begin_answer(i);
        own("[TOOL_CALLS]" + gap);
        calls(i, false);
        end_turn(style_.end);
        continue;
      }
      const bool question = turns++ % 2 == 0;
      if (!is(i, question ? "user" : "assistant")) {
        refuse(i, "role " + messages_[i].role + ", expected " + (question ? "user" : "assistant") + ": they alternate");
      }
      if (question) {
        mistral_question(i, first, gap);
      } else {
        begin_answer(i);
        own(style_.before_answer);
        content(messages_[i].content);
        end_turn(style_.end);
      }
    }
  }

  void mistral_question(std::size_t i, std::size_t first, const std::string& gap) {
    if (!tools_.empty()) {
      // Behind the last question, and whichever else is the same, says the template.
      const auto last =
          std::find_if(messages_.rbegin(), messages_.rend(), [](const Message& m) { return m.role == "user"; });
      if (last->content == messages_[i].content) {
        own("[AVAILABLE_TOOLS]" + gap);
        content(tools_);
        own("[/AVAILABLE_TOOLS]");
      }
    }
    own(style_.before_question);
    const bool here = style_.system_place == System::first_question ? i == first : i + 1 == messages_.size();
    if (first == 1 && here) {
      content(messages_[0].content);
      own("\n\n");
    }
    content(messages_[i].content);
    own(style_.after_question);
  }

  void mistral_tool_answer(std::size_t i, const std::string& gap) {
    if (messages_[i].call_id.size() != 9)
      refuse(i, "the call that it answers is " + io::json_quoted(messages_[i].call_id.substr(0, 40)) +
                    ", expected nine letters and digits, as " + style_.name + " asks for");
    own("[TOOL_RESULTS]" + gap + "{\"content\": ");
    content(messages_[i].content + ", \"call_id\": \"" + messages_[i].call_id + "\"}");
    own("[/TOOL_RESULTS]");
  }

  void zephyr(bool add_generation_prompt) {
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      own("<|" + messages_[i].role + "|>\n");
      begin_answer(i);
      content(messages_[i].content);
      end_turn(style_.end + "\n");
    }
    if (add_generation_prompt) own("<|assistant|>\n");
  }

  const ChatStyle& style_;
  std::span<const Message> messages_;
  bool mark_answers_;
  std::string tools_;         // in the template's words; "" for none
  std::int64_t answer_ = -1;  // the message whose answer is being written
  std::vector<ChatPart> parts_;
};

}  // namespace

ChatTemplate::ChatTemplate(ChatStyle style)
    : style_("ChatTemplate", std::make_shared<const ChatStyle>(std::move(style))) {}

const std::string& ChatTemplate::name() const {
  return style_->name;
}

const std::string& ChatTemplate::default_system() const {
  return style_->system;
}

ToolForm ChatTemplate::tool_form() const {
  return style_->tools;
}

bool ChatTemplate::has_thoughts() const {
  return style_->thoughts != Thoughts::kept;
}

bool ChatTemplate::opens_thoughts() const {
  return style_->opening.ends_with("<think>\n");
}

ChatTemplate ChatTemplate::detect(string_view jinja_source) {
  return ChatTemplate(detect_chat_style(jinja_source));
}

std::optional<ChatTemplate> ChatTemplate::named(string_view name) {
  const ChatStyle* style = find_chat_style(name);
  return style == nullptr ? std::nullopt : std::optional(ChatTemplate(*style));
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const ChatStyle& style : chat_styles()) all.push_back(style.name);
  return all;
}

void ChatTemplate::set_thinking(bool on) {
  const auto& opening = on ? style_->opening_thinking : style_->opening_at_once;
  if (!opening)
    throw InvalidArgument("chat: thinking cannot be turned " + std::string(on ? "on" : "off") + " in the template " +
                          style_->name + "; in qwen3 and minimind3 it can");
  ChatStyle style = *style_;
  style.opening = *opening;
  style_ = {"ChatTemplate", std::make_shared<const ChatStyle>(std::move(style))};
}

std::vector<ChatPart> ChatTemplate::parts(std::span<const Message> messages, bool add_generation_prompt,
                                          std::span<const std::string> tools) const {
  return Renderer(*style_, messages, tools, false).run(add_generation_prompt);
}

std::vector<ChatPart> ChatTemplate::training_parts(std::span<const Message> messages,
                                                   std::span<const std::string> tools) const {
  return Renderer(*style_, messages, tools, true).run(false);
}

std::string ChatTemplate::render(std::span<const Message> messages, bool add_generation_prompt,
                                 std::span<const std::string> tools) const {
  std::string text;
  for (const ChatPart& part : parts(messages, add_generation_prompt, tools)) text += part.text;
  return text;
}

std::vector<std::string> ChatTemplate::stop_pieces() const {
  if (style_->family == Family::llama3) return {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"};
  if (style_->end == "<|im_end|>") return {"<|im_end|>", "<|endoftext|>"};
  return {style_->end};
}

std::vector<Token> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                               std::span<const Message> messages, bool add_generation_prompt, ContentTokens content,
                               std::span<const std::string> tools) {
  const std::vector<ChatPart> parts = chat_template.parts(messages, add_generation_prompt, tools);
  if (content == ContentTokens::special) {
    std::string text;
    for (const ChatPart& part : parts) text += part.text;
    return tokenizer.encode(text, false, true);
  }
  std::vector<TextPart> views;
  views.reserve(parts.size());
  for (const ChatPart& part : parts) views.push_back({part.text, part.trusted});
  return tokenizer.encode_parts(views);
}

}  // namespace attend::llm
