// What a stage minimises: takes the next batch, and leaves loss and gradient, the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llm/train/dataset.hpp"
#include "llm/train/masking.hpp"
#include "llm/train/network.hpp"
#include "llm/train/ranks.hpp"
#include "llm/train/train_config.hpp"

namespace attend::llm {

struct Measured {
  double loss = 0;                                     // mean over the targets
  std::int64_t targets = 0;                            // tokens that were predicted, or pairs that were compared
  std::int64_t tokens = 0;                             // that went through the network
  std::vector<std::pair<std::string, double>> more{};  // what else the stage tells: a margin, ...
};

class Objective {
 public:
  virtual ~Objective() = default;
  // The gradient of the next batch's mean loss is in the network's gradients() then. `seed` is the step's.
  virtual Measured step(std::uint64_t seed) = 0;
  virtual Measured validate() = 0;  // the held-out documents, the same each time; no targets: there are none
  virtual PackingState state() const = 0;
  virtual void set_state(const PackingState& state) = 0;
  virtual std::int64_t steps(double epochs) const = 0;
  virtual std::string last_batch() const = 0;  // for a message: which documents it was
};

// What a run trains on and what it validates with; pairs stay whole.
DocumentSplit split_of(const Dataset& data, const TrainConfig& config);

// The next token, given those before: pretraining, and fine-tuning where only answers are targets.
std::unique_ptr<Objective> language_objective(Network& network, const DocumentSplit& split, const TrainConfig& config,
                                              Ranks& ranks);
// Tokens that are hidden, given all others: an encoder's pretraining.
std::unique_ptr<Objective> masked_objective(Network& network, const DocumentSplit& split, const TrainConfig& config,
                                            const TokenMasker& masker, Ranks& ranks);
// The next token, and the logits of a teacher beside it.
std::unique_ptr<Objective> distil_objective(Network& network, Network& teacher, const DocumentSplit& split,
                                            const TrainConfig& config, Ranks& ranks);
// Pairs of documents: the first of a pair is to become likelier than the second, by a frozen reference's measure. The
// split is one of pairs.
std::unique_ptr<Objective> preference_objective(Network& network, Network& reference, const Dataset& data,
                                                const DocumentSplit& split, const TrainConfig& config, Ranks& ranks);

// A step's batch is cut into parts of so many rows, part n for rank n % ranks; where the settings do not say how many,
// each rank has one part. With ring the rows come one after the other, and a part is what a rank has of a row.
std::int64_t rows_at_once(const TrainConfig& config, int ranks);
std::int64_t parts_of_step(const TrainConfig& config, int ranks);
// The most tokens that a stage gives a network at once.
std::int64_t tokens_at_once(Stage stage, const TrainConfig& config, int ranks);

}  // namespace attend::llm
