// Conversations: exchanges drawn from a seed around one story.
#include "llm/train/conversation.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>

#include "base/random.hpp"

namespace attend::llm {
namespace {

struct Exchange {
  Words said, answered;
};
constexpr Exchange kGreetings[] = {
    {{"Hello!", "你好！"}, {"Hello! Shall I tell you a story?", "你好！要我讲个故事吗？"}},
    {{"Hi", "嗨"}, {"Hi! Who should the story be about?", "嗨！你想听谁的故事？"}},
    {{"Good morning!", "早上好！"}, {"Good morning! Shall I tell you a story?", "早上好！要我讲个故事吗？"}},
    {{"How are you?", "你好吗？"}, {"I am happy. And you?", "我很高兴。你呢？"}},
    {{"Who are you?", "你是谁？"}, {"I am a small model that tells stories.", "我是一个会讲故事的小模型。"}},
    {{"What is your name?", "你叫什么名字？"},
     {"I am a small model that tells stories.", "我是一个会讲故事的小模型。"}},
    {{"What can you do?", "你会什么？"},
     {"I tell stories, answer questions about them, and count.", "我会讲故事，回答关于故事的问题，也会数数。"}},
    {{"Do you speak Chinese?", "你会说英语吗？"}, {"Yes! 你好！", "会！Hello!"}},
    {{"Can you help me?", "你能帮我吗？"},
     {"I can tell you a story or count with you.", "我可以给你讲故事，也可以和你一起数数。"}},
};
constexpr Exchange kGoodbyes[] = {
    {{"Thank you!", "谢谢！"}, {"You are welcome!", "不客气！"}},
    {{"That was nice.", "真好听。"}, {"Thank you! Do you want another story?", "谢谢！还想听一个吗？"}},
    {{"Goodbye!", "再见！"}, {"Goodbye! Come back for another story.", "再见！下次再来听故事吧。"}},
    {{"Good night!", "晚安！"}, {"Good night! Sleep well.", "晚安！做个好梦。"}},
};
// What lies outside of the stories' world has one answer.
constexpr Words kUnknown = {"I do not know. I only know my stories.", "我不知道。我只会讲故事。"};
constexpr Words kOutside[] = {
    {"What is the capital of France?", "法国的首都是哪里？"},
    {"Who is the president?", "总统是谁？"},
    {"What time is it?", "现在几点了？"},
    {"Write a program.", "写一个程序。"},
    {"What is the meaning of life?", "生命的意义是什么？"},
    {"How far is the moon?", "月亮有多远？"},
    {"Explain attention.", "什么是注意力？"},
    {"What is the weather today?", "今天天气怎么样？"},
    {"Who won the game?", "谁赢了比赛？"},
    {"What is a computer?", "电脑是什么？"},
};

class Talk {
 public:
  Talk(std::uint64_t seed, std::uint64_t number, Language language)
      : key_(seed ^ (number * 0xD1342543DE82EF95ULL) ^ 0x636861747461ULL), language_(language) {}

  std::vector<Turn> about(const Story& story, const Story& another);
  std::vector<Turn> exercises(bool easy);

 private:
  std::size_t choose(std::size_t count) {
    const auto index = static_cast<std::size_t>(uniform(key_, draws_++) * static_cast<double>(count));
    return std::min(index, count - 1);
  }
  bool one_in(std::size_t count) { return choose(count) == 0; }
  int number(int first, int last) {
    return first + static_cast<int>(choose(static_cast<std::size_t>(last - first) + 1));
  }
  template <class T>
  const T& pick(std::span<const T> from) {
    return from[choose(from.size())];
  }
  bool english() const { return language_ == Language::english; }
  std::string in(const Words& words) const { return std::string(words.in(language_)); }
  std::string stop() const { return english() ? "." : "。"; }
  // One of several ways to say it, {1}, {2}, ... being what is named.
  std::string say(std::initializer_list<Words> ways, std::initializer_list<std::string> named);

  void turn(std::string said, std::string answered);
  void exchange(std::span<const Exchange> from) {
    const Exchange& one = pick(from);
    turn(in(one.said), in(one.answered));
  }
  std::size_t end_of_sentences(std::string_view text, int count) const;
  void told_by_assistant(const Story& story);
  void told_by_user(const Story& story);
  void go_on(const Story& story);
  void ask(std::span<const Question> questions) {
    for (const Question& q : questions) turn(q.question, q.answer);
  }
  void something_small();
  void sum();
  void sum_in_words();
  void translate();
  void count();
  void repeat();
  void repeat_long();
  std::string fact_of(const Name& who, const Adjective& adjective, const Noun& thing) const;
  // The first question of an exercise comes behind what is told.
  void ask_of(std::string& told, std::string question, std::string answer) {
    if (!told.empty()) question = std::exchange(told, {}) + (english() ? " " : "") + question;
    turn(std::move(question), std::move(answer));
  }
  void facts(int most);
  void meetings(int most);
  void beginning();

  std::uint64_t key_, draws_ = 0;
  Language language_;
  std::vector<Turn> turns_;
};

std::string Talk::say(std::initializer_list<Words> ways, std::initializer_list<std::string> named) {
  std::string text = in(*(ways.begin() + choose(ways.size())));
  char number = '1';
  for (const std::string& one : named) {
    const std::string slot = {'{', number++, '}'};
    for (std::size_t at = text.find(slot); at != std::string::npos; at = text.find(slot, at + one.size()))
      text.replace(at, slot.size(), one);
  }
  return text;
}

// Users often write without capitals and stops.
void Talk::turn(std::string said, std::string answered) {
  if (english() && said.size() < 80 && one_in(4)) {
    for (char& c : said) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (said.ends_with('.') || said.ends_with('!') || said.ends_with('?')) said.pop_back();
  }
  turns_.push_back({std::move(said), std::move(answered)});
}

// Where the first `count` sentences end.
std::size_t Talk::end_of_sentences(std::string_view text, int count) const {
  const std::string stops = english() ? ". " : "。";
  std::size_t at = 0;
  for (; count > 0; --count) at = text.find(stops, at) + stops.size();
  return english() ? at - 1 : at;
}

void Talk::told_by_assistant(const Story& story) {
  if (one_in(4)) {
    turn(say({{"Tell me a story.", "讲个故事吧。"},
              {"Tell me another story.", "再讲一个故事。"},
              {"A story, please!", "我想听故事！"}},
             {}),
         story.text);
  } else if (one_in(2)) {
    turn(story.request, story.text);
  } else {
    turn(say({{"Tell me a story about {1}.", "给我讲一个关于{1}的故事。"},
              {"Can you tell me a story about {1}?", "你能讲一个{1}的故事吗？"},
              {"Tell me a story about {2}.", "讲一个关于{2}的故事。"},
              {"Please tell a story about {2} and {4}.", "讲一个{2}和{4}的故事。"},
              {"Tell me a story about {3}.", "讲一个{3}的故事。"},
              {"Tell me a story about {3} and {4}.", "给我讲{3}和{4}的故事。"},
              {"I want to hear a story about {4}.", "我想听{4}的故事。"}},
             {story.hero, story.hero_kind, story.hero_described, story.thing}),
         story.text);
  }
  ask(story.questions);
}

void Talk::told_by_user(const Story& story) {
  const Question& first = story.questions.front();
  turn(say({{"{1}\n{2}", "{1}\n{2}"}, {"Here is a story. {1} {2}", "听我讲一个故事。{1}{2}"}},
           {story.text, first.question}),
       first.answer);
  ask(std::span(story.questions).subspan(1));
}

// The user begins with one to four sentences.
void Talk::go_on(const Story& story) {
  const std::size_t end = end_of_sentences(story.text, number(1, 4));
  const std::string begun = story.text.substr(0, end), rest = story.text.substr(english() ? end + 1 : end);
  turn(say({{"Go on: {1}", "接着讲：{1}"}, {"Finish this story: {1}", "把这个故事讲完：{1}"}, {"{1}", "{1}"}}, {begun}),
       rest);
  ask(story.questions);
}

void Talk::sum() {
  const bool plus = one_in(2);
  const int n = number(plus ? 1 : 2, 20), k = plus ? number(1, 10) : number(1, std::min(n, 10)),
            m = plus ? n + k : n - k;
  const std::string sign = plus ? "+" : "-";
  const std::string word = english() ? (plus ? "plus" : "minus") : (plus ? "加" : "减");
  turn(say({{"What is {1} {3} {2}?", "{1} {3} {2} 等于几？"},
            {"{1} {3} {2} = ?", "{1} {3} {2} = ?"},
            {"How much is {1} {4} {2}?", "{1}{4}{2}等于多少？"}},
           {std::to_string(n), std::to_string(k), sign, word}),
       std::to_string(n) + " " + sign + " " + std::to_string(k) + " = " + std::to_string(m) + stop());
}

void Talk::sum_in_words() {
  const Noun& thing = pick(countables());
  const std::string who = in(pick(person_names()).name);
  const bool more = one_in(2);
  const int n = number(2, 10), k = more ? number(1, 9) : number(1, n - 1), m = more ? n + k : n - k;
  const auto counted = [&](int count) {
    return english() ? std::to_string(count) + " " + std::string(count == 1 ? thing.one.english : thing.plural)
                     : std::to_string(count) + std::string(thing.measure) + std::string(thing.one.chinese);
  };
  const std::string asked =
      english() ? "How many " + std::string(thing.plural) + " does " + who + " have now?"
                : "现在" + who + "有几" + std::string(thing.measure) + std::string(thing.one.chinese) + "？";
  const std::initializer_list<Words> gained = {{"{1} has {2} and finds {3} more. {4}", "{1}有{2}，又找到了{3}个。{4}"},
                                               {"{1} has {2} and gets {3} more. {4}", "{1}有{2}，又得到了{3}个。{4}"}};
  const std::initializer_list<Words> gone = {
      {"{1} has {2} and loses {3} of them. {4}", "{1}有{2}，弄丢了{3}个。{4}"},
      {"{1} has {2} and gives away {3} of them. {4}", "{1}有{2}，送出了{3}个。{4}"}};
  // One after the other: both draw, and compilers evaluate arguments in different orders.
  std::string answered = say({{"{1} has {2} now.", "现在{1}有{2}。"}}, {who, counted(m)});
  turn(say(more ? gained : gone, {who, counted(n), std::to_string(k), asked}), std::move(answered));
}

void Talk::translate() {
  const Words* word = nullptr;
  switch (choose(4)) {
    case 0:
      word = &pick(objects()).one;
      break;
    case 1:
      word = &pick(countables()).one;
      break;
    case 2:
      word = &pick(places()).name;
      break;
    default:
      word = &pick(animal_kinds());
      break;
  }
  const std::string en(word->english), zh(word->chinese);
  if (one_in(2))
    turn(
        say({{"What is {1} in Chinese?", "{1}用中文怎么说？"}, {"How do you say {1} in Chinese?", "{1}的中文是什么？"}},
            {en}),
        zh + stop());
  else
    turn(say({{"What is {1} in English?", "{1}用英语怎么说？"}, {"What does {1} mean?", "{1}的英语是什么？"}}, {zh}),
         en + stop());
}

void Talk::count() {
  const int first = number(1, 12), last = first + number(3, 7);
  std::string counted;
  for (int n = first; n <= last; ++n) {
    if (n > first) counted += english() ? ", " : "，";
    counted += std::to_string(n);
  }
  turn(say({{"Count from {1} to {2}.", "从{1}数到{2}。"}}, {std::to_string(first), std::to_string(last)}),
       counted + stop());
}

void Talk::repeat() {
  std::string said;
  const int length = number(2, 5);
  for (int i = 0; i < length; ++i) {
    if (i > 0 && english()) said += ' ';
    said += in(pick(syllables()));
  }
  turn(say({{"Say {1}.", "说{1}。"}, {"Repeat after me: {1}.", "跟我说：{1}。"}}, {said}), said + stop());
}

// Short exercises in looking back: what was said, who had what.
void Talk::repeat_long() {
  std::string said;
  const int length = number(3, 9);
  for (int i = 0; i < length; ++i) {
    if (i > 0 && english()) said += ' ';
    said += in(pick(syllables()));
  }
  if (one_in(2))
    return turn(say({{"Say {1}.", "说{1}。"}, {"Repeat after me: {1}.", "跟我说：{1}。"}}, {said}), said + stop());
  const std::string comma = english() ? ", " : "，";
  turn(say({{"Sing {1} three times.", "把{1}唱三遍。"}}, {said}), said + comma + said + comma + said + stop());
}

// "Nora had a soft flute."
std::string Talk::fact_of(const Name& who, const Adjective& adjective, const Noun& thing) const {
  if (!english())
    return in(who.name) + "有一" + std::string(thing.measure) + in(adjective.word) + in(thing.one) + stop();
  return in(who.name) + " had " + (adjective.word.english == "old" ? "an " : "a ") + in(adjective.word) + " " +
         in(thing.one) + stop();
}

void Talk::facts(int most) {
  struct Fact {
    const Name* who;
    const Adjective* adjective;
    const Noun* thing;
  };
  std::vector<Fact> known;
  std::string told;
  for (int left = number(1, most); left > 0;) {
    const Fact fact{&pick(person_names()), &pick(adjectives()), &pick(objects())};
    const bool taken = std::any_of(known.begin(), known.end(),
                                   [&](const Fact& f) { return f.who == fact.who || f.thing == fact.thing; });
    if (taken) continue;
    known.push_back(fact);
    --left;
    if (!told.empty() && english()) told += ' ';
    told += fact_of(*fact.who, *fact.adjective, *fact.thing);
  }
  // Whole sentences, which begin as what was told did: a small model finds its way back by the same words.
  for (int asked = number(2, 4); asked > 0; --asked) {
    const Fact& f = known[choose(known.size())];
    const std::string who = in(f.who->name), noun = in(f.thing->one), adjective = in(f.adjective->word);
    const std::string what = adjective + (english() ? " " : "") + noun;
    std::string question, answer;
    switch (choose(3)) {
      case 0:
        question = say({{"Who had the {1}?", "谁有{1}？"}}, {what});
        answer = say({{"The {1} was {2}'s.", "{1}是{2}的。"}}, {what, who});
        break;
      case 1:
        question = say({{"What did {1} have?", "{1}有什么？"}}, {who});
        answer = fact_of(*f.who, *f.adjective, *f.thing);
        break;
      default:
        question = f.adjective->colour ? say({{"What color was the {1}?", "{1}是什么颜色的？"}}, {noun})
                                       : say({{"How was the {1}?", "{1}是什么样的？"}}, {noun});
        answer = say({{"The {1} was {2}.", "{1}是{2}。"}}, {noun, adjective});
        break;
    }
    ask_of(told, std::move(question), std::move(answer));
  }
}

// Who met whom where, told as the stories tell it.
void Talk::meetings(int most) {
  struct Meeting {
    const Name *who, *whom;
    const Place* place;
  };
  std::vector<Meeting> known;
  std::string told;
  for (int left = number(1, most); left > 0;) {
    const Meeting one{&pick(person_names()), &pick(person_names()), &pick(places())};
    const auto shared = [&](const Meeting& m) {
      return m.who == one.who || m.who == one.whom || m.whom == one.who || m.whom == one.whom || m.place == one.place;
    };
    if (one.who == one.whom || std::any_of(known.begin(), known.end(), shared)) continue;
    known.push_back(one);
    --left;
    if (!told.empty() && english()) told += ' ';
    told += say({{"{1} went to the {3}. There {1} met {2}.", "{1}去了{3}。在那里，{1}遇见了{2}。"},
                 {"{1} walked to the {3}. There {1} met {2}.", "{1}走到{3}。在那里，{1}遇见了{2}。"}},
                {in(one.who->name), in(one.whom->name), in(one.place->name)});
  }
  for (int asked = number(1, 3); asked > 0; --asked) {
    const Meeting& m = known[choose(known.size())];
    std::string question, answer;
    if (one_in(3)) {
      question = say({{"Whom did {1} meet?", "{1}遇见了谁？"}}, {in(m.who->name)});
      answer = say({{"{1} met {2}.", "{1}遇见了{2}。"}}, {in(m.who->name), in(m.whom->name)});
    } else {
      const Question where = ask_where_they_met(*m.who, *m.whom, *m.place, language_);
      question = where.question, answer = where.answer;
    }
    ask_of(told, std::move(question), std::move(answer));
  }
}

// The first two sentences of a story, about whom and what was asked for.
void Talk::beginning() {
  const Story story = tell_story(key_, draws_++, language_);
  const std::string both = english() ? " and " : "和";
  const std::string about[] = {story.hero_kind, story.hero_described, story.hero_kind + both + story.thing,
                               story.hero_described + both + story.thing, story.hero + both + story.thing};
  turn(say({{"Begin a story about {1}.", "给{1}的故事开个头。"},
            {"How does a story about {1} begin?", "{1}的故事怎么开始？"}},
           {pick(std::span<const std::string>(about))}),
       story.text.substr(0, end_of_sentences(story.text, 2)));
}

std::vector<Turn> Talk::exercises(bool easy) {
  for (int left = number(2, 4); left > 0; --left) {
    switch (choose(7)) {
      case 0:
        repeat_long();
        break;
      case 1:
        one_in(2) ? sum() : sum_in_words();
        break;
      case 2:
        meetings(easy ? 2 : 3);
        break;
      case 3:
        beginning();
        break;
      default:
        facts(easy ? 2 : 4);
        break;
    }
  }
  return std::move(turns_);
}

void Talk::something_small() {
  constexpr void (Talk::* kSmall[])() = {&Talk::sum,       &Talk::sum,   &Talk::sum_in_words,
                                         &Talk::translate, &Talk::count, &Talk::repeat};
  const std::size_t which = choose(std::size(kSmall) + 2);
  if (which < std::size(kSmall)) return (this->*kSmall[which])();
  if (which == std::size(kSmall)) return exchange(kGreetings);
  turn(in(pick(std::span<const Words>(kOutside))), in(kUnknown));
}

std::vector<Turn> Talk::about(const Story& story, const Story& another) {
  if (one_in(3)) exchange(kGreetings);
  const std::size_t form = choose(10);
  if (form < 4) {
    told_by_assistant(story);
  } else if (form < 6) {
    told_by_user(story);
  } else if (form < 7) {
    go_on(story);
  } else {
    for (int left = number(2, 6); left > 0; --left) something_small();
  }
  if (one_in(4)) something_small();
  if (one_in(6)) told_by_assistant(another);
  if (one_in(4)) exchange(kGoodbyes);
  return std::move(turns_);
}

}  // namespace

std::vector<Turn> converse(std::uint64_t seed, std::uint64_t number, Language language, const Story& story) {
  return Talk(seed, number, language).about(story, tell_story(~seed, number, language));
}

std::vector<Turn> exercises(std::uint64_t seed, std::uint64_t number, Language language, bool easy) {
  return Talk(seed, number, language).exercises(easy);
}

}  // namespace attend::llm
