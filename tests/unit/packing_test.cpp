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

// Tokens of a split's parts, each with its document: none is in both, and none is missing.
void expect_every_token_once(const ListOfDocuments& documents, const DocumentSplit& split) {
  std::multiset<std::int32_t> expected, found;
  for (std::int64_t d = 0; d < documents.count(); ++d)
    for (const std::int32_t token : documents.document(d)) expected.insert(token);
  std::int64_t training = 0, held_out = 0;
  for (std::int64_t n = 0; n < split.training(); ++n)
    for (const std::int32_t token : split.training_part(n)) found.insert(token), ++training;
  for (std::int64_t n = 0; n < split.held_out(); ++n)
    for (const std::int32_t token : split.held_out_part(n)) found.insert(token), ++held_out;
  EXPECT_EQ(found, expected);
  EXPECT_EQ(training, split.training_tokens());
  EXPECT_EQ(held_out, split.held_out_tokens());
}

ListOfDocuments texts(const std::vector<int>& lengths) {
  std::vector<std::vector<std::int32_t>> list;
  std::int32_t next = 0;
  for (const int length : lengths)
    for (list.emplace_back(); std::ssize(list.back()) < length;) list.back().push_back(next++);
  return ListOfDocuments(std::move(list));
}
// Every second token is not to be predicted.
ListOfDocuments conversations(const std::vector<int>& lengths) {
  std::vector<std::vector<std::int32_t>> list;
  std::int32_t next = 0;
  for (const int length : lengths)
    for (list.emplace_back(); std::ssize(list.back()) < length; ++next)
      list.back().push_back(next % 2 == 0 ? ~next : next);
  return ListOfDocuments(std::move(list));
}

// One file, a book of four pieces, pieces with a small rest, and many documents: what is asked for is held out.
TEST(DocumentSplit, HoldsOutTheShareOfTokensThatIsAskedFor) {
  std::vector<int> many;
  for (int n = 0; n < 1000; ++n) many.push_back(5 + n * 37 % 200);
  for (const auto& lengths :
       {std::vector<int>{5000}, {9400, 600}, {600, 9400}, {2500, 2500, 2500, 2500}, {1, 4000, 0}, many})
    for (const double share : {0.01, 0.1, 0.5})
      for (const std::uint64_t seed : {1ULL, 2ULL, 3ULL}) {
        const ListOfDocuments documents = texts(lengths);
        const DocumentSplit split(documents, share, seed);
        const auto asked = share * static_cast<double>(documents.tokens());
        EXPECT_NEAR(static_cast<double>(split.held_out_tokens()), asked, 0.1 * asked + 1)
            << lengths.size() << " " << share;
        expect_every_token_once(documents, split);
      }
}

TEST(DocumentSplit, KeepsDocumentsWholeWhereTheyCanBe) {
  const ListOfDocuments documents = texts(std::vector<int>(100, 20));
  const DocumentSplit split(documents, 0.1, 7);
  EXPECT_FALSE(split.is_cut());
  EXPECT_EQ(split.held_out(), 10);
  EXPECT_EQ(split.training(), 90);
  std::set<std::int64_t> all;
  for (std::int64_t n = 0; n < split.training(); ++n) all.insert(split.training_document(n));
  for (std::int64_t n = 0; n < split.held_out(); ++n) all.insert(split.held_out_document(n));
  EXPECT_EQ(std::ssize(all), 100) << "each is in one part";
}

TEST(DocumentSplit, CutsOneTextAndTrainsOnItsBeginning) {
  const ListOfDocuments documents = texts({1000});
  const DocumentSplit split(documents, 0.01, 1);
  ASSERT_TRUE(split.is_cut());
  EXPECT_EQ(split.training(), 1);
  EXPECT_EQ(split.held_out(), 1);
  EXPECT_EQ(split.training_part(0).back(), 989);
  EXPECT_EQ(split.held_out_part(0).front(), 990);
}

TEST(DocumentSplit, NeverCutsConversationsAndPairs) {
  for (const auto& [count, share, held_out] : {std::tuple{100, 0.1, 10},
                                               {100, 0.0, 0},
                                               {100, 1e-9, 1},
                                               {1, 0.5, 0},
                                               {2, 0.5, 1},
                                               {2, 0.9999, 1},
                                               {3, 0.5, 2}}) {
    const ListOfDocuments chats = conversations(std::vector<int>(static_cast<std::size_t>(count), 20));
    const DocumentSplit split(chats, share, 7);
    EXPECT_FALSE(split.is_cut());
    EXPECT_EQ(split.held_out(), held_out) << count << " " << share;
    expect_every_token_once(chats, split);
    const ListOfDocuments pairs = texts(std::vector<int>(static_cast<std::size_t>(2 * count), 20));
    const DocumentSplit of_pairs(pairs, share, 7, 2);
    EXPECT_FALSE(of_pairs.is_cut());
    EXPECT_EQ(of_pairs.held_out(), held_out) << count << " " << share;
    EXPECT_EQ(of_pairs.training() + of_pairs.held_out(), count);
    EXPECT_EQ(of_pairs.held_out_tokens(), 40 * held_out);
  }
}

TEST(DocumentSplit, LeavesSomethingToTrainOn) {
  for (const auto& lengths : {std::vector<int>{}, {0}, {1}, {2}, {3}, {0, 0}, {4}, {1, 3}, {2, 2, 0}})
    for (const double share : {1e-9, 0.5, 0.9999}) {
      const ListOfDocuments documents = texts(lengths);
      const DocumentSplit split(documents, share, 1);
      expect_every_token_once(documents, split);
      EXPECT_TRUE(documents.tokens() == 0 || split.training_tokens() > 0);
    }
}

TEST(DocumentSplit, SaysWhatIsHeldOut) {
  const auto said = [](const ListOfDocuments& documents, double share, std::int64_t group = 1) {
    return describe(DocumentSplit(documents, share, 1, group));
  };
  EXPECT_EQ(said(texts({20000}), 0.01), "200 of 20,000 tokens (1.00 %): the end of 1 document");
  EXPECT_EQ(said(texts(std::vector<int>(100, 20)), 0.05), "100 of 2,000 tokens (5.00 %): 5 documents");
  EXPECT_EQ(said(texts(std::vector<int>(4, 100)), 0.4),
            "160 of 400 tokens (40.00 %): 1 document and the end of 1 document");
  EXPECT_EQ(said(texts(std::vector<int>(200, 10)), 0.02, 2), "40 of 2,000 tokens (2.00 %): 2 pairs");
  EXPECT_EQ(said(texts({200}), 0), "none of 200 tokens: there is no validation");
  EXPECT_EQ(said(conversations({200}), 0.1), "none of 200 tokens: there is no validation");
}

TEST(Packer, GivesEveryPredictionOnceAnEpochAndNoneHeldOut) {
  const ListOfDocuments documents = counted(kLengths);
  const DocumentSplit split(documents, 0.2, 3);
  ASSERT_TRUE(split.is_cut());
  std::map<std::int64_t, int> expected;
  std::int64_t predictions = 0;
  for (std::int64_t d = 0; d < documents.count(); ++d)
    for (std::int64_t i = 0; i + 1 < std::ssize(documents.document(d)); ++i) expected[1000 * d + i] = 1;
  for (std::int64_t n = 0; n < split.held_out(); ++n)
    for (const std::int32_t token : split.held_out_part(n)) expected.erase(token);
  expected.erase(split.training_part(split.training() - 1).back());  // the next token is held out
  predictions = std::ssize(expected);

  Packer packer(split, 16, 5);
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
  const DocumentSplit split(documents, 0.1, 3);
  for (const std::int64_t length : {1, 7, 16, 100}) {
    Packer packer(split, length, 9);
    std::vector<PackingState> states;
    std::vector<TrainingBatch> batches;
    for (int n = 0; n < 60; ++n) {
      states.push_back(packer.state());
      batches.push_back(packer.next(2));
    }
    for (std::size_t n = 0; n < states.size(); n += 7) {
      Packer again(split, length, 9);
      again.set_state(states[n]);
      for (std::size_t k = n; k < states.size(); ++k) {
        EXPECT_EQ(again.state(), states[k]);
        expect_same(again.next(2), batches[k]);
      }
    }
    // Rows asked for one at a time are the same rows.
    Packer single(split, length, 9);
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
  const DocumentSplit split(documents, 0, 3);
  EXPECT_NE(Packer(split, 64, 1).next(1).tokens, Packer(split, 64, 2).next(1).tokens);
}

TEST(Packer, PredictsOnlyWhatIsToBeLearnt) {
  const ListOfDocuments documents({{~10, ~11, 12, 13, ~14, 15}});
  const DocumentSplit split(documents, 0, 1);
  const TrainingBatch batch = Packer(split, 5, 1).next(1);
  EXPECT_EQ(batch.tokens, (std::vector<std::int64_t>{10, 11, 12, 13, 14}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{kIgnored, 12, 13, kIgnored, 15}));
}

TEST(Packer, RefusesDocumentsWithoutAnythingToPredict) {
  for (const auto& lengths : {std::vector<int>{0}, {0, 0, 0}, {1}, {1, 0, 1, 1}}) {
    const ListOfDocuments documents = counted(lengths);
    const DocumentSplit split(documents, 0, 1);
    expect_in(refusal_of([&] { Packer(split, 8, 1); }), "no document has two tokens");
  }
  // One has, but it is held out.
  std::vector<int> lengths = {1, 1};
  lengths[static_cast<std::size_t>(DocumentSplit(conversations(lengths), 0.5, 1).held_out_document(0))] = 50;
  const ListOfDocuments documents = conversations(lengths);
  const DocumentSplit split(documents, 0.5, 1);
  expect_in(refusal_of([&] { Packer(split, 8, 1); }), "no document has two tokens");
}

TEST(Packer, DoesNotHangInAStateThatCannotBe) {
  const ListOfDocuments documents = counted({5, 6});
  const DocumentSplit split(documents, 0, 1);
  for (const PackingState state : {PackingState{0, 2, 0},
                                   {0, 3, 0},
                                   {0, std::int64_t{1} << 60, 0},
                                   {0, 1, 99},
                                   {std::int64_t{1} << 60, 0, 0},
                                   {0, 0, std::int64_t{1} << 60}}) {
    Packer packer(split, 8, 1);
    packer.set_state(state);
    for (int n = 0; n < 4; ++n) expect_whole_segments(packer.next(2), 8);
    EXPECT_LT(packer.state().document, 3) << "the epochs go on";
  }
}

TEST(HeldOut, GivesEachPredictionOnceAndTheSameEachTime) {
  const ListOfDocuments documents = counted(kLengths);
  const DocumentSplit split(documents, 0.4, 11);
  std::vector<std::int64_t> expected;
  for (std::int64_t n = 0; n < split.held_out(); ++n) {
    const DocumentTokens part = split.held_out_part(n);
    if (!part.empty()) expected.insert(expected.end(), part.begin(), part.end() - 1);
  }
  for (int time = 0; time < 2; ++time) {
    HeldOut held_out(split, 16);
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
  const DocumentSplit split(none, 0, 1);
  TrainingBatch batch;
  EXPECT_FALSE(HeldOut(split, 4).next(2, batch));
  const ListOfDocuments empty = counted({0, 1, 0, 1});
  const DocumentSplit half(empty, 0.5, 1);
  EXPECT_FALSE(HeldOut(half, 4).next(2, batch));
}

}  // namespace
}  // namespace attend::llm::test
