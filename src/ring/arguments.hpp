// What forward, backward and the layer ask of their arguments alike.
#pragma once

#include <functional>

#include "attend/ring.hpp"
#include "ops/attention_call.hpp"
#include "ring/link.hpp"

namespace attend::ring {

// Throws InvalidArgument; fills `facts` with what all ranks must have alike. `check_rest` is given the call as
// attention over the rank's own keys.
void check_arguments(const char* op, const Link& link, const View& q, const View& k, const View& v,
                     const RingOptions& options, Facts& facts,
                     const std::function<void(const AttentionCall&)>& check_rest);

// Tells all ranks that this one's arguments could not even be read, with the text of the exception being handled;
// throws on all of them. `op` is the call in which the others are.
[[noreturn]] void refuse_everywhere(RingCommunicator comm, const char* op, const RingOptions& options);

}  // namespace attend::ring
