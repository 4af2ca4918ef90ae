// The soft-cap of a launch as coefficients, made on the host: kernels read them as parameters, and need no registers
// for them.
#pragma once

#include <cmath>

#include "cuda/host_device.hpp"

namespace attend::cuda {

// cap * tanh(x * ratio), where ratio is scale / cap. Of angles |x * ratio| up to `angle` it is a polynomial: tanh(y) /
// y as one of y * y, to 7e-8 of it, in six instructions and no exponential.
struct SmallTanh {
  float ratio = 0, angle = -1;          // none is small
  float power = 0, cap = 0, twice = 0;  // of the others: cap + twice / (1 + 2^(power * x))
  float c0 = 0, c1 = 0, c2 = 0, c3 = 0, c4 = 0;

  SmallTanh() = default;
  SmallTanh(float scale, float softcap) : ratio(scale / softcap), cap(softcap), twice(-2 * softcap) {
    constexpr float kLog2E = 1.4426950408889634F;
    power = 2 * kLog2E * ratio;
    // The coefficients must be floats. Where ratio^8 is too small the last of them are missing.
    const float size = std::abs(ratio);
    if (!(size <= 0x1p12F)) return;
    angle = size >= 0x1p-12F ? 0.6F : 0x1p-5F;
    const float square = ratio * ratio;
    c0 = scale * 0.999999928F, scale *= square;
    c1 = scale * -0.333323234F, scale *= square;
    c2 = scale * 0.13310358F, scale *= square;
    c3 = scale * -0.0521096245F, scale *= square;
    c4 = scale * 0.0154866904F;
  }

  ATTEND_HOST_DEVICE float operator()(float x) const {
    const float square = x * x;
    return x * fmaf(fmaf(fmaf(fmaf(c4, square, c3), square, c2), square, c1), square, c0);
  }
};

}  // namespace attend::cuda
