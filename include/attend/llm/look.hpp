// A look inside a running model: where every head attends, what kind of head it is, and what changes when parts of the
// model are switched off.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attend/export.h"
#include "attend/lens.hpp"
#include "attend/llm/model.hpp"
#include "attend/row_statistics.hpp"
#include "attend/state_pointer.hpp"
#include "attend/tensor.hpp"

namespace attend::llm {

// ---- Switches: edits of the forward pass ----

// One head, all heads of a layer (head -1), or all of the model (both -1). Layers and heads count from 0.
struct HeadPlace {
  std::int64_t layer = -1, head = -1;
  bool operator==(const HeadPlace&) const = default;
};

// One edit. Edits of different kinds add up. Of the same kind the one that names fewer heads counts (one head before a
// layer before all), of equals the later one; knocked out is what any of them knocks out.
struct Switch {
  enum class Kind {
    scale,      // "scale=off": scores are q.k, not divided by sqrt(d)
    heat,       // "temperature=2": scores are divided by so much besides
    mask,       // "mask=full", "mask=causal", "mask=window:64", "mask=sinks:4+64": instead of the model's own
    padding,    // "padding=3-7": keys 3 to 6 are hidden from every query, besides
    knock_out,  // "knock=zero@3.5", "knock=mean@3.5": the heads' outputs, or their mean over positions
    only,       // "only=layer@3.5", "only=model@3.5", "...:mean": the other heads of the layer, or of the model, go
    positions,  // "positions=off": no RoPE and no ALiBi; those added to embeddings can go for all heads alone
    shuffle,    // "shuffle=7": the tokens in an order made from this seed; special ones stay in their places
  };
  enum class Mask { full, causal, window, sinks };

  Kind kind = Kind::scale;
  HeadPlace where{};
  double temperature = 1;
  Mask mask = Mask::causal;
  std::int64_t window = 0;                      // keys a query sees, itself included
  std::int64_t sinks = 0;                       // first keys it sees besides
  std::int64_t hidden_from = 0, hidden_to = 0;  // padding
  bool mean = false;                            // knocked out by the mean
  bool whole_model = false;                     // only: of the model, not of the layer
  std::uint64_t seed = 0;
  bool operator==(const Switch&) const = default;
};
// NAME=VALUE, or NAME=VALUE@LAYER or NAME=VALUE@LAYER.HEAD, as above. InvalidArgument says what was expected.
ATTEND_API Switch parse_switch(std::string_view text);
// Several, with commas or spaces between them.
ATTEND_API std::vector<Switch> parse_switches(std::string_view text);
ATTEND_API std::string to_text(const Switch& one);  // parse_switch() reads it
ATTEND_API std::string to_text(std::span<const Switch> switches);

// ---- What is seen ----

// The columns of a row's statistics are those of attention() itself: attend/row_statistics.hpp. The tokens counted as
// sinks are left out of self, previous, local, recent, duplicate and induction.
ATTEND_API const char* name(RowStatistic statistic);
ATTEND_API std::optional<RowStatistic> statistic_of(std::string_view name);

struct LookToken {
  Token id = 0;
  std::string text;  // its bytes; a piece of a character is possible
  bool special = false;
};

struct NextToken {
  Token id = 0;
  std::string text;
  double probability = 0;
};

enum class Measure {
  weight,
  weight_value,  // weight x the length of the key's value
};

struct Attended {  // a weight with its place
  std::int64_t position = 0;
  float weight = 0;
};

// How the weight of one cell comes about: every number of it.
struct LookCell {
  std::int64_t layer = 0, head = 0, kv_head = 0, query = 0, key = 0;
  CellArithmetic arithmetic;              // q and k as they are multiplied, after the rotation
  std::vector<float> q_before, k_before;  // before it; empty unless LookOptions::before_rotation
  double value_length = 0;                // of v
};

// ---- Kinds of heads ----

enum class HeadKind { mixed, previous, self, local, induction, duplicate, diffuse, long_range, sink_resting };
ATTEND_API const char* name(HeadKind kind);
ATTEND_API const char* rule_of(HeadKind kind);  // in words: "weight on the token before, above 0.4"
ATTEND_API double threshold_of(HeadKind kind);

struct KindScore {
  HeadKind kind = HeadKind::mixed;
  double score = 0, threshold = 0;
  bool measured = true;  // false: the text has no row for it
};
// What kind a head is on one of four fixed texts (prose, exposition, code, Chinese), without switches.
struct KindOnText {
  const char* text;
  HeadKind kind = HeadKind::mixed;
};
// Without the weight on sinks: each row is divided by what is left. Rows with more than 0.95 on sinks are left out.
struct HeadType {
  std::int64_t layer = 0, head = 0;
  KindScore kind;                 // mixed: no rule holds
  KindScore runner_up;            // the next in score / threshold, whether its rule holds or not
  std::vector<KindScore> scores;  // of all kinds
  std::int64_t rows = 0, left_out = 0;
  double median_sink = 0;
  // Kinds change with the text: those on the fixed texts show how much this one does. Texts that the model's tokenizer
  // cannot encode are left out.
  std::vector<KindOnText> on_texts;
  std::int64_t texts_of_kind() const {  // fixed texts on which the kind is the same
    std::int64_t count = 0;
    for (const KindOnText& one : on_texts) count += one.kind == kind.kind;
    return count;
  }
};

// ---- Runs ----

struct LookOptions {
  std::vector<Switch> switches{};
  bool statistics = true;              // of every row of every head, in the same sweep as the output
  bool keep = true;                    // q, k and v: what maps, rows, cells and next() need
  std::vector<std::int64_t> layers{};  // whose are kept; empty: all
  bool before_rotation = false;        // q and k before their rotation, for cells
  bool losses = false;                 // of each token, for Look::losses()
  std::int64_t sinks = 1;              // first tokens that count as sinks
  std::int64_t memory_limit = 0;       // bytes to keep at most; 0: half of what is free
  OnProgress progress{};               // of run(): layers done and all of them; may throw to stop
};

struct LookMemory {
  std::int64_t kept = 0, statistics = 0, working = 0;
  std::int64_t limit = 0;  // LookOptions::memory_limit, or half of the free memory; run() throws if total() is more
  std::int64_t total() const { return kept + statistics + working; }
};
// The memory of a run over so many tokens, before it starts.
ATTEND_API LookMemory plan_look(const Model& model, std::int64_t tokens, const LookOptions& options = {});

struct LookStep {  // of Look::next
  Token token = 0;
  std::string text;
  double probability = 0;  // by the model, before any rule of the sampling
  bool ends = false;       // the token ends the answer
  std::int64_t position = 0;
  std::int64_t cache_bytes = 0;  // keys and values of all tokens so far, in f32
  double milliseconds = 0;
};

// One run of a model over tokens, and what was kept of it. Cheap to copy: copies are the same run. It keeps the model's
// weights alive; calls that need the model (next_tokens, losses, next) are for one thread at a time, like the model
// itself.
class ATTEND_API Look {
 public:
  const ModelInfo& model() const;
  const LookOptions& options() const;
  std::int64_t length() const;  // tokens
  std::int64_t layers() const;
  std::int64_t heads() const;
  std::int64_t kv_heads() const;
  std::span<const LookToken> tokens() const;
  bool kept(std::int64_t layer) const;
  std::int64_t bytes() const;                        // held by this run
  std::int64_t bytes_with(std::int64_t more) const;  // an upper bound of them once it is so many tokens longer
  std::int64_t cache_bytes() const;                  // keys and values of all tokens, in f32
  double milliseconds() const;                       // that the run took

  // [length]
  std::vector<float> statistic(std::int64_t layer, std::int64_t head, RowStatistic statistic) const;
  // The mean over rows of each head, [layers, heads]; rows without a finite value are passed over.
  std::vector<double> means(RowStatistic statistic) const;

  // What the model expects after the token at `position` (-1: the last). An encoder with a head for masked tokens
  // predicts the token at the position itself.
  std::vector<NextToken> next_tokens(std::int64_t position = -1, std::int64_t count = 10) const;
  std::vector<float> next_logits(std::int64_t position = -1) const;  // [vocabulary]
  // -log p(token) by what came before it, [length]; NaN for the first. LookOptions::losses.
  std::span<const float> losses() const;

  // ---- of kept layers ----
  View q(std::int64_t layer) const;  // [1, heads, length, head_dim], f32, after the rotation
  View k(std::int64_t layer) const;  // [1, kv_heads, length, head_dim]
  View v(std::int64_t layer) const;
  // How the layer's scores are made, switches and all; the views in it live as long as the run.
  AttentionOptions attention(std::int64_t layer, std::int64_t head) const;
  View lse(std::int64_t layer) const;                                                // [1, heads, length, 1]
  std::vector<float> value_lengths(std::int64_t layer, std::int64_t kv_head) const;  // [length]

  // Pooled over cells, mass and peak, of any area at any resolution; MapOptions of attend/lens.hpp.
  PooledMap map(std::int64_t layer, std::int64_t head, const MapOptions& options = {},
                Measure measure = Measure::weight) const;
  // [length, length], at most 2048 tokens; masked weights are 0.
  std::vector<float> weights(std::int64_t layer, std::int64_t head) const;
  std::vector<float> zoom(std::int64_t layer, std::int64_t head, const LensArea& area) const;  // [queries, keys]
  std::vector<float> row(std::int64_t layer, std::int64_t head, std::int64_t query) const;     // over keys
  std::vector<float> column(std::int64_t layer, std::int64_t head, std::int64_t key) const;    // over queries
  // What the query looks at most, falling; ties by position.
  std::vector<Attended> top(std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t count) const;
  // Which queries give the key the most.
  std::vector<Attended> users(std::int64_t layer, std::int64_t head, std::int64_t key, std::int64_t count) const;
  // Attention each key gets from all queries, [length].
  std::vector<double> received(std::int64_t layer, std::int64_t head) const;
  LookCell cell(std::int64_t layer, std::int64_t head, std::int64_t query, std::int64_t key) const;

  // ---- while generating: the kept keys and values are the cache ----
  // Chooses the next token and runs it through the model, with the same switches: the run is a token longer, its rows
  // and statistics with it. All layers must be kept; not for encoders.
  LookStep next(const Sampling& sampling = {});
  LookStep append(Token token);
  void back(std::int64_t count = 1);  // forgets the last tokens, but never those the run began with

  struct State;
  explicit Look(std::shared_ptr<State> state) : state_("Look", std::move(state)) {}  // for attend itself

 private:
  friend struct LookAccess;
  StatePointer<std::shared_ptr<State>> state_;
};

// Where a head attends on random tokens that come twice: the mean weight on the token that followed the last time.
struct InductionProbe {
  std::uint64_t seed = 0;
  std::int64_t tokens = 0;        // random ones, then the same again
  std::vector<double> induction;  // [layers, heads], over the second half, sinks removed
  std::vector<double> duplicate;
  double first_loss = 0, second_loss = 0;  // mean over the halves: a model that copies has a small second one
};

// Runs of one model.
class ATTEND_API LookSession {
 public:
  explicit LookSession(Model& model);  // keeps the model's weights alive
  ~LookSession();
  LookSession(LookSession&&) noexcept;
  LookSession& operator=(LookSession&&) noexcept;

  Model& model() const;
  Look run(std::string_view text, const LookOptions& options = {});
  Look run(std::span<const Token> tokens, const LookOptions& options = {});
  // Made when it is first asked for, without switches, and remembered.
  const InductionProbe& probe();
  // Of all heads, layer by layer. The run needs statistics. The first call runs the probe and four fixed texts of up to
  // 160 tokens, without switches; their results are remembered.
  std::vector<HeadType> types(const Look& look);

 private:
  struct State;
  StatePointer<std::unique_ptr<State>> state_;
};

// ---- Two runs side by side ----

struct TokenRange {
  std::int64_t begin = 0, end = 0;  // tokens
  std::string name{};
};
struct LossChange {
  TokenRange range;
  double before = 0, after = 0;  // mean loss over the range's tokens
  std::int64_t tokens = 0;
};
struct LookComparison {
  std::int64_t position = 0;             // of both runs' next token: the last
  std::optional<double> divergence{};    // KL(before || after) in nats; none where the vocabularies differ
  std::vector<NextToken> before, after;  // the likeliest
  std::vector<LossChange> losses;        // all tokens, then the ranges; empty unless both runs have losses
  // after - before of the mean of each statistic, [kRowStatistics][layers * heads]; empty unless both have statistics
  // and as many heads
  std::vector<std::vector<double>> statistics;
};
ATTEND_API LookComparison compare(const Look& before, const Look& after, std::span<const TokenRange> ranges = {},
                                  std::int64_t top = 10);

// How much the weights of one head differ between two runs of equal length.
struct HeadChange {
  std::int64_t layer = 0, head = 0;
  double change = 0;        // total variation, sum of |after - before| / 2, mean over queries: 0 to 1
  std::int64_t query = 0;   // the query whose weights changed most
  double query_change = 0;  // and by how much
};
struct PredictionChange {
  std::int64_t position = 0;
  double divergence = 0;    // KL(before || after) of the next token's distribution, in nats
  NextToken before, after;  // the likeliest token of each run
};
struct TokenChange {
  std::int64_t position = 0;
  double before = 0, after = 0;  // losses of the token
};
struct LookChanges {
  std::vector<HeadChange> heads;              // of the layers that both runs keep; largest change first
  std::vector<PredictionChange> predictions;  // largest divergence first; empty unless both predict the same vocabulary
  std::vector<TokenChange>
      tokens;  // largest change in loss first; empty unless both runs have losses of the same tokens
};
// The heads, predictions and tokens that differ most between two runs; at most `count` predictions and tokens. Runs of
// different lengths have no changes, runs of different layers or heads no changes of heads. `progress` gets layers.
ATTEND_API LookChanges changes(const Look& before, const Look& after, std::int64_t count = 10,
                               const OnProgress& progress = {});

// a - b, cell by cell; InvalidArgument unless they cover the same.
ATTEND_API PooledMap difference(const PooledMap& a, const PooledMap& b);

// ---- Relations ----

struct RelationScore {
  std::int64_t layer = 0, head = 0;
  std::int64_t cases = 0, hits = 0;    // the largest weight (without sinks) lies on the related word
  double rate = 0, low = 0, high = 0;  // hits / cases and its interval
  double chance = 0;                   // RelationReport::chance
  double weight = 0;                   // mean weight on the related word, without sinks
  bool holds = false;                  // the interval lies above chance
  std::int64_t hits_rule_wrong = 0;    // hits among the cases in which the best simple rule is wrong
};
// A rule that needs no model: "the last name said", "a fixed distance", ...
struct RelationRule {
  std::string rule;
  double rate = 0;            // of the cases in which it names the related word
  std::int64_t distance = 0;  // tokens back; of "a fixed distance": the best one
};
struct RelationReport {
  std::string relation;  // "adjective_noun", ...
  std::int64_t cases = 0;
  std::vector<RelationRule> rules;     // best first
  double chance = 0;                   // the rate of the best rule
  std::int64_t rule_wrong = 0;         // cases in which the best rule is wrong
  double confidence = 0;               // of each interval: 95 % for all heads together (Bonferroni), Wilson's
  std::vector<RelationScore> heads;    // [layers * heads]
  std::optional<std::int64_t> best{};  // of those that hold, by rate
};
struct RelationOptions {
  std::int64_t stories = 64;
  std::uint64_t seed = 1;
  bool chinese = false;
  std::vector<Switch> switches{};
  OnProgress progress{};
};
// Every head on each relation of the generated stories, whose words' relations are known. In every second story the
// simple rules are often wrong.
ATTEND_API std::vector<RelationReport> score_relations(LookSession& session, const RelationOptions& options = {});

// ---- A page ----

struct PageOptions {
  std::string name{};                           // of the model, as the page shows it
  std::int64_t bytes = std::int64_t{24} << 20;  // of weights, queries, keys and values: where all kept layers have
                                                // more, the one with the clearest head is taken
};
// What the explorer's page needs to show a run without a server, as JSON. InvalidArgument where one layer is too much.
ATTEND_API std::string page_data(LookSession& session, const Look& look, const PageOptions& options = {});

}  // namespace attend::llm
