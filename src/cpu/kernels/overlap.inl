// Tiles and vectors at the same time: while vectors make weights of the scores of one block of rows, the tile unit
// makes the scores of the next block and multiplies the weights of the block before with the values. A core runs ahead
// of a busy tile unit by some hundred instructions, so a step of the products stands before every few rows of the
// softmax. The sums are the same as one after the other.

// Where weights go to the values as they come, and the values are finite.
template <class Math>
inline bool overlaps(const AttentionProblem& p, const TileOperands<Math>& tile) {
  if constexpr (Math::kTerms == 1 && Math::kPack == 2) {
    const bool plain = !p.dropout_threshold && !p.observer && !p.no_values && !tile.k_scales && !tile.v_scales;
    return plain && tile.v_finite && Math::depth(p.D) <= kTileInner;
  } else {
    return false;
  }
}

template <class T>
inline void exchange(T*& a, T*& b) {
  T* const t = a;
  a = b;
  b = t;
}

// `block` is the first one of the range that sees a key of the tile.
template <class Math>
inline void forward_overlapped(const AttentionProblem& p, const RowRange& range, Block block,
                               const TileOperands<Math>& tile, const ForwardScratch<Math>& s) {
  if constexpr (Math::kTerms == 1 && Math::kPack == 2) {
    constexpr const Term& kTerm = Math::kProducts[0];
    constexpr ProductArgs<PairFormat> kNothing{};
    const std::int64_t Ep = round_up(p.E, kLanes);
    const auto row_of = [&](const Block& x) { return x.row - range.begin; };
    const auto scores_of = [&](const Block& x, float* to) { return score_args(p, x, kTerm, tile, s, row_of(x), to); };
    const auto values_of = [&](const Block& x, const typename Math::Element* weights) {
      return value_args(p, x, kTerm, tile, s, row_of(x), weights);
    };
    float *scores = s.scores, *next_scores = s.next_scores;
    typename Math::Element *weights = s.weights, *before_weights = s.before_weights;
    product<false>(scores_of(block, scores), block.rows, block.c1 - block.c0);
    Block before{};
    for (bool more = true; more;) {
      Block next = block;
      more = next_block(p, s.keys, range.end, next);
      const TileProduct<false> ahead(more ? scores_of(next, next_scores) : kNothing, more ? next.rows : 0,
                                     more ? next.c1 - next.c0 : 0);
      const TileProduct<true> behind(before.rows ? values_of(before, before_weights) : kNothing, before.rows,
                                     before.rows ? Ep : 0);
      finish_scores(p, block, s.keys, scores);
      const std::int64_t steps = ahead.steps() + behind.steps(), parts = steps > 0 ? steps : 1;
      for (std::int64_t n = 0, done = 0; n < parts; ++n) {
        if (n < ahead.steps())
          ahead.step(n);
        else if (n < steps)
          behind.step(n - ahead.steps());
        const std::int64_t until = block.rows * (n + 1) / parts;
        Block some = block;
        some.row = block.row + done;
        some.rows = until - done;
        softmax_block<Math>(p, some, scores + done * kKeyTile, false, weights + done * Math::kWeightRow, s.part,
                            row_of(block) + done);
        done = until;
      }
      before = block;
      block = next;
      exchange(scores, next_scores);
      exchange(weights, before_weights);
    }
    product<true>(values_of(before, before_weights), before.rows, Ep);
  }
}
