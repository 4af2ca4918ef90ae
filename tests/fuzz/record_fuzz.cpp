// Any JSON as a row of training data: a record with something to learn, or a FileError that names the row.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llm/train/record.hpp"
#include "seeded.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace attend;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const llm::Record record = llm::read_record(io::parse_json(text, "row"), "row");
    if (record.kind == llm::DataKind::text && record.text.empty()) test::stop("an empty text");
    if (record.kind == llm::DataKind::chat &&
        std::none_of(record.chat.begin(), record.chat.end(),
                     [](const llm::Message& m) { return m.role == "assistant" && m.learned; }))
      test::stop("a chat without an answer");
    if (record.kind == llm::DataKind::preference && (record.chat.empty() || record.rejected.empty()))
      test::stop("half a pair");
  } catch (const io::FileError& error) {
    if (!std::string_view(error.what()).starts_with("row")) test::stop("an error without a place");
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> kExamples = {
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, {"role": "assistant", "content": null,
       "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}], "weight": 0},
       {"role": "assistant", "content": "a", "reasoning_content": "r"}], "tools": [{"type": "function"}]})",
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\"}"}],
       "system": "s", "tools": "[{}]"})",
      R"({"prompt": "q", "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"})",
      R"({"chosen": "one two", "rejected": "one 2"})",
      R"({"instruction": "q", "input": "i", "output": "a", "history": "[['x', 'y']]"})",
      R"({"prompt": [{"role": "user", "content": "q"}], "completion": "a"})"};
  return attend::test::mutate_or_begin(data, size, most, seed, kExamples);
}
