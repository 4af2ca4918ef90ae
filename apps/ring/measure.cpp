// Runs, times and checks the ring.
#include "measure.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "attend/error.hpp"
#include "attend/runtime.hpp"

namespace attend::ring_app {
namespace {

using Clock = std::chrono::steady_clock;

struct World {
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  }
  int rank = 0, ranks = 1;
  RingCommunicator comm{MPI_Comm_c2f(MPI_COMM_WORLD)};
};

DType dtype_of(const std::string& text) {
  return text == "f16" ? DType::f16 : text == "bf16" ? DType::bf16 : DType::f32;
}

RingProgress progress_of(const std::string& text) {
  if (text == "thread") return RingProgress::thread;
  if (text == "slices") return RingProgress::slices;
  return text == "none" ? RingProgress::none : RingProgress::automatic;
}

void put(Tensor& x, std::int64_t n, float value) {
  if (x.dtype() == DType::f32) x.data<float>()[n] = value;
  if (x.dtype() == DType::f16) x.data<Float16>()[n] = to_float16(value);
  if (x.dtype() == DType::bf16) x.data<BFloat16>()[n] = to_bfloat16(value);
}
double get(const Tensor& x, std::int64_t n) {
  if (x.dtype() == DType::f16) return static_cast<double>(to_float(x.data<Float16>()[n]));
  if (x.dtype() == DType::bf16) return static_cast<double>(to_float(x.data<BFloat16>()[n]));
  return static_cast<double>(x.data<float>()[n]);
}

// Uniform in [-1, 1): a function of the tensor and the place alone, so that a rank makes its part by itself.
float value_at(std::uint64_t tensor, std::uint64_t place) {
  std::uint64_t z = (tensor << 56) + (place + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-23F - 1.0F;
}

// [B, H, tokens, D] of a sequence of `length` tokens, those at `positions`.
Tensor values(DType dtype, std::uint64_t tensor, std::int64_t B, std::int64_t H, std::int64_t D, std::int64_t length,
              const std::vector<std::int64_t>& positions) {
  Tensor x(dtype, {B, H, std::ssize(positions), D});
  std::int64_t n = 0;
  for (std::int64_t bh = 0; bh < B * H; ++bh) {
    for (const std::int64_t position : positions) {
      for (std::int64_t d = 0; d < D; ++d) {
        put(x, n++, value_at(tensor, static_cast<std::uint64_t>((bh * length + position) * D + d)));
      }
    }
  }
  return x;
}

std::vector<std::int64_t> everything(std::int64_t length) {
  return ring_positions(RingSharding::contiguous, 0, 1, length);
}

// The whole from the parts of all ranks, on rank 0; empty on the others.
Tensor gather(const World& world, const Tensor& part, RingSharding sharding) {
  Shape shape = part.shape();
  const auto bytes = static_cast<int>(part.bytes());
  shape[2] *= world.ranks;
  std::vector<char> all(world.rank == 0 ? static_cast<std::size_t>(part.bytes() * world.ranks) : 0);
  MPI_Gather(part.view().data, bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
  if (world.rank != 0) return {};
  Tensor whole(part.dtype(), shape);
  for (int rank = 0; rank < world.ranks; ++rank) {
    const View view{part.dtype(), all.data() + rank * part.bytes(), part.shape(), contiguous_strides(part.shape())};
    ring_place(view, whole, sharding, rank, world.ranks);
  }
  return whole;
}

// The largest difference against the largest value, held against some roundings of the dtype.
bool compare(const char* what, const Tensor& got, const Tensor& expected, std::int64_t length) {
  double difference = 0, largest = 0;
  for (std::int64_t n = 0; n < expected.size(); ++n) {
    const double a = get(got, n), b = get(expected, n);
    difference = std::isnan(a - b) ? HUGE_VAL : std::max(difference, std::abs(a - b));
    largest = std::max(largest, std::abs(b));
  }
  // In f32 both sides carry the roundings of sums over the length.
  const DType dtype = expected.dtype();
  const double f32 = (64 + 4 * std::sqrt(static_cast<double>(length))) * 0x1p-24;
  const double allowed = largest * (dtype == DType::f32 ? f32 : 8 * (dtype == DType::f16 ? 0x1p-11 : 0x1p-8));
  const bool fine = difference <= allowed;
  fmt::print("  {:<8} largest difference {:.2e}, largest value {:.3g}: {}\n", what, difference, largest,
             fine ? "agrees" : "DIFFERS");
  return fine;
}

// ---- What is run ----

// One pass, forward and backward, ready to be run again.
class Run {
 public:
  Run(const World& world, const Settings& s, RingOptions options)
      : world_(world), s_(s), options_(std::move(options)), dtype_(dtype_of(s.dtype)) {
    const auto positions = ring_positions(options_.sharding, world.rank, world.ranks, s.length);
    if (s.layer) {
      layer_.emplace(MultiHeadAttentionConfig{.dtype = dtype_,
                                              .width = s.heads * s.dim,
                                              .heads = s.heads,
                                              .kv_heads = s.kv_heads,
                                              .qkv_bias = true,
                                              .output_bias = true,
                                              .qk_norm = true,
                                              .rope = RopeStyle::half_split});
      layer_->initialise(1);
    }
    inputs_ = make_inputs(positions);
    const Shape q = inputs_.q.shape();
    out_ = Tensor(dtype_, q);
    lse_ = Tensor(DType::f32, {q[0], q[1], q[2], 1});
    dq_ = Tensor(dtype_, q), dk_ = Tensor(dtype_, inputs_.k.shape()), dv_ = Tensor(dtype_, inputs_.v.shape());
  }

  void forward(RingTimes* times) {
    options_.times = times;
    if (layer_) {
      out_ = ring_multi_head_attention(world_.comm, *layer_, inputs_.q, options_, &saved_);
    } else {
      ring_attention(world_.comm, inputs_.q, inputs_.k, inputs_.v, out_, options_, lse_);
    }
  }
  void backward(RingTimes* times) {
    options_.times = times;
    if (layer_) {
      gradients_ = ring_multi_head_attention_backward(world_.comm, *layer_, inputs_.dout, saved_, options_);
    } else {
      ring_attention_backward(world_.comm, inputs_.dout, inputs_.q, inputs_.k, inputs_.v, out_, lse_, {dq_, dk_, dv_},
                              options_);
    }
  }
  double transfers(bool backward) const {  // the median of some
    const std::int64_t kv_heads = s_.kv_heads == 0 ? s_.heads : s_.kv_heads;
    const Tensor k(dtype_, {s_.batch, kv_heads, s_.length / world_.ranks, s_.dim});
    std::vector<double> seconds(5);
    for (double& one : seconds) one = ring_transfer_seconds(world_.comm, k, k, backward, options_);
    std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
    return seconds[2];
  }
  bool check() { return layer_ ? check_layer() : check_attention(); }

 private:
  struct Inputs {
    Tensor q, k, v, dout;  // of the layer: q is x
  };
  Inputs make_inputs(const std::vector<std::int64_t>& positions) const {
    const auto make = [&](std::uint64_t tensor, std::int64_t heads, std::int64_t dim) {
      return values(dtype_, tensor, s_.batch, heads, dim, s_.length, positions);
    };
    const std::int64_t kv_heads = s_.kv_heads == 0 ? s_.heads : s_.kv_heads, width = s_.heads * s_.dim;
    if (s_.layer) return {make(1, 1, width), Tensor(), Tensor(), make(4, 1, width)};
    return {make(1, s_.heads, s_.dim), make(2, kv_heads, s_.dim), make(3, kv_heads, s_.dim), make(4, s_.heads, s_.dim)};
  }
  bool agree(const char* what, const Tensor& part, const Tensor& expected) const {
    const Tensor whole = gather(world_, part, options_.sharding);
    return world_.rank != 0 || compare(what, whole, expected, s_.length);
  }

  bool check_attention() {
    AttentionResult one;
    AttentionGradientTensors g;
    if (world_.rank == 0) {
      const Inputs all = make_inputs(everything(s_.length));
      one = attention(all.q, all.k, all.v, options_.attention, {.lse = true});
      if (!s_.forward_only) {
        g = attention_backward(all.dout, all.q, all.k, all.v, one.out, one.lse, options_.attention);
      }
    }
    bool fine = agree("out", out_, one.out);
    if (s_.forward_only) return fine;
    fine = agree("dq", dq_, g.dq) && fine;
    fine = agree("dk", dk_, g.dk) && fine;
    return agree("dv", dv_, g.dv) && fine;
  }

  bool check_layer() {
    Tensor y;
    MultiHeadAttentionGradients g;
    if (world_.rank == 0) {
      const Inputs all = make_inputs(everything(s_.length));
      MultiHeadAttentionSaved saved;
      y = layer_->forward(all.q, options_.attention, {.saved = &saved, .weights = nullptr});
      if (!s_.forward_only) g = layer_->backward(all.dout, saved);
    }
    bool fine = agree("y", out_, y);
    if (s_.forward_only) return fine;
    fine = agree("dx", gradients_.dx, g.dx) && fine;
    if (world_.rank != 0) return fine;
    using P = MultiHeadAttentionParameters;
    const std::pair<const char*, Tensor P::*> parameters[] = {
        {"dwq", &P::wq}, {"dwk", &P::wk}, {"dwv", &P::wv},         {"dwo", &P::wo},        {"dbq", &P::bq},
        {"dbv", &P::bv}, {"dbo", &P::bo}, {"dq_norm", &P::q_norm}, {"dk_norm", &P::k_norm}};
    for (const auto& [name, member] : parameters) {
      fine = compare(name, gradients_.parameters.*member, g.parameters.*member, s_.length) && fine;
    }
    return fine;
  }

  const World& world_;
  const Settings& s_;
  RingOptions options_;
  DType dtype_;
  std::optional<MultiHeadAttention> layer_;
  Inputs inputs_;
  Tensor out_, lse_, dq_, dk_, dv_;
  MultiHeadAttentionSaved saved_;
  MultiHeadAttentionGradients gradients_;
};

// ---- Times ----

struct Timing {
  double total = 0;
  RingTimes times;
  double transfers = 0;  // on their own
};

template <class F>
Timing median_run(const World& world, int repeat, const F& run) {
  std::vector<Timing> runs(static_cast<std::size_t>(repeat));
  for (Timing& one : runs) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = Clock::now();
    run(&one.times);
    one.total = std::chrono::duration<double>(Clock::now() - start).count();
    MPI_Allreduce(MPI_IN_PLACE, &one.total, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);  // all ranks sort alike
  }
  (void)world;
  std::nth_element(runs.begin(), runs.begin() + repeat / 2, runs.end(),
                   [](const Timing& a, const Timing& b) { return a.total < b.total; });
  return runs[static_cast<std::size_t>(repeat / 2)];
}

void print_times(const World& world, const char* what, const Timing& timing) {
  constexpr int kNumbers = 5;
  const double own[kNumbers] = {timing.times.compute, timing.times.progress, timing.times.wait, timing.transfers,
                                static_cast<double>(timing.times.bytes_sent)};
  std::vector<double> all(static_cast<std::size_t>(kNumbers * world.ranks));
  MPI_Gather(own, kNumbers, MPI_DOUBLE, all.data(), kNumbers, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  if (world.rank != 0) return;
  fmt::print("{:<9} {:>10.1f} ms\n", what, timing.total * 1e3);
  fmt::print("  rank   compute ms  moving ms  waiting ms  transfers alone ms  hidden   sent MiB\n");
  std::vector<double> sum(kNumbers);
  for (int rank = 0; rank <= world.ranks; ++rank) {
    const double* x = rank == world.ranks ? sum.data() : all.data() + rank * kNumbers;
    const double hidden = x[3] > 0 ? std::clamp(1.0 - (x[1] + x[2]) / x[3], 0.0, 1.0) : 1.0;
    fmt::print("  {:<4}   {:>10.1f} {:>10.2f} {:>11.2f} {:>19.2f}   {:>4.0f} % {:>10.1f}\n",
               rank == world.ranks ? "all" : std::to_string(rank), x[0] * 1e3, x[1] * 1e3, x[2] * 1e3, x[3] * 1e3,
               hidden * 100, x[4] / 0x1p20);
    if (rank == world.ranks) continue;
    for (int n = 0; n < kNumbers; ++n) sum[static_cast<std::size_t>(n)] += x[n];
  }
}

// The faults of --kill-rank and its kin, in the second step.
void add_fault(const World& world, const Settings& s, RingOptions& options) {
  const std::array<int, 3> asked = {s.kill_rank, s.throw_rank, s.stop_rank};
  for (const int rank : asked) {
    if (rank >= world.ranks)
      throw InvalidArgument(fmt::format("rank {} is to fail, but there are {}", rank, world.ranks));
  }
  const std::int64_t when = std::min(1, world.ranks - 1);
  options.on_step = [=](std::int64_t step) {
    if (step != when || std::find(asked.begin(), asked.end(), world.rank) == asked.end()) return;
    fmt::print(stderr, "attend_ring: rank {} fails now, as asked\n", world.rank);
    if (world.rank == s.kill_rank) (void)std::raise(SIGKILL);
    if (world.rank == s.stop_rank) (void)std::raise(SIGSTOP);
    if (world.rank == s.throw_rank) throw std::runtime_error("thrown because --throw-rank asked for it");
  };
}

// The CPUs of a machine, shared among its ranks.
int threads_each() {
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
  int ranks = 1, cpus = cpu_info().cpus, most = 1;
  MPI_Comm_size(machine, &ranks);
  MPI_Allreduce(&cpus, &most, 1, MPI_INT, MPI_MAX, machine);
  MPI_Comm_free(&machine);
  // A rank that mpirun has bound to its own CPUs shares them with nobody.
  const long online = static_cast<long>(std::max(1U, std::thread::hardware_concurrency()));
  return most < online ? cpus : std::max(1, cpus / ranks);
}

}  // namespace

bool measure(const Settings& s) {
  const World world;
  if (s.kv_heads < 0) throw InvalidArgument(fmt::format("--kv-heads is {}, expected 0 or more", s.kv_heads));
  if (s.window < 0) throw InvalidArgument(fmt::format("--window is {}, expected 0 or more", s.window));
  if (s.threads > 0) {
    set_threads(s.threads);
  } else if (std::getenv("ATTEND_THREADS") == nullptr) {
    set_threads(threads_each());
  }
  RingOptions options{.sharding = s.zigzag ? RingSharding::zigzag : RingSharding::contiguous,
                      .timeout_seconds = s.timeout,
                      .progress = progress_of(s.progress),
                      .slice_work = s.slice_work};
  if (s.causal) options.attention.mask = causal();
  if (s.window > 0) options.attention.mask = window(s.window, s.causal ? 0 : s.window);
  add_fault(world, s, options);
  Run run(world, s, options);
  if (world.rank == 0) {
    fmt::print("{} over {} ranks with {} threads each: {}, batch {}, {} tokens ({} a rank), {} heads of {}{}{}\n",
               s.layer ? "layer" : "attention", world.ranks, threads(), s.dtype, s.batch, s.length,
               s.length / world.ranks, s.heads, s.dim, s.causal ? ", causal" : "", s.zigzag ? ", zigzag" : "");
    (void)std::fflush(stdout);
  }
  Timing forward = median_run(world, s.repeat, [&](RingTimes* times) { run.forward(times); });
  forward.transfers = run.transfers(false);
  print_times(world, "forward", forward);
  if (!s.forward_only) {
    Timing backward = median_run(world, s.repeat, [&](RingTimes* times) { run.backward(times); });
    backward.transfers = run.transfers(true);
    print_times(world, "backward", backward);
  }
  if (!s.check) return true;
  if (world.rank == 0) fmt::print("against one process\n");
  int fine = run.check() ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &fine, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return fine == 1;
}

}  // namespace attend::ring_app
