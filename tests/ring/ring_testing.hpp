// What the tests of the ring share: this process among the others, and results gathered from all of them.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/ring.hpp"
#include "base/elements.hpp"

namespace attend::test {

inline int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
inline int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
inline RingCommunicator world() {
  return {MPI_Comm_c2f(MPI_COMM_WORLD)};
}

// The whole [B, H, L, D] from the parts of all ranks, on all ranks, as double.
inline Tensor gathered(const View& part, RingSharding sharding) {
  const auto& [B, H, M, D] = part.shape;
  const int P = world_size();
  Tensor local(DType::f64, part.shape), whole(DType::f64, {B, H, M * P, D});
  std::int64_t n = 0;
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      for (std::int64_t i = 0; i < M; ++i) {
        for (std::int64_t d = 0; d < D; ++d) local.data<double>()[n++] = load(part, b, h, i, d);
      }
    }
  }
  std::vector<double> all(static_cast<std::size_t>(n * P));
  MPI_Allgather(local.data<double>(), static_cast<int>(n), MPI_DOUBLE, all.data(), static_cast<int>(n), MPI_DOUBLE,
                MPI_COMM_WORLD);
  for (int rank = 0; rank < P; ++rank) {
    ring_place(view_of(all.data() + rank * n, part.shape), whole, sharding, rank, P);
  }
  return whole;
}

inline std::vector<double> values(const Tensor& x) {
  return {x.data<double>(), x.data<double>() + x.size()};
}

// Whether all ranks say yes.
inline bool everywhere(bool yes) {
  int own = yes ? 1 : 0, all = 0;
  MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all == 1;
}

// What every rank's call said, "" where it did not throw InvalidArgument: the same on all, or a failure.
template <class F>
std::string refusal_of(const F& f) {
  char own[1024] = {};
  try {
    f();
  } catch (const InvalidArgument& error) {
    std::string(error.what()).copy(own, sizeof own - 1);
  }
  std::vector<char> all(sizeof own * static_cast<std::size_t>(world_size()));
  MPI_Allgather(own, sizeof own, MPI_CHAR, all.data(), sizeof own, MPI_CHAR, MPI_COMM_WORLD);
  for (std::size_t r = 0; r < all.size(); r += sizeof own)
    EXPECT_STREQ(all.data() + r, own) << "rank " << r / sizeof own;
  return own;
}

inline const char* name(RingSharding sharding) {
  return sharding == RingSharding::zigzag ? "zigzag" : "contiguous";
}

}  // namespace attend::test
