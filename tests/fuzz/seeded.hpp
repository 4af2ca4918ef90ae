// For fuzzers of files: good examples to start from, made by the fuzzer itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace attend::test {

[[noreturn]] inline void stop(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

// What LLVMFuzzerCustomMutator does: now and then, and as long as there is nothing, one of the examples.
inline std::size_t mutate_or_begin(std::uint8_t* data, std::size_t size, std::size_t most, unsigned int seed,
                                   const std::vector<std::string>& examples) {
  const std::string& example = examples[seed / 64 % examples.size()];
  if ((size > 1 && seed % 64 != 0) || example.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(example.begin(), example.end(), data);
  return example.size();
}

// Reads every byte, so that a sanitizer sees one that is not there.
template <class Bytes>
void touch(const Bytes& bytes) {
  unsigned int sum = 0;
  for (const auto b : bytes) sum += static_cast<unsigned int>(b);
  volatile unsigned int kept = sum;
  (void)kept;
}

}  // namespace attend::test
