// Whether this process trains alone, or is one of those that mpirun started.
#pragma once

#include <memory>

#include "llm/train/ranks.hpp"

namespace attend::llm {

// MPI is started only where mpirun (Open MPI's) has started more than one process, and ends with the object. A program
// that was built without MPI throws InvalidArgument there: its processes would know nothing of each other.
std::unique_ptr<Ranks> start_ranks();

}  // namespace attend::llm
