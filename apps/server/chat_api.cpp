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

// A string, or parts of which each is text.
std::string read_content(Fields& message, const std::string& where, bool may_lack) {
  const io::Json* content = message.find("content");
  if (content == nullptr) {
    if (may_lack) return "";
    refuse_field(where + ".content", " is missing, expected a string", "missing_field");
  }
  if (content->string() != nullptr) return *content->string();
  if (content->array() == nullptr)
    refuse_field(where + ".content",
                 std::string(" is ") + content->kind() + ", expected a string or an array of text parts");
  std::string text;
  for (std::size_t i = 0; i < content->array()->size(); ++i) {
    const std::string place = where + ".content[" + std::to_string(i) + "]";
    Fields part((*content->array())[i], place);
    const std::string type = part.text("type", "");
    if (type != "text")
      refuse_field(place + ".type", " is " + io::json_quoted(type) + ", and only \"text\" is supported",
                   "unsupported_value");
    const io::Json& words = part.need("text", "a string");
    if (words.string() == nullptr)
      refuse_field(place + ".text", std::string(" is ") + words.kind() + ", expected a string");
    text += *words.string();
    part.done();
  }
  return text;
}

std::vector<ToolCall> read_calls(Fields& message, const std::string& where) {
  std::vector<ToolCall> calls;
  const io::Json* value = message.find("tool_calls");
  if (value == nullptr) return calls;
  if (value->array() == nullptr)
    refuse_field(where + ".tool_calls", std::string(" is ") + value->kind() + ", expected an array");
  for (std::size_t i = 0; i < value->array()->size(); ++i) {
    const std::string place = where + ".tool_calls[" + std::to_string(i) + "]";
    Fields call((*value->array())[i], place);
    call.pass("id");
    call.pass("index");
    call.only("type", "\"function\"", "other kinds of tools are not known");
    Fields function(call.need("function", "an object"), place + ".function");
    const std::string name = function.text("name", "");
    const std::string arguments = function.text("arguments", "{}");
    try {
      calls.push_back(
          {name, io::json_text(io::parse_json(arguments.empty() ? "{}" : arguments, "arguments", {.depth = kJsonDepth}),
                               true)});
    } catch (const FileError& error) {
      refuse_field(place + ".function.arguments", std::string(" is no JSON: ") + error.what());
    }
    function.done();
    call.done();
  }
  return calls;
}

// Whether the template itself has a place for what tools answer.
bool takes_tool_role(const llm::ChatTemplate& chat) {
  const llm::Message probe[] = {{"user", "a"}, {"assistant", "b"}, {"tool", "c"}};
  try {
    (void)chat.parts(probe, false);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

llm::Message read_message(const io::Json& value, const std::string& where) {
  Fields message(value, where);
  const std::string role = message.text("role", "");
  const bool assistant = role == "assistant", tool = role == "tool";
  if (role != "system" && role != "developer" && role != "user" && !assistant && !tool)
    refuse_field(where + ".role", " is " + io::json_quoted(role.substr(0, 100)) +
                                      ", expected system, developer, user, assistant or tool");
  llm::Message read{role == "developer" ? "system" : role, read_content(message, where, assistant)};
  if (assistant) {
    read.content = calls_text(read.content, read_calls(message, where));
    message.only("refusal", "null", "answers here have none");
    message.only("audio", "null", "only text is");
    message.only("function_call", "null", "tool_calls has taken its place");
    message.pass("annotations");
  }
  if (tool) {
    if (message.text("tool_call_id", "").empty())
      refuse_field(where + ".tool_call_id", " is missing, expected the id of the call that this answers",
                   "missing_field");
    message.pass("name");
  }
  message.only("name", "null", "chat templates have no place for it");
  message.done();
  return read;
}

std::vector<llm::Message> read_messages(Fields& fields, const llm::ChatTemplate& chat) {
  const io::Json& value = fields.need("messages", "an array of messages");
  if (value.array() == nullptr || value.array()->empty())
    refuse_field("messages", value.array() == nullptr
                                 ? std::string(" is ") + value.kind() + ", expected an array of messages"
                                 : " is empty, expected at least one message");
  std::vector<llm::Message> messages;
  const bool tool_role = takes_tool_role(chat);
  for (std::size_t i = 0; i < value.array()->size(); ++i) {
    llm::Message message = read_message((*value.array())[i], "messages[" + std::to_string(i) + "]");
    const bool answer = message.role == "tool" && !tool_role;
    if (answer) {
      message.role = "user";
      message.content = "<tool_response>\n" + message.content + "\n</tool_response>";
      const bool another = i > 0 && (*value.array())[i - 1].find("role") != nullptr &&
                           io::json_text(*(*value.array())[i - 1].find("role")) == "\"tool\"";
      if (another) {
        messages.back().content += "\n" + message.content;
        continue;
      }
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

struct ToolFields {
  std::vector<Tool> tools;  // that may be called
  bool must_call = false;   // one of them
  bool several = true;
};

Tool read_tool(const io::Json& value, const std::string& where, bool& strict) {
  Fields tool(value, where);
  tool.only("type", "\"function\"", "other kinds of tools are not known");
  const io::Json& inner = tool.need("function", "an object");
  Fields function(inner, where + ".function");
  const std::string name = function.text("name", "");
  const bool good =
      !name.empty() && name.size() <= 64 &&
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string::npos;
  if (!good)
    refuse_field(where + ".function.name",
                 " is " + io::json_quoted(name.substr(0, 100)) + ", expected 1 to 64 letters, digits, '_' and '-'");
  (void)function.text("description", "");
  strict |= function.truth("strict", false);
  const io::Json* parameters = function.find("parameters");
  if (parameters != nullptr && parameters->object() == nullptr)
    refuse_field(where + ".function.parameters", std::string(" is ") + parameters->kind() + ", expected a JSON schema");
  function.done();
  tool.done();
  // As json.dumps writes it, which is what the templates were made with.
  return {name, io::json_text(value, true), parameters != nullptr ? *parameters : io::Json()};
}

ToolFields read_tools(Fields& fields) {
  ToolFields read;
  bool strict = false;
  if (const io::Json* tools = fields.find("tools")) {
    if (tools->array() == nullptr || tools->array()->size() > kMostTools)
      refuse_field("tools", " is not an array of at most " + std::to_string(kMostTools) + " tools");
    for (std::size_t i = 0; i < tools->array()->size(); ++i)
      read.tools.push_back(read_tool((*tools->array())[i], "tools[" + std::to_string(i) + "]", strict));
  }
  for (const char* old : {"functions", "function_call"})
    fields.only(old, "null", "tools and tool_choice have taken its place");
  read.several = fields.truth("parallel_tool_calls", true);
  const io::Json* choice = fields.find("tool_choice");
  if (choice != nullptr && read.tools.empty()) refuse_field("tool_choice", " is given, and there are no tools");
  std::string kind = "auto";
  if (choice != nullptr && choice->string() != nullptr) {
    kind = *choice->string();
    if (kind != "none" && kind != "auto" && kind != "required")
      refuse_field("tool_choice",
                   " is " + io::json_quoted(kind.substr(0, 100)) + ", expected none, auto, required or a function");
    read.must_call = kind == "required";
  } else if (choice != nullptr) {
    Fields named(*choice, "tool_choice");
    named.only("type", "\"function\"", "other kinds of tools are not known");
    Fields function(named.need("function", "an object with a name"), "tool_choice.function");
    const std::string name = function.text("name", "");
    std::erase_if(read.tools, [&](const Tool& tool) { return tool.name != name; });
    if (read.tools.empty())
      refuse_field("tool_choice.function.name",
                   " is " + io::json_quoted(name.substr(0, 100)) + ", which is not among the tools");
    function.done();
    named.done();
    read.must_call = true;
  }
  if (kind == "none") read.tools.clear();
  if (strict && !read.must_call && !read.tools.empty())
    refuse_field("tools",
                 ": strict is supported only where a call has to be made: tool_choice \"required\" or a function",
                 "unsupported_value");
  return read;
}

// The tools are told behind the system message, or in the first message where the template has no place for that.
void tell_tools(std::vector<llm::Message>& messages, const std::vector<Tool>& tools, const llm::ChatTemplate& chat) {
  if (tools.empty()) return;
  const std::string text = tools_text(tools);
  if (messages.front().role == "system") {
    messages.front().content += "\n\n" + text;
  } else if (chat.name() == "mistral-v0.1") {
    messages.front().content = text + "\n\n" + messages.front().content;
  } else {
    const std::string& system = chat.default_system();
    messages.insert(messages.begin(), {"system", system.empty() ? text : system + "\n\n" + text});
  }
}

std::shared_ptr<const llm::ByteGrammar> read_format(Fields& fields) {
  const io::Json* value = fields.find("response_format");
  if (value == nullptr) return nullptr;
  Fields format(*value, "response_format");
  const std::string type = format.text("type", "");
  std::shared_ptr<const llm::ByteGrammar> grammar;
  if (type == "json_object") {
    grammar = llm::json_object_grammar();
  } else if (type == "json_schema") {
    Fields inner(format.need("json_schema", "an object with a schema"), "response_format.json_schema");
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

llm::ChatTemplate template_of(Fields& fields, const ServedModel& model) {
  llm::ChatTemplate chat = model.chat_template();
  if (const io::Json* options = fields.find("chat_template_kwargs")) {
    Fields inner(*options, "chat_template_kwargs");
    const bool asked = inner.find("enable_thinking") != nullptr;
    if (asked) chat.set_thinking(inner.truth("enable_thinking", true));
    inner.done();
  }
  return chat;
}

std::int64_t read_most(Fields& fields) {
  const std::int64_t old = fields.whole("max_tokens", 0, 1, std::int64_t{1} << 31);
  const std::int64_t now = fields.whole("max_completion_tokens", 0, 1, std::int64_t{1} << 31);
  if (old > 0 && now > 0 && old != now)
    refuse_field("max_tokens", " and max_completion_tokens differ, expected one of them");
  return std::max(old, now);
}

}  // namespace

void chat_completions(ApiContext& context, const Request& request, const std::shared_ptr<Reply>& reply) {
  const io::Json body = parse_body(request);
  Fields fields(body);
  ServedModel& model = context.models.find(fields.text("model", ""));
  const llm::ChatTemplate chat = template_of(fields, model);
  const GenerationFields generation = read_generation(fields, model);
  std::vector<llm::Message> messages = read_messages(fields, chat);
  const ToolFields tools = read_tools(fields);
  std::shared_ptr<const llm::ByteGrammar> grammar = read_format(fields);
  if (grammar && !tools.tools.empty())
    refuse_field("response_format", " beside tools that may be called is not supported; set tool_choice to \"none\"",
                 "unsupported_value");
  AnswerForm form{.stream = generation.stream, .include_usage = generation.include_usage};
  form.logprobs = fields.truth("logprobs", false);
  form.top_logprobs = fields.whole("top_logprobs", 0, 0, 20);
  if (form.top_logprobs > 0 && !form.logprobs) refuse_field("top_logprobs", " is given, and logprobs is not true");
  const std::int64_t most = read_most(fields);
  if (const io::Json* modalities = fields.find("modalities");
      modalities != nullptr && io::json_text(*modalities) != "[\"text\"]")
    refuse_field("modalities",
                 " is " + io::json_text(*modalities).substr(0, 100) + ", and only [\"text\"] is supported",
                 "unsupported_value");
  fields.done();

  tell_tools(messages, tools.tools, chat);
  if (tools.must_call) {
    try {
      grammar = call_grammar(tools.tools);
    } catch (const InvalidArgument& error) {
      throw RequestError({.status = 400, .message = error.what(), .param = "tools", .code = "unsupported_schema"});
    }
  }
  form.tools = tools.tools;
  llm::Request one{.sampling = generation.sampling, .stop = generation.stop, .stop_tokens = model.stop_tokens(true)};
  if (!tools.several && !tools.tools.empty() && !tools.must_call) one.stop.push_back("</tool_call>");
  one.sampling.logprobs = form.top_logprobs;
  try {
    one.prompt = llm::encode_chat(model.tokenizer(), chat, messages, true);
  } catch (const InvalidArgument& error) {
    throw RequestError({.status = 400, .message = error.what(), .param = "messages"});
  }
  one.max_tokens = room_for_answer(model, std::ssize(one.prompt), most, "messages");
  std::vector<llm::Request> requests(static_cast<std::size_t>(generation.n), one);
  for (std::int64_t i = 0; i < generation.n; ++i) {
    llm::Request& r = requests[static_cast<std::size_t>(i)];
    r.sampling.seed = choice_seed(one.sampling.seed, i);
    if (grammar) r.constraint = std::make_shared<llm::GrammarConstraint>(grammar, model.trie(), model.tokenizer());
  }
  answer(model, std::move(requests), std::move(form), reply);
}

}  // namespace attend::server
