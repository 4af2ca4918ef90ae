// Guard pages through mmap and mprotect.
#include "support/guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>

namespace attend::test {
namespace {

std::size_t page_size() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t tensor_bytes(DType dtype, const Shape& shape) {
  return static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3] * size_of(dtype));
}

}  // namespace

Mapping::Mapping(std::size_t bytes) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(memory);
}

Mapping::~Mapping() {
  munmap(data_, bytes_);
}

void Mapping::forbid() {
  if (mprotect(data_, bytes_, PROT_NONE) != 0) throw std::runtime_error("mprotect failed");
}

std::size_t GuardedTensor::pages(DType dtype, const Shape& shape) {
  return std::max<std::size_t>(1, (tensor_bytes(dtype, shape) + page_size() - 1) / page_size());
}

GuardedTensor::GuardedTensor(DType dtype, const Shape& shape, Against side)
    : mapping_((pages(dtype, shape) + 2) * page_size()) {
  const std::size_t page = page_size();
  const std::size_t inner = pages(dtype, shape) * page;
  if (mprotect(mapping_.data(), page, PROT_NONE) != 0 ||
      mprotect(mapping_.data() + page + inner, page, PROT_NONE) != 0) {
    throw std::runtime_error("mprotect failed");
  }
  std::byte* first = mapping_.data() + page;
  if (side == Against::back) first += inner - tensor_bytes(dtype, shape);
  view_ = {dtype, first, shape, contiguous_strides(shape)};
}

}  // namespace attend::test
