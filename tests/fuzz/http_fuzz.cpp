// Any bytes as a request: no HTTP, or a response with a status, from the API over a model of a few thousand parameters.
#include <cstdint>
#include <string>
#include <vector>

#include "apps/server/assets.hpp"
#include "apps/server/listener.hpp"
#include "seeded.hpp"
#include "server/tiny_served_model.hpp"

namespace {

using attend::server::test::KeptReply;
using attend::server::test::TinyServer;

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

const std::vector<std::string>& examples() {
  static const std::vector<std::string> all = {
      "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: \"x\"\r\n\r\n",
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: "
      "chunked\r\n\r\n"
      "f\r\n{\"content\":\"a\"}\r\n0\r\n\r\n",
      post(
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"a"}],"max_tokens":3,"stop":["b"],"logit_bias":{"3":1},"n":2,"seed":1})"),
      post(
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"a":{"enum":["b",1]}},"required":["a"]}}}})"),
      post(
          "/v1/chat/completions",
          R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required"})"),
      post("/v1/completions", R"({"prompt":[1,2,3],"max_tokens":2,"logprobs":2,"stream":true})"),
      post("/v1/embeddings", R"({"input":["a"],"encoding_format":"base64"})"),
      post("/detokenize", R"({"tokens":[1,2]})")};
  return all;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most,
                                               unsigned int seed) {
  return attend::test::mutate_or_begin(data, size, most, seed, examples());
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static TinyServer& server = *new TinyServer;  // for as long as the process lives
  const auto request = attend::server::parse_request({reinterpret_cast<const char*>(data), size});
  if (!request) return 0;
  const auto reply = std::make_shared<KeptReply>();
  reply->gone = true;  // whatever is begun ends at once
  server.router.handle(*request, reply);
  const int status = reply->wait().status;
  if (status < 200 || status > 599 || status == 500) attend::test::stop("status " + std::to_string(status));
  return 0;
}
