// A gated recurrent unit over a batch.
#include "labs/before_attention/gru.hpp"

#include <cmath>

namespace attend::labs {
namespace {

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

template <class T>
void forward(const GruStep& step, std::int64_t t, Tensor& states) {
  const std::int64_t B = states.shape()[0], steps = states.shape()[2] - 1, W = states.shape()[3];
  for (std::int64_t b = 0; b < B; ++b) {
    const T* gx = step.gx->data<T>() + (b * steps + t) * 3 * W;
    const T* gh = step.gh->data<T>() + (b * steps + t) * 3 * W;
    const T* h = states.data<T>() + (b * (steps + 1) + t) * W;
    T* next = states.data<T>() + (b * (steps + 1) + t + 1) * W;
    const bool active = step.lengths == nullptr || t < step.lengths[b];
    for (std::int64_t n = 0; n < W; ++n) {
      const T r = sigmoid(gx[n] + gh[n]), z = sigmoid(gx[W + n] + gh[W + n]);
      const T candidate = std::tanh(gx[2 * W + n] + r * gh[2 * W + n]);
      next[n] = active ? (1 - z) * candidate + z * h[n] : h[n];
    }
  }
}

template <class T>
void backward(const GruStep& step, std::int64_t t, const Tensor& states, Tensor& dstates, Tensor& dgx, Tensor& dgh) {
  const std::int64_t B = states.shape()[0], steps = states.shape()[2] - 1, W = states.shape()[3];
  for (std::int64_t b = 0; b < B; ++b) {
    const std::int64_t gates = (b * steps + t) * 3 * W, row = (b * (steps + 1) + t) * W;
    const T *gx = step.gx->data<T>() + gates, *gh = step.gh->data<T>() + gates;
    T *dx = dgx.data<T>() + gates, *dh = dgh.data<T>() + gates;
    const T* h = states.data<T>() + row;
    T *before = dstates.data<T>() + row, *after = before + W;
    const bool active = step.lengths == nullptr || t < step.lengths[b];
    for (std::int64_t n = 0; n < W; ++n) {
      if (!active) {
        before[n] += after[n];
        for (std::int64_t gate = 0; gate < 3; ++gate) dx[gate * W + n] = dh[gate * W + n] = 0;
        continue;
      }
      const T r = sigmoid(gx[n] + gh[n]), z = sigmoid(gx[W + n] + gh[W + n]);
      const T candidate = std::tanh(gx[2 * W + n] + r * gh[2 * W + n]);
      const T dcandidate = after[n] * (1 - z) * (1 - candidate * candidate);
      const T dz = after[n] * (h[n] - candidate) * z * (1 - z);
      const T dr = dcandidate * gh[2 * W + n] * r * (1 - r);
      dx[n] = dh[n] = dr;
      dx[W + n] = dh[W + n] = dz;
      dx[2 * W + n] = dcandidate;
      dh[2 * W + n] = dcandidate * r;
      before[n] += after[n] * z;
    }
  }
}

}  // namespace

void gru_forward(const GruStep& step, std::int64_t t, Tensor& states) {
  states.dtype() == DType::f64 ? forward<double>(step, t, states) : forward<float>(step, t, states);
}

void gru_backward(const GruStep& step, std::int64_t t, const Tensor& states, Tensor& dstates, Tensor& dgx,
                  Tensor& dgh) {
  if (states.dtype() == DType::f64)
    backward<double>(step, t, states, dstates, dgx, dgh);
  else
    backward<float>(step, t, states, dstates, dgx, dgh);
}

}  // namespace attend::labs
