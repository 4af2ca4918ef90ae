// Stories: a small world of characters, things and places, events that change it, and sentences that tell of them.
#include "llm/train/story.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "base/random.hpp"

namespace attend::llm {
namespace {

// Sentences are written with slots, the same in both languages:
//   [a] [b]          a character as subject: its name, or a pronoun where that can mean nobody else
//   [a:name]         always the name          [a:obj] him, her, it, or the name     [a:kind] "little girl"
//   [x] [y]          "red ball"               [x:a] "a red ball" (一个红色的球)       [x:noun] "ball"
//   [p] [p:at] [p:to] a place                 [n] [k] [m] numbers                   [t:n] "apples", as many as n
//   [w]              a secret word or a song  [f] a feeling
//   <gave>           a verb, which belongs to the last subject
struct Character {
  const Name* name = nullptr;
  std::string kind_adjective, kind;
  std::optional<Span> first, last;  // where the name was said
};

struct Possession {
  const Adjective* adjective = nullptr;
  const Noun* noun = nullptr;
  Character* owner = nullptr;
  std::optional<Span> first;
};

struct Scene {  // what the slots mean
  Character *a = nullptr, *b = nullptr;
  Possession *x = nullptr, *y = nullptr;
  const Place* p = nullptr;
  const Noun* t = nullptr;
  int n = 0, k = 0, m = 0;
  std::string w;
  Words f{};
};

constexpr Words kHappy = {"happy", "高兴"};

class Teller {
 public:
  Teller(std::uint64_t seed, std::uint64_t number, Language language)
      : key_(seed ^ (number * 0x9E3779B97F4A7C15ULL) ^ (language == Language::chinese ? 0x5A5A5A5A5A5A5A5AULL : 0)),
        language_(language) {}

  Story tell();

 private:
  // ---- choices ----
  std::size_t choose(std::size_t count) {
    nats_ += std::log(static_cast<double>(count));
    const auto index = static_cast<std::size_t>(uniform(key_, draws_++) * static_cast<double>(count));
    return std::min(index, count - 1);
  }
  bool coin() { return choose(2) == 1; }
  template <class T>
  const T& pick(std::span<const T> from) {
    return from[choose(from.size())];
  }
  // One that `taken` does not hold.
  template <class T>
  const T& pick_other(std::span<const T> from, std::initializer_list<const T*> taken) {
    std::vector<const T*> left;
    for (const T& one : from)
      if (std::find(taken.begin(), taken.end(), &one) == taken.end()) left.push_back(&one);
    return *left[choose(left.size())];
  }

  // ---- sentences ----
  bool english() const { return language_ == Language::english; }
  std::string_view in(const Words& words) const { return words.in(language_); }
  std::int64_t here() const { return std::ssize(story_.text); }
  Span write(std::string_view text) {
    const std::int64_t begin = here();
    story_.text += text;
    return {begin, here()};
  }
  Span write(WordClass kind, std::string_view text) {
    const Span span = write(text);
    story_.words.push_back({kind, span});
    return span;
  }
  void relate(RelationKind kind, Span from, Span to) { story_.relations.push_back({kind, from, to}); }

  void say(std::initializer_list<Words> ways) { tell_sentence(in(*(ways.begin() + choose(ways.size())))); }
  void tell_sentence(std::string_view pattern);
  void fill(std::string_view slot);
  void fill_character(Character& who, std::string_view form);
  void fill_thing(Possession& thing, std::string_view form);
  bool clear(const Character& who) const;  // whether a pronoun can mean nobody else
  std::string article(std::string_view word) const;

  // ---- the story ----
  Character& new_character(bool animal);
  Possession& new_possession(Character& owner);
  Possession* of(const Character& owner);
  void open();
  void meet();
  void give();
  void lose();
  void trade();
  void admire();
  void count();
  void secret();
  void sing();
  void number_line();
  void cause();
  void close();
  void ask_some();
  void ask(Question question) { candidates_.push_back(std::move(question)); }

  std::string nonsense(std::size_t length);

  std::uint64_t key_, draws_ = 0;
  Language language_;
  double nats_ = 0;
  Story story_;
  Scene scene_;
  std::vector<Character> people_;  // never grows beyond what is reserved: others point to them
  std::vector<Possession> belongings_;
  std::vector<std::pair<Character*, int>> recent_;  // who was named, and in which sentence
  std::optional<Span> subject_;
  Character* last_subject_ = nullptr;
  int sentence_ = 0;
  const Place* meeting_ = nullptr;
  const Noun* counted_ = nullptr;
  std::string secret_word_, song_;
  std::vector<Question> candidates_;
};

// ---- sentences ----

void Teller::tell_sentence(std::string_view pattern) {
  ++sentence_;
  if (!story_.text.empty() && english()) write(" ");
  const std::int64_t start = here();
  for (std::size_t at = 0; at < pattern.size();) {
    const char open = pattern[at];
    if (open != '[' && open != '<') {
      const std::size_t end = std::min(pattern.find_first_of("[<", at), pattern.size());
      write(pattern.substr(at, end - at));
      at = end;
      continue;
    }
    const std::size_t end = pattern.find(open == '[' ? ']' : '>', at);
    const std::string_view inside = pattern.substr(at + 1, end - at - 1);
    if (open == '[') {
      fill(inside);
    } else {
      const Span verb = write(WordClass::verb, inside);
      if (subject_) relate(RelationKind::verb_subject, verb, *subject_);
    }
    at = end + 1;
  }
  char& first = story_.text[static_cast<std::size_t>(start)];
  if (english()) first = static_cast<char>(std::toupper(static_cast<unsigned char>(first)));
}

void Teller::fill(std::string_view slot) {
  const std::string_view form = slot.size() > 2 ? slot.substr(2) : "";
  switch (slot.front()) {
    case 'a':
      return fill_character(*scene_.a, form);
    case 'b':
      return fill_character(*scene_.b, form);
    case 'x':
      return fill_thing(*scene_.x, form);
    case 'y':
      return fill_thing(*scene_.y, form);
    case 'p':
      if (english() && form == "at") write(std::string(scene_.p->at) + " ");
      if (english() && form == "to") write("to ");
      if (english()) write("the ");
      write(in(scene_.p->name));
      return;
    case 'n':
      write(std::to_string(scene_.n));
      return;
    case 'k':
      write(std::to_string(scene_.k));
      return;
    case 'm':
      write(std::to_string(scene_.m));
      return;
    case 't': {
      const int number = form == "n" ? scene_.n : form == "k" ? scene_.k : scene_.m;
      write(english() ? (number == 1 ? scene_.t->one.english : scene_.t->plural)
                      : std::string(scene_.t->measure) + std::string(scene_.t->one.chinese));
      return;
    }
    case 'w':
      write(scene_.w);
      return;
    case 'f':
      write(in(scene_.f));
      return;
    default:
      return;
  }
}

bool Teller::clear(const Character& who) const {
  if (!who.last) return false;
  bool said = false;
  for (const auto& [other, when] : recent_) {
    if (when < sentence_ - 1) continue;
    if (other == &who) said = true;
    if (other != &who && other->name->gender == who.name->gender) return false;
  }
  return said;
}

void Teller::fill_character(Character& who, std::string_view form) {
  if (form == "kind") {
    if (english()) write(article(who.kind_adjective));
    const Span adjective = write(WordClass::adjective, who.kind_adjective);
    if (english()) write(" ");
    relate(RelationKind::adjective_noun, adjective, write(WordClass::noun, who.kind));
    return;
  }
  const bool object = form == "obj";
  // A subject goes on as a pronoun if it was the subject before; an object if it can mean nobody else.
  const bool pronoun = form != "name" && clear(who) && (object || last_subject_ == &who) && coin();
  Span span{};
  if (pronoun) {
    const Pronouns& words = pronouns(who.name->gender);
    span = write(WordClass::pronoun, in(object ? words.object : words.subject));
    relate(RelationKind::pronoun_antecedent, span, *who.last);
  } else {
    span = write(WordClass::name, in(who.name->name));
    if (who.first)
      relate(RelationKind::repeat_first, span, *who.first);
    else
      who.first = span;
    who.last = span;
  }
  recent_.emplace_back(&who, sentence_);
  if (!object) subject_ = span, last_subject_ = &who;
}

std::string Teller::article(std::string_view word) const {
  return std::string_view("aeiou").find(word.front()) == std::string_view::npos ? "a " : "an ";
}

void Teller::fill_thing(Possession& thing, std::string_view form) {
  if (form != "noun") {
    const std::string_view adjective = in(thing.adjective->word);
    if (form == "a") write(english() ? article(adjective) : "一" + std::string(thing.noun->measure));
    const Span before = write(WordClass::adjective, adjective);
    if (english()) write(" ");
    const std::int64_t begin = here();
    relate(RelationKind::adjective_noun, before, {begin, begin + std::ssize(in(thing.noun->one))});
  }
  const Span noun = write(WordClass::noun, in(thing.noun->one));
  if (thing.first)
    relate(RelationKind::repeat_first, noun, *thing.first);
  else
    thing.first = noun;
}

// ---- the story ----

Character& Teller::new_character(bool animal) {
  const auto taken = [&](const Name& name) {
    return std::any_of(people_.begin(), people_.end(), [&](const Character& c) { return c.name == &name; });
  };
  const std::span<const Name> names = animal ? animal_names() : person_names();
  const Name* name = nullptr;
  do {
    name = &pick(names);
  } while (taken(*name));
  Character who;
  who.name = name;
  who.kind_adjective = in(pick(characters()));
  who.kind = in(pick(animal ? animal_kinds() : person_kinds(name->gender)));
  return people_.emplace_back(std::move(who));
}

Possession& Teller::new_possession(Character& owner) {
  const Noun* before = belongings_.empty() ? nullptr : belongings_.front().noun;
  const Adjective* first = belongings_.empty() ? nullptr : belongings_.front().adjective;
  Possession thing;
  thing.adjective = &pick_other(adjectives(), {first});
  thing.noun = &pick_other(objects(), {before});
  thing.owner = &owner;
  return belongings_.emplace_back(thing);
}

Possession* Teller::of(const Character& owner) {
  for (Possession& thing : belongings_)
    if (thing.owner == &owner) return &thing;
  return nullptr;
}

void Teller::open() {
  scene_.a = &new_character(choose(4) == 0);
  say({{"Once upon a time, there was [a:kind] named [a:name].", "从前，有一个[a:kind]，名叫[a:name]。"},
       {"[a:name] was [a:kind].", "[a:name]是一个[a:kind]。"}});
  scene_.x = &new_possession(*scene_.a);
  say({{"[a] <had> [x:a].", "[a]<有>[x:a]。"}, {"[a] <loved> to play with [x:a].", "[a]最<喜欢>玩[x:a]。"}});
}

void Teller::meet() {
  scene_.b = &new_character(choose(3) == 0);
  scene_.p = meeting_ = &pick(places());
  say({{"One day, [a] <went> [p:to].", "一天，[a]<去了>[p]。"},
       {"One morning, [a] <walked> [p:to].", "一天早上，[a]<走到>[p]。"}});
  say({{"There [a] <met> [b:kind] named [b:name].", "在那里，[a]<遇见了>一个[b:kind]，名叫[b:name]。"}});
  scene_.y = &new_possession(*scene_.b);
  say({{"[b:name] <had> [y:a].", "[b:name]<有>[y:a]。"}});
  ask(ask_where_they_met(*scene_.a->name, *scene_.b->name, *scene_.p, language_));
}

void Teller::give() {
  Possession* thing = of(*scene_.a);
  if (thing == nullptr) return;
  scene_.x = thing;
  say({{"[a] <gave> the [x] to [b:obj].", "[a]把[x]<送给了>[b:obj]。"},
       {"[a] <wanted> to be kind and <gave> [b:obj] the [x].", "[a]很大方，把[x]<给了>[b:obj]。"}});
  thing->owner = scene_.b;
  say({{"\"Thank you, [a:name]!\" said [b:name].", "[b:name]说：“谢谢你，[a:name]！”"},
       {"[b:name] <was> happy.", "[b:name]很<高兴>。"}});
}

void Teller::lose() {
  Possession* thing = of(*scene_.a);
  if (thing == nullptr) return;
  scene_.x = thing;
  scene_.p = &pick(places());
  say({{"[a] <lost> the [x] [p:at].", "[a]在[p]<弄丢了>[x]。"}});
  say({{"[a] <was> sad.", "[a]很<难过>。"}});
  const std::string a(in(scene_.a->name->name));
  ask({english() ? "How did " + a + " feel without the " + std::string(in(thing->noun->one)) + "?"
                 : "没有了" + std::string(in(thing->noun->one)) + "，" + a + "觉得怎么样？",
       a + (english() ? " was sad." : "很难过。"), a + (english() ? " was happy." : "很高兴。")});
  if (coin()) {
    say({{"[b:name] <found> the [x] and <gave> it back.", "[b:name]<找到了>[x]，还给了[a:name]。"}});
    say({{"Now [a:name] <was> happy again.", "现在[a:name]又<高兴>了。"}});
  } else {
    say({{"[b:name] <found> the [x] and <kept> it.", "[b:name]<捡到了>[x]，留下了。"}});
    thing->owner = scene_.b;
  }
}

void Teller::trade() {
  Possession *mine = of(*scene_.a), *yours = of(*scene_.b);
  if (mine == nullptr || yours == nullptr) return;
  scene_.x = mine, scene_.y = yours;
  say({{"[a] <gave> [b:obj] the [x] for the [y].", "[a]用[x]和[b:name]<换了>[y]。"},
       {"\"Let us trade!\" said [b:name]. So [a:name] <took> the [y] and [b:name] <took> the [x].",
        "[b:name]说：“我们交换吧！”于是[a:name]<拿了>[y]，[b:name]<拿了>[x]。"}});
  std::swap(mine->owner, yours->owner);
}

void Teller::admire() {
  Possession* thing = of(*scene_.a);
  if (thing == nullptr) return;
  scene_.x = thing;
  say({{"\"I like your [x],\" said [b:name].", "[b:name]说：“我喜欢你的[x]。”"},
       {"\"What a nice [x:noun]!\" said [b:name].", "[b:name]说：“多好的[x:noun]啊！”"}});
}

void Teller::count() {
  if (counted_ != nullptr) return;
  scene_.t = counted_ = &pick(countables());
  Character& who = *scene_.a;
  scene_.n = static_cast<int>(choose(9)) + 2;
  say({{"[a] <had> [n] [t:n].", "[a]<有>[n][t:n]。"}, {"[a] <found> [n] [t:n].", "[a]<找到了>[n][t:n]。"}});
  if (coin()) {
    scene_.k = static_cast<int>(choose(9)) + 1;
    scene_.m = scene_.n + scene_.k;
    say({{"[b:name] <gave> [a:name] [k] more.", "[b:name]又<给了>[a:name][k]个。"},
         {"Then [a] <found> [k] more.", "后来[a]又<找到了>[k]个。"}});
  } else {
    scene_.k = static_cast<int>(choose(static_cast<std::size_t>(scene_.n - 1))) + 1;
    scene_.m = scene_.n - scene_.k;
    say({{"[a] <gave> [k] of them to [b:name].", "[a]把[k]个<给了>[b:name]。"},
         {"[a] <lost> [k] of them.", "[a]<弄丢了>[k]个。"}});
  }
  say({{"Now [a:name] <had> [m] [t:m].", "现在[a:name]<有>[m][t:m]。"}});
  const std::string name(in(who.name->name));
  const auto answer = [&](int number) {
    const Noun& noun = *scene_.t;
    if (!english())
      return name + "有" + std::to_string(number) + std::string(noun.measure) + std::string(noun.one.chinese) + "。";
    return name + " had " + std::to_string(number) + " " + std::string(number == 1 ? noun.one.english : noun.plural) +
           ".";
  };
  ask({english() ? "How many " + std::string(scene_.t->plural) + " did " + name + " have at the end?"
                 : "最后" + name + "有几" + std::string(scene_.t->measure) + std::string(in(scene_.t->one)) + "？",
       answer(scene_.m), answer(scene_.m + 1)});
}

std::string Teller::nonsense(std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) {
    if (i > 0 && english()) text += ' ';
    text += in(pick(syllables()));
  }
  return text;
}

void Teller::secret() {
  if (!secret_word_.empty()) return;
  scene_.w = secret_word_ = nonsense(3);
  say({{"[a] <told> [b:obj] a secret word: [w].", "[a]<告诉>[b:obj]一个暗号：[w]。"}});
  const std::string said = secret_word_;
  const std::string wrong = said.substr(0, said.size() / 2) + said.substr(0, said.size() / 2);
  scene_.w = said;
  if (coin()) say({{"[b:name] <said> it too: [w].", "[b:name]也<说>：[w]。"}});
  std::string other;
  for (std::size_t i = 0; i < 3; ++i)
    other += (i > 0 && english() ? " " : "") + std::string(in(syllables()[(i * 5 + said.size()) % syllables().size()]));
  const auto answer = [&](const std::string& word) {
    return english() ? "The secret word was " + word + "." : "暗号是" + word + "。";
  };
  ask({english() ? "What was the secret word?" : "暗号是什么？", answer(said), answer(other == said ? wrong : other)});
}

void Teller::sing() {
  if (!song_.empty()) return;
  song_ = nonsense(choose(3) + 2);
  const std::string comma = english() ? ", " : "，";
  scene_.w = song_ + comma + song_ + comma + song_;
  say({{"[a] <sang> a song: [w].", "[a]<唱起>歌来：[w]。"}});
}

void Teller::number_line() {
  const int first = static_cast<int>(choose(12)) + 1, count = static_cast<int>(choose(3)) + 4;
  const std::string comma = english() ? ", " : "，";
  scene_.w.clear();
  for (int i = 0; i < count; ++i) scene_.w += (i > 0 ? comma : "") + std::to_string(first + i);
  say({{"[a] <counted>: [w].", "[a]<数>着：[w]。"}});
}

void Teller::cause() {
  const Cause& one = pick(causes());
  tell_sentence(in(one.cause));
  tell_sentence(in(one.effect));
}

void Teller::close() {
  scene_.f = kHappy;
  say({{"At the end of the day, [a:name] and [b:name] went home.", "天黑了，[a:name]和[b:name]回家了。"},
       {"[a:name] and [b:name] were friends from then on.", "从此，[a:name]和[b:name]成了好朋友。"}});
}

void Teller::ask_some() {
  for (const Possession& thing : belongings_) {
    const std::string what =
        std::string(in(thing.adjective->word)) + (english() ? " " : "") + std::string(in(thing.noun->one));
    const Character& other = thing.owner == scene_.a ? *scene_.b : *scene_.a;
    const auto belongs = [&](const Character& who) {
      const std::string name(in(who.name->name));
      return english() ? "The " + what + " was " + name + "'s." : what + "是" + name + "的。";
    };
    ask({english() ? "Who had the " + what + " at the end?" : "最后谁有" + what + "？", belongs(*thing.owner),
         belongs(other)});
    if (!thing.adjective->colour) continue;
    const Adjective& not_it = adjectives()[(static_cast<std::size_t>(thing.adjective - adjectives().data()) + 1) % 8];
    const std::string noun(in(thing.noun->one));
    const auto coloured = [&](const Adjective& colour) {
      const std::string word(in(colour.word));
      return english() ? "The " + noun + " was " + word + "." : noun + "是" + word + "。";
    };
    ask({english() ? "What color was the " + noun + "?" : noun + "是什么颜色的？", coloured(*thing.adjective),
         coloured(not_it)});
  }
  const std::size_t count = choose(3) + 1;
  for (std::size_t i = 0; i < count && !candidates_.empty(); ++i) {
    const std::size_t which = choose(candidates_.size());
    story_.questions.push_back(std::move(candidates_[which]));
    candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(which));
  }
}

Story Teller::tell() {
  people_.reserve(2);
  belongings_.reserve(2);
  open();
  meet();
  constexpr void (Teller::* kEvents[])() = {&Teller::give,   &Teller::lose,        &Teller::trade,
                                            &Teller::admire, &Teller::count,       &Teller::secret,
                                            &Teller::sing,   &Teller::number_line, &Teller::cause};
  std::vector<void (Teller::*)()> left(std::begin(kEvents), std::end(kEvents));
  const std::size_t events = choose(4) + 2;
  for (std::size_t i = 0; i < events; ++i) {
    if (coin()) std::swap(scene_.a, scene_.b);
    const std::size_t which = choose(left.size());
    (this->*left[which])();
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(which));
  }
  close();
  story_.text_nats = std::exchange(nats_, 0.0);
  ask_some();
  story_.question_nats = nats_;
  std::sort(story_.relations.begin(), story_.relations.end(),
            [](const Relation& a, const Relation& b) { return a.from.begin < b.from.begin; });
  const Possession& first = belongings_.front();
  const std::string thing =
      std::string(in(first.adjective->word)) + (english() ? " " : "") + std::string(in(first.noun->one));
  const Character& hero = people_.front();
  story_.hero = in(hero.name->name);
  story_.hero_kind = english() ? article(hero.kind) + hero.kind : hero.kind;
  story_.hero_described = english() ? article(hero.kind_adjective) + hero.kind_adjective + " " + hero.kind
                                    : "一个" + hero.kind_adjective + hero.kind;
  story_.thing = english() ? article(thing) + thing : thing;
  story_.request = english() ? "Tell me a story about " + story_.hero + " and " + story_.thing + "."
                             : "给我讲一个关于" + story_.hero + "和" + story_.thing + "的故事。";
  return std::move(story_);
}

}  // namespace

const char* name_of(RelationKind kind) {
  switch (kind) {
    case RelationKind::adjective_noun:
      return "adjective_noun";
    case RelationKind::pronoun_antecedent:
      return "pronoun_antecedent";
    case RelationKind::verb_subject:
      return "verb_subject";
    case RelationKind::repeat_first:
      return "repeat_first";
  }
  return "";
}

Story tell_story(std::uint64_t seed, std::uint64_t number, Language language) {
  return Teller(seed, number, language).tell();
}

Question ask_where_they_met(const Name& who, const Name& whom, const Place& place, Language language) {
  const bool english = language == Language::english;
  const std::string a(who.name.in(language)), b(whom.name.in(language));
  const auto answer = [&](const Place& p) {
    const std::string where(p.name.in(language));
    return english ? a + " met " + b + " " + std::string(p.at) + " the " + where + "."
                   : a + "在" + where + "遇见了" + b + "。";
  };
  const Place& other = places()[(static_cast<std::size_t>(&place - places().data()) + 3) % places().size()];
  return {english ? "Where did " + a + " meet " + b + "?" : a + "在哪里遇见了" + b + "？", answer(place),
          answer(other)};
}

std::string with_questions(const Story& story, Language language) {
  std::string text = story.text;
  for (const Question& q : story.questions)
    text += language == Language::english ? "\nQ: " + q.question + "\nA: " + q.answer
                                          : "\n问：" + q.question + "\n答：" + q.answer;
  return text;
}

}  // namespace attend::llm
