// Cuts masks and score rules by queries: diagonals move, segments become stretches of keys, blocks and matrices shrink.
#include "nn/block_rows.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "base/check.hpp"

namespace attend {
namespace {

// The queries and keys whose positions count together: all of them, or those of one segment.
struct Span {
  std::int64_t first_query = 0, queries = 0;
  std::int64_t first_key = 0, keys = 0;
};

struct Place {
  std::int64_t M, N, first, count;
  Span span;
};

Span span_of(const Mask& mask, std::int64_t i, std::int64_t M, std::int64_t N) {
  for (const MaskRule& rule : mask.rules) {
    const auto* segments = std::get_if<SegmentsRule>(&rule);
    if (segments == nullptr) continue;
    const auto &q = *segments->queries, &k = *segments->keys;
    const auto end = std::upper_bound(q.begin(), q.end(), i);
    if (end == q.end()) return {i, M - i, 0, 0};  // padding: it sees nothing
    const auto s = static_cast<std::size_t>(end - q.begin()) - 1;
    return {q[s], q[s + 1] - q[s], k[s], k[s + 1] - k[s]};
  }
  return {0, M, 0, N};
}

// Where the piece that begins at query i must end: with its segment, and before the next row of blocks if it begins
// inside one.
std::int64_t end_of_piece(const Mask& mask, const Span& span, std::int64_t i, std::int64_t end) {
  end = std::min(end, span.first_query + span.queries);
  for (const MaskRule& rule : mask.rules) {
    if (const auto* any = std::get_if<AnyRule>(&rule)) {
      for (const Mask& part : *any->masks) end = end_of_piece(part, span, i, end);
    }
    const auto* blocks = std::get_if<BlocksRule>(&rule);
    if (blocks == nullptr || i % blocks->block_queries == 0) continue;
    const std::int64_t left = blocks->block_queries - i % blocks->block_queries;
    if (left < end - i) end = i + left;
  }
  return end;
}

SharedInts one(std::int64_t value) {
  return std::make_shared<const std::vector<std::int64_t>>(1, value);
}

// p(first + t) among all keys.
Diagonal moved(const Diagonal& diagonal, const Place& at) {
  std::vector<std::int64_t> offsets{diagonal.align == Align::first_key ? 0 : at.span.keys - at.span.queries};
  if (diagonal.offsets != nullptr) offsets = *diagonal.offsets;
  for (std::int64_t& offset : offsets) offset += at.span.first_key + at.first - at.span.first_query;
  return Diagonal::at(std::move(offsets));
}

struct Cut {
  const Place& at;

  MaskRule operator()(const CausalRule& rule) const { return CausalRule{moved(rule.diagonal, at)}; }
  MaskRule operator()(const WindowRule& rule) const {
    return WindowRule{rule.left, rule.right, moved(rule.diagonal, at)};
  }
  MaskRule operator()(const PaddingRule& rule) const { return rule; }
  MaskRule operator()(const PrefixRule& rule) const {
    std::vector<std::int64_t> lengths = *rule.lengths;
    for (std::int64_t& length : lengths) length = std::min(at.N, length + at.span.first_key);
    return PrefixRule{std::make_shared<const std::vector<std::int64_t>>(std::move(lengths)), moved(rule.diagonal, at)};
  }
  MaskRule operator()(const SegmentsRule&) const {
    return PaddingRule{one(at.span.first_key), one(at.span.first_key + at.span.keys)};
  }
  MaskRule operator()(const BlocksRule& rule) const {
    BlocksRule cut = rule;
    // A piece that begins inside a row of blocks ends with it.
    if (at.first % rule.block_queries != 0) cut.block_queries = std::max<std::int64_t>(1, at.count);
    const std::int64_t row = at.first / rule.block_queries;
    cut.rows = at.count / cut.block_queries + (at.count % cut.block_queries != 0);
    std::vector<std::uint8_t> bits;
    for (std::int64_t h = 0; h < rule.heads; ++h) {
      const auto from = rule.bits->begin() + (h * rule.rows + row) * rule.cols;
      bits.insert(bits.end(), from, from + cut.rows * rule.cols);
    }
    cut.bits = std::make_shared<const std::vector<std::uint8_t>>(std::move(bits));
    return cut;
  }
  MaskRule operator()(const DenseRule& rule) const {
    DenseRule cut = rule;
    if (rule.shape[2] == 1) return cut;
    cut.data += at.first * rule.strides[2];
    cut.shape[2] = at.count;
    return cut;
  }
  MaskRule operator()(const ChunksRule& rule) const {
    check_not_in_segments();
    return ChunksRule{rule.size, rule.back, moved(rule.diagonal, at)};
  }
  MaskRule operator()(const DilatedRule& rule) const { return DilatedRule{rule.step, moved(rule.diagonal, at)}; }
  MaskRule operator()(const ColumnsRule& rule) const {
    check_not_in_segments();
    return rule;
  }
  MaskRule operator()(const TokensRule& rule) const {
    check_not_in_segments();
    return TokensRule{rule.positions, rule.queries, moved(rule.diagonal, at)};
  }
  MaskRule operator()(const AnyRule& rule) const {
    std::vector<Mask> parts;
    for (const Mask& part : *rule.masks) {
      Mask& cut = parts.emplace_back();
      for (const MaskRule& inner : part.rules) {
        if (std::holds_alternative<SegmentsRule>(inner)) {
          fail("transformer_block", "segments inside a union cannot be cut into blocks of queries, expected block 0");
        }
        cut.rules.push_back(std::visit(*this, inner));
      }
    }
    return AnyRule{std::make_shared<const std::vector<Mask>>(std::move(parts)), rule.none};
  }

  // Positions that these rules count within a segment have no name outside it.
  void check_not_in_segments() const {
    if (at.span.first_key != 0 || at.span.keys != at.N) {
      fail("transformer_block",
           "chunks, columns and tokens beside segments cannot be cut into blocks of queries, expected block 0");
    }
  }
};

// The user's rule is told where its tile stands in the whole call.
ScoreRule moved(const ScoreRule& rule, std::int64_t first) {
  ScoreRule result;
  const ScoreRule* of = &rule;
  if (rule.forward_f32)
    result.forward_f32 = [of, first](ScoreTile<float> tile) {
      tile.first_row += first;
      of->forward_f32(tile);
    };
  if (rule.backward_f32)
    result.backward_f32 = [of, first](ScoreTile<const float> scores, ScoreTile<float> grad) {
      scores.first_row += first;
      grad.first_row += first;
      of->backward_f32(scores, grad);
    };
  return result;
}

}  // namespace

std::vector<RowPiece> cut_rows(const AttentionOptions& options, std::int64_t M, std::int64_t N, std::int64_t first,
                               std::int64_t count) {
  if (first == 0 && count == M) return {{0, M, options}};
  if (options.dropout.probability > 0)
    fail("transformer_block",
         "dropout is asked for with blocks of queries, expected block 0 (the kept set counts queries from the start)");
  std::vector<RowPiece> pieces;
  for (std::int64_t i = first; i < first + count;) {
    const Span span = span_of(options.mask, i, M, N);
    const std::int64_t end = end_of_piece(options.mask, span, i, first + count);
    const Place at{M, N, i, end - i, span};
    RowPiece piece{i, end - i, options};
    for (MaskRule& rule : piece.options.mask.rules) rule = std::visit(Cut{at}, rule);
    piece.options.alibi_diagonal = moved(options.alibi_diagonal, at);
    if (options.rule) piece.options.rule = moved(options.rule, i);
    if (options.bias) piece.options.bias = bias_rows(*options.bias, i, end - i);
    pieces.push_back(std::move(piece));
    i = end;
  }
  return pieces;
}

}  // namespace attend
