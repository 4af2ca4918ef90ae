// Unions and patterns: the factories of attend/patterns.hpp and the rules they are made of.
#include "attend/patterns.hpp"

#include "bindings.hpp"

namespace attend::python {
namespace {

using Ints = std::vector<std::int64_t>;

}  // namespace

void bind_patterns(nb::module_& m) {
  m.def("either", [](const Mask& a, const Mask& b) { return a | b; }, "a"_a, "b"_a);
  m.def("hidden", [](const Mask& hidden) { return except(hidden); }, "mask"_a);
  m.def("chunks", &chunks, "size"_a, "back"_a, "diagonal"_a);
  m.def("dilated", &dilated, "step"_a, "diagonal"_a);
  m.def("columns", &columns, "period"_a, "first"_a, "count"_a);
  m.def("tokens", &tokens, "positions"_a);
  m.def("global_tokens", &global_tokens, "positions"_a, "diagonal"_a);
  m.def("strided", &strided, "stride"_a, "diagonal"_a);
  m.def("fixed", &fixed, "block"_a, "columns"_a, "diagonal"_a);
  m.def("longformer", &longformer, "window"_a, "dilation"_a, "global_positions"_a, "diagonal"_a);
  m.def("streaming", &streaming, "sinks"_a, "window"_a, "diagonal"_a);
  m.def(
      "bigbird",
      [](std::int64_t queries, std::int64_t keys, std::int64_t block, std::int64_t window_blocks,
         std::int64_t global_blocks, std::int64_t random_blocks, std::int64_t heads, std::uint64_t seed,
         bool is_causal) {
        return bigbird(queries, keys, {block, window_blocks, global_blocks, random_blocks, heads, seed, is_causal});
      },
      "queries"_a, "keys"_a, "block"_a, "window_blocks"_a, "global_blocks"_a, "random_blocks"_a, "heads"_a, "seed"_a,
      "causal"_a);
  m.def(
      "block_permutation",
      [](std::int64_t queries, std::int64_t keys, const std::vector<Ints>& permutations) {
        return block_permutation(queries, keys, permutations);
      },
      "queries"_a, "keys"_a, "permutations"_a);
  m.def(
      "random_permutation",
      [](std::int64_t queries, std::int64_t keys, std::int64_t blocks, std::int64_t heads, std::uint64_t seed) {
        return block_permutation(queries, keys, blocks, heads, seed);
      },
      "queries"_a, "keys"_a, "blocks"_a, "heads"_a, "seed"_a);
}

}  // namespace attend::python
