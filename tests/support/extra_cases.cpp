// Cases beyond the sweep: value dims, long head dims, the other masks, score rules, and all of them together.
#include <utility>

#include "support/cases.hpp"

namespace attend::test {
namespace {

using Lengths = std::pair<std::int64_t, std::int64_t>;

constexpr std::array<Lengths, 7> kLengths = {{{37, 53}, {53, 37}, {130, 150}, {70, 600}, {1, 600}, {0, 5}, {5, 0}}};
constexpr std::array<Lengths, 3> kFewLengths = {{{37, 53}, {66, 130}, {9, 530}}};

Case sized(const Lengths& lengths, std::int64_t D, std::int64_t E) {
  Case c;
  c.B = 2;
  c.H = 4;
  c.Hk = 2;
  c.M = lengths.first;
  c.N = lengths.second;
  c.D = D;
  c.E = E;
  c.backward = true;
  return c;
}

// Collects problems, each in all dtypes; the layout changes from case to case.
class Collector {
 public:
  std::vector<Case> cases;

  void add(Case c) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      // The reference itself computes f64: small sizes are enough.
      if (dtype == DType::f64 && c.M * c.N * c.D > 200'000) continue;
      c.dtype = dtype;
      c.layout = static_cast<Layout>(turn_++ % 3);
      cases.push_back(c);
    }
  }

 private:
  int turn_ = 0;
};

void add_dims(Collector& all) {
  constexpr std::array<Lengths, 9> kDims = {
      {{1, 7}, {8, 64}, {64, 8}, {64, 1}, {96, 33}, {40, 128}, {192, 128}, {128, 256}, {256, 31}}};
  for (const auto& [D, E] : kDims) {
    for (const Lengths& lengths : kFewLengths) {
      Case c = sized(lengths, D, E);
      all.add(c);
      c.mask = MaskKind::causal_last;
      all.add(c);
    }
  }
  constexpr std::array<Lengths, 6> kLongDims = {{{257, 257}, {320, 320}, {512, 512}, {576, 512}, {1024, 3}, {2, 1000}}};
  for (const auto& [D, E] : kLongDims) {
    Case c = sized({33, 70}, D, E);
    all.add(c);
    c.mask = MaskKind::causal_last;
    all.add(c);
  }
}

void add_heads(Collector& all) {
  constexpr std::array<Lengths, 6> kHeads = {{{1, 1}, {8, 8}, {12, 3}, {16, 1}, {7, 7}, {10, 2}}};
  for (const auto& [H, Hk] : kHeads) {
    Case c = sized({20, 70}, 16, 16);
    c.B = 3;
    c.H = H;
    c.Hk = Hk;
    c.mask = MaskKind::causal_last;
    all.add(c);
    c.M = 1;
    all.add(c);
  }
}

void add_masks(Collector& all) {
  for (int mask = static_cast<int>(MaskKind::dense); mask <= static_cast<int>(kLastMask); ++mask) {
    for (const Lengths& lengths : kLengths) {
      Case c = sized(lengths, 24, 24);
      c.mask = static_cast<MaskKind>(mask);
      all.add(c);
    }
  }
}

void add_score_rules(Collector& all) {
  for (const Lengths& lengths : kFewLengths) {
    for (const MaskKind mask : {MaskKind::none, MaskKind::causal_last, MaskKind::segments_causal, MaskKind::padding,
                                MaskKind::blocks, MaskKind::hidden_rows}) {
      Case plain = sized(lengths, 20, 20);
      plain.mask = mask;
      for (int bias = static_cast<int>(BiasKind::full); bias <= static_cast<int>(BiasKind::one); ++bias) {
        Case c = plain;
        c.bias = static_cast<BiasKind>(bias);
        c.f32_bias = bias % 2 == 0;
        all.add(c);
      }
      for (const RuleKind rule : {RuleKind::place, RuleKind::curve, RuleKind::hide}) {
        Case c = plain;
        c.rule = rule;
        all.add(c);
        c.softcap = 3;
        all.add(c);
      }
      for (const SlopesKind slopes : {SlopesKind::shared, SlopesKind::by_batch}) {
        Case c = plain;
        c.slopes = slopes;
        all.add(c);
      }
      Case c = plain;
      c.sinks = true;
      all.add(c);
      c = plain;
      c.dropout = 0.1;
      all.add(c);
      c.dropout = 0.75;
      all.add(c);
      c = plain;
      c.scale = 1.0;
      all.add(c);
      c.scale = -0.05;
      all.add(c);
    }
  }
}

void add_compositions(Collector& all) {
  for (const Lengths& lengths : kLengths) {
    for (const MaskKind mask : {MaskKind::none, MaskKind::causal_last, MaskKind::segments_window_blocks,
                                MaskKind::dense_window, MaskKind::padding_causal, MaskKind::union_except}) {
      Case c = sized(lengths, 33, 17);
      c.mask = mask;
      c.softcap = 4;
      c.rule = RuleKind::place;
      c.bias = BiasKind::by_head;
      c.slopes = SlopesKind::shared;
      c.sinks = true;
      c.dropout = 0.2;
      all.add(c);
      c.rule = RuleKind::curve;
      c.bias = BiasKind::full;
      c.dropout = 0;
      all.add(c);
    }
  }
}

}  // namespace

std::vector<Case> extra_cases() {
  Collector all;
  add_dims(all);
  add_heads(all);
  add_masks(all);
  add_score_rules(all);
  add_compositions(all);
  return std::move(all.cases);
}

std::vector<Case> benchmark_cases() {
  struct Row {
    std::int64_t B, H, Hk, M, N, D;
    MaskKind mask;
  };
  constexpr std::array<Row, 10> kRows = {{{1, 8, 8, 1024, 1024, 64, MaskKind::none},
                                          {1, 8, 8, 1024, 1024, 64, MaskKind::causal_last},
                                          {1, 8, 8, 4096, 4096, 64, MaskKind::causal_last},
                                          {1, 8, 2, 4096, 4096, 64, MaskKind::causal_last},
                                          {1, 32, 8, 4096, 4096, 128, MaskKind::causal_last},
                                          {1, 8, 8, 16384, 16384, 64, MaskKind::causal_last},
                                          {8, 8, 8, 128, 128, 64, MaskKind::causal_last},
                                          {1, 16, 16, 2048, 2048, 128, MaskKind::none},
                                          {1, 8, 2, 1, 4096, 64, MaskKind::none},
                                          {1, 32, 8, 1, 16384, 128, MaskKind::none}}};
  std::vector<Case> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Row& row : kRows) {
      Case c;
      c.dtype = dtype;
      c.B = row.B;
      c.H = row.H;
      c.Hk = row.Hk;
      c.M = row.M;
      c.N = row.N;
      c.D = c.E = row.D;
      c.mask = row.mask;
      c.backward = row.M > 1;
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace attend::test
