// Runs of training from end to end on a model of a few thousand parameters.
#include "llm/train/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attend/llm/model.hpp"
#include "io/folder_lock.hpp"
#include "llm/train/trainable.hpp"
#include "llm/train/trained_model.hpp"
#include "training_runs.hpp"

namespace attend::llm::test {
namespace {

class Training : public testing::Test {
 protected:
  TrainJob job(Stage stage = Stage::pretrain, const char* run = "run") const {
    return tiny_job(stage, place_.path() / run);
  }
  const fs::path& place() const { return place_.path(); }
  static std::vector<double> losses(const TrainJob& job) {
    std::vector<StepReport> reports;
    train_until(job, 0, &reports);
    std::vector<double> all;
    for (const StepReport& report : reports) all.push_back(report.loss);
    return all;
  }
  // What a run says when it is refused or fails, whatever it throws.
  static std::string failure(const TrainJob& job) {
    try {
      train_until(job);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
  // A dataset of given tokens, with the tokenizer of the others.
  fs::path data(const std::vector<std::vector<std::int32_t>>& documents, DataKind kind, std::int64_t vocabulary = 300) {
    DatasetWriter writer(place() / "data", true);
    for (const auto& document : documents) writer.add(document);
    copy_tokenizer(TrainingData::shared().of(Stage::pretrain), writer.path());
    DataInfo info;
    info.kind = kind, info.vocabulary = vocabulary;
    writer.commit(info);
    return place() / "data";
  }
  // The shared model in a folder of its own, after its weights were changed.
  fs::path model_with(
      const std::function<void(const ParameterLayout&, float*)>& change,
      const std::function<void(ModelConfig&)>& reconfigure = [](ModelConfig&) {}) {
    ModelFiles files(TrainingData::shared().model());
    ModelConfig config = files.config();
    const ParameterLayout old(config);
    Tensor from(DType::f32, {1, 1, 1, old.count()});
    load_parameters(files, old, from.view());
    reconfigure(config);
    const ParameterLayout layout(config);
    Tensor to(DType::f32, {1, 1, 1, layout.count()});
    initialise(layout, 3, to.view());
    for (const Parameter& p : old.all())
      std::memcpy(to.data<float>() + layout.find(p.name)->offset, from.data<float>() + p.offset,
                  static_cast<std::size_t>(p.count()) * 4);
    change(layout, to.data<float>());
    write_trained(place() / "start", config, layout, to.view(), TrainingData::shared().of(Stage::pretrain));
    return place() / "start";
  }

 private:
  TempFolder place_;
};

// Golden: 10 steps of a small Qwen3 from its first weights. Another order of sums moves the last digits.
TEST_F(Training, LossesOfTenStepsAreTheSame) {
  const std::vector<double> expected = {5.7023416, 5.6672247, 5.6182131, 5.6312559, 5.6141199,
                                        5.5905978, 5.5414378, 5.5309575, 5.5276123, 5.5208073};
  const std::vector<double> got = losses(job());
  ASSERT_EQ(got.size(), 10U);
  for (std::size_t n = 0; n < got.size(); ++n) EXPECT_NEAR(got[n], expected[n], 2e-5) << "step " << n + 1;
  TrainJob bf16 = job(Stage::pretrain, "bf16");
  bf16.config.compute = "bf16";
  const std::vector<double> rounded = losses(bf16);
  for (std::size_t n = 0; n < got.size(); ++n) EXPECT_NEAR(rounded[n], expected[n], 2e-2) << "step " << n + 1;
}

TEST_F(Training, LearnsAndKeepsTheBest) {
  TrainJob j = job();
  j.config.steps = 60, j.config.validate_every = 20, j.config.rate = 1e-2, j.config.sample_tokens = 5;
  std::vector<double> validations;
  std::string sample;
  bool begun = false;
  TrainEvents events;
  events.begin = [&](const ModelConfig& model, std::int64_t parameters, const TrainMemory& memory, std::int64_t steps,
                     std::int64_t done) {
    begun = true;
    EXPECT_EQ(parameters, ParameterLayout(model).parameters());
    EXPECT_GT(memory.total(), memory.program + 16 * parameters);
    EXPECT_EQ(steps, 60);
    EXPECT_EQ(done, 0);
  };
  events.scale = [&](const NgramLosses& scale, double entropy) {
    EXPECT_GT(scale.unigram, entropy);
    EXPECT_GT(entropy, 0);
  };
  events.step = [&](const StepReport&) { EXPECT_TRUE(begun); };
  events.validation = [&](std::int64_t, const Measured& measured, bool best) {
    EXPECT_EQ(best, validations.empty() || measured.loss < validations.back());
    validations.push_back(measured.loss);
  };
  events.sample = [&](std::int64_t, const std::string& prompt, const std::string& text) { sample = prompt + text; };
  const TrainResult result = train(j, events);
  EXPECT_EQ(result.end, TrainEnd::done);
  EXPECT_EQ(result.state.step, 60);
  EXPECT_EQ(result.state.tokens, 60 * 4 * 32);
  ASSERT_EQ(validations.size(), 3U);
  EXPECT_LT(result.state.best, 5.0) << "ln 300 is 5.7";
  EXPECT_NE(sample, "");
  // The model's files give the loss that was measured.
  const ModelFiles files(j.run / "model");
  Network network(files.config(), {.tokens = 4 * 32});
  load_parameters(files, network.layout(), network.parameters());
  network.changed();
  const Dataset data(j.data);
  const DocumentSplit split = split_of(data, j.config);
  const auto ranks = one_process();
  EXPECT_NEAR(language_objective(network, split, j.config, *ranks)->validate().loss, result.state.best, 1e-6);
  const TrainJob read = read_run(j.run);
  EXPECT_EQ(config_to_json(read.config), config_to_json(j.config));
  EXPECT_EQ(read.stage, Stage::pretrain);
}

// Each line of metrics.jsonl has what the events tell of its step, and the learning rate is the schedule's.
TEST_F(Training, MetricsAreWhatTheStepsMeasured) {
  TrainJob j = job();
  j.config.steps = 20, j.config.warm_up = 0.2, j.config.last_rate = 0.25, j.config.rate = 8e-3,
  j.config.validate_every = 5;
  std::vector<StepReport> steps;
  std::vector<std::pair<std::int64_t, double>> validations;
  TrainEvents events;
  events.step = [&](const StepReport& report) { steps.push_back(report); };
  events.validation = [&](std::int64_t step, const Measured& m, bool) { validations.emplace_back(step, m.loss); };
  train(j, events);
  ASSERT_EQ(steps.size(), 20U);
  std::ifstream file(j.run / "metrics.jsonl");
  std::size_t step = 0, validation = 0;
  double seconds = 0;
  for (std::string line; std::getline(file, line);) {
    const io::Json json = io::parse_json(line, "metrics.jsonl");
    const auto number = [&](const char* name) {
      double value = std::nan("");
      EXPECT_TRUE(json.find(name) != nullptr && json.find(name)->number(value)) << name << " in " << line;
      return value;
    };
    EXPECT_GE(number("seconds"), seconds);
    seconds = number("seconds");
    EXPECT_EQ(number("tokens"),
              static_cast<double>(step * 4 * 32 + (*json.find("kind")->string() == "step" ? 4 * 32 : 0)));
    if (*json.find("kind")->string() == "validation") {
      ASSERT_LT(validation, validations.size());
      EXPECT_EQ(number("step"), static_cast<double>(validations[validation].first));
      EXPECT_EQ(number("loss"), validations[validation++].second);
      EXPECT_EQ(step, 5 * validation) << "after the step that it measures";
      continue;
    }
    ASSERT_LT(step, steps.size());
    const StepReport& report = steps[step++];
    EXPECT_EQ(number("step"), static_cast<double>(step));
    EXPECT_EQ(report.step, static_cast<std::int64_t>(step));
    EXPECT_EQ(report.steps, 20);
    EXPECT_EQ(number("loss"), report.loss);
    EXPECT_EQ(number("gradient"), report.gradient);
    EXPECT_EQ(number("rate"), report.rate);
    EXPECT_EQ(number("tokens"), static_cast<double>(report.tokens));
    // Four steps up, then half a cosine down to a quarter.
    const auto n = static_cast<double>(step);
    const double expected =
        step <= 4 ? 8e-3 * n / 4 : 8e-3 * (0.25 + 0.75 * 0.5 * (1 + std::cos(std::acos(-1.0) * (n - 4) / 16)));
    EXPECT_NEAR(report.rate, expected, 1e-15) << step;
  }
  EXPECT_EQ(step, 20U);
  EXPECT_EQ(validation, 4U);
}

TEST(LearningRate, RisesAndFallsToItsLastPart) {
  const Schedule schedule{.rate = 2, .last = 0.1, .warm_up = 10, .steps = 110};
  for (const auto& [step, rate] :
       {std::pair{std::int64_t{0}, 0.0}, {1, 0.2}, {5, 1.0}, {10, 2.0}, {60, 1.1}, {110, 0.2}, {500, 0.2}})
    EXPECT_NEAR(schedule.at(step), rate, 1e-12) << step;
  for (std::int64_t step = 11; step <= 110; ++step) EXPECT_LT(schedule.at(step), schedule.at(step - 1)) << step;
  const Schedule at_once{.rate = 2, .last = 0, .warm_up = 0, .steps = 4};
  EXPECT_NEAR(at_once.at(2), 1, 1e-12);
  EXPECT_NEAR(at_once.at(4), 0, 1e-12);
  const Schedule only_up{.rate = 2, .last = 0.5, .warm_up = 4, .steps = 4};
  EXPECT_NEAR(only_up.at(4), 2, 1e-12) << "its last step is the top";
}

TEST_F(Training, InPartsIsTheSameStep) {
  TrainJob whole = job(), parts = job(Stage::pretrain, "parts");
  parts.config.rows_at_once = 1;
  const std::vector<double> a = losses(whole), b = losses(parts);
  for (std::size_t n = 0; n < a.size(); ++n) EXPECT_NEAR(a[n], b[n], 1e-5);
}

TEST_F(Training, DropsOthersInEachStepAndByEachSeed) {
  // The same row again and again, and weights that do not move: only what is dropped differs.
  std::vector<std::int32_t> document;
  for (std::int32_t n = 0; n < 33; ++n) document.push_back(n * 7 % 300);
  const fs::path same = data({document}, DataKind::text);
  const auto run = [&](const char* name, std::uint64_t seed, double dropout) {
    TrainJob j = job(Stage::pretrain, name);
    j.start = TrainingData::shared().model(), j.data = same;
    j.config.rate = 0, j.config.held_out = 0, j.config.dropout = dropout, j.config.seed = seed, j.config.batch = 1;
    return losses(j);
  };
  const std::vector<double> none = run("none", 1, 0), one = run("one", 1, 0.3), again = run("again", 1, 0.3),
                            other = run("other", 2, 0.3);
  for (std::size_t n = 0; n < 10; ++n) {
    EXPECT_EQ(none[n], none[0]);
    EXPECT_NE(one[n], none[0]);
    EXPECT_NE(one[n], other[n]);
    for (std::size_t k = 0; k < n; ++k) EXPECT_NE(one[n], one[k]) << "steps " << k << " and " << n;
  }
  EXPECT_EQ(one, again);
}

// Token 299 at place 7 has no numbers: its embedding and that of the place are the largest there are. One document
// holds it, and no other is that long. Rows of 30 hold 5 of the others.
class Poisoned : public Training {
 protected:
  TrainJob poisoned(std::int64_t document) {
    std::vector<std::vector<std::int32_t>> documents(200, std::vector<std::int32_t>(7, 5));
    documents[static_cast<std::size_t>(document)].assign(10, 5);
    documents[static_cast<std::size_t>(document)][7] = 299;
    TrainJob j = job();
    j.start = model_with(
        [](const ParameterLayout& layout, float* values) {
          for (const auto& [place, row] : {std::pair{layout.embedding, 299}, {*layout.positions, 7}}) {
            const Parameter& p = layout.at(place);
            std::fill_n(values + p.offset + row * p.cols, p.cols, std::numeric_limits<float>::max());
          }
        },
        [](ModelConfig& config) { config.tied_embeddings = false, config.positions = PositionKind::learned; });
    j.data = data(documents, DataKind::text);
    j.config.length = 30, j.config.steps = 15, j.config.save_every = 2, j.config.decay = 0;
    return j;
  }
};

TEST_F(Poisoned, EndsTheRunAtItsStep) {
  const ListOfDocuments documents(std::vector<std::vector<std::int32_t>>(200, std::vector<std::int32_t>(7, 5)));
  const std::int64_t bad = DocumentSplit(documents, 0, 1).training_document(shuffled(122, 200, epoch_key(1, 0)));
  TrainJob j = poisoned(bad);
  j.config.held_out = 0;
  std::string checkpoint;
  std::int64_t last = 0;
  TrainEvents events;
  events.step = [&](const StepReport& report) { last = report.step; };
  events.stop = [&] {
    if (last == 6) checkpoint = read_text(j.run / "checkpoint.safetensors");
    return false;
  };
  std::string said;
  try {
    train(j, events);
  } catch (const TrainingFailed& error) {
    said = error.what();
  }
  expect_in(said, "step 7: the loss is no number, at documents 120 to 139 in the order of epoch 1");
  expect_in(said, "the last checkpoint is kept");
  EXPECT_EQ(last, 6);
  EXPECT_FALSE(checkpoint.empty());
  EXPECT_TRUE(read_text(j.run / "checkpoint.safetensors") == checkpoint);
  EXPECT_EQ(failure(read_run(j.run)), said) << "it goes on from there, and fails at the same step";
}

TEST_F(Poisoned, IsNotTakenForTheBestModel) {
  const ListOfDocuments documents(std::vector<std::vector<std::int32_t>>(200, std::vector<std::int32_t>(7, 5)));
  TrainJob j = poisoned(DocumentSplit(documents, 0.01, 1).held_out_document(1));  // the first that is held out whole
  j.config.held_out = 0.01;
  const std::string said = failure(j);
  expect_in(said, "step 4: the validation loss is no number");
  EXPECT_FALSE(fs::exists(j.run / "model"));
  EXPECT_EQ(failure(read_run(j.run)), said) << "the checkpoint of step 2 is whole";
}

TEST_F(Training, EndsEarlyWhenItGrowsNoBetter) {
  TrainJob j = job();
  j.config.steps = 40, j.config.validate_every = 1, j.config.patience = 2, j.config.rate = 1;
  const TrainResult result = train_until(j);
  EXPECT_EQ(result.end, TrainEnd::no_better);
  EXPECT_LT(result.state.step, 40);
  EXPECT_TRUE(fs::exists(j.run / "checkpoint.safetensors"));
}

// The run ends at the first validation that is the `patience`-th in a row without a loss below the best so far.
TEST_F(Training, PatienceCountsFromTheLastBetterValidation) {
  TrainJob j = job();
  j.config.steps = 60, j.config.validate_every = 1, j.config.patience = 3, j.config.rate = 0.1;
  j.config.held_out = 0.075;  // two documents
  std::vector<double> losses;
  TrainEvents events;
  events.validation = [&](std::int64_t, const Measured& measured, bool) { losses.push_back(measured.loss); };
  const TrainResult result = train(j, events);
  ASSERT_EQ(result.end, TrainEnd::no_better);
  double best = losses.front();
  std::int64_t worse = 0, forgiven = 0, ends = 0;
  for (std::size_t n = 1; n < losses.size() && ends == 0; ++n) {
    if (losses[n] < best) {
      forgiven += worse;
      best = losses[n], worse = 0;
    } else if (++worse == 3) {
      ends = static_cast<std::int64_t>(n) + 1;
    }
  }
  ASSERT_GE(forgiven, 1) << "this run has no better validation after worse ones: it would end as early without a reset";
  EXPECT_EQ(result.state.step, ends);
  EXPECT_EQ(std::ssize(losses), ends);
  EXPECT_EQ(result.state.worse, 3);
  EXPECT_EQ(result.state.best, best);
  EXPECT_EQ(result.state.best_step, ends - 3);
}

TEST_F(Training, AnEqualValidationIsNoBetter) {
  TrainJob j = job();
  j.config.steps = 10, j.config.validate_every = 1, j.config.patience = 2, j.config.rate = 0;
  const TrainResult result = train_until(j);
  EXPECT_EQ(result.end, TrainEnd::no_better);
  EXPECT_EQ(result.state.step, 3);
  EXPECT_EQ(result.state.best_step, 1);
  j = job(Stage::pretrain, "patient");
  j.config.steps = 4, j.config.validate_every = 1, j.config.patience = 0, j.config.rate = 0;
  EXPECT_EQ(train_until(j).end, TrainEnd::done) << "0: never";
}

// 8 documents of 33 tokens, 32 predictions each, in steps of 2 rows of 32: what is held out is not part of an epoch.
TEST_F(Training, AnEpochIsTheDocumentsThatAreNotHeldOut) {
  const fs::path same =
      data(std::vector<std::vector<std::int32_t>>(8, std::vector<std::int32_t>(33, 5)), DataKind::text);
  const auto steps = [&](TrainJob j, double epochs, double held_out) {
    j.config.steps = 0, j.config.epochs = epochs, j.config.held_out = held_out, j.config.batch = 2;
    std::int64_t all = 0;
    TrainEvents events;
    events.begin = [&](const auto&, auto, const auto&, std::int64_t count, auto) { all = count; };
    events.stop = [] { return true; };
    train(j, events);
    return all;
  };
  TrainJob j = job();
  j.data = same;
  for (const auto& [epochs, held_out, expected] :
       {std::tuple{1.0, 0.0, 4}, {1.0, 0.25, 3}, {1.0, 0.5, 2}, {2.0, 0.25, 6}, {1.5, 0.25, 5}, {0.01, 0.25, 1}})
    EXPECT_EQ(steps(j, epochs, held_out), expected) << epochs << " epochs, held out " << held_out;
  TrainJob pairs = job(Stage::dpo, "pairs");  // 16 pairs, two a step
  ASSERT_EQ(Dataset(pairs.data).count(), 32);
  EXPECT_EQ(steps(pairs, 1, 0), 8);
  EXPECT_EQ(steps(pairs, 1, 0.25), 6);
  EXPECT_EQ(steps(pairs, 1.5, 0.25), 9);
}

TEST_F(Training, WeightsThatAreNoNumbersAreNeitherReadNorWritten) {
  const std::string said = refusal_of([&] {
    (void)model_with([](const ParameterLayout& layout, float* values) {
      const Parameter& p = layout.all()[2];
      values[p.offset + p.count() - 1] = std::numeric_limits<float>::quiet_NaN();
    });
  });
  expect_in(said, "the trained model: the tensor \"");
  expect_in(said, "\" holds NaN, expected finite values");
  EXPECT_FALSE(fs::exists(place() / "start"));
  // A run that is done, whose checkpoint was changed since.
  const TrainJob j = job();
  train_until(j);
  std::string bytes = read_text(j.run / "checkpoint.safetensors");
  {
    const io::Safetensors file(j.run / "checkpoint.safetensors");
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + bytes.find(io::as_text(file.find("parameters")->data)) + 8, &nan, sizeof nan);
  }
  write_text(j.run / "checkpoint.safetensors", bytes);
  expect_in(failure(read_run(j.run)), "checkpoint.safetensors: the tensor \"model.embed_tokens.weight\" holds NaN");
}

TEST_F(Training, KeepsTheModelsOfTheStepsThatAreAskedFor) {
  TrainJob j = job();
  j.config.steps = 4, j.config.validate_every = 4;
  TrainEvents events;
  std::vector<std::int64_t> asked;
  events.keep_model = [&](std::int64_t step) {
    asked.push_back(step);
    return step == 0 || step == 4 ? j.run / "kept" / std::to_string(step) : fs::path();
  };
  const TrainResult result = train(j, events);
  EXPECT_EQ(asked, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  ASSERT_EQ(result.state.best_step, 4);
  EXPECT_EQ(read_text(j.run / "kept/4/model.safetensors"), read_text(j.run / "model/model.safetensors"));
  EXPECT_NE(read_text(j.run / "kept/0/model.safetensors"), read_text(j.run / "model/model.safetensors"));
  EXPECT_FALSE(fs::exists(j.run / "kept/2"));
  EXPECT_FALSE(Model::open((j.run / "kept/0").string()).generate("a", {.max_tokens = 1}).text.empty());
}

TEST_F(Training, RefusesASecondRunInTheSameFolder) {
  const TrainJob j = job();
  train_until(j, 3);
  const auto before = bits_of(j.run);
  const io::FolderLock lock(j.run, "");
  expect_in(failure(j), "another training run is at work in " + j.run.string());
  EXPECT_TRUE(bits_of(j.run) == before);
}

TEST_F(Training, SaysWhatDoesNotFit) {
  const auto with = [&](Stage stage, const auto& change) {
    TrainJob j = job(stage);
    change(j);
    return failure(j);
  };
  const auto set = [](auto TrainConfig::* field, auto value) { return [=](TrainJob& j) { j.config.*field = value; }; };
  expect_in(with(Stage::pretrain, set(&TrainConfig::length, 100)), "length is 100, expected at most context, 64");
  expect_in(with(Stage::sft, [](TrainJob& j) { j.config.length = 100, j.config.context = 1000; }),
            "length is 100, and the model is made for 64");
  expect_in(with(Stage::pretrain, [&](TrainJob& j) { j.data = data({{1, 2, 3}}, DataKind::text); }),
            "the documents hold 3 tokens, less than one row of 32");
  expect_in(with(Stage::pretrain,
                 [&](TrainJob& j) { j.data = data(std::vector(100, std::vector<std::int32_t>{1}), DataKind::text); }),
            "no document has two tokens");
  expect_in(with(Stage::pretrain, [&](TrainJob& j) { j.data = place() / "nothing"; }), "holds no data.json");
  // A vocabulary that does not match.
  const std::vector<std::vector<std::int32_t>> texts(4, std::vector<std::int32_t>(40, 3));
  expect_in(with(Stage::sft, [&](TrainJob& j) { j.data = data(texts, DataKind::chat, 301); }),
            "prepared with a tokenizer of 301 tokens");
  expect_in(with(Stage::distil, [&](TrainJob& j) { j.data = data(texts, DataKind::text, 301); }),
            "prepared with a tokenizer of 301 tokens");
  // Stages and what they learn from.
  for (const auto& [stage, kind, said] : {std::tuple{Stage::pretrain, Stage::dpo, "pretrain needs text or chat"},
                                          {Stage::sft, Stage::pretrain, "sft needs chat"},
                                          {Stage::sft, Stage::dpo, "sft needs chat"},
                                          {Stage::lora, Stage::dpo, "lora needs text or chat"},
                                          {Stage::distil, Stage::dpo, "distil needs text or chat"},
                                          {Stage::dpo, Stage::sft, "dpo needs preference pairs"}})
    expect_in(with(stage, [&, given = kind](TrainJob& j) { j.data = TrainingData::shared().of(given); }), said);
  for (const Stage stage : {Stage::sft, Stage::lora, Stage::dpo})
    expect_in(with(stage, [](TrainJob& j) { j.start.clear(); }), "goes on from a model: say which");
  expect_in(with(Stage::distil, [](TrainJob& j) { j.config.teacher.clear(); }), "name it with --teacher");
  EXPECT_FALSE(fs::exists(place() / "run" / "checkpoint.safetensors"));
}

TEST_F(Training, AModelMadeForLongerTextsMayLearnThem) {
  TrainJob j = job(Stage::pretrain);
  j.start = TrainingData::shared().model(), j.config.context = 33, j.config.length = 64, j.config.steps = 1;
  EXPECT_EQ(failure(j), "") << "the context is the model's own, not that of a model from nothing";
}

TEST_F(Training, RefusesWhatDoesNotFitIntoMemory) {
  TrainJob j = job();
  j.config.hidden = 1 << 16, j.config.layers = 1000, j.config.heads = 512, j.config.kv_heads = 512,
  j.config.head_dim = 128;
  const std::string said = failure(j);
  for (const char* words : {"training needs ", "parameters", "gradients", "optimiser", "activations", "left; try "})
    expect_in(said, words);
}

TEST_F(Training, RefusesRunsThatAreNone) {
  expect_in(refusal_of([&] { (void)read_run(place()); }), "holds no run.json");
  const TrainJob j = job();
  train_until(j, 1);
  const std::string run = read_text(j.run / "run.json"), config = read_text(j.run / "config.json");
  write_text(j.run / "run.json", "{\"stage\": \"walk\"}");
  expect_in(refusal_of([&] { (void)read_run(j.run); }), "\"stage\" is \"walk\", expected pretrain, sft");
  write_text(j.run / "run.json", run);
  write_text(j.run / "config.json", "{\"rate\": 7}");
  expect_in(refusal_of([&] { (void)read_run(j.run); }), "\"rate\" is 7");
  write_text(j.run / "config.json", config);
  EXPECT_EQ(config_to_json(read_run(j.run).config), config_to_json(j.config));
}

TEST_F(Training, SftCountsTheAnswersAlone) {
  // Questions nobody can guess, and an answer that is always the same: its loss can vanish.
  std::vector<std::vector<std::int32_t>> documents;
  for (std::int32_t d = 0; d < 64; ++d) {
    documents.emplace_back();
    for (std::int32_t i = 0; i < 24; ++i) documents.back().push_back(~((d * 131 + i * i * 17 + d * i * 7) % 290));
    for (std::int32_t i = 0; i < 9; ++i) documents.back().push_back(295);
  }
  TrainJob j = job(Stage::sft);
  j.data = data(documents, DataKind::chat), j.config.steps = 60, j.config.rate = 2e-2, j.config.decay = 0;
  std::vector<StepReport> reports;
  const TrainResult result = train_until(j, 0, &reports);
  EXPECT_GT(reports.front().loss, 1);
  EXPECT_LT(result.last_loss, 0.05);
  EXPECT_LT(result.state.best, 0.05);
  // A loss that counted the questions could not fall below three quarters of what they hold.
  const Dataset data(j.data);
  EXPECT_EQ(data.info().learnt, 64 * 9);
}

TEST_F(Training, DpoStartsAtLn2AndTheMarginGrows) {
  TrainJob j = job(Stage::dpo);
  j.config.steps = 20, j.config.rate = 2e-3, j.config.dpo_beta = 0.5, j.config.length = 64;
  j.start = model_with([](const ParameterLayout&, float*) {});
  // Pairs that fit a row: the story's questions alone would be cut off.
  std::vector<std::vector<std::int32_t>> pairs;
  for (std::int32_t d = 0; d < 20; ++d)
    for (const std::int32_t answer : {40, 41}) pairs.push_back({~5, ~(6 + d), ~7, answer, answer + d % 2, 2});
  j.data = data(pairs, DataKind::preference);
  std::vector<StepReport> reports;
  train_until(j, 0, &reports);
  EXPECT_NEAR(reports.front().loss, std::log(2.0), 1e-6);
  const auto margin = [](const StepReport& report) {
    for (const auto& [name, value] : report.more)
      if (name == "margin") return value;
    return -1.0;
  };
  EXPECT_NEAR(margin(reports.front()), 0, 1e-5);
  EXPECT_GT(margin(reports.back()), 0.5);
  EXPECT_LT(reports.back().loss, 0.6);
  // The reference does not move: going on, the loss does not begin at ln 2 again.
}

TEST_F(Training, LoraTouchesOnlyItsOwn) {
  TrainJob j = job(Stage::lora);
  train_until(j);
  const ModelFiles before(j.start), after(j.run / "model");
  const ParameterLayout layout(before.config());
  int changed = 0;
  for (const Parameter& p : layout.all()) {
    const StoredTensor *a = before.find(p.name), *b = after.find(p.name);
    const bool same =
        a->data.size() == b->data.size() && std::memcmp(a->data.data(), b->data.data(), a->data.size()) == 0;
    const bool own = p.name.find(".self_attn.") != std::string::npos && p.name.find("norm") == std::string::npos;
    EXPECT_EQ(same, !own) << p.name;
    changed += !same;
  }
  EXPECT_EQ(changed, 2 * 4);
  // PEFT's names, and nothing but A and B.
  const io::Safetensors adapter(j.run / "adapter" / "adapter_model.safetensors");
  EXPECT_EQ(adapter.tensors().size(), 2U * 4 * 2);
  for (const io::StoredTensor& t : adapter.tensors()) {
    EXPECT_TRUE(t.name.starts_with("base_model.model.model.layers.")) << t.name;
    EXPECT_TRUE(t.name.ends_with("_proj.lora_A.weight") || t.name.ends_with("_proj.lora_B.weight")) << t.name;
  }
  const std::string config = read_text(j.run / "adapter" / "adapter_config.json");
  for (const char* words : {"\"peft_type\": \"LORA\"", "\"r\": 2", "\"q_proj\"", "\"o_proj\"", "\"CAUSAL_LM\""})
    expect_in(config, words);
  const io::Safetensors checkpoint(j.run / "checkpoint.safetensors");
  EXPECT_LT(checkpoint.find("parameters")->data.size(), static_cast<std::size_t>(layout.count()));

  // Merged equals unmerged, bit for bit.
  Tensor merged(DType::f32, {1, 1, 1, layout.count()}), trained(DType::f32, {1, 1, 1, layout.count()});
  load_parameters(before, layout, merged.view());
  merge_adapters(j.run / "adapter", layout, merged.view());
  load_parameters(after, layout, trained.view());
  for (const Parameter& p : layout.all())
    EXPECT_EQ(std::memcmp(merged.data<float>() + p.offset, trained.data<float>() + p.offset,
                          static_cast<std::size_t>(p.count()) * 4),
              0)
        << p.name;
}

TEST_F(Training, AdaptersThatDoNotFitAreRefused) {
  const TrainJob j = job(Stage::lora);
  train_until(j);
  const ModelFiles files(j.start);
  const ParameterLayout layout(files.config());
  const fs::path folder = j.run / "adapter";
  const std::string config = read_text(folder / "adapter_config.json"),
                    tensors = read_text(folder / "adapter_model.safetensors");
  const auto refusal = [&] {
    Tensor values(DType::f32, {1, 1, 1, layout.count()});
    return refusal_of([&] { merge_adapters(folder, layout, values.view()); });
  };
  const auto change = [](std::string text, const std::string& old, const std::string& now) {
    return text.replace(text.find(old), old.size(), now);
  };
  EXPECT_EQ(refusal(), "");
  write_text(folder / "adapter_config.json", change(config, "\"r\": 2", "\"r\": 3"));
  expect_in(refusal(), "which the model asks for");
  write_text(folder / "adapter_config.json", config);
  write_text(folder / "adapter_model.safetensors", change(tensors, "layers.1.", "layers.9."));
  expect_in(refusal(), "belong to no matrix of the model");
  write_text(folder / "adapter_model.safetensors", tensors.substr(0, tensors.size() / 2));
  EXPECT_NE(refusal(), "");
  fs::remove(folder / "adapter_model.safetensors");
  EXPECT_NE(refusal(), "");
}

TEST_F(Training, DistilLearnsFromItsTeacher) {
  TrainJob j = job(Stage::distil);
  j.config.distil_alpha = 0, j.config.steps = 40, j.config.rate = 1e-2;
  j.config.held_out = 0.075;  // two documents
  const std::vector<double> all = losses(j);
  EXPECT_LT(all.back(), 0.5 * all.front());
}

}  // namespace
}  // namespace attend::llm::test
