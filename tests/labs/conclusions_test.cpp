// Conclusions at their limits: each clause holds just inside and fails just outside, whatever the others say. No lab
// runs here: the numbers are handed in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "labs/lab.hpp"

namespace attend::labs {
namespace {

struct Limit {
  const char* number;
  double inside, outside;
};

// Numbers under which a conclusion holds, and how far some of them may go, one at a time.
struct Claim {
  const char* lab;
  const char* conclusion;
  std::map<std::string, double> holding;
  std::vector<Limit> limits;
};

constexpr double kSmall = 1e-9;  // relative to limits that are sums or products

const std::vector<Claim> kClaims = {
    {"before-attention",
     "attention_helps",
     {{"none_3", 0.25}, {"additive_3", 0.5}, {"general_3", 0}},
     {{"additive_3", 0.35 + kSmall, 0.35 - kSmall}, {"none_3", 0.4 - kSmall, 0.4 + kSmall}}},
    {"before-attention",
     "attention_helps",
     {{"none_3", 0.25}, {"additive_3", 0}, {"general_3", 0.5}},
     {{"general_3", 0.35 + kSmall, 0.35 - kSmall}}},
    {"before-attention",
     "one_vector_is_too_small",
     {{"none_words_1", 0.8}, {"none_words_3", 0.5}},
     {{"none_words_1", 0.55 + kSmall, 0.55 - kSmall}, {"none_words_3", 0.75 - kSmall, 0.75 + kSmall}}},
    {"before-attention",
     "alignment_is_found",
     {{"additive_aligned_near", 0.9}, {"general_aligned_near", 0}},
     {{"additive_aligned_near", 0.6 + kSmall, 0.6}}},
    {"before-attention",
     "alignment_is_found",
     {{"additive_aligned_near", 0}, {"general_aligned_near", 0.9}},
     {{"general_aligned_near", 0.6 + kSmall, 0.6}}},
    {"before-attention",
     "longer_than_trained_is_hard",
     {{"additive_4", 0.2}, {"general_4", 0.1}, {"additive_3", 0.5}, {"general_3", 0.1}},
     {{"additive_4", 0.5 - kSmall, 0.5}, {"general_4", 0.5 - kSmall, 0.5}, {"additive_3", 0.2 + kSmall, 0.2}}},
    {"before-attention",
     "longer_than_trained_is_hard",
     {{"additive_4", 0.1}, {"general_4", 0.2}, {"additive_3", 0.1}, {"general_3", 0.5}},
     {{"general_3", 0.2 + kSmall, 0.2}}},
    {"by-hand", "rows_sum_to_one", {{"row_sum_error", 0}}, {{"row_sum_error", 0.99e-5, 1e-5}}},
    {"by-hand", "engine_agrees", {{"engine_difference", 0}}, {{"engine_difference", 0.99e-4, 1e-4}}},
    {"by-hand", "first_word_sees_itself", {{"first_row_difference", 0}}, {{"first_row_difference", 0.99e-6, 1e-6}}},
    {"by-hand", "output_is_a_mean", {{"outside_of_values", 0}}, {{"outside_of_values", 0.99e-6, 1e-6}}},
    {"by-hand",
     "sharp_scores_look_up",
     {{"lookup_error_64", 0}, {"lookup_error_1", 1}},
     {{"lookup_error_64", 0.99e-6, 1e-6}, {"lookup_error_1", 0.101, 0.1}}},
    {"order", "equivariant", {{"none_equivariance", 0}}, {{"none_equivariance", 0.99e-5, 1e-5}}},
    {"order", "not_invariant", {}, {{"none_invariance", 1.01e-2, 1e-2}}},
    {"order",
     "mean_is_invariant",
     {{"none_pooled", 0}},
     {{"none_pooled", 0.99e-5, 1e-5}, {"causal_pooled", 1.01e-3, 0.99e-3}}},
    {"order", "causal_is_neither", {}, {{"causal_equivariance", 1.01e-2, 1e-2}, {"causal_invariance", 1.01e-2, 1e-2}}},
    {"order",
     "positions_break_it",
     {},
     {{"sinusoidal_equivariance", 1.01e-2, 1e-2}, {"rope_equivariance", 1.01e-2, 1e-2}}},
    {"scale", "deviation_is_root_d", {{"worst_deviation", 0}}, {{"worst_deviation", 0.099, 0.1}}},
    {"scale",
     "deviation_is_no_range",
     {{"farthest_512", 80}, {"deviation_512", 20}},
     {{"farthest_512", 40.01, 40}, {"deviation_512", 39.99, 40}}},
    {"scale",
     "scaled_variance_is_one",
     {{"worst_scaled_variance", 0}},
     {{"worst_scaled_variance", 0.199, 0.2}, {"outside_512", 0.201, 0.2}}},
    {"scale",
     "raw_softmax_saturates",
     {{"entropy_1024", 0.1}, {"entropy_16", 3}, {"scaled_entropy_spread", 0}},
     {{"entropy_1024", 1.499, 1.5}, {"entropy_16", 0.201, 0.2}, {"scaled_entropy_spread", 0.299, 0.3}}},
    {"scale",
     "raw_gradient_vanishes",
     {{"gradient_1024", 0.1}, {"gradient_scaled_1024", 1}},
     {{"gradient_1024", 0.499, 0.5}, {"gradient_scaled_1024", 0.201, 0.2}}},
    {"scale",
     "training_likes_scaling",
     {{"loss_scaled", 1}, {"loss_unscaled", 2}},
     {{"loss_scaled", 1.999, 2}, {"loss_unscaled", 1.001, 1}}},
    {"softmax",
     "naive_overflows",
     {{"score", 100}, {"largest_exponent", 88.5}, {"naive_nan", 1}, {"engine_sum_error", 0}},
     {{"naive_nan", 1, 0},
      {"score", 88.51, 88.5},
      {"largest_exponent", 99.99, 100},
      {"engine_sum_error", 0.99e-5, 1e-5}}},
    {"softmax",
     "naive_overflows",
     {{"score", 10}, {"largest_exponent", 88.5}, {"naive_nan", 0}, {"engine_sum_error", 0}},
     {{"naive_nan", 0, 1}, {"score", 88.5, 88.51}}},
    {"softmax", "fills_agree_on_one", {{"one_hidden_difference", 0}}, {{"one_hidden_difference", 0.99e-6, 1e-6}}},
    {"softmax", "infinity_gives_nan", {}, {{"all_hidden_nan", 1, 0}}},
    {"softmax",
     "billion_gives_uniform",
     {{"billion_spread", 0}, {"billion_sum", 1}},
     {{"billion_spread", 0.99e-6, 1e-6}, {"billion_sum", 1 + 0.99e-5, 1 + 1.01e-5}}},
    {"softmax",
     "billion_gives_uniform",
     {{"billion_spread", 0}, {"billion_sum", 1}},
     {{"billion_sum", 1 - 0.99e-5, 1 - 1.01e-5}}},
    {"softmax", "engine_gives_zeros", {{"engine_masked_largest", 0}}, {{"engine_masked_largest", 0, 1e-30}}},
    {"softmax", "billion_is_no_f16", {}, {{"f16_of_billion", 1, 0}}},
    {"softmax", "online_is_exact", {{"online_difference", 0}}, {{"online_difference", 0.99e-9, 1e-9}}},
    {"masks", "causal_leaks_nothing", {{"causal_leak", 0}}, {{"causal_leak", 0, 1e-30}}},
    {"masks",
     "inverted_sees_the_future",
     {{"inverted_past_weight", 0}},
     {{"inverted_leak", 1.01e-3, 1e-3}, {"inverted_past_weight", 0.99e-6, 1e-6}}},
    {"masks",
     "inverted_last_row_is_uniform",
     {{"inverted_last_row_spread", 0}},
     {{"inverted_last_row_spread", 0.99e-6, 1e-6}}},
    {"masks",
     "the_leak_is_learnt",
     {{"inverted_loss", 0.1}, {"blind_loss", 2}},
     {{"inverted_loss", 0.999, 1}, {"blind_loss", 0.201, 0.2}}},
    {"masks",
     "honest_model_stays_blind",
     {{"causal_loss", 2}, {"blind_loss", 2}},
     {{"causal_loss", 1.901, 1.899}, {"blind_loss", 2.1, 2.2}}},
    {"masks", "padding_is_invisible", {}, {{"padded_batch_bits", 1, 0}, {"no_padding_mask_difference", 1.01e-3, 1e-3}}},
    {"masks", "causal_hides_right_padding", {{"causal_alone_difference", 0}}, {{"causal_alone_difference", 0, 1e-30}}},
    {"masks",
     "alignment_matters",
     {{"last_key_difference", 0}},
     {{"last_key_difference", 0.99e-6, 1e-6}, {"first_key_difference", 1.01e-3, 1e-3}}},
    {"heads", "concat_is_a_sum", {{"concat_difference", 0}}, {{"concat_difference", 0.99e-4, 1e-4}}},
    {"heads",
     "same_parameters",
     {{"parameters_8x64", 1048576}, {"parameters_1x512", 1048576}},
     {{"parameters_8x64", 1048576, 1048575}, {"parameters_1x512", 1048576, 1048577}}},
    {"heads",
     "random_heads_see_all",
     {{"random_distance", 8}, {"uniform_distance", 8}},
     {{"random_distance", 8.39, 8.41}, {"uniform_distance", 7.7, 7.6}}},
    {"heads",
     "random_heads_see_all",
     {{"random_distance", 8}, {"uniform_distance", 8}},
     {{"random_distance", 7.61, 7.59}, {"uniform_distance", 8.4, 8.5}}},
    {"heads", "many_heads_win", {{"loss_many", 1}, {"loss_one", 2}}, {{"loss_many", 1.999, 2}, {"loss_one", 1.001, 1}}},
    {"heads", "heads_specialise", {}, {{"best_near", 0.401, 0.4}, {"best_far", 0.401, 0.4}}},
    {"heads",
     "heads_are_not_alike",
     {{"most_harm", 1}, {"least_harm", 0.1}},
     {{"most_harm", 0.301, 0.299}, {"least_harm", 0.333, 0.334}}},
    {"heads",
     "heads_are_not_alike",
     {{"most_harm", 1}, {"least_harm", -1}},  // a head that does harm: none of it, not less than none
     {{"most_harm", 0.051, 0.05}}},
    {"values",
     "parameters_by_formula",
     {{"width", 8}, {"rank", 2}, {"full_parameters", 64}, {"factored_parameters", 32}},
     {{"full_parameters", 64, 63}, {"factored_parameters", 32, 33}, {"width", 8, 9}, {"rank", 2, 3}}},
    {"values",
     "rank_is_bounded",
     {{"width", 8}, {"rank", 2}, {"factored_rank", 2}, {"full_rank", 8}},
     {{"factored_rank", 2, 3}, {"full_rank", 8, 7}, {"rank", 2, 1}, {"width", 8, 9}}},
    {"values", "same_layer", {{"merged_difference", 0}}, {{"merged_difference", 0.99e-4, 1e-4}}},
    {"values",
     "what_is_lost",
     {{"width", 8}, {"rank", 2}, {"lost_of_low_rank", 0}},
     {{"lost_of_low_rank", 0.99e-4, 1e-4}, {"lost_of_random", 0.0101, 0.01}}},
    {"values",
     "what_is_lost",
     {{"width", 8}, {"rank", 8}, {"lost_of_low_rank", 0}, {"lost_of_random", 0}},  // at full rank nothing is lost
     {{"rank", 8, 7}, {"width", 8, 9}}},
    {"values",
     "gpt3_needs_it",
     {{"gpt3_full", 2e12}, {"gpt3_down", 14495514624.0}},
     {{"gpt3_full", 1e12 + 1, 1e12}, {"gpt3_down", 14495514624.0, 14495514625.0}}},
    {"gqa",
     "parameters_by_formula",
     {},
     {{"qkv_grouped", 1, 2}, {"qkv_formula", 1, 0}, {"output", 1, 2}, {"output_formula", 1, 0}}},
    {"gqa",
     "what_is_saved",
     {{"heads", 8}, {"kv_heads", 2}, {"qkv_full", 300}, {"qkv_grouped", 150}, {"kv_full", 200}, {"kv_grouped", 50}},
     {{"kv_grouped", 50, 51},
      {"kv_full", 200, 201},
      {"qkv_grouped", 150, 149},
      {"qkv_full", 300, 299},
      {"heads", 8, 7},
      {"kv_heads", 2, 1}}},
    {"gqa", "cache_by_formula", {}, {{"cache_grouped", 1, 2}, {"cache_formula", 1, 0}}},
    {"gqa",
     "repeating_copies",
     {{"heads", 8}, {"kv_heads", 2}, {"repeat_bytes", 4}, {"kv_bytes", 1}},
     {{"repeat_bytes", 2, 1}, {"kv_bytes", 3, 4}}},
    {"gqa",
     "repeating_copies",
     {{"heads", 8}, {"kv_heads", 8}, {"repeat_bytes", 1}, {"kv_bytes", 1}},  // nothing to repeat
     {{"heads", 8, 9}, {"kv_heads", 8, 7}}},
    {"gqa", "repeating_is_not_needed", {{"repeat_difference", 0}}, {{"repeat_difference", 0.99e-5, 1e-5}}},
    {"gqa",
     "all_three_learn",
     {{"blind_loss", 4}, {"loss_MHA", 1}, {"loss_GQA", 1}, {"loss_MQA", 1}},
     {{"loss_MHA", 2.99, 3}, {"loss_GQA", 2.99, 3}, {"loss_MQA", 2.99, 3}, {"blind_loss", 1.34, 1.33}}},
    {"gqa",
     "sharing_costs_little",
     {{"blind_loss", 4}, {"loss_MHA", 1}, {"loss_MQA", 1.2}},
     {{"loss_MQA", 1.399, 1.401}, {"loss_MHA", 0.801, 0.799}, {"blind_loss", 2.01, 1.99}}},
    {"shapes", "split_copies_nothing", {}, {{"split_is_view", 1, 0}}},
    {"shapes",
     "transpose_is_not_contiguous",
     {{"transposed_contiguous", 0}},
     {{"transposed_contiguous", 0, 1}, {"strides_agree", 1, 0}}},
    {"shapes", "way_back_copies", {{"back_is_view", 0}}, {{"back_is_view", 0, 1}}},
    {"shapes", "merging_needs_one_stride", {{"merge_is_view", 0}}, {{"merge_is_view", 0, 1}}},
    {"shapes", "engine_reads_strides", {}, {{"strided_bits", 1, 0}}},
    {"shapes", "repeat_kv_copies", {{"repeat_is_view", 0}}, {{"repeat_is_view", 0, 1}}},
    {"rope", "distance_alone", {{"spread", 0}}, {{"spread", 0.99e-2, 1e-2}, {"across", 0.101, 0.1}}},
    {"rope", "length_is_kept", {{"norm_change", 0}}, {{"norm_change", 0.99e-5, 1e-5}}},
    {"rope",
     "two_layouts_of_one_thing",
     {{"layouts_difference", 0}},
     {{"layouts_difference", 0.99e-3, 1e-3}, {"wrong_layout_difference", 1.01e-2, 1e-2}}},
    {"rope",
     "yarn_keeps_seen_angles",
     {{"new_before", 9}, {"new_after", 3}},
     {{"fastest_kept", 1, 0}, {"new_after", 8, 9}, {"new_before", 4, 3}}},
    {"rope",
     "minimind_ramp",
     {{"minimind_low_64", 5}, {"minimind_high_64", 14}, {"minimind_low_96", 8}, {"minimind_high_96", 21}},
     {{"minimind_low_64", 5, 6},
      {"minimind_high_64", 14, 13},
      {"minimind_low_96", 8, 9},
      {"minimind_high_96", 21, 20}}},
    {"kv-cache", "step_equals_full", {{"steps_that_differ", 0}}, {{"steps_that_differ", 0, 1}, {"chunk_bits", 1, 0}}},
    {"kv-cache", "bytes_by_formula", {}, {{"cache_bytes", 1, 2}, {"formula_bytes", 1, 0}}},
    {"kv-cache", "cache_is_faster", {{"time_ratio", 5}}, {{"time_ratio", 2.01, 2}}},
    {"kv-cache", "next_token_is_not_constant", {{"growth", 5}}, {{"growth", 1.301, 1.3}}},
    {"kv-cache",
     "window_forgets",
     {{"moved_with_window", 0}},
     {{"moved_with_window", 0, 1e-30}, {"moved_without_window", 1.01e-4, 1e-4}}},
    {"flash", "same_numbers", {{"difference", 0}}, {{"difference", 0.99e-4, 1e-4}}},
    {"flash",
     "matrix_is_quadratic",
     {{"matrix_bytes", 1000}, {"naive_bytes", 1000}},
     {{"measured", 1, 0}, {"naive_bytes", 901, 899}, {"matrix_bytes", 1110, 1112}}},
    {"flash", "flash_is_linear", {{"flash_bytes", 1000}}, {{"measured", 1, 0}, {"flash_bytes", 67108863, 67108864}}},
    {"flash", "flash_is_faster", {{"time_ratio", 2}}, {{"time_ratio", 1.001, 1}}},
    {"cost", "full_is_quadratic", {{"exponent_full", 2}}, {{"exponent_full", 1.601, 1.6}}},
    {"cost", "full_is_quadratic", {{"exponent_full", 2}}, {{"exponent_full", 2.399, 2.4}}},
    {"cost", "window_is_linear", {}, {{"exponent_window", 1.399, 1.4}, {"exponent_linear", 1.399, 1.4}}},
    {"cost",
     "rnn_is_linear_but_serial",
     {{"rnn_steps", 9}, {"attention_steps", 3}},
     {{"exponent_rnn", 1.399, 1.4}, {"rnn_steps", 4, 3}, {"attention_steps", 8, 9}}},
    {"cost",
     "attention_reaches_all",
     {{"attention_reach", 64}, {"reach_length", 64}, {"window_reach", 8}},
     {{"attention_reach", 64, 63}, {"window_reach", 63, 64}, {"reach_length", 64, 65}}},
    {"self-cross", "one_layer", {}, {{"same_source_bits", 1, 0}}},
    {"self-cross",
     "shapes_follow_sources",
     {{"rows", 3}, {"target", 3}, {"columns", 5}, {"source", 5}, {"output_length", 3}},
     {{"rows", 3, 4}, {"target", 3, 4}, {"columns", 5, 3}, {"source", 5, 6}, {"output_length", 3, 5}}},
    {"self-cross",
     "each_query_on_its_own",
     {{"first_row_cross", 0}, {"first_row_self", 1}, {"target", 3}},
     {{"first_row_cross", 0, 1e-30}, {"first_row_self", 1.01e-4, 1e-4}}},
    {"self-cross",
     "each_query_on_its_own",
     {{"first_row_cross", 0}, {"first_row_self", 0}, {"target", 1}},  // there are no others to see
     {{"target", 1, 2}}},
    {"self-cross",
     "context_speaks",
     {{"row_sum_error", 0}},
     {{"context_moves", 1.01e-3, 1e-3}, {"row_sum_error", 0.99e-5, 1e-5}}},
    {"family",
     "ring_is_exact",
     {{"ring_error", 0}, {"exact_error", 0}},
     {{"ring_error", 0.99e-5, 1e-5}, {"exact_error", 0.99e-6, 1e-6}}},
    {"family",
     "sparse_ones_miss_something",
     {{"window_seen", 0.5}, {"strided_seen", 0.5}, {"longformer_seen", 0.5}, {"blockwise_sparse_seen", 0.5}},
     {{"window_error", 1.01e-3, 1e-3},
      {"strided_error", 1.01e-3, 1e-3},
      {"longformer_error", 1.01e-3, 1e-3},
      {"blockwise_sparse_error", 1.01e-3, 1e-3},
      {"window_seen", 0.899, 0.9},
      {"strided_seen", 0.899, 0.9},
      {"longformer_seen", 0.899, 0.9},
      {"blockwise_sparse_seen", 0.899, 0.9}}},
    {"family",
     "compressed_ones_are_other_functions",
     {},
     {{"linear_error", 0.0501, 0.05}, {"linformer_error", 0.0501, 0.05}}},
    {"family",
     "mla_saves_cache",
     {{"mla_bytes", 100}, {"mla_expanded_bytes", 1000}, {"mla_step_difference", 0}},
     {{"mla_bytes", 499, 500}, {"mla_expanded_bytes", 201, 200}, {"mla_step_difference", 0.99e-4, 1e-4}}},
    {"gpt3", "embedding", {{"embedding", 617558016}}, {{"embedding", 617558016, 617558017}}},
    {"gpt3",
     "each_of_four",
     {{"queries", 14495514624.0}, {"keys", 14495514624.0}, {"values", 14495514624.0}, {"output", 14495514624.0}},
     {{"queries", 14495514624.0, 14495514625.0},
      {"keys", 14495514624.0, 14495514623.0},
      {"values", 14495514624.0, 14495514625.0},
      {"output", 14495514624.0, 14495514623.0}}},
    {"gpt3",
     "attention_in_all",
     {{"attention", 57982058496.0}, {"total", 175e9}},
     {{"attention", 57982058496.0, 57982058497.0}, {"total", 115964116993.0, 115964116992.0}}},
    {"gpt3",
     "head_dim",
     {{"head_dim", 128}, {"hidden", 12288}, {"heads", 96}},
     {{"head_dim", 128, 127}, {"hidden", 12288, 12287}, {"heads", 96, 97}}},
    {"gpt3", "minimind3", {{"minimind3", 63912192}}, {{"minimind3", 63912192, 63912191}}},
    {"context",
     "one_embedding",
     {{"model_other_0", 0}, {"tower_other_0", 0}},
     {{"model_other_0", 0.99e-6, 1e-6}, {"tower_other_0", 0.99e-6, 1e-6}}},
    {"context", "context_moves_it", {}, {{"model_other_2", 0.0101, 0.01}, {"tower_other_2", 0.0101, 0.01}}},
    {"context",
     "by_meaning_not_by_words",
     {{"model_other_2", 3}, {"model_same_2", 1}, {"tower_other_2", 3}, {"tower_same_2", 1}},
     {{"model_other_2", 1.501, 1.499},
      {"model_same_2", 1.99, 2.01},
      {"tower_other_2", 1.501, 1.499},
      {"tower_same_2", 1.99, 2.01}}},
    {"context",
     "by_meaning_not_by_words",
     {{"model_other_2", 3}, {"model_same_2", 0}, {"tower_other_2", 3}, {"tower_same_2", 0}},  // no division by 0
     {{"model_other_2", 1.6e-9, 1.4e-9}, {"tower_other_2", 1.6e-9, 1.4e-9}}},
    {"context",
     "some_heads_did_it",
     {{"most_moved", 4}, {"mean_moved", 1}},
     {{"most_moved", 1.501, 1.499}, {"mean_moved", 2.66, 2.67}}},
    {"context", "the_model_knows_the_sense", {{"loss", 1.1}}, {{"loss", 1.445, 1.446}}},  // (ln 3 + ln 6) / 2
};

// What a lab's judge asks for and is not given is 1.
std::vector<Conclusion> judged(const Lab& lab, const std::map<std::string, double>& given,
                               std::set<std::string>* names = nullptr) {
  Numbers numbers;
  for (const auto& [name, value] : given) numbers.put(name, value);
  for (;;) {
    try {
      auto conclusions = lab.judge(numbers);
      if (names != nullptr)
        for (const auto& [name, value] : numbers.all()) names->insert(name);
      return conclusions;
    } catch (const std::logic_error& error) {
      const std::string text = error.what();
      const std::size_t begin = text.find('\'') + 1;
      const std::string name = text.substr(begin, text.rfind('\'') - begin);
      if (numbers.all().contains(name)) throw;
      numbers.put(name, 1);
    }
  }
}

Conclusion judged(const Claim& claim, const std::string& number = {}, double value = 0) {
  std::map<std::string, double> given = claim.holding;
  if (!number.empty()) given[number] = value;
  for (Conclusion& one : judged(lab_called(claim.lab), given))
    if (one.name == claim.conclusion) return std::move(one);
  throw std::runtime_error(std::string("no conclusion ") + claim.conclusion);
}

TEST(LabConclusions, EachClauseHoldsInsideItsLimitAndFailsOutside) {
  for (const Claim& claim : kClaims)
    for (const Limit& limit : claim.limits) {
      const Conclusion inside = judged(claim, limit.number, limit.inside),
                       outside = judged(claim, limit.number, limit.outside);
      EXPECT_TRUE(inside.holds) << claim.lab << " " << claim.conclusion << " " << limit.number << " " << limit.inside;
      EXPECT_FALSE(outside.holds) << claim.lab << " " << claim.conclusion << " " << limit.number << " "
                                  << limit.outside;
      EXPECT_NE(inside.text.en, outside.text.en);
      EXPECT_NE(inside.text.zh, outside.text.zh);
    }
}

// A number that can overturn a conclusion is a clause of it, and has a limit above.
TEST(LabConclusions, EveryNumberThatCountsHasALimit) {
  std::map<std::string, std::set<std::string>> limited;
  const auto key = [](const Claim& claim) { return std::string(claim.lab) + " " + claim.conclusion; };
  for (const Claim& claim : kClaims)
    for (const Limit& limit : claim.limits) limited[key(claim)].insert(limit.number);
  for (const Claim& claim : kClaims) {
    EXPECT_TRUE(judged(claim).holds) << key(claim);
    std::set<std::string> names;
    (void)judged(lab_called(claim.lab), claim.holding, &names);
    for (const std::string& name : names)
      for (const double value : {-1e18, -1.0, 0.0, 1e-7, 0.5, 2.0, 1e18, std::numeric_limits<double>::quiet_NaN()}) {
        if (!judged(claim, name, value).holds) {
          EXPECT_TRUE(limited[key(claim)].contains(name)) << key(claim) << " " << name << " = " << value;
        }
      }
  }
}

// Flags are 0 or 1, and the score is the learner's.
TEST(LabConclusions, NothingIsConcludedFromNan) {
  const auto may_be_nan = [](const Limit& limit) {
    const bool flag = std::min(limit.inside, limit.outside) == 0 && std::max(limit.inside, limit.outside) == 1;
    return !flag && std::string(limit.number) != "score";
  };
  for (const Claim& claim : kClaims)
    for (const Limit& limit : claim.limits)
      if (may_be_nan(limit)) {
        EXPECT_FALSE(judged(claim, limit.number, std::numeric_limits<double>::quiet_NaN()).holds)
            << claim.lab << " " << claim.conclusion << " " << limit.number;
      }
}

TEST(LabConclusions, EveryConclusionHasItsLimits) {
  std::set<std::string> listed, concluded;
  for (const Claim& claim : kClaims) listed.insert(std::string(claim.lab) + " " + claim.conclusion);
  for (const Lab& lab : all_labs())
    for (const Conclusion& one : judged(lab, {})) concluded.insert(lab.name + " " + one.name);
  EXPECT_EQ(listed, concluded);
}

}  // namespace
}  // namespace attend::labs
