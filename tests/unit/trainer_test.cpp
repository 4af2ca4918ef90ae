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
  const DocumentSplit split(data.count(), j.config.held_out, j.config.seed);
  const auto ranks = one_process();
  EXPECT_NEAR(language_objective(network, data, split, j.config, *ranks)->validate().loss, result.state.best, 1e-6);
  const TrainJob read = read_run(j.run);
  EXPECT_EQ(config_to_json(read.config), config_to_json(j.config));
  EXPECT_EQ(read.stage, Stage::pretrain);
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
  const std::int64_t bad = DocumentSplit(200, 0, 1).training_document(shuffled(122, 200, epoch_key(1, 0)));
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
  const DocumentSplit split(200, 0.01, 1);
  TrainJob j = poisoned(split.held_out_document(0));
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
  const std::vector<double> all = losses(j);
  EXPECT_LT(all.back(), 0.5 * all.front());
}

}  // namespace
}  // namespace attend::llm::test
