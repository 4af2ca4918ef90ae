// The table of forms: which fields name one, and how it is read.
#include "llm/train/record.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "io/readable.hpp"
#include "llm/model/fields.hpp"
#include "llm/train/row_messages.hpp"

namespace attend::llm {
namespace {

// ---- the parts of rows ----

void refuse_pictures(const Fields& f) {
  for (const char* field : {"images", "image", "videos", "audios"}) {
    const io::Json* value = f.find({field});
    const bool empty = value == nullptr || (value->array() != nullptr && value->array()->empty()) ||
                       (value->string() != nullptr && value->string()->empty());
    if (!empty) f.refuse(field, "is given: pictures and sound are not supported");
  }
}

void refuse_labels(const Fields& f) {
  for (const char* field : {"label", "kto_tag"}) {
    const io::Json* value = f.find({field});
    if (value != nullptr && value->boolean() != nullptr)
      f.refuse(field, "is given: unpaired preferences (KTO) are not supported, expected \"chosen\" and \"rejected\"");
  }
}

void add_system(const Fields& f, std::vector<Message>& chat) {
  const std::string system = f.maybe_string({"system"}).value_or("");
  if (system.empty()) return;
  if (!chat.empty() && chat.front().role == "system") {
    if (chat.front().content == system) return;
    f.refuse("system", "differs from the chat's own system message, expected one of the two");
  }
  chat.insert(chat.begin(), {"system", system});
}

// Alpaca's earlier rounds: [[question, answer], ...].
void add_history(const Fields& f, std::vector<Message>& chat) {
  io::Json parsed;
  const io::Json* history = row_list(f, "history", parsed);
  if (history == nullptr) return;
  const auto bad = [&] { f.refuse("history", "is not a list of rounds, expected [[question, answer], ...]"); };
  if (history->array() == nullptr) bad();
  for (const io::Json& round : *history->array()) {
    const auto* pair = round.array();
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].string() || !(*pair)[1].string()) bad();
    chat.push_back({"user", *(*pair)[0].string()});
    chat.push_back({"assistant", *(*pair)[1].string()});
  }
}

// Everything before the answer, where `field` holds the question: of Alpaca with its input and history, else a prompt.
std::vector<Message> question(const Fields& f, std::string_view field, std::vector<std::string>& tools) {
  std::vector<Message> chat;
  if (field == "instruction" || field == "q") {
    add_history(f, chat);
    std::string text = f.maybe_string({field.data()}).value_or("");
    const std::string input = f.maybe_string({"input"}).value_or("");
    if (!input.empty()) text.append(text.empty() ? "" : "\n").append(input);
    chat.push_back({"user", text});
  } else if (!field.empty()) {
    chat = row_messages(f, field.data(), field == "prompt" ? "user" : "", tools);
    for (Message& message : chat) message.learned = message.role != "assistant";
  }
  add_system(f, chat);
  return chat;
}

// Tools of the row itself, where no message brings them.
void add_tools(const Fields& f, Record& record) {
  std::vector<std::string> tools = row_tools(f, {"tools", "functions"});
  if (!tools.empty() && !record.tools.empty() && tools != record.tools)
    f.refuse("tools", "differ from those of the system message, expected one of the two");
  if (record.tools.empty()) record.tools = std::move(tools);
}

void check_chat(const Fields& f, const char* name, const std::vector<Message>& chat) {
  if (chat.empty()) f.refuse(name, "is empty, expected messages");
  const auto answers = [](const Message& m) { return m.role == "assistant"; };
  if (std::none_of(chat.begin(), chat.end(), answers))
    f.refuse(name, "has no message of the assistant, so there is nothing to learn");
  if (std::none_of(chat.begin(), chat.end(), [&](const Message& m) { return answers(m) && m.learned; }))
    f.refuse(name, "has no answer to learn: all have weight 0");
  if (chat.front().role == "assistant") f.refuse(name, "begins with the assistant, expected a question before");
}

// ---- forms ----

void read_text(const Fields& f, const char*, const char* field, Record& record) {
  const auto text = f.maybe_string({field});
  if (!text) f.refuse(field, "is missing");
  if (text->empty()) f.refuse(field, "is empty");
  record.kind = DataKind::text;
  record.text = *text;
}

void read_chat(const Fields& f, const char*, const char*, Record& record) {
  const char* name = f.find({"conversations"}) != nullptr ? "conversations" : "messages";
  record.chat = row_messages(f, name, "", record.tools);
  add_system(f, record.chat);
  check_chat(f, name, record.chat);
}

void append(std::vector<Message>& chat, std::vector<Message> more) {
  chat.insert(chat.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

void read_answer(const Fields& f, const char* asked, const char* answer, Record& record) {
  refuse_labels(f);
  record.chat = question(f, asked, record.tools);
  append(record.chat, row_messages(f, answer, "assistant", record.tools));
  check_chat(f, answer, record.chat);
}

// ---- pairs ----

bool same(const Message& a, const Message& b) {
  const auto same_call = [](const ToolCall& x, const ToolCall& y) {
    return x.name == y.name && x.arguments == y.arguments;
  };
  return a.role == b.role && a.content == b.content &&
         std::equal(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(), same_call);
}

// Whether a chat begins as the prompt does; only one of them may have a system message.
bool begins_with(const std::vector<Message>& chat, std::span<const Message> prompt) {
  std::span<const Message> begin(chat);
  if (prompt.front().role == "system" && begin.front().role != "system") prompt = prompt.subspan(1);
  if (begin.front().role == "system" && !prompt.empty() && prompt.front().role != "system") begin = begin.subspan(1);
  return begin.size() >= prompt.size() && std::equal(prompt.begin(), prompt.end(), begin.begin(), same);
}

// The whole chat of one side: an answer to the prompt, or a chat that repeats the prompt.
std::vector<Message> side_of_pair(const Fields& f, const char* field, std::vector<Message> prompt,
                                  std::vector<std::string>& tools) {
  std::vector<Message> side = row_messages(f, field, "assistant", tools);
  if (side.empty()) f.refuse(field, "is empty, expected messages");
  if (!prompt.empty() && side.front().role == "assistant") {
    append(prompt, std::move(side));
    side = std::move(prompt);
  } else if (!prompt.empty() && !begins_with(side, prompt)) {
    f.refuse(field, "begins with another prompt than the row's own");
  } else if (!prompt.empty() && prompt.front().role == "system" && side.front().role != "system") {
    side.insert(side.begin(), prompt.front());
  }
  check_chat(f, field, side);
  return side;
}

// Prompt and both sides may each bring the tools, which are then the same.
std::vector<std::string> tools_of_pair(const Fields& f, std::initializer_list<std::vector<std::string>> given) {
  std::vector<std::string> tools;
  for (const auto& some : given) {
    if (!some.empty() && !tools.empty() && some != tools) f.refuse("tools", "differ between the two sides of a pair");
    if (tools.empty()) tools = some;
  }
  return tools;
}

// Where two texts differ first, before the space there: what TRL takes for the prompt of such a pair.
std::size_t common_prompt(std::string_view a, std::string_view b) {
  const auto [first, second] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto at = static_cast<std::size_t>(first - a.begin());
  while (at > 0 && at < a.size() && (static_cast<unsigned char>(a[at]) & 0xC0) == 0x80) --at;
  return at > 0 && a[at - 1] == ' ' ? at - 1 : at;
}

void read_pair_of_texts(const Fields& f, const std::string& chosen, const std::string& rejected, Record& record) {
  const std::size_t prompt = common_prompt(chosen, rejected);
  if (prompt == 0)
    f.refuse("chosen", "and \"rejected\" begin differently, expected a common prompt, or a field \"prompt\"");
  const auto chat = [&](const std::string& text) {
    return std::vector<Message>{{"user", text.substr(0, prompt)}, {"assistant", text.substr(prompt)}};
  };
  record.chat = chat(chosen), record.rejected = chat(rejected);
}

void check_prompts(const Fields& f, const Record& record) {
  const auto& a = record.chat;
  const auto& b = record.rejected;
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && same(a[n], b[n])) ++n;
  const bool equal = n == a.size() && n == b.size();
  const bool both_answer = n < a.size() && n < b.size() && a[n].role == "assistant" && b[n].role == "assistant";
  if (!equal && !both_answer)
    f.refuse("chosen", "and \"rejected\" differ in message " + std::to_string(n + 1) +
                           " before the answer: the prompts of a pair must be equal");
}

void read_pair(const Fields& f, const char*, const char*, Record& record) {
  record.kind = DataKind::preference;
  for (const char* field : {"chosen", "rejected"})
    if (f.find({field}) == nullptr) f.refuse(field, "is missing");
  std::string asked;
  (void)f.find({"prompt", "instruction", "q", "conversations", "messages"}, &asked);
  std::vector<std::string> prompts, better, worse;  // tools
  const std::vector<Message> prompt = question(f, asked, prompts);
  const std::string *chosen = f.find({"chosen"})->string(), *rejected = f.find({"rejected"})->string();
  if (prompt.empty() && chosen != nullptr && rejected != nullptr)
    return read_pair_of_texts(f, *chosen, *rejected, record);
  record.chat = side_of_pair(f, "chosen", prompt, better);
  record.rejected = side_of_pair(f, "rejected", prompt, worse);
  record.tools = tools_of_pair(f, {prompts, better, worse});
  check_prompts(f, record);
}

// ---- the table ----

struct Form {
  const char* name;
  std::array<const char*, 2> fields;
  bool both;           // whether it needs both fields, or either shows it
  const char* answer;  // the field that holds it
  void (*read)(const Fields&, const char* asked, const char* answer, Record&);
  const char* example;
};
// The first that fits is taken.
constexpr std::array kForms = {
    Form{"preference",
         {"chosen", "rejected"},
         false,
         "",
         read_pair,
         R"({"prompt": P, "chosen": A, "rejected": B}       pairs, for DPO; P may be left out if A and B repeat it)"},
    Form{"messages",
         {"conversations", "messages"},
         false,
         "",
         read_chat,
         R"({"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}   OpenAI; answers are learned
  {"conversations": [{"from": "human", "value": "..."}, ...], "system": "..."}  ShareGPT; MiniMind has role, content)"},
    Form{"Alpaca",
         {"instruction", "output"},
         true,
         "output",
         read_answer,
         R"({"instruction": "...", "input": "...", "output": "...", "history": [[Q, A], ...]}   Alpaca)"},
    Form{"prompt and completion",
         {"prompt", "completion"},
         true,
         "completion",
         read_answer,
         R"({"prompt": P, "completion": A}                      the completion is learned, as an answer)"},
    Form{"question and answer",
         {"q", "a"},
         true,
         "a",
         read_answer,
         R"({"q": "...", "a": "...", "history": [[Q, A], ...]}  MiniMind of 2024)"},
    Form{"text",
         {"text", "text"},
         true,
         "text",
         read_text,
         R"({"text": "..."}                                     all of it is learned)"},
};

bool fits(const Form& form, const Fields& f) {
  const bool first = f.find({form.fields[0]}) != nullptr, second = f.find({form.fields[1]}) != nullptr;
  return form.both ? first && second : first || second;
}

[[noreturn]] void refuse_form(const Fields& f) {
  std::vector<std::string> known, given;
  for (const Form& form : kForms) {
    known.push_back(io::json_quoted(form.fields[0]));
    if (std::string_view(form.fields[0]) == form.fields[1]) continue;
    const bool either = form.read == read_chat;
    known.back().append(either ? " or " : " with ").append(io::json_quoted(form.fields[1]));
  }
  for (const auto& [name, value] : *f.object().object())
    if (given.size() < 8) given.push_back(io::json_quoted(name.substr(0, 40)));
  throw io::FileError(f.what() + ": has the fields " + (given.empty() ? "none" : io::joined(given, ", ")) +
                      ", expected one of: " + io::joined(known, "; ") +
                      ". --column NAME (column= in Python) names the field of a text");
}

}  // namespace

Record read_record(const io::Json& row, const std::string& place, const std::string& column) {
  Record record;
  record.place = place;
  if (row.string() != nullptr) {
    if (row.string()->empty()) throw io::FileError(place + ": the text is empty");
    record.text = *row.string();
    return record;
  }
  const Fields f(row, place);
  record.nats = f.maybe_number({"nats"}, 0, 1e12).value_or(0);
  if (!column.empty()) {
    read_text(f, "", column.c_str(), record);
    return record;
  }
  const auto* form = std::find_if(kForms.begin(), kForms.end(), [&](const Form& one) { return fits(one, f); });
  if (form == kForms.end()) refuse_form(f);
  record.form = form->name;
  record.kind = DataKind::chat;
  if (form->read != read_text) refuse_pictures(f);
  form->read(f, form->fields[0], form->answer, record);
  if (record.kind != DataKind::text) add_tools(f, record);
  return record;
}

std::string forms_help() {
  std::string text;
  for (const Form& form : kForms) text.append("  ").append(form.example).append("\n");
  return text;
}

}  // namespace attend::llm
