// Calls of functions in answers: every form, whole and cut, nested and hostile, at once and a byte at a time.
#include "apps/server/tools.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "llm/constrain/byte_automaton.hpp"
#include "tiny_served_model.hpp"
#include "unit/error_of.hpp"

namespace attend::server {
namespace {

using llm::ToolForm;
constexpr ToolForm kForms[] = {ToolForm::none, ToolForm::tagged, ToolForm::tagged_list, ToolForm::llama,
                               ToolForm::mistral};

struct Read {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool operator==(const Read&) const = default;
};

void add(Read& read, CallReader& reader) {
  for (const CallReader::Piece& piece : reader.pieces()) {
    EXPECT_FALSE(piece.text.empty());
    if (piece.kind == CallReader::Piece::Kind::call)
      read.calls.emplace_back(piece.text, "");
    else if (piece.kind == CallReader::Piece::Kind::content)
      read.content += piece.text;
    else
      read.calls.back().second += piece.text;
  }
}

Read read(ToolForm form, std::string_view text, std::size_t step, std::size_t most = 100) {
  CallReader reader(form, {"look", "go"}, most);
  Read result;
  for (std::size_t at = 0; at < text.size(); at += step) {
    reader.take(text.substr(at, step));
    add(result, reader);
  }
  reader.finish();
  add(result, reader);
  EXPECT_EQ(reader.calls(), result.calls.size());
  return result;
}

// The same however it was cut.
Read read(ToolForm form, std::string_view text) {
  const Read whole = read(form, text, text.size() + 1);
  for (const std::size_t step : {1U, 2U, 3U, 7U}) {
    const Read pieces = read(form, text, step);
    EXPECT_EQ(pieces.content, whole.content) << text << " by " << step;
    EXPECT_EQ(pieces.calls, whole.calls) << text << " by " << step;
  }
  return whole;
}

void expect(ToolForm form, std::string_view text, const Read& expected) {
  const Read got = read(form, text);
  EXPECT_EQ(got.content, expected.content) << text;
  EXPECT_EQ(got.calls, expected.calls) << text;
}

const std::string kLook = R"({"name": "look", "arguments": {"at": [1, {"x": "}]\"{"}]}})";
const std::string kArguments = R"({"at": [1, {"x": "}]\"{"}]})";

TEST(CallReader, ABrokenCallCountsAmongThoseThatMayCome) {
  const std::string broken = R"(<tool_call>{"name": "look", "arguments": {])";
  const std::string text = broken + R"(<tool_call>{"name": "go", "arguments": {}}</tool_call>)";
  EXPECT_EQ(read(ToolForm::tagged, text, text.size()).calls.size(), 2U);
  for (const std::size_t step : {1U, 5U, 100U}) EXPECT_EQ(read(ToolForm::tagged, text, step, 1).calls.size(), 1U);
}

TEST(CallReader, EachFormIsUnderstood) {
  const Read one{"", {{"look", kArguments}}}, two{"", {{"look", kArguments}, {"go", "{}"}}};
  const std::string go = R"({"name": "go"})";
  expect(ToolForm::tagged, "<tool_call>\n" + kLook + "\n</tool_call>", one);
  expect(ToolForm::tagged, "<tool_call>" + kLook + "</tool_call>\n<tool_call>" + go + "</tool_call>\n", two);
  expect(ToolForm::tagged_list, "<tool_call>[" + kLook + ",\n" + go + "\n]</tool_call>", two);
  expect(ToolForm::tagged_list, "<tool_call>[]</tool_call>", {});
  expect(ToolForm::llama, R"({"name": "look", "parameters": {"at": 1}})", {"", {{"look", R"({"at": 1})"}}});
  expect(ToolForm::llama, R"(<|python_tag|>{"type": "function", "name": "look", "parameters": {"at": 1}})",
         {"", {{"look", R"({"at": 1})"}}});
  expect(ToolForm::llama, kLook + "; " + go, two);
  expect(ToolForm::mistral, "[TOOL_CALLS] [" + kLook + ", " + go + "]", two);
  expect(ToolForm::mistral, R"([TOOL_CALLS][{"name": "go", "arguments": {}, "id": "abc"}])", {"", {{"go", "{}"}}});
  // The marks are forgotten often enough.
  for (const ToolForm form : kForms) {
    expect(form, "\n " + kLook, one);
    expect(form, "[" + kLook + ", " + go + "]", two);
  }
}

TEST(CallReader, TheOrderOfFieldsIsFree) {
  expect(ToolForm::tagged, R"(<tool_call>{"arguments": {"a": 1}, "name": "go"}</tool_call>)",
         {"", {{"go", R"({"a": 1})"}}});
  expect(ToolForm::tagged, R"(<tool_call>{"arguments": "{\"a\": 1}", "name": "go"}</tool_call>)",
         {"", {{"go", R"({"a": 1})"}}});
  expect(ToolForm::tagged, R"(<tool_call>{"name": "go", "arguments": null, "x": [1, "y"], "z": -1.5e3}</tool_call>)",
         {"", {{"go", "{}"}}});
}

TEST(CallReader, WhatIsSaidBesidesIsKept) {
  const std::string call = "<tool_call>" + kLook + "</tool_call>";
  expect(ToolForm::tagged, "Well \n" + call + "\n", {"Well", {{"look", kArguments}}});
  expect(ToolForm::tagged, call + " and so on", {" and so on", {{"look", kArguments}}});
  expect(ToolForm::mistral, "I ask.[TOOL_CALLS] [" + kLook + "]", {"I ask.", {{"look", kArguments}}});
  expect(ToolForm::llama, "I ask.\n<|python_tag|>" + kLook, {"I ask.", {{"look", kArguments}}});
}

TEST(CallReader, WhatOnlyLooksLikeACallStaysText) {
  for (const ToolForm form : kForms)
    for (const char* text : {"<tool_call>{\"name\": \"other\"}</tool_call>",
                             "<tool_call>nonsense</tool_call> x",
                             "{\"a\": 1}",
                             "plain",
                             "",
                             " ",
                             "<tool_call>",
                             "<tool_call>\n{\"name\": \"look\", \"argu",
                             "[TOOL_CALLS] no",
                             "[TOOL_CALLS",
                             "[1, 2]",
                             "[]",
                             "[",
                             "{",
                             "{\"name\"",
                             "{\"name\": 3, \"arguments\": {}}",
                             "{\"name\": \"look\", \"arguments\": 3}",
                             "{\"name\": \"look\", \"arguments\": \"x\"}",
                             "{\"name\" \"look\"}",
                             "{\"name\": \"look\" \"x\"}",
                             "{,}",
                             "{}}",
                             "{]",
                             "a <tool_call b <|python_tag c",
                             "<<<tool_call>>>",
                             "say {\"name\": \"look\", \"arguments\": {}}",
                             "<|python_tag|>brave_search.call(query=\"x\")",
                             "[[{\"name\": \"go\"}]]",
                             "\xff\xfe<tool",
                             "trailing \n"})
      expect(form, text, {text, {}});
}

TEST(CallReader, WhatIsCutOrBrokenEndsThere) {
  // Cut inside the arguments: the call is certain, its arguments are as far as they came.
  expect(ToolForm::tagged, R"(<tool_call>{"name": "look", "arguments": {"at": "su)", {"", {{"look", R"({"at": "su)"}}});
  expect(ToolForm::tagged, R"(<tool_call>{"name": "look", "arguments": {"at": 1})", {"", {{"look", R"({"at": 1})"}}});
  expect(ToolForm::tagged, R"(<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_c)",
         {"", {{"look", R"({"at": 1})"}}});
  // Brackets that do not fit: the call ends, the rest is text.
  expect(ToolForm::tagged, R"(<tool_call>{"name": "look", "arguments": {"at": [}]}}</tool_call>)",
         {"}]}}</tool_call>", {{"look", R"({"at": [)"}}});
  // A second one that is none.
  expect(ToolForm::mistral, R"([TOOL_CALLS] [{"name": "go"}, {"name": "other"}])",
         {R"(, {"name": "other"}])", {{"go", "{}"}}});
  const Read deep =
      read(ToolForm::tagged, "<tool_call>{\"name\": \"go\", \"arguments\": {\"a\": " + std::string(5000, '['));
  ASSERT_EQ(deep.calls.size(), 1U);
  EXPECT_LT(deep.calls[0].second.size(), 100U);
}

TEST(CallReader, MarksInsideMarksAndEndlessOnes) {
  const std::string call = "<tool_call>" + kLook + "</tool_call>";
  expect(ToolForm::tagged, "<tool_call><tool_call>" + kLook, {"<tool_call>", {{"look", kArguments}}});
  expect(ToolForm::tagged, "<tool_call>{\"a\": 1} " + call, {"<tool_call>{\"a\": 1}", {{"look", kArguments}}});
  expect(ToolForm::tagged, R"(<tool_call>{"name": "go", "arguments": {"a": "<tool_call>{</tool_call>"}}</tool_call>)",
         {"", {{"go", R"({"a": "<tool_call>{</tool_call>"})"}}});
  std::string many, content;
  for (int i = 0; i < 20000; ++i) many += "<tool_call>{\"arguments\": \"", content = many;
  EXPECT_EQ(read(ToolForm::tagged, many, 64).content, content);
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(read(ToolForm::tagged, "<tool_call>" + spaces, 1 << 16).content, "<tool_call>" + spaces);
}

// Whatever a model writes, and however it is cut: nothing is lost where nothing is called, and no name is made up.
TEST(CallReader, PiecesOfCallsInAnyOrder) {
  const char* parts[] = {"<tool_call>",
                         "</tool_call>",
                         "[TOOL_CALLS]",
                         "<|python_tag|>",
                         "{",
                         "}",
                         "[",
                         "]",
                         "\"name\"",
                         ": ",
                         "\"look\"",
                         ", ",
                         "\n",
                         "\"",
                         "\\",
                         "\"arguments\"",
                         "\"parameters\"",
                         "null",
                         "1.5",
                         "words",
                         ";",
                         "{\"name\": \"go\", \"arguments\": {"};
  int called = 0;
  for (std::uint64_t n = 0; n < 4000; ++n) {
    std::string text;
    const auto count = static_cast<std::uint64_t>(uniform(n, 0) * 30);
    for (std::uint64_t i = 1; i <= count; ++i)
      text += parts[static_cast<std::size_t>(uniform(n, i) * static_cast<double>(std::size(parts)))];
    const Read got = read(kForms[n % std::size(kForms)], text);
    called += got.calls.empty() ? 0 : 1;
    if (got.calls.empty() && text.find("[]") == std::string::npos) {
      EXPECT_EQ(got.content, text);
    }
    EXPECT_LE(got.content.size(), text.size());
    for (const auto& [name, arguments] : got.calls) {
      EXPECT_TRUE(name == "look" || name == "go");
      EXPECT_TRUE(arguments.starts_with('{')) << arguments;
    }
  }
  EXPECT_GT(called, 100);
}

TEST(CallReader, NoMoreThanWereAskedFor) {
  const std::string text = "a<tool_call>[" + kLook + ", {\"name\": \"go\"}]</tool_call> b";
  EXPECT_EQ(read(ToolForm::tagged_list, text, 1, 1), (Read{"a", {{"look", kArguments}}}));
}

TEST(CallReader, ArgumentsComeAsTheyAreWritten) {
  CallReader reader(ToolForm::tagged, {"look"});
  reader.take("<tool_call>{\"name\": \"look\", \"arguments\": {\"at\"");
  EXPECT_EQ(reader.inside(), 0U);
  std::vector<CallReader::Piece> pieces = reader.pieces();
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].text, "look");
  EXPECT_EQ(pieces[1].text, "{\"at\"");
  reader.take(": 1}");
  EXPECT_EQ(reader.inside(), std::nullopt);
  EXPECT_EQ(reader.pieces().at(0).text, ": 1}");
}

// --- the other direction ---

bool accepts(const llm::ByteGrammar& grammar, std::string_view text) {
  llm::ByteAutomaton automaton(grammar);
  llm::ByteAutomaton::State state = automaton.start();
  for (const char c : text)
    if (state != llm::ByteAutomaton::kDead) state = automaton.next(state, static_cast<std::uint8_t>(c));
  return state != llm::ByteAutomaton::kDead && automaton.accepts(state);
}

std::vector<Tool> two_tools() {
  const io::Json at = io::parse_json(
      R"({"type": "object", "properties": {"at": {"enum": ["sun", "moon"]}}, "required": ["at"], "additionalProperties": false})",
      "schema");
  return {{"look", "{}", at, false}, {"go", "{}", {}, false}};
}

TEST(CallsGrammar, WhatItAllowsIsRead) {
  const std::vector<Tool> tools = two_tools();
  const std::string look = R"({"name": "look", "arguments": {"at": "sun"}})", go = R"({"name": "go", "arguments": {}})";
  const auto check = [&](ToolForm form, bool opened, const std::string& one, const std::string& two) {
    const auto grammar = calls_grammar(tools, form, 2, opened);
    EXPECT_TRUE(accepts(*grammar, one)) << one;
    EXPECT_EQ(read(form, one).calls.size(), 1U) << one;
    EXPECT_EQ(accepts(*grammar, two), form != ToolForm::llama) << two;
    EXPECT_EQ(read(form, two).calls.size(), 2U) << two;
    EXPECT_FALSE(accepts(*calls_grammar(tools, form, 1, opened), two));
    for (const char* text : {"", "x", "<tool_call>", "[]", "{\"name\": \"look\", \"arguments\": {\"at\": \"earth\"}}"})
      EXPECT_FALSE(accepts(*grammar, text)) << text;
  };
  const std::string tagged = "<tool_call>\n" + look + "\n</tool_call>";
  check(ToolForm::tagged, false, tagged, tagged + "\n<tool_call>\n" + go + "\n</tool_call>");
  check(ToolForm::tagged_list, false, "<tool_call>[" + look + "]</tool_call>",
        "<tool_call>[" + look + ", " + go + "]</tool_call>");
  check(ToolForm::llama, false, R"({"name": "look", "parameters": {"at": "moon"}})",
        R"({"name": "look", "parameters": {"at": "moon"}}; {"name": "go", "parameters": {}})");
  check(ToolForm::mistral, true, "[" + look + "]", "[" + look + ", " + go + "]");
  check(ToolForm::mistral, false, "[TOOL_CALLS][" + look + "]", "[TOOL_CALLS][" + look + ", " + go + "]");
}

TEST(CallsGrammar, SchemasThatCannotBeKeptToAreRefusedWhereStrict) {
  std::vector<Tool> tools = two_tools();
  tools[1].parameters =
      io::parse_json(R"j({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}})j", "schema");
  EXPECT_EQ(argument_grammars(tools)[1], nullptr);
  EXPECT_NE(argument_grammars(tools)[0], nullptr);
  tools[1].strict = true;
  EXPECT_NE(attend::test::error_of([&] { (void)argument_grammars(tools); }).find("tools.go.parameters: strict"),
            std::string::npos);
  EXPECT_TRUE(accepts(*argument_grammars(two_tools())[0], R"({"at": "sun"}} and whatever comes)"));
  EXPECT_FALSE(accepts(*argument_grammars(two_tools())[0], R"({"at": "earth"}})"));
}

// An answer may say what it likes; but where it calls, the arguments keep to the schema.
TEST(ArgumentsConstraint, HoldsArgumentsAlone) {
  test::TinyServer server;
  ServedModel& model = *server.models.all().front();
  const llm::Tokenizer& tokenizer = model.tokenizer();
  ArgumentsConstraint constraint(CallReader(ToolForm::tagged, {"look", "go"}),
                                 std::make_shared<ArgumentMasks>(argument_grammars(two_tools()), model.trie()),
                                 tokenizer, -1);
  const auto allowed = [&](std::string_view text) {
    return constraint.allowed()[static_cast<std::size_t>(*tokenizer.find(text))] == 1;
  };
  const auto take = [&](std::string_view text) {
    for (const llm::Token token : tokenizer.encode(text, false, false)) {
      EXPECT_TRUE(constraint.allowed()[static_cast<std::size_t>(token)] == 1) << text;
      constraint.take(token);
    }
  };
  take("well, <tool_call>\n{\"name\": \"look\", \"arguments\": ");
  EXPECT_TRUE(allowed("x"));
  EXPECT_TRUE(constraint.may_end());
  take("{");
  EXPECT_TRUE(allowed("\""));
  EXPECT_FALSE(allowed("x"));
  EXPECT_FALSE(allowed("}"));  // "at" is required
  EXPECT_FALSE(constraint.may_end());
  constraint.take(*tokenizer.find("<|im_start|>"));  // special tokens are no text
  take("\"at\": \"");
  EXPECT_TRUE(allowed("s"));
  EXPECT_TRUE(allowed("m"));
  EXPECT_FALSE(allowed("e"));
  take("sun\"}");
  EXPECT_TRUE(allowed("x"));
  EXPECT_TRUE(constraint.may_end());
  take("}</tool_call> and <tool_call>{\"name\": \"other\", \"arguments\": {");
  EXPECT_TRUE(allowed("x"));
  EXPECT_FALSE(constraint.must_end());
}

// A call in the thoughts is none: nothing is held to a schema there, and calls after them are.
TEST(ArgumentsConstraint, LeavesThoughtsAlone) {
  test::TinyServer server;
  ServedModel& model = *server.models.all().front();
  const llm::Tokenizer& tokenizer = model.tokenizer();
  ArgumentsConstraint constraint(CallReader(ToolForm::tagged, {"look", "go"}),
                                 std::make_shared<ArgumentMasks>(argument_grammars(two_tools()), model.trie()),
                                 tokenizer, -1, ThoughtReader(ThoughtReader::Begin::either));
  const auto take = [&](std::string_view text) {
    for (const llm::Token token : tokenizer.encode(text, false, false)) constraint.take(token);
  };
  const auto allowed = [&](std::string_view text) {
    return constraint.allowed()[static_cast<std::size_t>(*tokenizer.find(text))] == 1;
  };
  const std::string call = "<tool_call>{\"name\": \"look\", \"arguments\": {";
  take("<think>perhaps " + call);
  EXPECT_TRUE(allowed("x"));
  EXPECT_TRUE(constraint.may_end());
  take("</think>\n" + call);
  EXPECT_FALSE(allowed("x"));
  EXPECT_TRUE(allowed("\""));
}

TEST(ToolsAsText, ForTemplatesWithoutAPlace) {
  const std::vector<llm::Message> chat = {{"user", "Hi"},
                                          {"assistant", "", {{"1", "look", "{\"at\":1}"}, {"2", "go", "{}"}}},
                                          {"tool", "a", {}, "1"},
                                          {"tool", "b", {}, "2"}};
  for (const char* name : {"llama-3", "mistral", "mistral-v0.1", "zephyr", "minimind-v1"}) {
    const llm::ChatTemplate form = *llm::ChatTemplate::named(name);
    const std::vector<llm::Message> plain = tools_as_text(chat, two_tools(), form);
    const std::string text = form.render(plain, true);
    EXPECT_NE(text.find("<tools>"), std::string::npos) << name;
    EXPECT_NE(text.find("<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>\n<tool_call>"),
              std::string::npos)
        << name;
    EXPECT_NE(text.find("<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"),
              std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace attend::server
