// The C ABI of the ring: what cannot be read on one rank is refused on all.
#include <memory>
#include <optional>
#include <utility>

#include "abi/abi.hpp"
#include "abi/layer.hpp"
#include "attend/attend_ring.h"
#include "attend/ring.hpp"
#include "ops/rows.hpp"
#include "ring/arguments.hpp"

using namespace attend::abi;

namespace {

using attend::RingOptions;
using attend::RingTimes;

attend_ring_options default_options() {
  const RingOptions defaults;
  attend_ring_options result{};
  result.timeout_seconds = defaults.timeout_seconds;
  result.slice_work = defaults.slice_work;
  return result;
}

attend_ring_times read_times(const char* op, const attend_ring_times& times) {
  return read_struct(op, "attend_ring_times", times, {});
}

RingOptions options_of(const char* op, const attend_ring_options* options, std::int32_t dtype, bool backward) {
  RingOptions result;
  if (options == nullptr) return result;
  const attend_ring_options given = read_struct(op, "attend_ring_options", *options, default_options());
  if (given.times != nullptr) read_times(op, *given.times);  // refused now, not after the work
  result.sharding = static_cast<attend::RingSharding>(given.sharding);
  result.progress = static_cast<attend::RingProgress>(given.progress);
  result.timeout_seconds = given.timeout_seconds;
  result.slice_work = given.slice_work;
  result.attention = attend::abi::options_of(op, given.attention, dtype, backward);
  return result;
}

// What read() makes of the arguments; where it throws, all ranks are told and throw.
template <class F>
auto read_or_refuse(int comm, const char* op, const F& read) {
  try {
    return read();
  } catch (...) {
    attend::ring::refuse_everywhere({comm}, op, {});
  }
}

// Calls f with the options, and adds the times it took to those of the caller.
template <class F>
void timed(const attend_ring_options* options, RingOptions given, const F& f) {
  RingTimes times;
  given.times = &times;
  f(given);
  if (options == nullptr) return;
  attend_ring_times* place = read_struct("", "attend_ring_options", *options, default_options()).times;
  if (place == nullptr) return;
  attend_ring_times sum = read_times("", *place);
  sum.compute += times.compute;
  sum.progress += times.progress;
  sum.wait += times.wait;
  sum.bytes_sent += times.bytes_sent;
  attend::abi::write_struct(place, sum.struct_size, sum);
}

}  // namespace

void attend_ring_options_init_sized(attend_ring_options* options, size_t size) {
  attend::abi::write_struct(options, size, default_options());
}

void attend_ring_times_init_sized(attend_ring_times* times, size_t size) {
  attend::abi::write_struct(times, size, {});
}

attend_status attend_ring_positions(int32_t sharding, int64_t rank, int64_t ranks, int64_t length, int64_t* positions) {
  return guard([&] {
    const auto found = attend::ring_positions(static_cast<attend::RingSharding>(sharding), rank, ranks, length);
    if (found.empty()) return;
    std::copy(found.begin(), found.end(), &require("attend_ring_positions", "positions", positions));
  });
}

attend_status attend_ring_attention(int comm, const attend_tensor* q, const attend_tensor* k, const attend_tensor* v,
                                    const attend_tensor* out, const attend_tensor* lse,
                                    const attend_ring_options* options) {
  struct Arguments {
    attend::View q, k, v;
    attend::MutableView out;
    std::optional<attend::MutableView> lse;
    RingOptions options;
  };
  return guard([&] {
    const char* op = "attend_ring_attention";
    Arguments a = read_or_refuse(comm, "ring_attention", [&] {
      const attend::View q_view = view(op, "q", q);
      return Arguments{q_view,
                       view(op, "k", k),
                       view(op, "v", v),
                       mutable_view(op, "out", out),
                       optional_mutable_view(op, "lse", lse),
                       options_of(op, options, q->dtype, false)};
    });
    timed(options, a.options,
          [&](const RingOptions& given) { attend::ring_attention({comm}, a.q, a.k, a.v, a.out, given, a.lse); });
  });
}

attend_status attend_ring_attention_backward(int comm, const attend_tensor* dout, const attend_tensor* q,
                                             const attend_tensor* k, const attend_tensor* v, const attend_tensor* out,
                                             const attend_tensor* lse, const attend_tensor* dq, const attend_tensor* dk,
                                             const attend_tensor* dv, const attend_ring_options* options) {
  struct Arguments {
    attend::View dout, q, k, v, out, lse;
    attend::RingGradients gradients;
    RingOptions options;
  };
  return guard([&] {
    const char* op = "attend_ring_attention_backward";
    Arguments a = read_or_refuse(comm, "ring_attention_backward", [&] {
      const attend::View q_view = view(op, "q", q);
      return Arguments{view(op, "dout", dout),
                       q_view,
                       view(op, "k", k),
                       view(op, "v", v),
                       view(op, "out", out),
                       view(op, "lse", lse),
                       {mutable_view(op, "dq", dq), mutable_view(op, "dk", dk), mutable_view(op, "dv", dv)},
                       options_of(op, options, q->dtype, true)};
    });
    timed(options, a.options, [&](const RingOptions& given) {
      attend::ring_attention_backward({comm}, a.dout, a.q, a.k, a.v, a.out, a.lse, a.gradients, given);
    });
  });
}

attend_status attend_ring_layer_forward(int comm, const attend_layer* layer, const attend_tensor* x,
                                        const attend_ring_options* options, const attend_tensor* out,
                                        attend_layer_saved** saved) {
  struct Arguments {
    const attend::MultiHeadAttention* layer;
    attend::View x;
    attend::MutableView out;
    RingOptions options;
  };
  return guard([&] {
    const char* op = "attend_ring_layer_forward";
    if (saved != nullptr) *saved = nullptr;
    Arguments a = read_or_refuse(comm, "ring_multi_head_attention", [&] {
      const attend::MultiHeadAttention& mha = require(op, "layer", layer).layer;
      const attend::MultiHeadAttentionConfig& config = mha.config();
      const attend::View x_view = view(op, "x", x);
      const attend::MutableView result = mutable_view(op, "out", out);
      attend::check_writable(op, "out", result);
      attend::check_dtype(op, "out", result.dtype, config.dtype);
      attend::check_shape(op, "out", result.shape, {x_view.batch(), 1, x_view.length(), config.output_width});
      return Arguments{&mha, x_view, result,
                       options_of(op, options, static_cast<std::int32_t>(config.dtype), saved != nullptr)};
    });
    auto kept = saved == nullptr ? nullptr : std::make_unique<attend_layer_saved>();
    timed(options, a.options, [&](const RingOptions& given) {
      const attend::Tensor y =
          attend::ring_multi_head_attention({comm}, *a.layer, a.x, given, kept ? &kept->saved : nullptr);
      attend::copy_rows(y, a.out);
    });
    if (saved != nullptr) *saved = kept.release();
  });
}

attend_status attend_ring_layer_backward(int comm, const attend_layer* layer, const attend_tensor* dout,
                                         const attend_layer_saved* saved, const attend_ring_options* options,
                                         attend_layer_gradients** gradients) {
  struct Arguments {
    const attend::MultiHeadAttention* layer;
    attend::View dout;
    const attend::MultiHeadAttentionSaved* saved;
    RingOptions options;
  };
  return guard([&] {
    const char* op = "attend_ring_layer_backward";
    Arguments a = read_or_refuse(comm, "ring_multi_head_attention_backward", [&] {
      require(op, "the place for the result", gradients) = nullptr;
      const attend::MultiHeadAttention& mha = require(op, "layer", layer).layer;
      return Arguments{&mha, view(op, "dout", dout), &require(op, "saved", saved).saved,
                       options_of(op, options, static_cast<std::int32_t>(mha.config().dtype), true)};
    });
    auto made = std::make_unique<attend_layer_gradients>();
    timed(options, a.options, [&](const RingOptions& given) {
      made->gradients = attend::ring_multi_head_attention_backward({comm}, *a.layer, a.dout, *a.saved, given);
    });
    *gradients = made.release();
  });
}

attend_status attend_ring_transfer_seconds(int comm, const attend_tensor* k, const attend_tensor* v, int32_t backward,
                                           double* seconds) {
  return guard([&] {
    const char* op = "attend_ring_transfer_seconds";
    const auto [k_view, v_view] = read_or_refuse(comm, "ring_transfer_seconds", [&] {
      require(op, "the place for the seconds", seconds) = 0;
      return std::pair(view(op, "k", k), view(op, "v", v));
    });
    *seconds = attend::ring_transfer_seconds({comm}, k_view, v_view, backward != 0);
  });
}
