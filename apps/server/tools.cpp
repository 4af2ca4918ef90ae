// Calls in each form as grammars, and tools for templates that know none.
#include "apps/server/tools.hpp"

#include "attend/error.hpp"
#include "io/json_text.hpp"
#include "llm/constrain/json_grammar.hpp"
#include "llm/text/chat_template.hpp"

namespace attend::server {
namespace {

io::Json schema_of(const Tool& tool) {
  if (!tool.parameters.is_null() && !tool.parameters.object()->empty()) return tool.parameters;
  return io::Json(io::Json::Object{{"type", io::Json(std::string("object"))}});
}

}  // namespace

std::vector<llm::Message> tools_as_text(std::vector<llm::Message> messages, const std::vector<Tool>& tools,
                                        const llm::ChatTemplate& chat) {
  const llm::ChatStyle& words = *llm::find_chat_style("chatml");
  std::vector<llm::Message> plain;
  bool after_tool = false;
  for (llm::Message& message : messages) {
    const bool tool = message.role == "tool";
    if (!message.calls.empty())
      message.content.append(message.content.empty() ? "" : "\n").append(llm::calls_words(words, message.calls));
    message.calls.clear();
    if (tool) {
      message.role = "user";
      message.content = "<tool_response>\n" + message.content + "\n</tool_response>";
    }
    if (tool && after_tool)
      plain.back().content += "\n" + message.content;
    else
      plain.push_back(std::move(message));
    after_tool = tool;
  }
  if (tools.empty()) return plain;
  std::vector<std::string> texts;
  for (const Tool& tool : tools) texts.push_back(tool.text);
  const std::string told = llm::tools_words(words, texts);
  if (plain.front().role == "system") {
    plain.front().content += "\n\n" + told;
  } else if (chat.name() == "mistral-v0.1") {
    plain.front().content = told + "\n\n" + plain.front().content;
  } else {
    const std::string& system = chat.default_system();
    plain.insert(plain.begin(), {"system", system.empty() ? told : system + "\n\n" + told});
  }
  return plain;
}

std::shared_ptr<const llm::ByteGrammar> calls_grammar(const std::vector<Tool>& tools, llm::ToolForm form,
                                                      std::int64_t most, bool opened) {
  const bool llama = form == llm::ToolForm::llama, mistral = form == llm::ToolForm::mistral;
  const bool list = form == llm::ToolForm::tagged_list, tagged = !llama && !mistral && !list;
  std::vector<llm::WrappedSchema> forms;
  for (const Tool& tool : tools)
    forms.push_back({std::string(tagged ? "<tool_call>\n" : "") + "{\"name\": " + io::json_quoted(tool.name) +
                         (llama ? ", \"parameters\": " : ", \"arguments\": "),
                     schema_of(tool), tagged ? "}\n</tool_call>" : "}", "tools." + tool.name + ".parameters"});
  if (llama) return llm::wrapped_schemas_grammar(forms);
  if (tagged) return llm::wrapped_schemas_grammar(forms, {.between = "\n", .most = most});
  return llm::wrapped_schemas_grammar(forms, {.before = list     ? "<tool_call>["
                                                        : opened ? "["
                                                                 : "[TOOL_CALLS][",
                                              .between = ", ",
                                              .after = list ? "]</tool_call>" : "]",
                                              .most = most});
}

ArgumentGrammars argument_grammars(const std::vector<Tool>& tools) {
  ArgumentGrammars grammars;
  for (const Tool& tool : tools) {
    try {
      grammars.push_back(llm::open_schema_grammar(schema_of(tool)));
    } catch (const InvalidArgument& error) {
      if (tool.strict) throw InvalidArgument("tools." + tool.name + ".parameters: strict, and " + error.what());
      grammars.push_back(nullptr);
    }
  }
  return grammars;
}

ArgumentMasks::ArgumentMasks(ArgumentGrammars grammars, std::shared_ptr<const llm::TokenTrie> trie)
    : grammars_(std::move(grammars)), trie_(std::move(trie)), masks_(grammars_.size()) {}

std::shared_ptr<llm::GrammarMasks> ArgumentMasks::of(std::size_t tool) {
  if (!grammars_[tool]) return nullptr;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<llm::GrammarMasks> masks = masks_[tool].lock();
  if (masks == nullptr) masks_[tool] = masks = std::make_shared<llm::GrammarMasks>(grammars_[tool], trie_);
  return masks;
}

ArgumentsConstraint::ArgumentsConstraint(CallReader reader, std::shared_ptr<ArgumentMasks> masks,
                                         const llm::Tokenizer& tokenizer, llm::Token shown, ThoughtReader thoughts)
    : thoughts_(std::move(thoughts)),
      reader_(std::move(reader)),
      masks_(std::move(masks)),
      tokenizer_(tokenizer),
      shown_(shown),
      all_(static_cast<std::size_t>(masks_->trie().vocabulary()), 1) {}

std::span<const std::uint8_t> ArgumentsConstraint::allowed() {
  return inside_ ? inside_->allowed() : std::span<const std::uint8_t>(all_);
}

void ArgumentsConstraint::take(llm::Token token) {
  const std::string_view piece = tokenizer_.piece(token);
  if (tokenizer_.is_special(token) && token != shown_ && !thoughts_.is_mark(piece)) return;
  for (const char c : thoughts_.take(piece, false).content) take_byte(c);
  (void)reader_.pieces();  // whoever answers reads them for itself
}

void ArgumentsConstraint::take_byte(char c) {
  const bool before = reader_.inside().has_value();
  reader_.take(std::string_view(&c, 1));
  const std::optional<std::size_t> now = reader_.inside();
  if (now && !before)
    if (std::shared_ptr<llm::GrammarMasks> masks = masks_->of(*now)) inside_.emplace(std::move(masks), tokenizer_);
  if (inside_) inside_->take_bytes(std::string_view(&c, 1));
  if (!now) inside_.reset();
}

}  // namespace attend::server
