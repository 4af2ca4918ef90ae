// Who may ask: pages of sites that are named (CORS), and tokens in the headers that clients use.
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/server/router.hpp"

namespace attend::server {
namespace {

constexpr const char* kSite = "https://chat.example";

class Keeps : public Reply {
 public:
  void send(Response sent) override { response = std::move(sent); }
  void begin(Response) override {}
  bool write(std::string) override { return true; }
  void end() override {}
  void when_gone(std::function<void()>) override {}
  Response response{.status = 0};
};

Router router(Access access) {
  Router r(std::move(access));
  const Handler answer = [](const Request&, const std::shared_ptr<Reply>& reply) { reply->send({.body = "answer"}); };
  r.add("GET", "/a", answer);
  r.add("POST", "/a", answer);
  r.add("GET", "/open", answer, {.open = true});
  return r;
}

Response ask(const Router& r, const std::string& method, const std::string& path, Headers headers) {
  headers.emplace_back("host", "localhost");
  const auto reply = std::make_shared<Keeps>();
  r.handle({.method = method, .path = path, .headers = std::move(headers)}, reply);
  return reply->response;
}

std::string value(const Headers& headers, const std::string& name) {
  for (const auto& [key, text] : headers)
    if (key == name) return text;
  return "(none)";
}

TEST(Origins, OfNamedSitesMayAsk) {
  const Router r = router({.origins = {kSite, "http://localhost:3000"}});
  for (const char* origin : {kSite, "HTTPS://Chat.Example", "http://localhost:3000"}) {
    const Headers page = {{"host", "localhost"}, {"origin", origin}};
    EXPECT_EQ(ask(r, "GET", "/a", {{"origin", origin}}).body, "answer");
    EXPECT_EQ(value(r.headers({.headers = page}), "Access-Control-Allow-Origin"), origin);
    EXPECT_EQ(value(r.headers({.headers = page}), "Vary"), "Origin");
  }
  for (const char* origin : {"https://chat.example.evil", "http://chat.example", "https://chat.example:8443", "null",
                             "https://evil.example", "", "*"}) {
    EXPECT_EQ(ask(r, "GET", "/a", {{"origin", origin}}).status, 403) << origin;
    EXPECT_EQ(value(r.headers({.headers = {{"origin", origin}}}), "Access-Control-Allow-Origin"), "(none)") << origin;
  }
  EXPECT_EQ(ask(r, "GET", "/a", {{"origin", kSite}, {"origin", kSite}}).status, 403);
  EXPECT_EQ(ask(router({}), "GET", "/a", {{"origin", kSite}}).status, 403);
  EXPECT_EQ(value(router({}).headers({.headers = {{"origin", kSite}}}), "Access-Control-Allow-Origin"), "(none)");
}

TEST(Origins, APreflightIsAnsweredWithoutAToken) {
  const Router r = router({.token = "secret", .origins = {kSite}});
  const Headers asks = {{"origin", kSite},
                        {"access-control-request-method", "POST"},
                        {"access-control-request-headers", "authorization,content-type,x-stainless-os"}};
  const Response answer = ask(r, "OPTIONS", "/a", asks);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_EQ(value(answer.headers, "Access-Control-Allow-Methods"), "GET, POST");
  EXPECT_EQ(value(answer.headers, "Access-Control-Allow-Headers"), "authorization,content-type,x-stainless-os");
  // The request itself needs its token, and the page can read that it does.
  EXPECT_EQ(ask(r, "POST", "/a", {{"origin", kSite}, {"content-type", "application/json"}}).status, 401);
  EXPECT_EQ(ask(r, "OPTIONS", "/nowhere", asks).status, 404);
  Headers strange = asks;
  strange[2].second = "x: y\r\nset-cookie: a";
  EXPECT_EQ(value(ask(r, "OPTIONS", "/a", strange).headers, "Access-Control-Allow-Headers"), "(none)");
  Headers other = asks;
  other[0].second = "https://evil.example";
  EXPECT_EQ(ask(r, "OPTIONS", "/a", other).status, 403);
  // Without those headers OPTIONS is a method like others.
  EXPECT_EQ(ask(r, "OPTIONS", "/a", {{"origin", kSite}}).status, 405);
  EXPECT_EQ(ask(r, "OPTIONS", "/a", {{"access-control-request-method", "POST"}}).status, 405);
}

TEST(Origins, AreASchemeAHostAndAPort) {
  EXPECT_EQ(as_origin("https://Chat.Example:8443"), "https://chat.example:8443");
  EXPECT_EQ(as_origin("http://[::1]:80"), "http://[::1]:80");
  for (const char* text : {"", "*", "null", "chat.example", "ftp://chat.example", "https://", "https://chat.example/",
                           "https://chat.example/a", "https://*.example", "https://a b", "https://user@a",
                           "https://a:b", "https://a?b", "https://[evil]"})
    EXPECT_EQ(as_origin(text), "") << text;
}

TEST(Tokens, ComeInEitherHeader) {
  const Router r = router({.token = "secret"});
  const auto status = [&](Headers headers) { return ask(r, "GET", "/a", std::move(headers)).status; };
  EXPECT_EQ(status({{"x-api-key", "secret"}}), 200);
  EXPECT_EQ(status({{"authorization", "Bearer none"}, {"x-api-key", "secret"}}), 200);
  EXPECT_EQ(status({{"authorization", "Bearer secret"}, {"x-api-key", "none"}}), 200);
  EXPECT_EQ(status({{"authorization", "secret"}}), 401);
  EXPECT_EQ(status({{"x-api-key", "secret"}, {"x-api-key", "secret"}}), 401);
  for (const char* key : {"", "secre", "secrets", "Bearer secret"}) EXPECT_EQ(status({{"x-api-key", key}}), 401) << key;
  EXPECT_EQ(status({}), 401);
  EXPECT_NE(ask(r, "GET", "/a", {{"x-api-key", "no"}}).body.find("wrong token"), std::string::npos);
  EXPECT_NE(ask(r, "GET", "/a", {}).body.find("no token"), std::string::npos);
}

// HEAD is answered where GET is, and needs what GET needs.
TEST(Tokens, AreNeededByEveryMethod) {
  const Router r = router({.token = "secret"});
  for (const char* method : {"GET", "HEAD", "POST"}) EXPECT_EQ(ask(r, method, "/a", {}).status, 401) << method;
  EXPECT_EQ(ask(r, "HEAD", "/a", {{"authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(ask(r, "HEAD", "/open", {}).status, 200);
}

}  // namespace
}  // namespace attend::server
