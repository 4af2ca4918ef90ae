// Memory with an unreadable page before and after it, and very large sparse memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attend/tensor.hpp"

namespace attend::test {

// A mapping that ends with the object. Pages that are never touched cost nothing.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  void forbid();  // from now on any touch ends the process

 private:
  std::byte* data_;
  std::size_t bytes_;
};

enum class Against { front, back };

// A contiguous tensor whose first (or last) byte touches a page that can't be read or written.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, const Shape& shape, Against side);

  MutableView view() { return view_; }

 private:
  static std::size_t pages(DType dtype, const Shape& shape);

  Mapping mapping_;
  MutableView view_;
};

}  // namespace attend::test
