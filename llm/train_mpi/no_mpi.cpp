// A program without MPI trains in one process.
#include <cstdlib>
#include <string>

#include "attend/error.hpp"
#include "llm/train_mpi/start_ranks.hpp"

namespace attend::llm {

std::unique_ptr<Ranks> start_ranks() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size != nullptr && std::strtol(size, nullptr, 10) > 1)
    throw InvalidArgument("training: mpirun started " + std::string(size) +
                          " processes, and this program was built without MPI; start one, or build it with "
                          "ATTEND_MPI=ON (on Debian: libopenmpi-dev, openmpi-bin)");
  return one_process();
}

}  // namespace attend::llm
