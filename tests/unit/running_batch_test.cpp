// The engine: a request gives the tokens it gives alone, whatever joins, leaves, waits or is remembered beside it.
#include "llm/generate/running_batch.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "error_of.hpp"
#include "golden_models.hpp"
#include "tokenizer_files.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

struct Answer {
  std::vector<Token> tokens{};
  std::string text{};
  Finish finish = Finish::not_yet;
  bool operator==(const Answer&) const = default;
};
using Answers = std::map<std::int64_t, Answer>;

class EngineTest : public testing::Test {
 protected:
  // A prompt no two of which begin alike.
  static std::vector<Token> prompt(std::int64_t length, std::int64_t from = 0) {
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < length; ++i)
      tokens.push_back(static_cast<Token>((from * 7 + i * (from + 5) + 3) % 64));
    return tokens;
  }
  static void collect(const std::vector<Event>& events, Answers& answers) {
    for (const Event& event : events) {
      Answer& a = answers[event.request];
      EXPECT_EQ(a.finish, Finish::not_yet) << "an event after the last";
      if (event.has_token) a.tokens.push_back(event.choice.token);
      a.text += event.text;
      a.finish = event.finish;
    }
  }
  static Answers drain(RunningBatch& engine) {
    Answers answers;
    for (int steps = 0; !engine.idle(); ++steps) {
      if (steps > 100000) throw std::runtime_error("the engine does not come to an end");
      collect(engine.step(), answers);
    }
    collect(engine.step(), answers);
    return answers;
  }
  Answer alone(const Request& request, const BatchOptions& options = {.cache_tokens = 1024}) {
    RunningBatch engine(model_, tokenizer_, options);
    const std::int64_t number = engine.submit(request);
    return drain(engine)[number];
  }
  // Requests of many kinds.
  static Request request(std::uint64_t n, std::int64_t longest = 60) {
    const auto number = [&](std::uint64_t index, std::int64_t most) {
      return 1 + static_cast<std::int64_t>(uniform(n + 100, index) * static_cast<double>(most));
    };
    Request r{.prompt = prompt(number(0, longest), number(1, 5)), .max_tokens = number(2, longest)};
    if (number(3, 2) == 1) r.sampling = {.temperature = 1, .top_k = 20, .repetition_penalty = 1.1, .seed = n};
    if (number(4, 3) == 1) r.stop = {"!", "ab"};
    if (number(5, 3) == 1) r.stop_tokens = {static_cast<Token>(number(6, 60))};
    return r;
  }

  Transformer model_ = GoldenModel("llama").load();
  Tokenizer tokenizer_ = golden_tokenizer("gpt2");
};

TEST_F(EngineTest, GreedyTokensAreThoseOfTheModel) {
  const Request r{.prompt = prompt(10), .max_tokens = 12};
  std::vector<Token> tokens = r.prompt, expected;
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> rows = run_alone(model_, tokens, 100);
    const auto last = rows.end() - model_.config().vocabulary;
    expected.push_back(static_cast<Token>(std::max_element(last, rows.end()) - last));
    tokens.push_back(expected.back());
  }
  const Answer answer = alone(r);
  EXPECT_EQ(answer.tokens, expected);
  EXPECT_EQ(answer.text, tokenizer_.decode(expected, true));
  EXPECT_EQ(answer.finish, Finish::length);
}

TEST_F(EngineTest, SameTokensAloneAndInABatchThatChanges) {
  std::vector<Request> requests;
  for (std::uint64_t n = 0; n < 8; ++n) requests.push_back(request(n));
  for (const std::int64_t sequences : {8, 3}) {
    RunningBatch engine(model_, tokenizer_, {.cache_tokens = 4096, .tokens_per_step = 16, .sequences = sequences});
    Answers answers;
    for (std::size_t n = 0; n < requests.size(); ++n) {  // one joins every other step
      EXPECT_EQ(engine.submit(requests[n]), static_cast<std::int64_t>(n));
      for (int step = 0; step < 2; ++step) collect(engine.step(), answers);
    }
    while (!engine.idle()) collect(engine.step(), answers);
    for (std::size_t n = 0; n < requests.size(); ++n)
      EXPECT_EQ(answers[static_cast<std::int64_t>(n)], alone(requests[n])) << n;
  }
}

TEST_F(EngineTest, APromptInPiecesGivesTheSameText) {
  for (std::uint64_t n = 0; n < 6; ++n) {
    const Answer whole = alone(request(n));
    for (const std::int64_t step : {1, 3, 64})
      EXPECT_EQ(alone(request(n), {.cache_tokens = 1024, .tokens_per_step = step}), whole) << n << " " << step;
  }
}

TEST_F(EngineTest, StepsHaveNoMoreTokensThanAsked) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 1024, .tokens_per_step = 8});
  engine.submit({.prompt = prompt(20), .max_tokens = 3});
  std::int64_t before = 0;
  for (const std::int64_t expected : {8, 8, 4, 0, 0}) {
    engine.step();
    EXPECT_EQ(engine.stats().prompt_tokens - before, expected);
    before = engine.stats().prompt_tokens;
  }
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.stats().generated_tokens, 3);
  EXPECT_EQ(engine.stats().steps, 5);
}

TEST_F(EngineTest, TurnsReuseWhatWasRead) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 1024});
  std::vector<Token> conversation = prompt(70);
  std::int64_t expected = 0;
  for (int turn = 0; turn < 4; ++turn) {
    Request r{.prompt = conversation, .max_tokens = 9};
    r.sampling = {.temperature = 0.8, .seed = static_cast<std::uint64_t>(turn)};
    const std::int64_t number = engine.submit(r);
    const Answer answer = drain(engine)[number];
    EXPECT_EQ(answer, alone(r)) << turn;
    EXPECT_EQ(engine.stats().reused_tokens, expected) << turn;
    conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
    expected += std::ssize(conversation) - 1;  // the last token of an answer was never read
    for (const Token token : {5, 6, 7}) conversation.push_back(token);
  }
  EXPECT_LE(engine.kept_tokens(), 4 * 128);
}

// Pages behind a window are forgotten: what needs them again is read again.
TEST_F(EngineTest, WindowsForgetAndAnswerAlike) {
  Transformer mistral = GoldenModel("mistral").load();
  const BatchOptions options{.context = 600, .cache_tokens = 1024, .tokens_per_step = 50};
  const auto fresh = [&](const Request& r) {
    RunningBatch engine(mistral, tokenizer_, options);
    engine.submit(r);
    return drain(engine)[0];
  };
  RunningBatch engine(mistral, tokenizer_, options);
  std::vector<Token> conversation = prompt(150);
  for (int turn = 0; turn < 3; ++turn) {
    const Request r{.prompt = conversation, .max_tokens = 70};
    const std::int64_t number = engine.submit(r);
    const Answer answer = drain(engine)[number];
    EXPECT_EQ(answer, fresh(r)) << turn;
    conversation.insert(conversation.end(), answer.tokens.begin(), answer.tokens.end());
    conversation.push_back(9);
  }
  EXPECT_EQ(engine.stats().reused_tokens, 219 + 290);  // both times all that was read
  for (const std::int64_t length : {20, 64, 130, 200}) {
    Request r{.prompt = std::vector<Token>(conversation.begin(), conversation.begin() + length), .max_tokens = 10};
    r.prompt.push_back(1);
    const std::int64_t number = engine.submit(r);
    EXPECT_EQ(drain(engine)[number], fresh(r)) << length;
  }
}

TEST_F(EngineTest, EventsTellWhatWasReused) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 1024});
  for (const std::int64_t expected : {0, 49, 20}) {
    Request r{.prompt = prompt(50), .max_tokens = 3};
    if (expected == 20) r.prompt[20] = 63;
    engine.submit(r);
    while (!engine.idle())
      for (const Event& event : engine.step()) EXPECT_EQ(event.reused, expected);
  }
  EXPECT_EQ(engine.stats().reused_tokens, 49 + 20);
}

// A special token is no text, unless it is asked for.
TEST_F(EngineTest, SpecialTokensAreShownWhereAsked) {
  const Token mark = *tokenizer_.find("<|im_start|>");
  Request r{.prompt = prompt(9), .max_tokens = 2};
  r.sampling.logit_bias = {{mark, 100}};
  EXPECT_EQ(alone(r).text, "");
  r.shown = {mark};
  EXPECT_EQ(alone(r).text, "<|im_start|><|im_start|>");
}

TEST_F(EngineTest, SharedBeginningsAreReadOnce) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 2048});
  Request a{.prompt = prompt(100), .max_tokens = 20}, b = a;
  b.prompt.resize(80);
  b.prompt.push_back(1);
  b.prompt.push_back(2);
  engine.submit(a);
  engine.step();
  engine.step();
  engine.submit(b);  // while the first one runs
  Answers answers = drain(engine);
  EXPECT_EQ(engine.stats().reused_tokens, 80);
  engine.submit(a);  // all over again: one token is read
  answers.merge(drain(engine));
  EXPECT_EQ(engine.stats().reused_tokens, 80 + 99);
  EXPECT_EQ(answers[1], alone(b));
  EXPECT_EQ(answers[2], alone(a));
}

TEST_F(EngineTest, StopTextsEndTheAnswerWhereverTokensMeet) {
  Request r{.prompt = prompt(8), .max_tokens = 60};
  r.sampling = {.temperature = 1.5, .seed = 3};
  const Answer whole = alone(r);
  ASSERT_GT(whole.text.size(), 30U);
  for (std::size_t at = 0; at < 25; ++at)
    for (const std::size_t length : {1U, 2U, 3U, 7U}) {
      Request stopped = r;
      stopped.stop = {whole.text.substr(at, length), "", "no such text", whole.text.substr(at + length, 2) + "?no"};
      const Answer answer = alone(stopped);
      EXPECT_EQ(answer.text, whole.text.substr(0, whole.text.find(stopped.stop[0]))) << at << " " << length;
      EXPECT_EQ(answer.finish, Finish::stop_text);
      EXPECT_EQ(answer.tokens,
                std::vector<Token>(whole.tokens.begin(), whole.tokens.begin() + std::ssize(answer.tokens)));
    }
  // The earliest of several counts; one that never comes holds nothing back for good.
  Request several = r;
  several.stop = {whole.text.substr(20, 3), whole.text.substr(10, 3)};
  EXPECT_EQ(alone(several).text,
            whole.text.substr(0, std::min(whole.text.find(several.stop[0]), whole.text.find(several.stop[1]))));
  // Of two that end with the same token, the one that begins first, wherever it is in the list.
  std::size_t at = 2;
  while (whole.text.find(whole.text[at]) != at) ++at;
  const std::string inner = whole.text.substr(at, 1), outer = whole.text.substr(at - 2, 3);
  for (const auto& stops : {std::vector{inner, outer}, std::vector{outer, inner}}) {
    several.stop = stops;
    EXPECT_EQ(alone(several).text, whole.text.substr(0, at - 2));
  }
  Request never = r;
  never.stop = {whole.text.substr(whole.text.size() - 3) + "...", whole.text + "!"};
  EXPECT_EQ(alone(never), whole);
}

// OpenAI's penalties count what was generated; repetition_penalty counts the prompt, too.
TEST_F(EngineTest, PenaltiesCountWhatTheySay) {
  Request r{.prompt = prompt(8), .max_tokens = 1};
  const Token first = alone(r).tokens[0];
  r.prompt.insert(r.prompt.begin(), first);
  const Token likeliest = alone(r).tokens[0];
  r.prompt.insert(r.prompt.begin(),
                  likeliest);  // it is in the prompt now, and penalised only by what counts the prompt
  r.max_tokens = 2;
  const std::vector<Token> plain = alone(r).tokens;
  ASSERT_NE(std::find(r.prompt.begin(), r.prompt.end(), plain[0]), r.prompt.end());
  for (const Sampling& sampling : {Sampling{.presence_penalty = 100}, Sampling{.frequency_penalty = 100}}) {
    r.sampling = sampling;
    const std::vector<Token> tokens = alone(r).tokens;
    EXPECT_EQ(tokens[0], plain[0]);
    EXPECT_NE(tokens[1], plain[0]);
  }
  r.sampling = {.repetition_penalty = 100};
  EXPECT_NE(alone(r).tokens[0], plain[0]);
}

TEST_F(EngineTest, StopTokensEndTheAnswer) {
  Request r{.prompt = prompt(8), .max_tokens = 40};
  r.sampling = {.temperature = 1.5, .seed = 3};
  const Answer whole = alone(r);
  r.stop_tokens = {whole.tokens[9], 63};
  const Answer answer = alone(r);
  const auto end =
      std::find_first_of(whole.tokens.begin(), whole.tokens.end(), r.stop_tokens.begin(), r.stop_tokens.end());
  EXPECT_EQ(answer.tokens, std::vector<Token>(whole.tokens.begin(), end + 1));
  EXPECT_EQ(answer.text, tokenizer_.decode(std::vector<Token>(whole.tokens.begin(), end), true));
  EXPECT_EQ(answer.finish, Finish::stop_token);
}

TEST_F(EngineTest, AnswersEndAtTheirLengthAndAtTheContext) {
  EXPECT_EQ(alone({.prompt = prompt(8), .max_tokens = 1}).tokens.size(), 1U);
  const Answer cut = alone({.prompt = prompt(20), .max_tokens = 50}, {.context = 25});
  EXPECT_EQ(cut.tokens.size(), 5U);
  EXPECT_EQ(cut.finish, Finish::context);
  const Answer exact = alone({.prompt = prompt(20), .max_tokens = 5}, {.context = 25});
  EXPECT_EQ(exact.tokens, cut.tokens);
  EXPECT_EQ(exact.finish, Finish::length);
  const Answer last =
      alone({.prompt = prompt(24), .max_tokens = std::numeric_limits<std::int64_t>::max()}, {.context = 25});
  EXPECT_EQ(last.tokens.size(), 1U);
  EXPECT_NE(error_of([&] { alone({.prompt = prompt(25)}, {.context = 25}); }).find("25 tokens, and the context is 25"),
            std::string::npos);
  // Learnt positions are a limit of their own.
  Transformer gpt2 = GoldenModel("gpt2").load();
  RunningBatch engine(gpt2, tokenizer_, {.context = 1000});
  EXPECT_EQ(engine.context(), 64);
  engine.submit({.prompt = prompt(60), .max_tokens = 50});
  const Answers answers = drain(engine);
  EXPECT_EQ(answers.at(0).tokens.size(), 4U);
  EXPECT_EQ(answers.at(0).finish, Finish::context);
}

TEST_F(EngineTest, CancelsWhatWaitsAndWhatRuns) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 1024, .sequences = 2});
  for (std::int64_t n = 0; n < 4; ++n) engine.submit({.prompt = prompt(12, n), .max_tokens = 20});
  Answers answers;
  for (int step = 0; step < 5; ++step) collect(engine.step(), answers);
  engine.cancel(1);   // runs
  engine.cancel(2);   // waits
  engine.cancel(2);   // is no more
  engine.cancel(77);  // never was
  answers.merge(Answers{});
  while (!engine.idle()) collect(engine.step(), answers);
  EXPECT_EQ(answers[1].finish, Finish::cancelled);
  EXPECT_EQ(answers[1].tokens.size(), 5U);
  EXPECT_EQ(answers[2], (Answer{.finish = Finish::cancelled}));
  for (const std::int64_t n : {0, 3}) EXPECT_EQ(answers[n], alone({.prompt = prompt(12, n), .max_tokens = 20})) << n;
  engine.cancel(0);  // has ended
  EXPECT_TRUE(engine.step().empty());
  // What was cancelled in the middle is remembered as far as it was read.
  const Request again{.prompt = prompt(12, 1), .max_tokens = 20};
  const std::int64_t number = engine.submit(again);
  EXPECT_EQ(drain(engine)[number], alone(again));
  EXPECT_EQ(engine.stats().reused_tokens, 11);
}

TEST_F(EngineTest, ACacheJustLargeEnoughIsEnough) {
  const Request r{.prompt = prompt(100), .max_tokens = 28};
  const Answer expected = alone(r);
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 128, .tokens_per_step = 10});
  for (int repeat = 0; repeat < 3; ++repeat) {  // with what is remembered in the way
    const std::int64_t a = engine.submit(r), b = engine.submit({.prompt = prompt(64, 2), .max_tokens = 64});
    Answers answers = drain(engine);
    EXPECT_EQ(answers[a], expected);
    EXPECT_EQ(answers[b], alone({.prompt = prompt(64, 2), .max_tokens = 64}));
  }
}

TEST_F(EngineTest, RefusesWhatCouldNeverRun) {
  RunningBatch engine(model_, tokenizer_, {.context = 500, .cache_tokens = 128});
  const auto error = [&](Request r) { return error_of([&] { engine.submit(std::move(r)); }); };
  EXPECT_EQ(error({}), "engine: the prompt is empty; expected at least one token");
  EXPECT_EQ(error({.prompt = {1}, .max_tokens = 0}), "engine: max_tokens is 0, expected at least 1");
  EXPECT_EQ(error({.prompt = {1, 64}}), "engine: the prompt holds token 64, expected 0 to 63");
  EXPECT_EQ(error({.prompt = {-1}}), "engine: the prompt holds token -1, expected 0 to 63");
  EXPECT_EQ(error({.prompt = prompt(500)}),
            "engine: the prompt has 500 tokens, and the context is 500; shorten it, or ask for a larger context");
  EXPECT_EQ(
      error({.prompt = prompt(100), .max_tokens = 29}),
      "engine: prompt and answer may reach 129 tokens, and the cache holds 128; lower max_tokens, or ask for a larger "
      "cache");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(
      error({.prompt = prompt(100), .max_tokens = most}),
      "engine: prompt and answer may reach 500 tokens, and the cache holds 128; lower max_tokens, or ask for a larger "
      "cache");
  EXPECT_EQ(error({.prompt = {1}, .sampling = {.top_p = 2}}).substr(0, 10), "top_p is 2");
  EXPECT_TRUE(engine.idle());
  EXPECT_TRUE(engine.step().empty());
  EXPECT_EQ(error({.prompt = prompt(100), .max_tokens = 28}), "");
  for (const BatchOptions& bad : {BatchOptions{.tokens_per_step = 0}, BatchOptions{.sequences = 0}})
    EXPECT_EQ(error_of([&] { RunningBatch(model_, tokenizer_, bad); }),
              "engine: tokens_per_step and sequences must be at least 1");
}

TEST_F(EngineTest, AHundredRequestsShareASmallCache) {
  constexpr std::int64_t kRequests = 100;
  RunningBatch engine(model_, tokenizer_,
                      {.context = 120, .cache_tokens = 5 * 64, .tokens_per_step = 13, .sequences = 6});
  Answers answers;
  for (std::int64_t n = 0; n < kRequests; ++n) {
    engine.submit(request(static_cast<std::uint64_t>(n)));
    if (n % 5 == 0) collect(engine.step(), answers);
  }
  answers.merge(Answers{});
  for (int steps = 0; !engine.idle() && steps < 100000; ++steps) collect(engine.step(), answers);
  ASSERT_TRUE(engine.idle());
  for (std::int64_t n = 0; n < kRequests; ++n)
    EXPECT_EQ(answers[n], alone(request(static_cast<std::uint64_t>(n)), {.context = 120, .cache_tokens = 128})) << n;
  EXPECT_GT(engine.stats().reused_tokens, 0);
}

TEST_F(EngineTest, NarrowCachesServeToo) {
  for (const bool int8 : {false, true})
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const BatchOptions options{.cache_tokens = 1024, .cache_dtype = dtype, .cache_int8 = int8};
      RunningBatch engine(model_, tokenizer_, options);
      for (std::uint64_t n = 0; n < 4; ++n) engine.submit(request(n));
      Answers answers = drain(engine);
      for (std::uint64_t n = 0; n < 4; ++n)
        EXPECT_EQ(answers[static_cast<std::int64_t>(n)], alone(request(n), options)) << n << int8;
    }
}

TEST_F(EngineTest, ReportsLogprobs) {
  Request r{.prompt = prompt(5), .max_tokens = 3};
  r.sampling.logprobs = 4;
  RunningBatch engine(model_, tokenizer_, {});
  engine.submit(r);
  for (const Event& event : engine.step()) {
    ASSERT_EQ(event.choice.likeliest.size(), 4U);
    EXPECT_EQ(event.choice.likeliest.front().first, event.choice.token);
    EXPECT_EQ(event.choice.likeliest.front().second, event.choice.logprob);
    EXPECT_LT(event.choice.logprob, 0);
  }
}

// A prompt's tokens are rated by the rows before them, in pieces and beside others as alone; the answer stays what it
// is.
TEST_F(EngineTest, RatesThePrompt) {
  Request r{.prompt = prompt(75), .max_tokens = 3};
  r.sampling.logprobs = 2;
  const Answer expected = alone(r);
  const std::vector<float> rows = run_alone(model_, r.prompt, 100);
  const auto V = static_cast<std::size_t>(model_.config().vocabulary);
  r.rate_prompt = true;
  for (const std::int64_t piece : {7, 40, 512}) {
    RunningBatch engine(model_, tokenizer_, {.cache_tokens = 1024, .tokens_per_step = piece});
    for (int round = 0; round < 2; ++round) {  // the second could reuse what the first has read
      engine.submit({.prompt = prompt(30, 2), .max_tokens = 20});
      const std::int64_t number = engine.submit(r);
      std::vector<Choice> rated;
      Answers answers;
      while (!engine.idle()) {
        const std::vector<Event> events = engine.step();
        for (const Event& event : events)
          if (event.request == number) rated.insert(rated.end(), event.prompt.begin(), event.prompt.end());
        collect(events, answers);
      }
      EXPECT_EQ(answers[number], expected);
      ASSERT_EQ(rated.size(), r.prompt.size());
      EXPECT_TRUE(std::isnan(rated.front().logprob));
      for (std::size_t i = 1; i < rated.size(); ++i) {
        const Choice one = rate(std::span(rows).subspan((i - 1) * V, V), r.prompt[i], 2);
        EXPECT_EQ(rated[i].token, r.prompt[i]);
        EXPECT_EQ(rated[i].logprob, one.logprob) << i;
        EXPECT_EQ(rated[i].likeliest, one.likeliest) << i;
      }
    }
  }
}

// Guessing ahead, reading prompts in small pieces beside answers and giving room up change when tokens come, never
// which.
TEST_F(EngineTest, ServingOptionsGiveTheSameTokens) {
  std::vector<Request> requests;
  for (std::uint64_t n = 0; n < 10; ++n) requests.push_back(request(n, 100));
  const std::vector<BatchOptions> all = {{.cache_tokens = 4096, .draft = 8, .draft_answers = 16},
                                         {.cache_tokens = 4096, .tokens_per_step = 64, .prompt_piece = 5},
                                         {.cache_tokens = 320, .sequences = 8, .answer_room = 1},
                                         {.cache_tokens = 320,
                                          .tokens_per_step = 32,
                                          .sequences = 8,
                                          .prompt_piece = 7,
                                          .answer_room = 8,
                                          .draft = 4,
                                          .draft_answers = 8}};
  for (std::size_t kind = 0; kind < all.size(); ++kind) {
    RunningBatch engine(model_, tokenizer_, all[kind]);
    Answers answers;
    for (std::size_t n = 0; n < requests.size(); ++n) {
      EXPECT_EQ(engine.submit(requests[n]), static_cast<std::int64_t>(n));
      collect(engine.step(), answers);
    }
    for (int steps = 0; !engine.idle(); ++steps) {
      ASSERT_LT(steps, 10000) << kind;
      collect(engine.step(), answers);
    }
    for (std::size_t n = 0; n < requests.size(); ++n)
      EXPECT_EQ(answers[static_cast<std::int64_t>(n)], alone(requests[n])) << kind << " " << n;
    // All pages come back.
    EXPECT_LE(engine.kept_tokens(), all[kind].cache_tokens);
  }
}

TEST_F(EngineTest, GuessesThatAreRightSaveSteps) {
  std::vector<Token> again;
  for (int i = 0; i < 60; ++i) again.push_back(static_cast<Token>(i % 3 + 7));
  const Request r{.prompt = again, .max_tokens = 100};  // a model this small soon says the same again and again
  RunningBatch plain(model_, tokenizer_, {.cache_tokens = 1024}),
      guessing(model_, tokenizer_, {.cache_tokens = 1024, .draft = 8});
  plain.submit(r);
  guessing.submit(r);
  EXPECT_EQ(drain(plain), drain(guessing));
  EXPECT_EQ(guessing.stats().generated_tokens, plain.stats().generated_tokens);
  EXPECT_GT(guessing.stats().accepted_tokens, 0);
  EXPECT_EQ(guessing.stats().steps + guessing.stats().accepted_tokens, plain.stats().steps);
}

TEST_F(EngineTest, APromptHoldsUpAnswersByOnePieceAlone) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 4096, .tokens_per_step = 512, .prompt_piece = 10});
  engine.submit({.prompt = prompt(5), .max_tokens = 100});
  (void)engine.step();
  engine.submit({.prompt = prompt(95, 3), .max_tokens = 1});
  engine.submit({.prompt = prompt(4, 4), .max_tokens = 1});
  Answers answers;
  std::int64_t read = engine.stats().prompt_tokens, short_one = 0, long_one = 0;
  for (int step = 1; step <= 30; ++step) {
    collect(engine.step(), answers);
    EXPECT_LE(engine.stats().prompt_tokens - read, 10);
    EXPECT_EQ(std::ssize(answers[0].tokens), step);  // one each step, whatever is read beside it
    read = engine.stats().prompt_tokens;
    if (short_one == 0 && answers[2].finish != Finish::not_yet) short_one = step;
    if (long_one == 0 && answers[1].finish != Finish::not_yet) long_one = step;
  }
  EXPECT_EQ(short_one, 1);  // not behind the long one
  EXPECT_EQ(long_one, 10);
}

TEST_F(EngineTest, PromptsThatBeginAlikeAreReadOnce) {
  RunningBatch engine(model_, tokenizer_, {.cache_tokens = 4096, .tokens_per_step = 50});
  const std::vector<Token> tokens = prompt(110);
  for (int n = 0; n < 4; ++n) engine.submit({.prompt = tokens, .max_tokens = 3});
  const Answers answers = drain(engine);
  for (int n = 1; n < 4; ++n) EXPECT_EQ(answers.at(n), answers.at(0));
  EXPECT_GT(engine.stats().reused_tokens, 3 * (109 - 16));
}

// Only even tokens, eight of them.
class EvenTokens : public TokenConstraint {
 public:
  explicit EvenTokens(std::int64_t vocabulary) : mask_(static_cast<std::size_t>(vocabulary)) {
    for (std::size_t i = 0; i < mask_.size(); i += 2) mask_[i] = 1;
  }
  std::span<const std::uint8_t> allowed() override { return mask_; }
  void take(Token token) override { taken_ += token % 2 == 0 ? 1 : 1000; }
  bool may_end() const override { return taken_ >= 4; }
  bool must_end() const override { return taken_ == 8; }

 private:
  std::vector<std::uint8_t> mask_;
  int taken_ = 0;
};

TEST_F(EngineTest, AConstraintHolds) {
  for (const bool guesses : {false, true})
    for (const double temperature : {0.0, 1.0}) {
      Request r{.prompt = prompt(10), .max_tokens = 50, .sampling = {.temperature = temperature, .seed = 3}};
      r.constraint = std::make_shared<EvenTokens>(model_.config().vocabulary);
      const Answer answer = alone(r, {.cache_tokens = 1024, .draft = guesses ? 4 : 0});
      EXPECT_EQ(answer.finish, Finish::complete);
      EXPECT_EQ(answer.tokens.size(), 8U);
      for (const Token token : answer.tokens) EXPECT_EQ(token % 2, 0);
      // A token that ends the answer may come only where it is whole, even if it is the likeliest.
      r.constraint = std::make_shared<EvenTokens>(model_.config().vocabulary);
      for (Token token = 0; token < 64; token += 4) r.stop_tokens.push_back(token);
      const Answer stopped = alone(r, {.cache_tokens = 1024, .draft = guesses ? 4 : 0});
      EXPECT_GE(stopped.tokens.size(), 5U);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(stopped.tokens[i] % 4, 2);
    }
}

}  // namespace
}  // namespace attend::llm::test
