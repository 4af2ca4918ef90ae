// Attention arguments drawn from a fuzzer's bytes: sizes, score rules, masks, memory layouts.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "attend/mask.hpp"
#include "support/check.hpp"

namespace attend::test {

using std::int64_t;

inline int64_t number(FuzzedDataProvider& bytes, int64_t first, int64_t last) {
  return bytes.ConsumeIntegralInRange<int64_t>(first, last);
}

struct LargestSizes {
  int64_t groups, queries, keys, dim;
};
// All but dtype and layout.
inline Case draw_case(FuzzedDataProvider& bytes, const LargestSizes& most) {
  Case c;
  c.B = number(bytes, 0, 2);
  c.Hk = number(bytes, 1, 2);
  c.H = c.Hk * number(bytes, 1, most.groups);
  c.M = number(bytes, 0, most.queries);
  c.N = number(bytes, 0, bytes.ConsumeBool() ? most.keys : 8);
  if (number(bytes, 0, 31) == 31) c.N += 500;  // past the first split
  c.D = number(bytes, 1, most.dim);
  c.E = number(bytes, 1, most.dim);
  c.softcap = bytes.ConsumeBool() ? 0 : static_cast<double>(number(bytes, 1, 50));
  if (bytes.ConsumeBool()) c.scale = static_cast<double>(number(bytes, -32, 32)) / 16;
  c.bias = static_cast<BiasKind>(number(bytes, 0, 6));
  c.f32_bias = bytes.ConsumeBool();
  c.rule = static_cast<RuleKind>(number(bytes, 0, 3));
  c.slopes = static_cast<SlopesKind>(number(bytes, 0, 2));
  c.sinks = bytes.ConsumeBool();
  c.dropout = bytes.ConsumeBool() ? 0 : static_cast<double>(number(bytes, 0, 15)) / 16;
  c.backward = bytes.ConsumeBool();
  return c;
}

// One value for all or one for each batch.
inline std::vector<int64_t> draw_per_batch(FuzzedDataProvider& bytes, int64_t B, int64_t first, int64_t last) {
  std::vector<int64_t> values(bytes.ConsumeBool() || B == 0 ? 1 : static_cast<std::size_t>(B));
  for (int64_t& value : values) value = number(bytes, first, last);
  return values;
}

inline std::vector<int64_t> draw_cumulative(FuzzedDataProvider& bytes, int64_t segments, int64_t limit) {
  std::vector<int64_t> values(static_cast<std::size_t>(segments) + 1);
  for (std::size_t n = 1; n < values.size(); ++n) values[n] = number(bytes, 0, limit);
  std::sort(values.begin(), values.end());
  return values;
}

// Masks of any parameters that fit the case. The bits of dense rules live in `memory`.
inline Mask draw_mask(FuzzedDataProvider& bytes, const Case& c, std::vector<std::vector<std::uint8_t>>& memory,
                      int64_t depth = 2) {
  const auto diagonal = [&]() -> Diagonal {
    const int64_t kind = number(bytes, 0, 2);
    if (kind == 2) return Diagonal::at(draw_per_batch(bytes, c.B, -c.M - c.N, c.M + c.N));
    return kind == 0 ? Align::first_key : Align::last_key;
  };
  const auto draw_bits = [&](int64_t count) {
    std::vector<std::uint8_t> bits = bytes.ConsumeBytes<std::uint8_t>(static_cast<std::size_t>(count));
    bits.resize(static_cast<std::size_t>(count), 1);
    return bits;
  };
  Mask mask;
  bool segmented = false;
  for (int64_t n = number(bytes, 0, 3); n > 0; --n) {
    switch (number(bytes, 0, 13)) {
      case 0:
        mask = mask & causal(diagonal());
        break;
      case 1:
        mask = mask & window(number(bytes, -1, c.N), number(bytes, -1, c.N), diagonal());
        break;
      case 2:
        mask = mask & padding(draw_per_batch(bytes, c.B, 0, c.N));
        break;
      case 3:
        mask = mask & left_padding(draw_per_batch(bytes, c.B, 0, c.N));
        break;
      case 4:
        mask = mask & prefix(draw_per_batch(bytes, c.B, 0, c.N), diagonal());
        break;
      case 5: {
        if (std::exchange(segmented, true)) break;
        const int64_t count = number(bytes, 0, 5);
        std::vector<int64_t> queries = draw_cumulative(bytes, count, c.M);
        mask = mask & segments(std::move(queries), draw_cumulative(bytes, count, c.N));
        break;
      }
      case 6: {
        const int64_t rows = number(bytes, 1, 70), cols = number(bytes, 1, 70);
        const int64_t down = (c.M + rows - 1) / rows, across = (c.N + cols - 1) / cols;
        const int64_t heads = bytes.ConsumeBool() ? c.H : 1;
        mask = mask & blocks(rows, cols, heads, down, across, draw_bits(heads * down * across));
        break;
      }
      case 7:
        mask = mask & chunks(number(bytes, 1, c.N + 1), number(bytes, 0, 3), diagonal());
        break;
      case 8: {
        const int64_t period = number(bytes, 1, c.N + 2), first = number(bytes, 0, period - 1);
        mask = mask & columns(period, first, number(bytes, 1, period - first));
        break;
      }
      case 9:
        if (c.N > 0) mask = mask & tokens(draw_per_batch(bytes, number(bytes, 1, 4), 0, c.N - 1));
        break;
      case 10:
        if (c.N > 0) mask = mask & global_tokens(draw_per_batch(bytes, number(bytes, 1, 4), 0, c.N - 1), diagonal());
        break;
      case 11:  // beside a narrow window a dilation is refused: within a union it never stands beside one
        mask = mask & (dilated(number(bytes, 1, 80), diagonal()) | padding({number(bytes, 0, c.N)}));
        break;
      case 12: {
        if (depth == 0) break;
        const Mask a = draw_mask(bytes, c, memory, depth - 1), b = draw_mask(bytes, c, memory, depth - 1);
        mask = mask & (bytes.ConsumeBool() ? a | b : except(a));
        break;
      }
      default: {
        const auto some = [&](int64_t size) { return bytes.ConsumeBool() ? size : 1; };
        const Shape shape = {some(c.B), some(c.H), some(c.M), some(c.N)};
        memory.push_back(draw_bits(shape[0] * shape[1] * shape[2] * shape[3]));
        memory.back().push_back(0);  // a pointer even for an empty shape
        mask = mask & dense(memory.back().data(), shape);
      }
    }
  }
  return mask;
}

// Any order of the dimensions in memory, with gaps, forwards or backwards.
inline StrideRule draw_strides(FuzzedDataProvider& bytes) {
  const auto seed = bytes.ConsumeIntegral<std::uint32_t>();
  return [seed](const Shape& shape, int flavour) {
    std::uint32_t state = seed + static_cast<std::uint32_t>(flavour) * 0x9E3779B9U;
    const auto next = [&](std::uint32_t below) {
      state = state * 1664525U + 1013904223U;
      return (state >> 16) % below;
    };
    std::array<std::size_t, 4> order = {3, 2, 1, 0};
    for (std::size_t n = 4; n > 1; --n) std::swap(order[n - 1], order[next(static_cast<std::uint32_t>(n))]);
    Strides strides{};
    int64_t step = 1 + static_cast<int64_t>(next(3));
    for (const std::size_t d : order) {
      strides[d] = next(2) == 0 ? step : -step;
      step = step * std::max<int64_t>(1, shape[d]) + static_cast<int64_t>(next(4));
    }
    return strides;
  };
}

}  // namespace attend::test
