// The checks before a handler, in their order.
#include "apps/server/router.hpp"

#include <gtest/gtest.h>

#include "apps/server/assets.hpp"
#include "apps/server/client.hpp"
#include "apps/server/listener.hpp"
#include "attend/error.hpp"

namespace attend::server {
namespace {

Router router(Access access = {}) {
  Router r(std::move(access));
  const Handler nothing = [](const Request&, const std::shared_ptr<Reply>&) {};
  r.add("GET", "/a", nothing);
  r.add("POST", "/a", nothing);
  r.add("GET", "/b/*", nothing);
  r.add("GET", "/open", nothing, {.open = true});
  return r;
}

int status(const Router& r, Request request) {
  const auto refused = r.refusal(request);
  return refused ? refused->status : 200;
}

Request get(const std::string& path, Headers headers = {{"host", "localhost"}}) {
  return {.path = path, .headers = std::move(headers)};
}

TEST(Router, HostComesFirst) {
  const Router r = router();
  EXPECT_EQ(status(r, get("/nowhere", {{"host", "evil.example"}})), 421);
  EXPECT_EQ(status(r, get("/a", {})), 400);
  EXPECT_EQ(status(r, get("/a", {{"host", "localhost"}, {"host", "localhost"}})), 400);
  EXPECT_EQ(status(r, get("/a", {{"host", "192.168.0.7"}})), 421);
  EXPECT_EQ(status(router({.any_address = true}), get("/a", {{"host", "192.168.0.7:80"}})), 200);
  EXPECT_EQ(status(router({.any_address = true}), get("/a", {{"host", "rebound.example"}})), 421);
}

TEST(Router, PathsMethodsAndPrefixes) {
  const Router r = router();
  EXPECT_EQ(status(r, get("/a")), 200);
  EXPECT_EQ(status(r, get("/b")), 404);
  EXPECT_EQ(status(r, get("/b/")), 404);
  EXPECT_EQ(status(r, get("/b/c")), 200);
  Request wrong = get("/a");
  wrong.method = "DELETE";
  EXPECT_EQ(status(r, wrong), 405);
  EXPECT_EQ(r.refusal(wrong)->headers.back().second, "GET, POST");
}

// HEAD passes the same checks as GET, and finds the same handler.
TEST(Router, HeadIsCheckedAsGet) {
  Router r({.token = "secret"});
  std::string ran;
  r.add("GET", "/a", [&](const Request& request, const std::shared_ptr<Reply>&) { ran += request.method + " a;"; });
  r.add("GET", "/b/*", [&](const Request& request, const std::shared_ptr<Reply>&) { ran += request.method + " b;"; });
  r.add("GET", "/open", [](const Request&, const std::shared_ptr<Reply>&) {}, {.open = true, .immediate = true});
  r.add("POST", "/post", [](const Request&, const std::shared_ptr<Reply>&) {});
  const Headers with = {{"host", "localhost"}, {"authorization", "Bearer secret"}};
  const auto head = [](const std::string& path, Headers headers = {{"host", "localhost"}}) {
    return Request{.method = "HEAD", .path = path, .headers = std::move(headers)};
  };
  for (const char* path : {"/a", "/b/c"}) {
    EXPECT_EQ(status(r, head(path)), 401) << path;
    EXPECT_EQ(status(r, head(path, {{"host", "localhost"}, {"authorization", "Bearer wrong!"}})), 401) << path;
    EXPECT_EQ(status(r, head(path, with)), 200) << path;
    EXPECT_EQ(status(r, head(path, {{"host", "evil.example"}, {"authorization", "Bearer secret"}})), 421) << path;
    r.handle(head(path, with), nullptr);
  }
  EXPECT_EQ(ran, "HEAD a;HEAD b;");
  EXPECT_EQ(status(r, head("/open")), 200);
  EXPECT_TRUE(r.immediate(head("/open")));
  EXPECT_FALSE(r.immediate(head("/a")));
  EXPECT_EQ(status(r, head("/post", with)), 405);
  EXPECT_EQ(status(r, head("/nowhere", with)), 404);
  Headers body = with;
  body.emplace_back("content-length", "2");
  EXPECT_EQ(status(r, head("/a", body)), 400);
}

TEST(Router, TheLongestPrefixAnswers) {
  Router r;
  std::string ran;
  for (const char* path : {"/x/*", "/x/y/*", "/x/y/z"})
    r.add("GET", path, [&ran, path](const Request&, const std::shared_ptr<Reply>&) { ran = path; });
  for (const auto& [path, route] : std::vector<std::pair<std::string, std::string>>{
           {"/x/a", "/x/*"}, {"/x/y/", "/x/*"}, {"/x/y/a", "/x/y/*"}, {"/x/y/z", "/x/y/z"}, {"/x/y/z/", "/x/y/*"}}) {
    r.handle(get(path), nullptr);
    EXPECT_EQ(ran, route) << path;
  }
}

TEST(Router, ChecksComeInTheirOrder) {
  const Router r = router({.token = "secret"});
  Request request{.method = "POST",
                  .path = "/nowhere",
                  .headers = {{"host", "evil.example"}, {"origin", "http://evil.example"}},
                  .body = "{}"};
  EXPECT_EQ(status(r, request), 421);
  request.headers[0].second = "localhost";
  EXPECT_EQ(status(r, request), 403);
  request.headers.pop_back();
  EXPECT_EQ(status(r, request), 404);
  request.path = "/b/c";
  EXPECT_EQ(status(r, request), 405);
  request.path = "/a";
  EXPECT_EQ(status(r, request), 401);
  request.headers.emplace_back("authorization", "Bearer secret");
  EXPECT_EQ(status(r, request), 415);
  request.headers.emplace_back("content-type", "application/json");
  EXPECT_EQ(status(r, request), 200);
}

TEST(Router, OriginIsThisServer) {
  const Router r = router();
  const auto from = [&](const std::string& origin, const std::string& host = "localhost:80") {
    return status(r, get("/a", {{"host", host}, {"origin", origin}}));
  };
  for (const char* origin : {"http://localhost:80", "https://localhost:80", "HTTP://LOCALHOST:80"})
    EXPECT_EQ(from(origin), 200) << origin;
  for (const char* origin : {"", "null", "http://localhost", "http://localhost:8", "http://localhost:800",
                             "http://localhost:80/", "ftp://localhost:80", "http://127.0.0.1:80", "localhost:80"})
    EXPECT_EQ(from(origin), 403) << origin;
  EXPECT_EQ(status(r, get("/a", {{"host", "localhost"}, {"origin", "http://localhost"}, {"origin", "null"}})), 403);
}

TEST(Router, HostsAreWholeNamesWithAPort) {
  const Router r = router(), any = router({.any_address = true});
  for (const char* host : {"localhost", "LOCALHOST:1", "127.0.0.1:65535", "[::1]", "[::1]:8080"})
    EXPECT_EQ(status(r, get("/a", {{"host", host}})), 200) << host;
  for (const char* host : {"", ":80", "localhost:", "localhost:8x", "localhost:1234567", "localhost.", "localhostx",
                           "::1", "[::1", "[::1]x"})
    EXPECT_EQ(status(r, get("/a", {{"host", host}})), 421) << host;
  for (const char* host : {"10.0.0.1", "[fe80::1]:80"}) {
    EXPECT_EQ(status(r, get("/a", {{"host", host}})), 421) << host;
    EXPECT_EQ(status(any, get("/a", {{"host", host}})), 200) << host;
  }
  for (const char* host : {"[]", "[evil]", "1.evil", "0x7f.1"})
    EXPECT_EQ(status(any, get("/a", {{"host", host}})), 421) << host;
}

TEST(Router, BodiesBelongToSomeMethodsOnly) {
  const Router r = router();
  const auto with = [&](const std::string& method, const std::string& name, const std::string& value) {
    return status(r, {.method = method, .path = "/a", .headers = {{"host", "localhost"}, {name, value}}});
  };
  for (const char* method : {"GET", "HEAD"}) {
    EXPECT_EQ(with(method, "content-length", "0"), 200) << method;
    EXPECT_EQ(with(method, "content-length", "1"), 400) << method;
    EXPECT_EQ(with(method, "transfer-encoding", "chunked"), 400) << method;
  }
  for (const char* type : {"application/json", "Application/JSON;charset=utf-8", "application/json ; x"})
    EXPECT_EQ(with("POST", "content-type", type), 200) << type;
  for (const char* type : {"", "application/jsonx", "application/json,", "text/plain;application/json"})
    EXPECT_EQ(with("POST", "content-type", type), 415) << type;
}

TEST(Router, APathThatIsNearlyRightIsNamed) {
  Router r;
  const Handler nothing = [](const Request&, const std::shared_ptr<Reply>&) {};
  r.add("POST", "/v1/chat/completions", nothing);
  r.add("GET", "/health", nothing);
  const auto message = [&](const char* path) { return r.refusal(get(path))->body; };
  for (const char* path :
       {"/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completions/", "/v1/chat/completion"})
    EXPECT_NE(message(path).find("did you mean"), std::string::npos) << path;
  EXPECT_NE(message("/chat/completions").find("/v1/chat/completions"), std::string::npos);
  EXPECT_EQ(message("/elsewhere").find("did you mean"), std::string::npos);
  EXPECT_EQ(message("*").find("did you mean"), std::string::npos);
  EXPECT_NE(message("/elsewhere").find("/openapi.json"), std::string::npos);
}

TEST(Router, TokensAreComparedWhole) {
  const Router r = router({.token = "secret"});
  EXPECT_EQ(status(r, get("/open")), 200);
  for (const char* value :
       {"", "secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer SECRET", "Basic secret"})
    EXPECT_EQ(status(r, get("/a", {{"host", "localhost"}, {"authorization", value}})), 401) << value;
  EXPECT_EQ(status(r, get("/a", {{"host", "localhost"}, {"authorization", "bearer secret"}})), 200);
  for (std::size_t at = 0; at < 6; ++at) {
    std::string wrong = "secret";
    wrong[at] = 'X';
    EXPECT_EQ(status(r, get("/a", {{"host", "localhost"}, {"authorization", "Bearer " + wrong}})), 401) << wrong;
  }
  const std::pair<std::string, std::string> good{"authorization", "Bearer secret"};
  EXPECT_EQ(status(r, get("/a", {{"host", "localhost"}, good, good})), 401);
}

TEST(Router, WhatAHandlerThrowsIsAnAnswer) {
  class Keeps : public Reply {
   public:
    void send(Response response) override { status = response.status; }
    void begin(Response) override {}
    bool write(std::string) override { return true; }
    void end() override {}
    void when_gone(std::function<void()>) override {}
    int status = 0;
  };
  Router r;
  r.add("GET", "/1",
        [](const Request&, const std::shared_ptr<Reply>&) { throw RequestError({.status = 418, .message = "tea"}); });
  r.add("GET", "/2", [](const Request&, const std::shared_ptr<Reply>&) { throw InvalidArgument("x"); });
  r.add("GET", "/3", [](const Request&, const std::shared_ptr<Reply>&) { throw std::bad_alloc(); });
  r.add("GET", "/4", [](const Request&, const std::shared_ptr<Reply>&) { throw std::runtime_error("x"); });
  int n = 0;
  for (const int expected : {418, 400, 503, 500}) {
    const auto reply = std::make_shared<Keeps>();
    r.handle(get("/" + std::to_string(++n)), reply);
    EXPECT_EQ(reply->status, expected);
  }
}

TEST(Http, RequestsAreParsedWithinLimits) {
  const auto request = parse_request("POST /a?b=c HTTP/1.1\r\nHost: x\r\nX-Y: 1\r\nContent-Length: 2\r\n\r\nhi");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->path, "/a");
  EXPECT_EQ(request->query, "b=c");
  EXPECT_EQ(*request->header("x-y"), "1");
  EXPECT_EQ(request->body, "hi");
  EXPECT_FALSE(parse_request("GET / HTTP/1.1\r\nX: " + std::string(9000, 'a') + "\r\n\r\n"));
  EXPECT_FALSE(parse_request("POST / HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n"));
  EXPECT_FALSE(parse_request("GET / HTTP/1.1\r\n"));
  EXPECT_FALSE(parse_request(""));
}

TEST(Http, EventsAndQueries) {
  EXPECT_EQ(server_sent_event("a"), "data: a\n\n");
  EXPECT_EQ(server_sent_event("a\nb", "n"), "event: n\ndata: a\ndata: b\n\n");
  std::string value;
  EXPECT_TRUE(query_value("a=1&b=two%20w%C3%B6rds+x&c", "b", value));
  EXPECT_EQ(value, "two w\xC3\xB6rds x");
  EXPECT_TRUE(query_value("a=1&c", "c", value));
  EXPECT_EQ(value, "");
  EXPECT_FALSE(query_value("a=1", "b", value));
  EXPECT_TRUE(query_value("a=%zz%4", "a", value));
  EXPECT_EQ(value, "%zz%4");
}

TEST(Http, Addresses) {
  EXPECT_EQ(parse_url("http://127.0.0.1:8080/v1/").port, "8080");
  EXPECT_EQ(parse_url("http://[::1]:8080").host, "[::1]");
  EXPECT_EQ(parse_url("http://host/base/v1").path, "/base");
  EXPECT_EQ(parse_url("http://host").port, "80");
  for (const char* url : {"", "https://x", "http://", "http://x:y", "localhost:80", "http://a b"})
    EXPECT_THROW(parse_url(url), InvalidArgument) << url;
}

TEST(Assets, HaveTheirTypes) {
  EXPECT_FALSE(assets().empty());
  EXPECT_STREQ(content_type("a/b.js"), "text/javascript; charset=utf-8");
  EXPECT_STREQ(content_type("x"), "application/octet-stream");
}

}  // namespace
}  // namespace attend::server
