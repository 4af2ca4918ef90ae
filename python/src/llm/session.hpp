// A language model as Python shares it: several threads may ask at once, and what they ask runs as one batch.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../engine_call.hpp"
#include "attend/llm/llm.hpp"

namespace attend::python {

// The engine that answers, and what it said to whom. Made anew after a step that was stopped or failed.
struct Batch {
  explicit Batch(llm::Model& model, const llm::EngineOptions& options) : engine(model, options) {}

  llm::Engine engine;
  std::map<std::int64_t, std::vector<llm::Event>> unread;  // of every request that somebody waits for

  // What nobody waits for any more. Python may drop an answer while another thread runs the engine: it is written down
  // here, and cancelled before the next step.
  void drop(std::int64_t first, std::int64_t count);
  void cancel_dropped();

 private:
  std::mutex mutex_;
  std::vector<std::int64_t> dropped_;
};

class Session {
 public:
  Session(const std::string& name_or_path, const llm::ModelOptions& options);

  // What never changes, for any thread.
  const llm::Model& model() const { return model_; }

  // Runs f(session) as alone() runs f(model). What one call learns of the heads serves the next.
  template <class F>
  auto looking(F&& f) {
    return alone([&](llm::Model& model) {
      if (!looks_) looks_.emplace(model);
      return f(*looks_);
    });
  }
  // Runs f(model) without the GIL, alone.
  template <class F>
  auto alone(F&& f) {
    const EngineCall call;
    const Lock lock(*this);
    return f(model_);
  }

 private:
  friend class Answers;
  // Taken without the GIL: who waits for it must not keep others from Python.
  class Lock {
   public:
    explicit Lock(Session& session);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    Session& session_;
  };
  void step(Batch& batch);

  llm::Model model_;
  llm::EngineOptions options_;
  std::optional<llm::LookSession> looks_;
  std::shared_ptr<Batch> batch_;
  std::mutex mutex_;
  std::atomic<std::thread::id> user_{};  // who holds the mutex
};

// The answers to the prompts of one call.
class Answers {
 public:
  // Submits all or none.
  Answers(std::shared_ptr<Session> session, std::vector<llm::Request> requests);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  std::int64_t open() const { return cancelled_ ? 0 : open_.load(); }  // that have not ended
  // What is new; if nothing is, after one step of the batch, whatever else runs in it. Requests count from 0, in the
  // order of the call.
  std::vector<llm::Event> step();
  void cancel();

 private:
  std::vector<llm::Event> take(Batch& batch);

  std::shared_ptr<Session> session_;
  std::weak_ptr<Batch> batch_;
  std::int64_t first_ = 0, count_ = 0;
  std::atomic<std::int64_t> open_ = 0;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace attend::python
