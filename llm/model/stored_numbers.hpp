// Numbers of weights as files store them: read as floats, and written in another format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attend/weight.hpp"
#include "io/atomic_file.hpp"

namespace attend::llm {

// Whole blocks of a format.
struct StoredNumbers {
  WeightFormat format;
  std::span<const std::byte> bytes;
};
// For messages: the file, and the tensor in it.
struct TensorPlace {
  std::string file, tensor;
};

bool is_plain(WeightFormat format);  // f32, f16 or bf16
std::uint32_t ggml_number(WeightFormat format);
WeightFormat format_of_ggml(std::uint32_t number);  // of a tensor that io::Gguf accepted

std::vector<float> floats_of(const StoredNumbers& numbers);
// Hands over the numbers in the format `to`: f32, f16, bf16, q8_0, or their own. FileError names the tensor if one is
// NaN or infinite, or too large for `to`.
void put_numbers(const StoredNumbers& numbers, WeightFormat to, const TensorPlace& place, const io::PutBytes& put);

}  // namespace attend::llm
