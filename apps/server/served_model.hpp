// A model behind the server: one thread runs its batch; requests come from any thread and hear of their tokens there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "llm/generate/running_batch.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::server {

struct ServeLimits {
  std::int64_t parallel = 16;      // answers that are written at once
  std::int64_t queue = 16;         // requests that wait; then they are refused
  std::int64_t cache_tokens = 0;   // room for keys and values; 0: the context, or 16384 if that is more
  std::int64_t prompt_piece = 64;  // of prompts, in each step that also writes answers
};

// What /metrics tells; read from any thread.
struct ModelNumbers {
  std::int64_t prompt_tokens = 0, reused_tokens = 0, generated_tokens = 0, steps = 0;
  std::int64_t drafted_tokens = 0, accepted_tokens = 0;  // of prompt look-up
  std::int64_t running = 0, waiting = 0;
};

// The weights and all that reads them; only the model's own thread uses it.
struct ModelParts {
  llm::Transformer& transformer;
  const llm::Tokenizer& tokenizer;
  llm::CacheOptions cache;  // of the format that the model's cache has
};

class ServedModel {
 public:
  // Called on the model's thread; must be quick. The last event of a request has a finish.
  using OnEvent = std::function<void(const llm::Event& event)>;

  ServedModel(std::string id, llm::OpenModel open, const ServeLimits& limits,
              const std::function<void(std::int64_t, std::int64_t)>& progress);
  ~ServedModel();  // ends what runs
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  const std::string& id() const { return id_; }
  const llm::Tokenizer& tokenizer() const { return tokenizer_; }
  const llm::ModelConfig& config() const { return transformer_.config(); }
  std::int64_t context() const { return context_; }
  std::int64_t created() const { return created_; }  // seconds since 1970

  // Numbers of the requests, or nothing when the queue has no room for all of them. InvalidArgument for what could
  // never run. `on_event` of each hears from it until its finish.
  std::vector<std::int64_t> submit(std::vector<std::pair<llm::Request, OnEvent>> requests);
  void cancel(std::int64_t request);
  // Runs `job` on the model's thread, between two steps: for whatever else reads the weights (embedding, the explorer).
  // False when too many jobs wait. A job that takes long holds up the answers.
  bool run(std::function<void(ModelParts& parts)> job);
  // What runs ends with Finish::cancelled; nothing new is taken.
  void stop();
  bool busy() const;
  ModelNumbers numbers() const;

 private:
  void loop();

  const std::string id_;
  const std::int64_t created_;
  std::int64_t context_;
  llm::Tokenizer tokenizer_;
  llm::CacheOptions cache_;
  llm::Transformer transformer_;
  ServeLimits limits_;
  std::unique_ptr<llm::RunningBatch> batch_;  // none for a model that embeds

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  struct Arrival {
    std::int64_t number;
    llm::Request request;
    OnEvent on_event;
  };
  std::deque<Arrival> arrivals_;
  std::vector<std::int64_t> cancelled_;
  std::deque<std::function<void(ModelParts&)>> jobs_;
  std::int64_t next_number_ = 0, open_ = 0;  // requests that have not ended
  ModelNumbers numbers_;
  bool stopping_ = false;
  std::thread thread_;
};

// The models that the server has, the first being the one that an empty name means.
class Models {
 public:
  void add(std::unique_ptr<ServedModel> model) { models_.push_back(std::move(model)); }
  const std::vector<std::unique_ptr<ServedModel>>& all() const { return models_; }
  // RequestError 404 that names those there are.
  ServedModel& find(const std::string& id) const;

 private:
  std::vector<std::unique_ptr<ServedModel>> models_;
};

}  // namespace attend::server
