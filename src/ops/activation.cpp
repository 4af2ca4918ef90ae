// Activations, plain and gated, and their gradients.
#include "attend/activation.hpp"

#include <optional>
#include <string>

#include "base/check.hpp"
#include "ops/float_rows.hpp"
#include "reference/activation.hpp"

namespace attend {
namespace {

constexpr std::int64_t kAtOnce = 4096;

void check_kind(const char* op, Activation kind) {
  if (kind < Activation::silu || kind > Activation::relu) {
    fail(op, "the activation is " + std::to_string(static_cast<std::int32_t>(kind)) +
                 ", expected silu, gelu, gelu_tanh or relu");
  }
}

void check_input(const char* op, const char* what, const View& given, const View& x) {
  check_readable(op, what, given);
  check_shape(op, what, given.shape, x.shape);
  check_dtype(op, what, given.dtype, x.dtype);
}
void check_result(const char* op, const char* what, const MutableView& result, const View& x) {
  check_writable(op, what, result);
  check_shape(op, what, result.shape, x.shape);
  check_dtype(op, what, result.dtype, x.dtype);
}

void activate(Activation kind, View gate, std::optional<View> up, MutableView y) {
  if (gate.dtype == DType::f64) return reference::activation(kind, gate, up, y);
  View factor = up.value_or(gate);
  flatten(gate, factor, y);
  const FloatRows from(gate), with(factor);
  const MutableFloatRows to(y);
  const RowKernels& table = kernels().rows;
  const bool halves = from.bf16_in_place() && with.bf16_in_place() && to.bf16_in_place();
  for_each_piece(y.shape, kAtOnce, [&](std::int64_t r, std::int64_t first, std::int64_t n) {
    if (halves)
      return table.activation(kind, DType::bf16, from.at(r, first), up ? with.at(r, first) : nullptr, n,
                              to.at(r, first));
    float buffer[kPiece], factor_buffer[kPiece];
    table.activation(kind, DType::f32, from.read(r, first, n, buffer),
                     up ? with.read(r, first, n, factor_buffer) : nullptr, n, to.place(r, first, buffer));
    to.written(r, first, n, buffer);
  });
}

void activate_backward(Activation kind, View dy, View gate, std::optional<View> up, MutableView dgate,
                       std::optional<MutableView> dup, std::optional<MutableView> y) {
  if (gate.dtype == DType::f64) {
    reference::activation_backward(kind, dy, gate, up, dgate, dup);
    if (y) reference::activation(kind, gate, up, *y);
    return;
  }
  View factor = up.value_or(gate);
  MutableView dfactor = dup.value_or(dgate), again = y.value_or(dgate);
  flatten(dy, gate, factor, dgate, dfactor, again);
  const FloatRows given(dy), from(gate), with(factor);
  const MutableFloatRows to(dgate), to_factor(dfactor), to_y(again);
  const RowKernels& table = kernels().rows;
  const bool halves = given.bf16_in_place() && from.bf16_in_place() && with.bf16_in_place() && to.bf16_in_place() &&
                      to_factor.bf16_in_place() && to_y.bf16_in_place();
  for_each_piece(dy.shape, kAtOnce, [&](std::int64_t r, std::int64_t first, std::int64_t n) {
    if (halves)
      return table.activation_backward(kind, DType::bf16, given.at(r, first), from.at(r, first),
                                       up ? with.at(r, first) : nullptr, n, to.at(r, first), to_factor.at(r, first),
                                       y ? to_y.at(r, first) : nullptr);
    float buffers[4][kPiece];
    table.activation_backward(kind, DType::f32, given.read(r, first, n, buffers[0]), from.read(r, first, n, buffers[1]),
                              up ? with.read(r, first, n, buffers[2]) : nullptr, n, to.place(r, first, buffers[0]),
                              to_factor.place(r, first, buffers[1]), y ? to_y.place(r, first, buffers[3]) : nullptr);
    to.written(r, first, n, buffers[0]);
    if (up) to_factor.written(r, first, n, buffers[1]);
    if (y) to_y.written(r, first, n, buffers[3]);
  });
}

}  // namespace

void activation(Activation kind, View x, MutableView y) {
  const char* op = "activation";
  check_kind(op, kind);
  check_readable(op, "x", x);
  check_result(op, "y", y, x);
  check_all_apart(op, {{"y", y, "x"}}, {{"x", x}});
  activate(kind, x, std::nullopt, y);
}

void gated_activation(Activation kind, View gate, View up, MutableView y) {
  const char* op = "gated_activation";
  check_kind(op, kind);
  check_readable(op, "gate", gate);
  check_input(op, "up", up, gate);
  check_result(op, "y", y, gate);
  check_all_apart(op, {{"y", y, "gate", "up"}}, {{"gate", gate}, {"up", up}});
  activate(kind, gate, up, y);
}

void activation_backward(Activation kind, View dy, View x, MutableView dx) {
  const char* op = "activation_backward";
  check_kind(op, kind);
  check_readable(op, "x", x);
  check_input(op, "dy", dy, x);
  check_result(op, "dx", dx, x);
  check_all_apart(op, {{"dx", dx, "dy"}}, {{"dy", dy}, {"x", x}});
  activate_backward(kind, dy, x, std::nullopt, dx, std::nullopt, std::nullopt);
}

void gated_activation_backward(Activation kind, View dy, View gate, View up, MutableView dgate, MutableView dup,
                               std::optional<MutableView> y) {
  const char* op = "gated_activation_backward";
  check_kind(op, kind);
  check_readable(op, "gate", gate);
  check_input(op, "up", up, gate);
  check_input(op, "dy", dy, gate);
  check_result(op, "dgate", dgate, gate);
  check_result(op, "dup", dup, gate);
  if (y) check_result(op, "y", *y, gate);
  check_all_apart(op, {{"dgate", dgate, "dy"}, {"dup", dup, "dy"}, {"y", y}}, {{"dy", dy}, {"gate", gate}, {"up", up}});
  activate_backward(kind, dy, gate, up, dgate, dup, y);
}

}  // namespace attend
