// Kinds of heads: known heads are named, and knocking one out costs what it is for.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "attend/llm/look.hpp"
#include "golden_models.hpp"
#include "llm/look/wilson.hpp"

namespace attend::llm::test {
namespace {

// A transformer of two layers that copies, with every weight set by hand: head 0.0 writes the token before into each
// row, head 1.0 looks for the row whose token before is this row's token, and says that row's token; where there is
// none it rests on the first token, which is nothing. Heads 0.1 and 1.1 are zero: they look at all tokens alike.
class CopyingModel {
 public:
  static constexpr std::int64_t kTokens = 32, kPlaces = 48, kHidden = kTokens + kPlaces + kTokens;
  static constexpr std::int64_t kPlace = kTokens, kBefore = kTokens + kPlaces;  // where the parts of a row begin
  static constexpr Token kFirst = 30;

  CopyingModel() {
    write_text(folder_.path() / "config.json",
               R"({"model_type":"gpt2","activation_function":"gelu_new","layer_norm_epsilon":1e-5,"n_embd":112,)"
               R"("n_head":2,"n_layer":2,"n_inner":4,"n_positions":48,"vocab_size":32,"tie_word_embeddings":true,)"
               R"("bos_token_id":31,"eos_token_id":31})");
    write_tokenizer(folder_.path(), kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t)
      if (t != kFirst) at("wte.weight", {kTokens, kHidden}, t, t) = 1;
    for (std::int64_t p = 0; p < kPlaces; ++p) at("wpe.weight", {kPlaces, kHidden}, p, kPlace + p) = 1;
    for (const char* layer : {"h.0.", "h.1."}) {
      for (const char* norm : {"ln_1", "ln_2"}) put_norm(std::string(layer) + norm);
      (void)at(std::string(layer) + "mlp.c_fc.weight", {kHidden, 4}, 0, 0);
      (void)at(std::string(layer) + "mlp.c_fc.bias", {4}, 0, 0);
      (void)at(std::string(layer) + "mlp.c_proj.weight", {4, kHidden}, 0, 0);
      (void)at(std::string(layer) + "mlp.c_proj.bias", {kHidden}, 0, 0);
      (void)at(std::string(layer) + "attn.c_proj.bias", {kHidden}, 0, 0);
      (void)at(std::string(layer) + "attn.c_attn.bias", {3 * kHidden}, 0, 0);
    }
    put_norm("ln_f");
    for (std::int64_t d = 0; d + 1 < kPlaces; ++d) {  // the place before
      in(0, 0, kPlace + d + 1, d) = 4;
      in(0, 1, kPlace + d, d) = 1;
    }
    for (std::int64_t t = 0; t < kTokens; ++t) {
      in(0, 2, t, t) = 1;
      out(0, t, kBefore + t) = 0.135F;
      in(1, 0, t, t) = 4;
      in(1, 1, kBefore + t, t) = 1;
      in(1, 2, t, t) = 1;
      out(1, t, t) = 3;
    }
    at("h.1.attn.c_attn.bias", {3 * kHidden}, 0, kTokens) = 12;  // rests on place 0
    in(1, 1, kPlace, kTokens) = 1;
    write();
  }

  Model open() const { return Model::open(folder_.path().string()); }

 private:
  struct Numbers {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };
  float& at(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t row, std::int64_t col) {
    Numbers& one = tensors_["transformer." + name];
    if (one.values.empty()) {
      std::int64_t count = 1;
      for (const std::int64_t n : shape) count *= n;
      one = {shape, std::vector<float>(static_cast<std::size_t>(count))};
    }
    return one.values[static_cast<std::size_t>(row * shape.back() + col)];
  }
  void put_norm(const std::string& name) {
    for (std::int64_t d = 0; d < kHidden; ++d) at(name + ".weight", {kHidden}, 0, d) = 1;
    (void)at(name + ".bias", {kHidden}, 0, 0);
  }
  // Of head 0: from a row's element to dimension d of q, k or v (0, 1, 2), and from v's dimension to a row.
  float& in(int layer, int which, std::int64_t element, std::int64_t d) {
    return at("h." + std::to_string(layer) + ".attn.c_attn.weight", {kHidden, 3 * kHidden}, element,
              which * kHidden + d);
  }
  float& out(int layer, std::int64_t d, std::int64_t element) {
    return at("h." + std::to_string(layer) + ".attn.c_proj.weight", {kHidden, kHidden}, d, element);
  }
  void write() const {
    std::vector<io::StoredTensor> stored;
    for (const auto& [name, numbers] : tensors_) {
      io::StoredTensor& one = stored.emplace_back();
      one.name = name;
      one.dtype = "F32";
      one.shape = numbers.shape;
      one.data = std::as_bytes(std::span(numbers.values));
    }
    write_text(folder_.path() / "model.safetensors", safetensors_bytes(stored));
  }

  TempFolder folder_;
  std::map<std::string, Numbers> tensors_;
};

// 20 tokens, none twice, then the first 12 of them again.
std::vector<Token> repeating() {
  std::vector<Token> tokens = {CopyingModel::kFirst};
  for (int i = 0; i < 20; ++i) tokens.push_back(static_cast<Token>((7 * i + 3) % 29));
  for (int i = 0; i < 12; ++i) tokens.push_back(tokens[static_cast<std::size_t>(1 + i)]);
  return tokens;
}

TEST(LookHeads, KnownHeadsAreNamed) {
  Model model = CopyingModel().open();
  LookSession session(model);
  const Look look = session.run(repeating());
  const std::vector<HeadType> types = session.types(look);
  ASSERT_EQ(types.size(), 4U);
  EXPECT_EQ(types[0].kind.kind, HeadKind::previous);
  EXPECT_GT(types[0].kind.score, 0.95);
  EXPECT_EQ(types[1].kind.kind, HeadKind::diffuse);
  EXPECT_NEAR(types[1].kind.score, 1, 1e-4);
  EXPECT_EQ(types[2].kind.kind, HeadKind::induction) << types[2].kind.score;
  EXPECT_GT(types[2].kind.score, 0.9);
  EXPECT_EQ(types[3].kind.kind, HeadKind::diffuse);
  // Where nothing is repeated the copying head rests on the first token: these rows are left out, and counted.
  EXPECT_GE(types[2].left_out, 15);
  EXPECT_EQ(types[2].rows + types[2].left_out, look.length() - 2);
  EXPECT_EQ(types[2].runner_up.measured, true);
  EXPECT_NE(types[0].runner_up.kind, types[0].kind.kind);
}

// The kinds on the fixed texts do not depend on the text that is looked at, nor on its switches.
TEST(LookHeads, KindsOnFixedTextsShowHowStableAKindIs) {
  Model model = CopyingModel().open();
  LookSession session(model), fresh(model);
  const std::vector<HeadType> types = session.types(session.run(repeating())),
                              other = fresh.types(fresh.run(std::vector<Token>{30, 1, 2, 3, 4, 5},
                                                            {.switches = parse_switches("mask=window:2")}));
  ASSERT_EQ(types.size(), other.size());
  for (std::size_t n = 0; n < types.size(); ++n) {
    ASSERT_FALSE(types[n].on_texts.empty());
    ASSERT_EQ(types[n].on_texts.size(), other[n].on_texts.size());
    std::int64_t same = 0;
    for (std::size_t t = 0; t < types[n].on_texts.size(); ++t) {
      EXPECT_STREQ(types[n].on_texts[t].text, other[n].on_texts[t].text);
      EXPECT_EQ(types[n].on_texts[t].kind, other[n].on_texts[t].kind);
      same += types[n].on_texts[t].kind == types[n].kind.kind;
    }
    EXPECT_EQ(types[n].texts_of_kind(), same);
  }
  // By their weights head 0.0 is a previous-token head and head 0.1 attends everywhere alike, whatever the text.
  EXPECT_EQ(types[0].texts_of_kind(), std::ssize(types[0].on_texts));
  EXPECT_EQ(types[1].texts_of_kind(), std::ssize(types[1].on_texts));
}

TEST(LookHeads, TheProbeShowsThatTheModelCopies) {
  Model model = CopyingModel().open();
  LookSession session(model);
  const InductionProbe& probe = session.probe();
  EXPECT_EQ(probe.tokens, 24);
  EXPECT_GT(probe.induction[2], 0.9);
  EXPECT_LT(probe.induction[0], 0.1);
  EXPECT_LT(probe.second_loss, 0.3);
  EXPECT_GT(probe.first_loss, 2);
}

TEST(LookHeads, WithoutTheInductionHeadRepeatsAreLostAndNothingElse) {
  Model model = CopyingModel().open();
  LookSession session(model);
  const std::vector<Token> tokens = repeating();
  const auto run = [&](const char* switches) {
    return session.run(tokens, {.switches = parse_switches(switches), .losses = true});
  };
  const TokenRange ranges[] = {{22, 33, "repeats"}, {1, 21, "elsewhere"}};
  const Look plain = run("");
  for (const char* knocked : {"knock=zero@1.0", "knock=mean@1.0", "knock=zero@0.0"}) {
    const LookComparison change = compare(plain, run(knocked), ranges);
    EXPECT_LT(change.losses[1].before, 0.01);
    EXPECT_GT(change.losses[1].after, 2) << knocked;
    if (std::string(knocked) != "knock=mean@1.0") {  // the mean says a little of every repeated token everywhere
      EXPECT_LT(std::abs(change.losses[2].after - change.losses[2].before),
                0.1 * (change.losses[1].after - change.losses[1].before))
          << knocked;
    }
    EXPECT_GT(*change.divergence, 1);
  }
  // A head that does nothing is not missed.
  const LookComparison idle = compare(plain, run("knock=zero@1.1"), ranges);
  EXPECT_NEAR(idle.losses[1].after, idle.losses[1].before, 1e-5);
  // Nor is any other, for what the two heads do.
  const LookComparison two = compare(plain, run("only=layer@0.0,only=layer@1.0"), ranges);
  EXPECT_NEAR(two.losses[1].after, two.losses[1].before, 1e-5);
}

TEST(LookHeads, EntropyIsThatOfTheRestDividedByItsMost) {
  // With three sinks the rest of a uniform row is uniform.
  Model model = CopyingModel().open();
  LookSession session(model);
  for (const std::int64_t sinks : {0, 1, 3}) {
    const Look look = session.run(repeating(), {.sinks = sinks});
    const HeadType type = session.types(look)[1];
    for (const KindScore& score : type.scores) {
      if (score.kind != HeadKind::diffuse) continue;
      EXPECT_NEAR(score.score, 1, 1e-4) << sinks;
    }
  }
}

// Equal weights: the lower position first, what weighs nothing not at all.
TEST(LookHeads, TheLargestOfTies) {
  Model model = CopyingModel().open();
  LookSession session(model);
  const Look look = session.run(repeating());
  const auto places = [](const std::vector<Attended>& list) {
    std::vector<std::int64_t> at;
    for (const Attended& one : list) at.push_back(one.position);
    return at;
  };
  using Places = std::vector<std::int64_t>;
  EXPECT_EQ(places(look.top(1, 1, 9, 4)), (Places{0, 1, 2, 3}));
  EXPECT_EQ(places(look.top(1, 1, 2, 100)), (Places{0, 1, 2}));
  EXPECT_EQ(places(look.top(1, 1, 0, 100)), (Places{0}));
  EXPECT_EQ(places(look.top(1, 1, -1, 2)), (Places{0, 1}));
  EXPECT_TRUE(look.top(1, 1, 9, 0).empty());
  EXPECT_FLOAT_EQ(look.top(1, 1, 9, 1)[0].weight, 0.1F);
  EXPECT_EQ(places(look.users(1, 1, 5, 3)), (Places{5, 6, 7}));
  EXPECT_EQ(places(look.users(1, 1, 32, 3)), (Places{32}));
}

TEST(LookHeads, WilsonsInterval) {
  // Newcombe's (1998) examples at 95 %.
  const Interval a = wilson_interval(81.0 / 263, 263, 0.05), b = wilson_interval(15.0 / 148, 148, 0.05);
  EXPECT_NEAR(a.low, 0.2553, 5e-5);
  EXPECT_NEAR(a.high, 0.3662, 5e-5);
  EXPECT_NEAR(b.low, 0.0624, 5e-5);
  EXPECT_NEAR(b.high, 0.1605, 5e-5);
  const Interval none = wilson_interval(0, 20, 0.05);
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.1611, 5e-5);
}

}  // namespace
}  // namespace attend::llm::test
