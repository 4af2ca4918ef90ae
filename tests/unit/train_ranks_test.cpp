// Tests of gradients that are computed in parts: their order, and what a program without MPI says.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>

#include "attend/error.hpp"
#include "llm/train/packing.hpp"
#include "llm/train/ranks.hpp"
#include "llm/train_mpi/start_ranks.hpp"
#include "train_tiny.hpp"

namespace attend::llm {
namespace {

std::vector<float> gradients_of(Network& network) {
  const auto* values = static_cast<const float*>(network.gradients().data);
  return {values, values + network.layout().count()};
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class TrainRanks : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, TrainRanks, testing::ValuesIn(all_families()), family_name);

// A piece that is told complete is not written again, and the pieces are all there is.
TEST_P(TrainRanks, PiecesAreCompleteWhenTheyAreTold) {
  Network network(tiny(GetParam()), {.tokens = 16});
  fill(network);
  const TrainingBatch batch = batch_of(network.config(), {7, 4, 5});
  network.loss_and_gradients(batch, 0.1, false);
  const std::vector<float> expected = gradients_of(network);

  std::vector<float> told(expected.size(), 77.0F);
  for (const Parameter& p : network.layout().all())
    std::fill_n(static_cast<float*>(network.gradients().data) + p.offset, p.count(), 77.0F);
  std::int64_t end = network.layout().count(), begun = 0;
  network.watch_gradients({.begin = [&] { ++begun; },
                           .complete =
                               [&](const GradientPiece& piece) {
                                 EXPECT_EQ(piece.first + piece.count, end);
                                 end = piece.first;
                                 const auto* values = static_cast<const float*>(network.gradients().data);
                                 std::copy_n(values + piece.first, piece.count, told.begin() + piece.first);
                               }});
  network.loss_and_gradients(batch, 0.1, false);
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(end, 0);
  EXPECT_TRUE(same(told, expected));
}

TEST_P(TrainRanks, PartsAreAddedInTheirOrder) {
  Network network(tiny(GetParam()), {.tokens = 16});
  fill(network);
  const TrainingBatch parts[] = {batch_of(network.config(), {7, 4, 5}), batch_of(network.config(), {3, 9}),
                                 batch_of(network.config(), {11})};
  std::vector<float> expected;
  for (std::size_t n = 0; n < 3; ++n) {
    network.loss_and_gradients(parts[n], 0.1, false);
    const std::vector<float> part = gradients_of(network);
    if (n == 0) expected.assign(part.size(), 0.0F);
    for (std::size_t i = 0; i < part.size(); ++i) expected[i] = n == 0 ? part[i] : expected[i] + part[i];
  }
  const auto ranks = one_process();
  GradientSum sum(network, *ranks, 3);
  for (int again = 0; again < 2; ++again) {
    std::vector<std::int64_t> order;
    sum.run([&](std::int64_t n) {
      order.push_back(n);
      network.loss_and_gradients(parts[n], 0.1, false);
    });
    EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2}));
    EXPECT_TRUE(same(gradients_of(network), expected));
  }
}

TEST(TrainRanks, SumsOfPartsGrowFromTheLeft) {
  // 1e8 + 4 is 1e8 + 8 or 1e8 in f32, by where the 4s meet.
  const std::vector<float> a(5000, 1e8F), b(5000, 4.0F), c(5000, 4.0F);
  std::vector<float> to(5000);
  const float* two[] = {b.data(), c.data()};
  add_parts(a.data(), two, 5000, to.data());
  EXPECT_EQ(to[4999], (1e8F + 4.0F) + 4.0F);
  const float* three[] = {b.data(), c.data(), a.data()};
  add_parts(nullptr, three, 5000, to.data());
  EXPECT_EQ(to[4999], (4.0F + 4.0F) + 1e8F);
  EXPECT_NE((1e8F + 4.0F) + 4.0F, (4.0F + 4.0F) + 1e8F);
}

TEST(TrainRanks, OneProcessAgreesWithItself) {
  const auto ranks = one_process();
  EXPECT_FALSE(ranks->any(false));
  EXPECT_TRUE(ranks->any(true));
  EXPECT_THROW(ranks->agree([] { throw InvalidArgument("no"); }), InvalidArgument);
}

// A row of one document, shared out: each token once, with its target and its place, and as many for each rank.
TEST(TrainRanks, ARowIsSharedOutInTwoChunksEach) {
  TrainingBatch row;
  for (std::int64_t i = 0; i < 24; ++i) row.tokens.push_back(100 + i), row.targets.push_back(101 + i);
  row.starts = {0, 24};
  EXPECT_TRUE(part_of_row(row, 0, 1).places.empty());
  std::vector<int> seen(24);
  for (int rank = 0; rank < 3; ++rank) {
    const TrainingBatch part = part_of_row(row, rank, 3);
    EXPECT_EQ(part.starts, (std::vector<std::int64_t>{0, 8}));
    EXPECT_EQ(part.places.front(), 4 * rank);
    EXPECT_EQ(part.places.back(), 23 - 4 * rank);
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(part.tokens[i], 100 + part.places[i]);
      EXPECT_EQ(part.targets[i], 101 + part.places[i]);
      ++seen[static_cast<std::size_t>(part.places[i])];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(24, 1));
}

class ThreeDocuments : public Documents {
 public:
  std::int64_t count() const override { return 3; }
  DocumentTokens document(std::int64_t n) const override { return texts_[static_cast<std::size_t>(n)]; }

 private:
  std::vector<std::int32_t> texts_[3] = {{1, 2, 3}, {4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, {14}};
};

TEST(TrainRanks, ADocumentAloneFillsItsRow) {
  const ThreeDocuments documents;
  const DocumentSplit split(documents, 0, 1);
  Packer packer(split, 6, 1, Telling::next, true);
  std::multiset<std::vector<std::int64_t>> rows;
  for (int row = 0; row < 3; ++row) {
    const TrainingBatch batch = packer.next(1);
    EXPECT_EQ(batch.starts, (std::vector<std::int64_t>{0, 6}));
    EXPECT_EQ(batch.tokens.size(), 6U);
    rows.insert(batch.targets);
  }
  const std::int64_t none = kIgnored;
  const std::multiset<std::vector<std::int64_t>> expected = {
      {2, 3, none, none, none, none}, {5, 6, 7, 8, 9, 10}, {11, 12, 13, none, none, none}};
  EXPECT_EQ(rows, expected);
}

TEST(TrainRanks, ASpreadBatchNeedsAttentionThatGoesOverProcesses) {
  Network network(tiny("llama"), {.tokens = 16});
  TrainingBatch batch = batch_of(network.config(), {4});
  batch.places = {0, 1, 6, 7};
  EXPECT_THROW(network.loss(batch), InvalidArgument);
}

// This program is linked with the stub.
TEST(TrainRanks, WithoutMpiAProgramRefusesToBeOneOfSeveral) {
  ASSERT_EQ(::unsetenv("OMPI_COMM_WORLD_SIZE"), 0);
  EXPECT_EQ(start_ranks()->count(), 1);
  ASSERT_EQ(::setenv("OMPI_COMM_WORLD_SIZE", "4", 1), 0);
  try {
    start_ranks();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("mpirun started 4 processes, and this program was built without MPI"),
              std::string::npos);
  }
  ASSERT_EQ(::unsetenv("OMPI_COMM_WORLD_SIZE"), 0);
}

}  // namespace
}  // namespace attend::llm
