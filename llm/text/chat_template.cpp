// Rendering chats, and telling families apart.
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
constexpr string_view kEmptyThought = "<think>\n\n</think>\n\n";

ChatStyle mistral(const char* name, const char* before_question, const char* after_question, const char* before_answer,
                  System place) {
  ChatStyle style;
  style.name = name;
  style.family = Family::mistral;
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
  chatml("smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face", false);
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
    style.start = "<s>";
    style.end = "</s>";
    style.bare_system = bare;
  }
  for (const bool dated : {false, true}) {
    ChatStyle& style = chatml(dated ? "llama-3.1" : "llama-3", "", false);
    style.family = Family::llama3;
    style.end = "<|eot_id|>";
    style.dated = dated;
  }
  all.push_back(mistral("mistral", " [INST] ", " [/INST]", " ", System::first_question));
  all.push_back(mistral("mistral-v0.1", "[INST] ", " [/INST]", "", System::never));
  all.push_back(mistral("mistral-v0.3", "[INST] ", "[/INST]", " ", System::last_question));
  all.push_back(mistral("mistral-nemo", "[INST]", "[/INST]", "", System::last_question));
  ChatStyle& zephyr = chatml("zephyr", "", false);
  zephyr.family = Family::zephyr;
  zephyr.end = "</s>";
  return all;
}

const std::vector<ChatStyle>& styles() {
  static const std::vector<ChatStyle> all = make_styles();
  return all;
}

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
  Renderer(const ChatStyle& style, std::span<const Message> messages) : style_(style), messages_(messages) {
    if (messages.empty()) throw InvalidArgument("chat: there are no messages");
    for (std::size_t i = 0; i < messages.size(); ++i) check_role(i);
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
    if (parts_.empty() || parts_.back().trusted != trusted) parts_.push_back({"", trusted});
    parts_.back().text += text;
  }

  [[noreturn]] void refuse(std::size_t i, const std::string& text) const {
    throw InvalidArgument("chat: message " + std::to_string(i) + ": " + text);
  }
  // Roles are written into the template's own text, so they are the known ones alone.
  void check_role(std::size_t i) const {
    const std::string& role = messages_[i].role;
    const bool tools = style_.family == Family::chatml;
    if (role == "system" || role == "user" || role == "assistant" || (tools && role == "tool")) return;
    refuse(i, "role " + io::json_quoted(role) + ", expected system, user" +
                  (tools ? ", assistant or tool" : " or assistant"));
  }
  bool is(std::size_t i, string_view role) const { return i < messages_.size() && messages_[i].role == role; }

  void turn(string_view role, string_view text) {
    own(style_.start);
    own(role);
    own("\n");
    content(text);
    own(style_.end);
    own("\n");
  }

  void chatml(bool add_generation_prompt) {
    if (!is(0, "system") && !style_.system.empty()) {
      own(style_.start + "system\n" + style_.system + style_.end + "\n");
    }
    const std::size_t question = last_question();
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (style_.tool_answers && is(i, "tool")) {
        tool_answer(i);
      } else if (style_.thoughts != Thoughts::kept && is(i, "assistant")) {
        answer(i, i > question);
      } else {
        turn(messages_[i].role, messages_[i].content);
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
    const bool last = i + 1 == messages_.size();
    const bool shown = style_.thoughts == Thoughts::always || (after_question && (last || !thought.empty()));
    own(style_.start + "assistant\n");
    if (shown) {
      own("<think>\n");
      content(strip_right(strip_left(thought)));
      own("\n</think>\n\n");
      text = strip_left(text);
    }
    content(text);
    own(style_.end + "\n");
  }

  void minimind1() {
    if (!style_.bare_system) own(style_.start + "system\n");
    if (is(0, "system")) {
      content(messages_[0].content);
    } else {
      own(style_.system);
    }
    if (!style_.bare_system) own(style_.end + "\n");
    for (const Message& message : messages_) {
      if (message.role == "user") {
        own(style_.start + "user\n");
        content(message.content);
        own(style_.end + "\n" + style_.start + "assistant\n");
      } else if (message.role == "assistant") {
        content(message.content);
        own(style_.end + "\n");
      }
    }
  }

  void llama3(bool add_generation_prompt) {
    own("<|begin_of_text|>");
    std::size_t first = 0;
    if (style_.dated) {
      own("<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul "
          "2024\n\n");
      if (is(0, "system")) content(strip_space(messages_[first++].content));
      own(style_.end);
    }
    for (std::size_t i = first; i < messages_.size(); ++i) {
      own("<|start_header_id|>" + messages_[i].role + "<|end_header_id|>\n\n");
      content(strip_space(messages_[i].content));
      own(style_.end);
    }
    if (add_generation_prompt) own("<|start_header_id|>assistant<|end_header_id|>\n\n");
  }

  void mistral_turns() {
    const std::size_t first = is(0, "system") ? 1 : 0;
    if (first == 1 && style_.system_place == System::never) refuse(0, style_.name + " has no place for system");
    own("<s>");
    for (std::size_t i = first; i < messages_.size(); ++i) {
      const bool question = (i - first) % 2 == 0;
      if (!is(i, question ? "user" : "assistant")) {
        refuse(i, "role " + messages_[i].role + ", expected " + (question ? "user" : "assistant") + ": they alternate");
      }
      if (question) {
        own(style_.before_question);
        const bool here = style_.system_place == System::first_question ? i == first : i + 1 == messages_.size();
        if (first == 1 && here) {
          content(messages_[0].content);
          own("\n\n");
        }
        content(messages_[i].content);
        own(style_.after_question);
      } else {
        own(style_.before_answer);
        content(messages_[i].content);
        own(style_.end);
      }
    }
  }

  void zephyr(bool add_generation_prompt) {
    for (const Message& message : messages_) {
      own("<|" + message.role + "|>\n");
      content(message.content);
      own(style_.end + "\n");
    }
    if (add_generation_prompt) own("<|assistant|>\n");
  }

  const ChatStyle& style_;
  std::span<const Message> messages_;
  std::vector<ChatPart> parts_;
};

// --- detection ---

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

const ChatStyle* find_style(string_view name) {
  for (const ChatStyle& style : styles()) {
    if (style.name == name) return &style;
  }
  return nullptr;
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
  ChatStyle style = *find_style("chatml");
  if (has(source, std::string(end) + "\n" + std::string(start) + "assistant\n")) {
    style = *find_style(has(source, std::string(start) + "system\n") ? "minimind-v1" : "minimind-v1-2024");
  } else if (has(source, "open_thinking")) {
    style = *find_style("minimind3");
  } else if (thoughts) {
    style = *find_style(opens_with_thought(source) ? "qwen3-thinking" : "qwen3");
  } else {
    style.tool_answers = has(source, "<tool_response>");
    for (const ChatStyle& known : styles()) {
      const bool same = known.family == Family::chatml && known.thoughts == Thoughts::kept;
      if (same && known.system == system && known.tool_answers == style.tool_answers) style = known;
    }
  }
  style.start = start;
  style.end = end;
  style.system = system;
  return style;
}

const ChatStyle* detect_mistral(string_view source) {
  const bool before = has(source, "' [INST] ") || has(source, "\" [INST] "), after = has(source, " [/INST]");
  const bool space = has(source, "[INST] ");
  return find_style(before ? "mistral" : after ? "mistral-v0.1" : space ? "mistral-v0.3" : "mistral-nemo");
}

}  // namespace

ChatTemplate::ChatTemplate(ChatStyle style) : style_(std::make_shared<const ChatStyle>(std::move(style))) {}

const std::string& ChatTemplate::name() const {
  return style_->name;
}

const std::string& ChatTemplate::default_system() const {
  return style_->system;
}

std::optional<ChatTemplate> ChatTemplate::named(string_view name) {
  const ChatStyle* style = find_style(name);
  return style == nullptr ? std::nullopt : std::optional(ChatTemplate(*style));
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> all;
  for (const ChatStyle& style : styles()) all.push_back(style.name);
  return all;
}

ChatTemplate ChatTemplate::detect(string_view jinja_source) {
  // A line end is written as one or as \n.
  std::string source;
  source.reserve(jinja_source.size());
  for (std::size_t i = 0; i < jinja_source.size(); ++i) {
    const bool line_end = jinja_source.substr(i, 2) == "\\n";
    source += line_end ? '\n' : jinja_source[i];
    if (line_end) ++i;
  }

  if (has(source, "<|im_start|>") || has(source, "<s>system\n") || has(source, "</s>\n<s>assistant\n"))
    return ChatTemplate(detect_chatml(source));
  if (has(source, "<|start_header_id|>")) {
    return ChatTemplate(*find_style(has(source, "Cutting Knowledge Date") ? "llama-3.1" : "llama-3"));
  }
  if (has(source, "[INST]") && !has(source, "<<SYS>>") && !has(source, "[SYSTEM_PROMPT]")) {
    return ChatTemplate(*detect_mistral(source));
  }
  if (has(source, "<|user|>\n") && has(source, "<|assistant|>") && !has(source, "<|end|>")) {
    return ChatTemplate(*find_style("zephyr"));
  }
  std::string text = "chat template not recognised: it has none of <|im_start|>, <|start_header_id|>, [INST] (without ";
  text += "<<SYS>> and [SYSTEM_PROMPT]), <|user|> (without <|end|>); it begins with ";
  text += io::json_quoted(jinja_source.substr(0, 100)) + "; known are:";
  for (const std::string& name : names()) text += " " + name;
  throw io::FileError(text);
}

void ChatTemplate::set_thinking(bool on) {
  const auto& opening = on ? style_->opening_thinking : style_->opening_at_once;
  if (!opening)
    throw InvalidArgument("chat: thinking cannot be turned " + std::string(on ? "on" : "off") + " in the template " +
                          style_->name + "; in qwen3 and minimind3 it can");
  ChatStyle style = *style_;
  style.opening = *opening;
  style_ = std::make_shared<const ChatStyle>(std::move(style));
}

std::vector<ChatPart> ChatTemplate::parts(std::span<const Message> messages, bool add_generation_prompt) const {
  return Renderer(*style_, messages).run(add_generation_prompt);
}

std::string ChatTemplate::render(std::span<const Message> messages, bool add_generation_prompt) const {
  std::string text;
  for (const ChatPart& part : parts(messages, add_generation_prompt)) text += part.text;
  return text;
}

std::vector<std::string> ChatTemplate::stop_pieces() const {
  if (style_->family == Family::llama3) return {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"};
  if (style_->end == "<|im_end|>") return {"<|im_end|>", "<|endoftext|>"};
  return {style_->end};
}

std::vector<Token> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                               std::span<const Message> messages, bool add_generation_prompt, ContentTokens content) {
  const std::vector<ChatPart> parts = chat_template.parts(messages, add_generation_prompt);
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
