// Runs of one model, and what is known of its heads.
#include <algorithm>
#include <optional>

#include "attend/error.hpp"
#include "llm/look/head_types.hpp"
#include "llm/look/look_state.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::llm {
namespace {

constexpr std::uint64_t kProbeSeed = 1;

constexpr const char* kStatisticNames[] = {
    "mass",  "entropy", "distance_mean", "distance_variance", "sink_tokens", "self",  "previous",
    "local", "recent",  "duplicate",     "induction",         "maximum",     "argmax"};
static_assert(std::size(kStatisticNames) == kRowStatistics);

}  // namespace

const char* name(RowStatistic statistic) {
  return kStatisticNames[static_cast<std::size_t>(statistic)];
}

std::optional<RowStatistic> statistic_of(std::string_view text) {
  for (std::size_t n = 0; n < std::size(kStatisticNames); ++n)
    if (kStatisticNames[n] == text) return static_cast<RowStatistic>(n);
  return {};
}

struct LookSession::State {
  Model model;  // shares the weights of the model that was given
  std::optional<InductionProbe> probe{};
  std::optional<std::vector<KindsOnText>> on_texts{};
};

LookSession::LookSession(Model& model)
    : state_("LookSession", std::unique_ptr<State>(new State{LookAccess::handle(model)})) {}
LookSession::~LookSession() = default;
LookSession::LookSession(LookSession&&) noexcept = default;
LookSession& LookSession::operator=(LookSession&&) noexcept = default;

Model& LookSession::model() const {
  return state_->model;
}

Look LookSession::run(std::string_view text, const LookOptions& options) {
  const std::vector<Token> tokens = state_->model.tokenizer().encode(text);
  const ModelState& model = LookAccess::state(state_->model);
  check_tokens(tokens, model.config().vocabulary, model.info.path.string());
  return run(tokens, options);
}

Look LookSession::run(std::span<const Token> tokens, const LookOptions& options) {
  const ModelState& model = LookAccess::state(state_->model);
  check_look(model, tokens, options);
  auto state = std::make_shared<Look::State>(LookAccess::shared(state_->model), options);
  std::vector<Token> order(tokens.begin(), tokens.end());
  for (const Switch& one : options.switches) {
    if (one.kind != Switch::Kind::shuffle) continue;
    std::vector<bool> fixed;
    for (const Token token : order) fixed.push_back(model.tokenizer.is_special(token));
    order = shuffled(order, fixed, one.seed);
  }
  state->run(order);
  state->options.progress = {};  // of this call alone
  return Look(std::move(state));
}

const InductionProbe& LookSession::probe() {
  if (!state_->probe) {
    const ModelState& model = LookAccess::state(state_->model);
    const ProbeTokens tokens = probe_tokens(model, kProbeSeed);
    const Look look = run(tokens.tokens, {.keep = false, .losses = model.config().causal});
    state_->probe = read_probe(LookAccess::state(look), tokens, kProbeSeed);
  }
  return *state_->probe;
}

std::vector<HeadType> LookSession::types(const Look& look) {
  if (LookAccess::state(look).model != LookAccess::shared(state_->model))
    throw InvalidArgument("types: the run is of another model, expected one of this session's");
  std::vector<HeadType> types = head_types(LookAccess::state(look), probe());
  if (!state_->on_texts) state_->on_texts = kinds_on_texts(*this);
  for (std::size_t n = 0; n < types.size(); ++n)
    for (const KindsOnText& one : *state_->on_texts) types[n].on_texts.push_back({one.text, one.kinds[n]});
  return types;
}

}  // namespace attend::llm
