// What a transformer does row by row between its matrix products, on f32 rows that lie one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llm/model/config.hpp"

namespace attend::llm {

// Sines and cosines for the positions of a batch's tokens.
struct Rotation {
  std::int64_t pairs = 0;
  RopeStyle style = RopeStyle::half_split;
  std::vector<float> cosines, sines;  // [tokens, pairs]

  void fill(const RopeTurns& turns, RopeStyle style, std::span<const std::int64_t> positions);
};

// Turns the first 2 * pairs numbers of every head of every row: x [rows, heads, dim].
void rotate(float* x, std::int64_t rows, std::int64_t heads, std::int64_t dim, const Rotation& rotation);

void norm_rows(const float* x, const float* weight, const float* bias, float* y, std::int64_t rows, std::int64_t width,
               NormKind kind, double eps);
void add_rows(float* x, const float* y, std::int64_t count);  // x += y
// y = act(gate) * up; without `up`: act(gate). y may be either.
void activate(const float* gate, const float* up, float* y, std::int64_t count, ActivationKind kind);
// The position's sines in the even places and cosines in the odd ones, as "Attention Is All You Need" has them.
void add_sinusoidal(float* row, std::int64_t width, std::int64_t position);

void narrow(const float* x, void* y, std::int64_t count, DType dtype);  // to f16 or bf16
void widen(const void* x, float* y, std::int64_t count, DType dtype);

}  // namespace attend::llm
