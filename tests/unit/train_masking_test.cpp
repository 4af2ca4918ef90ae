// Masked language modelling: which tokens are hidden, and runs of an encoder from texts to a model.
#include "llm/train/masking.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "golden_models.hpp"
#include "llm/train/model_weights.hpp"
#include "llm/train/prepare.hpp"
#include "llm/train/trainer.hpp"
#include "train_tiny.hpp"

namespace attend::llm::test {
namespace {

constexpr std::int64_t kVocabulary = 23, kSpecial = 5, kMask = 4;

// The vocabulary of tiny("bert"): five special tokens, then words.
void write_vocabulary(const fs::path& folder) {
  std::string text = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (std::int64_t i = kSpecial; i < kVocabulary; ++i) text += std::string(1, static_cast<char>('a' + i)) + "\n";
  write_text(folder / "vocab.txt", text);
}

TrainingBatch tokens_to_hide(std::int64_t count) {
  TrainingBatch batch;
  for (std::int64_t i = 0; i < count; ++i) batch.tokens.push_back(i * 7 % kVocabulary);
  batch.targets = batch.tokens;
  batch.starts = {0, count};
  return batch;
}

TEST(TrainMasking, HidesAsBertWasTrained) {
  const TempFolder folder;
  write_vocabulary(folder.path());
  const TokenMasker masker(tokenizer_from_folder(folder.path()), 0.15);
  const TrainingBatch before = tokens_to_hide(100'000);
  TrainingBatch after = before;
  masker.apply(5, 0, after);
  double words = 0, targets = 0, hidden = 0, replaced = 0;
  for (std::size_t t = 0; t < before.tokens.size(); ++t) {
    const std::int64_t was = before.tokens[t], is = after.tokens[t];
    words += was >= kSpecial;
    if (after.targets[t] == kIgnored) {
      EXPECT_EQ(is, was);
      continue;
    }
    EXPECT_EQ(after.targets[t], was);
    EXPECT_GE(was, kSpecial);
    ++targets;
    hidden += is == kMask;
    replaced += is != kMask && is != was;
    EXPECT_TRUE(is == kMask || is >= kSpecial);
  }
  // Four standard deviations of a count of draws.
  const auto expect_share = [](double count, double all, double share) {
    EXPECT_NEAR(count / all, share, 4 * std::sqrt(share * (1 - share) / all));
  };
  expect_share(targets, words, 0.15);
  expect_share(hidden, targets, 0.8);
  expect_share(replaced, targets, 0.1 * 17 / 18);  // one of the 18 words is the token itself
}

TEST(TrainMasking, DependsOnSeedAndPositionAlone) {
  const TempFolder folder;
  write_vocabulary(folder.path());
  const TokenMasker masker(tokenizer_from_folder(folder.path()), 0.15);
  TrainingBatch whole = tokens_to_hide(230), other = whole, first = tokens_to_hide(115), second = first;
  masker.apply(5, 0, whole);
  masker.apply(6, 0, other);
  masker.apply(5, 0, first);
  masker.apply(5, 115, second);  // 115 = 5 * 23: the same tokens
  EXPECT_NE(whole.targets, other.targets);
  for (const auto part : {&TrainingBatch::tokens, &TrainingBatch::targets}) {
    auto joined = first.*part;
    joined.insert(joined.end(), (second.*part).begin(), (second.*part).end());
    EXPECT_EQ(whole.*part, joined);
  }
}

TEST(TrainMasking, WantsATokenToHideBy) {
  const TempFolder folder;
  write_text(folder.path() / "vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\n");
  const Tokenizer tokenizer = tokenizer_from_folder(folder.path());
  EXPECT_THROW(TokenMasker(tokenizer, 0.15), InvalidArgument);
}

// A folder with a small BERT, texts, and a run's settings.
struct Encoder {
  explicit Encoder(const std::string& family) {
    fs::create_directories(folder.path() / "bert");
    write_vocabulary(folder.path() / "bert");
    Network network(tiny(family), {.tokens = 1});
    fill(network);
    write_model(folder.path() / "bert", network.config(), network.layout(), network.parameters());
    std::string lines;
    for (std::uint64_t d = 0; d < 60; ++d) {
      std::string text;
      for (std::uint64_t w = 0; w < 4 + d % 9; ++w)
        text += std::string(w == 0 ? "" : " ") + static_cast<char>('f' + static_cast<int>((d + w * w) % 18));
      lines += "{\"text\": \"" + text + "\"}\n";
    }
    write_text(folder.path() / "texts.jsonl", lines);
    PrepareOptions options;
    options.inputs = {folder.path() / "texts.jsonl"};
    options.out = folder.path() / "data", options.tokenizer = folder.path() / "bert";
    prepare(options);
    job.data = options.out, job.start = options.tokenizer;
    job.config.length = 16, job.config.batch = 4, job.config.steps = 6, job.config.compute = "f32";
    job.config.rate = 0.01, job.config.held_out = 0.1, job.config.validate_every = 3;
  }
  TempFolder folder;
  TrainJob job;
};

TEST(TrainMasking, PreparesTextsBetweenClsAndSep) {
  const Encoder encoder("bert");
  const Dataset data(encoder.job.data);
  EXPECT_EQ(data.info().vocabulary, kVocabulary);
  const DocumentTokens first = data.document(0);
  EXPECT_EQ(std::vector<std::int32_t>(first.begin(), first.end()), (std::vector<std::int32_t>{2, 5, 6, 9, 14, 3}));
}

class MaskedRun : public testing::TestWithParam<const char*> {};

TEST_P(MaskedRun, LearnsAndGoesOnToTheSameBits) {
  Encoder encoder(GetParam());
  std::vector<double> losses, validations;
  TrainEvents events;
  events.step = [&](const StepReport& report) { losses.push_back(report.loss); };
  events.validation = [&](std::int64_t, const Measured& m, bool) {
    EXPECT_GT(m.targets, 0);
    EXPECT_LT(m.targets, m.tokens / 2);
    validations.push_back(m.loss);
  };
  encoder.job.run = encoder.folder.path() / "whole";
  train(encoder.job, events);
  ASSERT_EQ(losses.size(), 6U);
  EXPECT_LT(validations.back(), validations.front());

  std::vector<double> parts;
  TrainJob job = encoder.job;
  job.run = encoder.folder.path() / "parts";
  TrainEvents stopped;
  stopped.step = [&](const StepReport& report) { parts.push_back(report.loss); };
  stopped.stop = [&] { return parts.size() == 2; };
  EXPECT_EQ(train(job, stopped).end, TrainEnd::stopped);
  stopped.stop = nullptr;
  train(read_run(job.run), stopped);
  EXPECT_EQ(parts, losses);
  EXPECT_EQ(read_text(job.run / "model" / "model.safetensors"),
            read_text(encoder.job.run / "model" / "model.safetensors"));

  // The same in two parts of a batch: what is hidden does not depend on them.
  job.config.rows_at_once = 2;
  job.run = encoder.folder.path() / "halves";
  parts.clear();
  train(job, stopped);
  ASSERT_EQ(parts.size(), losses.size());
  for (std::size_t i = 0; i < parts.size(); ++i) EXPECT_NEAR(parts[i], losses[i], 1e-3 * losses[i]) << i;

  const ModelFiles written(job.run / "model");
  EXPECT_EQ(written.config().family, "bert");
  EXPECT_EQ(written.config().masked_head, std::string(GetParam()) == "bert-head");
  EXPECT_TRUE(fs::exists(job.run / "model" / "vocab.txt"));
}

INSTANTIATE_TEST_SUITE_P(TrainMasking, MaskedRun, testing::Values("bert", "bert-head"),
                         [](const auto& one) { return std::string(one.param) == "bert" ? "Tied" : "WithItsHead"; });

TEST(TrainMasking, OtherStagesAreRefused) {
  const Encoder encoder("bert");
  TrainJob job = encoder.job;
  job.stage = Stage::distil, job.config.teacher = job.start.string(), job.run = encoder.folder.path() / "run";
  try {
    train(job, {});
    FAIL() << "was trained";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("expected pretrain or lora"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace attend::llm::test
