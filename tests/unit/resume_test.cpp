// A run that was stopped goes on to the bits of one that was not: at any step, on any number of threads.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "attend/runtime.hpp"
#include "io/environment.hpp"
#include "io/folder_lock.hpp"
#include "training_runs.hpp"

namespace attend::llm::test {
namespace {

// How many threads work, for a while.
class Threads {
 public:
  explicit Threads(int count) : before_(threads()) { set_threads(count); }
  ~Threads() { set_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

struct Kind {
  const char* name;
  Stage stage;
  std::function<void(TrainConfig&)> change;
};
void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}
const std::vector<Kind> kKinds = {
    {"plain", Stage::pretrain, [](TrainConfig&) {}},
    {"dropout_in_parts", Stage::pretrain, [](TrainConfig& c) { c.dropout = 0.2, c.rows_at_once = 2, c.patience = 30; }},
    {"bf16_recomputed", Stage::pretrain,
     [](TrainConfig& c) { c.compute = "bf16", c.recompute = true, c.dropout = 0.1; }},
    {"experts", Stage::pretrain, [](TrainConfig& c) { c.experts = 3, c.experts_used = 2; }},
    {"everything_saved_late", Stage::pretrain,
     [](TrainConfig& c) { c.positions = "alibi", c.sinks = true, c.window = 9, c.softcap = 5, c.save_every = 6; }},
    {"sft", Stage::sft, [](TrainConfig& c) { c.dropout = 0.1; }},
    {"lora", Stage::lora, [](TrainConfig& c) { c.dropout = 0.1, c.lora_feed_forward = true; }},
    {"dpo", Stage::dpo, [](TrainConfig& c) { c.dropout = 0.1, c.rows_at_once = 2; }},
    {"distil", Stage::distil, [](TrainConfig& c) { c.dropout = 0.1; }},
};

class Resume : public testing::TestWithParam<Kind> {
 protected:
  TrainJob job(const char* run) const {
    TrainJob made = tiny_job(GetParam().stage, place_.path() / run);
    GetParam().change(made.config);
    return made;
  }
  // Stopped at each of these steps, going on with another number of threads each time.
  void expect_the_same(std::int64_t steps, const std::vector<std::int64_t>& stops) const {
    TrainJob whole = job("whole"), parts = job("parts");
    whole.config.steps = parts.config.steps = steps;
    EXPECT_EQ(train_until(whole).end, TrainEnd::done);
    int count = 0;
    for (const std::int64_t stop : stops) {
      const Threads some(1 + count++ % 3);
      const TrainResult result = train_until(count > 1 ? read_run(parts.run) : parts, stop);
      EXPECT_EQ(result.end, TrainEnd::stopped);
      EXPECT_EQ(result.state.step, stop);
    }
    const Threads some(4);
    EXPECT_EQ(train_until(read_run(parts.run)).end, TrainEnd::done);
    expect_same_bits(whole.run, parts.run);
  }

 private:
  TempFolder place_;
};

// All kinds go on after 100 steps with ATTEND_SWEEP=all, as for the numerics; else the plain one alone.
TEST_P(Resume, GivesTheSameBits) {
  if (io::environment("ATTEND_SWEEP") == "all" || GetParam().name == std::string_view("plain"))
    expect_the_same(110, {1, 7, 100});
  else
    expect_the_same(10, {1, 7});
}

INSTANTIATE_TEST_SUITE_P(All, Resume, testing::ValuesIn(kKinds), [](const auto& kind) { return kind.param.name; });

TEST(ResumedRun, ThatIsDoneStaysAsItIs) {
  const TempFolder place;
  const TrainJob job = tiny_job(Stage::pretrain, place.path() / "run");
  train_until(job);
  const auto before = bits_of(job.run);
  std::vector<StepReport> reports;
  EXPECT_EQ(train_until(read_run(job.run), 0, &reports).end, TrainEnd::done);
  EXPECT_TRUE(reports.empty());
  EXPECT_TRUE(bits_of(job.run) == before);
}

TEST(ResumedRun, GoesOnFromTheLastCheckpointOfOneThatWasKilled) {
  const TempFolder place;
  const TrainJob whole = tiny_job(Stage::pretrain, place.path() / "whole");
  const TrainJob killed = tiny_job(Stage::pretrain, place.path() / "killed");
  train_until(whole);
  // Ended at step 6 without a word, two behind the checkpoint, in the midst of a line.
  TrainEvents events;
  events.step = [](const StepReport& report) {
    if (report.step == 6) throw std::runtime_error("killed");
  };
  EXPECT_THROW(train(killed, events), std::runtime_error);
  std::ofstream(killed.run / "metrics.jsonl", std::ios::app) << "{\"kind\": \"step\", \"step\": 1";
  EXPECT_EQ(train_until(read_run(killed.run)).end, TrainEnd::done);
  expect_same_bits(whole.run, killed.run);
}

// What a checkpoint has of validations is used: a run that is stopped after each of its steps ends where the whole one
// does, and keeps the same best model.
TEST(ResumedRun, KeepsItsPatienceAndItsBest) {
  const TempFolder place;
  const auto job = [&](const char* name) {
    TrainJob j = tiny_job(Stage::pretrain, place.path() / name);
    j.config.steps = 60, j.config.validate_every = 1, j.config.patience = 3, j.config.rate = 0.1;
    return j;
  };
  const TrainJob whole = job("whole"), parts = job("parts");
  const TrainResult expected = train_until(whole);
  ASSERT_EQ(expected.end, TrainEnd::no_better);
  TrainResult result = train_until(parts, 1);
  for (std::int64_t step = 2; result.end == TrainEnd::stopped && step < 60; ++step) {
    result = train_until(read_run(parts.run), step);
    EXPECT_LE(result.state.step, expected.state.step);
  }
  EXPECT_EQ(result.end, TrainEnd::no_better);
  EXPECT_EQ(result.state.step, expected.state.step);
  EXPECT_EQ(result.state.best, expected.state.best);
  EXPECT_EQ(result.state.best_step, expected.state.best_step);
  EXPECT_EQ(result.state.worse, 3);
  EXPECT_EQ(result.state.tokens, expected.state.tokens);
  expect_same_bits(whole.run, parts.run);
}

TEST(ResumedRun, ThatEndedEarlyStaysEnded) {
  const TempFolder place;
  TrainJob job = tiny_job(Stage::pretrain, place.path() / "run");
  job.config.steps = 40, job.config.validate_every = 1, job.config.patience = 2, job.config.rate = 1;
  const TrainResult first = train_until(job);
  ASSERT_EQ(first.end, TrainEnd::no_better);
  EXPECT_EQ(first.state.worse, 2);
  EXPECT_EQ(first.state.step, first.state.best_step + 2);
  EXPECT_LT(first.state.step, 40);
  const auto before = bits_of(job.run);
  std::vector<StepReport> reports;
  EXPECT_EQ(train_until(read_run(job.run), 0, &reports).end, TrainEnd::no_better);
  EXPECT_TRUE(reports.empty()) << "it trains on though it has ended";
  EXPECT_TRUE(bits_of(job.run) == before);
}

// Opening a pipe without a writer blocks.
TEST(ResumedRun, RefusesPipesInThePlaceOfFiles) {
  const TempFolder place;
  const TrainJob job = tiny_job(Stage::pretrain, place.path() / "run");
  train_until(job, 5);
  for (const char* file : {"metrics.jsonl", "checkpoint.safetensors", "run.json", "config.json"}) {
    const std::string before = read_text(job.run / file);
    fs::remove(job.run / file);
    ASSERT_EQ(::mkfifo((job.run / file).c_str(), 0600), 0);
    expect_in(refusal_of([&] { train_until(read_run(job.run)); }), std::string(file) + ": it is not a regular file");
    fs::remove(job.run / file);
    write_text(job.run / file, before);
  }
  fs::remove(job.run / ".lock");
  ASSERT_EQ(::mkfifo((job.run / ".lock").c_str(), 0600), 0);
  EXPECT_EQ(train_until(read_run(job.run), 6).state.step, 6) << "a lock on a pipe is one too";
  EXPECT_FALSE(io::FolderLock::is_held(job.run));
}

TEST(ResumedRun, RefusesOtherSettings) {
  const TempFolder place;
  const TrainJob job = tiny_job(Stage::pretrain, place.path() / "run");
  train_until(job, 5);
  const auto before = bits_of(job.run);
  for (const auto& change : std::vector<std::function<void(TrainJob&)>>{
           [](TrainJob& j) { j.config.rate *= 2; }, [](TrainJob& j) { j.config.seed = 2; },
           [](TrainJob& j) { j.config.steps = 11; }, [](TrainJob& j) { j.config.layers = 3; },
           [](TrainJob& j) { j.start = TrainingData::shared().model(); }}) {
    TrainJob other = job;
    change(other);
    expect_in(refusal_of([&] { train_until(other); }), "belongs to a run with other settings");
    EXPECT_TRUE(bits_of(job.run) == before);
    EXPECT_EQ(train_until(read_run(job.run), 5).state.step, 5) << "its own settings are still there";
  }
  write_text(job.run / "checkpoint.safetensors", read_text(job.run / "checkpoint.safetensors").substr(0, 5000));
  expect_in(refusal_of([&] { train_until(job); }), "checkpoint.safetensors");
}

TEST(ResumedRun, RefusesDataThatHasChanged) {
  const TempFolder place;
  TrainJob job = tiny_job(Stage::pretrain, place.path() / "run");
  fs::copy(job.data, place.path() / "data", fs::copy_options::recursive);
  job.data = place.path() / "data";
  train_until(job, 5);
  PrepareOptions options;
  write_text(place.path() / "other.jsonl", story_lines(24, {.seed = 5}));
  options.inputs = {place.path() / "other.jsonl"};
  options.out = job.data, options.replace = true, options.tokenizer = TrainingData::shared().of(Stage::pretrain);
  prepare(options);
  expect_in(refusal_of([&] { train_until(read_run(job.run)); }), "other settings");
}

}  // namespace
}  // namespace attend::llm::test
