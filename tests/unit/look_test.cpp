// A look inside a model: with switches it is the forward pass with attention made by hand, one weight after the other;
// without any it is the forward pass itself.
#include "attend/llm/look.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "error_of.hpp"
#include "golden_models.hpp"

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
      for (std::int64_t i = 0; i < T; ++i) mean += out[static_cast<std::size_t>(i * D + d)] / static_cast<double>(T);
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
  EXPECT_THROW(session.run(tokens, {.memory_limit = 1000}), std::runtime_error);
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
