// Shuffling without a table, and rows filled with documents.
#include "llm/train/packing.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "attend/error.hpp"
#include "base/random.hpp"

namespace attend::llm {
namespace {

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

DocumentSplit::DocumentSplit(std::int64_t documents, double share, std::uint64_t seed)
    : documents_(documents), held_out_(0), key_(seed ^ 0xA5A5F00DULL) {
  if (share <= 0 || documents < 2) return;
  held_out_ = std::clamp<std::int64_t>(std::llround(share * static_cast<double>(documents)), 1, documents - 1);
}

Packer::Packer(const Documents& documents, const DocumentSplit& split, std::int64_t length, std::uint64_t seed,
               Telling telling, bool alone)
    : documents_(documents), split_(split), length_(length), seed_(seed), telling_(telling), alone_(alone) {
  for (std::int64_t n = 0; n < split.training(); ++n)
    if (documents.document(split.training_document(n)).size() > 1) return;
  throw InvalidArgument("training: no document has two tokens, so there is nothing to predict");
}

TrainingBatch Packer::next(std::int64_t rows) {
  TrainingBatch batch;
  batch.starts = {0};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t room = length_; room > 0;) {
      if (state_.document >= split_.training()) state_ = {state_.epoch + 1, 0, 0};
      const std::uint64_t key = epoch_key(seed_, state_.epoch);
      const std::int64_t which = split_.training_document(shuffled(state_.document, split_.training(), key));
      const DocumentTokens document = documents_.document(which);
      const std::int64_t taken = append_document(document, state_.offset, room, batch, telling_);
      room -= taken;
      state_.offset += taken;
      if (state_.offset >= predictions(document, telling_)) ++state_.document, state_.offset = 0;
      if (alone_ && taken > 0) pad(std::exchange(room, 0), batch);
    }
  }
  return batch;
}

HeldOut::HeldOut(const Documents& documents, const DocumentSplit& split, std::int64_t length, Telling telling,
                 bool alone)
    : documents_(documents), split_(split), length_(length), telling_(telling), alone_(alone) {}

bool HeldOut::next(std::int64_t rows, TrainingBatch& batch) {
  batch = {};
  batch.starts = {0};
  for (std::int64_t row = 0; row < rows && document_ < split_.held_out(); ++row) {
    for (std::int64_t room = length_; room > 0 && document_ < split_.held_out();) {
      const DocumentTokens document = documents_.document(split_.held_out_document(document_));
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
