// What forward, backward and the layer ask of their arguments alike.
#pragma once

#include "attend/ring.hpp"
#include "ring/link.hpp"

namespace attend::ring {

// Throws InvalidArgument; fills `facts` with what all ranks must have alike.
void check_arguments(const char* op, const Link& link, const View& q, const View& k, const View& v,
                     const RingOptions& options, Facts& facts);

}  // namespace attend::ring
