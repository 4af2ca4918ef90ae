// Distillation: a network learns from the logits of another.
#pragma once

#include <cstdint>
#include <vector>

#include "llm/train/network.hpp"

namespace attend::llm {

struct DistilOptions {
  double alpha = 0.5;        // the cross-entropy's part; the rest is the divergence's
  double temperature = 1.5;  // of both softmaxes in the divergence
};

// Sums over the targets.
struct DistilLoss {
  double cross_entropy = 0;
  double divergence = 0;  // temperature^2 * KL(teacher || student)
  double total = 0;       // alpha * cross_entropy + (1 - alpha) * divergence
};

// Over two networks that outlive it, the teacher frozen or not, with one vocabulary and parameters of one type. The
// logits of both are made in that type for some rows at a time: at most 8 MiB of them, five times.
class Distiller {
 public:
  Distiller(Network& student, Network& teacher, const DistilOptions& options);

  DistilLoss loss(const TrainingBatch& batch);
  // Writes the gradient of factor times the total to the student's gradients, or adds it to what is there.
  DistilLoss loss_and_gradients(const TrainingBatch& batch, double factor, bool add, std::uint64_t seed = 0);
  std::int64_t bytes() const;  // of working memory

 private:
  struct Side {
    Network* network;
    Tensor picked, rows, logits;  // a chunk's rows as the network has them, as its parameters are, and their logits
    View hidden;
  };
  void make_logits(Side& side, const std::vector<std::int32_t>& tokens);
  // The logits of a chunk become the gradient of factor times its loss, in gradient_.
  void chunk_loss(const std::vector<std::int32_t>& tokens, const TrainingBatch& batch, double factor, DistilLoss& sums);
  std::vector<std::vector<std::int32_t>> begin(const TrainingBatch& batch, std::uint64_t seed, bool training);

  DistilOptions options_;
  DType dtype_;
  std::int64_t vocabulary_, most_;  // rows of a chunk
  Side student_, teacher_;
  Tensor teacher_softmax_, student_softmax_, gradient_, drows_;
};

}  // namespace attend::llm
