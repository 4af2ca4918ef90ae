// The public face of libattend_llm: what it answers is what the parts behind it answer, and what it refuses it names.
#include "attend/llm/model.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "error_of.hpp"
#include "golden_models.hpp"
#include "llm/generate/perplexity.hpp"
#include "llm/generate/running_batch.hpp"
#include "llm/runtime/open_model.hpp"

namespace attend::llm::test {
namespace {

using attend::test::error_of;

class LlmModel : public testing::Test {
 protected:
  LlmModel() { write_tokenizer(golden_.path(), 64); }
  Model open(const ModelOptions& options = {}) const { return Model::open(golden_.path().string(), options); }
  // What the running batch says to a prompt alone.
  std::vector<Token> expected(const std::vector<Token>& prompt, const GenerateOptions& options) const {
    Transformer transformer = golden_.load();
    const Tokenizer tokenizer = Tokenizer::open(golden_.path());
    RunningBatch batch(transformer, tokenizer, {.context = 512});
    batch.submit({.prompt = prompt,
                  .max_tokens = options.max_tokens,
                  .sampling = options.sampling,
                  .stop_tokens = stop_tokens(tokenizer, transformer.config(), nullptr)});
    std::vector<Token> tokens;
    while (!batch.idle())
      for (const Event& event : batch.step())
        if (event.has_token && event.finish != Finish::stop_token) tokens.push_back(event.choice.token);
    return tokens;
  }

  GoldenModel golden_{"llama"};
};

TEST_F(LlmModel, SaysWhatItIsBeforeAnythingIsLoaded) {
  const std::string path = golden_.path().string();
  const ModelInfo info = model_info(path);
  const Transformer transformer = golden_.load();
  const ModelConfig& config = transformer.config();
  EXPECT_EQ(info.family, "llama");
  EXPECT_TRUE(info.generates);
  EXPECT_EQ(info.layers, config.layers);
  EXPECT_EQ(info.vocabulary, config.vocabulary);
  EXPECT_EQ(info.parameters, count_parameters(config).total());
  const MemoryPlan plan = plan_memory(path, {.context = 256});
  EXPECT_GT(plan.weights, 0);
  EXPECT_EQ(plan.cache, ModelCache::bytes_for(config, {.tokens = 256}));
  EXPECT_LT(plan.cache, plan_memory(path, {.context = 512}).cache);
  const Model model = open({.context = 256});
  EXPECT_EQ(model.memory().total(), plan.total());
  EXPECT_EQ(model.context(), 256);
  EXPECT_EQ(model.info().parameters, info.parameters);
  EXPECT_GT(free_memory(), 0);
}

TEST_F(LlmModel, GeneratesWhatTheRunningBatchGenerates) {
  Model model = open();
  for (const std::string prompt : {"once upon", "a", "the quick brown fox jumps over the lazy dog"}) {
    for (const double temperature : {0.0, 1.0}) {
      const GenerateOptions options{.max_tokens = 40,
                                    .sampling = {.temperature = temperature, .seed = 7, .logprobs = 2}};
      std::string streamed;
      const Answer answer = model.generate(prompt, options, [&](std::string_view text) {
        streamed += text;
        return true;
      });
      const std::vector<Token> tokens = model.tokenizer().encode(prompt);
      EXPECT_EQ(answer.tokens, expected(tokens, options)) << prompt;
      EXPECT_EQ(answer.text, streamed);
      EXPECT_EQ(answer.text, model.tokenizer().decode(answer.tokens, true));
      EXPECT_EQ(answer.prompt_tokens, std::ssize(tokens));
      EXPECT_GE(answer.choices.size(), answer.tokens.size());
      EXPECT_NE(answer.finish, Finish::not_yet);
    }
  }
}

TEST_F(LlmModel, RemembersWhatWasReadAndSaysTheSame) {
  Model model = open();
  const GenerateOptions options{.max_tokens = 8};
  const Answer first = model.generate("tell me a story about rivers", options);
  const Answer again = model.generate("tell me a story about rivers", options);
  EXPECT_EQ(first.reused_tokens, 0);
  EXPECT_GT(again.reused_tokens, 0);
  EXPECT_EQ(first.tokens, again.tokens);
}

TEST_F(LlmModel, AnAnswerCanBeStoppedOrThrownOutOf) {
  Model model = open();
  const GenerateOptions options{.max_tokens = 40};
  const Answer whole = model.generate("once upon", options);
  std::string shown;
  const Answer cut = model.generate("once upon", options, [&](std::string_view text) {
    shown += text;
    return shown.size() < 5;
  });
  EXPECT_EQ(cut.finish, Finish::cancelled);
  EXPECT_EQ(cut.text, shown);
  EXPECT_TRUE(whole.text.starts_with(cut.text));
  EXPECT_THROW(model.generate("once upon", options, [](std::string_view) -> bool { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(model.generate("once upon", options).text, whole.text);
}

TEST_F(LlmModel, StopsAtTextsAndTokensThatAreAskedFor) {
  Model model = open();
  const Answer whole = model.generate("once upon", {.max_tokens = 40});
  ASSERT_GT(whole.tokens.size(), 6U);
  const Answer by_token = model.generate("once upon", {.max_tokens = 40, .stop_tokens = {whole.tokens[3]}});
  EXPECT_EQ(by_token.finish, Finish::stop_token);
  EXPECT_LE(by_token.tokens.size(), 3U);
  const std::string stop = whole.text.substr(3, 2);
  const Answer by_text = model.generate("once upon", {.max_tokens = 40, .stop = {stop}});
  EXPECT_EQ(by_text.finish, Finish::stop_text);
  EXPECT_EQ(by_text.text, whole.text.substr(0, whole.text.find(stop)));
}

TEST_F(LlmModel, LogitsAreThoseOfTheTransformer) {
  Model model = open();
  Transformer transformer = golden_.load();
  const std::vector<Token> tokens = golden_tokens(transformer, 30);
  const std::vector<float> rows = run_alone(transformer, tokens, 30), got = model.logits(tokens);
  EXPECT_EQ(got, rows);
  const auto V = static_cast<std::ptrdiff_t>(model.info().vocabulary);
  EXPECT_EQ(model.logits(tokens, true), std::vector<float>(rows.end() - V, rows.end()));
  EXPECT_THROW(model.logits({}), InvalidArgument);
}

TEST_F(LlmModel, PerplexityIsThatOfTheStack) {
  Model model = open();
  Transformer transformer = golden_.load();
  const std::vector<Token> tokens = golden_tokens(transformer, 100);
  std::int64_t done = 0;
  const Perplexity got = model.perplexity(tokens, 32, [&](std::int64_t now, std::int64_t all) {
    EXPECT_EQ(all, 100);
    done = now;
  });
  EXPECT_EQ(got.loss, perplexity(transformer, tokens, 32, {.tokens = 32}).loss);
  EXPECT_EQ(done, 100);
  EXPECT_THROW(model.perplexity(tokens, 1), InvalidArgument);
}

TEST_F(LlmModel, AnEngineAnswersManyAsEachAlone) {
  Model model = open();
  std::vector<std::vector<Token>> prompts;
  for (const std::string text : {"once upon", "a river", "zebras and xylophones", "b"})
    prompts.push_back(model.tokenizer().encode(text));
  Engine engine(model, {.context = 512, .cache_tokens = 2048});
  for (const std::vector<Token>& prompt : prompts)
    engine.submit({.prompt = prompt, .max_tokens = 20, .stop_tokens = model.stop_tokens()});
  std::vector<std::vector<Token>> answers(prompts.size());
  while (!engine.idle())
    for (const Event& event : engine.step())
      if (event.has_token && event.finish != Finish::stop_token)
        answers[static_cast<std::size_t>(event.request)].push_back(event.choice.token);
  for (std::size_t n = 0; n < prompts.size(); ++n) EXPECT_EQ(answers[n], expected(prompts[n], {.max_tokens = 20})) << n;
  EXPECT_EQ(engine.context(), 512);
  EXPECT_GT(engine.stats().generated_tokens, 0);
  EXPECT_GT(engine.kept_tokens(), 0);
}

// A model's own stop tokens end a request of the engine, as they end generate(); more may be added, or none may count.
TEST_F(LlmModel, AnEngineStopsWhereTheModelDoes) {
  const std::vector<Token> prompt = open().tokenizer().encode("once upon");
  const std::vector<Token> whole = open().generate(prompt, {.max_tokens = 20}).tokens;
  ASSERT_EQ(whole.size(), 20U);
  const Token end = whole[9], earlier = whole[4];
  std::string config = read_text(golden_.path() / "config.json");
  const std::string old = "\"eos_token_id\": 2";
  config.replace(config.find(old), old.size(), "\"eos_token_id\": " + std::to_string(end));
  write_text(golden_.path() / "config.json", config);

  Model model = open();
  const Answer expected = model.generate(prompt, {.max_tokens = 20});
  ASSERT_EQ(expected.finish, Finish::stop_token);
  ASSERT_LT(expected.tokens.size(), 10U);
  Engine engine(model);
  const auto answer = [&](Request request) {
    request.prompt = prompt, request.max_tokens = 20;
    (void)engine.submit(std::move(request));
    std::vector<Token> tokens;
    while (!engine.idle())
      for (const Event& event : engine.step())
        if (event.has_token && event.finish != Finish::stop_token) tokens.push_back(event.choice.token);
    return tokens;
  };
  EXPECT_EQ(answer({}), expected.tokens);
  EXPECT_EQ(answer({.stop_tokens = {earlier}}),
            model.generate(prompt, {.max_tokens = 20, .stop_tokens = {earlier}}).tokens);
  EXPECT_EQ(answer({.ignore_eos = true}), whole);
  EXPECT_EQ(answer({.stop_tokens = {end}, .ignore_eos = true}), expected.tokens);
}

TEST_F(LlmModel, AnEngineOutlivesItsModel) {
  std::optional<Model> model(open());
  const std::vector<Token> prompt = {1, 2, 3};
  const Answer expected = model->generate(prompt, {.max_tokens = 5});
  Engine engine(*model);
  const std::vector<Token> stops = model->stop_tokens();
  model.reset();
  (void)engine.submit({.prompt = prompt, .max_tokens = 5, .stop_tokens = stops});
  std::string text;
  while (!engine.idle())
    for (const Event& event : engine.step()) text += event.text;
  EXPECT_EQ(text, expected.text);
}

TEST_F(LlmModel, NamesWhatItRefuses) {
  EXPECT_NE(error_of([] { (void)Model::open("no/such/model"); }).find("there is no model"), std::string::npos);
  EXPECT_THROW((void)Model::open(golden_.path().string(), {.context = -1}), InvalidArgument);
  Model model = open();
  EXPECT_NE(error_of([&] { (void)model.chat_template(); }).find("brings no chat template"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)model.chat_template("chatmll"); }).find("did you mean 'chatml'"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)model.embed(std::vector<std::string>{"a"}); }).find("minilm"), std::string::npos);
  EXPECT_THROW(model.generate("", {}), InvalidArgument);
  EXPECT_THROW(model.generate("a", {.max_tokens = 0}), InvalidArgument);
  EXPECT_THROW(model.generate("a", {.sampling = {.temperature = -1}}), InvalidArgument);
}

TEST_F(LlmModel, WarnsOfAContextItWasNotMadeFor) {
  std::vector<std::string> warnings;
  std::int64_t loaded = 0;
  const Model model = open({.context = 1 << 20,
                            .check_memory = false,
                            .progress = [&](std::int64_t done, std::int64_t) { loaded = done; },
                            .warning = [&](const std::string& text) { warnings.push_back(text); }});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings[0].starts_with("context is 1048576, and the model was made for")) << warnings[0];
  EXPECT_EQ(loaded, model.info().file_bytes);
}

TEST_F(LlmModel, ChatsByATemplateOfItsFolder) {
  write_text(golden_.path() / "chat_template.jinja", "{{ '<|im_start|>' + message['role'] + '\\n' }}<|im_end|>");
  Model model = open();
  const ChatTemplate chat = model.chat_template();
  const Message messages[] = {{"user", "hello"}};
  const std::vector<Token> prompt = encode_chat(model.tokenizer(), chat, messages, true);
  GenerateOptions options{.max_tokens = 12};
  options.stop_tokens = model.stop_tokens(&chat);
  EXPECT_EQ(model.chat(messages, {.max_tokens = 12}).tokens, model.generate(prompt, options).tokens);
}

// The model inside the library.
class EmbeddedModel : public testing::Test {
 protected:
  EmbeddedModel() { ::setenv("ATTEND_HOME", folder_.path().c_str(), 1); }
  ~EmbeddedModel() override { ::unsetenv("ATTEND_HOME"); }
  TempFolder folder_;
};

TEST_F(EmbeddedModel, OpensWithoutAnyFile) {
  EXPECT_EQ(default_model(), embedded_model());
  EXPECT_EQ(find_model(""), find_model(embedded_model()));
  EXPECT_FALSE(fs::exists(find_model(embedded_model())));
  const ModelInfo info = model_info(embedded_model());
  EXPECT_GT(info.parameters, 1000000);
  EXPECT_LT(info.file_bytes, 8 << 20);
  Model model = Model::open(embedded_model());
  EXPECT_EQ(model.info().parameters, info.parameters);
  const Answer story = model.generate("Once upon a time", {.max_tokens = 24});
  EXPECT_EQ(Model::open("").generate("Once upon a time", {.max_tokens = 24}).tokens, story.tokens);
  EXPECT_TRUE(story.text.starts_with(", there was a")) << story.text;
  const Message messages[] = {{"user", "Hello!"}};
  EXPECT_FALSE(model.chat(messages, {.max_tokens = 24}).text.empty());
}

TEST_F(EmbeddedModel, IsNotTheDefaultWhereOneWasPulled) {
  const fs::path folder = folder_.path() / "models" / "mine";
  fs::create_directories(folder.parent_path());
  fs::copy(GoldenModel("llama").path(), folder, fs::copy_options::recursive);
  write_text(folder / "attend.json",
             R"({"package": "x", "version": "1", "files": [{"path": "config.json", "bytes": 1, "sha256": ""}]})");
  EXPECT_EQ(default_model(), "mine");
  write_text(folder / "config.json", "{");  // a damaged one is none
  EXPECT_EQ(default_model(), embedded_model());
}

TEST(LlmStore, KnowsWhatCanBePulled) {
  ASSERT_FALSE(known_models().empty());
  for (const CatalogModel& model : known_models()) {
    EXPECT_EQ(known_model(model.name), &model);
    ASSERT_FALSE(model.sources.empty());
    for (const ModelSource& source : model.sources)
      for (const WheelPart& part : source.parts)
        EXPECT_EQ((model.sha256.empty() ? part.sha256 : model.sha256).size(), 64U) << model.name;
  }
  EXPECT_EQ(known_model("no such"), nullptr);
  EXPECT_THROW(check_model_name("../up"), InvalidArgument);
}

}  // namespace
}  // namespace attend::llm::test
