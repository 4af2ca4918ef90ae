// Rows of documents: each prediction once an epoch, none across documents, and the same from any state on.
#include "llm/train/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "training_files.hpp"

namespace attend::llm::test {
namespace {

// Document d has the tokens 1000 d, 1000 d + 1, ...: each prediction names its place.
ListOfDocuments counted(const std::vector<int>& lengths) {
  std::vector<std::vector<std::int32_t>> list;
  for (const int length : lengths) {
    list.emplace_back();
    for (int i = 0; i < length; ++i) list.back().push_back(static_cast<std::int32_t>(1000 * (list.size() - 1)) + i);
  }
  return ListOfDocuments(std::move(list));
}
const std::vector<int> kLengths = {5, 0, 17, 1, 2, 40, 8, 1, 0, 3, 23, 9, 2, 64, 5, 6, 7, 31, 2, 4};

void expect_same(const TrainingBatch& a, const TrainingBatch& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.targets, b.targets);
  EXPECT_EQ(a.starts, b.starts);
}

// Segments lie end to end, none crosses a row or a document.
void expect_whole_segments(const TrainingBatch& batch, std::int64_t length) {
  ASSERT_EQ(batch.starts.front(), 0);
  ASSERT_EQ(batch.starts.back(), std::ssize(batch.tokens));
  ASSERT_EQ(batch.tokens.size(), batch.targets.size());
  for (std::size_t s = 0; s + 1 < batch.starts.size(); ++s) {
    const std::int64_t begin = batch.starts[s], end = batch.starts[s + 1];
    ASSERT_LT(begin, end);
    ASSERT_EQ(begin / length, (end - 1) / length) << "a segment lies in two rows";
    for (std::int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(batch.targets[at], batch.tokens[at] + 1) << "a token predicts the one behind it";
      ASSERT_TRUE(i == begin || batch.tokens[at] == batch.tokens[at - 1] + 1) << "two documents in one segment";
    }
  }
}

TEST(Shuffled, IsAPermutation) {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097})
    for (const std::uint64_t key : {0ULL, 1ULL, ~0ULL}) {
      std::vector<bool> seen(static_cast<std::size_t>(count));
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t at = shuffled(n, count, key);
        ASSERT_GE(at, 0);
        ASSERT_LT(at, count);
        ASSERT_FALSE(seen[static_cast<std::size_t>(at)]) << count;
        seen[static_cast<std::size_t>(at)] = true;
      }
    }
}

TEST(Shuffled, OrdersByItsKey) {
  const auto order = [](std::uint64_t key) {
    std::vector<std::int64_t> all;
    for (std::int64_t n = 0; n < 1000; ++n) all.push_back(shuffled(n, 1000, key));
    return all;
  };
  const auto one = order(epoch_key(1, 0)), two = order(epoch_key(1, 1)), other = order(epoch_key(2, 0));
  for (const auto& [a, b] : {std::pair{&one, &two}, {&one, &other}, {&two, &other}}) {
    int same = 0;
    for (std::size_t i = 0; i < 1000; ++i) same += (*a)[i] == (*b)[i];
    EXPECT_LT(same, 10);
  }
  int rising = 0;
  for (std::size_t i = 0; i + 1 < 1000; ++i) rising += one[i] < one[i + 1];
  EXPECT_NEAR(rising, 500, 100);
  // The same everywhere: a run goes on to the same bits on another machine.
  EXPECT_EQ((std::vector(one.begin(), one.begin() + 5)), (std::vector<std::int64_t>{262, 657, 413, 139, 517}));
}

TEST(DocumentSplit, Parts) {
  for (const auto& [documents, share, held_out] : {std::tuple{100, 0.1, 10},
                                                   {100, 0.0, 0},
                                                   {100, 1e-9, 1},
                                                   {1, 0.5, 0},
                                                   {2, 0.5, 1},
                                                   {2, 0.9999, 1},
                                                   {3, 0.5, 2}}) {
    const DocumentSplit split(documents, share, 7);
    EXPECT_EQ(split.held_out(), held_out) << documents << " " << share;
    std::set<std::int64_t> all;
    for (std::int64_t n = 0; n < split.training(); ++n) all.insert(split.training_document(n));
    for (std::int64_t n = 0; n < split.held_out(); ++n) all.insert(split.held_out_document(n));
    EXPECT_EQ(std::ssize(all), documents) << "each is in one part";
  }
}

TEST(Packer, GivesEveryPredictionOnceAnEpochAndNoneHeldOut) {
  const ListOfDocuments documents = counted(kLengths);
  const DocumentSplit split(documents.count(), 0.2, 3);
  std::set<std::int64_t> held_out;
  for (std::int64_t n = 0; n < split.held_out(); ++n) held_out.insert(split.held_out_document(n));
  std::map<std::int64_t, int> expected;
  std::int64_t predictions = 0;
  for (std::int64_t d = 0; d < documents.count(); ++d)
    for (std::int64_t i = 0; i + 1 < std::ssize(documents.document(d)); ++i)
      if (!held_out.contains(d)) expected[1000 * d + i] = 1, ++predictions;

  Packer packer(documents, split, 16, 5);
  std::vector<std::int64_t> stream;
  while (std::ssize(stream) < 3 * predictions) {
    const TrainingBatch batch = packer.next(3);
    ASSERT_EQ(batch.tokens.size(), 48U);
    expect_whole_segments(batch, 16);
    stream.insert(stream.end(), batch.tokens.begin(), batch.tokens.end());
  }
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    epochs.emplace_back(stream.begin() + epoch * predictions, stream.begin() + (epoch + 1) * predictions);
    std::map<std::int64_t, int> seen;
    for (const std::int64_t token : epochs.back()) ++seen[token];
    EXPECT_EQ(seen, expected) << "epoch " << epoch;
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(Packer, GoesOnFromAnyState) {
  const ListOfDocuments documents = counted(kLengths);
  const DocumentSplit split(documents.count(), 0.1, 3);
  for (const std::int64_t length : {1, 7, 16, 100}) {
    Packer packer(documents, split, length, 9);
    std::vector<PackingState> states;
    std::vector<TrainingBatch> batches;
    for (int n = 0; n < 60; ++n) {
      states.push_back(packer.state());
      batches.push_back(packer.next(2));
    }
    for (std::size_t n = 0; n < states.size(); n += 7) {
      Packer again(documents, split, length, 9);
      again.set_state(states[n]);
      for (std::size_t k = n; k < states.size(); ++k) {
        EXPECT_EQ(again.state(), states[k]);
        expect_same(again.next(2), batches[k]);
      }
    }
    // Rows asked for one at a time are the same rows.
    Packer single(documents, split, length, 9);
    for (const TrainingBatch& batch : batches) {
      std::vector<std::int64_t> tokens = single.next(1).tokens;
      const std::vector<std::int64_t> second = single.next(1).tokens;
      tokens.insert(tokens.end(), second.begin(), second.end());
      EXPECT_EQ(tokens, batch.tokens);
    }
  }
}

TEST(Packer, ReadsAnotherOrderByAnotherSeed) {
  const ListOfDocuments documents = counted(kLengths);
  const DocumentSplit split(documents.count(), 0, 3);
  EXPECT_NE(Packer(documents, split, 64, 1).next(1).tokens, Packer(documents, split, 64, 2).next(1).tokens);
}

TEST(Packer, PredictsOnlyWhatIsToBeLearnt) {
  const ListOfDocuments documents({{~10, ~11, 12, 13, ~14, 15}});
  const DocumentSplit split(1, 0, 1);
  const TrainingBatch batch = Packer(documents, split, 5, 1).next(1);
  EXPECT_EQ(batch.tokens, (std::vector<std::int64_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{kIgnored, 12, 13, kIgnored, 15}));
}

TEST(Packer, RefusesDocumentsWithoutAnythingToPredict) {
  for (const auto& lengths : {std::vector<int>{0}, {0, 0, 0}, {1}, {1, 0, 1, 1}}) {
    const ListOfDocuments documents = counted(lengths);
    const DocumentSplit split(documents.count(), 0, 1);
    expect_in(refusal_of([&] { Packer(documents, split, 8, 1); }), "no document has two tokens");
  }
  // One has, but it is held out.
  const DocumentSplit split(2, 0.5, 1);
  std::vector<int> lengths = {1, 1};
  lengths[static_cast<std::size_t>(split.held_out_document(0))] = 50;
  const ListOfDocuments documents = counted(lengths);
  expect_in(refusal_of([&] { Packer(documents, split, 8, 1); }), "no document has two tokens");
}

TEST(Packer, DoesNotHangInAStateThatCannotBe) {
  const ListOfDocuments documents = counted({5, 6});
  const DocumentSplit split(2, 0, 1);
  for (const PackingState state : {PackingState{0, 2, 0},
                                   {0, 3, 0},
                                   {0, std::int64_t{1} << 60, 0},
                                   {0, 1, 99},
                                   {std::int64_t{1} << 60, 0, 0},
                                   {0, 0, std::int64_t{1} << 60}}) {
    Packer packer(documents, split, 8, 1);
    packer.set_state(state);
    for (int n = 0; n < 4; ++n) expect_whole_segments(packer.next(2), 8);
    EXPECT_LT(packer.state().document, 3) << "the epochs go on";
  }
}

TEST(HeldOut, GivesEachPredictionOnceAndTheSameEachTime) {
  const ListOfDocuments documents = counted(kLengths);
  const DocumentSplit split(documents.count(), 0.4, 11);
  std::vector<std::int64_t> expected;
  for (std::int64_t n = 0; n < split.held_out(); ++n) {
    const std::int64_t d = split.held_out_document(n);
    for (std::int64_t i = 0; i + 1 < std::ssize(documents.document(d)); ++i) expected.push_back(1000 * d + i);
  }
  for (int time = 0; time < 2; ++time) {
    HeldOut held_out(documents, split, 16);
    std::vector<std::int64_t> tokens;
    for (TrainingBatch batch; held_out.next(2, batch);) {
      expect_whole_segments(batch, 16);
      EXPECT_LE(std::ssize(batch.tokens), 32);
      tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
    }
    EXPECT_EQ(tokens, expected);
  }
}

TEST(HeldOut, MayHoldNothing) {
  const ListOfDocuments none = counted({5, 1, 0});
  const DocumentSplit split(3, 0, 1);
  TrainingBatch batch;
  EXPECT_FALSE(HeldOut(none, split, 4).next(2, batch));
  const ListOfDocuments empty = counted({0, 1, 0, 1});
  const DocumentSplit half(4, 0.5, 1);
  EXPECT_FALSE(HeldOut(empty, half, 4).next(2, batch));
}

}  // namespace
}  // namespace attend::llm::test
