// /v1/chat/completions: messages, tools and the form of the answer, turned into requests of the engine.
#include <algorithm>

#include "apps/server/api.hpp"
#include "apps/server/generation.hpp"
#include "attend/error.hpp"
#include "io/json_text.hpp"
#include "llm/constrain/grammar_constraint.hpp"

namespace attend::server {
namespace {

constexpr std::size_t kMostTools = 128;
constexpr std::int64_t kMostForcedCalls = 8;  // where the model may decide how many

// A string, or parts of which each is text, or in an assistant's message what it refused with.
std::string read_content(Fields& message, const std::string& where, bool assistant) {
  const io::Json* content = message.find("content");
  if (content == nullptr) {
    if (assistant) return "";
    refuse_field(where + ".content", " is missing, expected a string", "missing_field");
  }
  if (content->string() != nullptr) return *content->string();
  if (content->array() == nullptr)
    refuse_field(where + ".content",
                 std::string(" is ") + content->kind() + ", expected a string or an array of text parts");
  std::string text;
  for (std::size_t i = 0; i < content->array()->size(); ++i) {
    const std::string place = where + ".content[" + std::to_string(i) + "]";
    Fields part = message.inside((*content->array())[i], place);
    const std::string type = part.text("type", "");
    if (type != "text" && !(assistant && type == "refusal"))
      refuse_field(place + ".type", " is " + io::json_quoted(type.substr(0, 100)) + ", and only \"text\" is supported",
                   "unsupported_value");
    const io::Json& words = part.need(type, "a string");
    if (words.string() == nullptr)
      refuse_field(place + "." + type, std::string(" is ") + words.kind() + ", expected a string");
    text += *words.string();
    part.done();
  }
  return text;
}

// Mistral's template wants ids of nine letters and digits: those of another kind are given such a name, always the
// same one.
std::string call_id(const std::string& id, llm::ToolForm form) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  if (form != llm::ToolForm::mistral || (id.size() == 9 && id.find_first_not_of(kLetters) == std::string::npos))
    return id;
  std::uint64_t number = 0xCBF29CE484222325ULL;
  for (const char c : id) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  std::string name;
  for (; name.size() < 9; number /= kLetters.size()) name += kLetters[number % kLetters.size()];
  return name;
}

std::vector<llm::ToolCall> read_calls(Fields& message, const std::string& where, llm::ToolForm form) {
  std::vector<llm::ToolCall> calls;
  const io::Json* value = message.find("tool_calls");
  if (value == nullptr) return calls;
  if (value->array() == nullptr)
    refuse_field(where + ".tool_calls", std::string(" is ") + value->kind() + ", expected an array");
  for (std::size_t i = 0; i < value->array()->size(); ++i) {
    const std::string place = where + ".tool_calls[" + std::to_string(i) + "]";
    Fields call = message.inside((*value->array())[i], place);
    const std::string id = call.text("id", "");
    call.pass("index");  // of a stream; they stand in their order
    call.only("type", "\"function\"", "other kinds of tools are not known");
    Fields function = call.inside(call.need("function", "an object"), place + ".function");
    const std::string name = function.text("name", "");
    if (name.empty()) refuse_field(place + ".function.name", " is missing, expected a name", "missing_field");
    const std::string arguments = function.text("arguments", "{}");
    try {
      const io::Json object = io::parse_json(arguments.empty() ? "{}" : arguments, "arguments", {.depth = kJsonDepth});
      calls.push_back({call_id(id, form), name, io::json_text(object)});
    } catch (const FileError& error) {
      refuse_field(place + ".function.arguments", std::string(" is no JSON: ") + error.what());
    }
    function.done();
    call.done();
  }
  return calls;
}

// The answer with the thoughts before it, in the words that templates with thoughts read; others have no place for
// them.
void read_thoughts(Fields& message, const llm::ChatTemplate& chat, std::string& content) {
  const std::string thoughts = message.text("reasoning_content", "");
  if (thoughts.empty()) return;
  if (chat.has_thoughts() && content.find("</think>") == std::string::npos)
    content = "<think>\n" + thoughts + "\n</think>\n\n" + content;
  else
    message.ignore("reasoning_content");
}

llm::Message read_message(Fields message, const std::string& where, const llm::ChatTemplate& chat) {
  const std::string role = message.text("role", "");
  const bool assistant = role == "assistant", tool = role == "tool";
  if (role != "system" && role != "developer" && role != "user" && !assistant && !tool)
    refuse_field(where + ".role", " is " + io::json_quoted(role.substr(0, 100)) +
                                      ", expected system, developer, user, assistant or tool");
  llm::Message read{role == "developer" ? "system" : role, read_content(message, where, assistant)};
  if (assistant) {
    read.calls = read_calls(message, where, chat.tool_form());
    const std::string refusal = message.text("refusal", "");
    if (!refusal.empty() && !read.content.empty())
      refuse_field(where + ".refusal", " is given beside content, expected one of them");
    read.content += refusal;
    read_thoughts(message, chat, read.content);
    message.only("audio", "null", "only text is");
    message.only("function_call", "null", "tool_calls has taken its place");
  }
  if (tool) {
    const std::string id = message.text("tool_call_id", "");
    if (id.empty())
      refuse_field(where + ".tool_call_id", " is missing, expected the id of the call that this answers",
                   "missing_field");
    read.call_id = call_id(id, chat.tool_form());
    (void)message.text("name", "");  // of the function: its call has said it
  }
  message.done();
  return read;
}

std::vector<llm::Message> read_messages(Fields& fields, const llm::ChatTemplate& chat) {
  const io::Json& value = fields.need("messages", "an array such as [{\"role\": \"user\", \"content\": \"Hello\"}]");
  if (value.array() == nullptr || value.array()->empty())
    refuse_field("messages", value.array() == nullptr
                                 ? std::string(" is ") + value.kind() + ", expected an array of messages"
                                 : " is empty, expected at least one message");
  std::vector<llm::Message> messages;
  for (std::size_t i = 0; i < value.array()->size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    messages.push_back(read_message(fields.inside((*value.array())[i], where), where, chat));
  }
  return messages;
}

struct ToolFields {
  std::vector<Tool> told;   // to the model
  std::vector<Tool> tools;  // of them those that may be called
  bool must_call = false;   // one of them
  bool several = true;
};

Tool read_tool(const io::Json& value, Fields tool, const std::string& where) {
  tool.only("type", "\"function\"", "other kinds of tools are not known");
  const io::Json& inner = tool.need("function", "an object");
  Fields function = tool.inside(inner, where + ".function");
  const std::string name = function.text("name", "");
  const bool good =
      !name.empty() && name.size() <= 64 &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string::npos;
  if (!good)
    refuse_field(where + ".function.name",
                 " is " + io::json_quoted(name.substr(0, 100)) + ", expected 1 to 64 letters, digits, '_' and '-'");
  (void)function.text("description", "");
  const bool strict = function.truth("strict", false);
  const io::Json* parameters = function.find("parameters");
  if (parameters != nullptr && parameters->object() == nullptr)
    refuse_field(where + ".function.parameters", std::string(" is ") + parameters->kind() + ", expected a JSON schema");
  function.done();
  tool.done();
  return {name, io::json_text(value), parameters != nullptr ? *parameters : io::Json(), strict};
}

// {"type": "function", "function": {"name": ...}}: that tool, which has to be among those that there are.
std::string read_choice(Fields named, const std::string& where, const std::vector<Tool>& tools) {
  named.only("type", "\"function\"", "other kinds of tools are not known");
  Fields function = named.inside(named.need("function", "an object with a name"), where + ".function");
  const std::string name = function.text("name", "");
  if (std::none_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name; }))
    refuse_field(where + ".function.name",
                 " is " + io::json_quoted(name.substr(0, 100)) + ", which is not among the tools");
  function.done();
  named.done();
  return name;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}
std::vector<std::string> read_allowed(Fields outer, ToolFields& read) {
  outer.pass("type");
  Fields allowed =
      outer.inside(outer.need("allowed_tools", "an object with mode and tools"), "tool_choice.allowed_tools");
  const std::string mode = allowed.text("mode", "auto");
  if (mode != "auto" && mode != "required")
    refuse_field("tool_choice.allowed_tools.mode",
                 " is " + io::json_quoted(mode.substr(0, 100)) + ", expected auto or required");
  read.must_call = mode == "required";
  const io::Json& tools = allowed.need("tools", "an array of tools");
  if (tools.array() == nullptr || tools.array()->empty() || tools.array()->size() > kMostTools)
    refuse_field("tool_choice.allowed_tools.tools",
                 " is not an array of 1 to " + std::to_string(kMostTools) + " tools");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tools.array()->size(); ++i) {
    const std::string where = "tool_choice.allowed_tools.tools[" + std::to_string(i) + "]";
    names.push_back(read_choice(allowed.inside((*tools.array())[i], where), where, read.told));
  }
  allowed.done();
  outer.done();
  return names;
}

ToolFields read_tools(Fields& fields) {
  ToolFields read;
  if (const io::Json* tools = fields.find("tools")) {
    if (tools->array() == nullptr || tools->array()->size() > kMostTools)
      refuse_field("tools", " is not an array of at most " + std::to_string(kMostTools) + " tools");
    for (std::size_t i = 0; i < tools->array()->size(); ++i) {
      const std::string where = "tools[" + std::to_string(i) + "]";
      Tool tool = read_tool((*tools->array())[i], fields.inside((*tools->array())[i], where), where);
      for (const Tool& other : read.told)
        if (other.name == tool.name)
          refuse_field(where + ".function.name", " is " + io::json_quoted(tool.name) + " again, expected another name");
      read.told.push_back(std::move(tool));
    }
  }
  for (const char* old : {"functions", "function_call"})
    fields.only(old, "null", "tools and tool_choice have taken its place");
  read.several = fields.truth("parallel_tool_calls", true);
  const io::Json* choice = fields.find("tool_choice");
  read.tools = read.told;
  if (choice == nullptr) return read;
  const std::string* kind = choice->string();
  if (kind != nullptr && *kind != "none" && *kind != "auto" && *kind != "required")
    refuse_field("tool_choice",
                 " is " + io::json_quoted(kind->substr(0, 100)) + ", expected none, auto, required or a function");
  if (read.told.empty() && (kind == nullptr || *kind == "required"))
    refuse_field("tool_choice", " asks for a call, and there are no tools");
  if (kind != nullptr) {
    read.must_call = *kind == "required";
    if (*kind == "none") read.told = read.tools = {};
    return read;
  }
  const io::Json* type = choice->find("type");
  std::vector<std::string> names;
  if (type != nullptr && type->string() != nullptr && *type->string() == "allowed_tools") {
    names = read_allowed(fields.inside(*choice, "tool_choice"), read);
  } else {
    names = {read_choice(fields.inside(*choice, "tool_choice"), "tool_choice", read.told)};
    read.must_call = true;
    read.several = false;
  }
  std::erase_if(read.tools,
                [&](const Tool& tool) { return std::find(names.begin(), names.end(), tool.name) == names.end(); });
  return read;
}

std::shared_ptr<const llm::ByteGrammar> read_format(Fields& fields) {
  const io::Json* value = fields.find("response_format");
  if (value == nullptr) return nullptr;
  Fields format = fields.inside(*value, "response_format");
  const std::string type = format.text("type", "");
  std::shared_ptr<const llm::ByteGrammar> grammar;
  if (type == "json_object") {
    grammar = llm::json_object_grammar();
  } else if (type == "json_schema") {
    Fields inner = format.inside(format.need("json_schema", "an object with a schema"), "response_format.json_schema");
    (void)inner.text("name", "");
    (void)inner.text("description", "");
    (void)inner.truth("strict", true);  // an answer keeps to its schema either way
    const io::Json& schema = inner.need("schema", "a JSON schema");
    try {
      grammar = llm::json_schema_grammar(schema);
    } catch (const InvalidArgument& error) {
      throw RequestError({.status = 400,
                          .message = std::string("response_format.json_schema.") + error.what(),
                          .param = "response_format",
                          .code = "unsupported_schema"});
    }
    inner.done();
  } else if (type != "text") {
    refuse_field("response_format.type",
                 " is " + io::json_quoted(type.substr(0, 100)) + ", expected text, json_object or json_schema");
  }
  format.done();
  return grammar;
}

// Turns thoughts on or off, and says whether the template can: one without thoughts has none to turn off or on.
bool set_thinking(llm::ChatTemplate& chat, bool on, const char* field) {
  if (!chat.has_thoughts()) return false;
  try {
    chat.set_thinking(on);
  } catch (const InvalidArgument& error) {
    refuse_field(field, std::string(": ") + error.what(), "unsupported_value");
  }
  return true;
}

// reasoning_effort none turns thoughts off; any other value turns them on, and the model decides their length;
// chat_template_kwargs.enable_thinking wins over it.
llm::ChatTemplate template_of(Fields& fields, const ServedModel& model) {
  static constexpr const char* kEfforts[] = {"", "none", "minimal", "low", "medium", "high", "xhigh"};
  llm::ChatTemplate chat = model.chat_template();
  const std::string effort = fields.text("reasoning_effort", "");
  if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts))
    refuse_field("reasoning_effort", " is " + io::json_quoted(effort.substr(0, 100)) +
                                         ", expected none, minimal, low, medium, high or xhigh");
  static const io::Json kNone(io::Json::Object{});
  const io::Json* options = fields.find("chat_template_kwargs");
  Fields inner = fields.inside(options != nullptr ? *options : kNone, "chat_template_kwargs");
  const bool chosen = inner.find("enable_thinking") != nullptr;
  if (chosen && !set_thinking(chat, inner.truth("enable_thinking", true), "chat_template_kwargs.enable_thinking"))
    inner.ignore("enable_thinking");
  if (!effort.empty() && !chosen) (void)set_thinking(chat, effort != "none", "reasoning_effort");
  if (effort != "none") fields.ignore("reasoning_effort");
  inner.done();
  return chat;
}

// Known fields of chats without effect, and those that would have one, each with the reason why it is refused.
void read_others(Fields& fields) {
  read_labels(fields);
  static constexpr const char* kOnly[][3] = {
      {"verbosity", "\"medium\"", "how long an answer is, a model decides; max_completion_tokens ends it"},
      {"audio", "null", "answers are text"},
      {"modalities", "[\"text\"]", "answers are text"},
      {"moderation", "null", "nothing is looked at but by the model"},
      {"web_search_options", "null", "there is no network here"},
      {"best_of", "1", "n choices are returned"},
      {"suffix", "\"\"", "a conversation is answered at its end"},
      {"echo", "false", "an answer comes without its question"},
      {"chat_template", "null", "the model's own is used"},
      {"documents", "null", "put them into a message"},
      {"add_generation_prompt", "true", "an answer is always asked for"},
      {"continue_final_message", "false", "/v1/completions continues a text"},
  };
  for (const auto& [name, value, why] : kOnly) fields.only(name, value, why);
}

std::int64_t read_most(Fields& fields) {
  const std::int64_t old = read_limit(fields, "max_tokens", 1);
  const std::int64_t now = read_limit(fields, "max_completion_tokens", 1);
  if (old != 0 && now != 0 && old != now)
    refuse_field("max_tokens", " and max_completion_tokens differ, expected one of them");
  return std::max(old, now);
}

// Thoughts are split off where the model may have some: not where a grammar allows no text.
ThoughtReader thoughts_of(const llm::ChatTemplate& chat, bool grammar) {
  using Begin = ThoughtReader::Begin;
  if (!chat.has_thoughts() || grammar) return ThoughtReader();
  return ThoughtReader(chat.opens_thoughts() ? Begin::thoughts : Begin::either);
}

// <think> and </think> where they are special tokens, whose text would be left out.
std::vector<llm::Token> special_marks(const llm::Tokenizer& tokenizer, const ThoughtReader& thoughts) {
  std::vector<llm::Token> marks;
  for (const char* mark : {"<think>", "</think>"})
    if (const auto token = tokenizer.find(mark); token && tokenizer.is_special(*token) && thoughts.is_mark(mark))
      marks.push_back(*token);
  return marks;
}

// Makes each choice one that keeps to what was asked for: a format, or calls of tools.
using MakeConstraint = std::function<std::shared_ptr<llm::TokenConstraint>()>;

MakeConstraint constraint_of(ServedModel& model, const std::shared_ptr<const llm::ByteGrammar>& grammar) {
  const auto masks = std::make_shared<llm::GrammarMasks>(grammar, model.trie());
  return [&model, masks] { return std::make_shared<llm::GrammarConstraint>(masks, model.tokenizer()); };
}

MakeConstraint call_constraint(ServedModel& model, const ToolFields& tools, const AnswerForm& form, llm::Request& one) {
  // The mark before calls is a special token in some vocabularies: then it is no text, and no grammar can ask for it.
  const std::optional<llm::Token> found = model.tokenizer().find(call_mark(form.tool_form));
  const bool special = found && model.tokenizer().is_special(*found);
  const llm::Token shown = special ? *found : -1;
  if (special) one.shown.push_back(shown);
  try {
    if (tools.must_call) {
      const bool opened = special && form.tool_form == llm::ToolForm::mistral;
      if (opened) one.prompt.push_back(shown);
      return constraint_of(model,
                           calls_grammar(tools.tools, form.tool_form, tools.several ? kMostForcedCalls : 1, opened));
    }
    const auto masks = std::make_shared<ArgumentMasks>(argument_grammars(tools.tools), model.trie());
    return [&model, masks, form, shown] {
      return std::make_shared<ArgumentsConstraint>(CallReader(form.tool_form, form.tools, form.most_calls), masks,
                                                   model.tokenizer(), shown, form.thoughts);
    };
  } catch (const InvalidArgument& error) {
    throw RequestError({.status = 400, .message = error.what(), .param = "tools", .code = "unsupported_schema"});
  }
}

// The prompt, with the tools told in it.
std::vector<llm::Token> prompt_of(const ServedModel& model, const llm::ChatTemplate& chat,
                                  std::vector<llm::Message> messages, const std::vector<Tool>& told) {
  std::vector<std::string> texts;
  if (chat.tool_form() == llm::ToolForm::none)
    messages = tools_as_text(std::move(messages), told, chat);
  else
    for (const Tool& tool : told) texts.push_back(tool.text);
  try {
    return llm::encode_chat(model.tokenizer(), chat, messages, true, llm::ContentTokens::plain, texts);
  } catch (const InvalidArgument& error) {
    throw RequestError({.status = 400, .message = error.what(), .param = "messages"});
  }
}

}  // namespace

void chat_completions(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply) {
  const io::Json body = parse_body(request);
  IgnoredFields ignored;
  Fields fields(body, "", &ignored);
  ServedModel& model = context.models.find(fields.text("model", ""));
  const llm::ChatTemplate chat = template_of(fields, model);
  const GenerationFields generation = read_generation(fields, model);
  std::vector<llm::Message> messages = read_messages(fields, chat);
  const ToolFields tools = read_tools(fields);
  const std::shared_ptr<const llm::ByteGrammar> format = read_format(fields);
  if (format && !tools.tools.empty())
    refuse_field("response_format", " beside tools that may be called is not supported; set tool_choice to \"none\"",
                 "unsupported_value");
  AnswerForm form{.stream = generation.stream, .include_usage = generation.include_usage};
  form.logprobs = fields.truth("logprobs", false);
  form.top_logprobs = fields.whole("top_logprobs", 0, 0, 20);
  if (form.top_logprobs > 0 && !form.logprobs) refuse_field("top_logprobs", " is given, and logprobs is not true");
  form.tool_form = chat.tool_form();
  for (const Tool& tool : tools.tools) form.tools.push_back(tool.name);
  if (!tools.several) form.most_calls = 1;
  form.thoughts = thoughts_of(chat, format != nullptr || tools.must_call);
  const std::int64_t most = read_most(fields);
  read_others(fields);
  fields.done();
  form.headers = note_ignored(context, request, ignored);

  llm::Request one{.sampling = generation.sampling, .stop = generation.stop, .stop_tokens = model.stop_tokens(true)};
  one.prompt = prompt_of(model, chat, std::move(messages), tools.told);
  one.shown = special_marks(model.tokenizer(), form.thoughts);
  MakeConstraint constraint;
  if (format) constraint = constraint_of(model, format);
  if (!tools.tools.empty()) constraint = call_constraint(model, tools, form, one);
  one.sampling.logprobs = form.top_logprobs;
  one.max_tokens = room_for_answer(model, std::ssize(one.prompt), most, "messages");
  std::vector<llm::Request> requests(static_cast<std::size_t>(generation.n), one);
  for (std::int64_t i = 0; i < generation.n; ++i) {
    llm::Request& r = requests[static_cast<std::size_t>(i)];
    r.sampling.seed = choice_seed(one.sampling.seed, i);
    if (constraint) r.constraint = constraint();
  }
  answer(model, std::move(requests), std::move(form), reply);
}

}  // namespace attend::server
