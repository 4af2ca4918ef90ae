// Masks of padding alone.
#include "variants/padding.hpp"

#include <algorithm>
#include <string>
#include <variant>

#include "base/check.hpp"
#include "core/mask_plan.hpp"

namespace attend {
namespace {

struct RuleName {
  const char* operator()(const CausalRule&) const { return "causal"; }
  const char* operator()(const WindowRule&) const { return "a window"; }
  const char* operator()(const PrefixRule&) const { return "a prefix"; }
  const char* operator()(const SegmentsRule&) const { return "segments"; }
  const char* operator()(const BlocksRule&) const { return "blocks"; }
  const char* operator()(const DenseRule&) const { return "dense"; }
  template <class Rule>
  const char* operator()(const Rule&) const {
    return "not padding";
  }
};

}  // namespace

void check_padding_alone(const char* op, const Mask& mask, std::int64_t B, std::int64_t N, const char* why) {
  for (const MaskRule& rule : mask.rules)
    if (!std::holds_alternative<PaddingRule>(rule))
      fail(op, std::string("the mask is ") + std::visit(RuleName{}, rule) + ", expected padding alone: " + why);
  const MaskPlan checked(mask, B, 1, 1, N);
}

KeptKeys kept_keys(const Mask& mask, std::int64_t b, std::int64_t N) {
  const auto of = [&](const SharedInts& values) {
    return values->size() == 1 ? values->front() : (*values)[static_cast<std::size_t>(b)];
  };
  KeptKeys kept{0, N};
  for (const MaskRule& rule : mask.rules) {
    const auto& padding = std::get<PaddingRule>(rule);
    if (padding.starts) kept.first = std::max(kept.first, of(padding.starts));
    if (padding.ends) kept.last = std::min(kept.last, of(padding.ends));
  }
  kept.last = std::max(kept.first, kept.last);
  return kept;
}

}  // namespace attend
