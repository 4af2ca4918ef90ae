// Small runs of training: data of every kind from a few stories, a model of a few thousand parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "llm/train/prepare.hpp"
#include "llm/train/trainer.hpp"
#include "training_files.hpp"

namespace attend::llm::test {

// Folders that all tests of a program read: text, chats and pairs by one tokenizer, and a model trained on the text.
class TrainingData {
 public:
  static const TrainingData& shared() {
    static const TrainingData data;
    return data;
  }
  fs::path of(Stage stage) const {
    return folder_.path() / (stage == Stage::sft || stage == Stage::lora ? "chat"
                             : stage == Stage::dpo                       ? "pairs"
                                                                         : "text");
  }
  fs::path model() const { return folder_.path() / "run" / "model"; }

  static TrainConfig tiny_config() {
    TrainConfig c;
    c.hidden = 16, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.head_dim = 8, c.feed_forward = 24, c.context = 64;
    c.length = 32, c.batch = 4, c.steps = 10, c.rate = 5e-3, c.compute = "f32", c.sample_tokens = 0;
    c.held_out = 0.1, c.validate_every = 4, c.validate_tokens = 256, c.lora_rank = 2;
    return c;
  }

 private:
  TrainingData() {
    const auto make = [&](const char* name, std::int64_t count, CorpusFormat format) {
      const fs::path lines = folder_.path() / (std::string(name) + ".jsonl");
      write_text(lines, story_lines(count, {.format = format}));
      PrepareOptions options;
      options.inputs = {lines};
      options.out = folder_.path() / name, options.training.vocabulary = 300;
      if (std::string(name) != "text") options.tokenizer = folder_.path() / "text";
      prepare(options);
    };
    make("text", 24, CorpusFormat::text);
    make("chat", 16, CorpusFormat::chat);
    make("pairs", 16, CorpusFormat::preference);
    TrainJob job;
    job.config = tiny_config(), job.data = of(Stage::pretrain), job.run = folder_.path() / "run";
    job.config.steps = 4;
    train(job, {});
  }
  TempFolder folder_;
};

inline TrainJob tiny_job(Stage stage, const fs::path& run) {
  TrainJob job;
  job.stage = stage, job.config = TrainingData::tiny_config(), job.run = run;
  job.data = TrainingData::shared().of(stage);
  if (stage != Stage::pretrain && stage != Stage::distil) job.start = TrainingData::shared().model();
  if (stage == Stage::distil) job.config.teacher = TrainingData::shared().model().string();
  if (stage == Stage::dpo) job.config.length = 64;
  return job;
}

// Runs until that many steps of the whole run are done; 0: to the end.
inline TrainResult train_until(const TrainJob& job, std::int64_t steps = 0,
                               std::vector<StepReport>* reports = nullptr) {
  std::int64_t done = 0;
  TrainEvents events;
  events.begin = [&](const auto&, auto, const auto&, auto, std::int64_t before) { done = before; };
  events.step = [&](const StepReport& report) {
    done = report.step;
    if (reports != nullptr) reports->push_back(report);
  };
  events.stop = [&] { return steps > 0 && done >= steps; };
  return train(job, events);
}

// All that a run is to have the same of, whenever it was stopped: the checkpoint's tensors, the model, the losses.
inline std::map<std::string, std::string> bits_of(const fs::path& run) {
  std::map<std::string, std::string> bits;
  const io::Safetensors checkpoint(run / "checkpoint.safetensors");
  for (const io::StoredTensor& t : checkpoint.tensors())
    bits["checkpoint " + t.name].assign(reinterpret_cast<const char*>(t.data.data()), t.data.size());
  for (const char* part : {"model", "adapter"})
    if (fs::exists(run / part))
      for (const fs::directory_entry& entry : fs::directory_iterator(run / part))
        bits[std::string(part) + "/" + entry.path().filename().string()] = read_text(entry.path());
  std::ifstream metrics(run / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const io::Json json = io::parse_json(line, "metrics.jsonl");
    const std::string key = "line " + *json.find("kind")->string() + std::to_string(*json.find("step")->integer());
    EXPECT_FALSE(bits.contains(key)) << "twice: " << line;
    double loss = 0;
    EXPECT_TRUE(json.find("loss")->number(loss)) << line;
    bits[key] = io::json_number(loss);
  }
  return bits;
}

inline void expect_same_bits(const fs::path& a, const fs::path& b) {
  const auto one = bits_of(a), other = bits_of(b);
  for (const auto& [what, bits] : one) {
    ASSERT_TRUE(other.contains(what)) << what;
    EXPECT_TRUE(other.at(what) == bits) << what << " differs";
  }
  EXPECT_EQ(one.size(), other.size());
}

}  // namespace attend::llm::test
