// The generated stories: the same everywhere, read by prepare, with relations that are true, and harder than counting.
#include "llm/train/corpus.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/sha256.hpp"
#include "llm/train/conversation.hpp"
#include "llm/train/ngram.hpp"
#include "llm/train/prepare.hpp"
#include "llm/train/story.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

std::string hash_of(const std::string& text) {
  return io::sha256(std::as_bytes(std::span(text))).substr(0, 16);
}

// Changing a story changes every model that was trained on them: it is to be done on purpose.
TEST(Corpus, IsTheSameOnEveryMachine) {
  EXPECT_EQ(hash_of(story_lines(200)), "516bce0033e31275");
  EXPECT_EQ(hash_of(story_lines(200, {.seed = 2})), "0358f87eee7db929");
  EXPECT_EQ(hash_of(story_lines(100, {.format = CorpusFormat::chat})), "7a2f8c4fb885209b");
  EXPECT_EQ(hash_of(story_lines(100, {.format = CorpusFormat::exercises})), "f9468badd741d960");
  EXPECT_EQ(hash_of(story_lines(100, {.format = CorpusFormat::easy})), "6e0212f68c71f60b");
  EXPECT_EQ(hash_of(story_lines(100, {.format = CorpusFormat::preference, .relations = true})), "44724a0de72af126");
}

TEST(Corpus, ALineDoesNotDependOnThoseBefore) {
  const CorpusOptions options{.seed = 9};
  const std::string seventh = corpus_line(options, 7);
  (void)corpus_line(options, 100);
  EXPECT_EQ(corpus_line(options, 7), seventh);
  EXPECT_NE(corpus_line({.seed = 10}, 7), seventh);
}

TEST(Corpus, LanguagesComeInTurn) {
  const auto chinese = [](const std::string& line) { return line.find("\xE3\x80\x82") != std::string::npos; };  // 。
  for (std::int64_t n = 0; n < 20; ++n) {
    EXPECT_EQ(chinese(corpus_line({}, n)), n % 2 == 1);
    EXPECT_FALSE(chinese(corpus_line({.chinese = false}, n)));
    EXPECT_TRUE(chinese(corpus_line({.english = false}, n)));
  }
}

TEST(Corpus, IsReadByPrepareInEveryFormat) {
  const TempFolder place;
  for (const auto& [format, kind] : {std::pair{CorpusFormat::text, DataKind::text},
                                     {CorpusFormat::chat, DataKind::chat},
                                     {CorpusFormat::preference, DataKind::preference}}) {
    write_text(place.path() / "a.jsonl", story_lines(40, {.format = format, .relations = true}));
    RecordReader reader({place.path() / "a.jsonl"}, false);
    std::int64_t n = 0;
    reader.read(
        [&](const Record& record) {
          EXPECT_EQ(record.kind, kind);
          const Language language = n % 2 == 0 ? Language::english : Language::chinese;
          const Story story = tell_story(1, static_cast<std::uint64_t>(n++), language);
          if (kind == DataKind::text) {
            EXPECT_EQ(record.text, with_questions(story, language));
            EXPECT_NEAR(record.nats, story.text_nats + story.question_nats, 1e-9);
            return;
          }
          ASSERT_EQ(record.chat.size() % 2, 0U);
          if (kind == DataKind::preference) {
            EXPECT_EQ(record.chat[0].content, story.request);
            EXPECT_EQ(record.chat[1].content, story.text);
            EXPECT_NE(record.chat.back().content, record.rejected.back().content);
            EXPECT_EQ(record.chat[2].content, record.rejected[2].content) << "the same question";
            return;
          }
          const std::vector<Turn> turns = converse(1, static_cast<std::uint64_t>(n - 1), language, story);
          ASSERT_EQ(record.chat.size(), 2 * turns.size());
          for (std::size_t t = 0; t < turns.size(); ++t) {
            EXPECT_EQ(record.chat[2 * t].content, turns[t].said);
            EXPECT_EQ(record.chat[2 * t + 1].content, turns[t].answered);
          }
        },
        {}, "");
    EXPECT_EQ(n, 40);
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// "kate met dan in the park.": whether it was told that Kate went there, and met Dan there.
bool told_where_they_met(const std::string& told, const std::vector<std::string>& answer) {
  const std::string there = answer[0] + "%to the " + answer.back() + " there " + answer[0] + " met " + answer[2] + ".";
  return std::ranges::any_of(std::array{" went ", " walked "}, [&](const char* verb) {
    return told.find(std::string(there).replace(there.find('%'), 1, verb)) != std::string::npos;
  });
}

// Of every answer in English that is about facts: what it says was told, in the sentence "Kate had a soft coat.".
TEST(Corpus, ExercisesAreAnsweredByWhatWasTold) {
  std::map<std::string, int> seen;
  for (std::uint64_t n = 0; n < 400; ++n) {
    std::string told;
    for (const Turn& turn : exercises(3, n, Language::english)) {
      const std::string said = lower(turn.said), answer = lower(turn.answered);
      if (said.find(" had a") != std::string::npos || said.find(" met ") != std::string::npos) told = said;
      const std::vector<std::string> words = words_of(answer);
      if (const std::size_t about = said.find(" a story about "); about != std::string::npos) {
        // "... a clever cat and a red ball.": that is whom and what it begins with.
        for (std::string word : words_of(said.substr(about + 15))) {
          while (word.ends_with('.') || word.ends_with('?')) word.pop_back();
          if (word == "and" || word == "begin" || word == "a" || word == "an") continue;
          EXPECT_NE(answer.find(word), std::string::npos) << said << " -> " << answer;
        }
        EXPECT_EQ(std::ranges::count(answer, '.'), 2) << answer;
        ++seen["begun"];
      } else if (words.size() > 2 && words[1] == "had") {
        EXPECT_NE(told.find(answer), std::string::npos) << told << " -> " << answer;
        ++seen["had"];
      } else if (words.size() == 3 && words[1] == "met") {
        EXPECT_NE(told.find("there " + answer), std::string::npos) << told << " -> " << answer;
        ++seen["whom"];
      } else if (words.size() == 6 && words[1] == "met") {
        EXPECT_TRUE(told_where_they_met(told, words)) << told << " -> " << answer;
        ++seen["where"];
      } else if (words.size() > 3 && words[0] == "the") {
        const std::string thing = words[words.size() - 3], last = words.back();  // the [soft] coat was kate's.
        const std::size_t end = told.find(" " + thing + ".");
        ASSERT_NE(end, std::string::npos) << told << " -> " << answer;
        const std::size_t before = told.rfind(". ", end), begin = before == std::string::npos ? 0 : before + 2;
        const std::vector<std::string> fact = words_of(told.substr(begin, end - begin));
        ASSERT_EQ(fact.size(), 4U) << told;  // kate had a soft
        EXPECT_TRUE(last == fact[0] + "'s." || last == fact[3] + ".") << told << " -> " << answer;
        ++seen[last.ends_with("'s.") ? "whose" : "how"];
      }
    }
  }
  for (const char* kind : {"had", "whose", "how", "whom", "where", "begun"}) EXPECT_GT(seen[kind], 50) << kind;
}

// In easy ones at most two things are told before a question.
TEST(Corpus, EasyExercisesTellLittle) {
  const auto most = [](bool easy) {
    std::size_t told = 0;
    for (std::uint64_t n = 0; n < 200; ++n)
      for (const Turn& turn : exercises(3, n, Language::english, easy)) {
        const std::vector<std::string> words = words_of(lower(turn.said));
        told = std::max(told,
                        static_cast<std::size_t>(std::ranges::count(words, "had") + std::ranges::count(words, "met")));
      }
    return told;
  };
  EXPECT_EQ(most(true), 3U);  // two, and "Who had the red ball?"
  EXPECT_EQ(most(false), 5U);
}

bool on_border(std::string_view text, std::int64_t at) {
  return at == std::ssize(text) || (static_cast<unsigned char>(text[static_cast<std::size_t>(at)]) & 0xC0) != 0x80;
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

TEST(Corpus, RelationsLieOnTheRightWords) {
  std::set<std::string> pronoun_words, names, adjective_words, nouns;
  for (const Language language : {Language::english, Language::chinese}) {
    for (const Gender gender : {Gender::she, Gender::he, Gender::it})
      for (const Words* words : {&pronouns(gender).subject, &pronouns(gender).object, &pronouns(gender).possessive})
        pronoun_words.insert(lower(words->in(language)));
    for (const auto& list : {person_names(), animal_names()})
      for (const Name& name : list) names.insert(lower(name.name.in(language)));
    for (const Adjective& adjective : adjectives()) adjective_words.insert(lower(adjective.word.in(language)));
    for (const Words& word : characters()) adjective_words.insert(lower(word.in(language)));
    for (const auto& list : {objects(), countables()})
      for (const Noun& noun : list) nouns.insert(lower(noun.one.in(language))), nouns.insert(lower(noun.plural));
  }
  std::set<RelationKind> kinds;
  for (const Language language : {Language::english, Language::chinese})
    for (std::uint64_t n = 0; n < 300; ++n) {
      const Story story = tell_story(5, n, language);
      std::int64_t before = 0;
      std::set<std::pair<std::int64_t, std::int64_t>> words;
      for (const Word& word : story.words) {
        EXPECT_LE(before, word.span.begin) << "not in the order of the text: " << story.text;
        before = word.span.end;
        words.emplace(word.span.begin, word.span.end);
      }
      before = 0;
      for (const Relation& r : story.relations) {
        kinds.insert(r.kind);
        EXPECT_TRUE(words.contains({r.from.begin, r.from.end}) && words.contains({r.to.begin, r.to.end}));
        EXPECT_LE(before, r.from.begin);
        before = r.from.begin;
        for (const Span& span : {r.from, r.to}) {
          ASSERT_LE(0, span.begin);
          ASSERT_LT(span.begin, span.end);
          ASSERT_LE(span.end, std::ssize(story.text));
          ASSERT_TRUE(on_border(story.text, span.begin) && on_border(story.text, span.end)) << story.text;
          if (language != Language::english) continue;
          const auto begin = static_cast<std::size_t>(span.begin), end = static_cast<std::size_t>(span.end);
          ASSERT_FALSE(begin > 0 && is_letter(story.text[begin - 1])) << "a piece of a word: " << story.text;
          ASSERT_FALSE(end < story.text.size() && is_letter(story.text[end])) << story.text;
        }
        const auto text = [&](const Span& span) {
          return lower(
              std::string_view(story.text)
                  .substr(static_cast<std::size_t>(span.begin), static_cast<std::size_t>(span.end - span.begin)));
        };
        const std::string from = text(r.from), to = text(r.to);
        switch (r.kind) {
          case RelationKind::adjective_noun:
            EXPECT_TRUE(adjective_words.contains(from)) << from;
            EXPECT_LT(r.from.begin, r.to.begin);
            break;
          case RelationKind::pronoun_antecedent:
            EXPECT_TRUE(pronoun_words.contains(from)) << from;
            EXPECT_TRUE(names.contains(to)) << to;
            EXPECT_LT(r.to.begin, r.from.begin);
            break;
          case RelationKind::verb_subject:
            EXPECT_TRUE(names.contains(to) || pronoun_words.contains(to)) << to;
            EXPECT_LE(r.to.end, r.from.begin);
            break;
          case RelationKind::repeat_first:
            EXPECT_EQ(from, to);
            EXPECT_TRUE(names.contains(to) || nouns.contains(to)) << to;
            EXPECT_LT(r.to.begin, r.from.begin);
            break;
        }
      }
    }
  EXPECT_EQ(kinds.size(), 4U);
}

// Answers are whole sentences, and in English what each of them says stands in the story; who has a thing at the end is
// somebody of the story.
TEST(Corpus, QuestionsAreAnsweredByTheStory) {
  std::map<std::string, int> seen;
  for (std::uint64_t n = 0; n < 400; ++n)
    for (const Language language : {Language::english, Language::chinese}) {
      const Story story = tell_story(6, n, language);
      EXPECT_FALSE(story.questions.empty());
      for (const Question& q : story.questions) {
        EXPECT_NE(q.answer, q.wrong);
        EXPECT_FALSE(q.question.empty() || q.answer.empty() || q.wrong.empty());
        if (language != Language::english) continue;
        std::vector<std::string> words = words_of(q.answer);
        words.back().pop_back();  // the full stop
        const auto told = [&](const std::string& what) {
          EXPECT_NE(story.text.find(what), std::string::npos) << story.text << "\n" << q.answer;
        };
        const std::string& last = words.back();
        if (q.question.starts_with("Where did ")) {
          told(" to the " + last + ". There ");
        } else if (q.question.starts_with("How did ")) {
          told(" was " + last + ".");
        } else if (q.question.starts_with("How many ")) {
          told("Now " + q.answer);
        } else if (q.question == "What was the secret word?") {
          told("a secret word: " + q.answer.substr(q.answer.find("was ") + 4));
        } else if (q.question.starts_with("What color ")) {
          told(last + " " + words[1]);
        } else {
          ASSERT_TRUE(q.question.starts_with("Who had the ")) << q.question;
          ASSERT_TRUE(last.ends_with("'s")) << q.answer;
          told(last.substr(0, last.size() - 2));
          told(words[1] + " " + words[2]);
        }
        ++seen[words_of(q.question)[0] + words_of(q.question)[1]];
      }
    }
  for (const char* kind : {"Wheredid", "Howdid", "Howmany", "Whatwas", "Whatcolor", "Whohad"})
    EXPECT_GT(seen[kind], 20) << kind;
}

// Every kind of exchange occurs, and what is answered is right.
TEST(Corpus, ConversationsAreWithinTheWorldOfTheStories) {
  int asked_for = 0, begun = 0, sums = 0, known = 0;
  for (std::uint64_t n = 0; n < 400; ++n)
    for (const Language language : {Language::english, Language::chinese}) {
      const Story story = tell_story(1, n, language);
      const std::vector<Turn> turns = converse(1, n, language, story);
      EXPECT_FALSE(turns.empty());
      for (const Turn& turn : turns) {
        ASSERT_FALSE(turn.said.empty() || turn.answered.empty());
        EXPECT_EQ(turn.said.find('{'), std::string::npos) << turn.said;
        asked_for += turn.answered == story.text ? 1 : 0;
        begun +=
            turn.answered.size() > 40 && turn.answered != story.text && story.text.ends_with(turn.answered) ? 1 : 0;
        int a = 0, b = 0, sum = 0;
        char sign = 0;
        if (std::sscanf(turn.answered.c_str(), "%d %c %d = %d", &a, &sign, &b, &sum) == 4) {
          EXPECT_EQ(sum, sign == '+' ? a + b : a - b) << turn.answered;
          ++sums;
        }
        for (const Question& q : story.questions) known += turn.said == q.question && turn.answered == q.answer ? 1 : 0;
      }
    }
  EXPECT_GT(asked_for, 200);
  EXPECT_GT(begun, 5);
  EXPECT_GT(sums, 50);
  EXPECT_GT(known, 300);
}

// A model must use the context: counting three tokens predicts better than counting one, and neither reaches what the
// stories hold.
TEST(Corpus, IsHarderThanCounting) {
  const TempFolder place;
  write_text(place.path() / "a.jsonl", story_lines(2000));
  PrepareOptions options;
  options.inputs = {place.path() / "a.jsonl"};
  options.out = place.path() / "data", options.training.vocabulary = 1024;
  const DataInfo info = prepare(options);
  EXPECT_EQ(info.documents, 2000);
  const Dataset data(options.out);
  const NgramLosses losses = ngram_losses(DocumentSplit(data, 0.1, 1), info.vocabulary, 2000000);
  const double entropy = info.nats / static_cast<double>(info.tokens);
  EXPECT_GT(entropy, 0.1);
  EXPECT_GT(losses.trigram, 1.3 * entropy);
  EXPECT_GT(losses.unigram, 1.3 * losses.trigram);
}

}  // namespace
}  // namespace attend::llm::test
