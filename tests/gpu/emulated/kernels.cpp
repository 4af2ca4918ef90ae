// The kernels by their names, compiled for the CPU.
#include "kernels.hpp"

#include "../../../src/cuda/attention_cached.cu"
#include "../../../src/cuda/attention_combine.cu"
#include "../../../src/cuda/attention_decode.cu"
#include "../../../src/cuda/attention_plain_128.cu"
#include "../../../src/cuda/attention_plain_256.cu"
#include "../../../src/cuda/attention_plain_64.cu"
#include "../../../src/cuda/backward_plain_128.cu"
#include "../../../src/cuda/backward_plain_256.cu"
#include "../../../src/cuda/backward_plain_64.cu"
#include "../../../src/cuda/cache_append.cu"
#include "../../../src/cuda/lens_cells.cu"
#include "../../../src/cuda/lens_map_128.cu"
#include "../../../src/cuda/lens_map_256.cu"
#include "../../../src/cuda/lens_map_64.cu"
#undef __shared__
#define __shared__ static  // all threads of a block have the same
#include "../../../src/cuda/backward_rows.cu"
#include "../../../src/cuda/mask_bits.cu"

#define ATTEND_KERNEL(NAME, ARGS) {#NAME, [](const void* args) { NAME(*static_cast<const attend::cuda::ARGS*>(args)); }}
#define ATTEND_DIMS(BEGIN, END, ARGS) \
  ATTEND_KERNEL(BEGIN##64##END, ARGS), ATTEND_KERNEL(BEGIN##128##END, ARGS), ATTEND_KERNEL(BEGIN##256##END, ARGS)
#define ATTEND_TYPES(BEGIN, ARGS) ATTEND_DIMS(BEGIN, _bf16, ARGS), ATTEND_DIMS(BEGIN, _f16, ARGS)

namespace emulated {

const std::map<std::string, void (*)(const void*)>& kernels() {
  static const std::map<std::string, void (*)(const void*)> all = {ATTEND_TYPES(plain_forward_, ForwardArgs),
                                                                   ATTEND_TYPES(plain_forward_terms_, ForwardArgs),
                                                                   ATTEND_TYPES(plain_keys_, BackwardArgs),
                                                                   ATTEND_TYPES(plain_keys_terms_, BackwardArgs),
                                                                   ATTEND_TYPES(plain_queries_, BackwardArgs),
                                                                   ATTEND_TYPES(plain_queries_terms_, BackwardArgs),
                                                                   ATTEND_TYPES(lens_map_, LensArgs),
                                                                   ATTEND_TYPES(lens_map_terms_, LensArgs),
                                                                   ATTEND_KERNEL(lens_queries, LensArgs),
                                                                   ATTEND_KERNEL(lens_cells, LensArgs),
                                                                   ATTEND_KERNEL(lens_tops_bf16, LensArgs),
                                                                   ATTEND_KERNEL(lens_tops_f16, LensArgs),
                                                                   ATTEND_KERNEL(backward_tops_bf16, BackwardArgs),
                                                                   ATTEND_KERNEL(backward_tops_f16, BackwardArgs),
                                                                   ATTEND_TYPES(decode_, DecodeArgs),
                                                                   ATTEND_TYPES(cached_, CacheArgs),
                                                                   ATTEND_DIMS(cached_, _int8, CacheArgs),
                                                                   ATTEND_DIMS(cached_, _fp8, CacheArgs),
                                                                   ATTEND_DIMS(attention_combine_, , KeyParts),
                                                                   ATTEND_DIMS(cache_combine_, , CacheParts),
                                                                   ATTEND_KERNEL(cache_append, AppendArgs),
                                                                   ATTEND_KERNEL(backward_begin_4, BackwardArgs),
                                                                   ATTEND_KERNEL(backward_begin_8, BackwardArgs),
                                                                   ATTEND_KERNEL(backward_begin_16, BackwardArgs),
                                                                   ATTEND_KERNEL(backward_sinks, BackwardArgs),
                                                                   ATTEND_KERNEL(backward_clear, BackwardArgs),
                                                                   ATTEND_KERNEL(mask_words, MaskBitsArgs),
                                                                   ATTEND_KERNEL(mask_links, MaskBitsArgs)};
  return all;
}

}  // namespace emulated
