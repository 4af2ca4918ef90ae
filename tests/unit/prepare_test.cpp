// Texts into documents: every form that is read, what is learnt of a chat, and lines that cannot be read.
#include "llm/train/prepare.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <string>
#include <vector>

#include "base/utf8.hpp"
#include "training_files.hpp"

namespace attend::llm::test {
namespace {

class Prepare : public testing::Test {
 protected:
  fs::path path(const std::string& name) const { return place_.path() / name; }
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories(path(name).parent_path());
    write_text(path(name), text);
    return path(name);
  }
  std::vector<Record> read(const std::vector<fs::path>& inputs, bool skip_broken = false) {
    std::vector<Record> records;
    RecordReader reader(inputs, skip_broken);
    reader.read([&](const Record& record) { records.push_back(record); }, {}, "");
    skipped_ = reader.skipped();
    return records;
  }
  std::vector<std::string> texts(const std::vector<fs::path>& inputs, bool skip_broken = false) {
    std::vector<std::string> all;
    for (const Record& record : read(inputs, skip_broken)) all.push_back(record.text);
    return all;
  }
  std::string refusal(const std::string& line) {
    const fs::path file = write("bad.jsonl", "{\"text\": \"fine\"}\n\n" + line + "\n");
    return refusal_of([&] { (void)read({file}); });
  }
  DataInfo prepare_lines(const std::string& lines, bool skip_broken = false) {
    PrepareOptions options;
    options.inputs = {write("in.jsonl", lines)};
    options.out = path("data"), options.replace = true, options.skip_broken = skip_broken;
    options.training.vocabulary = 300;
    return prepare(options);
  }

  std::int64_t skipped_ = 0;

 private:
  TempFolder place_;
};
using Texts = std::vector<std::string>;

TEST_F(Prepare, ReadsPlainText) {
  EXPECT_EQ(texts({write("a.txt", "one\ntwo\n")}), Texts{"one\ntwo"});
  EXPECT_EQ(texts({write("a.txt", "one")}), Texts{"one"});
  EXPECT_EQ(texts({write("a.txt", "")}), Texts{});
  EXPECT_EQ(texts({write("a.txt", "\n\r\n")}), Texts{});
}

TEST_F(Prepare, CutsTextAtSeparatorsThatStandAlone) {
  EXPECT_EQ(texts({write("a.txt", "one\n<|endoftext|>\ntwo\r\n<|endoftext|>\r\nthree")}),
            (Texts{"one", "two", "three"}));
  EXPECT_EQ(texts({write("a.txt", "<|endoftext|>\n\n<|endoftext|>\nx\n<|endoftext|>")}), Texts{"x"});
  EXPECT_EQ(texts({write("a.txt", "a <|endoftext|>\nb\n<|endoftext|> c\n")}),
            Texts{"a <|endoftext|>\nb\n<|endoftext|> c"});
}

TEST_F(Prepare, DropsTheByteOrderMarkAndReadsCrlfAsLf) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_EQ(texts({write("a.txt", mark + "one\r\n\r\ntwo\r\n")}), Texts{"one\n\ntwo"});
  EXPECT_EQ(texts({write("a.txt", mark)}), Texts{});
  EXPECT_EQ(texts({write("a.txt", mark + "<|endoftext|>\r\none")}), Texts{"one"});
  EXPECT_EQ(texts({write("a.jsonl", mark + "{\"text\": \"one\\r\\n\"}\r\n{\"text\": \"two\"}\r\n")}),
            (Texts{"one\r\n", "two"}))
      << "what JSON escapes is kept";
}

TEST_F(Prepare, RefusesTextThatIsNotUtf8) {
  const std::string gb = "one\ntwo\n\xC4\xE3\xBA\xC3\n", utf16("o\0n\0e\0\n\0", 8), marked = "\xFF\xFE" + utf16;
  for (const std::string name : {"bad.txt", "bad.md"}) {
    const auto said = [&](const std::string& text) { return refusal_of([&] { (void)read({write(name, text)}); }); };
    expect_in(said(gb), name + ":3: byte 8 is 0xc4, expected text in UTF-8; it looks like GB18030; convert it: iconv");
    expect_in(said(utf16), name + ":1: byte 1 is 0x00, expected text in UTF-8; it looks like UTF-16LE");
    expect_in(said(marked), name + ":1: byte 0 is 0xff, expected text in UTF-8; it looks like UTF-16LE");
  }
  for (const std::string& text : {utf16, marked})
    expect_in(refusal_of([&] { (void)read({write("bad.jsonl", text)}); }), "it looks like UTF-16LE; convert it: iconv");
  expect_in(refusal("{\"text\": \"caf\xE9\"}"), "bad.jsonl:3: byte 31 is 0xe9, expected text in UTF-8");
  // Nothing is left of data whose last file is bad.
  PrepareOptions options;
  options.inputs = {write("good.txt", "a good text"), write("bad.txt", "a bad \xFF text")};
  options.out = path("data"), options.training.vocabulary = 300;
  expect_in(refusal_of([&] { prepare(options); }), "bad.txt:1: byte 6 is 0xff");
  EXPECT_FALSE(fs::exists(path("data")));
  // Lines may be left out, as others that are broken.
  EXPECT_EQ(texts({write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xFF\"}\n{\"text\": \"b\"}\n")}, true),
            (Texts{"a", "b"}));
  EXPECT_EQ(skipped_, 1);
}

TEST_F(Prepare, ReadsRegularFilesOnly) {
  ASSERT_EQ(::mkfifo(path("pipe.txt").c_str(), 0600), 0);
  expect_in(refusal_of([&] { (void)read({path("pipe.txt")}); }), "pipe.txt: is not a regular file");
  expect_in(refusal_of([&] { (void)read({"/dev/zero"}); }), "/dev/zero: is not a regular file");
}

TEST_F(Prepare, CutsALongTextAtALineAndLosesNothing) {
  std::string text;
  for (int n = 0; text.size() < (3U << 20); ++n) text += "line " + std::to_string(n) + "\n";
  const Texts parts = texts({write("a.txt", text)});
  EXPECT_EQ(parts.size(), 3U);
  std::string joined;
  for (const std::string& part : parts) joined += part + "\n";
  EXPECT_EQ(joined, text);
}

TEST_F(Prepare, ReadsAFolderInTheOrderOfItsNames) {
  write("in/b.txt", "second"), write("in/a.md", "first"), write("in/c/d.jsonl", "{\"text\": \"third\"}\n");
  write("in/other.bin", "not read"), write("in/e.json", "{\"text\": \"fourth\"}");
  EXPECT_EQ(texts({path("in")}), (Texts{"first", "second", "third", "fourth"}));
  EXPECT_EQ(texts({path("in/b.txt"), path("in/a.md")}), (Texts{"second", "first"}));
  fs::create_directory(path("empty"));
  expect_in(refusal_of([&] { (void)read({path("empty")}); }), "holds no file that is read: .txt, .md, .json");
  expect_in(refusal_of([&] { (void)read({path("missing")}); }), "there is no such file or folder");
}

TEST_F(Prepare, ReadsEveryKindOfLine) {
  const std::vector<Record> records = read({write("a.jsonl", R"({"text": "a\nb", "nats": 1.5, "other": [1]}

{"conversations": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}
  {"messages": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}
{"chosen": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "good"}], "rejected": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "bad"}]})")});
  ASSERT_EQ(records.size(), 4U);
  EXPECT_EQ(records[0].text, "a\nb");
  EXPECT_EQ(records[0].nats, 1.5);
  EXPECT_EQ(records[0].place, path("a.jsonl").string() + ":1");
  EXPECT_EQ(records[1].kind, DataKind::chat);
  EXPECT_EQ(records[1].place, path("a.jsonl").string() + ":3");
  for (const std::size_t n : {1U, 2U}) {
    ASSERT_EQ(records[n].chat.size(), 2U);
    EXPECT_EQ(records[n].chat[0].role, "user");
    EXPECT_EQ(records[n].chat[1].role, "assistant");
    EXPECT_EQ(records[n].chat[1].content, "a");
  }
  EXPECT_EQ(records[3].kind, DataKind::preference);
  EXPECT_EQ(records[3].chat[1].content, "good");
  EXPECT_EQ(records[3].rejected[1].content, "bad");
}

TEST_F(Prepare, NamesFileAndLineOfWhatIsBroken) {
  const std::string place = path("bad.jsonl").string() + ":3: ";
  for (const auto& [line, said] : {
           std::pair{R"({"text": "cut)", ""},
           {R"([1, 2])", "expected an object"},
           {R"({"text": 5})", "\"text\" is a whole number, expected a string"},
           {R"({"text": ""})", "\"text\" is empty"},
           {R"({"words": "x"})", "has the fields \"words\", expected one of: \"chosen\" with \"rejected\"; "},
           {R"({"conversations": 5})", "\"conversations\" is a whole number, expected a list"},
           {R"({"conversations": []})", "is empty, expected messages"},
           {R"({"conversations": [5]})", "expected an object"},
           {R"({"conversations": [{"content": "x"}]})", "\"role\" is missing"},
           {R"({"conversations": [{"role": "user"}]})", "\"content\" is missing"},
           {R"({"conversations": [{"role": "user", "content": "x"}]})", "has no message of the assistant"},
           {R"({"conversations": [{"role": "assistant", "content": "x"}]})", "begins with the assistant"},
           {R"({"chosen": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]})",
            "\"rejected\" is missing"},
           {R"({"rejected": [{"role": "assistant", "content": "x"}]})", "\"chosen\" is missing"},
           {R"({"text": "a", "nats": -1})", "\"nats\" is"},
       }) {
    const std::string got = refusal(line);
    expect_in(got, place);
    expect_in(got, said);
  }
}

TEST_F(Prepare, RefusesHostileLinesWithTheirPlace) {
  const auto deep = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  const std::string place = path("bad.jsonl").string() + ":3: ";
  for (const std::string& line : std::vector<std::string>{
           "{\"text\": " + deep(100) + "}", deep(1000000), std::string(1000000, '['), std::string(500000, '{'),
           std::string("{\"text\": \"a\0b\"}", 15), std::string(10, '\0'), std::string("{\"text\": \"\xFF\xFE\"}"),
           std::string("{\"text\": \"\xED\xA0\x80\"}"), "{\"text\": \"" + std::string(20U << 20, 'x') + "\"}",
           std::string(20U << 20, 'x'), "{\"text\": \"\\ud800\"}", "{\"text\": \"\\udc00x\"}", "\xEF\xBB\xBF{}",
           "{\"text\": \"a\"} {\"text\": \"b\"}", "{\"text\": 1e999}"}) {
    const std::string got = refusal(line);
    expect_in(got, place);
    EXPECT_LT(got.size(), 2000U);
  }
  // Deep, but beside the text: it is read by the same rules.
  expect_in(refusal("{\"text\": \"a\", \"x\": " + deep(1000) + "}"), place);
}

TEST_F(Prepare, SkipsBrokenLinesOnlyIfAsked) {
  const fs::path file = write("a.jsonl", "{\"text\": \"a\"}\nbroken\n\n{\"text\": 5}\n{\"text\": \"b\"}\n[\n");
  expect_in(refusal_of([&] { (void)read({file}); }), "a.jsonl:2: ");
  EXPECT_EQ(texts({file}, true), (Texts{"a", "b"}));
  EXPECT_EQ(skipped_, 3);
  const DataInfo info = prepare_lines(read_text(file), true);
  EXPECT_EQ(info.skipped, 3);
  EXPECT_EQ(info.documents, 2);
  EXPECT_EQ(Dataset(path("data")).info().skipped, 3);
}

constexpr const char* kText = "{\"text\": \"words\"}\n";
constexpr const char* kChat =
    R"({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
    "\n";

TEST_F(Prepare, RefusesPairsAmongOtherKinds) {
  const std::string pair = R"({"chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], )"
                           R"("rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})"
                           "\n";
  for (const bool skip : {false, true}) {
    const std::string said = refusal_of([&] { prepare_lines(kText + std::string(kText) + pair, skip); });
    expect_in(said, "in.jsonl:3: is preference behind text, expected one kind");
    EXPECT_FALSE(fs::exists(path("data")));
    expect_in(refusal_of([&] { prepare_lines(pair + kChat, skip); }), "in.jsonl:2: is chat behind preference");
  }
}

TEST_F(Prepare, TextsAmongChatsAreLearntWhole) {
  const auto learnt = [&](const std::string& lines) {
    const DataInfo info = prepare_lines(lines);
    fs::remove_all(path("data"));
    return info;
  };
  const DataInfo text = learnt(kText), chat = learnt(kChat);
  for (const std::string& lines : {kText + std::string(kChat), kChat + std::string(kText)}) {
    const DataInfo both = learnt(lines);
    EXPECT_EQ(both.kind, DataKind::chat);
    EXPECT_EQ(both.documents, 2);
    EXPECT_GT(chat.tokens, chat.learnt);
    EXPECT_GE(both.learnt, text.learnt + 1) << "all of the text, and of the chat the answer";
    EXPECT_LT(both.learnt, both.tokens);
  }
}

TEST_F(Prepare, NamesTheLineOfAChatThatTheTemplateHasNoPlaceFor) {
  prepare_lines("{\"text\": \"words\"}\n");
  // Mistral's template takes user and assistant in turn.
  const std::string config = read_text(path("data/tokenizer_config.json"));
  const std::size_t at = config.find("\"chat_template\": ");
  write_text(path("data/tokenizer_config.json"), config.substr(0, at) + "\"chat_template\": \"[INST] [/INST]\"\n}\n");
  const std::string fine =
      R"({"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const std::string bad =
      R"({"conversations": [{"role": "user", "content": "q"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  PrepareOptions options;
  options.inputs = {write("in.jsonl", fine + "\n" + bad + "\n" + fine + "\n")};
  options.out = path("chats"), options.tokenizer = path("data");
  expect_in(refusal_of([&] { prepare(options); }), "in.jsonl:2: ");
  options.skip_broken = true;
  const DataInfo info = prepare(options);
  EXPECT_EQ(info.documents, 2);
  EXPECT_EQ(info.skipped, 1);
}

TEST_F(Prepare, RefusesInputsWithoutADocument) {
  for (const char* text : {"", "\n\n", "broken\n"}) {
    EXPECT_NE(refusal_of([&] { prepare_lines(text, true); }), "") << text;
    EXPECT_FALSE(fs::exists(path("data")));
  }
}

TEST_F(Prepare, WritesTextsWithTheirEnd) {
  const DataInfo info = prepare_lines(R"({"text": "hello world", "nats": 2}
{"text": "你好 <|im_end|> \u0000 \u007f", "nats": 3}
)");
  const Dataset data(path("data"));
  const Tokenizer tokenizer = tokenizer_from_folder(path("data"));
  EXPECT_EQ(info.vocabulary, tokenizer.vocabulary());
  EXPECT_EQ(info.nats, 5);
  EXPECT_EQ(info.learnt, info.tokens) << "all of a text is learnt";
  const auto decoded = [&](std::int64_t n) {
    std::vector<Token> tokens(data.document(n).begin(), data.document(n).end());
    EXPECT_EQ(tokens.back(), *tokenizer.special().eos);
    tokens.pop_back();
    for (const Token token : tokens) EXPECT_FALSE(tokenizer.is_special(token)) << "no text forges a special token";
    return tokenizer.decode(tokens);
  };
  EXPECT_EQ(decoded(0), "hello world");
  EXPECT_EQ(decoded(1), std::string("你好 <|im_end|> \0 \x7f", 21));
}

TEST_F(Prepare, TakesATextOfAnyCharacters) {
  std::string text;
  for (char32_t n = 0; n < 4096; ++n) {
    const char32_t c = n < 256 ? n : n * n * 71 % 0x110000;
    if (c != 0 && (c < 0xD800 || c > 0xDFFF)) append_utf8(text, c);
  }
  PrepareOptions options;
  options.inputs = {write("any.txt", text)};
  options.out = path("data"), options.training.vocabulary = 280;
  prepare(options);
  const Dataset data(path("data"));
  const Tokenizer tokenizer = tokenizer_from_folder(path("data"));
  std::vector<Token> tokens(data.document(0).begin(), data.document(0).end() - 1);
  EXPECT_EQ(tokenizer.encode(tokenizer.decode(tokens), true, false), tokens);
}

// Runs of tokens that are to be learnt, and all tokens, as text.
struct Learnt {
  Texts runs;
  std::string all;
};
Learnt learnt_of(const Tokenizer& tokenizer, DocumentTokens tokens) {
  Learnt learnt;
  std::vector<Token> all, run;
  for (const std::int32_t stored : tokens) {
    all.push_back(static_cast<Token>(token_of(stored)));
    if (stored >= 0)
      run.push_back(stored);
    else if (!run.empty())
      learnt.runs.push_back(tokenizer.decode(std::exchange(run, {})));
  }
  if (!run.empty()) learnt.runs.push_back(tokenizer.decode(run));
  learnt.all = tokenizer.decode(all);
  return learnt;
}

TEST_F(Prepare, LearnsOfAChatWhatTheAssistantSaysAndItsEnd) {
  prepare_lines(
      R"({"conversations": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi <|im_end|>"}, {"role": "assistant", "content": "hello you"}, {"role": "user", "content": "more"}, {"role": "assistant", "content": "<|im_start|>no"}, {"role": "user", "content": "left out"}]}
{"conversations": [{"role": "user", "content": ""}, {"role": "assistant", "content": "first"}]}
)");
  const Dataset data(path("data"));
  const Tokenizer tokenizer = tokenizer_from_folder(path("data"));
  const Learnt first = learnt_of(tokenizer, data.document(0));
  EXPECT_EQ(first.runs, (Texts{"hello you<|im_end|>\n", "<|im_start|>no<|im_end|>\n"}));
  EXPECT_EQ(first.all,
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
            "hello you<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n<|im_start|>no<|im_end|>\n");
  EXPECT_EQ(learnt_of(tokenizer, data.document(1)).runs, Texts{"first<|im_end|>\n"});
  // What a message holds is text; the template's markers are tokens.
  int ends = 0;
  const Token end = *tokenizer.find("<|im_end|>");
  for (const std::int32_t stored : data.document(0)) ends += token_of(stored) == end;
  EXPECT_EQ(ends, 5);
}

TEST_F(Prepare, LearnsTheSameOfEveryTemplate) {
  prepare_lines("{\"text\": \"some words\"}\n");
  const Tokenizer tokenizer = tokenizer_from_folder(path("data"));
  for (const std::string& name : ChatTemplate::names()) {
    const ChatTemplate style = *ChatTemplate::named(name);
    const std::vector<Message> chat = {
        {"user", "Who?"}, {"assistant", "Me one"}, {"user", "And?"}, {"assistant", "Me two"}};
    const Learnt learnt = learnt_of(tokenizer, encode_learnt_chat(tokenizer, style, chat));
    ASSERT_EQ(learnt.runs.size(), 2U) << name;
    for (const std::size_t n : {0U, 1U}) {
      const std::string& answer = chat[2 * n + 1].content;
      const std::size_t at = learnt.runs[n].find(answer);
      ASSERT_NE(at, std::string::npos) << name << ": " << learnt.runs[n];
      // The model itself writes what the generation prompt does not: Qwen 3's empty thoughts.
      const std::string before = learnt.runs[n].substr(0, at);
      EXPECT_TRUE(before.find_first_not_of(" \n") == std::string::npos || before.ends_with("</think>\n\n")) << name;
      EXPECT_GT(learnt.runs[n].size(), at + answer.size()) << name << ": the end is learnt too";
      EXPECT_EQ(learnt.runs[n].find("?"), std::string::npos) << name << ": no question is learnt";
    }
    EXPECT_EQ(learnt.all, style.render(chat, false)) << name;
  }
}

TEST_F(Prepare, AnAnswerBeginsWhereTheGenerationPromptEnds) {
  for (const std::string& name : ChatTemplate::names()) {
    ChatTemplate style = *ChatTemplate::named(name);
    const std::vector<Message> chat = {{"user", "Who?"}, {"assistant", "Me"}};
    const auto prompt = [&](const std::vector<Message>& messages) {
      std::string text;
      for (const ChatPart& part : style.training_parts(messages))
        if (part.answer < 0) text += part.text;
      return text;
    };
    EXPECT_EQ(prompt(chat), style.render(std::span(chat).first(1), true)) << name;
    if (!style.has_thoughts()) continue;
    const std::vector<Message> thinking = {chat[0], {"assistant", "<think>\nhm\n</think>\n\nMe"}};
    style.set_thinking(true);
    EXPECT_EQ(prompt(thinking), style.render(std::span(chat).first(1), true)) << name;
    EXPECT_NE(style.render(thinking, false).find("hm"), std::string::npos) << name;
  }
}

TEST_F(Prepare, LearnsNoAnswerOfWeightZero) {
  prepare_lines("{\"text\": \"some words\"}\n");
  const Tokenizer tokenizer = tokenizer_from_folder(path("data"));
  const Record record = read({write("w.json", R"([{"messages": [{"role": "user", "content": "a"},
{"role": "assistant", "content": "bad", "weight": 0}, {"role": "user", "content": "b"},
{"role": "assistant", "content": "good", "weight": 1}, {"role": "user", "content": "c"},
{"role": "assistant", "content": "worse", "weight": 0}]}])")})[0];
  const Learnt learnt =
      learnt_of(tokenizer, encode_learnt_chat(tokenizer, *ChatTemplate::named("chatml"), record.chat, record.tools));
  EXPECT_EQ(learnt.runs, Texts{"good<|im_end|>\n"});
  EXPECT_NE(learnt.all.find("bad"), std::string::npos) << "it is read";
  EXPECT_EQ(learnt.all.find("worse"), std::string::npos) << "nothing follows the last answer that is learned";
}

TEST_F(Prepare, WritesPairsSideBySide) {
  const DataInfo info = prepare_lines(story_lines(3, {.format = CorpusFormat::preference}));
  EXPECT_EQ(info.kind, DataKind::preference);
  EXPECT_EQ(info.documents, 6);
  const Dataset data(path("data"));
  const Tokenizer tokenizer = tokenizer_from_folder(path("data"));
  for (std::int64_t n = 0; n < 6; n += 2) {
    const Learnt good = learnt_of(tokenizer, data.document(n)), bad = learnt_of(tokenizer, data.document(n + 1));
    ASSERT_EQ(good.runs.size(), 2U);
    EXPECT_EQ(good.runs[0], bad.runs[0]) << "the same story";
    EXPECT_NE(good.runs[1], bad.runs[1]) << "another answer";
  }
}

TEST_F(Prepare, TakesATokenizerThatIsThere) {
  prepare_lines(story_lines(20));
  fs::rename(path("data"), path("first"));
  PrepareOptions options;
  options.inputs = {write("more.txt", "quite other words: naïve façade")};
  options.out = path("second"), options.tokenizer = path("first");
  const DataInfo info = prepare(options);
  EXPECT_EQ(info.tokenizer, Dataset(path("first")).info().tokenizer);
  EXPECT_EQ(read_text(path("second/tokenizer.json")), read_text(path("first/tokenizer.json")));
  options.out = path("third"), options.tokenizer = path("missing");
  expect_in(refusal_of([&] { prepare(options); }), "holds no tokenizer.json");
  EXPECT_FALSE(fs::exists(path("third")));
}

TEST_F(Prepare, StopsWhereItsProgressThrows) {
  PrepareOptions options;
  options.inputs = {write("a.jsonl", story_lines(10))};
  options.out = path("data"), options.training.vocabulary = 280;
  std::int64_t last = 0;
  options.progress = [&](const char* stage, std::int64_t done, std::int64_t all) {
    EXPECT_LE(done, all);
    if (std::string(stage) == "writing tokens" && (last = done) > all / 2) throw std::runtime_error("stop");
  };
  EXPECT_THROW(prepare(options), std::runtime_error);
  EXPECT_GT(last, 0);
  EXPECT_FALSE(fs::exists(path("data")));
}

}  // namespace
}  // namespace attend::llm::test
