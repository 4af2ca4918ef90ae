// The labs, in the order of the course.
#include "labs/registry.hpp"

#include "labs/lab.hpp"

namespace attend::labs {

const std::vector<Lab>& all_labs() {
  static const std::vector<Lab> kLabs = [] {
    std::vector<Lab> labs;
    for (Lab (*make)() : {before_attention_lab, by_hand_lab, order_lab, scale_lab, softmax_lab, masks_lab, heads_lab,
                          values_lab, gqa_lab, shapes_lab, rope_lab, kv_cache_lab, flash_lab, cost_lab, self_cross_lab,
                          family_lab, gpt3_lab, context_lab})
      labs.push_back(make());
    return labs;
  }();
  return kLabs;
}

}  // namespace attend::labs
