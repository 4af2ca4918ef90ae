// What a lens holds, and the sweeps that its questions share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend/lens.hpp"
#include "ops/attention_call.hpp"
#include "ops/cached_call.hpp"
#include "ops/lens_sweep.hpp"

namespace attend {

inline constexpr const char* kLensOp = "Lens";

struct Lens::State {
  State(const View& q, const View& k, const AttentionOptions& given, const LensOptions& with);
  State(const View& q, const PagedKvCache& keys, std::span<const std::int64_t> sequences, const AttentionOptions& given,
        const LensOptions& with);

  const AttentionCall& call() const { return cached ? cached->call : *own; }
  bool in_double() const { return call().q.dtype == DType::f64; }
  std::int64_t N() const { return call().k.length(); }
  std::int64_t M() const { return call().q.length(); }

  void check_head(LensHead head) const;
  LensArea checked(const LensArea& area) const;  // no kToTheEnd left; throws InvalidArgument
  View whole_lse() const;
  View lse_of(LensHead head) const;                          // of all heads, this one known
  std::unique_ptr<HeadSweep> sweep_of(LensHead head) const;  // ready to run
  // Calls f(i, weights, visible) with the area's keys for each of its queries: of f64, from the reference.
  void for_rows(LensHead head, const LensArea& area,
                const std::function<void(std::int64_t, std::span<const double>, std::span<const char>)>& f) const;

  AttentionOptions options;
  LensOptions lens;
  const PagedKvCache* cache = nullptr;
  std::optional<AttentionCall> own;
  std::optional<CachedCall> cached;
  mutable Tensor lse;               // [B, H, M, 1], of the heads that are known
  mutable std::vector<char> known;  // [B, H]

 private:
  void check_lens_options() const;
  std::size_t index_of(LensHead head) const;
  void make_room_for_lse() const;
};

}  // namespace attend
