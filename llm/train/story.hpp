// Short stories told from a seed, with their questions and what is true of their words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llm/train/story_words.hpp"

namespace attend::llm {

struct Span {
  std::int64_t begin, end;  // bytes of the text
};

enum class RelationKind {
  adjective_noun,      // from an adjective to the noun it belongs to
  pronoun_antecedent,  // from a pronoun to the last time the name was said
  verb_subject,        // from a verb to its subject
  repeat_first,        // from a name or a noun said again to the first time
};
const char* name_of(RelationKind kind);

struct Relation {
  RelationKind kind;
  Span from, to;
};

enum class WordClass { name, pronoun, adjective, noun, verb };
struct Word {
  WordClass kind;
  Span span;
};

// `wrong` is an answer of the same kind that the story does not give.
struct Question {
  std::string question, answer, wrong;
};

struct Story {
  std::string request;  // what one would ask to be told this story
  // Whom and what it is about: "Amy", "a princess", "a clever princess", "a tiny drum".
  std::string hero, hero_kind, hero_described, thing;
  std::string text;
  std::vector<Relation> relations;  // in the text, in rising order of `from`
  std::vector<Word> words;          // names, pronouns, verbs, things and their adjectives, in the order of the text
  std::vector<Question> questions;  // each is answered by the text
  // The information of text and questions, in nats: the sum of -ln p over all random choices. No model can do better on
  // average, since the answers and everything else follow from these.
  double text_nats = 0, question_nats = 0;
};

// Story `number` of a seed: the same on every machine, whatever was told before.
Story tell_story(std::uint64_t seed, std::uint64_t number, Language language);

Question ask_where_they_met(const Name& who, const Name& whom, const Place& place, Language language);

// The story followed by its questions and answers, as a text to train on.
std::string with_questions(const Story& story, Language language);

}  // namespace attend::llm
