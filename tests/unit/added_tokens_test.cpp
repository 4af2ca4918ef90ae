// Added tokens in a text, against a search that tries every token at every place.
#include "llm/text/added_tokens.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.hpp"
#include "llm/text/pattern_finder.hpp"
#include "llm/text/unicode.hpp"

namespace attend::llm {
namespace {

using Segments = std::vector<AddedTokens::Segment>;

// As Hugging Face's `find_matches`, without an automaton. room[place]: the most bytes of a special token there.
Segments tried(const std::vector<AddedToken>& tokens, const std::string& text, const std::vector<std::size_t>& room,
               bool parse_special) {
  Segments segments;
  std::size_t done = 0;
  const auto space = [&](std::size_t i) { return text[i] == ' ' || text[i] == '\n'; };
  const auto word = [&](std::size_t i) { return i < text.size() && is_word(static_cast<unsigned char>(text[i])); };
  for (std::size_t place = 0; place < text.size();) {
    const AddedToken* best = nullptr;
    for (const AddedToken& token : tokens) {
      const std::size_t bytes = token.content.size();
      if (text.compare(place, bytes, token.content) != 0 || (token.special && bytes > room[place])) continue;
      if (best == nullptr || bytes > best->content.size()) best = &token;
    }
    if (best == nullptr) {
      ++place;
      continue;
    }
    std::size_t begin = place, end = place + best->content.size();
    place = end;
    if (best->special && !parse_special) continue;
    if (best->single_word && ((begin > 0 && word(begin - 1)) || word(end))) continue;
    if (best->lstrip) {
      std::size_t first = begin;
      while (first > 0 && space(first - 1)) --first;
      begin = std::max(first, done);
    }
    while (best->rstrip && end < text.size() && space(end)) ++end;
    if (begin > done) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, best->id});
    done = end;
  }
  if (done < text.size() || text.empty()) segments.push_back({done, text.size(), -1});
  return segments;
}

std::string shown(const Segments& segments) {
  std::string text;
  for (const auto& s : segments)
    text += std::to_string(s.begin) + "-" + std::to_string(s.end) + ":" + std::to_string(s.token) + " ";
  return text;
}

// Draws of a seed, one after the other.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>(uniform(seed_, next_++) * static_cast<double>(bound));
  }
  bool chance(double p) { return uniform(seed_, next_++) < p; }
  std::string text(std::size_t most) {
    std::string text;
    for (std::size_t n = below(most + 1); n > 0; --n) text += "aab <>\n"[below(7)];
    return text;
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

TEST(AddedTokens, AreFoundAsByTryingEach) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Draws draws(seed);
    std::vector<AddedToken> tokens;
    AddedTokens added;
    for (std::size_t n = 1 + draws.below(6); n > 0; --n) {
      AddedToken token{.content = draws.text(4), .id = static_cast<std::int32_t>(tokens.size())};
      const auto same = [&](const AddedToken& other) { return other.content == token.content; };
      if (token.content.empty() || std::any_of(tokens.begin(), tokens.end(), same)) continue;
      token.special = draws.chance(0.5);
      token.single_word = draws.chance(0.2);
      token.lstrip = draws.chance(0.3);
      token.rstrip = draws.chance(0.3);
      tokens.push_back(token);
      added.add(token.content, token);
    }
    added.finish();
    for (int n = 0; n < 5; ++n) {
      const std::string text = draws.text(24);
      std::vector<std::size_t> everywhere(text.size(), text.size()), within(text.size(), 0);
      Segments found;
      for (const bool parse_special : {false, true}) {
        added.split(text, parse_special, found);
        ASSERT_EQ(shown(found), shown(tried(tokens, text, everywhere, parse_special))) << seed << " " << text;
      }
      std::vector<ByteRange> trusted;
      for (std::size_t begin = draws.below(8); begin < text.size(); begin += 1 + draws.below(8)) {
        const std::size_t end = std::min(text.size(), begin + 1 + draws.below(8));
        trusted.push_back({begin, end});
        for (std::size_t i = begin; i < end; ++i) within[i] = end - i;
        begin = end;
      }
      added.split(text, trusted, found);
      ASSERT_EQ(shown(found), shown(tried(tokens, text, within, true))) << seed << " " << text;
    }
  }
}

// "aaa...ab" looks like a token at every place of a text of "a"; each byte is still read a bounded number of times.
TEST(PatternFinder, TakesTwoStepsAByteAtMost) {
  PatternFinder finder;
  const std::string many(4090, 'a');
  finder.add(many + "b", 0, true);
  finder.add("b" + many, 1, false);
  for (int bytes = 1; bytes < 300; ++bytes)
    finder.add(std::string(static_cast<std::size_t>(bytes), 'c'), bytes + 1, true);
  finder.finish();
  std::vector<PatternFinder::Start> starts;
  std::string mixed;
  for (int n = 0; n < 300; ++n) mixed += std::string(4089, 'a') + "bc";
  for (const std::string& text : {std::string(1 << 20, 'a'), std::string(1 << 20, 'c'), mixed}) {
    EXPECT_LE(finder.starts(text, starts), 2 * text.size());
    for (const PatternFinder::Start& start : starts) {
      const Trie::Match longest = finder.longest(start, text.size());
      EXPECT_EQ(longest.bytes, text[start.place] != 'c'
                                   ? 4091U
                                   : std::min<std::size_t>(299, text[0] == 'c' ? text.size() - start.place : 1));
    }
  }
  finder.starts(std::string(1 << 10, 'c'), starts);
  EXPECT_EQ(starts.size(), std::size_t{1} << 10);
  EXPECT_EQ(finder.longest(starts.back(), 0).bytes, 0U);  // none of them is for text that is not trusted
  EXPECT_EQ(finder.longest(starts.back(), 17).bytes, 17U);
}

// A run of spaces in which each space is a token that takes all that follow: 300,000 of them, read once.
TEST(AddedTokens, ARunOfSpacesIsReadOnce) {
  AddedTokens added;
  added.add(" ", {.content = " ", .id = 7, .rstrip = true});
  added.finish();
  const std::string text = "a" + std::string(300'000, ' ') + "b";
  Segments found;
  added.split(text, true, found);
  ASSERT_EQ(found.size(), 300'002U);
  EXPECT_EQ(shown({found.front(), found[1], found[300'000], found.back()}),
            "0-1:-1 1-300001:7 300000-300001:7 300001-300002:-1 ");
}

}  // namespace
}  // namespace attend::llm
