// The public Engine, over the running batch.
#include "attend/llm/engine.hpp"

#include <memory>
#include <utility>

#include "llm/generate/running_batch.hpp"
#include "llm/runtime/file_errors.hpp"
#include "llm/runtime/model_state.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::llm {
namespace {

BatchOptions with_format(const EngineOptions& o, const CacheOptions& model, std::int64_t context) {
  BatchOptions options{.context = o.context > 0 ? o.context : context,
                       .cache_tokens = o.cache_tokens,
                       .tokens_per_step = o.tokens_per_step,
                       .sequences = o.sequences,
                       .cache_dtype = model.dtype,
                       .cache_int8 = model.int8,
                       .stream = o.stream,
                       .sinks = o.sinks};
  if (o.cache == CacheFormat::automatic) return options;
  options.cache_dtype = o.cache == CacheFormat::f32    ? DType::f32
                        : o.cache == CacheFormat::bf16 ? DType::bf16
                                                       : DType::f16;
  options.cache_int8 = o.cache == CacheFormat::int8;
  return options;
}

}  // namespace

struct Engine::State {
  std::shared_ptr<Model::State> model;  // the batch refers to its weights
  std::string path;
  RunningBatch batch;
};

Engine::Engine(Model& model, const EngineOptions& options)
    : state_("Engine", [&] {
        Model::State& m = *model.state_;
        m.must_generate();
        return std::unique_ptr<State>(
            new State{model.state_.pointer(), m.info.path.string(),
                      RunningBatch(m.transformer, m.tokenizer, with_format(options, m.cache, m.context))});
      }()) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

std::int64_t Engine::submit(Request request) {
  const Model::State& model = *state_->model;
  if (!request.ignore_eos) {
    const std::vector<Token> stops = stop_tokens(model.tokenizer, model.config(), nullptr);
    request.stop_tokens.insert(request.stop_tokens.end(), stops.begin(), stops.end());
  }
  return state_->batch.submit(std::move(request));
}
void Engine::cancel(std::int64_t request) {
  state_->batch.cancel(request);
}
bool Engine::idle() const {
  return state_->batch.idle();
}
std::vector<Event> Engine::step() {
  return with_file_errors(state_->path, [&] { return state_->batch.step(); });
}
const EngineStats& Engine::stats() const {
  return state_->batch.stats();
}
std::int64_t Engine::context() const {
  return state_->batch.context();
}
std::int64_t Engine::kept_tokens() const {
  return state_->batch.kept_tokens();
}

}  // namespace attend::llm
