// Rows of a table by their number, such as the vectors of tokens.
#pragma once

#include <cstdint>
#include <span>

#include "attend/export.h"
#include "attend/tensor.hpp"
#include "attend/weight.hpp"

namespace attend {

// Row n of y, counted over [batch, heads, length], is row tokens[n] of the table [1, 1, rows, dim]. y has the table's
// dtype, or is f32 beside half types. InvalidArgument for a token outside the table, before anything is written.
ATTEND_API void embedding(View table, std::span<const std::int64_t> tokens, MutableView y);
// From a table in the format of its file; y is f32.
ATTEND_API void embedding(const Weight& table, std::span<const std::int64_t> tokens, MutableView y);

// The gradient of the table, overwritten: row t is the sum of the rows of dy whose token is t, in double, in their
// order. It has the dtype of dy, or is f32 beside half types.
ATTEND_API void embedding_backward(View dy, std::span<const std::int64_t> tokens, MutableView dtable);

}  // namespace attend
