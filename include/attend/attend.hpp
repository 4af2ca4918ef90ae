// Everything.
#pragma once

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/inner_attention.hpp"
#include "attend/latent_attention.hpp"
#include "attend/linear.hpp"
#include "attend/mask.hpp"
#include "attend/multi_head_attention.hpp"
#include "attend/paged_kv_cache.hpp"
#include "attend/positions.hpp"
#include "attend/rms_norm.hpp"
#include "attend/rope.hpp"
#include "attend/runtime.hpp"
#include "attend/softmax.hpp"
#include "attend/tensor.hpp"
#include "attend/weight.hpp"
