// What a Look holds: the tokens, and of each layer what was kept.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attend/llm/look.hpp"
#include "llm/look/edits.hpp"
#include "llm/model/transformer.hpp"
#include "llm/runtime/model_state.hpp"

namespace attend::llm {

// Reaches inside a Model and a Look.
struct LookAccess {
  using ModelState = Model::State;
  static const std::shared_ptr<ModelState>& shared(const Model& model) { return model.state_.pointer(); }
  static const ModelState& state(const Model& model) { return *model.state_; }
  static Model handle(const Model& model) { return Model(model.state_.pointer()); }  // of the same weights
  static const Look::State& state(const Look& look);
};
using ModelState = LookAccess::ModelState;

// A row's statistics, and behind them what its sinks have of the entropy.
inline constexpr std::int64_t kLookStatistics = kRowStatistics + 1;
inline constexpr std::int64_t kSinkEntropy = kRowStatistics;
inline constexpr std::int64_t kTokenBytes = sizeof(LookToken) + sizeof(Token);
inline constexpr std::int64_t kGrowth = 8;  // rows that come one by one make room for an eighth more

struct LookLayer {
  bool kept = false;
  AttentionOptions options{};  // the layer's own
  std::vector<float> q, k, v;  // [tokens, heads, head_dim], q and k as they are multiplied
  std::vector<float> k_plain;  // before the rotation, for heads that do not rotate beside heads that do
  std::vector<float> q_before, k_before;
  std::vector<float> lse;         // [tokens, heads]
  std::vector<float> statistics;  // [tokens, heads, kLookStatistics]
  std::vector<float> means;       // [heads, head_dim], of outputs over the tokens the run began with
};

struct Look::State {
  State(std::shared_ptr<ModelState> of, LookOptions asked);

  const ModelConfig& config() const { return model->config(); }
  std::int64_t length() const { return std::ssize(ids); }
  const LookLayer& kept_layer(std::int64_t layer) const;  // InvalidArgument if it is not kept
  void check_head(std::int64_t layer, std::int64_t head) const;
  std::int64_t position(std::int64_t asked, const char* what) const;  // -1: the last
  bool keeps(std::int64_t layer) const;

  // Runs tokens after those that are there.
  void run(std::span<const Token> tokens);
  void forget(std::int64_t length);  // all from there on
  void find_losses(std::int64_t first);

  // ---- views of one head, over all tokens ----
  View head_view(const std::vector<float>& rows, std::int64_t heads, std::int64_t head, std::int64_t width) const;
  const std::vector<float>& keys_of(std::int64_t layer, std::int64_t head) const;
  AttentionOptions head_options(std::int64_t layer, std::int64_t head) const;
  std::int64_t kv_head(std::int64_t head) const { return head / (config().heads / config().kv_heads); }

  const std::shared_ptr<ModelState> model;  // alive for as long as any look at it
  LookOptions options;
  Edits edits;
  std::vector<Token> ids;
  std::vector<LookToken> tokens;
  std::vector<LookLayer> layers;
  std::vector<float> hidden;  // [tokens, hidden] after the final norm
  std::vector<float> losses;
  std::int64_t prompt = 0;  // tokens the run began with
  double milliseconds = 0;

 private:
  void attend(const LayerAttention& call);
  void attend_heads(const LayerAttention& call, LookLayer& layer, const float* k, const float* k_plain, const float* v,
                    std::int64_t head, std::int64_t count);
  void add_sink_entropy(const LayerAttention& call, LookLayer& layer, std::int64_t first);
  void replace_outputs(const LayerAttention& call, LookLayer& layer);
};

inline const Look::State& LookAccess::state(const Look& look) {
  return *look.state_;
}

void check_token(const ModelConfig& config, Token token);  // InvalidArgument if the model does not know it
// InvalidArgument if the tokens are not what the model can run.
void check_look(const ModelState& model, std::span<const Token> tokens, const LookOptions& options);

}  // namespace attend::llm
