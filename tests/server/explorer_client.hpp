// The explorer without sockets, on a tiny model, and replies of clients that read slowly or leave.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/server/explore.hpp"
#include "tiny_served_model.hpp"

namespace attend::server::test {

// A client that takes nothing after the first piece while it is not `reading`, and may leave.
class SlowReply : public KeptReply {
 public:
  void begin(Response head) override {
    begun_ = true;
    KeptReply::begin(std::move(head));
  }
  bool ready() const override { return reading || !begun_; }
  bool write(std::string piece) override {
    ++pieces;
    return !left && KeptReply::write(std::move(piece));
  }
  void when_gone(std::function<void()> call) override { on_leave_ = std::move(call); }
  void leave() {
    left = true;
    if (on_leave_) on_leave_();
  }
  std::atomic<bool> reading{true}, left{false};
  std::atomic<int> pieces{0};

 private:
  std::function<void()> on_leave_;
  std::atomic<bool> begun_{false};
};

struct TinyExplorer {
  // With `steps`, a training run whose steps all have the same weights. A model that is given stays.
  explicit TinyExplorer(const ExploreLimits& limits = {}, const std::vector<std::int64_t>& steps = {},
                        const std::filesystem::path& model = {})
      : owned(model.empty()), folder(owned ? write_tiny_model() : model), explorer(models(steps), limits) {
    explorer.add_routes(router);
  }
  ~TinyExplorer() {
    std::error_code ignored;
    if (owned) std::filesystem::remove_all(folder, ignored);
  }
  TinyExplorer(const TinyExplorer&) = delete;
  TinyExplorer& operator=(const TinyExplorer&) = delete;

  static Request get(const std::string& path) {
    const std::size_t query = path.find('?');
    return {.path = "/explore/v1/" + path.substr(0, query),
            .query = query == std::string::npos ? "" : path.substr(query + 1),
            .headers = {{"host", "localhost"}}};
  }
  static Request post(const std::string& path, const std::string& body) {
    return TinyServer::post("/explore/v1/" + path, body);
  }
  void begin(const Request& request, const std::shared_ptr<Reply>& reply) const { router.handle(request, reply); }
  Response ask(const Request& request) const {
    const auto reply = std::make_shared<KeptReply>();
    begin(request, reply);
    return reply->wait();
  }
  io::Json json(const Request& request) const { return io::parse_json(ask(request).body, "answer"); }
  // Its id.
  std::string run(const std::string& body) const { return *json(post("runs", body)).find("run")->string(); }

  bool owned;
  std::filesystem::path folder;
  Router router;
  Explorer explorer;  // last: its thread uses the folder

 private:
  ExploredModels models(const std::vector<std::int64_t>& steps) const {
    ExploredModels all{.name = "tiny", .open = [this](std::int64_t) { return llm::Model::open(folder.string()); }};
    if (!steps.empty()) all.steps = [steps] { return steps; };
    return all;
  }
};

// The frames of an answer: heads, and the bytes of their numbers. Stops where the bytes end.
struct Frame {
  io::Json head;
  std::string numbers;
};
inline std::vector<Frame> frames_of(const std::string& bytes) {
  std::vector<Frame> frames;
  for (std::size_t at = 0; at + 8 <= bytes.size();) {
    std::size_t size = 0;
    for (std::size_t n = 0; n < 4; ++n)
      size |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[at + 4 + n])) << 8 * n;
    if (bytes.compare(at, 4, "AEX1") != 0 || at + 8 + size > bytes.size()) throw std::runtime_error("no frame");
    io::Json head = io::parse_json(bytes.substr(at + 8, size), "frame");
    std::size_t count = *head.find("dtype")->string() == "f32" ? 4 : 1;
    for (const io::Json& side : *head.find("shape")->array()) count *= static_cast<std::size_t>(*side.integer());
    at += 8 + size;
    if (at + count > bytes.size()) throw std::runtime_error("the frame is cut");
    frames.push_back({std::move(head), bytes.substr(at, count)});
    at += (count + 3) / 4 * 4;
  }
  return frames;
}

}  // namespace attend::server::test
