// One story in the form asked for.
#include "llm/train/corpus.hpp"

#include <iterator>
#include <span>
#include <vector>

#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/train/story.hpp"

namespace attend::llm {
namespace {

std::string turn(const char* role, const std::string& content) {
  io::JsonObject json;
  json.string("role", role);
  json.string("content", content);
  return json.text();
}

// What else is said in a talk about stories.
struct Exchange {
  Words said, answered;
};
constexpr Exchange kBefore[] = {
    {{"Hello!", "你好！"}, {"Hello! Shall I tell you a story?", "你好！要我讲个故事吗？"}},
    {{"Who are you?", "你是谁？"}, {"I am a small model that tells stories.", "我是一个会讲故事的小模型。"}},
    {{"What can you do?", "你会什么？"},
     {"I tell stories and answer questions about them.", "我会讲故事，也会回答关于故事的问题。"}},
    {{"Hi", "嗨"}, {"Hi! Who should the story be about?", "嗨！你想听谁的故事？"}},
};
constexpr Exchange kAfter[] = {
    {{"Thank you!", "谢谢！"}, {"You are welcome!", "不客气！"}},
    {{"Goodbye!", "再见！"}, {"Goodbye! Come back for another story.", "再见！下次再来听故事吧。"}},
};

std::string list(std::span<const std::string> values) {
  std::string text = "[";
  text += io::joined(values, ", ");
  return text += "]";
}

std::string relations_text(const Story& story) {
  const auto span = [](const Span& s) {
    const std::string ends[] = {std::to_string(s.begin), std::to_string(s.end)};
    return list(ends);
  };
  std::vector<std::string> relations;
  for (const Relation& r : story.relations) {
    io::JsonObject json;
    json.string("kind", name_of(r.kind));
    json.put("from", span(r.from));
    json.put("to", span(r.to));
    relations.push_back(json.text());
  }
  return list(relations);
}

}  // namespace

std::string corpus_line(const CorpusOptions& o, std::int64_t number) {
  const Language language = o.english && (!o.chinese || number % 2 == 0) ? Language::english : Language::chinese;
  const Story story = tell_story(o.seed, static_cast<std::uint64_t>(number), language);
  // In a chat the story is asked for first, then questions about it; now and then with a word before and after.
  std::vector<std::string> told;
  const auto exchange = [&](const Exchange& e) {
    told.push_back(turn("user", std::string(e.said.in(language))));
    told.push_back(turn("assistant", std::string(e.answered.in(language))));
  };
  const auto nth = static_cast<std::size_t>(number) / 2;
  if (o.format == CorpusFormat::chat && nth % 4 == 0) exchange(kBefore[nth / 4 % std::size(kBefore)]);
  told.push_back(turn("user", story.request));
  told.push_back(turn("assistant", story.text));
  const auto asked = [&](const Question& q, const std::string& answer) {
    told.push_back(turn("user", q.question));
    told.push_back(turn("assistant", answer));
  };
  io::JsonObject json;
  if (o.format == CorpusFormat::text) {
    json.string("text", with_questions(story, language));
    json.number("nats", story.text_nats + story.question_nats);
  } else if (o.format == CorpusFormat::chat) {
    for (const Question& q : story.questions) asked(q, q.answer);
    if (nth % 6 == 1) exchange(kAfter[nth / 6 % std::size(kAfter)]);
    json.put("conversations", list(told));
  } else {
    const Question& q = story.questions[static_cast<std::size_t>(number) % story.questions.size()];
    asked(q, q.answer);
    json.put("chosen", list(told));
    told.back() = turn("assistant", q.wrong);
    json.put("rejected", list(told));
  }
  if (o.relations) json.put("relations", relations_text(story));
  return json.text();
}

}  // namespace attend::llm
