// One story in the form asked for.
#include "llm/train/corpus.hpp"

#include <span>
#include <vector>

#include "io/atomic_file.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/train/conversation.hpp"
#include "llm/train/story.hpp"

namespace attend::llm {
namespace {

std::string turn(const char* role, const std::string& content) {
  io::JsonObject json;
  json.string("role", role);
  json.string("content", content);
  return json.text();
}

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
  std::vector<std::string> told;
  const auto exchange = [&](const std::string& said, const std::string& answered) {
    told.push_back(turn("user", said));
    told.push_back(turn("assistant", answered));
  };
  io::JsonObject json;
  if (o.format == CorpusFormat::text) {
    json.string("text", with_questions(story, language));
    json.number("nats", story.text_nats + story.question_nats);
  } else if (o.format != CorpusFormat::preference) {
    const auto n = static_cast<std::uint64_t>(number);
    for (const Turn& t : o.format == CorpusFormat::chat
                             ? converse(o.seed, n, language, story)
                             : exercises(o.seed, n, language, o.format == CorpusFormat::easy))
      exchange(t.said, t.answered);
    json.put("conversations", list(told));
  } else {
    const Question& q = story.questions[static_cast<std::size_t>(number) % story.questions.size()];
    exchange(story.request, story.text);
    exchange(q.question, q.answer);
    json.put("chosen", list(told));
    told.back() = turn("assistant", q.wrong);
    json.put("rejected", list(told));
  }
  const bool with_story = o.format != CorpusFormat::exercises && o.format != CorpusFormat::easy;
  if (o.relations && with_story) json.put("relations", relations_text(story));
  return json.text();
}

std::int64_t write_corpus(const std::filesystem::path& path, const CorpusOptions& options, std::int64_t count,
                          const std::function<void(std::int64_t done)>& progress) {
  std::int64_t bytes = 0;
  io::stream_file_atomically(path, [&](const io::PutBytes& put) {
    for (std::int64_t n = 0; n < count; ++n) {
      if (progress) progress(n);
      const std::string line = corpus_line(options, n) + "\n";
      put(std::as_bytes(std::span(line)));
      bytes += std::ssize(line);
    }
  });
  return bytes;
}

CorpusOptions corpus_of(Stage stage) {
  if (stage == Stage::dpo) return {.seed = 3, .format = CorpusFormat::preference};
  const bool talks = stage == Stage::sft || stage == Stage::lora;
  return {.seed = talks ? 2U : 1U, .format = talks ? CorpusFormat::chat : CorpusFormat::text};
}

std::int64_t corpus_count(Stage stage) {
  return stage == Stage::dpo ? 4000 : stage == Stage::sft || stage == Stage::lora ? 20000 : 60000;
}

}  // namespace attend::llm
