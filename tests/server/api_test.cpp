// The API without a socket: every path answers, errors are error objects, and a stop ends what runs.
#include <gtest/gtest.h>

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

TEST_F(ApiTest, WhatWasReadBeforeIsCounted) {
  const std::string question =
      R"({"messages": [{"role": "user", "content": "the same words again"}], "max_tokens": 2, "n": 2, "temperature": 0)";
  const auto cached = [&](const std::string& more) {
    const io::Json answer = parsed(server_.ask(TinyServer::post("/v1/chat/completions", question + more + "}")));
    return *answer.find("usage")->find("prompt_tokens_details")->find("cached_tokens")->integer();
  };
  EXPECT_EQ(cached(""), 0);  // the second choice shares what the first has read: that is no earlier request
  const std::int64_t again = cached("");
  EXPECT_GT(again, 0);
  EXPECT_EQ(cached(R"(, "seed": 5)"), again);
  EXPECT_GT(server_.models.all().front()->numbers().engine.reused_tokens, 2 * again);
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

}  // namespace
}  // namespace attend::server::test
