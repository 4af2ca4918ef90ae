// Every lab, made by the one file of its folder.
#pragma once

#include "labs/lab.hpp"

namespace attend::labs {

Lab before_attention_lab();
Lab by_hand_lab();
Lab order_lab();
Lab scale_lab();
Lab softmax_lab();
Lab masks_lab();
Lab heads_lab();
Lab values_lab();
Lab gqa_lab();
Lab shapes_lab();
Lab rope_lab();
Lab kv_cache_lab();
Lab flash_lab();
Lab cost_lab();
Lab self_cross_lab();
Lab family_lab();
Lab gpt3_lab();
Lab context_lab();

}  // namespace attend::labs
