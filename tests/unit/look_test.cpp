// A look inside a model: with switches it is the forward pass with attention made by hand, one weight after the other;
// without any it is the forward pass itself.
#include "attend/llm/look.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "error_of.hpp"
#include "golden_models.hpp"
#include "llm/look/head_types.hpp"
#include "llm/look/look_state.hpp"
#include "llm/look/predictions.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

// Attention with every weight written out, in double.
struct ByHand {
  std::function<bool(std::int64_t layer, std::int64_t head)> rotates = [](auto, auto) { return true; };
  std::function<double(std::int64_t layer, std::int64_t head)> scale;  // none: the model's own
  std::function<bool(std::int64_t layer, std::int64_t head, std::int64_t i, std::int64_t j)> sees;
  std::function<char(std::int64_t layer, std::int64_t head)> output = [](auto, auto) { return ' '; };  // '0', 'm'
  bool slopes = true;
  std::int64_t mean_over = 0;                  // rows of an 'm'; 0: all
  std::vector<std::vector<double>> weights{};  // [layers * heads][T * T]

  void attend(const ModelConfig& c, const LayerAttention& call);
};

std::vector<double> rotated(const float* x, const ModelConfig& c, const RopeTable* table, std::int64_t row) {
  std::vector<double> y(x, x + c.head_dim);
  if (table == nullptr) return y;
  const std::int64_t pairs = table->pairs();
  for (std::int64_t p = 0; p < pairs; ++p) {
    const bool halves = table->style() == RopeStyle::half_split;
    const auto a = static_cast<std::size_t>(halves ? p : 2 * p),
               b = static_cast<std::size_t>(halves ? p + pairs : 2 * p + 1);
    const double cosine = static_cast<double>(table->cosines()[row * pairs + p]);
    const double sine = static_cast<double>(table->sines()[row * pairs + p]);
    const double first = y[a], second = y[b];
    y[a] = first * cosine - second * sine;
    y[b] = second * cosine + first * sine;
  }
  return y;
}

void ByHand::attend(const ModelConfig& c, const LayerAttention& call) {
  const std::int64_t T = call.rows, D = c.head_dim, Q = c.query_width(), K = c.kv_width();
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const std::int64_t kv = h / (c.heads / c.kv_heads);
    const RopeTable* table = rotates(call.layer, h) ? call.rotation : nullptr;
    std::vector<double>& all = weights.emplace_back(static_cast<std::size_t>(T * T));
    std::vector<double> out(static_cast<std::size_t>(T * D));
    for (std::int64_t i = 0; i < T; ++i) {
      const std::vector<double> q = rotated(call.q + i * Q + h * D, c, table, i);
      double* row = all.data() + i * T;
      double sum = 0;
      for (std::int64_t j = 0; j < T; ++j) {
        if (!sees(call.layer, h, i, j)) continue;
        const std::vector<double> k = rotated(call.k + j * K + kv * D, c, table, j);
        double score = 0;
        for (std::size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
        const double own = call.options.scale.value_or(1 / std::sqrt(static_cast<double>(D)));
        score *= scale ? scale(call.layer, h) : own;
        if (call.options.softcap > 0) score = call.options.softcap * std::tanh(score / call.options.softcap);
        if (call.options.alibi_slopes && slopes)
          score -= static_cast<double>(static_cast<const float*>(call.options.alibi_slopes->data)[h]) *
                   static_cast<double>(std::abs(i - j));
        row[j] = std::exp(score);
        sum += row[j];
      }
      for (std::int64_t j = 0; j < T && sum > 0; ++j) {
        row[j] /= sum;
        for (std::int64_t d = 0; d < D; ++d)
          out[static_cast<std::size_t>(i * D + d)] += row[j] * static_cast<double>(call.v[j * K + kv * D + d]);
      }
    }
    for (std::int64_t d = 0; d < D; ++d) {
      double mean = 0;
      const std::int64_t over = mean_over > 0 ? mean_over : T;
      for (std::int64_t i = 0; i < over; ++i)
        mean += out[static_cast<std::size_t>(i * D + d)] / static_cast<double>(over);
      for (std::int64_t i = 0; i < T; ++i) {
        const char what = output(call.layer, h);
        const double own = out[static_cast<std::size_t>(i * D + d)];
        call.mixed[i * Q + h * D + d] = static_cast<float>(what == '0' ? 0 : what == 'm' ? mean : own);
      }
    }
  }
}

// A golden model, opened, and the same weights to run by hand.
class Looked {
 public:
  explicit Looked(const std::string& name, const std::function<void(ModelConfig&)>& change = {}) : golden_(name) {
    if (change) {
      ModelConfig config = golden_.load().config();
      change(config);
      write_text(golden_.path() / "config.json", config_to_json(config, kOwnFamily));
    }
    transformer_ = std::make_unique<Transformer>(golden_.load());
    write_tokenizer(golden_.path(), static_cast<int>(config().vocabulary));
    model_ = std::make_unique<Model>(Model::open(golden_.path().string()));
  }

  const ModelConfig& config() const { return transformer_->config(); }
  Model& model() { return *model_; }
  std::vector<Token> tokens(std::int64_t count = 24) const {
    std::vector<Token> tokens = golden_tokens(*transformer_, count);
    for (Token& token : tokens) token %= static_cast<Token>(config().vocabulary - 1);  // none of them special
    return tokens;
  }
  bool own_mask(std::int64_t layer, std::int64_t i, std::int64_t j) const {
    const std::int64_t width = config().window_of(layer);
    return (!config().causal || j <= i) && (width == 0 || j > i - width);
  }
  ByHand by_hand() const {
    ByHand hand;
    hand.sees = [this](std::int64_t layer, std::int64_t, std::int64_t i, std::int64_t j) {
      return own_mask(layer, i, j);
    };
    return hand;
  }
  // The logits of every row; of an encoder the rows themselves.
  std::vector<float> run(ByHand& hand, std::span<const Token> tokens, bool places = true) {
    const View hidden =
        transformer_->run(tokens, 0, places, [&](const LayerAttention& call) { hand.attend(config(), call); });
    return logits(hidden);
  }
  std::vector<float> logits(View hidden) const {
    const std::int64_t V = config().vocabulary, T = hidden.length();
    std::vector<float> out(static_cast<std::size_t>(T * V));
    transformer_->logits(hidden, view_of(out.data(), {1, 1, T, V}));
    return out;
  }
  std::vector<float> logits(const Look& look) const {
    std::vector<float> out;
    for (std::int64_t i = 0; i < look.length(); ++i) {
      const std::vector<float> row = look.next_logits(i);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }
  Transformer& transformer() { return *transformer_; }

 private:
  GoldenModel golden_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<Model> model_;
};

void make_alibi(ModelConfig& config) {
  config.family = kOwnFamily;
  config.positions = PositionKind::alibi;
  config.score_softcap = 3;
}

constexpr double kClose = 3e-5;

// Checks one run against its forward pass by hand: logits, weights and LSE of every head.
void expect_by_hand(Looked& looked, const std::string& switches, ByHand hand, bool places = true) {
  SCOPED_TRACE(looked.config().family + " " + switches);
  const std::vector<Token> tokens = looked.tokens();
  LookSession session(looked.model());
  const Look look = session.run(tokens, {.switches = parse_switches(switches)});
  const std::vector<float> expected = looked.run(hand, tokens, places);
  EXPECT_LT(relative_error(looked.logits(look), expected), kClose);
  for (std::int64_t n = 0; n < look.layers() * look.heads(); ++n) {
    const std::vector<float> got = look.weights(n / look.heads(), n % look.heads());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], hand.weights[static_cast<std::size_t>(n)][i], 1e-5) << "head " << n << ", weight " << i;
  }
}

TEST(Look, WithoutSwitchesIsTheForwardPass) {
  for (const char* name : {"llama", "qwen3", "gpt2", "mistral", "minimind1", "qwen3_moe", "yarn"}) {
    Looked looked(name);
    SCOPED_TRACE(name);
    const std::vector<Token> tokens = looked.tokens();
    LookSession session(looked.model());
    const Look look = session.run(tokens);
    EXPECT_EQ(looked.logits(look), run_alone(looked.transformer(), tokens, 7));
    expect_by_hand(looked, "", looked.by_hand());
  }
}

TEST(Look, ScaleAndTemperature) {
  for (const char* name : {"llama", "gpt2", "mistral"}) {
    Looked looked(name);
    const double own = 1 / std::sqrt(static_cast<double>(looked.config().head_dim));
    ByHand hand = looked.by_hand();
    hand.scale = [](auto, auto) { return 1.0; };
    expect_by_hand(looked, "scale=off", hand);
    hand.scale = [&](auto, auto) { return own / 2.5; };
    expect_by_hand(looked, "temperature=2.5", hand);
    // The narrower one counts, and different kinds add up.
    hand.scale = [&](std::int64_t layer, std::int64_t head) {
      return layer == 1 && head == 2 ? 1.0 / 0.5 : layer == 1 ? own / 0.5 : own / 3;
    };
    expect_by_hand(looked, "temperature=0.5@1,temperature=3,scale=off@1.2", hand);
  }
}

TEST(Look, Masks) {
  for (const char* name : {"llama", "gpt2", "mistral"}) {
    Looked looked(name);
    ByHand hand = looked.by_hand();
    hand.sees = [](auto, auto, auto, auto) { return true; };
    expect_by_hand(looked, "mask=full", hand);
    hand.sees = [](auto, auto, std::int64_t i, std::int64_t j) { return j <= i; };
    expect_by_hand(looked, "mask=causal", hand);
    hand.sees = [](auto, auto, std::int64_t i, std::int64_t j) { return j <= i && j > i - 6; };
    expect_by_hand(looked, "mask=window:6", hand);
    hand.sees = [](auto, auto, std::int64_t i, std::int64_t j) { return j <= i && (j > i - 6 || j < 2); };
    expect_by_hand(looked, "mask=sinks:2+6", hand);
    hand.sees = [&](std::int64_t layer, std::int64_t head, std::int64_t i, std::int64_t j) {
      if (layer == 0 && head == 1) return j <= i && j > i - 3;
      return looked.own_mask(layer, i, j) && (j < 4 || j >= 9);
    };
    // Padding on all but one head, which has a window instead: its own padding begins behind the text.
    expect_by_hand(looked, "padding=4-9 mask=window:3@0.1 padding=100-101@0.1", hand);
  }
}

TEST(Look, KnockedOutHeads) {
  for (const char* name : {"llama", "gpt2"}) {
    Looked looked(name);
    ByHand hand = looked.by_hand();
    hand.output = [](std::int64_t layer, std::int64_t head) { return layer == 0 && head == 1 ? '0' : ' '; };
    expect_by_hand(looked, "knock=zero@0.1", hand);
    hand.output = [](std::int64_t layer, std::int64_t) { return layer == 1 ? 'm' : ' '; };
    expect_by_hand(looked, "knock=mean@1", hand);
    hand.output = [](std::int64_t layer, std::int64_t head) { return layer == 1 && head != 3 ? '0' : ' '; };
    expect_by_hand(looked, "only=layer@1.3", hand);
    hand.output = [](std::int64_t layer, std::int64_t head) { return layer == 1 && head == 3 ? ' ' : 'm'; };
    expect_by_hand(looked, "only=model:mean@1.3", hand);
  }
}

TEST(Look, PositionsOff) {
  Looked llama("llama"), interleaved("minimind1"), gpt2("gpt2"), alibi("llama", make_alibi);
  for (Looked* looked : {&llama, &interleaved}) {
    ByHand hand = looked->by_hand();
    hand.rotates = [](auto, auto) { return false; };
    expect_by_hand(*looked, "positions=off", hand);
    // Heads 1 and 2 share a KV head with others that rotate.
    hand.rotates = [](std::int64_t layer, std::int64_t head) { return layer != 1 || head != 1; };
    expect_by_hand(*looked, "positions=off@1.1", hand);
    hand.rotates = [](std::int64_t layer, std::int64_t) { return layer != 0; };
    expect_by_hand(*looked, "positions=off@0", hand);
  }
  expect_by_hand(gpt2, "positions=off", gpt2.by_hand(), false);
  LookSession session(gpt2.model());
  const std::vector<Token> tokens = gpt2.tokens();
  EXPECT_NE(error_of([&] {
              session.run(tokens, {.switches = parse_switches("positions=off@1")});
            }).find("before the first layer"),
            std::string::npos);
  ByHand hand = alibi.by_hand();
  expect_by_hand(alibi, "", hand);
  hand.slopes = false;
  expect_by_hand(alibi, "positions=off", hand);
}

TEST(Look, EverythingAtOnce) {
  Looked looked("qwen3");
  ByHand hand = looked.by_hand();
  hand.scale = [](auto, auto) { return 1 / 4.0; };
  hand.sees = [](std::int64_t, std::int64_t, std::int64_t i, std::int64_t j) { return j <= i && j > i - 9 && j != 5; };
  hand.rotates = [](std::int64_t layer, std::int64_t) { return layer == 0; };
  hand.output = [](std::int64_t layer, std::int64_t head) { return layer == 0 && head == 0 ? 'm' : ' '; };
  expect_by_hand(looked, "scale=off temperature=4 mask=window:9 padding=5-6 positions=off@1 knock=mean@0.0", hand);
}

TEST(Look, Shuffles) {
  Looked looked("llama");
  LookSession session(looked.model());
  std::vector<Token> tokens = looked.tokens();
  tokens[3] = static_cast<Token>(looked.config().vocabulary - 1);  // special: it stays
  const Look look = session.run(tokens, {.switches = parse_switches("shuffle=7")});
  std::vector<Token> order;
  for (const LookToken& token : look.tokens()) order.push_back(token.id);
  EXPECT_NE(order, tokens);
  EXPECT_EQ(order[3], tokens[3]);
  EXPECT_TRUE(std::is_permutation(order.begin(), order.end(), tokens.begin(), tokens.end()));
  EXPECT_EQ(looked.logits(look), looked.logits(session.run(order)));
  const Look again = session.run(tokens, {.switches = parse_switches("shuffle=7")});
  EXPECT_EQ(again.next_logits(), look.next_logits());
  EXPECT_NE(session.run(tokens, {.switches = parse_switches("shuffle=8")}).next_logits(), look.next_logits());
}

TEST(Look, AnEncoder) {
  Looked looked("bert");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens();
  const Look look = session.run(tokens);
  ByHand hand = looked.by_hand();
  (void)looked.run(hand, tokens);
  for (std::int64_t n = 0; n < look.layers() * look.heads(); ++n) {
    const std::vector<float> got = look.weights(n / look.heads(), n % look.heads());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], hand.weights[static_cast<std::size_t>(n)][i], 1e-5);
  }
  // Its own successor follows the same token, and is no induction.
  for (const HeadType& type : session.types(look))
    for (const KindScore& score : type.scores) EXPECT_FALSE(score.kind == HeadKind::induction && score.measured);
  Look on = look;
  EXPECT_NE(error_of([&] { on.next(); }).find("embeds texts"), std::string::npos);
  EXPECT_NE(error_of([&] { on.append(1); }).find("encoder"), std::string::npos);
}

// Statistics of rows, from the weights by hand.
TEST(Look, StatisticsAreThoseOfTheWeights) {
  for (const char* switches : {"", "mask=window:7@1.2,temperature=2"}) {
    for (const std::int64_t sinks : {0, 1, 3}) {
      Looked looked("llama");
      LookSession session(looked.model());
      std::vector<Token> tokens = looked.tokens();
      for (std::size_t i = 0; i < 8; ++i) tokens[12 + i] = tokens[2 + i];  // so that some come again
      const Look look = session.run(tokens, {.switches = parse_switches(switches), .sinks = sinks});
      const std::int64_t T = look.length();
      for (std::int64_t n = 0; n < look.layers() * look.heads(); ++n) {
        const std::int64_t layer = n / look.heads(), head = n % look.heads();
        const std::vector<float> w = look.weights(layer, head);
        for (std::int64_t i = 0; i < T; ++i) {
          double mass = 0, entropy = 0, sink = 0, self = 0, previous = 0, duplicate = 0, induction = 0, most = 0;
          for (std::int64_t j = 0; j <= i; ++j) {
            const double p = static_cast<double>(w[static_cast<std::size_t>(i * T + j)]);
            mass += p;
            if (p > 0) entropy -= p * std::log(p);
            most = std::max(most, p);
            const auto token = [&](std::int64_t at) { return tokens[static_cast<std::size_t>(at)]; };
            if (j < sinks) {
              sink += p;
              continue;
            }
            if (j == i) self += p;
            if (j == i - 1) previous += p;
            if (j != i && token(j) == token(i)) duplicate += p;
            if (j > 0 && token(j - 1) == token(i)) induction += p;
          }
          const auto expect = [&](RowStatistic statistic, double expected) {
            EXPECT_NEAR(look.statistic(layer, head, statistic)[static_cast<std::size_t>(i)], expected, 3e-5)
                << name(statistic) << " of row " << i << " of head " << n << " with " << sinks << " sinks";
          };
          expect(RowStatistic::mass, mass);
          expect(RowStatistic::entropy, entropy);
          expect(RowStatistic::sink_tokens, sink);
          expect(RowStatistic::self, self);
          expect(RowStatistic::previous, previous);
          expect(RowStatistic::duplicate, duplicate);
          expect(RowStatistic::induction, induction);
          expect(RowStatistic::maximum, most);
        }
      }
    }
  }
}

TEST(Look, RowsColumnsMapsAndCells) {
  Looked looked("llama");
  LookSession session(looked.model());
  const Look look = session.run(looked.tokens(), {.before_rotation = true});
  const std::int64_t T = look.length(), layer = 1, head = 3;
  const std::vector<float> w = look.weights(layer, head);
  const auto at = [&](std::int64_t i, std::int64_t j) { return w[static_cast<std::size_t>(i * T + j)]; };
  const std::vector<float> row = look.row(layer, head, 9), column = look.column(layer, head, 4);
  for (std::int64_t n = 0; n < T; ++n) {
    EXPECT_NEAR(row[static_cast<std::size_t>(n)], at(9, n), 1e-6);
    EXPECT_NEAR(column[static_cast<std::size_t>(n)], at(n, 4), 1e-6);
  }
  const std::vector<Attended> top = look.top(layer, head, 9, 3), users = look.users(layer, head, 4, 100);
  ASSERT_EQ(top.size(), 3U);
  EXPECT_FLOAT_EQ(top[0].weight, *std::max_element(row.begin(), row.end()));
  EXPECT_GE(top[0].weight, top[1].weight);
  EXPECT_EQ(std::ssize(users), T - 4);
  const std::vector<float> lengths = look.value_lengths(layer, 1);
  const std::vector<double> received = look.received(layer, head);
  const PooledMap map = look.map(layer, head, {.rows = 4, .cols = 4});
  const PooledMap valued = look.map(layer, head, {.rows = T, .cols = T}, Measure::weight_value);
  for (std::int64_t j = 0; j < T; ++j) {
    double sum = 0;
    for (std::int64_t i = 0; i < T; ++i) {
      sum += static_cast<double>(at(i, j));
      EXPECT_NEAR(valued.mass.data<float>()[i * T + j], at(i, j) * lengths[static_cast<std::size_t>(j)], 1e-5);
    }
    EXPECT_NEAR(received[static_cast<std::size_t>(j)], sum, 1e-4);
  }
  double mass = 0;
  float peak = 0;
  for (std::int64_t i = map.query_of(3); i < map.query_of(4); ++i)
    for (std::int64_t j = map.key_of(1); j < map.key_of(2); ++j)
      mass += static_cast<double>(at(i, j)), peak = std::max(peak, at(i, j));
  EXPECT_NEAR(map.mass.data<float>()[3 * 4 + 1], mass, 1e-5);
  EXPECT_NEAR(map.peak.data<float>()[3 * 4 + 1], peak, 1e-6);

  const LookCell cell = look.cell(layer, head, 9, 4);
  EXPECT_NEAR(cell.arithmetic.weight, at(9, 4), 1e-6);
  EXPECT_EQ(cell.kv_head, 1);
  EXPECT_NEAR(cell.value_length, lengths[4], 1e-6);
  double before = 0, after = 0;  // a rotation keeps lengths
  for (std::size_t d = 0; d < cell.q_before.size(); ++d) {
    before += static_cast<double>(cell.q_before[d]) * static_cast<double>(cell.q_before[d]);
    after += cell.arithmetic.q[d] * cell.arithmetic.q[d];
  }
  EXPECT_NEAR(before, after, 1e-4 * before);
  EXPECT_FALSE(look.cell(layer, head, 4, 9).arithmetic.visible);
  const PooledMap none = difference(map, map);
  EXPECT_EQ(none.mass.data<float>()[13], 0);
  EXPECT_THROW(difference(map, valued), InvalidArgument);
}

TEST(Look, GoesOnTokenByTokenAndBack) {
  for (const char* switches : {"", "mask=window:6,temperature=2@1.1", "knock=zero@0.1"}) {
    for (const char* name : {"llama", "gpt2", "mistral"}) {
      SCOPED_TRACE(std::string(name) + " " + switches);
      Looked looked(name);
      LookSession session(looked.model());
      const std::vector<Token> tokens = looked.tokens(10);
      const LookOptions options{.switches = parse_switches(switches), .losses = true};
      Look look = session.run(tokens, options);
      std::vector<Token> all = tokens;
      for (int n = 0; n < 12; ++n) {
        const Token likeliest = look.next_tokens(-1, 1)[0].id;
        const LookStep step = look.next();
        EXPECT_EQ(step.token, likeliest);
        EXPECT_EQ(step.position, std::ssize(all));
        all.push_back(step.token);
        EXPECT_EQ(step.cache_bytes, look.cache_bytes());
      }
      const Look whole = session.run(all, options);
      EXPECT_EQ(looked.logits(look), looked.logits(whole));
      EXPECT_EQ(look.weights(1, 1), whole.weights(1, 1));
      EXPECT_EQ(look.statistic(1, 1, RowStatistic::entropy), whole.statistic(1, 1, RowStatistic::entropy));
      EXPECT_TRUE(std::equal(look.losses().begin() + 1, look.losses().end(), whole.losses().begin() + 1));
      look.back(5);
      EXPECT_EQ(look.length(), std::ssize(all) - 5);
      EXPECT_EQ(look.tokens().size(), all.size() - 5);
      all.resize(all.size() - 5);
      EXPECT_EQ(looked.logits(look), looked.logits(session.run(all, options)));
      look.back(1000);
      EXPECT_EQ(look.length(), std::ssize(tokens));
    }
  }
}

// A full mask shows the prompt to all, and what is generated to what comes after it alone.
TEST(Look, GoesOnUnderAFullMask) {
  Looked looked("llama");
  LookSession session(looked.model());
  Look look = session.run(looked.tokens(10), {.switches = parse_switches("mask=full")});
  const std::vector<float> before = look.weights(0, 0);
  const std::vector<float> row = look.row(0, 0, 2);
  look.next();
  std::vector<float> after = look.row(0, 0, 2);
  EXPECT_EQ(after.back(), 0);
  after.pop_back();
  EXPECT_EQ(after, row);
}

TEST(Look, LossesAreThoseOfThePerplexity) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens();
  const Look look = session.run(tokens, {.keep = false, .losses = true});
  EXPECT_TRUE(std::isnan(look.losses()[0]));
  double sum = 0;
  for (std::size_t i = 1; i < tokens.size(); ++i) sum += static_cast<double>(look.losses()[i]);
  EXPECT_NEAR(sum / static_cast<double>(tokens.size() - 1), looked.model().perplexity(tokens).loss, 1e-6);
}

TEST(Look, ComparesTwoRuns) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens();
  const Look plain = session.run(tokens, {.losses = true});
  const Look edited = session.run(tokens, {.switches = parse_switches("scale=off"), .losses = true});
  const TokenRange ranges[] = {{4, 8, "a part"}};
  const LookComparison same = compare(plain, plain, ranges), other = compare(plain, edited, ranges);
  EXPECT_EQ(*same.divergence, 0);
  EXPECT_GT(*other.divergence, 1e-6);
  ASSERT_EQ(other.losses.size(), 2U);
  EXPECT_EQ(other.losses[0].tokens, std::ssize(tokens) - 1);
  EXPECT_EQ(other.losses[1].tokens, 4);
  EXPECT_NE(other.losses[1].before, other.losses[1].after);
  EXPECT_EQ(other.before.size(), 10U);
  ASSERT_EQ(other.statistics.size(), static_cast<std::size_t>(kRowStatistics));
  // The entropy of sharper rows is less; the plain run has none beside itself.
  EXPECT_LT(other.statistics[static_cast<std::size_t>(RowStatistic::entropy)][0], 0);
  EXPECT_EQ(same.statistics[static_cast<std::size_t>(RowStatistic::entropy)][0], 0);
}

// ---- kinds of heads, from the weights by hand ----

struct HandMean {
  double sum = 0;
  std::int64_t rows = 0;
  void add(double x) { sum += x, ++rows; }
};

// What docs/design/look.md says of the rows of one head.
struct HandType {
  std::map<HeadKind, HandMean> means{};
  std::vector<double> sinks{};
  std::int64_t rows = 0, left_out = 0;

  double score(HeadKind kind) const {
    const HandMean& mean = means.at(kind);
    return mean.rows > 0 ? mean.sum / static_cast<double>(mean.rows) : 0;
  }
  double median_sink() const {
    std::vector<double> sorted = sinks;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
};

HandType type_by_hand(const std::vector<double>& weights, const std::vector<Token>& tokens, std::int64_t sinks,
                      const std::function<bool(std::int64_t, std::int64_t)>& sees) {
  const std::int64_t T = std::ssize(tokens);
  const auto token = [&](std::int64_t n) { return tokens[static_cast<std::size_t>(n)]; };
  HandType type;
  for (const HeadKind kind : {HeadKind::previous, HeadKind::self, HeadKind::local, HeadKind::duplicate,
                              HeadKind::diffuse, HeadKind::long_range})
    type.means[kind] = {};
  for (std::int64_t i = 0; i < T; ++i) {
    double rest = 0, previous = 0, self = 0, local = 0, far = 0, duplicate = 0, entropy = 0;
    std::int64_t visible = 0, equal = 0;
    for (std::int64_t j = sinks; j < T; ++j) {
      if (j < i && token(j) == token(i)) ++equal;
      if (!sees(i, j)) continue;
      ++visible;
      const double w = weights[static_cast<std::size_t>(i * T + j)];
      rest += w;
      if (j == i - 1) previous += w;
      if (j == i) self += w;
      if (std::abs(i - j) <= 8) local += w;
      if (std::abs(i - j) > 64) far += w;
      if (j != i && token(j) == token(i)) duplicate += w;
    }
    if (visible < 2) continue;
    type.sinks.push_back(1 - rest);
    if (rest < 0.05) {
      ++type.left_out;
      continue;
    }
    ++type.rows;
    for (std::int64_t j = sinks; j < T; ++j) {
      const double p = weights[static_cast<std::size_t>(i * T + j)] / rest;
      if (sees(i, j) && p > 0) entropy -= p * std::log(p);
    }
    type.means[HeadKind::previous].add(previous / rest);
    type.means[HeadKind::self].add(self / rest);
    if (visible >= 18) type.means[HeadKind::local].add(local / rest);
    if (visible >= 130) type.means[HeadKind::long_range].add(far / rest);
    const double share = static_cast<double>(equal) / static_cast<double>(visible);
    if (equal > 0 && share <= 0.15) type.means[HeadKind::duplicate].add(duplicate / rest);
    type.means[HeadKind::diffuse].add(entropy / std::log(static_cast<double>(visible)));
  }
  return type;
}

// Of the rules that hold the one furthest above its threshold, but diffuse after the others, and long-range after it.
HeadKind kind_by_rules(const HeadType& type) {
  HeadKind best = type.median_sink > 0.8 ? HeadKind::sink_resting : HeadKind::mixed;
  for (const HeadKind last : {HeadKind::long_range, HeadKind::diffuse})
    for (const KindScore& one : type.scores)
      if (one.kind == last && one.measured && one.score > one.threshold) best = last;
  double most = 0;
  for (const KindScore& one : type.scores) {
    if (one.kind == HeadKind::long_range || one.kind == HeadKind::diffuse) continue;
    if (one.measured && one.score > one.threshold && one.score / one.threshold > most)
      most = one.score / one.threshold, best = one.kind;
  }
  return best;
}

void make_long(ModelConfig& config) {
  config.family = kOwnFamily;
  config.context = 512;
}

TEST(Look, KindsAreThoseOfTheWeights) {
  using Sees = std::function<bool(std::int64_t, std::int64_t)>;
  const std::pair<const char*, Sees> masks[] = {
      {"", [](std::int64_t i, std::int64_t j) { return j <= i; }},
      {"temperature=0.1", [](std::int64_t i, std::int64_t j) { return j <= i; }},
      {"mask=window:2", [](std::int64_t i, std::int64_t j) { return j <= i && j > i - 2; }},
      {"mask=window:20", [](std::int64_t i, std::int64_t j) { return j <= i && j > i - 20; }},
      {"mask=sinks:4+19", [](std::int64_t i, std::int64_t j) { return j <= i && (j > i - 19 || j < 4); }},
      {"padding=2-30", [](std::int64_t i, std::int64_t j) { return j <= i && (j < 2 || j >= 30); }},
      {"mask=full", [](std::int64_t, std::int64_t) { return true; }}};
  std::set<HeadKind> seen;
  Looked looked("llama", make_long);
  LookSession session(looked.model());
  std::vector<Token> tokens;
  for (std::uint64_t n = 0, draw = 7; n < 170; ++n) {
    draw = draw * 6364136223846793005ULL + 1442695040888963407ULL;
    tokens.push_back(static_cast<Token>(draw >> 40) % 60);
  }
  for (const auto& [switches, sees] : masks) {
    ByHand hand = looked.by_hand();
    hand.sees = [&](auto, auto, std::int64_t i, std::int64_t j) { return sees(i, j); };
    if (std::string(switches).starts_with("temperature"))
      hand.scale = [&](auto, auto) { return 10 / std::sqrt(static_cast<double>(looked.config().head_dim)); };
    (void)looked.run(hand, tokens);
    for (const std::int64_t sinks : {0, 1, 3}) {
      SCOPED_TRACE(std::string(switches) + " with sinks: " + std::to_string(sinks));
      const std::vector<HeadType> types =
          session.types(session.run(tokens, {.switches = parse_switches(switches), .keep = false, .sinks = sinks}));
      ASSERT_EQ(types.size(), hand.weights.size());
      for (std::size_t n = 0; n < types.size(); ++n) {
        const HandType expected = type_by_hand(hand.weights[n], tokens, sinks, sees);
        EXPECT_EQ(types[n].rows, expected.rows) << n;
        EXPECT_EQ(types[n].left_out, expected.left_out) << n;
        EXPECT_NEAR(types[n].median_sink, expected.median_sink(), 1e-4) << n;
        ASSERT_EQ(types[n].scores.size(), 7U);
        for (const KindScore& score : types[n].scores) {
          EXPECT_EQ(score.threshold, threshold_of(score.kind));
          if (score.kind == HeadKind::induction) {
            EXPECT_EQ(score.score, session.probe().induction[n]);
            continue;
          }
          const std::int64_t rows = expected.means.at(score.kind).rows,
                             fewest = score.kind == HeadKind::duplicate ? 4 : 1;
          EXPECT_EQ(score.measured, rows >= fewest) << n << name(score.kind);
          if (score.measured) {
            EXPECT_NEAR(score.score, expected.score(score.kind), 2e-4) << n << name(score.kind);
          }
        }
        EXPECT_EQ(types[n].kind.kind, kind_by_rules(types[n])) << n;
        seen.insert(types[n].kind.kind);
      }
    }
  }
  EXPECT_GE(seen.size(), 4U);
}

TEST(Look, TheProbeIsThatOfTheWeights) {
  Looked looked("llama");
  LookSession session(looked.model());
  const ProbeTokens probe = probe_tokens(LookAccess::state(looked.model()), session.probe().seed);
  const std::vector<Token>& tokens = probe.tokens;
  const std::int64_t T = std::ssize(tokens), V = looked.config().vocabulary;
  ASSERT_EQ(T, probe.first + 2 * probe.count);
  EXPECT_EQ(std::set<Token>(tokens.begin() + probe.first, tokens.end()).size(), static_cast<std::size_t>(probe.count));
  EXPECT_TRUE(std::equal(tokens.begin() + probe.first, tokens.begin() + probe.first + probe.count,
                         tokens.begin() + probe.first + probe.count));
  ByHand hand = looked.by_hand();
  const std::vector<float> logits = looked.run(hand, tokens);
  for (std::size_t n = 0; n < hand.weights.size(); ++n) {
    HandMean induction, duplicate;
    for (std::int64_t i = probe.first + probe.count; i < T; ++i) {
      double rest = 0, next = 0, same = 0;
      for (std::int64_t j = 1; j <= i; ++j) {
        const double w = hand.weights[n][static_cast<std::size_t>(i * T + j)];
        rest += w;
        if (tokens[static_cast<std::size_t>(j - 1)] == tokens[static_cast<std::size_t>(i)]) next += w;
        if (j != i && tokens[static_cast<std::size_t>(j)] == tokens[static_cast<std::size_t>(i)]) same += w;
      }
      if (rest < 0.05) continue;
      induction.add(next / rest);
      duplicate.add(same / rest);
    }
    EXPECT_NEAR(session.probe().induction[n], induction.sum / static_cast<double>(induction.rows), 1e-4);
    EXPECT_NEAR(session.probe().duplicate[n], duplicate.sum / static_cast<double>(duplicate.rows), 1e-4);
  }
  // The second half begins after its first token, which nothing before predicts.
  HandMean first, second;
  for (std::int64_t i = std::max<std::int64_t>(1, probe.first); i < T; ++i) {
    double sum = 0;
    for (std::int64_t t = 0; t < V; ++t)
      sum += std::exp(static_cast<double>(logits[static_cast<std::size_t>((i - 1) * V + t)]));
    const auto own = static_cast<std::size_t>((i - 1) * V + tokens[static_cast<std::size_t>(i)]);
    (i <= probe.first + probe.count ? first : second).add(std::log(sum) - static_cast<double>(logits[own]));
  }
  EXPECT_NEAR(session.probe().first_loss, first.sum / static_cast<double>(first.rows), 1e-4);
  EXPECT_NEAR(session.probe().second_loss, second.sum / static_cast<double>(second.rows), 1e-4);
}

// ---- comparisons and predictions ----

std::vector<double> softmax_of(const std::vector<float>& logits) {
  std::vector<double> p;
  double sum = 0;
  for (const float x : logits) sum += p.emplace_back(std::exp(static_cast<double>(x)));
  for (double& x : p) x /= sum;
  return p;
}

TEST(Look, ComparisonsAreThoseOfTheProbabilitiesAndLosses) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens(20), shorter(tokens.begin(), tokens.end() - 3);
  const Look plain = session.run(shorter, {.losses = true}),
             other = session.run(tokens, {.switches = parse_switches("scale=off"), .losses = true});
  const std::vector<double> p = softmax_of(plain.next_logits()), q = softmax_of(other.next_logits());
  double divergence = 0;
  for (std::size_t t = 0; t < p.size(); ++t) divergence += p[t] * std::log(p[t] / q[t]);
  const TokenRange ranges[] = {{0, 1, "nothing"}, {0, 4, "a"}, {5, 5, "empty"}, {15, 90, "end"}, {19, 20, "last"}};
  const LookComparison change = compare(plain, other, ranges, 3);
  EXPECT_EQ(change.position, 19);
  EXPECT_NEAR(*change.divergence, divergence, 1e-6);
  ASSERT_EQ(change.losses.size(), 6U);
  EXPECT_EQ(change.losses[0].range.end, 20);
  const auto mean = [](const Look& look, std::int64_t begin, std::int64_t end) {
    HandMean all;
    for (std::int64_t i = std::max<std::int64_t>(begin, 1); i < std::min(end, look.length()); ++i)
      all.add(static_cast<double>(look.losses()[static_cast<std::size_t>(i)]));
    return all;
  };
  for (std::size_t n = 0; n < 6; ++n) {
    const TokenRange range = n == 0 ? TokenRange{0, 20, "all tokens"} : ranges[n - 1];
    const HandMean before = mean(plain, range.begin, range.end), after = mean(other, range.begin, range.end);
    EXPECT_EQ(change.losses[n].range.name, range.name);
    EXPECT_EQ(change.losses[n].tokens, after.rows) << range.name;
    EXPECT_NEAR(change.losses[n].before, before.rows > 0 ? before.sum / static_cast<double>(before.rows) : 0, 1e-9);
    EXPECT_NEAR(change.losses[n].after, after.rows > 0 ? after.sum / static_cast<double>(after.rows) : 0, 1e-9);
  }
  ASSERT_EQ(change.before.size(), 3U);
  ASSERT_EQ(change.after.size(), 3U);
  EXPECT_NEAR(change.before[0].probability, *std::max_element(p.begin(), p.end()), 1e-6);
  EXPECT_NEAR(change.after[0].probability, *std::max_element(q.begin(), q.end()), 1e-6);
  for (const std::int64_t n : {0, 5}) {
    const std::vector<float> x = plain.statistic(n / 4, n % 4, RowStatistic::entropy),
                             y = other.statistic(n / 4, n % 4, RowStatistic::entropy);
    HandMean before, after;
    for (const float value : x) before.add(static_cast<double>(value));
    for (const float value : y) after.add(static_cast<double>(value));
    EXPECT_NEAR(change.statistics[static_cast<std::size_t>(RowStatistic::entropy)][static_cast<std::size_t>(n)],
                after.sum / static_cast<double>(after.rows) - before.sum / static_cast<double>(before.rows), 1e-9);
  }
  for (const TokenRange& wrong : {TokenRange{-1, 4, ""}, TokenRange{5, 4, ""}})
    EXPECT_THROW((void)compare(plain, other, {&wrong, 1}), InvalidArgument);
}

// What changed most, against the weights, probabilities and losses of both runs.
TEST(Look, ChangesAreThoseOfTheWeightsAndProbabilities) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens(20);
  const Look plain = session.run(tokens, {.losses = true}),
             other = session.run(tokens, {.switches = parse_switches("knock=zero@0.1"), .losses = true});
  const LookChanges found = changes(plain, other, 3);
  const std::int64_t T = other.length(), heads = other.heads();
  ASSERT_EQ(std::ssize(found.heads), other.layers() * heads);
  std::set<std::int64_t> places;
  for (std::size_t n = 0; n < found.heads.size(); ++n) {
    const HeadChange& one = found.heads[n];
    places.insert(one.layer * heads + one.head);
    const std::vector<float> x = plain.weights(one.layer, one.head), y = other.weights(one.layer, one.head);
    std::vector<double> rows(static_cast<std::size_t>(T));
    for (std::size_t i = 0; i < x.size(); ++i)
      rows[i / static_cast<std::size_t>(T)] += std::abs(static_cast<double>(y[i]) - static_cast<double>(x[i])) / 2;
    double sum = 0;
    for (const double row : rows) sum += row;
    EXPECT_NEAR(one.change, sum / static_cast<double>(T), 1e-9);
    EXPECT_NEAR(one.query_change, *std::max_element(rows.begin(), rows.end()), 1e-9);
    EXPECT_NEAR(rows[static_cast<std::size_t>(one.query)], one.query_change, 1e-9);
    EXPECT_GE(found.heads[n > 0 ? n - 1 : 0].change, one.change);
    EXPECT_EQ(one.change > 0, one.layer == 1) << "a head's weights change only after the layer that was edited";
  }
  EXPECT_EQ(places.size(), found.heads.size());

  std::vector<double> all;
  for (std::int64_t i = 0; i < T; ++i) {
    const std::vector<double> p = softmax_of(plain.next_logits(i)), q = softmax_of(other.next_logits(i));
    double& sum = all.emplace_back(0);
    for (std::size_t t = 0; t < p.size(); ++t) sum += p[t] * std::log(p[t] / q[t]);
  }
  ASSERT_EQ(found.predictions.size(), 3U);
  std::vector<double> sorted = all;
  std::sort(sorted.rbegin(), sorted.rend());
  for (std::size_t n = 0; n < 3; ++n) {
    const PredictionChange& one = found.predictions[n];
    EXPECT_NEAR(one.divergence, sorted[n], 1e-6);
    EXPECT_NEAR(one.divergence, all[static_cast<std::size_t>(one.position)], 1e-6);
    EXPECT_EQ(one.before.id, plain.next_tokens(one.position, 1)[0].id);
    EXPECT_EQ(one.after.id, other.next_tokens(one.position, 1)[0].id);
  }
  ASSERT_EQ(found.tokens.size(), 3U);
  for (const TokenChange& one : found.tokens) {
    const auto at = static_cast<std::size_t>(one.position);
    EXPECT_EQ(one.before, static_cast<double>(plain.losses()[at]));
    EXPECT_EQ(one.after, static_cast<double>(other.losses()[at]));
    std::int64_t larger = 0;
    for (std::size_t i = 1; i < static_cast<std::size_t>(T); ++i)
      larger += std::abs(static_cast<double>(other.losses()[i]) - static_cast<double>(plain.losses()[i])) >
                std::abs(one.after - one.before);
    EXPECT_LT(larger, 3);
  }
}

TEST(Look, ChangesOfRunsThatDoNotCompare) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens(20), shorter(tokens.begin(), tokens.end() - 3);
  const Look plain = session.run(tokens), cut = session.run(shorter, {.losses = true});
  const LookChanges none = changes(plain, cut);
  EXPECT_TRUE(none.heads.empty() && none.predictions.empty() && none.tokens.empty());
  // Without losses there are no changes of tokens, and of a layer that one run does not keep no changes of heads.
  const LookChanges part = changes(plain, session.run(tokens, {.layers = {1}}), 0);
  ASSERT_EQ(std::ssize(part.heads), plain.heads());
  for (const HeadChange& head : part.heads) {
    EXPECT_EQ(head.layer, 1);
    EXPECT_EQ(head.change, 0);
  }
  EXPECT_TRUE(part.predictions.empty() && part.tokens.empty());
  EXPECT_THROW((void)changes(plain, plain, -1), InvalidArgument);
}

TEST(Look, TheLikeliestTokensOfTies) {
  Looked looked("llama");
  const Tokenizer& tokenizer = looked.model().tokenizer();
  std::vector<double> p(static_cast<std::size_t>(looked.config().vocabulary), 0.0);
  p[7] = p[3] = p[50] = 0.25, p[63] = 0.2, p[0] = 0.05;
  std::vector<Token> ids;
  for (const NextToken& next : likeliest(tokenizer, p, 6)) ids.push_back(next.id);
  EXPECT_EQ(ids, (std::vector<Token>{3, 7, 50, 63, 0, 1}));
  EXPECT_TRUE(likeliest(tokenizer, p, 0).empty());
  EXPECT_EQ(likeliest(tokenizer, p, 1000).size(), p.size());
  // What is not finite has no part in a softmax; nothing finite is an error.
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> some = probabilities(std::vector<float>{1000, nan, 1000, -inf, inf});
  EXPECT_EQ(some, (std::vector<double>{0.5, 0, 0.5, 0, 0}));
  EXPECT_THROW((void)probabilities(std::vector<float>{nan, -inf}), InvalidArgument);
}

// ---- growing at the edges ----

TEST(Look, GrowsToTheContextAndNotBeyond) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::int64_t context = looked.model().context();
  Look look = session.run(looked.tokens(context - 2), {.switches = parse_switches("knock=mean@0.1")});
  const std::vector<float> before = look.next_logits();
  EXPECT_EQ(look.append(5).position, context - 2);
  EXPECT_EQ(look.append(6).position, context - 1);
  EXPECT_NE(error_of([&] { look.append(7); }).find("is full"), std::string::npos);
  EXPECT_EQ(look.length(), context);
  look.back(0);
  EXPECT_EQ(look.length(), context);
  EXPECT_THROW(look.back(-1), InvalidArgument);
  look.back(2);
  EXPECT_EQ(look.next_logits(), before);
  EXPECT_EQ(session.run(looked.tokens(context)).length(), context);
  EXPECT_THROW(session.run(std::vector<Token>(static_cast<std::size_t>(context + 1), 1)), InvalidArgument);
}

// A step says what the model gave the token, whatever the sampling made of it, and whether it ends an answer; the same
// seed at the same place draws the same token, whatever was drawn and taken back in between.
TEST(Look, AStepSaysWhatItDrew) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens(12);
  Look look = session.run(tokens);
  const std::vector<double> p = softmax_of(look.next_logits());
  std::set<Token> drawn;
  for (std::uint64_t seed = 1; seed < 30; ++seed) {
    const Sampling sampling{.temperature = 3, .seed = seed};
    const LookStep step = look.next(sampling);
    EXPECT_NEAR(step.probability, p[static_cast<std::size_t>(step.token)], 1e-6);
    EXPECT_EQ(step.text, looked.model().tokenizer().piece(step.token));
    drawn.insert(step.token);
    (void)look.next(sampling);
    look.back(2);
    EXPECT_EQ(look.next(sampling).token, step.token);
    look.back();
  }
  EXPECT_GT(drawn.size(), 5U);
  const std::vector<Token> stops = looked.model().stop_tokens();
  ASSERT_FALSE(stops.empty());
  for (Token token = 0; token < 20; ++token) {
    EXPECT_EQ(look.append(token).ends, std::count(stops.begin(), stops.end(), token) > 0) << token;
  }
  EXPECT_TRUE(look.append(stops.back()).ends);
}

// A run that grows draws what generate() draws: each token with its own random number from the seed.
TEST(Look, DrawsWhatGenerateDraws) {
  Looked looked("llama");
  const std::vector<Token> tokens = looked.tokens(12);
  for (const std::uint64_t seed : {1ULL, 2ULL, 3ULL}) {
    const Sampling sampling{.temperature = 2, .seed = seed};
    const Answer answer = looked.model().generate(tokens, {.max_tokens = 12, .sampling = sampling});
    Look look = LookSession(looked.model()).run(tokens);
    ASSERT_GT(answer.tokens.size(), 3U);
    for (const Token token : answer.tokens) ASSERT_EQ(look.next(sampling).token, token);
  }
}

// The mean of a head's outputs is that over the tokens the run began with, for those that come later too.
TEST(Look, AMeanStaysThatOfThePrompt) {
  Looked looked("llama");
  const std::vector<Token> tokens = looked.tokens(15);
  ByHand hand = looked.by_hand();
  hand.output = [](std::int64_t layer, std::int64_t head) { return layer == 0 && head == 1 ? 'm' : ' '; };
  hand.mean_over = 10;
  const std::vector<float> expected = looked.run(hand, tokens);
  Look look =
      LookSession(looked.model()).run(std::span(tokens).first(10), {.switches = parse_switches("knock=mean@0.1")});
  for (std::size_t n = 10; n < tokens.size(); ++n) look.append(tokens[n]);
  EXPECT_LT(relative_error(looked.logits(look), expected), kClose);
}

// The same tokens in another order, the same for the same seed; special ones stay.
TEST(Look, ShufflesAllButSpecialTokens) {
  Looked looked("llama");
  LookSession session(looked.model());
  std::vector<Token> tokens = looked.tokens(30);
  const Token special = static_cast<Token>(looked.config().vocabulary - 1);
  ASSERT_TRUE(looked.model().tokenizer().is_special(special));
  for (const std::size_t at : {0U, 11U, 29U}) tokens[at] = special;
  const auto order = [&](const char* switches) {
    std::vector<Token> ids;
    const Look look = session.run(tokens, {.switches = parse_switches(switches)});
    for (const LookToken& token : look.tokens()) ids.push_back(token.id);
    return ids;
  };
  const std::vector<Token> one = order("shuffle=1");
  EXPECT_EQ(one, order("shuffle=1"));
  EXPECT_NE(one, order("shuffle=2"));
  EXPECT_NE(one, tokens);
  for (const std::size_t at : {0U, 11U, 29U}) EXPECT_EQ(one[at], special);
  EXPECT_TRUE(std::is_permutation(one.begin(), one.end(), tokens.begin(), tokens.end()));
}

// A run, a session and an engine hold the weights they read: the model that they were made of may end before them.
TEST(Look, OutlivesItsModelAndItsSession) {
  Looked looked("llama");
  const std::vector<Token> tokens = looked.tokens();
  std::optional<Model> model(Model::open(looked.model().info().path.string()));
  std::optional<LookSession> session(*model);
  Look look = session->run(tokens, {.switches = parse_switches("temperature=2@1"), .losses = true});
  const std::vector<float> logits = look.next_logits(), weights = look.weights(1, 2);
  model.reset();
  const Look later = session->run(tokens, look.options());
  EXPECT_EQ(session->types(later).size(), static_cast<std::size_t>(look.layers() * look.heads()));
  session.reset();
  EXPECT_EQ(look.next_logits(), logits);
  EXPECT_EQ(later.next_logits(), logits);
  EXPECT_EQ(look.weights(1, 2), weights);
  EXPECT_EQ(look.model().layers, 2);
  EXPECT_EQ(look.next().position, std::ssize(tokens));
}

TEST(Look, AModelThatIsReplacedIsStillThatOfItsRuns) {
  Looked llama("llama"), gpt2("gpt2");
  Model model = Model::open(llama.model().info().path.string());
  LookSession session(model);
  const Look look = session.run(llama.tokens());
  const std::vector<float> logits = look.next_logits();
  model = Model::open(gpt2.model().info().path.string());
  EXPECT_EQ(look.next_logits(), logits);
  EXPECT_EQ(session.model().info().family, "llama");
  LookSession other(model);
  EXPECT_NE(error_of([&] { (void)other.types(look); }).find("another model"), std::string::npos);
}

// What a run says that it holds is what was planned for it, and what was said of it before it grew is enough.
TEST(Look, HoldsWhatWasPlanned) {
  for (const char* switches : {"", "positions=off@1.1", "knock=mean@0", "mask=window:5"}) {
    for (const bool keep : {true, false}) {
      Looked looked("llama");
      LookSession session(looked.model());
      const LookOptions options{
          .switches = parse_switches(switches), .keep = keep, .before_rotation = true, .losses = true};
      const std::vector<Token> tokens = looked.tokens(80);
      const LookMemory plan = plan_look(looked.model(), std::ssize(tokens), options);
      Look look = session.run(tokens, options);
      EXPECT_LE(look.bytes(), plan.kept + plan.statistics) << switches << keep;
      EXPECT_GE(look.bytes(), (plan.kept + plan.statistics) * 9 / 10) << switches << keep;
      if (!keep) continue;
      for (int n = 0; n < 20; ++n) {
        const std::int64_t most = look.bytes_with(1), many = look.bytes_with(1 + n % 3);
        for (int more = 0; more < 1 + n % 3; ++more) look.append(static_cast<Token>(n));
        EXPECT_LE(look.bytes(), many) << switches << n;
        EXPECT_LE(most, many);
      }
      EXPECT_LE(look.bytes(), (plan.kept + plan.statistics) * 160 / 80 * 9 / 8);
    }
  }
}

TEST(Look, RefusesWhatItCannotDo) {
  Looked looked("llama");
  LookSession session(looked.model());
  const std::vector<Token> tokens = looked.tokens();
  const auto message = [&](const LookOptions& options) { return error_of([&] { session.run(tokens, options); }); };
  const auto says = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(says(error_of([&] { session.run(""); }), "no tokens"));
  EXPECT_TRUE(says(message({.switches = parse_switches("knock=zero@2.0")}), "layer 2"));
  EXPECT_TRUE(says(message({.switches = parse_switches("knock=zero@1.4")}), "head 4"));
  EXPECT_TRUE(says(message({.layers = {7}}), "layer 7"));
  try {
    session.run(tokens, {.memory_limit = 1000});
    ADD_FAILURE() << "more than memory_limit was accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_TRUE(says(error.what(), "(layers)") && says(error.what(), "raise memory_limit")) << error.what();
  }
  EXPECT_TRUE(says(message({.memory_limit = -1}), "memory_limit is -1"));
  EXPECT_EQ(plan_look(looked.model(), 24, {.memory_limit = 1000}).limit, 1000);
  EXPECT_GT(plan_look(looked.model(), 24).limit, plan_look(looked.model(), 24).total());
  const std::vector<Token> longer(2000, 1);
  EXPECT_TRUE(says(error_of([&] { session.run(longer); }), "context"));
  const std::vector<Token> unknown = {1, 64}, negative = {-1};
  EXPECT_TRUE(says(error_of([&] { session.run(unknown); }), "a token is 64"));
  EXPECT_TRUE(says(error_of([&] { session.run(negative); }), "a token is -1"));
  EXPECT_TRUE(says(error_of([&] { session.run(tokens).append(64); }), "a token is 64"));
  // Numbers without bounds in a switch are cut, not added up.
  const char* far = "mask=sinks:9223372036854775807+9223372036854775807,padding=5-9223372036854775807";
  EXPECT_EQ(session.run(tokens, {.switches = parse_switches(far), .sinks = 1000000}).row(0, 0, 7)[6], 0);
  const Look bare = session.run(tokens, {.statistics = false, .layers = {1}});
  EXPECT_TRUE(says(error_of([&] { (void)bare.row(0, 0, 1); }), "not kept"));
  EXPECT_TRUE(says(error_of([&] { (void)bare.row(1, 9, 1); }), "head 1.9"));
  EXPECT_TRUE(says(error_of([&] { (void)bare.row(1, 0, 99); }), "query is 99"));
  EXPECT_TRUE(says(error_of([&] { (void)bare.statistic(0, 0, RowStatistic::self); }), "no statistics"));
  EXPECT_TRUE(says(error_of([&] { (void)bare.losses(); }), "no losses"));
  EXPECT_TRUE(says(error_of([&] { Look(bare).next(); }), "all layers"));
  EXPECT_GT(bare.row(1, 0, 1)[0], 0);
  const LookMemory plan = plan_look(looked.model(), 24);
  EXPECT_GT(plan.kept, 0);
  EXPECT_GT(plan.statistics, 0);
}

}  // namespace
}  // namespace attend::llm::test
