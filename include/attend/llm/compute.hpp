// The arithmetic of a model's weights: as their file stores them, or in f32.
#pragma once

#include <string>

#include "attend/export.h"

namespace attend::llm {

// file: weights keep the format of their file, and rows of x are rounded to int8 before each product with a quantised
// weight. f32: quantised weights are dequantised on loading, and products are computed in f32. `automatic` caches are
// then f32 too, and the results are bit-identical to those of the file that `attend convert --type f32` writes.
enum class Compute { file, f32 };

ATTEND_API const char* name(Compute compute);               // "file", "f32"
ATTEND_API Compute compute_named(const std::string& text);  // InvalidArgument for any other text

}  // namespace attend::llm
