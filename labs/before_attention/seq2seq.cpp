// A translator from before transformers, forward and backward.
#include "labs/before_attention/seq2seq.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attend/add.hpp"
#include "attend/additive_attention.hpp"
#include "attend/cross_entropy.hpp"
#include "attend/embedding.hpp"
#include "attend/linear.hpp"
#include "base/random.hpp"
#include "labs/adam.hpp"
#include "labs/before_attention/gru.hpp"
#include "labs/tools.hpp"

namespace attend::labs {
namespace {

MutableView rows_from(Tensor& tensor, std::int64_t first, std::int64_t count) {
  MutableView view = tensor;
  view.data = static_cast<char*>(view.data) + first * view.strides[2] * size_of(view.dtype);
  view.shape[2] = count;
  return view;
}
View rows_from(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return slice(tensor, 2, first, count);
}

template <class F>
void for_elements(const Tensor& of, const F& f) {  // f(T{}) chooses the type
  of.dtype() == DType::f64 ? f(double{}) : f(float{});
}

void add_to(MutableView sum, View part) {
  add(sum, part, sum);
}

void fill_random(Tensor& tensor, std::uint64_t seed, double size) {
  for_elements(tensor, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t n = 0; n < tensor.size(); ++n)
      tensor.data<T>()[n] = static_cast<T>(size * (2 * uniform(seed, static_cast<std::uint64_t>(n)) - 1));
  });
}

// dy . weight, as the gradient of x in y = x . weight^T.
Tensor back_through(View dy, View x, View weight) {
  Tensor dx(dy.dtype, {dy.shape[0], dy.shape[1], dy.shape[2], weight.shape[3]});
  linear_backward(dy, x, weight, {.dx = dx});
  return dx;
}

}  // namespace

// What a run keeps for backward. Row t of states is the one before step t.
struct Translator::Trace {
  Tensor source, inputs;  // embeddings
  Tensor read_gx, read_gh, read_states;
  Tensor write_gx, write_gh, write_states;
  Tensor keys;   // wk h, additive alone
  Tensor asked;  // wq s of each step, additive alone
  Tensor context, lse;
  Tensor spoken, losses;
  Tensor dread, dwrite, dcontext;  // gradients of states and of the context
  Tensor dwrite_gx, dwrite_gh, dkeys, dasked, dvalues;
  AdditiveAttentionOptions options;

  std::int64_t sources() const { return read_states.shape()[2] - 1; }
  std::int64_t targets() const { return write_states.shape()[2] - 1; }
  View memory() const { return rows_from(read_states, 1, sources()); }  // what the reader wrote
};

std::vector<Tensor*> Translator::Weights::list() {
  std::vector<Tensor*> all;
  for (Tensor* t : {&source_table, &target_table, &read_x, &read_h, &read_b, &write_x, &write_h, &write_b, &write_c,
                    &wq, &wk, &w, &out_s, &out_c, &head})
    if (!t->empty()) all.push_back(t);
  return all;
}

Translator::Weights Translator::empty_weights() const {
  const std::int64_t W = shape_.width;
  const auto make = [&](std::int64_t rows, std::int64_t columns) {
    return Tensor(shape_.dtype, {1, 1, rows, columns});
  };
  Weights w;
  w.source_table = make(shape_.source_words, W);
  w.target_table = make(shape_.target_words, W);
  w.read_x = make(3 * W, W);
  w.read_h = make(3 * W, W);
  w.read_b = make(1, 3 * W);
  w.write_x = make(3 * W, W);
  w.write_h = make(3 * W, W);
  w.write_b = make(1, 3 * W);
  w.out_s = make(W, W);
  w.head = make(shape_.target_words, W);
  if (shape_.bridge == Bridge::none) return w;
  w.wq = make(W, W);
  w.out_c = make(W, W);
  if (shape_.bridge == Bridge::general) return w;
  w.wk = make(W, W);
  w.w = make(1, W);
  w.write_c = make(3 * W, W);
  return w;
}

Translator::Translator(const TranslatorShape& shape)
    : shape_(shape), weights_(empty_weights()), gradients_(empty_weights()) {
  std::uint64_t seed = shape.seed * 100;
  for (Tensor* t : weights_.list()) fill_random(*t, ++seed, 1 / std::sqrt(static_cast<double>(shape.width)));
  for (Tensor* t : {&weights_.source_table, &weights_.target_table}) fill_random(*t, ++seed, 1);
  if (!weights_.w.empty()) fill_random(weights_.w, ++seed, 1);
  if (shape.dtype != DType::f32) return;
  for (const Tensor* t : weights_.list()) {
    first_.emplace_back(DType::f32, t->shape());
    second_.emplace_back(DType::f32, t->shape());
  }
}

std::vector<Tensor*> Translator::parameters() {
  return weights_.list();
}
std::vector<Tensor*> Translator::gradients() {
  return gradients_.list();
}

std::int64_t Translator::parameter_count() const {
  std::int64_t count = 0;
  for (const Tensor* t : const_cast<Weights&>(weights_).list()) count += t->size();  // read alone
  return count;
}

void Translator::read(const TranslationBatch& batch, Trace& t) const {
  const std::int64_t B = batch.batch, N = batch.source_length, W = shape_.width;
  t.source = Tensor(shape_.dtype, {B, 1, N, W});
  embedding(weights_.source_table, batch.source, t.source);
  t.read_gx = Tensor(shape_.dtype, {B, 1, N, 3 * W});
  t.read_gh = Tensor(shape_.dtype, {B, 1, N, 3 * W});
  t.read_states = Tensor(shape_.dtype, {B, 1, N + 1, W});
  linear(t.source, weights_.read_x, weights_.read_b, t.read_gx);
  for (std::int64_t n = 0; n < N; ++n) {
    linear(rows_from(t.read_states, n, 1), weights_.read_h, {}, rows_from(t.read_gh, n, 1));
    gru_forward({&t.read_gx, &t.read_gh, batch.source_lengths.data()}, n, t.read_states);
  }
}

void Translator::write(const TranslationBatch& batch, Trace& t) const {
  const std::int64_t B = batch.batch, N = batch.source_length, M = batch.target_length, W = shape_.width;
  t.inputs = Tensor(shape_.dtype, {B, 1, M, W});
  embedding(weights_.target_table, batch.inputs, t.inputs);
  t.write_gx = Tensor(shape_.dtype, {B, 1, M, 3 * W});
  t.write_gh = Tensor(shape_.dtype, {B, 1, M, 3 * W});
  t.write_states = Tensor(shape_.dtype, {B, 1, M + 1, W});
  linear(t.inputs, weights_.write_x, weights_.write_b, t.write_gx);
  for_elements(t.write_states, [&](auto type) {  // begins with the reader's last state
    using T = decltype(type);
    for (std::int64_t b = 0; b < B; ++b)
      std::copy_n(t.read_states.data<T>() + (b * (N + 1) + N) * W, W, t.write_states.data<T>() + b * (M + 1) * W);
  });
  t.options.mask = padding(batch.source_lengths);
  if (shape_.bridge != Bridge::none) {
    t.context = Tensor(shape_.dtype, {B, 1, M, W});
    t.lse = Tensor(shape_.dtype, {B, 1, M, 1});
  }
  const bool additive = shape_.bridge == Bridge::additive;
  if (additive) {
    t.keys = Tensor(shape_.dtype, {B, 1, N, W});
    t.asked = Tensor(shape_.dtype, {B, 1, M, W});
    linear(t.memory(), weights_.wk, {}, t.keys);
  }
  Tensor part(shape_.dtype, {B, 1, 1, 3 * W});
  for (std::int64_t m = 0; m < M; ++m) {
    if (additive) {
      linear(rows_from(t.write_states, m, 1), weights_.wq, {}, rows_from(t.asked, m, 1));
      additive_attention(rows_from(t.asked, m, 1), t.keys, weights_.w, t.memory(), rows_from(t.context, m, 1),
                         t.options, rows_from(t.lse, m, 1));
      linear(rows_from(t.context, m, 1), weights_.write_c, {}, part);
      add_to(rows_from(t.write_gx, m, 1), part);
    }
    linear(rows_from(t.write_states, m, 1), weights_.write_h, {}, rows_from(t.write_gh, m, 1));
    gru_forward({&t.write_gx, &t.write_gh}, m, t.write_states);
  }
  if (shape_.bridge == Bridge::general)
    aligned_attention(Alignment::general, rows_from(t.write_states, 1, M), t.memory(), t.memory(), {.wq = weights_.wq},
                      t.context, t.options, t.lse);
}

void Translator::speak(const TranslationBatch& batch, Trace& t) const {
  const std::int64_t B = batch.batch, M = batch.target_length, W = shape_.width;
  t.spoken = Tensor(shape_.dtype, {B, 1, M, W});
  linear(rows_from(t.write_states, 1, M), weights_.out_s, {}, t.spoken);
  if (shape_.bridge != Bridge::none) {
    Tensor part(shape_.dtype, t.spoken.shape());
    linear(t.context, weights_.out_c, {}, part);
    add_to(t.spoken, part);
  }
  for_elements(t.spoken, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t n = 0; n < t.spoken.size(); ++n) t.spoken.data<T>()[n] = std::tanh(t.spoken.data<T>()[n]);
  });
  t.losses = Tensor(shape_.dtype, {B, 1, M, 1});
}

Translator::Trace Translator::run(const TranslationBatch& batch) const {
  Trace trace;
  read(batch, trace);
  write(batch, trace);
  speak(batch, trace);
  return trace;
}

namespace {

double count_targets(const TranslationBatch& batch) {
  return static_cast<double>(std::max<std::ptrdiff_t>(
      1, std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t >= 0; })));
}

double sum_of(const Tensor& losses) {
  double sum = 0;
  for (const double loss : doubles_of(losses)) sum += loss;
  return sum;
}

}  // namespace

double Translator::loss(const TranslationBatch& batch) const {
  Trace t = run(batch);
  cross_entropy(t.spoken, weights_.head, batch.targets, t.losses);
  return sum_of(t.losses) / count_targets(batch);
}

void Translator::speak_backward(const TranslationBatch& batch, Trace& t) {
  const std::int64_t M = batch.target_length;
  Tensor dloss(shape_.dtype, t.losses.shape()), dspoken(shape_.dtype, t.spoken.shape());
  for_elements(dloss, [&](auto type) {
    using T = decltype(type);
    std::fill_n(dloss.data<T>(), dloss.size(), static_cast<T>(1 / count_targets(batch)));
  });
  cross_entropy_backward(dloss, t.spoken, weights_.head, batch.targets,
                         {.dhidden = dspoken, .dweight = gradients_.head, .loss = t.losses});
  for_elements(dspoken, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t n = 0; n < dspoken.size(); ++n)
      dspoken.data<T>()[n] *= 1 - t.spoken.data<T>()[n] * t.spoken.data<T>()[n];
  });
  t.dwrite = Tensor(shape_.dtype, t.write_states.shape());
  t.dread = Tensor(shape_.dtype, t.read_states.shape());
  linear_backward(dspoken, rows_from(t.write_states, 1, M), weights_.out_s,
                  {.dx = rows_from(t.dwrite, 1, M), .dweight = gradients_.out_s});
  if (shape_.bridge == Bridge::none) return;
  t.dcontext = Tensor(shape_.dtype, t.context.shape());
  linear_backward(dspoken, t.context, weights_.out_c, {.dx = t.dcontext, .dweight = gradients_.out_c});
}

// The context of step m, asked with the state before it: its gradient goes to the question, the keys and the values.
void Translator::ask_backward(Trace& t, std::int64_t m) {
  const std::int64_t B = t.context.shape()[0];
  Tensor da(shape_.dtype, {B, 1, 1, shape_.width}), dkeys(shape_.dtype, t.keys.shape()),
      dw(shape_.dtype, weights_.w.shape()), dvalues(shape_.dtype, t.keys.shape());
  additive_attention_backward(rows_from(t.dcontext, m, 1), rows_from(t.asked, m, 1), t.keys, weights_.w, t.memory(),
                              rows_from(t.context, m, 1), rows_from(t.lse, m, 1), {da, dkeys, dw, dvalues}, t.options);
  add_to(t.dkeys, dkeys);
  add_to(gradients_.w, dw);
  add_to(rows_from(t.dread, 1, t.sources()), dvalues);
  add_to(rows_from(t.dasked, m, 1), da);
  add_to(rows_from(t.dwrite, m, 1), back_through(da, rows_from(t.write_states, m, 1), weights_.wq));
}

void Translator::write_backward(const TranslationBatch& batch, Trace& t) {
  const std::int64_t B = batch.batch, N = batch.source_length, M = batch.target_length, W = shape_.width;
  if (shape_.bridge == Bridge::general) {
    Tensor dq(shape_.dtype, {B, 1, M, W}), dk(shape_.dtype, {B, 1, N, W}), dv(shape_.dtype, {B, 1, N, W});
    aligned_attention_backward(Alignment::general, t.dcontext, rows_from(t.write_states, 1, M), t.memory(), t.memory(),
                               {.wq = weights_.wq}, t.context, t.lse,
                               {.dq = dq, .dk = dk, .dv = dv, .dwq = gradients_.wq}, t.options);
    add_to(rows_from(t.dwrite, 1, M), dq);
    add_to(rows_from(t.dread, 1, N), dk);
    add_to(rows_from(t.dread, 1, N), dv);
  }
  t.dwrite_gx = Tensor(shape_.dtype, t.write_gx.shape());
  t.dwrite_gh = Tensor(shape_.dtype, t.write_gh.shape());
  const bool additive = shape_.bridge == Bridge::additive;
  if (additive) {
    t.dkeys = Tensor(shape_.dtype, t.keys.shape());
    t.dasked = Tensor(shape_.dtype, t.asked.shape());
    gradients_.w = Tensor(shape_.dtype, weights_.w.shape());
  }
  for (std::int64_t m = M - 1; m >= 0; --m) {
    gru_backward({&t.write_gx, &t.write_gh}, m, t.write_states, t.dwrite, t.dwrite_gx, t.dwrite_gh);
    add_to(rows_from(t.dwrite, m, 1),
           back_through(rows_from(t.dwrite_gh, m, 1), rows_from(t.write_states, m, 1), weights_.write_h));
    if (!additive) continue;
    add_to(rows_from(t.dcontext, m, 1),
           back_through(rows_from(t.dwrite_gx, m, 1), rows_from(t.context, m, 1), weights_.write_c));
    ask_backward(t, m);
  }
  const View before = rows_from(t.write_states, 0, M);
  linear_backward(t.dwrite_gh, before, weights_.write_h, {.dweight = gradients_.write_h});
  Tensor dinputs(shape_.dtype, t.inputs.shape());
  linear_backward(t.dwrite_gx, t.inputs, weights_.write_x,
                  {.dx = dinputs, .dweight = gradients_.write_x, .dbias = gradients_.write_b});
  embedding_backward(dinputs, batch.inputs, gradients_.target_table);
  if (!additive) return;
  linear_backward(t.dwrite_gx, t.context, weights_.write_c, {.dweight = gradients_.write_c});
  linear_backward(t.dasked, before, weights_.wq, {.dweight = gradients_.wq});
  Tensor dmemory(shape_.dtype, t.keys.shape());
  linear_backward(t.dkeys, t.memory(), weights_.wk, {.dx = dmemory, .dweight = gradients_.wk});
  add_to(rows_from(t.dread, 1, N), dmemory);
}

void Translator::read_backward(const TranslationBatch& batch, Trace& t) {
  const std::int64_t N = batch.source_length;
  add_to(rows_from(t.dread, N, 1), rows_from(t.dwrite, 0, 1));
  Tensor dgx(shape_.dtype, t.read_gx.shape()), dgh(shape_.dtype, t.read_gh.shape()),
      dsource(shape_.dtype, t.source.shape());
  for (std::int64_t n = N - 1; n >= 0; --n) {
    gru_backward({&t.read_gx, &t.read_gh, batch.source_lengths.data()}, n, t.read_states, t.dread, dgx, dgh);
    add_to(rows_from(t.dread, n, 1),
           back_through(rows_from(dgh, n, 1), rows_from(t.read_states, n, 1), weights_.read_h));
  }
  linear_backward(dgh, rows_from(t.read_states, 0, N), weights_.read_h, {.dweight = gradients_.read_h});
  linear_backward(dgx, t.source, weights_.read_x,
                  {.dx = dsource, .dweight = gradients_.read_x, .dbias = gradients_.read_b});
  embedding_backward(dsource, batch.source, gradients_.source_table);
}

double Translator::loss_and_gradients(const TranslationBatch& batch) {
  Trace t = run(batch);
  speak_backward(batch, t);
  write_backward(batch, t);
  read_backward(batch, t);
  return sum_of(t.losses) / count_targets(batch);
}

double Translator::train(const TranslationBatch& batch, double rate) {
  const double loss = loss_and_gradients(batch);
  adam_step(parameters(), gradients(), first_, second_, ++steps_, rate);
  return loss;
}

Translator::Score Translator::score(const TranslationBatch& batch) const {
  const Trace t = run(batch);
  const std::int64_t words = shape_.target_words, M = batch.target_length;
  Tensor logits(shape_.dtype, {batch.batch, 1, M, words});
  linear(t.spoken, weights_.head, {}, logits);
  std::vector<bool> right(static_cast<std::size_t>(batch.batch), true);
  std::int64_t right_words = 0;
  for (std::size_t n = 0; n < batch.targets.size(); ++n) {
    if (batch.targets[n] < 0) continue;
    const float* row = logits.data<float>() + static_cast<std::int64_t>(n) * words;
    if (std::max_element(row, row + words) - row == batch.targets[n])
      ++right_words;
    else
      right[n / static_cast<std::size_t>(M)] = false;
  }
  return {static_cast<double>(std::count(right.begin(), right.end(), true)) / static_cast<double>(batch.batch),
          static_cast<double>(right_words) / count_targets(batch)};
}

Tensor Translator::alignment(const TranslationBatch& batch) const {
  const Trace t = run(batch);
  const std::int64_t B = batch.batch, N = batch.source_length, M = batch.target_length;
  // With one-hot values the output is the weights themselves.
  Tensor ones(shape_.dtype, {B, 1, N, N}), out(shape_.dtype, {B, 1, M, N});
  for_elements(ones, [&](auto type) {
    using T = decltype(type);
    for (std::int64_t n = 0; n < B * N; ++n) ones.data<T>()[n * N + n % N] = 1;
  });
  if (shape_.bridge == Bridge::additive)
    additive_attention(t.asked, t.keys, weights_.w, ones, out, t.options);
  else
    aligned_attention(Alignment::general, rows_from(t.write_states, 1, M), t.memory(), ones, {.wq = weights_.wq}, out,
                      t.options);
  return out;
}

}  // namespace attend::labs
