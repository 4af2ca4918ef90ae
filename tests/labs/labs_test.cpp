// Labs: each runs in both languages, and each of its conclusions gives way to numbers that contradict it.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "attend/error.hpp"
#include "draw/columns.hpp"
#include "io/json.hpp"
#include "labs/lab.hpp"
#include "labs/terminal.hpp"

namespace attend::labs {
namespace {

using Changes = std::map<std::string, double>;

struct Contradiction {
  const char* lab;
  const char* conclusion;
  Changes contradict;  // numbers under which it must not hold
  Changes agree = {};  // numbers under which it holds, where a quick run is too short to
};

const std::vector<Contradiction> kContradictions = {
    {"before-attention",
     "attention_helps",
     {{"none_3", 0.9}, {"additive_3", 0.9}, {"general_3", 0.8}},
     {{"none_3", 0.1}, {"additive_3", 0.9}}},
    {"before-attention",
     "one_vector_is_too_small",
     {{"none_words_1", 0.5}, {"none_words_3", 0.5}},
     {{"none_words_1", 0.8}, {"none_words_3", 0.5}}},
    {"before-attention",
     "alignment_is_found",
     {{"additive_aligned_near", 0.1}, {"general_aligned_near", 0.2}},
     {{"additive_aligned_near", 0.9}}},
    {"before-attention",
     "longer_than_trained_is_hard",
     {{"additive_4", 1}, {"additive_3", 0.5}, {"general_3", 0.5}},
     {{"additive_4", 0.1}, {"general_4", 0.1}, {"additive_3", 0.5}}},
    {"by-hand", "rows_sum_to_one", {{"row_sum_error", 0.1}}},
    {"by-hand", "engine_agrees", {{"engine_difference", 0.1}}},
    {"by-hand", "first_word_sees_itself", {{"first_row_difference", 0.1}}},
    {"by-hand", "output_is_a_mean", {{"outside_of_values", 0.1}}},
    {"by-hand", "sharp_scores_look_up", {{"lookup_error_64", 0.1}}},
    {"order", "equivariant", {{"none_equivariance", 0.1}}},
    {"order", "not_invariant", {{"none_invariance", 0}}},
    {"order", "mean_is_invariant", {{"none_pooled", 0.1}}},
    {"order", "causal_is_neither", {{"causal_equivariance", 0}}},
    {"order", "positions_break_it", {{"rope_equivariance", 0}}},
    {"scale", "deviation_is_root_d", {{"worst_deviation", 0.5}}},
    {"scale", "deviation_is_no_range", {{"farthest_512", 22.6}}},
    {"scale", "scaled_variance_is_one", {{"outside_512", 0}}},
    {"scale", "raw_softmax_saturates", {{"entropy_1024", 4}}},
    {"scale", "raw_gradient_vanishes", {{"gradient_1024", 2}}},
    {"scale",
     "training_likes_scaling",
     {{"loss_scaled", 2}, {"loss_unscaled", 1}},
     {{"loss_scaled", 1}, {"loss_unscaled", 2}}},
    {"softmax", "naive_overflows", {{"naive_nan", 0}}},
    {"softmax", "fills_agree_on_one", {{"one_hidden_difference", 0.1}}},
    {"softmax", "infinity_gives_nan", {{"all_hidden_nan", 0}}},
    {"softmax", "billion_gives_uniform", {{"billion_spread", 0.5}}},
    {"softmax", "engine_gives_zeros", {{"engine_masked_largest", 1}}},
    {"softmax", "billion_is_no_f16", {{"f16_of_billion", 0}}},
    {"softmax", "online_is_exact", {{"online_difference", 0.1}}},
    {"masks", "causal_leaks_nothing", {{"causal_leak", 0.1}}},
    {"masks", "inverted_sees_the_future", {{"inverted_leak", 0}}},
    {"masks", "inverted_last_row_is_uniform", {{"inverted_last_row_spread", 0.5}}},
    {"masks", "the_leak_is_learnt", {{"inverted_loss", 2.08}}, {{"inverted_loss", 0.1}}},
    {"masks", "honest_model_stays_blind", {{"causal_loss", 0.1}}, {{"causal_loss", 2.08}}},
    {"masks", "padding_is_invisible", {{"padded_batch_bits", 0}}},
    {"masks", "causal_hides_right_padding", {{"causal_alone_difference", 0.1}}},
    {"masks", "alignment_matters", {{"first_key_difference", 0}}},
    {"heads", "concat_is_a_sum", {{"concat_difference", 0.1}}},
    {"heads", "same_parameters", {{"parameters_1x512", 1}}},
    {"heads", "random_heads_see_all", {{"random_distance", 1}}},
    {"heads", "many_heads_win", {{"loss_many", 2}, {"loss_one", 1}}, {{"loss_many", 1}, {"loss_one", 2}}},
    {"heads", "heads_specialise", {{"best_near", 0.1}}, {{"best_near", 0.9}, {"best_far", 0.9}}},
    {"heads", "heads_are_not_alike", {{"most_harm", 0.1}, {"least_harm", 0.1}}, {{"most_harm", 1}, {"least_harm", 0}}},
    {"values", "parameters_by_formula", {{"factored_parameters", 7}}},
    {"values", "rank_is_bounded", {{"factored_rank", 1000}}},
    {"values", "same_layer", {{"merged_difference", 0.1}}},
    {"values", "what_is_lost", {{"lost_of_low_rank", 0.5}}},
    {"values", "gpt3_needs_it", {{"gpt3_down", 1}}},
    {"gqa", "parameters_by_formula", {{"qkv_formula", 1}}},
    {"gqa", "what_is_saved", {{"kv_grouped", 1}}},
    {"gqa", "cache_by_formula", {{"cache_formula", 1}}},
    {"gqa", "repeating_copies", {{"repeat_bytes", 1}}},
    {"gqa", "repeating_is_not_needed", {{"repeat_difference", 1}}},
    {"gqa", "all_three_learn", {{"loss_MQA", 3.5}}, {{"loss_MHA", 1}, {"loss_GQA", 1}, {"loss_MQA", 1}}},
    {"gqa", "sharing_costs_little", {{"loss_MQA", 3.5}, {"loss_MHA", 0.1}}, {{"loss_MQA", 0.2}, {"loss_MHA", 0.1}}},
    {"shapes", "split_copies_nothing", {{"split_is_view", 0}}},
    {"shapes", "transpose_is_not_contiguous", {{"transposed_contiguous", 1}}},
    {"shapes", "way_back_copies", {{"back_is_view", 1}}},
    {"shapes", "merging_needs_one_stride", {{"merge_is_view", 1}}},
    {"shapes", "engine_reads_strides", {{"strided_bits", 0}}},
    {"shapes", "repeat_kv_copies", {{"repeat_is_view", 1}}},
    {"rope", "distance_alone", {{"spread", 1}}},
    {"rope", "length_is_kept", {{"norm_change", 0.1}}},
    {"rope", "two_layouts_of_one_thing", {{"layouts_difference", 1}}},
    {"rope", "yarn_keeps_seen_angles", {{"new_after", 100}}},
    {"rope", "minimind_ramp", {{"minimind_low_64", 4}}},
    {"kv-cache", "step_equals_full", {{"steps_that_differ", 1}}},
    {"kv-cache", "bytes_by_formula", {{"cache_bytes", 1}}},
    {"kv-cache", "cache_is_faster", {{"time_ratio", 1}}, {{"time_ratio", 10}}},
    {"kv-cache", "next_token_is_not_constant", {{"growth", 1}}, {{"growth", 5}}},
    {"kv-cache", "window_forgets", {{"moved_with_window", 0.1}}},
    {"flash", "same_numbers", {{"difference", 0.1}}},
    {"flash", "matrix_is_quadratic", {{"naive_bytes", 0}}, {{"measured", 1}, {"naive_bytes", 1e9}}},
    {"flash", "flash_is_linear", {{"flash_bytes", 1e9}}, {{"measured", 1}, {"flash_bytes", 1e6}}},
    {"flash", "flash_is_faster", {{"time_ratio", 0.5}}, {{"time_ratio", 2}}},
    {"cost", "full_is_quadratic", {{"exponent_full", 1}}, {{"exponent_full", 2}}},
    {"cost", "window_is_linear", {{"exponent_window", 2}}, {{"exponent_window", 1}, {"exponent_linear", 1}}},
    {"cost", "rnn_is_linear_but_serial", {{"exponent_rnn", 2}}, {{"exponent_rnn", 1}}},
    {"cost", "attention_reaches_all", {{"attention_reach", 1}}},
    {"self-cross", "one_layer", {{"same_source_bits", 0}}},
    {"self-cross", "shapes_follow_sources", {{"columns", 1}}},
    {"self-cross", "each_query_on_its_own", {{"first_row_cross", 0.1}}},
    {"self-cross", "context_speaks", {{"context_moves", 0}}},
    {"family", "ring_is_exact", {{"ring_error", 0.1}}},
    {"family", "sparse_ones_miss_something", {{"window_error", 0}}},
    {"family", "compressed_ones_are_other_functions", {{"linear_error", 0}}},
    {"family", "mla_saves_cache", {{"mla_bytes", 1e6}}},
    {"gpt3", "embedding", {{"embedding", 1}}},
    {"gpt3", "each_of_four", {{"keys", 1}}},
    {"gpt3", "attention_in_all", {{"attention", 1}}},
    {"gpt3", "head_dim", {{"head_dim", 64}}},
    {"gpt3", "minimind3", {{"minimind3", 1}}},
    {"context", "one_embedding", {{"model_other_0", 0.5}}},
    {"context", "context_moves_it", {{"model_other_2", 0}}, {{"model_other_2", 0.5}, {"tower_other_2", 0.5}}},
    {"context",
     "by_meaning_not_by_words",
     {{"model_same_2", 1}, {"model_other_2", 1}},
     {{"model_same_2", 0.01}, {"model_other_2", 1}, {"tower_same_2", 0.01}, {"tower_other_2", 1}}},
    {"context", "some_heads_did_it", {{"most_moved", 1}, {"mean_moved", 1}}, {{"most_moved", 4}, {"mean_moved", 1}}},
    {"context", "the_model_knows_the_sense", {{"loss", 1.79}}, {{"loss", 1.1}}},
};

// A quick run of each lab, made once for all tests.
const Report& quick_report(const Lab& lab) {
  static std::map<std::string, Report> reports;
  const auto found = reports.find(lab.name);
  if (found != reports.end()) return found->second;
  return reports.emplace(lab.name, run_lab(lab, Arguments(lab.parameters, {}, true))).first->second;
}

const Conclusion& conclusion_of(const std::vector<Conclusion>& list, const std::string& name) {
  for (const Conclusion& one : list)
    if (one.name == name) return one;
  throw std::logic_error("no conclusion " + name);
}

Numbers changed(const Numbers& numbers, const Changes& changes) {
  Numbers copy = numbers;
  for (const auto& [name, value] : changes) {
    (void)numbers.at(name);  // a number that the lab measures
    copy.put(name, value);
  }
  return copy;
}

class EachLab : public ::testing::TestWithParam<std::string> {};

TEST_P(EachLab, RunsInBothLanguages) {
  const Lab& lab = lab_called(GetParam());
  const Report& report = quick_report(lab);
  EXPECT_FALSE(report.results.blocks.empty());
  EXPECT_FALSE(report.conclusions.empty());
  for (const draw::Screen& screen : {draw::Screen{draw::Colours::none, 80}, draw::Screen{draw::Colours::full, 120}}) {
    const std::string en =
        introduction(lab, report.arguments, Language::en, screen) + outcome(report, Language::en, screen);
    const std::string zh =
        introduction(lab, report.arguments, Language::zh, screen) + outcome(report, Language::zh, screen);
    EXPECT_NE(en.find("Conclusions"), std::string::npos);
    EXPECT_NE(zh.find("结论"), std::string::npos);
    for (const Conclusion& one : report.conclusions) {
      EXPECT_FALSE(one.text.en.empty());
      EXPECT_NE(one.text.en, one.text.zh) << one.name;
    }
  }
  const io::Json json = io::parse_json(to_json(report), lab.name);
  ASSERT_NE(json.find("conclusions"), nullptr);
  EXPECT_EQ(json.find("conclusions")->array()->size(), report.conclusions.size());
  EXPECT_NO_THROW(io::parse_json(to_json(lab), lab.name));
}

// What lessons say often holds the answer: the learner guesses before reading it.
TEST_P(EachLab, TheGuessComesBeforeWhatLessonsSay) {
  const Lab& lab = lab_called(GetParam());
  const Report& report = quick_report(lab);
  const draw::Screen screen{draw::Colours::none, 80};
  for (const Language language : {Language::en, Language::zh}) {
    const auto without_space = [](std::string text) {
      std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
      return text;
    };
    const std::string before = without_space(introduction(lab, report.arguments, language, screen)),
                      after = without_space(outcome(report, language, screen));
    EXPECT_NE(before.find(without_space(lab.guess.in(language))), std::string::npos);
    EXPECT_EQ(before.find(without_space(lab.lesson.in(language))), std::string::npos);
    EXPECT_NE(after.find(without_space(lab.lesson.in(language))), std::string::npos);
  }
}

// Sizes of seconds contradict nothing: what they cannot show is not decided. That is for labs that train longer than
// that, or that compare times.
TEST_P(EachLab, AQuickRunContradictsNothing) {
  const Lab& lab = lab_called(GetParam());
  const Report& report = quick_report(lab);
  const std::set<std::string> kOpen = {"before-attention", "kv-cache", "flash", "cost"};
  Report slow = report;
  for (const Conclusion& one : report.conclusions) {
    EXPECT_EQ(one.decided, one.holds) << one.name;
    if (!kOpen.contains(lab.name)) {
      EXPECT_TRUE(one.holds) << one.name << ": " << one.text.en;
    }
  }
  const draw::Screen screen{draw::Colours::none, 80};
  for (const Language language : {Language::en, Language::zh})
    EXPECT_EQ(outcome(report, language, screen).find("✗"), std::string::npos);
  for (Conclusion& one : slow.conclusions) one.holds = false, one.decided = true;
  EXPECT_NE(outcome(slow, Language::en, screen).find("✗ does not hold"), std::string::npos);
  for (Conclusion& one : slow.conclusions) one.decided = false;
  EXPECT_NE(outcome(slow, Language::en, screen).find("? not decided"), std::string::npos);
  EXPECT_NE(to_json(slow).find("\"decided\": false"), std::string::npos) << to_json(slow).substr(0, 200);
}

TEST(Labs, OnlyAQuickRunLeavesAConclusionOpen) {
  Lab lab = lab_called("by-hand");
  lab.judge = [](const Numbers&) { return std::vector<Conclusion>{conclude("never", false, same("yes"), same("no"))}; };
  for (const bool quick : {false, true})
    EXPECT_EQ(run_lab(lab, Arguments(lab.parameters, {}, quick)).conclusions.front().decided, !quick);
}

TEST_P(EachLab, EveryConclusionGivesWayToNumbersThatContradictIt) {
  const Lab& lab = lab_called(GetParam());
  const Report& report = quick_report(lab);
  for (const Conclusion& one : report.conclusions) {
    bool tried = false;
    for (const Contradiction& c : kContradictions) {
      if (lab.name != c.lab || one.name != c.conclusion) continue;
      tried = true;
      const Numbers agreeing = changed(report.results.numbers, c.agree);
      const Conclusion holds = conclusion_of(lab.judge(agreeing), one.name);
      const Conclusion fails = conclusion_of(lab.judge(changed(agreeing, c.contradict)), one.name);
      EXPECT_TRUE(holds.holds) << lab.name << " " << one.name << ": " << holds.text.en;
      EXPECT_FALSE(fails.holds) << lab.name << " " << one.name << ": " << fails.text.en;
      EXPECT_NE(holds.text.en, fails.text.en);
      EXPECT_NE(holds.text.zh, fails.text.zh);
    }
    EXPECT_TRUE(tried) << lab.name << " " << one.name << " has no numbers that contradict it";
  }
}

std::vector<std::string> names_of_labs() {
  std::vector<std::string> names;
  for (const Lab& lab : all_labs()) names.push_back(lab.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Labs, EachLab, ::testing::ValuesIn(names_of_labs()), [](const auto& lab) {
  std::string name = lab.param;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
});

// By hand: rows and columns of the scores of a word that comes twice are equal, "The" and "the" too.
TEST(Labs, AWordHasOneVectorWhereverItIs) {
  const Lab& lab = lab_called("by-hand");
  const Report report = run_lab(lab, Arguments(lab.parameters, {{"words", "The cat saw the dog"}}));
  const auto scores = std::find_if(report.results.blocks.begin(), report.results.blocks.end(), [](const Block& block) {
    const auto* map = std::get_if<MapFigure>(&block);
    return map != nullptr && map->name == "scores";
  });
  ASSERT_NE(scores, report.results.blocks.end());
  const Rows& values = std::get<MapFigure>(*scores).values;
  EXPECT_EQ(values[0], values[3]);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i][0], values[i][3]);
    EXPECT_NE(values[i][0], values[i][1]);
  }
}

TEST(Labs, ThereAreEighteenWithNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const Lab& lab : all_labs()) names.insert(lab.name);
  EXPECT_EQ(names.size(), all_labs().size());
  EXPECT_EQ(names.size(), 18U);
}

TEST(Labs, ArgumentsThatDoNotFitAreRefusedByName) {
  const Lab& lab = lab_called("rope");
  EXPECT_THROW(Arguments(lab.parameters, {{"dimm", "64"}}), InvalidArgument);
  for (const char* bad : {"", "x", "64x", "-1", "1000000000000000000000", "1.5"})
    EXPECT_THROW(Arguments(lab.parameters, {{"dim", bad}}), InvalidArgument) << bad;
  EXPECT_EQ(Arguments(lab.parameters, {{"dim", "32"}})["dim"], 32);
  EXPECT_THROW(lab_called("ropes"), InvalidArgument);
}

TEST(Labs, TextWrapsBetweenWordsAndBetweenChineseCharacters) {
  draw::use_utf8();
  EXPECT_EQ(wrapped("one two three", 8), "one two\nthree");
  EXPECT_EQ(wrapped("注意力机制。", 6), "注意力\n机制。");
  EXPECT_EQ(wrapped("a\nb", 10, 2), "  a\n  b");
  EXPECT_EQ(wrapped("注意力（5.16）", 8), "注意力\n（5.16）");  // no bracket is left open at the end of a line
}

TEST(Labs, NumbersOfMapsAreNeverCut) {
  MapFigure map;
  map.values = {{-0.0096, 0.5}, {-123456.0, 1}};
  map.digits = true;
  const std::string wide = to_terminal(map, Language::en, {draw::Colours::none, 80});
  EXPECT_NE(wide.find("-0.01"), std::string::npos) << wide;
  EXPECT_NE(wide.find("-1.2e+05"), std::string::npos) << wide;
  map.values = {{-0.0096, 0.002}};
  EXPECT_NE(to_terminal(map, Language::en, {draw::Colours::none, 80}).find("-9.6e-03"), std::string::npos);
}

TEST(Labs, NoDifferenceIsAPlainZero) {
  EXPECT_EQ(say("off by {:.0e}", "差 {:.0e}", 0.0), (Text{"off by 0", "差 0"}));
  EXPECT_EQ(same("{:.2e}", 1.30).en, "1.30e+00");
  EXPECT_EQ(say("{:.2e}", "是 {:.2e}", 1.30).en, "1.30e+00");
}

}  // namespace
}  // namespace attend::labs
