// The right answers of the exercises in plain loops, and what each known mistake makes of them: the mistakes are run,
// not guessed at.
#include "labs/exercises/answers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attend::labs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t side : shape) n *= side;
  return n;
}

Array zeros(std::vector<std::int64_t> shape) {
  Array a{std::move(shape), {}, Kind::real};
  a.data.resize(static_cast<std::size_t>(product(a.shape)));
  return a;
}

float& at(Array& a, std::int64_t n) {
  return a.data[static_cast<std::size_t>(n)];
}
float at(const Array& a, std::int64_t n) {
  return a.data[static_cast<std::size_t>(n)];
}

struct SoftmaxRules {
  bool no_max = false, nan_row = false, base_two = false, not_normalised = false, log = false;
  const float* shift = nullptr;  // instead of the row's own maximum
};

// Softmax of `count` numbers, `stride` apart.
void softmax_line(float* x, std::int64_t count, std::int64_t stride, const SoftmaxRules& rules) {
  float most = -kInfinity, sum = 0;
  for (std::int64_t n = 0; n < count; ++n) most = std::max(most, x[n * stride]);
  const bool hidden = most == -kInfinity;
  if (rules.shift != nullptr) most = *rules.shift;
  if (rules.no_max) most = 0;
  if (hidden && !rules.nan_row) {
    for (std::int64_t n = 0; n < count; ++n) x[n * stride] = 0;
    return;
  }
  for (std::int64_t n = 0; n < count; ++n) {
    float& v = x[n * stride];
    v = rules.base_two ? std::exp2(v - most) : std::exp(v - most);
    sum += v;
  }
  if (rules.not_normalised) return;
  if (rules.no_max && !rules.nan_row && sum == 0) sum = 1;  // who guards against 0 / 0 guards by the sum
  for (std::int64_t n = 0; n < count; ++n) x[n * stride] /= sum;
  if (rules.log)
    for (std::int64_t n = 0; n < count; ++n) x[n * stride] = std::log(x[n * stride]);
}

// [B, H, M, D], [B, H, N, D], [B, H, N, E] as plain loops read them.
struct Sizes {
  std::int64_t B, H, M, N, D, E;
};

struct AttentionRules {
  float scale = 1, after = 1;  // of the scores, and of the weights
  bool over_queries = false, no_softmax = false, key_reshaped = false, returns_weights = false;
  enum class Masking { hide, ignore, inverted, after_softmax, zero, minus_billion } masking = Masking::hide;
  SoftmaxRules softmax{};
};

float hidden_score(AttentionRules::Masking masking, float score, bool visible) {
  using Masking = AttentionRules::Masking;
  switch (masking) {
    case Masking::hide:
      return visible ? score : -kInfinity;
    case Masking::inverted:
      return visible ? -kInfinity : score;
    case Masking::zero:
      return visible ? score : 0;
    case Masking::minus_billion:
      return visible ? score : -1e9F;
    case Masking::ignore:
    case Masking::after_softmax:
      break;
  }
  return score;
}

// `mask(i, j)`: whether query i may see key j.
template <class MaskFunction>
Array attend_rows(const Array& q, const Array& k, const Array& v, const Sizes& s, const AttentionRules& rules,
                  const MaskFunction& mask) {
  Array out = zeros({s.B, s.H, s.M, s.E}), all = zeros({s.B, s.H, s.M, s.N});
  std::vector<float> w(static_cast<std::size_t>(s.M * s.N));
  for (std::int64_t bh = 0; bh < s.B * s.H; ++bh) {
    for (std::int64_t i = 0; i < s.M; ++i)
      for (std::int64_t j = 0; j < s.N; ++j) {
        float dot = 0;
        for (std::int64_t d = 0; d < s.D; ++d) {
          const std::int64_t key = rules.key_reshaped ? d * s.N + j : j * s.D + d;
          dot += at(q, (bh * s.M + i) * s.D + d) * at(k, bh * s.N * s.D + key);
        }
        w[static_cast<std::size_t>(i * s.N + j)] = hidden_score(rules.masking, dot * rules.scale, mask(i, j));
      }
    if (!rules.no_softmax) {
      if (rules.over_queries)
        for (std::int64_t j = 0; j < s.N; ++j) softmax_line(w.data() + j, s.M, s.N, rules.softmax);
      else
        for (std::int64_t i = 0; i < s.M; ++i) softmax_line(w.data() + i * s.N, s.N, 1, rules.softmax);
    } else {
      for (float& x : w) x = x == -kInfinity ? 0 : x;
    }
    for (std::int64_t i = 0; i < s.M; ++i)
      for (std::int64_t j = 0; j < s.N; ++j) {
        float weight = w[static_cast<std::size_t>(i * s.N + j)] * rules.after;
        if (rules.masking == AttentionRules::Masking::after_softmax && !mask(i, j)) weight = 0;
        at(all, (bh * s.M + i) * s.N + j) = weight;
        for (std::int64_t e = 0; e < s.E; ++e)
          at(out, (bh * s.M + i) * s.E + e) += weight * at(v, (bh * s.N + j) * s.E + e);
      }
  }
  return rules.returns_weights ? all : out;
}

float root(std::int64_t n) {
  return std::sqrt(static_cast<float>(n));
}

struct RotationRules {
  bool interleaved = false, backwards = false, halves_swapped = false, half_exponent = false, one_frequency = false,
       swapped_functions = false;
};

// One row of D numbers at a position.
void rotate_row(const float* x, float* y, std::int64_t D, double position, double theta, const RotationRules& r) {
  for (std::int64_t i = 0; i < D / 2; ++i) {
    const double exponent = (r.half_exponent ? 1.0 : 2.0) * static_cast<double>(i) / static_cast<double>(D);
    const double angle = position * (r.one_frequency ? 1.0 : std::pow(theta, -exponent)) * (r.backwards ? -1 : 1);
    double c = std::cos(angle), s = std::sin(angle);
    if (r.swapped_functions) std::swap(c, s);
    const std::int64_t a = r.interleaved ? 2 * i : i, b = r.interleaved ? 2 * i + 1 : i + D / 2;
    const double u = static_cast<double>(x[a]), v = static_cast<double>(x[b]);
    const auto first = static_cast<float>(u * c - v * s), second = static_cast<float>(u * s + v * c);
    y[r.halves_swapped ? b : a] = first;
    y[r.halves_swapped ? a : b] = second;
  }
}

}  // namespace

Array answer_softmax(const Case& c, const Mistakes& made) {
  Array x = c.arrays.at("x");
  SoftmaxRules rules{.no_max = made.contains("no_max"),
                     .nan_row = made.contains("nan_row"),
                     .base_two = made.contains("base_two"),
                     .not_normalised = made.contains("not_normalised"),
                     .log = made.contains("log_softmax")};
  const float most = *std::max_element(x.data.begin(), x.data.end());
  if (made.contains("global_max")) rules.shift = &most;
  const std::size_t rank = x.shape.size();
  std::size_t axis = rank - 1;
  if (made.contains("axis_0")) axis = 0;
  if (made.contains("axis_before_last")) axis = rank - 2;
  if (made.contains("flattened")) {
    softmax_line(x.data.data(), x.size(), 1, rules);
    return x;
  }
  std::int64_t inner = 1;
  for (std::size_t n = axis + 1; n < rank; ++n) inner *= x.shape[n];
  const std::int64_t count = x.shape[axis], outer = x.size() / (inner * count);
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inner; ++i) softmax_line(x.data.data() + o * count * inner + i, count, inner, rules);
  return x;
}

Array answer_attention(const Case& c, const Mistakes& made) {
  const Array &q = c.arrays.at("q"), &k = c.arrays.at("k"), &v = c.arrays.at("v");
  const Sizes s{q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  using Masking = AttentionRules::Masking;
  AttentionRules rules{.scale = 1 / root(s.D)};
  if (made.contains("no_scaling")) rules.scale = 1;
  if (made.contains("scaled_by_d")) rules.scale = 1 / static_cast<float>(s.D);
  if (made.contains("multiplied_by_root")) rules.scale = root(s.D);
  if (made.contains("scaled_by_length")) rules.scale = 1 / root(s.N);
  if (made.contains("scaled_after_softmax")) {
    rules.scale = 1;
    rules.after = 1 / root(s.D);
  }
  rules.over_queries = made.contains("softmax_over_queries");
  rules.no_softmax = made.contains("no_softmax");
  rules.key_reshaped = made.contains("key_reshaped");
  rules.returns_weights = made.contains("returns_weights");
  if (made.contains("mask_ignored")) rules.masking = Masking::ignore;
  if (made.contains("mask_inverted")) rules.masking = Masking::inverted;
  if (made.contains("mask_after_softmax")) rules.masking = Masking::after_softmax;
  if (made.contains("mask_multiplied")) rules.masking = Masking::zero;
  if (made.contains("minus_billion")) rules.masking = Masking::minus_billion;
  rules.softmax = {.no_max = made.contains("no_max"), .nan_row = made.contains("nan_row")};
  const auto found = c.arrays.find("mask");
  const Array* mask = found == c.arrays.end() ? nullptr : &found->second;
  if (mask == nullptr) rules.masking = Masking::ignore;
  const auto visible = [&](std::int64_t i, std::int64_t j) { return mask == nullptr || at(*mask, i * s.N + j) != 0; };
  // float64 holds score − 1e9 exactly enough: a row that is all hidden keeps the differences of its scores.
  const bool added = made.contains("minus_billion_added");
  const auto row_is_hidden = [&](std::int64_t i) {
    for (std::int64_t j = 0; j < s.N; ++j)
      if (visible(i, j)) return false;
    return true;
  };
  return attend_rows(q, k, v, s, rules,
                     [&](std::int64_t i, std::int64_t j) { return visible(i, j) || (added && row_is_hidden(i)); });
}

Array answer_multi_head(const Case& c, const Mistakes& made) {
  const Array& x = c.arrays.at("x");
  const std::int64_t B = x.shape[0], L = x.shape[1], W = x.shape[2], heads = c.wholes.at("heads");
  const std::int64_t H = made.contains("one_head") ? 1 : heads, D = W / H;
  const auto project = [&](const Array& in, const char* name) {
    const Array& w = c.arrays.at(name);
    Array y = zeros({B, L, W});
    for (std::int64_t r = 0; r < B * L; ++r)
      for (std::int64_t o = 0; o < W; ++o)
        for (std::int64_t i = 0; i < W; ++i)
          at(y, r * W + o) +=
              at(in, r * W + i) * at(w, made.contains("weights_not_transposed") ? i * W + o : o * W + i);
    return y;
  };
  // Where number d of head h of token i lies in a row-major [B, L, W].
  const auto place = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, const char* mistake) {
    if (made.contains(mistake)) return ((b * H + h) * L + i) * D + d;
    if (made.contains("heads_interleaved")) return (b * L + i) * W + d * H + h;
    return (b * L + i) * W + h * D + d;
  };
  const auto split = [&](const Array& y) {
    Array s = zeros({B, H, L, D});
    for (std::int64_t n = 0; n < y.size(); ++n)
      at(s, n) = at(y, place(n / (H * L * D), n / (L * D) % H, n / D % L, n % D, "split_without_transpose"));
    return s;
  };
  AttentionRules rules{.scale = 1 / root(D)};
  if (made.contains("no_scaling")) rules.scale = 1;
  if (made.contains("scaled_by_width")) rules.scale = 1 / root(W);
  rules.over_queries = made.contains("softmax_over_queries");
  rules.masking = AttentionRules::Masking::ignore;
  const Array q = split(project(x, "wq"));
  Array k = split(project(x, "wk")), v = split(project(x, "wv"));
  if (made.contains("swapped_k_and_v")) std::swap(k, v);
  const Array heads_out = attend_rows(q, k, v, {B, H, L, L, D, D}, rules, [](auto, auto) { return true; });
  Array merged = zeros({B, L, W});
  for (std::int64_t n = 0; n < merged.size(); ++n) {
    const std::int64_t b = n / (H * L * D), h = n / (L * D) % H, i = n / D % L, d = n % D;
    const std::int64_t to = made.contains("heads_reversed") ? H - 1 - h : h;
    at(merged, place(b, to, i, d, "merged_without_transpose")) = at(heads_out, n);
  }
  return made.contains("no_output_projection") ? merged : project(merged, "wo");
}

Array answer_repeat_kv(const Case& c, const Mistakes& made) {
  const Array& k = c.arrays.at("k");
  const std::int64_t B = k.shape[0], H = k.shape[1], L = k.shape[2], D = k.shape[3], G = c.wholes.at("groups");
  if (made.contains("nothing_repeated")) return k;
  Array out = zeros({B, H * G, L, D});
  if (made.contains("repeated_along_length")) out = zeros({B, H, L * G, D});
  if (made.contains("repeated_along_dim")) out = zeros({B, H, L, D * G});
  for (std::int64_t n = 0; n < out.size(); ++n) {
    std::int64_t b = 0, h = 0, i = 0, d = 0;
    const std::int64_t LL = out.shape[2], DD = out.shape[3], HH = out.shape[1];
    d = n % DD;
    i = n / DD % LL;
    h = n / (DD * LL) % HH;
    b = n / (DD * LL * HH);
    if (made.contains("repeated_along_length"))
      i /= G;
    else if (made.contains("repeated_along_dim"))
      d /= G;
    else
      h = made.contains("tiled") ? h % H : h / G;
    at(out, n) = at(k, ((b * H + h) * L + i) * D + d);
  }
  return out;
}

Array answer_rope(const Case& c, const Mistakes& made) {
  const Array &x = c.arrays.at("x"), &positions = c.arrays.at("positions");
  const std::int64_t L = x.shape[2], D = x.shape[3];
  const RotationRules rules{.interleaved = made.contains("interleaved"),
                            .backwards = made.contains("backwards"),
                            .halves_swapped = made.contains("pairs_swapped"),
                            .half_exponent = made.contains("half_exponent"),
                            .one_frequency = made.contains("one_frequency"),
                            .swapped_functions = made.contains("cos_sin_swapped")};
  Array y = x;
  for (std::int64_t r = 0; r < x.size() / D; ++r) {
    double p = static_cast<double>(at(positions, r % L));
    if (made.contains("positions_ignored")) p = static_cast<double>(r % L);
    if (made.contains("positions_from_one")) p += 1;
    rotate_row(x.data.data() + r * D, y.data.data() + r * D, D, p, c.reals.at("theta"), rules);
  }
  return y;
}

Array answer_causal_mask(const Case& c, const Mistakes& made) {
  const std::int64_t M = c.wholes.at("m"), N = c.wholes.at("n");
  Array mask = zeros({M, N});
  mask.kind = Kind::truth;
  const std::int64_t offset = made.contains("first_key") ? 0 : N - M;
  for (std::int64_t i = 0; i < M; ++i)
    for (std::int64_t j = 0; j < N; ++j) {
      bool seen = j <= i + offset;
      if (made.contains("strict")) seen = j < i + offset;
      if (made.contains("one_too_many")) seen = j <= i + offset + 1;
      if (made.contains("upper")) seen = j >= i + offset;
      if (made.contains("all_visible")) seen = true;
      if (made.contains("inverted")) seen = !seen;
      at(mask, i * N + j) = seen ? 1 : 0;
      if (made.contains("additive")) at(mask, i * N + j) = seen ? 0 : -kInfinity;
    }
  if (made.contains("additive")) mask.kind = Kind::real;
  return mask;
}

Array answer_kv_cache(const Case& c, const Mistakes& made) {
  const Array &q = c.arrays.at("q"), &k = c.arrays.at("k"), &v = c.arrays.at("v"), &chunks = c.arrays.at("chunks");
  const std::int64_t B = q.shape[0], H = q.shape[1], T = q.shape[2], D = q.shape[3];
  const double theta = c.reals.at("theta");
  Array out = zeros(q.shape);
  std::vector<std::int64_t> step_of(static_cast<std::size_t>(T));
  std::int64_t first = 0, step = 0;
  for (const float size : chunks.data) {
    const auto count = static_cast<std::int64_t>(size);
    const std::int64_t total = first + count, start = made.contains("only_new") ? first : 0, N = total - start;
    for (std::int64_t p = first; p < total; ++p) step_of[static_cast<std::size_t>(p)] = step;
    const auto position = [&](std::int64_t p) {
      const std::int64_t begin =
          made.contains("positions_restart") ? p - (step_of[static_cast<std::size_t>(p)] == step ? first : 0) : p;
      return begin;
    };
    Array qs = zeros({B, H, count, D}), ks = zeros({B, H, N, D}), vs = zeros({B, H, N, D});
    for (std::int64_t bh = 0; bh < B * H; ++bh) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t p = made.contains("positions_restart") ? i : first + i;
        const double turn = made.contains("queries_not_rotated") ? 0 : static_cast<double>(p);
        rotate_row(q.data.data() + (bh * T + first + i) * D, qs.data.data() + (bh * count + i) * D, D, turn, theta, {});
      }
      for (std::int64_t j = start; j < total; ++j) {
        std::int64_t from = j;
        if (made.contains("prepended")) from = j < count ? first + j : j - count;
        double turn = static_cast<double>(position(from));
        if (made.contains("positions_restart")) {
          std::int64_t begin = 0;
          for (std::int64_t p = from;
               p >= 0 && step_of[static_cast<std::size_t>(p)] == step_of[static_cast<std::size_t>(from)]; --p)
            begin = p;
          turn = static_cast<double>(from - begin);
        }
        if (made.contains("keys_not_rotated")) turn = 0;
        if (made.contains("rotated_again"))
          turn *= static_cast<double>(step - step_of[static_cast<std::size_t>(from)] + 1);
        const std::int64_t to = (bh * N + j - start) * D;
        rotate_row(k.data.data() + (bh * T + from) * D, ks.data.data() + to, D, turn, theta, {});
        std::copy_n(v.data.data() + (bh * T + from) * D, D, vs.data.data() + to);
      }
    }
    const AttentionRules rules{.scale = made.contains("no_scaling") ? 1 : 1 / root(D)};
    const bool all = made.contains("no_mask"), top_left = made.contains("first_key");
    const Array part = attend_rows(qs, ks, vs, {B, H, count, N, D, D}, rules, [&](std::int64_t i, std::int64_t j) {
      return all || j <= i + (top_left ? 0 : N - count);
    });
    for (std::int64_t bh = 0; bh < B * H; ++bh)
      std::copy_n(part.data.data() + bh * count * D, count * D, out.data.data() + (bh * T + first) * D);
    first = total;
    ++step;
  }
  return out;
}

}  // namespace attend::labs
