// Any answer, in any pieces: the calls and the text that are read from it do not depend on where it was cut, and what
// is read as a call has a name that there is.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/server/call_reader.hpp"
#include "seeded.hpp"

namespace {

using attend::llm::ToolForm;
using attend::server::CallReader;
using Kind = CallReader::Piece::Kind;

const std::vector<std::string> kNames = {"f", "go", "look up"};

// As the client hears it: text, and calls with their arguments.
struct Heard {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Heard&) const = default;
};

Heard hear(ToolForm form, std::string_view text, std::size_t piece) {
  CallReader reader(form, kNames, 3);
  Heard heard;
  const auto drain = [&] {
    for (const CallReader::Piece& p : reader.pieces()) {
      if (p.kind == Kind::content) heard.content += p.text;
      if (p.kind == Kind::call) heard.calls.emplace_back(p.text, "");
      if (p.kind == Kind::arguments && heard.calls.empty()) attend::test::stop("arguments of no call");
      if (p.kind == Kind::arguments) heard.calls.back().second += p.text;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += piece) {
    reader.take(text.substr(at, piece));
    drain();
  }
  reader.finish();
  drain();
  if (reader.calls() != heard.calls.size() || heard.calls.size() > 3) attend::test::stop("calls are counted wrong");
  for (const auto& [name, arguments] : heard.calls)
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) attend::test::stop("a call of nothing");
  return heard;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> examples = {
      "1 <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>\n<tool_call>{\"name\": "
      "\"go\"",
      "2<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"arguments\": {\"b\": 2}, \"name\": \"go\"}]</tool_call>",
      "3<|python_tag|>{\"name\": \"look up\", \"parameters\": {\"a\": \"\\\"\"}}; {\"name\": \"x\"}",
      "4[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": null}}]",
      "1{\"name\": \"go\", \"arguments\": {\"a\": 1}}",
  };
  return attend::test::mutate_or_begin(data, size, most, seed, examples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto form = static_cast<ToolForm>((data[0] + 2) % 5);  // '0', which is 48, is none
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Heard whole = hear(form, text, text.size());
  for (const std::size_t piece : {1U, 3U, 1U + data[1] % 16U})
    if (hear(form, text, piece) != whole)
      attend::test::stop("pieces of " + std::to_string(piece) + " are read otherwise");
  return 0;
}
