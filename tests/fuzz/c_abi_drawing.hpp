// What the fuzzer of the C ABI draws: sizes, tensors and lists, mostly good ones; and what it asks of a status.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "attend/attend.h"

namespace attend::fuzz {

using std::int64_t;

[[noreturn]] inline void stop(const char* text) {
  std::fprintf(stderr, "%s: %s\n", text, attend_last_error());
  std::abort();
}

// Sizes and lengths: mostly small, now and then hostile. Even one element of two bytes times the large ones overflows:
// nothing asks for memory that a sanitizer would refuse.
inline int64_t draw_size(FuzzedDataProvider& bytes) {
  constexpr std::array<int64_t, 6> kHostile = {
      -1, INT64_MIN, INT64_MAX, int64_t{1} << 62, INT64_MIN / 2, -(int64_t{1} << 32)};
  const auto kind = bytes.ConsumeIntegralInRange<int>(0, 40);
  return kind == 40 ? bytes.PickValueInArray(kHostile) : kind % 7;
}

// Tensors with memory of exactly their own, so that a byte outside is seen.
class Arena {
 public:
  explicit Arena(FuzzedDataProvider& bytes) : bytes_(bytes) {}

  // Of the given sizes, or of drawn ones; null now and then.
  const attend_tensor* tensor(std::array<int64_t, 4> shape) {
    const int kind = bytes_.ConsumeIntegralInRange<int>(0, 60);
    if (kind == 60) return nullptr;
    if (kind > 56) {
      for (int64_t& size : shape) size = draw_size(bytes_);
    }
    auto made = std::make_unique<attend_tensor>();
    made->dtype = kind > 53 ? bytes_.ConsumeIntegral<int32_t>() : dtype;
    if (kind == 53) made->dtype = bytes_.ConsumeIntegralInRange<int32_t>(-1, 4);
    __int128 elements = 1;
    for (std::size_t d = 4; d-- > 0;) {
      made->shape[d] = shape[d];
      made->strides[d] = static_cast<int64_t>(elements);
      if (shape[d] > 0 && elements < (int64_t{1} << 40)) elements *= shape[d];
    }
    if (elements <= kMostElements) {
      memory_.emplace_back(new std::byte[static_cast<std::size_t>(elements) * 8]());
      made->data = memory_.back().get();
    } else {
      made->data = nullptr;  // such a tensor must be refused
    }
    if (kind == 52) made->strides[bytes_.ConsumeIntegralInRange<int>(0, 3)] = 0;
    if (kind == 51) made->strides[bytes_.ConsumeIntegralInRange<int>(0, 3)] = INT64_MAX;
    tensors_.push_back(std::move(made));
    return tensors_.back().get();
  }

  // Bytes of the caller's, exactly so many.
  std::byte* bytes(std::size_t count) {
    memory_.emplace_back(new std::byte[count]());
    for (std::size_t n = 0; n < count && bytes_.remaining_bytes() > 0; ++n)
      memory_.back()[n] = std::byte{bytes_.ConsumeIntegral<std::uint8_t>()};
    return memory_.back().get();
  }

  // A list that may be null, with a count that may be wrong but never more than there is.
  std::pair<const int64_t*, int64_t> list() {
    std::vector<int64_t>& values = lists_.emplace_back();
    for (int n = bytes_.ConsumeIntegralInRange<int>(0, 4); n > 0; --n) values.push_back(draw_size(bytes_));
    if (bytes_.ConsumeIntegralInRange<int>(0, 15) == 15) return {nullptr, draw_size(bytes_)};
    const auto count = static_cast<int64_t>(values.size());
    return {values.data(), bytes_.ConsumeIntegralInRange<int>(0, 15) == 15 ? -1 : count};
  }

  int32_t dtype = ATTEND_F32;

 private:
  static constexpr int64_t kMostElements = 1 << 16;

  FuzzedDataProvider& bytes_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<attend_tensor>> tensors_;
  std::vector<std::vector<int64_t>> lists_;
};

// A failure must be one that a caller can cause, and come with a text; `has_pages`: pages may run out too.
inline bool settled(attend_status status, bool has_pages = false) {
  if (status == ATTEND_OK) return true;
  const bool pages = has_pages && status == ATTEND_OUT_OF_PAGES;
  if (status != ATTEND_INVALID_ARGUMENT && status != ATTEND_OUT_OF_MEMORY && !pages)
    stop("not a status for bad arguments");
  if (std::strlen(attend_last_error()) == 0) stop("an error without a text");
  return false;
}

}  // namespace attend::fuzz
