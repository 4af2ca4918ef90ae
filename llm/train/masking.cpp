// Hides tokens by counter-based random numbers: the same for a step however it is computed.
#include "llm/train/masking.hpp"

#include "attend/error.hpp"
#include "base/random.hpp"

namespace attend::llm {
namespace {

constexpr std::uint64_t kStream = 0x4D41534B5EEDULL;  // apart from dropout's draws
constexpr double kHidden = 0.8, kReplaced = 0.1;

}  // namespace

TokenMasker::TokenMasker(const Tokenizer& tokenizer, double share) : share_(share) {
  const auto mask = tokenizer.special().mask ? tokenizer.special().mask : tokenizer.find("[MASK]");
  if (!mask)
    throw InvalidArgument(
        "training: the tokenizer of the documents has no [MASK], which an encoder's training hides tokens by; prepare "
        "them with the model's tokenizer");
  mask_ = *mask;
  for (std::int64_t id = 0; id < tokenizer.vocabulary(); ++id) {
    const auto token = static_cast<Token>(id);
    special_.push_back(tokenizer.is_special(token) || id == mask_);
    if (!special_.back() && !tokenizer.piece(token).empty()) ordinary_.push_back(id);
  }
  if (ordinary_.empty()) throw InvalidArgument("training: the tokenizer of the documents has special tokens alone");
}

void TokenMasker::apply(std::uint64_t seed, std::int64_t position, TrainingBatch& batch) const {
  for (std::size_t t = 0; t < batch.tokens.size(); ++t) {
    const auto draw = [&](std::uint64_t n) {
      return uniform(seed ^ kStream, 3 * (static_cast<std::uint64_t>(position) + t) + n);
    };
    const std::int64_t token = batch.tokens[t];
    if (special_[static_cast<std::size_t>(token)] || draw(0) >= share_) {
      batch.targets[t] = kIgnored;
      continue;
    }
    if (batch.targets[t] == kIgnored) continue;
    const double what = draw(1);
    if (what < kHidden)
      batch.tokens[t] = mask_;
    else if (what < kHidden + kReplaced)
      batch.tokens[t] = ordinary_[static_cast<std::size_t>(draw(2) * static_cast<double>(ordinary_.size()))];
  }
}

}  // namespace attend::llm
