// Draws the inputs of a case and builds its mask and score rules.
#include "support/problem.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "attend/patterns.hpp"
#include "base/checked.hpp"
#include "base/random.hpp"
#include "reference/attention.hpp"

namespace attend::test {
namespace {

using std::int64_t;
using Ints = std::vector<int64_t>;

std::uint64_t hash(const std::string& text) {  // FNV-1a: the same on every machine
  std::uint64_t h = 14695981039346656037U;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return h;
}

// Drawing a normal costs more than a score: inputs are stretches of one long table.
constexpr std::size_t kTable = std::size_t{1} << 20;
const std::vector<float>& table() {
  static const std::vector<float> values = [] {
    std::vector<float> drawn(kTable);
    for (std::size_t n = 0; n < kTable; ++n) drawn[n] = grid_normal(1, n);
    return drawn;
  }();
  return values;
}

std::vector<float> draw(std::uint64_t seed, const Shape& shape, float gain) {
  std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  // An odd step walks through the whole table before it repeats.
  std::size_t at = seed % kTable;
  const std::size_t step = (seed >> 20) % 64 * 2 + 1;
  for (float& value : values) {
    value = gain * table()[at];
    at = (at + step) % kTable;
  }
  return values;
}

Mask random_blocks(std::uint64_t seed, int64_t block_queries, int64_t block_keys, int64_t heads, int64_t M, int64_t N) {
  const int64_t rows = divide_up(M, block_queries);
  const int64_t cols = divide_up(N, block_keys);
  std::vector<std::uint8_t> bits(static_cast<std::size_t>(heads * rows * cols));
  for (std::size_t n = 0; n < bits.size(); ++n) bits[n] = uniform(seed, n) < 0.6;
  return blocks(block_queries, block_keys, heads, rows, cols, std::move(bits));
}

// Four documents: one empty on the query side, padding behind the last.
Mask cut_segments(int64_t M, int64_t N) {
  return segments({0, M / 4, M / 4, M / 2 + M / 8, M - M / 8}, {0, N / 3, N / 2, N / 2 + N / 5, N - N / 9});
}

// One value per batch, walking down from `first`.
Ints falling(int64_t B, int64_t first, int64_t step) {
  Ints values;
  for (int64_t b = 0; b < B; ++b) values.push_back(std::max<int64_t>(0, first - b * step));
  return values;
}

}  // namespace

float grid_normal(std::uint64_t key, std::uint64_t index) {
  const float value = to_float(to_bfloat16(static_cast<float>(normal(key, index))));
  return std::abs(value) < 0x1p-17f ? 0.0f : value;  // 8 bits above 2^-24, the last place of f16
}

ScoreRule make_rule(RuleKind kind) {
  if (kind == RuleKind::place) {
    const auto forward = [](auto tile) {
      using T = std::remove_reference_t<decltype(tile(0, 0))>;
      for (int64_t r = 0; r < tile.rows; ++r) {
        for (int64_t c = 0; c < tile.cols; ++c) {
          const int64_t place = tile.batch * 11 + tile.head * 5 + (tile.first_row + r) * 7 + (tile.first_col + c) * 3;
          tile(r, c) = T(0.75) * tile(r, c) + T(0.125) * static_cast<T>(place % 13);
        }
      }
    };
    const auto backward = [](auto scores, auto grad) {
      using T = std::remove_reference_t<decltype(grad(0, 0))>;
      for (int64_t r = 0; r < scores.rows; ++r) {
        for (int64_t c = 0; c < scores.cols; ++c) grad(r, c) *= T(0.75);
      }
    };
    return ScoreRule(forward, backward);
  }
  if (kind == RuleKind::curve) {
    const auto forward = [](auto tile) {
      for (int64_t r = 0; r < tile.rows; ++r) {
        for (int64_t c = 0; c < tile.cols; ++c) tile(r, c) = tile(r, c) / (1 + std::abs(tile(r, c)) / 8);
      }
    };
    const auto backward = [](auto scores, auto grad) {
      for (int64_t r = 0; r < scores.rows; ++r) {
        for (int64_t c = 0; c < scores.cols; ++c) {
          const auto width = 1 + std::abs(scores(r, c)) / 8;
          grad(r, c) /= width * width;
        }
      }
    };
    return ScoreRule(forward, backward);
  }
  if (kind == RuleKind::hide) {
    const auto hidden = [](const auto& tile, int64_t r, int64_t c) {
      const int64_t i = tile.first_row + r;
      const int64_t j = tile.first_col + c;
      return (i + 2 * j + tile.head) % 3 == 0 || i % 7 == 6;  // every seventh query sees nothing
    };
    const auto forward = [hidden](auto tile) {
      using T = std::remove_reference_t<decltype(tile(0, 0))>;
      for (int64_t r = 0; r < tile.rows; ++r) {
        for (int64_t c = 0; c < tile.cols; ++c) {
          if (hidden(tile, r, c)) tile(r, c) = -std::numeric_limits<T>::infinity();
        }
      }
    };
    const auto backward = [hidden](auto scores, auto grad) {
      for (int64_t r = 0; r < scores.rows; ++r) {
        for (int64_t c = 0; c < scores.cols; ++c) {
          if (hidden(scores, r, c)) grad(r, c) = 0;
        }
      }
    };
    return ScoreRule(forward, backward);
  }
  return {};
}

Problem::Problem(const Case& c) : info(c) {
  const std::uint64_t seed = hash(c.problem_name());
  constexpr float kGains[] = {1, 0.5f, 1, 4};  // flat rows and peaked ones
  q = draw(seed * 3 + 1, q_shape(), kGains[seed / 7 % 4]);
  k = draw(seed * 5 + 2, k_shape(), 1);
  v = draw(seed * 7 + 3, v_shape(), 1);
  dout = draw(seed * 9 + 4, out_shape(), 1);
  make_score_rules();
  make_mask();
}

void Problem::make_score_rules() {
  const Case& c = info;
  const std::uint64_t seed = hash(c.problem_name()) + 1;
  AttentionOptions base;
  base.softcap = c.softcap;
  base.scale = c.scale;
  base.rule = make_rule(c.rule);
  base.dropout = {c.dropout, seed};
  if (c.slopes != SlopesKind::none) {
    const Shape shape = {c.slopes == SlopesKind::by_batch ? c.B : 1, c.H, 1, 1};
    for (int64_t n = 0; n < shape[0] * shape[1]; ++n) slopes.push_back(std::exp2(-1.0f - static_cast<float>(n % 8)));
    base.alibi_slopes = view_of(std::as_const(slopes).data(), shape);
  }
  if (c.sinks) {
    sinks = draw(seed * 11, {1, c.H, 1, 1}, 2);
    base.sinks = view_of(std::as_const(sinks).data(), {1, c.H, 1, 1});
  }
  for (AttentionOptions& options : options_) options = base;
  if (c.bias == BiasKind::none) return;

  const bool full = c.bias == BiasKind::full;
  bias_shape = {full || c.bias == BiasKind::by_batch ? c.B : 1, full || c.bias == BiasKind::by_head ? c.H : 1,
                c.bias == BiasKind::by_key || c.bias == BiasKind::one ? 1 : c.M,
                c.bias == BiasKind::by_row || c.bias == BiasKind::one ? 1 : c.N};
  bias = draw(seed * 13, bias_shape, 1);
  for (const float x : bias) {
    bias_f16_.push_back(to_float16(x).bits);
    bias_bf16_.push_back(to_bfloat16(x).bits);
    bias_f64_.push_back(x);
  }
  const Strides strides = contiguous_strides(bias_shape);
  const auto set = [&](DType dtype, const void* data) {
    options_[static_cast<std::size_t>(dtype)].bias =
        c.f32_bias ? View{DType::f32, bias.data(), bias_shape, strides} : View{dtype, data, bias_shape, strides};
  };
  set(DType::f32, bias.data());
  set(DType::f16, bias_f16_.data());
  set(DType::bf16, bias_bf16_.data());
  set(DType::f64, bias_f64_.data());
}

void Problem::make_mask() {
  const Case& c = info;
  const std::uint64_t seed = hash(c.problem_name()) + 2;
  const int64_t M = c.M;
  const int64_t N = c.N;
  const auto dense_mask = [&](const Shape& shape) {
    dense_.resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (std::size_t n = 0; n < dense_.size(); ++n) dense_[n] = uniform(seed, n) < 0.7;
    return attend::dense(dense_.data(), shape);
  };
  Mask mask;
  switch (c.mask) {
    case MaskKind::none:
      break;
    case MaskKind::causal_first:
      mask = causal(Align::first_key);
      break;
    case MaskKind::causal_last:
      mask = causal(Align::last_key);
      break;
    case MaskKind::causal_window:
      mask = attend::window(1 + N / 5, 0);
      break;
    case MaskKind::padding:
      mask = attend::padding(falling(c.B, N - N / 3, N / 2));
      break;
    case MaskKind::segments_causal:
      mask = cut_segments(M, N) & causal();
      break;
    case MaskKind::blocks:
      mask = random_blocks(seed, 16, 24, 1, M, N);
      break;
    case MaskKind::dense:
      mask = dense_mask({c.B, c.H, M, N});
      break;
    case MaskKind::dense_row:
      mask = dense_mask({1, 1, 1, N});
      break;
    case MaskKind::window:
      mask = attend::window(N / 7, N / 9, Align::first_key);
      break;
    case MaskKind::window_right:
      mask = attend::window(kUnlimited, 3);
      break;
    case MaskKind::prefix:
      mask = attend::prefix(falling(c.B, N / 3, N / 4));
      break;
    case MaskKind::left_padding:
      mask = attend::left_padding(falling(c.B, N / 2, N / 3));
      break;
    case MaskKind::segments: {
      const int64_t L = std::min(M, N);
      mask = attend::segments({0, L / 5, L / 2, L / 2, L});
      break;
    }
    case MaskKind::blocks_by_head:
      mask = random_blocks(seed, 5, 64, c.H, M, N);
      break;
    case MaskKind::causal_at:
      mask = causal(Diagonal::at(falling(c.B, N / 2, N / 2 + 9)));
      break;
    case MaskKind::hidden_rows:
      mask = causal(Diagonal::at({-M / 2}));
      break;
    case MaskKind::hidden_all:
      mask = causal(Diagonal::at({-M - 1}));
      break;
    case MaskKind::padding_causal:
      mask = attend::padding(falling(c.B, N - N / 4, N / 3)) & attend::left_padding({N / 8}) & causal(Align::first_key);
      break;
    case MaskKind::blocks_causal:
      mask = random_blocks(seed, 32, 32, 1, M, N) & causal();
      break;
    case MaskKind::dense_window:
      mask = dense_mask({1, c.H, M, N}) & attend::window(N / 2, N / 3);
      break;
    case MaskKind::segments_window_blocks:
      mask = cut_segments(M, N) & attend::window(4, 2) & random_blocks(seed, 3, 7, 1, M, N);
      break;
    case MaskKind::chunks:
      mask = attend::chunks(1 + N / 5, 1) & causal();
      break;
    case MaskKind::dilated:
      mask = attend::dilated(3) & attend::window(N / 2 + 3, N / 3);
      break;
    case MaskKind::streaming:
      mask = attend::streaming(4, 1 + N / 6);
      break;
    case MaskKind::strided:
      mask = attend::strided(1 + N / 12);
      break;
    case MaskKind::fixed:
      mask = attend::fixed(2 + N / 10, 2);
      break;
    case MaskKind::longformer:
      mask = attend::longformer(1 + N / 16, 2, N == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{0, N / 2});
      break;
    case MaskKind::bigbird: {
      const int64_t some = N > 24 ? 1 : 0;
      mask = attend::bigbird(M, N,
                             {.block = 24, .global_blocks = some, .random_blocks = some, .heads = c.H, .seed = seed});
      break;
    }
    case MaskKind::segments_union:
      mask = cut_segments(M, N) & (attend::window(2, 1) | attend::columns(N + 1, 0));
      break;
    case MaskKind::union_except:
      mask = (causal() & (attend::window(N / 8, 0) | (attend::columns(7, 2, 3) & except(attend::window(N / 4, 0))))) |
             (random_blocks(seed, 16, 24, 1, M, N) & attend::padding({N / 3}));
      break;
  }
  for (AttentionOptions& options : options_) options.mask = mask;
}

void Problem::make_visible() const {
  const auto [B, H, M, N] = Shape{info.B, info.H, info.M, info.N};
  const bool by_head = info.mask == MaskKind::dense || info.mask == MaskKind::blocks_by_head ||
                       info.mask == MaskKind::dense_window || info.mask == MaskKind::bigbird;
  visible_heads_ = by_head || own_mask_ ? H : 1;
  visible_.reserve(static_cast<std::size_t>(B * visible_heads_ * M * N));
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < visible_heads_; ++h) {
      for (int64_t i = 0; i < M; ++i) {
        for (int64_t j = 0; j < N; ++j) visible_.push_back(reference::visible(options_[0].mask, b, h, i, j, M, N));
      }
    }
  }
}

void Problem::set_mask(const Mask& mask) {
  own_mask_ = true;
  for (AttentionOptions& options : options_) options.mask = mask;
}

const AttentionOptions& Problem::options(DType dtype) const {
  return options_[static_cast<std::size_t>(dtype)];
}

double Problem::scale() const {
  return info.scale.value_or(1 / std::sqrt(static_cast<double>(info.D)));
}

const std::uint8_t* Problem::visible_row(int64_t b, int64_t h, int64_t i) const {
  std::call_once(visible_made_, [this] { make_visible(); });
  const int64_t head = visible_heads_ == 1 ? 0 : h;
  return visible_.data() + ((b * visible_heads_ + head) * info.M + i) * info.N;
}

double Problem::distance(int64_t i, int64_t j) const {
  int64_t first_query = 0;
  int64_t first_key = 0;
  int64_t queries = info.M;
  int64_t keys = info.N;
  for (const MaskRule& rule : options_[0].mask.rules) {
    const auto* cut = std::get_if<SegmentsRule>(&rule);
    if (cut == nullptr) continue;
    for (std::size_t s = 0; s + 1 < cut->queries->size(); ++s) {
      if (i < (*cut->queries)[s] || i >= (*cut->queries)[s + 1]) continue;
      first_query = (*cut->queries)[s];
      queries = (*cut->queries)[s + 1] - first_query;
      first_key = (*cut->keys)[s];
      keys = (*cut->keys)[s + 1] - first_key;
    }
  }
  const int64_t position = i - first_query + keys - queries;  // aligned to the last key
  return static_cast<double>(std::abs(position - (j - first_key)));
}

}  // namespace attend::test
