// Times a training step and the operations it is made of.
#include "train.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "attend/attend.hpp"
#include "attend/error.hpp"
#include "llm/model/config.hpp"
#include "llm/model/embedded.hpp"
#include "llm/model/plan.hpp"
#include "llm/train/adamw.hpp"
#include "llm/train/network.hpp"
#include "measure.hpp"

namespace attend::bench {
namespace {

using namespace llm;

constexpr std::int64_t kRows = 8, kLength = 512, kTokens = kRows * kLength;

TrainingBatch training_batch(std::int64_t vocabulary) {
  TrainingBatch batch;
  batch.starts = {0};
  std::uint32_t state = 1;
  std::int64_t token = 1;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < kLength; ++i) {
      batch.tokens.push_back(token);
      state = state * 1664525U + 1013904223U;
      token = static_cast<std::int64_t>(state >> 8U) % vocabulary;
      batch.targets.push_back(token);
    }
    batch.starts.push_back(std::ssize(batch.tokens));
  }
  return batch;
}

ModelConfig shape_called(const std::string& shape) {
  if (shape == kEmbeddedModel) return config_from_gguf(open_gguf(embedded_path()), shape);
  if (const ModelConfig* found = find_shape(shape)) return *found;
  throw InvalidArgument("there is no shape '" + shape + "', expected one that 'attend info' knows, or " +
                        kEmbeddedModel);
}

struct Training {
  Training(const std::string& shape, DType compute)
      : network(shape_called(shape), {.compute = compute, .tokens = kTokens}),
        moments(network.layout()),
        batch(training_batch(network.config().vocabulary)) {
    initialise(network.layout(), 1, network.parameters());
    network.changed();
  }
  void optimise() {
    const double length = gradient_norm(network.layout(), network.gradients());
    adamw_step(network.layout(), {}, 1e-4, ++step, network.gradients(), length > 1 ? 1 / length : 1, moments,
               network.parameters());
    network.changed();
  }
  double run() {  // seconds of a step
    const double start = seconds();
    network.loss_and_gradients(batch, 1.0 / kTokens, false);
    optimise();
    return seconds() - start;
  }

  Network network;
  Moments moments;
  TrainingBatch batch;
  std::int64_t step = 0;
};

struct Work {
  double layers, head,
      attention;  // operations of a step, the usual count: backward is twice forward, 2.5 for attention
  double all() const { return layers + head + attention; }
};
Work work_of(const ModelConfig& c) {
  const ParameterCounts n = count_parameters(c);
  const auto tokens = static_cast<double>(kTokens);
  return {6 * tokens * static_cast<double>(n.attention() + n.feed_forward),
          6 * tokens * static_cast<double>(n.embedding),
          3.5 * 4 * tokens * static_cast<double>(c.layers * c.query_width()) * static_cast<double>(kLength) / 2};
}

Tensor filled(DType dtype, std::int64_t rows, std::int64_t cols) {
  Tensor x(DType::f32, {1, 1, rows, cols});
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    x.data<float>()[i] = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-32F;
  }
  Tensor y(dtype, x.shape());
  convert(x, y);
  return y;
}

// The same calls as a step makes, on memory of their own.
class Parts {
 public:
  Parts(const ModelConfig& c, DType dtype)
      : c_(c), dtype_(dtype), Q_(c.query_width()), K_(c.kv_width()), F_(c.feed_forward), H_(c.hidden) {
    for (const auto& [in, out] : {std::pair{H_, Q_ + 2 * K_}, {Q_, H_}, {H_, 2 * F_}, {F_, H_}})
      linears_.push_back({filled(dtype, kTokens, in), filled(dtype, out, in), filled(dtype, kTokens, out),
                          Tensor(dtype, {1, 1, kTokens, in}), Tensor(DType::f32, {1, 1, out, in})});
    rotation_.fill(rope_frequencies(c), c.rope_style, positions());
  }

  double products() {
    return timed([&] {
      for (Linear& l : linears_) {
        linear(l.x, l.weight, std::nullopt, l.y);
        linear_backward(l.y, l.x, l.weight, {.dx = l.dx, .dweight = l.dweight});
      }
    });
  }
  double attention_alone() {
    const MutableView q = heads(linears_[0].y, 0, c_.heads), k = heads(linears_[0].y, Q_, c_.kv_heads),
                      v = heads(linears_[0].y, Q_ + K_, c_.kv_heads), out = heads(linears_[1].x, 0, c_.heads),
                      dout = heads(linears_[1].dx, 0, c_.heads);
    const MutableView dq = heads(dqkv_, 0, c_.heads), dk = heads(dqkv_, Q_, c_.kv_heads),
                      dv = heads(dqkv_, Q_ + K_, c_.kv_heads);
    const AttentionOptions options{.mask = segments(starts()) & causal()};
    return timed([&] {
      attention(q, k, v, out, options, {.lse = lse_});
      attention_backward(dout, q, k, v, out, lse_, {dq, dk, dv, {}, {}, {}}, options);
    });
  }
  double rotations() {
    return timed([&] {
      for (const MutableView& x : {heads(dqkv_, 0, c_.heads), heads(dqkv_, Q_, c_.kv_heads)}) {
        rope(x, x, rotation_);
        rope_backward(x, x, rotation_);
      }
    });
  }
  double activations() {
    return timed([&] {
      const auto half = [&](Tensor& x, std::int64_t first) {
        MutableView view = x.view();
        view.data = static_cast<char*>(view.data) + first * size_of(dtype_);
        view.shape[3] = F_;
        return view;
      };
      Tensor &wide = linears_[2].y, &active = linears_[3].x, &dactive = linears_[3].dx;
      gated_activation(c_.activation, half(wide, 0), half(wide, F_), active);
      gated_activation_backward(c_.activation, dactive, half(wide, 0), half(wide, F_), half(dwide_, 0),
                                half(dwide_, F_), active);
    });
  }
  double norms() {  // and the residual's sums
    return timed([&] {
      for (int part = 0; part < 2; ++part) {
        Tensor& normed = linears_[0].x;
        rms_norm(residual_, weight_, normed, c_.norm_eps);
        add(residual_, normed, sum_);
        convert(residual_, normed);
        rms_norm_backward(normed, residual_, weight_, sum_, dweight_, c_.norm_eps, sum_);
      }
    });
  }
  double head(const TrainingBatch& batch) {
    return timed([&] {
      cross_entropy_backward(dloss_, linears_[0].x, head_, batch.targets, {linears_[0].dx, dhead_, loss_}, {kIgnored});
    });
  }

 private:
  struct Linear {
    Tensor x, weight, y, dx, dweight;
  };
  template <class F>
  static double timed(F&& f) {
    const double start = seconds();
    f();
    return seconds() - start;
  }
  static std::vector<std::int64_t> positions() {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < kTokens; ++i) all.push_back(i % kLength);
    return all;
  }
  static std::vector<std::int64_t> starts() {
    std::vector<std::int64_t> all;
    for (std::int64_t row = 0; row <= kRows; ++row) all.push_back(row * kLength);
    return all;
  }
  MutableView heads(Tensor& x, std::int64_t first, std::int64_t count) const {
    const std::int64_t width = x.shape()[3];
    return {dtype_,
            static_cast<char*>(x.view().data) + first * size_of(dtype_),
            {1, count, kTokens, c_.head_dim},
            {0, c_.head_dim, width, 1}};
  }

  ModelConfig c_;
  DType dtype_;
  std::int64_t Q_, K_, F_, H_;
  std::vector<Linear> linears_;  // qkv, o, gate and up, down
  RopeTable rotation_;
  Tensor dqkv_ = filled(dtype_, kTokens, Q_ + 2 * K_), dwide_ = filled(dtype_, kTokens, 2 * F_),
         lse_{DType::f32, {1, c_.heads, kTokens, 1}}, residual_ = filled(DType::f32, kTokens, H_),
         sum_{DType::f32, {1, 1, kTokens, H_}}, weight_ = filled(DType::f32, 1, H_),
         dweight_{DType::f32, {1, 1, 1, H_}}, head_ = filled(dtype_, c_.vocabulary, H_),
         dhead_{DType::f32, {1, 1, c_.vocabulary, H_}}, loss_{DType::f32, {1, 1, kTokens, 1}},
         dloss_ = filled(DType::f32, kTokens, 1);
};

void training_rows(const std::string& shape, DType dtype, int rounds, const std::function<double()>& ceiling) {
  Training training(shape, dtype);
  const ModelConfig& c = training.network.config();
  Parts parts(c, dtype);
  const Work work = work_of(c);
  const auto layers = static_cast<double>(c.layers);
  const std::vector<Sample> s =
      interleave({ceiling, [&] { return training.run(); }, [&] { return parts.products() * layers; },
                  [&] { return parts.attention_alone() * layers; }, [&] { return parts.head(training.batch); },
                  [&] { return parts.norms() * layers; }, [&] { return parts.activations() * layers; },
                  [&] { return parts.rotations() * layers; },
                  [&] {
                    const double start = seconds();
                    training.optimise();
                    return seconds() - start;
                  }},
                 rounds);
  const double peak = s[0].median, whole = s[1].median;
  fmt::print("{}: {:.0f} tokens/s ({:.0f}-{:.0f}), {:.1f} GFLOP/s: {:.0f} % of {:.1f}\n", name(dtype), kTokens / whole,
             kTokens / s[1].high, kTokens / s[1].low, work.all() / whole / 1e9, 100 * work.all() / whole / peak,
             peak / 1e9);
  const auto row = [&](const char* what, double time, double operations) {
    fmt::print("  {:<22} {:8.1f} ms {:4.0f} %", what, 1e3 * time, 100 * time / whole);
    if (operations > 0)
      fmt::print("  {:7.1f} GFLOP/s, {:3.0f} % of the ceiling", operations / time / 1e9,
                 100 * operations / time / peak);
    fmt::print("\n");
  };
  row("products of the layers", s[2].median, work.layers);
  row("attention", s[3].median, work.attention);
  row("head and loss", s[4].median, work.head);
  row("norms and residual", s[5].median, 0);
  row("activations", s[6].median, 0);
  row("rotations", s[7].median, 0);
  row("clipping and AdamW", s[8].median, 0);
  double sum = 0;
  for (std::size_t n = 2; n < s.size(); ++n) sum += s[n].median;
  row("all but these", whole - sum, 0);
  std::fflush(stdout);
}

}  // namespace

void run_training(const std::string& shape, int rounds, const Ceilings& ceilings) {
  fmt::print("{}, {} threads, kernels {}: {}, {} rows of {} tokens\n", cpu_info().model, threads(), kernel_name(),
             shape, kRows, kLength);
  training_rows(shape, DType::f32, rounds, ceilings.fma);
  training_rows(shape, DType::bf16, rounds, ceilings.pairs);
}

void serve_training(const std::string& shape) {
  std::unique_ptr<Training> trainings[2];
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string dtype, what;
    words >> dtype >> what;
    std::unique_ptr<Training>& training = trainings[dtype == "bf16" ? 1 : 0];
    if (!training) training = std::make_unique<Training>(shape, dtype == "bf16" ? DType::bf16 : DType::f32);
    double result = 0;
    if (what == "loss")
      result = training->network.loss(training->batch) / kTokens;
    else if (what == "operations")
      result = work_of(training->network.config()).all();
    else
      for (int n = std::stoi(what); n > 0; --n) result += training->run();
    fmt::print("{:.9g}\n", result);
    std::fflush(stdout);
  }
}

}  // namespace attend::bench
