// The loss of distillation and its gradient, some rows of logits at a time.
#include "llm/train/distil.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "attend/add.hpp"
#include "attend/error.hpp"
#include "attend/linear.hpp"
#include "attend/softmax.hpp"
#include "attend/threads.hpp"
#include "llm/train/row_sums.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kChunkBytes = 8 << 20;

MutableView first_rows(Tensor& x, std::size_t count) {
  MutableView view = x.view();
  view.shape[2] = static_cast<std::int64_t>(count);
  return view;
}

// The logarithm of the sum of exp(z), from their softmax: its largest value is 1 / sum of exp(z - most).
template <class T>
double log_sum(const T* z, const T* softmax, std::int64_t V, double scale) {
  const std::int64_t most = std::max_element(softmax, softmax + V) - softmax;
  return scale * static_cast<double>(z[most]) - std::log(static_cast<double>(softmax[most]));
}

struct RowLoss {
  double cross_entropy = 0, divergence = 0;
};

// z are the student's logits, t the teacher's over the temperature; p and q the softmaxes of the teacher and the
// student at the temperature. g comes in as the softmax of z.
template <class T>
RowLoss row_loss(const T* z, const T* t, const T* p, const T* q, T* g, std::int64_t V, std::int64_t target,
                 const DistilOptions& o, double factor) {
  RowLoss loss;
  loss.cross_entropy = log_sum(z, g, V, 1.0) - static_cast<double>(z[target]);
  const double shift = log_sum(z, q, V, 1 / o.temperature) - log_sum(t, p, V, 1.0);
  const double cold = 1 / o.temperature;
  double lanes[8] = {};
  const auto term = [&](std::int64_t i) {
    return static_cast<double>(p[i]) * (static_cast<double>(t[i]) - cold * static_cast<double>(z[i]) + shift);
  };
  std::int64_t done = 0;
  for (; done + 8 <= V; done += 8)
    for (std::int64_t k = 0; k < 8; ++k) lanes[k] += term(done + k);
  for (; done < V; ++done) lanes[0] += term(done);
  loss.divergence = o.temperature * o.temperature * std::accumulate(lanes, lanes + 8, 0.0);
  const auto hard = static_cast<T>(factor * o.alpha), soft = static_cast<T>(factor * (1 - o.alpha) * o.temperature);
  g[target] -= 1;
  for (std::int64_t i = 0; i < V; ++i) g[i] = hard * g[i] + soft * (q[i] - p[i]);
  return loss;
}

template <class T>
void scale_rows(const View& x, double factor, const MutableView& y) {
  const auto by = static_cast<T>(factor);
  parallel_for(x.length(), [&](std::int64_t n, int) {
    const T* from = static_cast<const T*>(x.data) + n * x.dim();
    T* to = static_cast<T*>(y.data) + n * x.dim();
    for (std::int64_t i = 0; i < x.dim(); ++i) to[i] = by * from[i];
  });
}

}  // namespace

Distiller::Distiller(Network& student, Network& teacher, const DistilOptions& options)
    : options_(options),
      dtype_(student.parameters().dtype),
      vocabulary_(student.config().vocabulary),
      most_(std::max<std::int64_t>(1, kChunkBytes / (vocabulary_ * size_of(dtype_)))),
      student_{&student, {}, {}, {}, {}},
      teacher_{&teacher, {}, {}, {}, {}} {
  if (teacher.config().vocabulary != vocabulary_)
    throw InvalidArgument("distil: the teacher has " + std::to_string(teacher.config().vocabulary) +
                          " tokens, expected the student's " + std::to_string(vocabulary_));
  if (teacher.parameters().dtype != dtype_)
    throw InvalidArgument("distil: the teacher's parameters are " + std::string(name(teacher.parameters().dtype)) +
                          ", expected the student's " + name(dtype_));
  if (!(options.temperature > 0)) throw InvalidArgument("distil: the temperature must be above zero");
  if (!(options.alpha >= 0 && options.alpha <= 1)) throw InvalidArgument("distil: alpha must be 0 to 1");
  most_ = std::min(most_, std::max<std::int64_t>(1, student.options().tokens));
  for (Side* side : {&student_, &teacher_}) {
    const std::int64_t H = side->network->config().hidden;
    side->picked = Tensor(side->network->options().compute, {1, 1, most_, H});
    side->rows = Tensor(dtype_, {1, 1, most_, H});
    side->logits = Tensor(dtype_, {1, 1, most_, vocabulary_});
  }
  drows_ = Tensor(dtype_, student_.rows.shape());
  for (Tensor* one : {&teacher_softmax_, &student_softmax_, &gradient_})
    *one = Tensor(dtype_, {1, 1, most_, vocabulary_});
}

std::int64_t Distiller::bytes() const {
  std::int64_t sum = drows_.bytes() + teacher_softmax_.bytes() + student_softmax_.bytes() + gradient_.bytes();
  for (const Side* side : {&student_, &teacher_})
    sum += side->picked.bytes() + side->rows.bytes() + side->logits.bytes();
  return sum;
}

// Runs both; gives the tokens that have a target, in chunks.
std::vector<std::vector<std::int32_t>> Distiller::begin(const TrainingBatch& batch, std::uint64_t seed, bool training) {
  student_.hidden = student_.network->run(batch, seed, training);
  teacher_.hidden = teacher_.network->run(batch, 0, false);
  std::vector<std::vector<std::int32_t>> chunks;
  for (std::size_t t = 0; t < batch.targets.size(); ++t) {
    const std::int64_t target = batch.targets[t];
    if (target == kIgnored) continue;
    if (target < 0 || target >= vocabulary_)
      throw InvalidArgument("distil: target " + std::to_string(t) + " is " + std::to_string(target) +
                            ", expected 0 to " + std::to_string(vocabulary_ - 1));
    if (chunks.empty() || std::ssize(chunks.back()) == most_) chunks.emplace_back();
    chunks.back().push_back(static_cast<std::int32_t>(t));
  }
  return chunks;
}

void Distiller::make_logits(Side& side, const std::vector<std::int32_t>& tokens) {
  const MutableView picked = first_rows(side.picked, tokens.size()), rows = first_rows(side.rows, tokens.size());
  gather_rows(side.hidden, tokens.data(), picked);
  convert(picked, rows);
  linear(rows, side.network->head(), std::nullopt, first_rows(side.logits, tokens.size()));
}

void Distiller::chunk_loss(const std::vector<std::int32_t>& tokens, const TrainingBatch& batch, double factor,
                           DistilLoss& sums) {
  make_logits(student_, tokens);
  make_logits(teacher_, tokens);
  const std::size_t count = tokens.size();
  const MutableView z = first_rows(student_.logits, count), t = first_rows(teacher_.logits, count),
                    p = first_rows(teacher_softmax_, count), q = first_rows(student_softmax_, count),
                    g = first_rows(gradient_, count);
  std::vector<RowLoss> losses(count);
  const auto work = [&](auto zero) {
    using T = decltype(zero);
    scale_rows<T>(t, 1 / options_.temperature, t);
    scale_rows<T>(z, 1 / options_.temperature, q);
    softmax(t, p);
    softmax(q, q);
    softmax(z, g);
    const auto row = [&](const MutableView& x, std::int64_t n) { return static_cast<T*>(x.data) + n * vocabulary_; };
    parallel_for(std::ssize(tokens), [&](std::int64_t n, int) {
      const auto i = static_cast<std::size_t>(n);
      losses[i] = row_loss<T>(row(z, n), row(t, n), row(p, n), row(q, n), row(g, n), vocabulary_,
                              batch.targets[static_cast<std::size_t>(tokens[i])], options_, factor);
    });
  };
  if (dtype_ == DType::f64)
    work(double{});
  else
    work(float{});
  for (const RowLoss& one : losses) sums.cross_entropy += one.cross_entropy, sums.divergence += one.divergence;
  sums.total = options_.alpha * sums.cross_entropy + (1 - options_.alpha) * sums.divergence;
}

DistilLoss Distiller::loss(const TrainingBatch& batch) {
  DistilLoss sums;
  for (const auto& tokens : begin(batch, 0, false)) chunk_loss(tokens, batch, 1, sums);
  return sums;
}

DistilLoss Distiller::loss_and_gradients(const TrainingBatch& batch, double factor, bool add_to, std::uint64_t seed) {
  const auto chunks = begin(batch, seed, true);
  DistilLoss sums;
  std::size_t targets = 0;
  for (const auto& tokens : chunks) targets += tokens.size();
  const auto head_gradients = [&](const MutableView& dhidden, const MutableView& dhead, bool add_head) {
    std::memset(dhidden.data, 0, static_cast<std::size_t>(dhidden.length() * dhidden.dim() * size_of(dhidden.dtype)));
    if (chunks.empty() && !add_head)
      std::memset(dhead.data, 0, static_cast<std::size_t>(dhead.length() * dhead.dim() * size_of(dhead.dtype)));
    bool adding = add_head;
    for (const auto& tokens : chunks) {
      chunk_loss(tokens, batch, factor, sums);
      const MutableView drows = first_rows(drows_, tokens.size());
      linear_backward(first_rows(gradient_, tokens.size()), first_rows(student_.rows, tokens.size()),
                      student_.network->head(), {.dx = drows, .dweight = dhead, .dbias = {}, .add = adding});
      const MutableView picked = first_rows(student_.picked, tokens.size());
      convert(drows, picked);
      scatter_rows(picked, tokens.data(), dhidden);
      adding = true;
    }
  };
  student_.network->backward(batch, head_gradients, factor * static_cast<double>(targets), add_to);
  return sums;
}

}  // namespace attend::llm
