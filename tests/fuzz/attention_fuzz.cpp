// Attention arguments from bytes: right ones must agree with the reference, wrong ones must be refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "support/buffer.hpp"
#include "support/check.hpp"

namespace attend::test {
namespace {

using std::int64_t;

[[noreturn]] void stop(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

int64_t number(FuzzedDataProvider& bytes, int64_t first, int64_t last) {
  return bytes.ConsumeIntegralInRange<int64_t>(first, last);
}

Case draw_case(FuzzedDataProvider& bytes) {
  Case c;
  c.dtype = static_cast<DType>(number(bytes, 0, 3));
  c.B = number(bytes, 0, 2);
  c.Hk = number(bytes, 1, 2);
  c.H = c.Hk * number(bytes, 1, 3);
  c.M = number(bytes, 0, 9);
  c.N = number(bytes, 0, bytes.ConsumeBool() ? 140 : 8);
  if (number(bytes, 0, 31) == 31) c.N += 500;  // past the first split
  c.D = number(bytes, 1, 18);
  c.E = number(bytes, 1, 18);
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
std::vector<int64_t> draw_per_batch(FuzzedDataProvider& bytes, int64_t B, int64_t first, int64_t last) {
  std::vector<int64_t> values(bytes.ConsumeBool() || B == 0 ? 1 : static_cast<std::size_t>(B));
  for (int64_t& value : values) value = number(bytes, first, last);
  return values;
}

std::vector<int64_t> draw_cumulative(FuzzedDataProvider& bytes, int64_t segments, int64_t limit) {
  std::vector<int64_t> values(static_cast<std::size_t>(segments) + 1);
  for (std::size_t n = 1; n < values.size(); ++n) values[n] = number(bytes, 0, limit);
  std::sort(values.begin(), values.end());
  return values;
}

// Masks of any parameters that fit the case. The bits of dense rules live in `memory`.
Mask draw_mask(FuzzedDataProvider& bytes, const Case& c, std::vector<std::vector<std::uint8_t>>& memory,
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
StrideRule draw_strides(FuzzedDataProvider& bytes) {
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

void check_right_call(FuzzedDataProvider& bytes) {
  const Case c = draw_case(bytes);
  std::vector<std::vector<std::uint8_t>> memory;
  Problem problem(c);
  problem.set_mask(draw_mask(bytes, c, memory));
  const StrideRule strides = draw_strides(bytes);
  const Truth truth = true_attention(problem);
  std::vector<std::string> failures = check_truth(problem, truth);
  const Computed computed = compute(problem, c, failures, strides);
  const Results naive = c.dtype == DType::f64 ? truth.results : naive_attention(problem, c.dtype);
  const auto beyond = compare(problem, truth, naive, computed);
  failures.insert(failures.end(), beyond.begin(), beyond.end());
  if (!failures.empty()) stop(c.name() + ": " + summary(failures));
}

void spoil(FuzzedDataProvider& bytes, MutableView& view) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();
  constexpr std::array<int64_t, 12> kSizes = {-1,
                                              0,
                                              1,
                                              2,
                                              3,
                                              64,
                                              kLargest,
                                              kSmallest,
                                              int64_t{1} << 31,
                                              int64_t{1} << 32,
                                              int64_t{1} << 62,
                                              -(int64_t{1} << 40)};
  const auto d = static_cast<std::size_t>(number(bytes, 0, 3));
  switch (number(bytes, 0, 4)) {
    case 0:
      view.shape[d] = bytes.PickValueInArray(kSizes);
      break;
    case 1:
      view.dtype = static_cast<DType>(number(bytes, -2, 6));
      break;
    case 2:
      view.data = nullptr;
      break;
    case 3:
      view.strides[d] = kLargest / 2;
      break;
    default:
      view.strides[d] = kSmallest;
      break;
  }
}

// What makes one changed view wrong beside the unchanged rest.
bool differs(const MutableView& x, const MutableView& y) {
  if (x.dtype != y.dtype || x.data != y.data || x.shape != y.shape) return true;
  for (std::size_t d = 0; d < 4; ++d) {
    if (x.strides[d] != y.strides[d] && x.shape[d] > 1) return true;
  }
  return false;
}

void check_wrong_call(FuzzedDataProvider& bytes) {
  Case c;
  c.dtype = bytes.ConsumeBool() ? DType::f32 : DType::f64;
  c.B = number(bytes, 1, 2);
  c.Hk = number(bytes, 1, 2);
  c.H = c.Hk * number(bytes, 1, 2);
  c.M = number(bytes, 1, 4);
  c.N = number(bytes, 1, 4);
  c.D = number(bytes, 1, 4);
  c.E = number(bytes, 1, 4);
  const Problem p(c);
  const Shape shapes[] = {p.q_shape(),   p.k_shape(), p.v_shape(), p.out_shape(), p.lse_shape(),
                          p.out_shape(), p.q_shape(), p.k_shape(), p.v_shape()};
  std::vector<Tensor> tensors;
  std::array<MutableView, 9> views;
  for (std::size_t n = 0; n < views.size(); ++n) {
    tensors.emplace_back(c.dtype, shapes[n]);
    views[n] = tensors.back();
  }
  // Fewer than the tensors that share a size: what differs cannot fit together again.
  const std::array<MutableView, 9> right = views;
  for (int64_t n = number(bytes, 1, 3); n > 0; --n) spoil(bytes, views[static_cast<std::size_t>(number(bytes, 0, 8))]);
  if (std::equal(views.begin(), views.end(), right.begin(), [](auto& x, auto& y) { return !differs(x, y); })) return;
  const auto& [q, k, v, out, lse, dout, dq, dk, dv] = views;
  try {
    attention_backward(dout, q, k, v, out, lse, {dq, dk, dv, {}, {}});
  } catch (const InvalidArgument&) {
    return;
  }
  stop("a wrong call was accepted");
}

void run(FuzzedDataProvider& bytes) {
  try {
    if (number(bytes, 0, 3) == 0) {
      check_wrong_call(bytes);
    } else {
      check_right_call(bytes);
    }
  } catch (const std::exception& error) {
    stop(std::string("threw ") + error.what());
  }
}

}  // namespace
}  // namespace attend::test

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  attend::set_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  attend::test::run(bytes);
  return 0;
}
