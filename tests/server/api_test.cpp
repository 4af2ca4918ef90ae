// The API without a socket: every path answers, errors are error objects, and a stop ends what runs.
#include <gtest/gtest.h>

#include "apps/server/tools.hpp"
#include "tiny_served_model.hpp"

namespace attend::server::test {
namespace {

class ApiTest : public testing::Test {
 protected:
  static io::Json parsed(const Response& response) { return io::parse_json(response.body, "answer"); }
  TinyServer server_;
};

TEST_F(ApiTest, AChatAndItsStream) {
  const std::string question = R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "temperature": 0)";
  const Response whole = server_.ask(TinyServer::post("/v1/chat/completions", question + "}"));
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Response stream = server_.ask(TinyServer::post("/v1/chat/completions", question + R"(, "stream": true})"));
  EXPECT_EQ(stream.content_type, kEventStream);
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
  const io::Json answer = parsed(whole);
  EXPECT_NE(answer.find("usage"), nullptr);
}

TEST_F(ApiTest, ErrorsAreErrorObjects) {
  for (const auto& [path, body] :
       {std::pair("/v1/chat/completions", "{}"), std::pair("/v1/completions", R"({"prompt": 3})"),
        std::pair("/v1/embeddings", R"({"input": "a"})"), std::pair("/tokenize", R"({"content": 3})"),
        std::pair("/detokenize", R"({"tokens": [-1]})"), std::pair("/tokenize", "{\"content\": \"a\", \"x\": 1}")}) {
    const Response response = server_.ask(TinyServer::post(path, body));
    EXPECT_EQ(response.status, 400) << path << response.body;
    EXPECT_NE(parsed(response).find("error"), nullptr);
  }
}

TEST_F(ApiTest, AClientThatHasGoneFreesItsPlace) {
  for (int n = 0; n < 20; ++n) {
    const auto reply = std::make_shared<KeptReply>();
    reply->gone = true;
    server_.router.handle(
        TinyServer::post("/v1/completions", R"({"prompt": "abc", "max_tokens": 900, "logit_bias": {"63": -100}})"),
        reply);
    EXPECT_EQ(reply->wait().status, 503);
  }
  EXPECT_EQ(server_.models.all().front()->numbers().open, 0);
  EXPECT_EQ(server_.models.all().front()->numbers().cancelled, 20);
}

TEST_F(ApiTest, AStopEndsWhatRunsWithItsReason) {
  const auto reply = std::make_shared<KeptReply>();
  server_.router.handle(
      TinyServer::post("/v1/completions",
                       R"({"prompt": "abc", "max_tokens": 900, "stream": true, "logit_bias": {"63": -100}})"),
      reply);
  server_.models.stop("closing time");
  const Response response = reply->wait();
  EXPECT_NE(response.body.find("closing time"), std::string::npos);
  EXPECT_EQ(server_.ask(TinyServer::post("/v1/completions", R"({"prompt": "abc"})")).status, 429);
}

TEST_F(ApiTest, JobsRunBetweenSteps) {
  std::mutex mutex;
  std::condition_variable done;
  std::int64_t vocabulary = 0;
  ASSERT_TRUE(server_.models.all().front()->run([&](ModelParts& parts) {
    const std::lock_guard lock(mutex);
    vocabulary = parts.transformer.config().vocabulary;
    done.notify_all();
  }));
  std::unique_lock lock(mutex);
  EXPECT_TRUE(done.wait_for(lock, std::chrono::minutes(1), [&] { return vocabulary > 0; }));
  EXPECT_EQ(vocabulary, 64);
}

TEST(Tools, CallsAreReadAndTextStays) {
  const std::vector<Tool> tools = {{"look", "{}", {}}, {"go", "{}", {}}};
  const auto one = parse_calls("<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>", tools);
  ASSERT_EQ(one.calls.size(), 1U);
  EXPECT_EQ(one.calls[0].arguments, "{\"at\":1}");
  EXPECT_EQ(one.content, "");
  const auto two = parse_calls(
      "well <tool_call>{\"name\":\"look\"}</tool_call> <tool_call>{\"name\":\"go\",\"arguments\":\"{}\"}", tools);
  EXPECT_EQ(two.calls.size(), 2U);
  EXPECT_EQ(two.content, "well");
  EXPECT_EQ(parse_calls(R"({"name": "go", "parameters": {}})", tools).calls.size(), 1U);
  EXPECT_EQ(parse_calls(R"([{"name": "go"}, {"name": "look"}])", tools).calls.size(), 2U);
  for (const char* text : {"<tool_call>{\"name\": \"other\"}</tool_call>", "<tool_call>nonsense</tool_call> x",
                           "{\"a\": 1}", "plain", ""}) {
    EXPECT_TRUE(parse_calls(text, tools).calls.empty()) << text;
    EXPECT_EQ(parse_calls(text, tools).content, text);
  }
  EXPECT_EQ(surely_content("abc <tool"), 4U);
  EXPECT_EQ(surely_content("abc <tools>"), 11U);
  EXPECT_EQ(surely_content("abc <tool_call>{"), 4U);
  EXPECT_EQ(surely_content(" {\"a\""), 0U);
}

}  // namespace
}  // namespace attend::server::test
