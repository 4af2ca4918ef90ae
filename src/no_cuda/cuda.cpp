// attend::cuda where the library is built without CUDA: it says so.
#include "attend/cuda.hpp"

#include "attend/error.hpp"

namespace attend::cuda {

bool available() {
  return false;
}

std::string why_not() {
  return "this library was built without CUDA: nvcc was not there, or ATTEND_CUDA was OFF";
}

void attention(View, View, View, MutableView, const AttentionOptions&, const AttentionExtras&, Stream, Allocator*) {
  throw InvalidArgument("cuda::attention: " + why_not());
}

void attention_backward(View, View, View, View, View, View, const AttentionGradients&, const AttentionOptions&, Order,
                        Stream, Allocator*) {
  throw InvalidArgument("cuda::attention_backward: " + why_not());
}

void map(View, View, View, LensHead, const MapView&, const AttentionOptions&, Stream) {
  throw InvalidArgument("cuda::map: " + why_not());
}

std::int64_t working_bytes(View, const CacheView&) {
  throw InvalidArgument("cuda::working_bytes: " + why_not());
}

void attention(View, const CacheView&, MutableView, const AttentionOptions&, const AttentionExtras&, Stream,
               WorkingMemory) {
  throw InvalidArgument("cuda::attention: " + why_not());
}

void append(View, View, const CacheView&, bool, Stream) {
  throw InvalidArgument("cuda::append: " + why_not());
}

}  // namespace attend::cuda
