// The softmax of rows whose LSE is too large to make weights from: their maximum and sum once more.

// In double: without the values there is little to add up.
inline RowState row_state(const AttentionProblem& p, const RowSoftmax& part) {
  return {part.max, {in_nats(p, part.max), static_cast<double>(part.sum)}};
}

// Rows [first, last) of the range over all keys. Scores have the bits that backward's have: each is one chain of sums.
template <class Math>
inline void sweep_states(const AttentionProblem& p, const RowRange& range, std::int64_t first, std::int64_t last,
                         ForwardScratch<Math>& s, RowState* states) {
  const RowRange part{range.b, range.hk, first, last};
  const std::int64_t rows = last - first;
  const KeyRange seen = visible_range(p, s.keys, first, last);
  for (std::int64_t begin = seen.lo / kKeySplit * kKeySplit; begin < seen.hi; begin += kKeySplit) {
    const std::int64_t end = seen.hi < begin + kKeySplit ? seen.hi : begin + kKeySplit;
    clear_part(p, s, rows);
    for (std::int64_t j = next_seen(p, part, seen.lo > begin ? seen.lo : begin, end); j < end;
         j = next_seen(p, part, j / kKeyTile * kKeyTile + kKeyTile, end)) {
      const KeyTile tile{range.b, range.hk, j / kKeyTile * kKeyTile};
      Block block{range.b, range.hk, first, rows, tile.j0, 0, 0, false};
      if (!place_block(p, s.keys, block)) continue;
      make_scores(p, block, tile_keys<Math>(p, tile, s), s, first - range.begin);
      softmax_block<Math>(p, block, s.scores, true, s.weights, s.part, 0);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      RowState& state = states[row_index(p, range.b, range.hk, first + r)];
      state = merge(state, row_state(p, s.part.row(r)));
    }
  }
}

// The states of those rows of the range whose LSE does not suffice; both arrays are [B, H, M].
template <class Math>
void row_states_with(const AttentionProblem& p, const RowRange& range, const float* lse, RowState* states,
                     void* scratch) {
  const auto suffices = [&](std::int64_t row) { return lse_suffices(lse[row_index(p, range.b, range.hk, row)]); };
  std::int64_t row = range.begin, end = 0;
  while (row < range.end && suffices(row)) ++row;
  if (row == range.end) return;
  Carver carver{static_cast<char*>(scratch)};
  [[maybe_unused]] const typename Math::Session session{};
  ForwardScratch<Math> s = carve_forward<Math>(p, range.end - range.begin, carver);
  fill_row_keys(p, range, s.keys);
  load_queries<Math>(p, range, s);
  for (; row < range.end; row = end) {
    for (end = row; end < range.end && end - row < kBlockRows && !suffices(end); ++end)
      states[row_index(p, range.b, range.hk, end)] = RowState{};
    if (end > row)
      sweep_states(p, range, row, end, s, states);
    else
      ++end;
  }
}
