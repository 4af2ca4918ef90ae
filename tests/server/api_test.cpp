// The API without a socket: every path answers, errors are error objects, and a stop ends what runs.
#include <gtest/gtest.h>

#include <tuple>

#include "attend/error.hpp"
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
        std::pair("/detokenize", R"({"tokens": [-1]})"), std::pair("/tokenize", "[]")}) {
    const Response response = server_.ask(TinyServer::post(path, body));
    EXPECT_EQ(response.status, 400) << path << response.body;
    EXPECT_NE(parsed(response).find("error"), nullptr);
  }
}

std::string header(const Response& response, const std::string& name) {
  for (const auto& [key, value] : response.headers)
    if (key == name) return value;
  return "";
}

TEST_F(ApiTest, FieldsWithoutEffectAreNamed) {
  const std::string messages = R"("messages": [
    {"role": "system", "content": "a", "cache_control": {"type": "ephemeral"}},
    {"role": "user", "id": "m1", "name": "bob", "content": [{"type": "text", "text": "b", "cache_control": {}}]},
    {"role": "assistant", "id": "m2", "name": "x", "content": "c", "reasoning_content": "hm", "annotations": [1]},
    {"role": "user", "id": "m3", "content": "d"}])";
  const std::string ask = "{" + messages + R"(, "max_tokens": 2, "session_id": "s", "absent": null)";
  for (const std::string more : {"", R"(, "stream": true)"}) {
    const Response answer = server_.ask(TinyServer::post("/v1/chat/completions", ask + more + "}"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(header(answer, "attend-ignored"),
              "messages[].cache_control, messages[].content[].cache_control, messages[].id, messages[].name, "
              "messages[].reasoning_content, messages[].annotations, session_id");
  }
  for (const auto& [path, body] : {std::pair("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "keep_alive": 1})"),
                                   std::pair("/tokenize", R"({"content": "a", "keep_alive": 1})"),
                                   std::pair("/detokenize", R"({"tokens": [1], "keep_alive": 1})")})
    EXPECT_EQ(header(server_.ask(TinyServer::post(path, body)), "attend-ignored"), "keep_alive") << path;
  EXPECT_EQ(header(server_.ask(TinyServer::post("/tokenize", R"({"content": "a"})")), "attend-ignored"), "");
}

// Names come from outside: a header has so many of them, so long, in ASCII without commas.
TEST(IgnoredFields, StayAHeader) {
  IgnoredFields ignored;
  for (const char* path : {"a\r\nb: c", "a,b", "\xc3\xa9", "m[12].x[3].y", "m[7].x[0].y", "z[", "a,b"})
    ignored.add(path);
  EXPECT_EQ(ignored.text(), "a??b:?c, a?b, ??, m[].x[].y, z[");
  for (int n = 0; n < 1000; ++n) ignored.add(std::to_string(n) + std::string(1000, 'x'));
  const std::string text = ignored.text();
  EXPECT_LT(text.size(), 2000U);
  EXPECT_TRUE(text.ends_with(", ..."));
}

// What clients of OpenAI, Anthropic, vLLM, llama.cpp and LM Studio send besides.
TEST_F(ApiTest, WhatClientsSendIsTaken) {
  const auto chat = [&](const std::string& more) {
    return server_.ask(TinyServer::post(
        "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3)" + more + "}"));
  };
  for (const auto& [field, value, named] : std::vector<std::tuple<std::string, std::string, bool>>{
           {"reasoning_effort", "\"low\"", true},
           {"reasoning_effort", "\"high\"", true},
           {"reasoning_effort", "\"none\"", false},
           {"store", "true", true},
           {"store", "false", false},
           {"service_tier", "\"flex\"", true},
           {"prompt_cache_retention", "\"24h\"", true},
           {"prediction", "{}", true},
           {"top_k", "-1", false},
           {"repeat_penalty", "1.1", false},
           {"typical_p", "1.0", false},
           {"mirostat", "0", false},
           {"chat_template_kwargs", R"({"enable_thinking": true})", true},
           {"chat_template_kwargs", R"({"enable_thinking": false, "other": 1})", true},
           {"keep_alive", "\"5m\"", true}}) {
    const Response answer = chat(", \"" + field + "\": " + value);
    EXPECT_EQ(answer.status, 200) << field << answer.body;
    EXPECT_EQ(header(answer, "attend-ignored").starts_with(field), named) << field << value;
  }
  // Those that would change the answer are refused by name.
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{{"reasoning_effort", "\"much\""},
                                                                                     {"store", "1"},
                                                                                     {"top_k", "-2"},
                                                                                     {"repeat_penalty", "0"},
                                                                                     {"max_completion_tokens", "-1"},
                                                                                     {"max_completion_tokens", "0"},
                                                                                     {"guided_regex", "\"a\""},
                                                                                     {"grammar", "\"root ::= x\""},
                                                                                     {"mirostat", "2"},
                                                                                     {"min_tokens", "4"},
                                                                                     {"chat_template", "\"x\""},
                                                                                     {"continue_final_message", "true"},
                                                                                     {"functions", "[]"},
                                                                                     {"verbosity", "\"low\""}}) {
    const Response answer = chat(", \"" + field + "\": " + value);
    ASSERT_EQ(answer.status, 400) << field << value;
    const std::string param = *parsed(answer).find("error")->find("param")->string();
    EXPECT_EQ(param, field == "max_completion_tokens" && value == "-1" ? "max_tokens" : field);
  }
  EXPECT_EQ(chat(R"(, "repetition_penalty": 1.2, "repeat_penalty": 1.2)").status, 200);
  EXPECT_EQ(chat(R"(, "repetition_penalty": 1.2, "repeat_penalty": 1.3)").status, 400);
}

// -1 means unlimited: the answer ends where it ends without a limit.
TEST_F(ApiTest, AnAnswerWithoutALimit) {
  const auto text = [&](const char* path, const std::string& body) {
    const Response answer =
        server_.ask(TinyServer::post(path, body + R"("temperature": 0, "logit_bias": {"63": -100}})"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return *parsed(answer).find("usage")->find("total_tokens")->integer();
  };
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}], )";
  for (const char* limit : {"", R"("max_tokens": -1, )", R"("max_completion_tokens": -1, )"})
    EXPECT_EQ(text("/v1/chat/completions", chat + limit), 1024) << limit;
  EXPECT_EQ(text("/v1/completions", R"({"prompt": "abc", "max_tokens": -1, )"), 1024);
  EXPECT_EQ(text("/v1/completions", R"({"prompt": "abc", )"), 3 + 16);
}

// The last token of a context is one that is generated.
TEST_F(ApiTest, APromptOfExactlyTheContext) {
  const auto ask = [&](std::size_t tokens) {
    return server_.ask(TinyServer::post("/v1/completions", "{\"prompt\": \"" + std::string(tokens, 'a') + "\"}"));
  };
  const Response fits = ask(1023), full = ask(1024), over = ask(1025);
  ASSERT_EQ(fits.status, 200) << fits.body;
  const io::Json answer = parsed(fits);
  EXPECT_EQ(*answer.find("usage")->find("prompt_tokens")->integer(), 1023);
  EXPECT_EQ(*answer.find("usage")->find("completion_tokens")->integer(), 1);
  for (const auto& [response, shorter] : {std::pair(full, "by 1\""), std::pair(over, "by 2\"")}) {
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(*parsed(response).find("error")->find("code")->string(), "context_length_exceeded");
    EXPECT_NE(response.body.find(std::string("shorten it ") + shorter), std::string::npos) << response.body;
  }
  ServedModel& model = *server_.models.all().front();
  const auto submit = [&](std::size_t tokens) {
    (void)model.submit(
        {{{.prompt = std::vector<llm::Token>(tokens, 1)}, [](const llm::Event&, const std::string&) {}}});
  };
  EXPECT_NO_THROW(submit(1023));
  EXPECT_THROW(submit(1024), InvalidArgument);
}

// Each limit is taken, and what is just beyond it is refused by name.
TEST_F(ApiTest, LimitsAreExact) {
  const auto status = [&](const std::string& field, const std::string& value) {
    std::string body = R"({"messages": [{"role": "user", "content": "hi"}], )";
    if (field != "max_tokens") body += R"("max_tokens": 1, )";
    const Response answer =
        server_.ask(TinyServer::post("/v1/chat/completions", body + "\"" + field + "\": " + value + "}"));
    if (answer.status == 400) {
      const std::string param = *parsed(answer).find("error")->find("param")->string();
      EXPECT_TRUE(param.starts_with(field)) << param << " " << field;
    }
    return answer.status;
  };
  const auto times = [](std::size_t count, const auto& item) {
    std::string all = "[";
    for (std::size_t n = 0; n < count; ++n) all += (n > 0 ? ", " : "") + std::string(item(n));
    return all + "]";
  };
  const auto text = [](std::size_t bytes) { return "\"" + std::string(bytes, 'x') + "\""; };
  const auto tool = [](const std::string& name) {
    return R"({"type": "function", "function": {"name": ")" + name + "\"}}";
  };
  const auto stops = [&](std::size_t count) { return times(count, [](std::size_t) { return "\"zz\""; }); };
  const auto tools = [&](std::size_t count) {
    return times(count, [&](std::size_t n) { return tool("f" + std::to_string(n)); });
  };
  for (const auto& [field, good, bad] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"temperature", "0", "-0.01"},
           {"temperature", "2", "2.01"},
           {"top_p", "0", "-0.01"},
           {"top_p", "1", "1.01"},
           {"min_p", "1", "1.01"},
           {"top_k", "-1", "-2"},
           {"top_k", "2147483647", "2147483648"},
           {"repetition_penalty", "0.01", "0.009"},
           {"repetition_penalty", "100", "100.1"},
           {"repeat_penalty", "100", "100.1"},
           {"presence_penalty", "-2", "-2.01"},
           {"frequency_penalty", "2", "2.01"},
           {"n", "4", "5"},
           {"n", "1", "0"},
           {"max_tokens", "2147483648", "2147483649"},
           {"max_tokens", "-1", "-2"},
           {"max_tokens", "1", "0"},
           {"logit_bias", R"({"63": 100})", R"({"64": 100})"},
           {"logit_bias", R"({"0": -100})", R"({"0": -100.1})"},
           {"stop", stops(16), stops(17)},
           {"stop", text(1024), text(1025)},
           {"tools", "[" + tool(std::string(64, 'f')) + "]", "[" + tool(std::string(65, 'f')) + "]"}}) {
    EXPECT_EQ(status(field, good), 200) << field << good.substr(0, 40);
    EXPECT_EQ(status(field, bad), 400) << field << bad.substr(0, 40);
  }
  EXPECT_EQ(status("tools", tools(129)), 400);
  const Response many = server_.ask(TinyServer::post(
      "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "tools": )" + tools(128) + "}"));
  EXPECT_NE(many.body.find("context_length_exceeded"), std::string::npos);  // they are taken, and do not fit
  const auto completions = [&](const std::string& body) {
    return server_.ask(TinyServer::post("/v1/completions", R"({"max_tokens": 1, )" + body + "}")).status;
  };
  for (const auto& [good, bad] :
       {std::pair(R"("prompt": ["a", "b", "c", "d"])", R"("prompt": ["a", "b", "c", "d", "e"])"),
        std::pair(R"("prompt": ["a", "b"], "n": 2)", R"("prompt": ["a", "b", "c"], "n": 2)"),
        std::pair(R"("prompt": [63])", R"("prompt": [64])"),
        std::pair(R"("prompt": "a", "logprobs": 20)", R"("prompt": "a", "logprobs": 21)")}) {
    EXPECT_EQ(completions(good), 200) << good;
    EXPECT_EQ(completions(bad), 400) << bad;
  }
}

// What a request leaves out is as the model's files say, else as `attend chat` has it.
TEST_F(ApiTest, SamplingOfTheFilesAndOfChat) {
  const auto text = [](const TinyServer& server, const std::string& more) {
    const Response answer = server.ask(
        TinyServer::post("/v1/completions", R"({"prompt": "abcabc", "max_tokens": 200, "seed": 7)" + more + "}"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return *parsed(answer).find("choices")->array()->front().find("text")->string();
  };
  const std::string plain = text(server_, "");
  EXPECT_EQ(
      text(server_, R"(, "temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.05, "top_k": 0)"),
      plain);
  for (const char* other : {R"(, "temperature": 1)", R"(, "top_p": 0.3)", R"(, "min_p": 0)",
                            R"(, "repetition_penalty": 1)", R"(, "repeat_penalty": 1)", R"(, "top_k": 2)"})
    EXPECT_NE(text(server_, other), plain) << other;
  EXPECT_NE(text(server_, R"(, "min_p": 0, "top_p": 1)"), text(server_, R"(, "min_p": 0)"));
  const std::string greedy = text(server_, R"(, "temperature": 0)");
  EXPECT_EQ(text(server_, R"(, "temperature": 0, "repetition_penalty": 1, "top_p": 0.1)"), greedy);
  EXPECT_NE(text(server_, R"(, "temperature": 0, "repetition_penalty": 1.5)"), greedy);
  const TinyServer files(R"({"temperature": 1.3, "top_k": 30, "min_p": 0})");
  EXPECT_EQ(
      text(files, ""),
      text(server_, R"(, "temperature": 1.3, "top_k": 30, "top_p": 0.9, "min_p": 0, "repetition_penalty": 1.05)"));
  EXPECT_EQ(text(files, R"(, "temperature": 0.7, "top_k": -1, "min_p": 0.05)"), plain);
  EXPECT_EQ(text(TinyServer(R"({"do_sample": false, "temperature": 1.3})"), ""), greedy);
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

TEST(ApiStop, EndsWhatRunsWithItsReason) {
  bool stopped = false;
  for (int n = 0; n < 100 && !stopped; ++n) {  // an answer may be over before this thread comes to the stop
    TinyServer server;
    const auto reply = std::make_shared<KeptReply>();
    server.router.handle(
        TinyServer::post("/v1/completions",
                         R"({"prompt": "abc", "max_tokens": 900, "stream": true, "logit_bias": {"63": -100}})"),
        reply);
    server.models.stop("closing time");
    stopped = reply->wait().body.find("closing time") != std::string::npos;
    EXPECT_EQ(server.ask(TinyServer::post("/v1/completions", R"({"prompt": "abc"})")).status, 429);
  }
  EXPECT_TRUE(stopped);
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
