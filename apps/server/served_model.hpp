// A model behind the server: one thread runs its batch; requests come from any thread and hear of their tokens there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "llm/constrain/token_trie.hpp"
#include "llm/generate/running_batch.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::server {

struct ServeLimits {
  std::int64_t context = 0;        // longest sequence; 0: the model's own
  std::int64_t parallel = 16;      // answers that are written at once
  std::int64_t queue = 64;         // requests that wait; then they are refused
  std::int64_t cache_tokens = 0;   // room for keys and values; 0: the context, or 16384 if that is more
  std::int64_t prompt_piece = 64;  // of prompts, in each step that also writes answers
  std::int64_t draft = 8;          // tokens guessed ahead; 0: none
  llm::CacheFormat cache = llm::CacheFormat::automatic;
};

// What /metrics tells; read from any thread.
struct ModelNumbers {
  llm::EngineStats engine;
  std::int64_t open = 0, refused = 0, cancelled = 0;  // requests
  std::int64_t kept_tokens = 0;
  double longest_step = 0;  // seconds
};

// The weights and all that reads them; only the model's own thread uses it.
struct ModelParts {
  llm::Transformer& transformer;
  const llm::Tokenizer& tokenizer;
  llm::CacheOptions cache;  // of the format that the model's cache has
};

class ServedModel {
 public:
  // Called on the model's thread; must be quick. The last event of a request has a finish; `error` says why a request
  // failed that was under way.
  using OnEvent = std::function<void(const llm::Event& event, const std::string& error)>;

  // Loads it: std::runtime_error before anything is read when the memory is not enough.
  ServedModel(std::string id, llm::OpenModel open, const ServeLimits& limits, const llm::LoadProgress& progress = {});
  ~ServedModel();  // ends what runs
  ServedModel(const ServedModel&) = delete;
  ServedModel& operator=(const ServedModel&) = delete;

  const std::string& id() const { return id_; }
  const llm::Tokenizer& tokenizer() const { return tokenizer_; }
  const llm::ModelConfig& config() const { return transformer_.config(); }
  bool generates() const { return config().causal; }
  llm::Compute compute() const { return compute_; }
  std::int64_t context() const { return context_; }
  std::int64_t created() const { return created_; }  // seconds since 1970
  const ServeLimits& limits() const { return limits_; }
  // RequestError when the model brings none.
  const llm::ChatTemplate& chat_template() const;
  std::vector<llm::Token> stop_tokens(bool chat) const;
  std::shared_ptr<const llm::TokenTrie> trie();  // made at the first call

  // Numbers of the requests; empty when the queue has no room for all of them, or the server stops. InvalidArgument for
  // what could never run. `on_event` of each hears from it until its finish.
  std::vector<std::int64_t> submit(std::vector<std::pair<llm::Request, OnEvent>> requests);
  void cancel(std::int64_t request);
  // Runs `job` on the model's thread, between two steps: for whatever else reads the weights (embedding, the explorer).
  // False when too many jobs wait. A job that takes long holds up the answers.
  bool run(std::function<void(ModelParts& parts)> job);
  // Whatever runs ends, with `reason` as its error; nothing new is taken.
  void stop(const std::string& reason);
  ModelNumbers numbers() const;

 private:
  struct Arrival {
    std::int64_t number;
    llm::Request request;
    OnEvent on_event;
  };
  struct Active {
    std::int64_t number;
    OnEvent on_event;
  };
  struct Work {  // for one round of the loop
    std::deque<Arrival> arrivals;
    std::vector<std::int64_t> cancelled;
    std::function<void(ModelParts&)> job;
    bool stopping = false;
  };

  void loop();
  bool wait_for_work(Work& work);
  void begin(Work& work);
  void step();
  void tell(std::int64_t batch_number, const llm::Event& event, const std::string& error);
  void fail_all(const std::string& why);
  void make_batch();

  const std::string id_;
  const std::int64_t created_;
  const llm::Compute compute_;
  std::int64_t context_;
  llm::Tokenizer tokenizer_;
  std::optional<llm::ChatTemplate> chat_template_;
  std::string no_template_;  // why there is none
  ServeLimits limits_;
  llm::CacheOptions cache_;
  llm::Transformer transformer_;
  std::unique_ptr<llm::RunningBatch> batch_;         // none for a model that embeds
  std::unordered_map<std::int64_t, Active> active_;  // by the batch's number
  std::once_flag trie_made_;
  std::shared_ptr<const llm::TokenTrie> trie_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Arrival> arrivals_;
  std::vector<std::int64_t> cancelled_;
  std::deque<std::function<void(ModelParts&)>> jobs_;
  std::int64_t next_number_ = 0;
  ModelNumbers numbers_;
  bool stopping_ = false;
  std::string stop_reason_ = "the server is stopping";
  std::thread thread_;
};

// The models that the server has, the first being the one that an empty name means.
class Models {
 public:
  void add(std::unique_ptr<ServedModel> model) { models_.push_back(std::move(model)); }
  const std::vector<std::unique_ptr<ServedModel>>& all() const { return models_; }
  // RequestError 404 that names those there are.
  ServedModel& find(const std::string& id) const;
  void stop(const std::string& reason) const;

 private:
  std::vector<std::unique_ptr<ServedModel>> models_;
};

}  // namespace attend::server
