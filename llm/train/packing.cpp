// Shuffling without a table, and rows filled with documents.
#include "llm/train/packing.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "attend/error.hpp"
#include "base/random.hpp"
#include "io/readable.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kMinPart = 2;  // tokens: one prediction
constexpr double kTolerance = 0.1;    // of the tokens to hold out, that whole documents may miss

// All of it is to be predicted: not a conversation.
bool is_text(DocumentTokens document) {
  return std::none_of(document.begin(), document.end(), [](std::int32_t stored) { return stored < 0; });
}

std::int64_t predictions(DocumentTokens document, Telling telling) {
  return std::ssize(document) - (telling == Telling::next ? 1 : 0);
}

// The rest of a row that holds one document.
void pad(std::int64_t room, TrainingBatch& batch) {
  batch.tokens.resize(batch.tokens.size() + static_cast<std::size_t>(room), 0);
  batch.targets.resize(batch.tokens.size(), kIgnored);
  batch.starts.back() = std::ssize(batch.tokens);
}

}  // namespace

std::int64_t append_document(DocumentTokens document, std::int64_t offset, std::int64_t room, TrainingBatch& batch,
                             Telling telling) {
  const std::int64_t count = std::min(room, predictions(document, telling) - offset);
  for (std::int64_t i = offset; i < offset + count; ++i) {
    const std::int32_t target = document[static_cast<std::size_t>(telling == Telling::next ? i + 1 : i)];
    batch.tokens.push_back(token_of(document[static_cast<std::size_t>(i)]));
    batch.targets.push_back(target < 0 ? kIgnored : target);
  }
  if (count > 0) batch.starts.push_back(std::ssize(batch.tokens));
  return std::max<std::int64_t>(0, count);
}

std::uint64_t epoch_key(std::uint64_t seed, std::int64_t epoch) {
  return seed ^ (static_cast<std::uint64_t>(epoch + 1) * 0x9E3779B97F4A7C15ULL);
}

// Four rounds of a Feistel network over the next power of four, walked until the number lies below count.
std::int64_t shuffled(std::int64_t n, std::int64_t count, std::uint64_t key) {
  const int bits =
      std::max(1, (64 - std::countl_zero(static_cast<std::uint64_t>(std::max<std::int64_t>(1, count - 1))) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  auto x = static_cast<std::uint64_t>(n);
  do {
    std::uint64_t left = x >> bits, right = x & mask;
    for (std::uint32_t round = 0; round < 4; ++round) {
      const auto words =
          philox({static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(right >> 32), round, 1}, key);
      const std::uint64_t drawn = (std::uint64_t{words[0]} << 32 | words[1]) & mask;
      left = std::exchange(right, left ^ drawn);
    }
    x = left << bits | right;
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

std::int64_t Documents::tokens() const {
  std::int64_t sum = 0;
  for (std::int64_t n = 0; n < count(); ++n) sum += std::ssize(document(n));
  return sum;
}

std::int64_t DocumentSplit::size_of_group(std::int64_t number) const {
  std::int64_t sum = 0;
  for (std::int64_t n = 0; n < group_; ++n) sum += std::ssize(documents_->document(group_ * number + n));
  return sum;
}

DocumentSplit::DocumentSplit(const Documents& documents, double share, std::uint64_t seed, std::int64_t group)
    : documents_(&documents),
      group_(group),
      groups_(documents.count() / group),
      tokens_(documents.tokens()),
      key_(seed ^ 0xA5A5F00DULL) {
  if (share <= 0 || tokens_ < 2 * kMinPart) return;
  const auto target =
      std::clamp<std::int64_t>(std::llround(share * static_cast<double>(tokens_)), kMinPart, tokens_ - kMinPart);
  // The last of the order are held out, up to the one with which there are too many.
  std::int64_t next = 0;
  for (; whole_ < groups_; ++whole_) {
    next = size_of_group(training_document(groups_ - 1 - whole_));
    if (held_out_tokens_ + next > target) break;
    held_out_tokens_ += next;
  }
  if (whole_ == groups_) return;
  const std::int64_t missing = target - held_out_tokens_, too_many = next - missing;
  if (kTolerance * static_cast<double>(target) < static_cast<double>(std::min(missing, too_many)) && group_ == 1 &&
      missing >= kMinPart && too_many >= kMinPart && is_text(group_tokens(training_document(training() - 1)))) {
    cut_ = too_many;
    held_out_tokens_ = target;
    return;
  }
  const bool is_needed = held_out_tokens_ == 0 || too_many <= missing;
  if (is_needed && whole_ + 1 < groups_) held_out_tokens_ += next, ++whole_;
}

DocumentTokens DocumentSplit::training_part(std::int64_t n) const {
  const DocumentTokens all = group_tokens(training_document(n));
  return is_cut() && n == training() - 1 ? all.first(static_cast<std::size_t>(cut_)) : all;
}

DocumentTokens DocumentSplit::held_out_part(std::int64_t n) const {
  const DocumentTokens all = group_tokens(held_out_document(n));
  return is_cut() && n == 0 ? all.subspan(static_cast<std::size_t>(cut_)) : all;
}

std::string describe(const DocumentSplit& split) {
  const std::int64_t held_out = split.held_out_tokens(), all = held_out + split.training_tokens();
  const auto counted = [&](std::int64_t count) {
    return io::readable_count(count) + (split.is_of_pairs() ? " pair" : " document") + (count == 1 ? "" : "s");
  };
  if (split.held_out() == 0) return "none of " + io::readable_count(all) + " tokens: there is no validation";
  char share[32];
  (void)std::snprintf(share, sizeof share, "%.2f", 100.0 * static_cast<double>(held_out) / static_cast<double>(all));
  const std::int64_t whole = split.held_out() - (split.is_cut() ? 1 : 0);
  const std::string end = split.is_cut() ? "the end of 1 document" : "";
  return io::readable_count(held_out) + " of " + io::readable_count(all) + " tokens (" + share +
         " %): " + (whole > 0 ? counted(whole) + (end.empty() ? "" : " and ") : "") + end;
}

Packer::Packer(const DocumentSplit& split, std::int64_t length, std::uint64_t seed, Telling telling, bool alone)
    : split_(split), length_(length), seed_(seed), telling_(telling), alone_(alone) {
  for (std::int64_t n = 0; n < split.training(); ++n)
    if (split.training_part(n).size() > 1) return;
  throw InvalidArgument("training: no document has two tokens, so there is nothing to predict");
}

TrainingBatch Packer::next(std::int64_t rows) {
  TrainingBatch batch;
  batch.starts = {0};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t room = length_; room > 0;) {
      if (state_.document >= split_.training()) state_ = {state_.epoch + 1, 0, 0};
      const std::uint64_t key = epoch_key(seed_, state_.epoch);
      const DocumentTokens document = split_.training_part(shuffled(state_.document, split_.training(), key));
      const std::int64_t taken = append_document(document, state_.offset, room, batch, telling_);
      room -= taken;
      state_.offset += taken;
      if (state_.offset >= predictions(document, telling_)) ++state_.document, state_.offset = 0;
      if (alone_ && taken > 0) pad(std::exchange(room, 0), batch);
    }
  }
  return batch;
}

HeldOut::HeldOut(const DocumentSplit& split, std::int64_t length, Telling telling, bool alone)
    : split_(split), length_(length), telling_(telling), alone_(alone) {}

bool HeldOut::next(std::int64_t rows, TrainingBatch& batch) {
  batch = {};
  batch.starts = {0};
  for (std::int64_t row = 0; row < rows && document_ < split_.held_out(); ++row) {
    for (std::int64_t room = length_; room > 0 && document_ < split_.held_out();) {
      const DocumentTokens document = split_.held_out_part(document_);
      const std::int64_t taken = append_document(document, offset_, room, batch, telling_);
      room -= taken;
      offset_ += taken;
      if (offset_ >= predictions(document, telling_)) ++document_, offset_ = 0;
      if (alone_ && taken > 0) pad(std::exchange(room, 0), batch);
    }
  }
  return !batch.tokens.empty();
}

TrainingBatch part_of_row(const TrainingBatch& row, int rank, int ranks) {
  if (ranks == 1) return row;
  const std::int64_t chunk = std::ssize(row.tokens) / (2 * ranks);
  TrainingBatch part;
  for (const std::int64_t n : {rank, 2 * ranks - 1 - rank})
    for (std::int64_t place = n * chunk; place < (n + 1) * chunk; ++place) {
      part.places.push_back(place);
      part.tokens.push_back(row.tokens[static_cast<std::size_t>(place)]);
      part.targets.push_back(row.targets[static_cast<std::size_t>(place)]);
    }
  part.starts = {0, std::ssize(part.tokens)};
  return part;
}

}  // namespace attend::llm
