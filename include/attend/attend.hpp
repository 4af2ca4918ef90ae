// Everything.
#pragma once

#include "attend/additive_attention.hpp"
#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/inner_attention.hpp"
#include "attend/linear.hpp"
#include "attend/mask.hpp"
#include "attend/multi_head_attention.hpp"
#include "attend/paged_kv_cache.hpp"
#include "attend/rms_norm.hpp"
#include "attend/rope.hpp"
#include "attend/runtime.hpp"
#include "attend/softmax.hpp"
#include "attend/tensor.hpp"
#include "attend/transformer_block.hpp"
#include "attend/weight.hpp"
