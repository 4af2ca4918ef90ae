// Contrast stories: the same sentences with the roles of two persons and two things exchanged at random.
#include "llm/look/contrast_story.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.hpp"

namespace attend::llm {
namespace {

class ContrastTeller {
 public:
  ContrastTeller(std::uint64_t seed, std::uint64_t number, Language language)
      : key_(seed ^ (number * 0x9E3779B97F4A7C15ULL) ^ 0x3C3C3C3C3C3C3C3CULL), language_(language) {}

  Story tell() {
    choose_all();
    meet();
    pronoun_has(*persons_[choose(2)]);
    find(choose(2));
    pronoun_was_happy(*persons_[choose(2)]);
    describe(choose(2));
    const std::size_t giver = choose(2);
    give(giver, choose(2));
    return std::move(story_);
  }

 private:
  std::size_t choose(std::size_t count) {
    const auto index = static_cast<std::size_t>(uniform(key_, draws_++) * static_cast<double>(count));
    return std::min(index, count - 1);
  }
  template <class T>
  const T& pick(std::span<const T> from) {
    return from[choose(from.size())];
  }
  bool english() const { return language_ == Language::english; }
  std::string_view in(const Words& words) const { return words.in(language_); }

  void choose_all() {
    const std::span<const Name> names = person_names();
    do {
      persons_ = {&pick(names), &pick(names)};
    } while (persons_[0]->gender == persons_[1]->gender);
    do {
      things_ = {&pick(objects()), &pick(objects())};
    } while (things_[0] == things_[1]);
    place_ = &pick(places());
    adjective_ = &pick(adjectives());
  }

  // ---- words ----
  // English texts begin a sentence with a capital letter, and a space before it.
  Span write(std::string_view text) {
    const std::int64_t begin = std::ssize(story_.text);
    story_.text += text;
    if (english() && starts_) {
      char& first = story_.text[static_cast<std::size_t>(begin)];
      first = static_cast<char>(std::toupper(static_cast<unsigned char>(first)));
    }
    starts_ = false;
    return {begin, std::ssize(story_.text)};
  }
  void begin_sentence() {
    if (english() && !story_.text.empty()) write(" ");
    starts_ = true;
  }
  Span write(WordClass kind, std::string_view text) {
    const Span span = write(text);
    story_.words.push_back({kind, span});
    return span;
  }
  Span named(WordClass kind, std::string_view text) {
    const Span span = write(kind, text);
    const auto [first, is_new] = said_.try_emplace(std::string(text), span);
    if (!is_new) story_.relations.push_back({RelationKind::repeat_first, span, first->second});
    last_[std::string(text)] = span;
    return span;
  }
  Span name(const Name& who) { return named(WordClass::name, in(who.name)); }
  Span thing(std::size_t which) { return named(WordClass::noun, in(things_[which]->one)); }
  Span pronoun(const Name& who) {
    const Span span = write(WordClass::pronoun, in(pronouns(who.gender).subject));
    story_.relations.push_back({RelationKind::pronoun_antecedent, span, last_[std::string(in(who.name))]});
    return span;
  }
  void verb(Words words, Span subject) {
    story_.relations.push_back({RelationKind::verb_subject, write(WordClass::verb, in(words)), subject});
  }

  // ---- sentences ----
  // The first token is a sink, which no head is scored on: no name stands there.
  void meet() {
    begin_sentence();
    write(english() ? "one day, " : "一天，");
    const Span who = name(*persons_[0]);
    if (english()) {
      write(" ");
      verb({"met", ""}, who);
      write(" ");
      name(*persons_[1]);
      write(" ");
      write(place_->at);
      write(" the ");
      write(in(place_->name));
      write(".");
    } else {
      write("在");
      write(in(place_->name));
      verb({"", "遇见了"}, who);
      name(*persons_[1]);
      write("。");
    }
  }

  void pronoun_has(const Name& who) {
    begin_sentence();
    const Span subject = pronoun(who);
    write(english() ? " " : "");
    verb({"had", "有"}, subject);
    const bool vowel = std::string_view("aeiou").find(in(things_[0]->one).front()) != std::string_view::npos;
    write(!english() ? "一" : vowel ? " an " : " a ");
    if (!english()) write(things_[0]->measure);
    thing(0);
    write(english() ? "." : "。");
  }

  // The subject is named first, and last.
  void find(std::size_t subject) {
    const Name &who = *persons_[subject], &other = *persons_[1 - subject];
    const bool first = choose(2) == 0;
    begin_sentence();
    Span at{};
    if (english() && first) {
      at = name(who);
      write(", who knew ");
      name(other);
      write(", ");
    } else if (english()) {
      write("next to ");
      name(other);
      write(", ");
      at = name(who);
      write(" ");
    } else if (first) {
      at = name(who);
      write("在");
      name(other);
      write("旁边");
    } else {
      write("认识");
      name(other);
      write("的");
      at = name(who);
    }
    verb({"saw", "看见了"}, at);
    write(english() ? " the " : "");
    thing(0);
    write(english() ? "." : "。");
  }

  void pronoun_was_happy(const Name& who) {
    begin_sentence();
    const Span subject = pronoun(who);
    write(english() ? " " : "很");
    verb({"was", "高兴"}, subject);
    write(english() ? " happy." : "。");
  }

  // The thing that the adjective belongs to is named first, and last.
  void describe(std::size_t which) {
    const bool first = choose(2) == 0;
    begin_sentence();
    Span at{};
    if (english()) {
      write(first ? "the " : "near the ");
      if (first) at = thing(which);
      if (first) write(" near the ");
      thing(1 - which);
      if (!first) write(", the ");
      if (!first) at = thing(which);
      write(" was ");
    } else {
      if (first) at = thing(which);
      if (first) write("在");
      thing(1 - which);
      write(first ? "旁边，是" : "旁边的");
      if (!first) at = thing(which);
      if (!first) write("是");
    }
    const Span adjective = write(WordClass::adjective, in(adjective_->word));
    story_.relations.push_back({RelationKind::adjective_noun, adjective, at});
    write(english() ? "." : "。");
  }

  void give(std::size_t subject, std::size_t meant) {
    begin_sentence();
    const Span who = name(*persons_[subject]);
    write(english() ? " " : "把");
    if (!english()) thing(0);
    verb({"gave", "给了"}, who);
    write(english() ? " " : "");
    name(*persons_[1 - subject]);
    if (english()) write(" the ");
    if (english()) thing(0);
    write(english() ? ", and " : "，");
    const Span smiling = pronoun(*persons_[meant]);
    write(english() ? " " : "");
    verb({"smiled", "笑了"}, smiling);
    write(english() ? "." : "。");
  }

  std::uint64_t key_, draws_ = 0;
  Language language_;
  bool starts_ = false;
  Story story_;
  std::array<const Name*, 2> persons_{};
  std::array<const Noun*, 2> things_{};
  const Place* place_ = nullptr;
  const Adjective* adjective_ = nullptr;
  std::map<std::string, Span> said_, last_;  // first and last mention of a name or thing
};

}  // namespace

Story tell_contrast_story(std::uint64_t seed, std::uint64_t number, Language language) {
  return ContrastTeller(seed, number, language).tell();
}

}  // namespace attend::llm
