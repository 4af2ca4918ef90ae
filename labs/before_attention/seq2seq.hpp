// A translator from before transformers: a GRU that reads, a GRU that writes, and attention between them or none.
#pragma once

#include <cstdint>
#include <vector>

#include "attend/tensor.hpp"

namespace attend::labs {

enum class Bridge {
  none,      // the reader's last state is all the writer gets
  additive,  // Bahdanau et al. 2014: w . tanh(wq s + wk h), asked before each step, fed into it
  general,   // Luong et al. 2015: (wq s) . h, asked after each step
};

struct TranslatorShape {
  std::int64_t source_words = 0, target_words = 0, width = 0;
  Bridge bridge = Bridge::none;
  DType dtype = DType::f32;  // f64 to check gradients
  std::uint64_t seed = 1;
};

// Rows of equal length, padded at the end. `inputs` is what the writer is told (a start, then the words so far),
// `targets` what it is to say; -100 where there is nothing.
struct TranslationBatch {
  std::int64_t batch = 0, source_length = 0, target_length = 0;
  std::vector<std::int64_t> source, inputs, targets;  // [batch, length]
  std::vector<std::int64_t> source_lengths;           // [batch], at least 1
};

class Translator {
 public:
  explicit Translator(const TranslatorShape& shape);

  double loss(const TranslationBatch& batch) const;          // mean over targets
  double loss_and_gradients(const TranslationBatch& batch);  // fills gradients()
  double train(const TranslationBatch& batch, double rate);  // one step of Adam; f32
  struct Score {
    double rows = 0, words = 0;  // shares that are right: rows without a mistake, single words
  };
  Score score(const TranslationBatch& batch) const;       // a word is right when it has the largest logit
  Tensor alignment(const TranslationBatch& batch) const;  // [B, 1, target, source]: weights; not for Bridge::none

  std::vector<Tensor*> parameters();
  std::vector<Tensor*> gradients();
  std::int64_t parameter_count() const;

 private:
  struct Weights {
    Tensor source_table, target_table;
    Tensor read_x, read_h, read_b;              // the reader's gates: [3W, W], [3W, W], [3W]
    Tensor write_x, write_h, write_b, write_c;  // the writer's; write_c: of the context, additive alone
    Tensor wq, wk, w;                           // of the score
    Tensor out_s, out_c, head;                  // tanh(out_s s + out_c c), then the words
    std::vector<Tensor*> list();
  };
  struct Trace;

  Weights empty_weights() const;
  Trace run(const TranslationBatch& batch) const;
  void read(const TranslationBatch& batch, Trace& trace) const;
  void write(const TranslationBatch& batch, Trace& trace) const;
  void speak(const TranslationBatch& batch, Trace& trace) const;
  void speak_backward(const TranslationBatch& batch, Trace& trace);
  void write_backward(const TranslationBatch& batch, Trace& trace);
  void read_backward(const TranslationBatch& batch, Trace& trace);
  void ask_backward(Trace& trace, std::int64_t t);

  TranslatorShape shape_;
  Weights weights_, gradients_;
  std::vector<Tensor> first_, second_;
  std::int64_t steps_ = 0;
};

}  // namespace attend::labs
