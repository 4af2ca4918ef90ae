// The ring's tests, run by mpirun: all ranks run all tests, rank 0 reports, the others speak of failures alone.
#include <gtest/gtest.h>
#include <mpi.h>

#include <iostream>

namespace {

class FailuresAlone : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* file = result.file_name() == nullptr ? "" : result.file_name();
    std::cerr << "rank " << rank << ": " << file << ":" << result.line_number() << ": " << result.message()
              << std::endl;
  }
};

}  // namespace

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresAlone);
  }
  int code = RUN_ALL_TESTS(), worst = 0;
  MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
}
