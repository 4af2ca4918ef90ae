// The next token, a teacher's logits, and pairs by preference.
#include "llm/train/objective.hpp"

#include <algorithm>
#include <cmath>

#include "llm/train/distil.hpp"
#include "llm/train/dpo.hpp"

namespace attend::llm {
namespace {

std::int64_t targets_of(const TrainingBatch& batch) {
  return std::ssize(batch.targets) - std::count(batch.targets.begin(), batch.targets.end(), kIgnored);
}

// Rows of packed documents; what is made of a part of a batch is the stage's.
class PackedObjective : public Objective {
 public:
  PackedObjective(Network& network, const DocumentSplit& split, const TrainConfig& config, Ranks& ranks,
                  Telling telling = Telling::next)
      : config_(config),
        split_(split),
        telling_(telling),
        ranks_(ranks),
        at_once_(rows_at_once(config, ranks.count())),
        sum_(network, ranks, parts_of_step(config, ranks.count())),
        packer_(split, config.length, config.seed, telling, config.ring) {
    if (config.ring) network.set_spread_attention(ranks.spread_attention());
  }

  Measured step(std::uint64_t seed) override {
    before_ = packer_.state();
    // All rows of the step first: each target counts the same, whatever part of the batch it is in, and every rank
    // knows where the next step begins.
    std::vector<TrainingBatch> parts;
    Measured measured;
    for (std::int64_t row = 0; row < config_.batch; row += at_once_) {
      TrainingBatch rows = packer_.next(at_once_);
      hide(seed, row * config_.length, rows);
      add_parts_of(rows, parts, measured);
    }
    const double factor = 1.0 / static_cast<double>(std::max<std::int64_t>(1, measured.targets));
    std::vector<double> losses(parts.size());
    sum_.run([&](std::int64_t part) {
      const auto i = static_cast<std::size_t>(part);
      losses[i] = gradients(parts[i], factor, seed + i);
    });
    ranks_.sum(losses);
    for (const double loss : losses) measured.loss += factor * loss;
    return measured;
  }

  Measured validate() override {
    Measured measured;
    HeldOut held_out(split_, config_.length, telling_, config_.ring);
    // So many rows, whatever part of them is computed at once.
    std::int64_t left = (config_.validate_tokens + config_.length - 1) / config_.length;
    std::vector<double> losses;
    for (TrainingBatch batch; left > 0 && held_out.next(std::min(left, at_once_), batch); left -= at_once_) {
      hide(config_.seed, measured.tokens, batch);  // the same each time
      std::vector<TrainingBatch> parts;
      add_parts_of(batch, parts, measured);
      for (const TrainingBatch& part : parts) losses.push_back(sum_.is_own(std::ssize(losses)) ? loss(part) : 0.0);
    }
    ranks_.sum(losses);
    for (const double one : losses) measured.loss += one;
    measured.loss /= static_cast<double>(std::max<std::int64_t>(1, measured.targets));
    return measured;
  }

  PackingState state() const override { return packer_.state(); }
  void set_state(const PackingState& state) override { packer_.set_state(state); }

  std::int64_t steps(double epochs) const override {
    const std::int64_t last = telling_ == Telling::next ? split_.training() : 0;  // a document's last token
    const auto predictions = static_cast<double>(split_.training_tokens() - last);
    return std::max<std::int64_t>(
        1, std::llround(std::ceil(epochs * predictions / static_cast<double>(config_.batch * config_.length))));
  }

  std::string last_batch() const override {
    return "documents " + std::to_string(before_.document) + " to " + std::to_string(packer_.state().document) +
           " in the order of epoch " + std::to_string(before_.epoch + 1);
  }

 protected:
  // The sum over the targets; the gradient of factor times that is written.
  virtual double gradients(const TrainingBatch& batch, double factor, std::uint64_t seed) = 0;
  virtual double loss(const TrainingBatch& batch) = 0;
  // What is not to be seen of a batch whose first token is at `position` of the step.
  virtual void hide(std::uint64_t seed, std::int64_t position, TrainingBatch& batch) {
    (void)seed, (void)position, (void)batch;
  }

  TrainConfig config_;

 private:
  // Rows as they are; or one row, a part of which each rank has.
  void add_parts_of(const TrainingBatch& rows, std::vector<TrainingBatch>& parts, Measured& measured) const {
    const int shares = config_.ring ? ranks_.count() : 1;
    for (int share = 0; share < shares; ++share) parts.push_back(part_of_row(rows, share, shares));
    measured.targets += targets_of(rows);
    measured.tokens += std::ssize(rows.tokens);
  }

  const DocumentSplit& split_;
  Telling telling_;
  Ranks& ranks_;
  std::int64_t at_once_;
  GradientSum sum_;
  Packer packer_;
  PackingState before_;
};

class LanguageObjective : public PackedObjective {
 public:
  LanguageObjective(Network& network, const DocumentSplit& split, const TrainConfig& config, Ranks& ranks,
                    Telling telling = Telling::next)
      : PackedObjective(network, split, config, ranks, telling), network_(network) {}

 protected:
  double gradients(const TrainingBatch& batch, double factor, std::uint64_t seed) override {
    return network_.loss_and_gradients(batch, factor, false, seed);
  }
  double loss(const TrainingBatch& batch) override { return network_.loss(batch); }

 private:
  Network& network_;
};

class MaskedObjective : public LanguageObjective {
 public:
  MaskedObjective(Network& network, const DocumentSplit& split, const TrainConfig& config, TokenMasker masker,
                  Ranks& ranks)
      : LanguageObjective(network, split, config, ranks, Telling::itself), masker_(std::move(masker)) {}

 protected:
  void hide(std::uint64_t seed, std::int64_t position, TrainingBatch& batch) override {
    masker_.apply(seed, position, batch);
  }

 private:
  TokenMasker masker_;
};

class DistilObjective : public PackedObjective {
 public:
  DistilObjective(Network& network, Network& teacher, const DocumentSplit& split, const TrainConfig& config,
                  Ranks& ranks)
      : PackedObjective(network, split, config, ranks),
        network_(network),
        distiller_(network, teacher, {.alpha = config.distil_alpha, .temperature = config.distil_temperature}) {}

 protected:
  double gradients(const TrainingBatch& batch, double factor, std::uint64_t seed) override {
    return distiller_.loss_and_gradients(batch, factor, false, seed).total;
  }
  double loss(const TrainingBatch& batch) override { return network_.loss(batch); }  // plain, to compare runs by

 private:
  Network& network_;
  Distiller distiller_;
};

class PreferenceObjective : public Objective {
 public:
  PreferenceObjective(Network& network, Network& reference, const Dataset& data, const DocumentSplit& split,
                      const TrainConfig& config, Ranks& ranks)
      : network_(network),
        reference_(reference),
        data_(data),
        split_(split),
        config_(config),
        ranks_(ranks),
        at_once_(rows_at_once(config, ranks.count())),
        sum_(network, ranks, parts_of_step(config, ranks.count())) {}

  Measured step(std::uint64_t seed) override {
    before_ = state_;
    std::vector<TrainingBatch> parts;
    Sums sums;
    for (std::int64_t pair = 0; pair < config_.batch; pair += at_once_) {
      parts.push_back(next(at_once_));
      sums.begin(parts.back());
    }
    sum_.run([&](std::int64_t n) {
      const auto part = static_cast<std::size_t>(n);
      sums.put(part, run(parts[part], 1.0 / static_cast<double>(config_.batch), true,
                         seed + static_cast<std::uint64_t>(n * at_once_)));
    });
    return sums.measured(ranks_);
  }

  Measured validate() override {
    Sums sums;
    for (std::int64_t pair = 0; pair < split_.held_out() && sums.tokens < config_.validate_tokens; pair += at_once_) {
      TrainingBatch batch;
      batch.starts = {0};
      for (std::int64_t i = pair; i < std::min(pair + at_once_, split_.held_out()); ++i)
        add(split_.held_out_document(i), batch);
      const std::size_t part = sums.begin(batch);
      if (sum_.is_own(static_cast<std::int64_t>(part))) sums.put(part, run(batch, 1, false, 0));
    }
    return sums.measured(ranks_);
  }

  PackingState state() const override { return state_; }
  void set_state(const PackingState& state) override { state_ = state; }
  std::int64_t steps(double epochs) const override {
    return std::max<std::int64_t>(1, std::llround(std::ceil(epochs * static_cast<double>(split_.training()) /
                                                            static_cast<double>(config_.batch))));
  }
  std::string last_batch() const override {
    return "pairs " + std::to_string(before_.document) + " to " + std::to_string(state_.document) +
           " in the order of epoch " + std::to_string(before_.epoch + 1);
  }

 private:
  // What was measured of each part, by the rank that computed it.
  struct Sums {
    static constexpr std::size_t kNumbers = 4;
    std::vector<double> numbers;
    std::int64_t tokens = 0;

    std::size_t begin(const TrainingBatch& batch) {
      tokens += std::ssize(batch.tokens);
      numbers.resize(numbers.size() + kNumbers);
      return numbers.size() / kNumbers - 1;
    }
    void put(std::size_t part, const DpoLoss& loss) {
      const double values[] = {loss.loss, loss.margin, static_cast<double>(loss.pairs),
                               static_cast<double>(loss.preferred)};
      std::copy_n(values, kNumbers, numbers.begin() + static_cast<std::ptrdiff_t>(part * kNumbers));
    }
    Measured measured(Ranks& ranks) {
      ranks.sum(numbers);
      double loss = 0, margin = 0, pairs = 0, preferred = 0;
      for (std::size_t n = 0; n < numbers.size(); n += kNumbers)
        loss += numbers[n], margin += numbers[n + 1], pairs += numbers[n + 2], preferred += numbers[n + 3];
      const double of = std::max(1.0, pairs);
      return {loss / of, std::llround(pairs), tokens, {{"margin", margin / of}, {"preferred", preferred / of}}};
    }
  };

  // Both documents of a pair, from the beginning to at most `length` predictions each.
  void add(std::int64_t pair, TrainingBatch& batch) const {
    for (const std::int64_t n : {2 * pair, 2 * pair + 1}) append_document(data_.document(n), 0, config_.length, batch);
  }

  TrainingBatch next(std::int64_t pairs) {
    TrainingBatch batch;
    batch.starts = {0};
    for (std::int64_t i = 0; i < pairs; ++i) {
      if (state_.document >= split_.training()) state_ = {state_.epoch + 1, 0, 0};
      add(split_.training_document(
              shuffled(state_.document++, split_.training(), epoch_key(config_.seed, state_.epoch))),
          batch);
    }
    return batch;
  }

  DpoLoss run(const TrainingBatch& batch, double factor, bool training, std::uint64_t seed) {
    (void)reference_.loss(batch);
    const std::vector<double> reference = document_log_probabilities(batch, reference_.losses());
    (void)network_.forward(batch, seed, training);
    const std::vector<double> policy = document_log_probabilities(batch, network_.losses());
    std::vector<double> factors(batch.tokens.size());
    const DpoLoss loss = dpo_loss(batch, policy, reference, config_.dpo_beta, factor, factors);
    if (training) network_.backward(batch, factors, false);
    return loss;
  }

  Network &network_, &reference_;
  const Dataset& data_;
  const DocumentSplit& split_;
  TrainConfig config_;
  Ranks& ranks_;
  std::int64_t at_once_;
  GradientSum sum_;
  PackingState state_, before_;
};

}  // namespace

DocumentSplit split_of(const Dataset& data, const TrainConfig& config) {
  return {data, config.held_out, config.seed, data.info().kind == DataKind::preference ? 2 : 1};
}

std::unique_ptr<Objective> language_objective(Network& network, const DocumentSplit& split, const TrainConfig& config,
                                              Ranks& ranks) {
  return std::make_unique<LanguageObjective>(network, split, config, ranks);
}
std::unique_ptr<Objective> masked_objective(Network& network, const DocumentSplit& split, const TrainConfig& config,
                                            const TokenMasker& masker, Ranks& ranks) {
  return std::make_unique<MaskedObjective>(network, split, config, masker, ranks);
}
std::unique_ptr<Objective> distil_objective(Network& network, Network& teacher, const DocumentSplit& split,
                                            const TrainConfig& config, Ranks& ranks) {
  return std::make_unique<DistilObjective>(network, teacher, split, config, ranks);
}
std::unique_ptr<Objective> preference_objective(Network& network, Network& reference, const Dataset& data,
                                                const DocumentSplit& split, const TrainConfig& config, Ranks& ranks) {
  return std::make_unique<PreferenceObjective>(network, reference, data, split, config, ranks);
}

std::int64_t rows_at_once(const TrainConfig& config, int ranks) {
  if (config.ring) return 1;
  return config.rows_at_once == 0 ? config.batch / ranks : config.rows_at_once;
}
std::int64_t parts_of_step(const TrainConfig& config, int ranks) {
  return config.batch / rows_at_once(config, ranks) * (config.ring ? ranks : 1);
}
std::int64_t tokens_at_once(Stage stage, const TrainConfig& config, int ranks) {
  return rows_at_once(config, ranks) * config.length * (stage == Stage::dpo ? 2 : 1) / (config.ring ? ranks : 1);
}

}  // namespace attend::llm
