// Argument checks: each throws InvalidArgument saying what was got and what was expected.
#include "base/check.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/checked.hpp"

namespace attend {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

bool known(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f64;
}

void check_known(std::string_view op, std::string_view what, DType dtype) {
  if (known(dtype)) return;
  fail(op, std::string(what) + " dtype is " + std::to_string(static_cast<std::int32_t>(dtype)) +
               ", expected f32, f16, bf16 or f64");
}

// Each dimension, from the smallest step up, must step over everything the smaller ones reach. Layouts that
// interleave without meeting are refused too: no real tensor has them. Call after check_layout: nothing overflows.
bool elements_apart(const Shape& shape, const Strides& strides) {
  std::array<std::pair<std::int64_t, std::int64_t>, 4> steps;  // |stride|, size
  for (std::size_t d = 0; d < 4; ++d) steps[d] = {strides[d] < 0 ? -strides[d] : strides[d], shape[d]};
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;
  for (const auto& [step, size] : steps) {
    if (size <= 1) continue;
    if (step <= reach) return false;
    reach += (size - 1) * step;
  }
  return true;
}

// The stretch of memory that elements lie in. Call after check_layout: nothing overflows.
struct Stretch {
  Stretch(const void* data, const Shape& shape, const Strides& strides, std::int64_t element_bytes) {
    std::int64_t low = 0, high = 1;
    for (std::size_t d = 0; d < 4; ++d) (strides[d] < 0 ? low : high) += (shape[d] - 1) * strides[d];
    const auto start = reinterpret_cast<std::uintptr_t>(data);
    const auto bytes = [&](std::int64_t elements) { return static_cast<std::uintptr_t>(elements * element_bytes); };
    begin = start + bytes(low);
    end = start + bytes(high);
  }
  explicit Stretch(const View& view) : Stretch(view.data, view.shape, view.strides, size_of(view.dtype)) {}
  bool meets(const Stretch& other) const { return begin < other.end && other.begin < end; }

  std::uintptr_t begin, end;
};

bool is_empty(const Shape& shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

// The same elements in the same order, so that one may be worked on in place of the other.
bool same_place(const View& a, const View& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.shape != b.shape) return false;
  for (std::size_t d = 0; d < 4; ++d)
    if (a.shape[d] > 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

// Is `offset` the sum of n[d] * stride[d] with -b.shape[d] < n[d] < a.shape[d]? Strides are taken from the largest
// down; where elements of the larger shape are apart, only the two n nearest to the quotient can work at each step.
bool can_meet(const View& a, const View& b, std::array<std::size_t, 4> order, std::size_t at, std::int64_t offset) {
  if (at == 4) return offset == 0;
  const std::size_t d = order[at];
  const std::int64_t step = a.strides[d];
  const std::int64_t least = 1 - b.shape[d], most = a.shape[d] - 1;
  const std::int64_t nearest = std::clamp(step == 0 ? 0 : offset / step, least, most);
  for (std::int64_t n = std::max(nearest - 1, least); n <= std::min(nearest + 1, most); ++n) {
    if (can_meet(a, b, order, at + 1, offset - n * step)) return true;
  }
  return false;
}

bool may_share_memory(const View& a, const View& b) {
  if (is_empty(a.shape) || is_empty(b.shape) || !Stretch(a).meets(Stretch(b))) return false;
  const auto gap =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.data) - reinterpret_cast<std::uintptr_t>(a.data));
  if (a.dtype != b.dtype || a.strides != b.strides || gap % size_of(a.dtype) != 0) return true;
  Shape larger;
  for (std::size_t d = 0; d < 4; ++d) larger[d] = std::max(a.shape[d], b.shape[d]);
  if (!elements_apart(larger, a.strides)) return true;
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  std::sort(order.begin(), order.end(),
            [&](std::size_t x, std::size_t y) { return std::abs(a.strides[x]) > std::abs(a.strides[y]); });
  return can_meet(a, b, order, 0, gap / size_of(a.dtype));
}

}  // namespace

void fail(std::string_view op, std::string_view text) {
  throw InvalidArgument(std::string(op) + ": " + std::string(text));
}

void check_equal(std::string_view op, std::string_view what, std::int64_t got, std::int64_t expected, const char* why) {
  if (got == expected) return;
  const std::string reason = *why == '\0' ? "" : " (" + std::string(why) + ")";
  fail(op, std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(expected) + reason);
}

void check_layout(std::string_view op, std::string_view what, const void* data, const Shape& shape,
                  const Strides& strides, std::int64_t element_bytes) {
  for (const std::int64_t size : shape) {
    if (size < 0) fail(op, std::string(what) + " shape is " + to_string(shape) + ", expected sizes >= 0");
  }
  std::int64_t bytes = 0;
  try {
    bytes = checked_product("bytes", {shape[0], shape[1], shape[2], shape[3], element_bytes});
  } catch (const InvalidArgument& error) {
    fail(op, std::string(what) + " " + error.what());
  }
  if (bytes == 0) return;

  for (std::size_t d = 0; d < 4; ++d)
    if (shape[d] > 1 && strides[d] == kUnsetStride)
      fail(op, std::string(what) + " shape is " + to_string(shape) +
                   " and its strides are not set; give the strides, " +
                   "or make the view by dtype, data and shape: it is then contiguous");
  std::int64_t reach = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    std::int64_t step = 0;
    const bool fits = strides[d] >= -kMax &&
                      !__builtin_mul_overflow(shape[d] - 1, strides[d] < 0 ? -strides[d] : strides[d], &step) &&
                      !__builtin_mul_overflow(step, element_bytes, &step) &&
                      !__builtin_add_overflow(reach, step, &reach);
    if (!fits) {
      fail(op, std::string(what) + " shape is " + to_string(shape) + " with strides " + to_string(strides) +
                   ", expected offsets below 2^63 bytes");
    }
  }
  if (data == nullptr)
    fail(op, std::string(what) + " data is null, expected a pointer to " + to_string(shape) + " elements");
}

void check_readable(std::string_view op, std::string_view what, const View& view) {
  check_known(op, what, view.dtype);
  check_layout(op, what, view.data, view.shape, view.strides, size_of(view.dtype));
}

void check_writable(std::string_view op, std::string_view what, const MutableView& view) {
  check_readable(op, what, view);
  if (!is_empty(view.shape) && !elements_apart(view.shape, view.strides)) {
    fail(op, std::string(what) + " shape is " + to_string(view.shape) + " with strides " + to_string(view.strides) +
                 ", expected every element in a place of its own");
  }
}

void check_apart(std::string_view op, std::string_view what, const MutableView& written, std::string_view other,
                 const View& view) {
  if (may_share_memory(written, view)) {
    fail(op, std::string(what) + " shares memory with " + std::string(other) + ", expected a place of its own");
  }
}

void check_all_apart(std::string_view op, std::initializer_list<Written> written, std::initializer_list<Read> read) {
  for (const Written* result = written.begin(); result != written.end(); ++result) {
    if (!result->view) continue;
    for (const Read& input : read) {
      const bool may_be = result->in_place_of == input.name || result->or_of == input.name;
      if (!input.view || (may_be && same_place(*result->view, *input.view))) continue;
      check_apart(op, result->name, *result->view, input.name, *input.view);
    }
    for (const Written* other = written.begin(); other != result; ++other)
      if (other->view) check_apart(op, result->name, *result->view, other->name, *other->view);
  }
}

void check_apart_from(std::string_view op, std::string_view other, const void* data, const Shape& shape,
                      const Strides& strides, std::int64_t element_bytes, std::initializer_list<Written> written) {
  if (is_empty(shape)) return;
  const Stretch memory(data, shape, strides, element_bytes);
  for (const Written& result : written) {
    if (!result.view || is_empty(result.view->shape) || !memory.meets(Stretch(*result.view))) continue;
    fail(op, std::string(result.name) + " shares memory with " + std::string(other) + ", expected a place of its own");
  }
}

void check_shape(std::string_view op, std::string_view what, const Shape& got, const Shape& expected) {
  if (got == expected) return;
  fail(op, std::string(what) + " shape is " + to_string(got) + ", expected " + to_string(expected));
}

void check_dtype(std::string_view op, std::string_view what, DType got, DType expected) {
  check_known(op, what, got);
  if (got == expected) return;
  fail(op, std::string(what) + " dtype is " + name(got) + ", expected " + name(expected));
}

void check_family(std::string_view op, std::string_view what, DType got, DType first) {
  check_known(op, what, got);
  if ((got == DType::f64) == (first == DType::f64)) return;
  fail(op, std::string(what) + " dtype is " + name(got) + ", expected " +
               (first == DType::f64 ? "f64" : "f32, f16 or bf16") + " beside " + name(first));
}

void check_result_dtype(std::string_view op, std::string_view what, DType got, DType inputs) {
  const bool half = inputs == DType::f16 || inputs == DType::bf16;
  if (!half) return check_dtype(op, what, got, inputs);
  check_known(op, what, got);
  if (got == inputs || got == DType::f32) return;
  fail(op, std::string(what) + " dtype is " + name(got) + ", expected " + name(inputs) + " or f32");
}

std::string to_string(const std::array<std::int64_t, 4>& values) {
  std::string text = "[";
  for (std::size_t d = 0; d < 4; ++d) text += (d == 0 ? "" : ", ") + std::to_string(values[d]);
  return text + "]";
}

void check_at_least(std::string_view op, std::string_view what, std::int64_t got, std::int64_t least) {
  if (got >= least) return;
  fail(op, std::string(what) + " is " + std::to_string(got) + ", expected at least " + std::to_string(least));
}

void check_fitting(std::string_view op, const Named& q, const Named& k, const Named& v) {
  for (const Named* x : {&q, &k, &v}) check_readable(op, x->name, x->view);
  const bool all_empty = q.view.shape == Shape() && k.view.shape == Shape() && v.view.shape == Shape();
  for (const Named* x : {&q, &k, &v})
    if (!all_empty && x->view.shape == Shape())
      fail(op, std::string(x->name) + " is an empty tensor, expected one of [batch, heads, length, dim]");
  for (const Named* x : {&k, &v}) check_dtype(op, x->name, x->view.dtype, q.view.dtype);
  const auto check = [&](const Named& x, const Named& like, const char* what, std::int64_t got, std::int64_t expected) {
    if (got == expected) return;
    const std::string of_x = std::string(x.name) + " " + what, of_like = std::string(like.name) + " " + what;
    if (expected == 0)
      check_equal(op, of_like, expected, got, of_x.c_str());  // the one without elements is the mistake
    check_equal(op, of_x, got, expected, of_like.c_str());
  };
  check(k, q, "batch", k.view.batch(), q.view.batch());
  check(v, q, "batch", v.view.batch(), q.view.batch());
  check(v, k, "heads", v.view.heads(), k.view.heads());
  check(v, k, "length", v.view.length(), k.view.length());
  check(k, q, "dim", k.view.dim(), q.view.dim());
}

void check_lse(std::string_view op, const View& lse, const Shape& rows, DType inputs) {
  const Shape expected = {rows[0], rows[1], rows[2], 1};
  if (lse.shape == Shape() && !is_empty(expected))
    fail(op, "lse is empty, expected " + to_string(expected) + ", what forward gave; ask for it: {.lse = true}");
  check_readable(op, "lse", lse);
  check_shape(op, "lse", lse.shape, expected);
  check_dtype(op, "lse", lse.dtype, inputs == DType::f64 ? DType::f64 : DType::f32);
}

void check_results(std::string_view op, const View& dout, const View& out, const View& lse, const Shape& shape,
                   DType dtype) {
  for (const Named& x : {Named{"dout", dout}, Named{"out", out}}) {
    check_readable(op, x.name, x.view);
    check_shape(op, x.name, x.view.shape, shape);
    check_dtype(op, x.name, x.view.dtype, dtype);
  }
  check_lse(op, lse, shape, dtype);
}

}  // namespace attend
