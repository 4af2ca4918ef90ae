// Any schema: an error, or a grammar in which whatever is written token by token is JSON in the end.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "llm/constrain/byte_automaton.hpp"
#include "llm/constrain/json_grammar.hpp"
#include "seeded.hpp"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  static const std::vector<std::string> examples = {
      R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":["integer","null"]}},"required":["a"]})",
      R"({"type":"array","items":{"$ref":"#/$defs/x"},"minItems":1,"maxItems":3,"$defs":{"x":{"enum":["a",1,null]}}})",
      R"({"anyOf":[{"const":1},{"type":"number"},{"type":"object","additionalProperties":{"type":"boolean"}}]})",
      R"({"type":"string","pattern":"^[a-c]{1,4}(x|\\d+)?$","minLength":2,"maxLength":9,"format":"date"})",
      R"({"type":"array","items":{"type":"number","minimum":-1.5,"exclusiveMaximum":20,"multipleOf":0.1},"maxItems":9})",
      R"({"oneOf":[{"$ref":"#/$defs/a"},{"allOf":[{"$ref":"#/$defs/b"},{"required":["k"]}]}],"$defs":{
          "a":{"type":"object","properties":{"k":{"const":1}}},"b":{"type":"object","properties":{"k":{"enum":[2,3]}}}}})"};
  return attend::test::mutate_or_begin(data, size, most, seed, examples);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto grammar = attend::llm::json_schema_grammar(
        attend::io::parse_json({reinterpret_cast<const char*>(data), size}, "schema", {.bytes = 1 << 16}));
    attend::llm::ByteAutomaton automaton(*grammar);
    auto state = automaton.start();
    std::string text;
    // A walk that the schema's own bytes choose.
    for (std::size_t step = 0; step < 300 && automaton.continues(state); ++step) {
      const auto wish = static_cast<unsigned>(data[step % size]) + static_cast<unsigned>(step);
      auto next = attend::llm::ByteAutomaton::kDead;
      for (unsigned i = 0; i < 256 && next == attend::llm::ByteAutomaton::kDead; ++i) {
        const auto byte = static_cast<std::uint8_t>(wish + i);
        next = automaton.next(state, byte);
        if (next != attend::llm::ByteAutomaton::kDead) text += static_cast<char>(byte);
      }
      if (next == attend::llm::ByteAutomaton::kDead) attend::test::stop("a state with no way on: " + text);
      state = next;
      if (automaton.positions(state) > attend::llm::ByteAutomaton::kMaxPositions)
        attend::test::stop("too many positions");
      if (step % 16 == 15) automaton.forget_others(std::vector<attend::llm::ByteAutomaton::State*>{&state});
      if (automaton.accepts(state)) (void)attend::io::parse_json(text, "what was written", {.depth = 400});
    }
  } catch (const attend::InvalidArgument&) {
  } catch (const attend::FileError& error) {
    if (std::string(error.what()).starts_with("what was written") &&
        std::string(error.what()).find("stands twice") == std::string::npos)
      attend::test::stop(error.what());
  }
  return 0;
}
