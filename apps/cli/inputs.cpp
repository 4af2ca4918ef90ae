// The demo's inputs: a made-up text and what heads see of it.
#include "inputs.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <vector>

#include "attend/rope.hpp"

namespace attend::cli {
namespace {

// SplitMix64 (Steele et al. 2014): the same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double uniform() { return std::ldexp(static_cast<double>(bits() >> 11), -53); }  // [0, 1)
  std::int64_t below(std::int64_t n) {
    return std::min(n - 1, static_cast<std::int64_t>(uniform() * static_cast<double>(n)));
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t state_;
};

constexpr std::int64_t kTopics = 4;

// Few enough that the table of words stays below the inputs, however long a row is.
std::int64_t vocabulary(std::int64_t length) {
  return std::min<std::int64_t>(8192, 2 * length);
}

struct Text {
  std::vector<std::int32_t> words;
  std::vector<std::int32_t> topics;
};

Text make_text(std::int64_t length, Random random) {
  const auto L = static_cast<std::size_t>(length);
  Text text{std::vector<std::int32_t>(L), std::vector<std::int32_t>(L)};
  for (auto& word : text.words) word = static_cast<std::int32_t>(random.below(vocabulary(length)));
  std::int64_t topic = 0;
  for (std::int64_t first = 0; first < length;) {
    const std::int64_t section = 1 + length / 20 + random.below(1 + length / 8);
    const std::int64_t end = std::min(length, first + section);
    std::fill(text.topics.begin() + first, text.topics.begin() + end, static_cast<std::int32_t>(topic));
    topic = (topic + 1 + random.below(kTopics - 1)) % kTopics;  // never the same twice in a row
    first = end;
  }
  // Quotations: stretches that stood in the text before, each at least its own length earlier.
  for (std::int64_t first = length / 4; first < length;) {
    const std::int64_t quoted = std::min(length / 16 + random.below(1 + length / 10), length - first);
    const std::int64_t source = random.below(std::max<std::int64_t>(1, first - quoted));
    std::copy_n(text.words.begin() + source, quoted, text.words.begin() + first);
    first += quoted + 1 + length / 16 + random.below(1 + length / 10);
  }
  return text;
}

// How a row of dim numbers is divided: [rotated by RoPE | topic | sink | word].
struct Layout {
  explicit Layout(std::int64_t dim)
      : rotary(dim / 8 * 2), topic(dim / 8), sink(dim >= 4 ? 1 : 0), word(dim - rotary - topic - sink) {}
  std::int64_t rotary, topic, sink, word;
};

// Unit vectors, one for each of `count` things.
std::vector<float> directions(std::int64_t count, std::int64_t dim, Random random) {
  std::vector<float> out(static_cast<std::size_t>(count * dim));
  for (std::int64_t i = 0; i < count; ++i) {
    float* row = out.data() + i * dim;
    double squares = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double x = random.normal();
      row[d] = static_cast<float>(x);
      squares += x * x;
    }
    const auto scale = static_cast<float>(1 / std::sqrt(squares));
    for (std::int64_t d = 0; d < dim; ++d) row[d] *= scale;
  }
  return out;
}

// How strongly a head looks for each thing, as the score that a full match adds.
struct Interests {
  double place, topic, sink, word;
};
constexpr Interests kInterests[4] = {
    {8.0, 2.0, 10.5, 16.5},  // repeats
    {11.0, 0.5, 4.0, 2.0},   // neighbours
    {3.0, 6.0, 6.0, 2.0},    // topic
    {3.0, 1.0, 10.0, 4.0},   // sink
};
constexpr Interests kOffers = {1, 1, 1, 1};  // what a key shows of itself

class RowWriter {
 public:
  RowWriter(const Layout& layout, const Text& text, Random& random)
      : layout_(layout),
        text_(text),
        topics_(directions(kTopics, layout.topic, Random(random.bits()))),
        words_(
            directions(vocabulary(static_cast<std::int64_t>(text.words.size())), layout.word, Random(random.bits()))) {}

  // The row of position i, whose word part shows position `word_at` (-1: none); the sink part only if `sink`.
  void write(float* row, std::int64_t i, std::int64_t word_at, bool sink, const Interests& strength) const {
    // Pairs (x, 0): RoPE rotates queries and keys alike, so a score falls with distance by the cosines alone.
    const std::int64_t pairs = layout_.rotary / 2;
    const auto place =
        static_cast<float>(strength.place / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, pairs))));
    for (std::int64_t d = 0; d < layout_.rotary; ++d) *row++ = d < pairs ? place : 0;
    const float* topic = topics_.data() + text_.topics[static_cast<std::size_t>(i)] * layout_.topic;
    for (std::int64_t d = 0; d < layout_.topic; ++d) *row++ = static_cast<float>(strength.topic) * topic[d];
    for (std::int64_t d = 0; d < layout_.sink; ++d) *row++ = sink ? static_cast<float>(strength.sink) : 0;
    const float* word =
        word_at < 0 ? nullptr : words_.data() + text_.words[static_cast<std::size_t>(word_at)] * layout_.word;
    for (std::int64_t d = 0; d < layout_.word; ++d) *row++ = word ? static_cast<float>(strength.word) * word[d] : 0;
  }

 private:
  Layout layout_;
  const Text& text_;
  std::vector<float> topics_, words_;
};

Tensor converted(Tensor x, DType dtype) {
  if (dtype == DType::f32) return x;
  Tensor out(dtype, x.shape());
  const std::span from(x.data<float>(), static_cast<std::size_t>(x.size()));
  if (dtype == DType::bf16) {
    std::transform(from.begin(), from.end(), out.data<BFloat16>(), to_bfloat16);
  } else {
    std::transform(from.begin(), from.end(), out.data<Float16>(), to_float16);
  }
  return out;
}

// Makes the rows, gives them their places by RoPE, and rounds them to the dtype.
template <class WriteRow>
Tensor make_rows(const Problem& problem, std::int64_t heads, std::int64_t rotary, const WriteRow& write_row) {
  Tensor x(DType::f32, {1, heads, problem.length, problem.dim});
  float* row = x.data<float>();
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < problem.length; ++i, row += problem.dim) write_row(row, h, i);
  }
  if (rotary > 0) {
    RopeOptions options;
    options.rotary_dim = rotary;
    rope(x, x, options);
  }
  return converted(std::move(x), problem.dtype);
}

}  // namespace

std::int64_t first_visible(const Problem& problem, std::int64_t i) {
  return problem.window == 0 ? 0 : std::max<std::int64_t>(0, i - problem.window + 1);
}

double visible_pairs(const Problem& problem) {
  const auto length = static_cast<double>(problem.length);
  const double window = problem.window == 0 ? length : std::min(length, static_cast<double>(problem.window));
  return window * (window + 1) / 2 + (length - window) * window;
}

Mask mask_of(const Problem& problem, std::int64_t first_query) {
  const Diagonal diagonal = Diagonal::at({first_query});
  if (problem.window == 0) return causal(diagonal);
  return causal(diagonal) & window(problem.window - 1, kUnlimited, diagonal);
}

const char* looks_for(std::int64_t head) {
  constexpr const char* kNames[4] = {"repeats", "neighbours", "its topic", "the first token"};
  return kNames[head % 4];
}

Inputs make_inputs(const Problem& problem) {
  Random random(problem.seed);
  const Layout layout(problem.dim);
  const Text text = make_text(problem.length, Random(random.bits()));
  const RowWriter writer(layout, text, random);
  // attention divides scores by sqrt(D); queries are made that much longer, so that interests are scores.
  const double unscale = std::sqrt(static_cast<double>(problem.dim));
  Inputs inputs;
  inputs.q = make_rows(problem, problem.heads, layout.rotary, [&](float* row, std::int64_t h, std::int64_t i) {
    const Interests& want = kInterests[h % 4];
    writer.write(row, i, i, true,
                 {want.place * unscale, want.topic * unscale, want.sink * unscale, want.word * unscale});
  });
  // A key shows the word before it: a query that looks for its own word lands right behind an earlier use of it.
  inputs.k = make_rows(problem, problem.kv_heads, layout.rotary,
                       [&](float* row, std::int64_t, std::int64_t j) { writer.write(row, j, j - 1, j == 0, kOffers); });
  inputs.v = make_rows(problem, problem.kv_heads, 0, [&](float* row, std::int64_t, std::int64_t) {
    for (std::int64_t d = 0; d < problem.dim; ++d) row[d] = static_cast<float>(2 * random.uniform() - 1);
  });
  return inputs;
}

View rows_of(const View& x, std::int64_t head, std::int64_t first, std::int64_t count) {
  const std::int64_t offset = head * x.strides[1] + first * x.strides[2];
  const auto* data = static_cast<const std::byte*>(x.data) + offset * size_of(x.dtype);
  return {x.dtype, data, {1, 1, count, x.dim()}, x.strides};
}

}  // namespace attend::cli
