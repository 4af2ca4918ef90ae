// Attention arguments from bytes: right ones must agree with the reference, wrong ones must be refused.
#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/runtime.hpp"
#include "draw_attention.hpp"
#include "seeded.hpp"
#include "support/buffer.hpp"
#include "without_luck.hpp"

namespace attend::test {
namespace {

void check_right_call(FuzzedDataProvider& bytes) {
  Case c = draw_case(bytes, {.groups = 3, .queries = 9, .keys = 140, .dim = 18});
  c.dtype = static_cast<DType>(number(bytes, 0, 3));
  std::vector<std::vector<std::uint8_t>> memory;
  Problem problem(c);
  const Mask mask = draw_mask(bytes, c, memory);
  problem.set_mask(mask);
  const StrideRule strides = draw_strides(bytes);
  const Truth truth = true_attention(problem);
  std::vector<std::string> failures = check_truth(problem, truth);
  const Computed computed = compute(problem, c, failures, strides);
  const Results naive = c.dtype == DType::f64 ? truth.results : naive_attention(problem, c.dtype);
  const auto beyond = compare_without_luck(problem, mask, truth, naive, computed);
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
