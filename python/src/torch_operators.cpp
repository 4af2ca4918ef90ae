// The kernels of PyTorch's operators attend::attention and attend::attention_backward, in C++ under its dispatcher: a
// call runs no Python. _torch_ops.py has their schemas, fake kernels and autograd.
#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attend/cuda.hpp"
#include "attend/interrupt.hpp"
#include "bindings.hpp"
#include "engine_call.hpp"
#include "torch_abi.hpp"

namespace attend::python {
namespace {

using torch_abi::TensorHandle;
using torch_abi::Value;

const torch_abi::Functions& torch() {
  return *torch_abi::functions();
}

void check(torch_abi::Error error, const char* what) {
  if (error != 0) throw std::runtime_error(std::string("PyTorch could not ") + what);
}

// One reference to a tensor of PyTorch's.
class Tensor {
 public:
  explicit Tensor(TensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) torch().delete_tensor(handle_);
  }

  TensorHandle get() const { return handle_; }
  Value release() { return reinterpret_cast<Value>(std::exchange(handle_, nullptr)); }

  template <class T>
  T read(torch_abi::Error (*function)(TensorHandle, T*)) const {
    T result{};
    check(function(handle_, &result), "describe a tensor");
    return result;
  }
  std::int64_t rank() const { return read(torch().get_dim); }
  const std::int64_t* sizes() const { return read(torch().get_sizes); }      // [rank]; of this tensor's
  const std::int64_t* strides() const { return read(torch().get_strides); }  // the same, in elements
  std::int32_t dtype() const { return read(torch().get_dtype); }
  void* data() const { return read(torch().get_data_ptr); }
  bool is_cuda() const { return device_type() == torch().device_type_cuda(); }
  std::int32_t device_type() const { return read(torch().get_device_type); }
  std::int32_t device_index() const { return read(torch().get_device_index); }

 private:
  TensorHandle handle_;
};

std::optional<DType> engine_dtype(std::int32_t dtype) {
  if (dtype == torch().dtype_bfloat16()) return DType::bf16;
  if (dtype == torch().dtype_float16()) return DType::f16;
  if (dtype == torch().dtype_float32()) return DType::f32;
  if (dtype == torch().dtype_float64()) return DType::f64;
  return std::nullopt;
}
std::int32_t torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return torch().dtype_bfloat16();
    case DType::f16:
      return torch().dtype_float16();
    case DType::f64:
      return torch().dtype_float64();
    case DType::f32:
      break;
  }
  return torch().dtype_float32();
}

std::string device_name(const Tensor& x) {
  return x.is_cuda() ? "cuda:" + std::to_string(x.device_index()) : "the CPU";
}
void check_device(const char* name, const Tensor& x, const Tensor& q) {
  if (x.device_type() != q.device_type() || x.device_index() != q.device_index())
    throw InvalidArgument(std::string(name) + " is on " + device_name(x) + ", expected " + device_name(q) +
                          ", where q is");
}
void check_rank(const char* name, const Tensor& x, bool valid, const char* expected) {
  if (!valid)
    throw InvalidArgument(std::string(name) + " has " + std::to_string(x.rank()) + " dimensions, expected " + expected);
}

// The tensor's dimensions are at `dims` of the engine's four, the others are ones.
MutableView view_at(const Tensor& x, const char* name, std::initializer_list<std::size_t> dims) {
  const std::optional<DType> dtype = engine_dtype(x.dtype());
  if (!dtype) throw InvalidArgument(std::string(name) + ": expected float32, float16, bfloat16 or float64");
  MutableView view{*dtype, x.data(), {1, 1, 1, 1}, {0, 0, 0, 0}};
  const std::int64_t *sizes = x.sizes(), *strides = x.strides();
  for (const std::size_t to : dims) view.shape.at(to) = *sizes++, view.strides.at(to) = *strides++;
  return view;
}
MutableView view_of_four(const Tensor& x, const char* name) {
  check_rank(name, x, x.rank() == 4, "4: batch, heads, length and dim");
  return view_at(x, name, {0, 1, 2, 3});
}
MutableView view_of_lse(const Tensor& x) {
  check_rank("lse", x, x.rank() == 3, "3: batch, heads and queries");
  return view_at(x, "lse", {0, 1, 2});
}
View view_of_bias(const Tensor& x) {
  switch (x.rank()) {
    case 1:
      return view_at(x, "bias", {3});
    case 2:
      return view_at(x, "bias", {2, 3});
    case 3:
      return view_at(x, "bias", {1, 2, 3});
    default:
      return view_of_four(x, "bias");
  }
}
View view_of_slopes(const Tensor& x) {
  check_rank("alibi_slopes", x, x.rank() == 1 || x.rank() == 2, "[heads] or [batch, heads]");
  return x.rank() == 1 ? view_at(x, "alibi_slopes", {1}) : view_at(x, "alibi_slopes", {0, 1});
}

// Integers of a one-dimensional CPU tensor.
std::vector<std::int64_t> integers(const Tensor& x, const char* name) {
  const bool is_wide = x.dtype() == torch().dtype_int64();
  if (x.is_cuda() || (!is_wide && x.dtype() != torch().dtype_int32()))
    throw InvalidArgument(std::string(name) + ": expected an int32 or int64 tensor on the CPU");
  check_rank(name, x, x.rank() == 1, "1");
  std::vector<std::int64_t> result(static_cast<std::size_t>(x.sizes()[0]));
  const std::int64_t step = x.strides()[0];
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * step;
    result[i] =
        is_wide ? static_cast<const std::int64_t*>(x.data())[at] : static_cast<const std::int32_t*>(x.data())[at];
  }
  return result;
}

Tensor empty(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, std::int32_t dtype,
             const Tensor& beside) {
  TensorHandle made = nullptr;
  check(torch().empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                              beside.device_type(), beside.device_index(), &made),
        "allocate a tensor: out of memory");
  return Tensor(made);
}
Tensor empty(const Shape& shape, const Strides& strides, DType dtype, const Tensor& beside) {
  return empty(std::span(shape), std::span(strides), torch_dtype(dtype), beside);
}
Tensor contiguous(const Tensor& x, const MutableView& view) {
  Tensor made = empty(view.shape, contiguous_strides(view.shape), view.dtype, x);
  check(torch().copy(made.get(), x.get(), 1), "copy a tensor");
  return made;
}
// New memory of a shape, with heads and lengths in the order of `like`; _ordered_as() of _torch_ops.py is the same.
Tensor ordered_as(const MutableView& like, const Shape& shape, const Tensor& beside) {
  const bool length_major = like.strides[1] < like.strides[2];
  return empty(shape, length_major ? length_major_strides(shape) : contiguous_strides(shape), like.dtype, beside);
}

// Temporary memory of a call on a GPU, from PyTorch's caching allocator: freed memory serves later work on the same
// stream.
class CachingAllocator final : public cuda::Allocator {
 public:
  explicit CachingAllocator(const Tensor& q) : q_(q) {}
  void* allocate(std::int64_t bytes) override {
    const std::int64_t one = 1;
    held_.push_back(empty(std::span(&bytes, 1), std::span(&one, 1), torch().dtype_uint8(), q_));
    return held_.back().data();
  }
  void free(void*) override {}  // all at once, when the last kernel of the call has been launched

 private:
  const Tensor& q_;
  std::vector<Tensor> held_;
};

// Makes q's GPU the current device for a call.
class DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t index) {
    if (torch().current_cuda_stream == nullptr) throw std::runtime_error("this build of PyTorch has no CUDA");
    check(torch().create_cuda_guard(index, &guard_), "make the tensor's GPU the current device");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { torch().delete_cuda_guard(guard_); }

 private:
  torch_abi::GuardHandle guard_ = nullptr;
};

cuda::Stream current_stream(std::int32_t device_index) {
  void* stream = nullptr;
  check(torch().current_cuda_stream(device_index, &stream), "give its current stream");
  return stream;
}

// The arguments of a call, taken from PyTorch's stack in the order of the schema.
class Stack {
 public:
  Stack(Value* values, std::uint64_t count) : values_(values), count_(count) {}
  Tensor tensor() { return Tensor(reinterpret_cast<TensorHandle>(next())); }
  std::optional<Tensor> optional_tensor() {
    const std::optional<Value> value = optional();
    if (!value) return std::nullopt;
    return Tensor(reinterpret_cast<TensorHandle>(*value));
  }
  double number() { return std::bit_cast<double>(next()); }
  std::optional<double> optional_number() {
    const std::optional<Value> value = optional();
    if (!value) return std::nullopt;
    return std::bit_cast<double>(*value);
  }
  std::int64_t integer() { return static_cast<std::int64_t>(next()); }
  bool boolean() { return (next() & 0xFF) != 0; }

 private:
  Value next() {
    if (at_ == count_) throw std::runtime_error("attend's operators have another schema than their kernels");
    return values_[at_++];
  }
  std::optional<Value> optional() {
    auto* const pointer = reinterpret_cast<Value*>(next());
    if (pointer == nullptr) return std::nullopt;
    const Value value = *pointer;
    if (torch().delete_value != nullptr)
      torch().delete_value(pointer);
    else
      delete pointer;
    return value;
  }

  Value* values_;
  std::uint64_t count_, at_ = 0;
};

// What forward and backward share: _OPTIONS of _torch_ops.py.
struct Options {
  explicit Options(Stack& stack)
      : visible(stack.optional_tensor()),
        bias(stack.optional_tensor()),
        slopes(stack.optional_tensor()),
        cu_queries(stack.optional_tensor()),
        cu_keys(stack.optional_tensor()),
        seed(stack.optional_tensor()),
        scale(stack.optional_number()),
        softcap(stack.number()),
        left(stack.integer()),
        right(stack.integer()),
        first_key(stack.boolean()),
        dropout(stack.number()) {}

  AttentionOptions engine(const Tensor& q) const {
    AttentionOptions options;
    options.mask = mask(q);
    options.scale = scale;
    options.softcap = softcap;
    options.alibi_diagonal = diagonal();
    if (bias) check_device("bias", *bias, q), options.bias = view_of_bias(*bias);
    if (slopes) check_device("alibi_slopes", *slopes, q), options.alibi_slopes = view_of_slopes(*slopes);
    options.dropout = {dropout, seed ? seed_value() : 0};
    return options;
  }

  std::optional<Tensor> visible, bias, slopes, cu_queries, cu_keys, seed;
  std::optional<double> scale;
  double softcap;
  std::int64_t left, right;
  bool first_key;
  double dropout;

 private:
  Align diagonal() const { return first_key ? Align::first_key : Align::last_key; }
  std::uint64_t seed_value() const {
    if (seed->is_cuda() || seed->dtype() != torch().dtype_int64() || seed->rank() != 0)
      throw InvalidArgument("seed: expected one int64 number on the CPU");
    return *static_cast<const std::uint64_t*>(seed->data());
  }
  Mask window_mask() const {
    if (left < 0 && right < 0) return no_mask();
    if (left < 0 && right == 0) return causal(diagonal());
    return window(std::max<std::int64_t>(left, -1), std::max<std::int64_t>(right, -1), diagonal());
  }
  Mask mask(const Tensor& q) const {
    Mask mask = window_mask();
    if (visible) {
      check_device("visible", *visible, q);
      check_rank("visible", *visible, visible->rank() == 4, "4");
      if (visible->dtype() != torch().dtype_bool()) throw InvalidArgument("visible: expected a boolean tensor");
      Shape shape{};
      Strides strides{};
      std::copy_n(visible->sizes(), 4, shape.begin());
      std::copy_n(visible->strides(), 4, strides.begin());
      mask = mask & dense(static_cast<const std::uint8_t*>(visible->data()), shape, strides);
    }
    if (cu_queries && cu_keys)
      mask = mask & segments(integers(*cu_queries, "cu_queries"), integers(*cu_keys, "cu_keys"));
    return mask;
  }
};

// A GPU's copy engine reads contiguous rows whose starts are multiples of 16 bytes: another tensor is copied.
bool is_aligned_for_gpu(const MutableView& view) {
  bool aligned = view.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  for (std::size_t d = 0; d < 3; ++d)
    aligned &= view.shape[d] == 1 || (view.strides[d] > 0 && view.strides[d] % 8 == 0);
  return aligned;
}
MutableView input(Tensor& x, const char* name, const Tensor& q) {
  check_device(name, x, q);
  MutableView view = view_of_four(x, name);
  if (!x.is_cuda() || is_aligned_for_gpu(view)) return view;
  x = contiguous(x, view);
  return view_of_four(x, name);
}

// Nothing to compute, or every weight dropped: results are zeros.
bool is_zero(const MutableView& q, const MutableView& k, const MutableView& v, const Options& options, bool on_gpu) {
  const bool no_scores = q.shape[0] == 0 || q.shape[1] == 0 || q.shape[2] == 0 || k.shape[2] == 0;
  return q.shape[1] == 0 || v.shape[3] == 0 || options.dropout >= 1 || (on_gpu && no_scores);
}

struct Outputs {
  Tensor out, lse;
};
// `out` [B, H, M, E], in memory ordered as q is, and `lse` [B, H, M].
Outputs new_outputs(const Tensor& q, const MutableView& view, std::int64_t value_dim) {
  const auto [B, H, M, D] = view.shape;
  const DType wide = view.dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::array<std::int64_t, 3> lse_shape{B, H, M};
  const Strides lse_strides = contiguous_strides({1, B, H, M});
  return {ordered_as(view, {B, H, M, value_dim}, q),
          empty(lse_shape, std::span(lse_strides).last(3), torch_dtype(wide), q)};
}

Outputs forward(Stack& stack) {
  Tensor q = stack.tensor(), k = stack.tensor(), v = stack.tensor();
  const Options options(stack);
  const MutableView given = view_of_four(q, "q");
  Outputs outputs = new_outputs(q, given, view_of_four(v, "v").dim());
  const MutableView k_view = input(k, "k", q), v_view = input(v, "v", q), q_view = input(q, "q", q);
  if (is_zero(q_view, k_view, v_view, options, false)) {
    check(torch().zero(outputs.out.get()), "write zeros");
    check(torch().zero(outputs.lse.get()), "write zeros");
    return outputs;
  }
  const MutableView out = view_of_four(outputs.out, "out");
  AttentionExtras extras;
  extras.lse = view_of_lse(outputs.lse);
  if (q.is_cuda()) {
    const DeviceGuard guard(q.device_index());
    CachingAllocator allocator(q);
    cuda::attention(q_view, k_view, v_view, out, options.engine(q), extras, current_stream(q.device_index()),
                    &allocator);
  } else {
    const InterruptScope interrupts(check_signals);
    attention(q_view, k_view, v_view, out, options.engine(q), extras);
  }
  return outputs;
}

struct Gradients {
  Tensor dq, dk, dv, dbias;
};
Tensor new_gradient(const Tensor& x, const char* name) {
  const MutableView view = view_of_four(x, name);
  return ordered_as(view, view.shape, x);
}
// An operator returns tensors only: an empty one is for no gradient of the bias.
Tensor new_dbias(const Tensor& q, const std::optional<View>& bias, std::int64_t rank) {
  constexpr std::int64_t kNone = 0, kOne = 1;
  if (!bias) return empty(std::span(&kNone, 1), std::span(&kOne, 1), q.dtype(), q);
  const Strides strides = contiguous_strides(bias->shape);
  const auto last = static_cast<std::size_t>(rank);
  return empty(std::span(bias->shape).last(last), std::span(strides).last(last), torch_dtype(bias->dtype), q);
}

Gradients backward(Stack& stack) {
  Tensor dout = stack.tensor(), q = stack.tensor(), k = stack.tensor(), v = stack.tensor();
  const Tensor out = stack.tensor(), lse = stack.tensor();
  const Options options(stack);
  const bool want_dbias = stack.boolean();
  const AttentionOptions engine = options.engine(q);
  if (want_dbias && !options.bias) throw InvalidArgument("want_dbias is true, expected a bias");
  Gradients result{new_gradient(q, "q"), new_gradient(k, "k"), new_gradient(v, "v"),
                   want_dbias ? new_dbias(q, engine.bias, options.bias->rank()) : new_dbias(q, std::nullopt, 0)};
  const MutableView dout_view = input(dout, "dout", q), k_view = input(k, "k", q), v_view = input(v, "v", q),
                    q_view = input(q, "q", q);
  if (is_zero(q_view, k_view, v_view, options, q.is_cuda())) {
    for (const Tensor* x : {&result.dq, &result.dk, &result.dv, &result.dbias})
      check(torch().zero(x->get()), "write zeros");
    return result;
  }
  AttentionGradients gradients{
      view_of_four(result.dq, "dq"), view_of_four(result.dk, "dk"), view_of_four(result.dv, "dv"), {}, {}, {}};
  if (want_dbias) {
    const View& bias = *engine.bias;
    gradients.dbias = MutableView{bias.dtype, result.dbias.data(), bias.shape, contiguous_strides(bias.shape)};
  }
  const View out_view = view_of_four(out, "out"), lse_view = view_of_lse(lse);
  if (q.is_cuda()) {
    const DeviceGuard guard(q.device_index());
    CachingAllocator allocator(q);
    cuda::attention_backward(dout_view, q_view, k_view, v_view, out_view, lse_view, gradients, engine,
                             cuda::Order::fixed, current_stream(q.device_index()), &allocator);
  } else {
    const InterruptScope interrupts(check_signals);
    attention_backward(dout_view, q_view, k_view, v_view, out_view, lse_view, gradients, engine);
  }
  return result;
}

// What the last operator of this thread failed with: PyTorch turns every exception of a kernel into a RuntimeError.
struct Failure {
  std::exception_ptr error;
  std::string message;
};
thread_local Failure last_failure;

// Runs the kernel; returns what went wrong, or an empty string.
template <class Run>
std::string error_of(Run run) {
  try {
    run();
    return {};
  } catch (const std::exception& error) {
    const std::string message = error.what();
    last_failure = {std::current_exception(), message.empty() ? "unknown error" : message};
    return last_failure.message;
  }
}
// Raises PyTorch's own exception, out of its own library: this module may have another C++ runtime.
void raise(const std::string& message) {
  torch().check(message.empty(), "attend", __FILE__, __LINE__, message.c_str());
}

void attention_kernel(Value* stack, std::uint64_t arguments, std::uint64_t) {
  raise(error_of([&] {
    Stack given(stack, arguments);
    Outputs outputs = forward(given);
    stack[0] = outputs.out.release(), stack[1] = outputs.lse.release();
  }));
}
void attention_backward_kernel(Value* stack, std::uint64_t arguments, std::uint64_t) {
  raise(error_of([&] {
    Stack given(stack, arguments);
    Gradients g = backward(given);
    stack[0] = g.dq.release(), stack[1] = g.dk.release(), stack[2] = g.dv.release(), stack[3] = g.dbias.release();
  }));
}

// False where PyTorch has no stable ABI. The registrations last as long as the process.
bool register_torch_operators() {
  if (torch_abi::functions() == nullptr) return false;
  for (const char* key : {"CPU", "CUDA"}) {
    torch_abi::LibraryHandle library = nullptr;
    check(torch().library_init_impl("attend", key, __FILE__, __LINE__, &library), "register operators");
    check(torch().library_impl(library, "attention", attention_kernel, torch_abi::kBuiltFor), "register attention");
    check(torch().library_impl(library, "attention_backward", attention_backward_kernel, torch_abi::kBuiltFor),
          "register attention_backward");
  }
  return true;
}

void raise_operator_error(const std::string& message) {
  const Failure failure = std::exchange(last_failure, {});
  if (failure.error && message.find(failure.message) != std::string::npos) std::rethrow_exception(failure.error);
}

}  // namespace

void bind_torch_operators(nb::module_& m) {
  m.def("register_torch_operators", &register_torch_operators,
        "Registers the kernels of PyTorch's operators; False where PyTorch is older than 2.10.");
  m.def("raise_operator_error", &raise_operator_error, "message"_a,
        "Raises the error of this thread's last operator in its own class, if PyTorch's RuntimeError of this message "
        "is it.");
}

}  // namespace attend::python
