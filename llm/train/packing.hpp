// Documents, shuffled by a seed and laid end to end in rows of a fixed length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llm/train/network.hpp"

namespace attend::llm {

// Tokens of a document. One that is not to be predicted (a question, the words of a user) is stored as ~token.
using DocumentTokens = std::span<const std::int32_t>;
inline std::int64_t token_of(std::int32_t stored) {
  return stored < 0 ? ~stored : stored;
}

class Documents {
 public:
  virtual ~Documents() = default;
  virtual std::int64_t count() const = 0;
  virtual DocumentTokens document(std::int64_t n) const = 0;
  virtual std::int64_t tokens() const;  // of all documents
};

// A permutation of 0 .. count-1 that needs no table: number n of it, by the key.
std::int64_t shuffled(std::int64_t n, std::int64_t count, std::uint64_t key);

// Splits documents by tokens: about `share` of all tokens are held out for validation, the rest is for training. Whole
// documents are held out, in an order given by the seed. Where they miss the share by more than a tenth of it, one text
// is cut: its end is held out, its beginning is trained on. Conversations and pairs are not cut; of two or more, at
// least one is held out. `documents` must outlive the split.
class DocumentSplit {
 public:
  // `group` consecutive documents belong together: 2 for pairs.
  DocumentSplit(const Documents& documents, double share, std::uint64_t seed, std::int64_t group = 1);

  // Documents (or pairs) with tokens for training, and with held-out tokens. A text that is cut is in both.
  std::int64_t training() const { return groups_ - whole_; }
  std::int64_t held_out() const { return whole_ + (is_cut() ? 1 : 0); }
  // The number of the n-th document (or pair) of each.
  std::int64_t training_document(std::int64_t n) const { return shuffled(n, groups_, key_); }
  std::int64_t held_out_document(std::int64_t n) const { return shuffled(groups_ - held_out() + n, groups_, key_); }
  // Its tokens; of a pair, those of its first document.
  DocumentTokens training_part(std::int64_t n) const;
  DocumentTokens held_out_part(std::int64_t n) const;

  bool is_cut() const { return cut_ > 0; }  // then held_out_part(0) is the end of a text
  bool is_of_pairs() const { return group_ == 2; }
  std::int64_t training_tokens() const { return tokens_ - held_out_tokens_; }
  std::int64_t held_out_tokens() const { return held_out_tokens_; }

 private:
  DocumentTokens group_tokens(std::int64_t number) const { return documents_->document(group_ * number); }
  std::int64_t size_of_group(std::int64_t number) const;

  const Documents* documents_;
  std::int64_t group_, groups_, whole_ = 0;  // whole_: groups that are held out entirely
  std::int64_t cut_ = 0;                     // tokens of the cut text that are trained on; 0: none is cut
  std::int64_t tokens_, held_out_tokens_ = 0;
  std::uint64_t key_;
};
// "11,204 of 1,115,394 tokens (1.00 %): the end of 1 document".
std::string describe(const DocumentSplit& split);

// What a token is to tell: the next one, or itself, where it will be hidden.
enum class Telling { next, itself };

// Orders an epoch: for shuffled().
std::uint64_t epoch_key(std::uint64_t seed, std::int64_t epoch);
// Up to `room` of the document's predictions from `offset` on, as one segment. Gives how many were taken.
std::int64_t append_document(DocumentTokens document, std::int64_t offset, std::int64_t room, TrainingBatch& batch,
                             Telling telling = Telling::next);

// Where the reading stands: all that a checkpoint needs to go on.
struct PackingState {
  std::int64_t epoch = 0, document = 0, offset = 0;  // the document's number in the epoch's order, and how much is read
  bool operator==(const PackingState&) const = default;
};

// Fills rows of `length` tokens with documents, each its own segment; what does not fit goes on in the next row as a
// segment of its own. Every epoch has another order. `alone`: a row holds one segment, with what nobody predicts
// behind.
class Packer {
 public:
  Packer(const DocumentSplit& split, std::int64_t length, std::uint64_t seed, Telling telling = Telling::next,
         bool alone = false);

  const PackingState& state() const { return state_; }
  void set_state(const PackingState& state) { state_ = state; }
  TrainingBatch next(std::int64_t rows);

 private:
  const DocumentSplit& split_;
  std::int64_t length_;
  std::uint64_t seed_;
  Telling telling_;
  bool alone_;
  PackingState state_;
};

// The held-out documents in rows, the same each time; empty when all were given.
class HeldOut {
 public:
  HeldOut(const DocumentSplit& split, std::int64_t length, Telling telling = Telling::next, bool alone = false);
  bool next(std::int64_t rows, TrainingBatch& batch);

 private:
  const DocumentSplit& split_;
  std::int64_t length_, document_ = 0, offset_ = 0;
  Telling telling_;
  bool alone_;
};

// What `rank` has of a row of one document: of 2 * ranks equal chunks, that number from the front and that from the
// back, so that with a causal mask all have the same work. ranks = 1: the row itself.
TrainingBatch part_of_row(const TrainingBatch& row, int rank, int ranks);

}  // namespace attend::llm
