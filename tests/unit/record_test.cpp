// Rows of training data in every form, and what is wrong with those that are in none.
#include "llm/train/record.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "training_files.hpp"

namespace attend::llm::test {
namespace {

Record record(const std::string& row, const std::string& column = "") {
  return read_record(io::parse_json(row, "row"), "a.jsonl:7", column);
}
std::string refusal(const std::string& row, const std::string& column = "") {
  const std::string said = refusal_of([&] { (void)record(row, column); });
  EXPECT_EQ(said.rfind("a.jsonl:7: ", 0), 0U) << row << " gives " << said;
  return said;
}
// "role: content" a line, with calls and what is not learned.
std::string told(const std::vector<Message>& chat) {
  std::string text;
  for (const Message& m : chat) {
    text += m.role + (m.learned ? ": " : " (weight 0): ") + m.content;
    for (const ToolCall& call : m.calls) text += " [" + call.id + " " + call.name + call.arguments + "]";
    if (!m.call_id.empty()) text += " <" + m.call_id + ">";
    text += "\n";
  }
  return text;
}
std::string chat_of(const std::string& row) {
  const Record r = record(row);
  EXPECT_EQ(r.kind, DataKind::chat) << row;
  return told(r.chat);
}
std::string pair_of(const std::string& row) {
  const Record r = record(row);
  EXPECT_EQ(r.kind, DataKind::preference) << row;
  return told(r.chat) + "--\n" + told(r.rejected);
}

TEST(Record, Texts) {
  EXPECT_EQ(record(R"({"text": "a", "source": "web"})").text, "a");
  EXPECT_EQ(record(R"("only a text")").text, "only a text");
  EXPECT_EQ(record(R"({"review": "good", "text": "not this"})", "review").text, "good");
  EXPECT_EQ(record(R"({"messages": "x", "body": "b"})", "body").kind, DataKind::text);
  expect_in(refusal(R"({"text": "a"})", "review"), "\"review\" is missing");
  expect_in(refusal(R"("")"), "is empty");
}

TEST(Record, Alpaca) {
  EXPECT_EQ(chat_of(R"({"instruction": "Add", "input": "1 2", "output": "3", "text": "all of it"})"),
            "user: Add\n1 2\nassistant: 3\n");
  EXPECT_EQ(chat_of(R"({"instruction": "Hi", "input": "", "output": "Ho"})"), "user: Hi\nassistant: Ho\n");
  EXPECT_EQ(chat_of(R"({"instruction": "Hi", "input": null, "output": "Ho", "system": "Be kind",
                        "history": [["q", "a"], ["r", "b"]]})"),
            "system: Be kind\nuser: q\nassistant: a\nuser: r\nassistant: b\nuser: Hi\nassistant: Ho\n");
  EXPECT_EQ(chat_of(R"({"q": "Hi", "a": "Ho", "history": "[[\"x\", \"y\"]]"})"),
            "user: x\nassistant: y\nuser: Hi\nassistant: Ho\n");
  expect_in(refusal(R"({"instruction": "Hi", "output": ["a", "b"]})"), "expected an object");
  expect_in(refusal(R"({"instruction": "Hi", "output": "a", "history": [["x"]]})"), "\"history\" is not a list");
  expect_in(refusal(R"({"instruction": "Hi", "output": "a", "kto_tag": true})"), "KTO");
}

TEST(Record, PromptAndCompletion) {
  EXPECT_EQ(chat_of(R"({"prompt": "The sky is", "completion": " blue."})"), "user: The sky is\nassistant:  blue.\n");
  EXPECT_EQ(chat_of(R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                   {"role": "user", "content": "c"}],
                        "completion": [{"role": "assistant", "content": "d"}]})"),
            "user: a\nassistant (weight 0): b\nuser: c\nassistant: d\n");
  expect_in(refusal(R"({"prompt": "a", "completion": "b", "label": true})"), "KTO");
  expect_in(refusal(R"({"prompt": "a"})"), "has the fields \"prompt\", expected one of: ");
  expect_in(refusal(R"({"prompt": "a", "completions": ["b"], "labels": [true]})"), "expected one of: ");
}

TEST(Record, OpenAiMessagesWithTools) {
  const Record r = record(R"({"messages": [
      {"role": "developer", "content": "Be brief"},
      {"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "warm?"}]},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Köln\"}"}},
        {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": {"zone": 1}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "20"},
      {"role": "assistant", "content": "20 degrees", "weight": 1}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
    "parallel_tool_calls": false})");
  EXPECT_EQ(told(r.chat),
            "system: Be brief\nuser: How warm?\nassistant:  [c1 weather{\"city\": \"Köln\"}] [c2 clock{\"zone\":1}]\n"
            "tool: 20 <c1>\nassistant: 20 degrees\n");
  ASSERT_EQ(r.tools.size(), 1U);
  EXPECT_EQ(r.tools[0], R"({"type":"function","function":{"name":"weather","parameters":{"type":"object"}}})");
  expect_in(refusal(R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})"),
            "\"type\" is \"image_url\", expected text");
  expect_in(refusal(R"({"messages": [{"role": "judge", "content": "x"}]})"), "\"role\" is \"judge\", expected system");
  expect_in(refusal(R"({"messages": "hello"})"), "\"messages\" is a string, expected a list of messages");
}

TEST(Record, ListsAsPythonPrintsThem) {
  EXPECT_EQ(chat_of(R"({"q": "Hi", "a": "Ho", "history": "[['it\\'s', \"a 'b'\"], ('x\\n', '\\u4f60\\x21')]"})"),
            "user: it's\nassistant: a 'b'\nuser: x\n\nassistant: 你!\nuser: Hi\nassistant: Ho\n");
  EXPECT_EQ(
      chat_of(
          R"({"messages": "[{'role': 'user', 'content': 'q'}\n {'role': 'assistant', 'content': 'a', 'name': None}]"})"),
      "user: q\nassistant: a\n");
  EXPECT_EQ(pair_of(R"({"prompt": "q", "chosen": "[{'role': 'assistant', 'content': 'good'}]",
                        "rejected": "[{'role': 'assistant', 'content': 'bad'}]"})"),
            "user: q\nassistant: good\n--\nuser: q\nassistant: bad\n");
  EXPECT_EQ(chat_of(R"({"prompt": "q", "completion": "[{'x': 1}]"})"), "user: q\nassistant: [{'x': 1}]\n");
  for (const char* bad : {"[", "['a", "['a', b]", "['\\\\", "[array('a')]", "['\\\\ud800']"})
    expect_in(refusal(R"({"q": "Hi", "a": "Ho", "history": ")" + std::string(bad) + "\"}"), "\"history\"");
}

TEST(Record, Weights) {
  const std::string begin = R"({"messages": [{"role": "user", "content": "q"}, )";
  EXPECT_EQ(chat_of(begin + R"({"role": "assistant", "content": "a", "weight": 0}, {"role": "user", "content": "r"},
                               {"role": "assistant", "content": "b"}]})"),
            "user: q\nassistant (weight 0): a\nuser: r\nassistant: b\n");
  expect_in(refusal(begin + R"({"role": "assistant", "content": "a", "weight": 0}]})"), "all have weight 0");
  expect_in(refusal(begin + R"({"role": "assistant", "content": "a", "weight": 0.5}]})"), "expected 0 or 1");
  expect_in(refusal(begin + R"({"role": "assistant", "content": "a", "weight": 2}]})"), "expected 0 to 1");
}

TEST(Record, ShareGpt) {
  const Record r = record(R"({"system": "Be kind", "tools": "[{\"name\": \"add\"}]", "conversations": [
      {"from": "human", "value": "1 + 1?"},
      {"from": "function_call", "value": "{\"name\": \"add\", \"arguments\": {\"a\": 1}}"},
      {"from": "observation", "value": "2"}, {"from": "gpt", "value": "Two"}]})");
  EXPECT_EQ(told(r.chat), "system: Be kind\nuser: 1 + 1?\nassistant:  [ add{\"a\":1}]\ntool: 2\nassistant: Two\n");
  EXPECT_EQ(r.tools, std::vector<std::string>{"{\"name\":\"add\"}"});
  EXPECT_EQ(chat_of(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"},
                                          {"from": "gpt", "value": "a"}], "system": "s"})"),
            "system: s\nuser: q\nassistant: a\n");
  expect_in(refusal(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"},
                                          {"from": "gpt", "value": "a"}], "system": "t"})"),
            "\"system\" differs");
}

TEST(Record, MiniMind) {
  const Record r = record(R"({"conversations": [
      {"role": "system", "content": "s", "tools": "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
       "reasoning_content": "", "tool_calls": ""},
      {"role": "user", "content": "q", "reasoning_content": "", "tools": "", "tool_calls": ""},
      {"role": "assistant", "content": "", "reasoning_content": "Call it.", "tools": "",
       "tool_calls": "[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]"},
      {"role": "tool", "content": "1", "reasoning_content": null, "tools": null, "tool_calls": null},
      {"role": "assistant", "content": "One", "reasoning_content": "It is 1."}]})");
  EXPECT_EQ(told(r.chat),
            "system: s\nuser: q\nassistant: <think>\nCall it.\n</think>\n\n [ f{\"x\":1}]\ntool: 1\n"
            "assistant: <think>\nIt is 1.\n</think>\n\nOne\n");
  EXPECT_EQ(r.tools, std::vector<std::string>{R"({"type":"function","function":{"name":"f"}})"});
  expect_in(refusal(R"({"conversations": [{"role": "user", "content": "q"},
                        {"role": "assistant", "content": "a", "reasoning_content": "x </think> y"}]})"),
            "holds </think>");
}

TEST(Record, PairsInEveryForm) {
  const std::string expected = "user: q\nassistant: good\n--\nuser: q\nassistant: bad\n";
  const std::string user = R"({"role": "user", "content": "q"})", good = R"({"role": "assistant", "content": "good"})",
                    bad = R"({"role": "assistant", "content": "bad"})";
  const auto list = [](const std::string& items) { return "[" + items + "]"; };
  for (const std::string& row : {
           R"({"chosen": )" + list(user + "," + good) + R"(, "rejected": )" + list(user + "," + bad) + "}",
           std::string(R"({"prompt": "q", "chosen": "good", "rejected": "bad"})"),
           R"({"prompt": "q", "chosen": )" + list(good) + R"(, "rejected": )" + list(bad) + "}",
           R"({"prompt": "q", "chosen": )" + list(user + "," + good) + R"(, "rejected": )" + list(user + "," + bad) +
               "}",
           std::string(R"({"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"})"),
           R"({"prompt": )" + list(user) + R"(, "chosen": )" + list(good) + R"(, "rejected": )" + list(bad) + "}",
           std::string(
               R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "good"},
                           "rejected": {"from": "gpt", "value": "bad"}})"),
       })
    EXPECT_EQ(pair_of(row), expected) << row;
  EXPECT_EQ(pair_of(R"({"chosen": "The sky is blue.", "rejected": "The sky is green."})"),
            "user: The sky is\nassistant:  blue.\n--\nuser: The sky is\nassistant:  green.\n");
  EXPECT_EQ(pair_of(R"({"chosen": "天空是蓝", "rejected": "天空是藏"})"),
            "user: 天空是\nassistant: 蓝\n--\nuser: 天空是\nassistant: 藏\n")
      << "characters that begin with the same bytes are not cut";
}

TEST(Record, PairsWhosePromptsDifferAreRefused) {
  const auto pair = [](const std::string& a, const std::string& b) {
    return R"({"chosen": )" + a + R"(, "rejected": )" + b + "}";
  };
  const std::string a = R"({"role": "assistant", "content": "x"})", b = R"({"role": "assistant", "content": "y"})";
  const auto user = [](const char* text) { return R"({"role": "user", "content": ")" + std::string(text) + "\"}"; };
  const std::string differ = "the prompts of a pair must be equal";
  expect_in(refusal(pair("[" + user("q") + "," + a + "]", "[" + user("r") + "," + b + "]")), "in message 1 before");
  expect_in(refusal(pair("[" + user("q") + "," + a + "," + user("r") + "," + a + "]",
                         "[" + user("q") + "," + a + "," + user("s") + "," + b + "]")),
            "in message 3 before");
  expect_in(refusal(pair("[" + user("q") + "," + a + "," + user("r") + "," + a + "]", "[" + user("q") + "," + a + "]")),
            differ);
  expect_in(refusal(pair("[{\"role\": \"system\", \"content\": \"s\"}," + user("q") + "," + a + "]",
                         "[" + user("q") + "," + b + "]")),
            differ);
  expect_in(refusal(R"({"prompt": "r", "chosen": [)" + user("q") + "," + a + R"(], "rejected": "y"})"),
            "\"chosen\" begins with another prompt");
  expect_in(refusal(R"({"chosen": "abc", "rejected": "xyz"})"), "begin differently");
}

TEST(Record, NothingIsLeftOutSilently) {
  expect_in(refusal(R"({"instruction": "see", "output": "a", "images": ["x.png"]})"), "\"images\" is given");
  EXPECT_EQ(chat_of(R"({"instruction": "see", "output": "a", "images": []})"), "user: see\nassistant: a\n");
  expect_in(refusal(R"({"messages": [{"role": "user", "content": "q"},
                        {"role": "assistant", "tool_calls": [{"function": {}}]}]})"),
            "\"name\" is missing in a call");
  expect_in(refusal(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                        "tools": ["f"]})"),
            "\"tools\" holds a string, expected definitions of tools");
}

}  // namespace
}  // namespace attend::llm::test
