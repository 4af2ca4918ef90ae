// Ring attention over MPI: equal scores, so that each row is the mean of all values, wherever they lie.
#include <mpi.h>

#include <cmath>
#include <cstdio>

#include "attend/attend.hpp"
#include "attend/ring.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const attend::Tensor q(attend::DType::f32, {1, 1, 1, 1});
  attend::Tensor v(attend::DType::f32, {1, 1, 1, 1}), out(attend::DType::f32, {1, 1, 1, 1});
  v.data<float>()[0] = static_cast<float>(rank);
  attend::ring_attention({MPI_Comm_c2f(MPI_COMM_WORLD)}, q, q, v, out);
  const float mean = static_cast<float>(ranks - 1) / 2.0F;
  const bool right = std::abs(out.data<float>()[0] - mean) < 1e-6F;
  std::printf("rank %d of %d: %g\n", rank, ranks, static_cast<double>(out.data<float>()[0]));
  MPI_Finalize();
  return right ? 0 : 1;
}
