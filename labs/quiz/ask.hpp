// How questions are put down: a line each, with answers that are computed where they can be.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "labs/quiz/quiz.hpp"

namespace attend::labs {

inline Question choose_in_order(std::string name, std::string lab, Text text, std::vector<Text> choices,
                                std::size_t right, Text why) {
  return {.name = std::move(name),
          .lab = std::move(lab),
          .text = std::move(text),
          .choices = std::move(choices),
          .right = right,
          .why = std::move(why)};
}

// The right choice is written where it reads best; it is put where its name says, so that no letter is a good guess.
// The last choice stays last: it is often "none" or "nothing".
inline Question choose(std::string name, std::string lab, Text text, std::vector<Text> choices, std::size_t right,
                       Text why) {
  const std::size_t movable = choices.size() - 1;
  if (right < movable) {
    std::uint32_t sum = 0;
    for (const char c : name) sum = sum * 33 + static_cast<unsigned char>(c);
    const std::size_t place = sum / 7 % movable;
    std::swap(choices[right], choices[place]);
    right = place;
  }
  return choose_in_order(std::move(name), std::move(lab), std::move(text), std::move(choices), right, std::move(why));
}

// Choices that are numbers; the right one is the one that was computed, and has to be among them.
inline Question choose_number(std::string name, std::string lab, Text text, const std::vector<double>& values,
                              double computed, Text why) {
  const auto found = std::find_if(values.begin(), values.end(), [&](double v) {
    return std::abs(v - computed) <= 1e-6 * std::max(1.0, std::abs(computed));
  });
  if (found == values.end()) throw std::logic_error(fmt::format("{}: computed {}, which is no choice", name, computed));
  std::vector<Text> choices;
  for (const double v : values) choices.push_back(v == std::floor(v) ? same("{:.0f}", v) : same("{:g}", v));
  Question q = choose_in_order(std::move(name), std::move(lab), std::move(text), std::move(choices),
                               static_cast<std::size_t>(found - values.begin()), std::move(why));
  q.computed = true;
  return q;
}

// Choices of which one is true by a computation: `truths` says for each whether it is; exactly one must be.
inline Question choose_true(std::string name, std::string lab, Text text, std::vector<Text> choices,
                            const std::vector<bool>& truths, Text why) {
  if (std::count(truths.begin(), truths.end(), true) != 1 || truths.size() != choices.size())
    throw std::logic_error(name + ": not exactly one choice came out true");
  const auto right = static_cast<std::size_t>(std::find(truths.begin(), truths.end(), true) - truths.begin());
  Question q =
      choose_in_order(std::move(name), std::move(lab), std::move(text), std::move(choices), right, std::move(why));
  q.computed = true;
  return q;
}

inline Question compute(std::string name, std::string lab, Text text, double answer, double tolerance, Text why) {
  return {.name = std::move(name),
          .kind = Question::Kind::number,
          .lab = std::move(lab),
          .text = std::move(text),
          .answer = answer,
          .tolerance = tolerance,
          .why = std::move(why),
          .computed = true};
}

inline Question compute_percent(std::string name, std::string lab, Text text, double answer, double tolerance,
                                Text why) {
  Question q = compute(std::move(name), std::move(lab), std::move(text), answer, tolerance, std::move(why));
  q.percent = true;
  return q;
}

// The same for what a run prints.
inline Question predict(std::string name, std::string lab, Text text, double printed, double tolerance, Text why) {
  Question q = compute(std::move(name), std::move(lab), std::move(text), printed, tolerance, std::move(why));
  q.kind = Question::Kind::predict;
  return q;
}

std::vector<Question> basic_questions();   // attention, softmax, scale, masks, order
std::vector<Question> layer_questions();   // heads, values, GQA, shapes, RoPE
std::vector<Question> system_questions();  // caches, Flash, cost, the family, models, history

}  // namespace attend::labs
