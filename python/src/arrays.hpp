// Arrays of any library as views of their memory, and new arrays of the same kind.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

#include "bindings.hpp"

namespace attend::python {

enum class Library { numpy, torch, jax };

using Dims = std::vector<std::int64_t>;
using Order = std::array<std::size_t, 4>;  // where batch, heads, length and dim stand in an array

inline constexpr Order kInOrder{0, 1, 2, 3};

nb::object tuple_of(const Dims& dims);

// One argument: its library, its memory, and what has to stay alive while the engine reads it.
struct Array {
  Library library;
  nb::object keep;
  DType dtype;
  void* address;
  Dims shape;
  Dims strides;  // in elements
  bool writable;
  int gpu = -1;  // the CUDA device it lies on; -1: the CPU's memory

  std::size_t rank() const { return shape.size(); }
  ArrayView view(const Order& order = kInOrder) const;  // of an array of four dimensions
  // Of one with fewer: its dimensions stand at `places` of the four, ones elsewhere; what their stride is matters to
  // nobody.
  ArrayView view_at(std::span<const std::size_t> places) const;
  ArrayView view_at(std::initializer_list<std::size_t> places) const { return view_at(std::span(places)); }
};

// A new array, whose elements lie one after another.
struct NewArray {
  nb::object object;
  DType dtype;
  void* address;

  ArrayView view(const Shape& shape) const;
};

// Who asks for an array: a function, which refuses tensors that want a gradient it would not record, or one of
// PyTorch's operators, whose gradients are recorded around it.
enum class Asker { function, torch_operator };
// Which memory who asks can work on.
enum class Memory { cpu, cpu_or_gpu };

// The memory of `x`, without a copy wherever its library allows; TypeError or ValueError where it does not. The one way
// from Python's arrays to the engine's views.
Array describe(nb::handle x, const char* name, Asker asker = Asker::function, Memory memory = Memory::cpu);

// JAX arrays are made from NumPy memory at the end, by `finish`.
NewArray empty(Library library, DType dtype, const Dims& shape);
// Beside an array: in the memory that it lies in.
NewArray empty_beside(const Array& array, DType dtype, const Dims& shape);
// PyTorch's current stream of a device, which has to be its current device.
void* current_stream(int gpu);
nb::object finish(Library library, nb::object x);  // what the caller gets: the library's own array

}  // namespace attend::python
