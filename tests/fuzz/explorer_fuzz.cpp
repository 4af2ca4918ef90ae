// Several clients of one explorer, in any order: they open runs of several models, look at them, switch, step, read
// slowly and leave, while memory holds few runs and one model less than they ask for. Every answer is one that the
// protocol has, frames are whole, and what is reserved stays within its budget and is given back.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "attend/runtime.hpp"
#include "seeded.hpp"
#include "server/explorer_client.hpp"

namespace {

using namespace attend::server;
using attend::server::test::Frame;
using attend::server::test::frames_of;
using attend::server::test::SlowReply;
using attend::server::test::TinyExplorer;
using attend::test::stop;

const std::vector<std::int64_t> kSteps = {1, 2, 3};
constexpr std::size_t kMostCalls = 48;

// Numbers out of the input's bytes; 0 where they end.
class Draw {
 public:
  Draw(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  int below(int count) { return empty() ? 0 : *at_++ % count; }
  std::string number(int count) { return std::to_string(below(count)); }

 private:
  const std::uint8_t *at_, *end_;
};

std::string list_of(Draw& draw, int most) {
  std::string list;
  for (int n = draw.below(most + 1); n > 0; --n) list += (list.empty() ? "" : ",") + draw.number(66);
  return "[" + list + "]";
}

std::string switches_of(Draw& draw) {
  static const std::vector<std::string> known = {
      "scale=off",   "temperature=3@1",     "mask=full",    "mask=causal",    "mask=window:3", "mask=sinks:2+3",
      "padding=2-5", "knock=zero@0.1",      "knock=mean@1", "only=layer@0.2", "positions=off", "positions=off@1.1",
      "shuffle=7",   "only=model:mean@1.3", "nonsense",     "knock=zero@9"};
  std::string list;
  for (int n = draw.below(4); n > 0; --n)
    list += (list.empty() ? "\"" : ",\"") +
            known[static_cast<std::size_t>(draw.below(static_cast<int>(known.size())))] + "\"";
  return "[" + list + "]";
}

Request open_run(Draw& draw) {
  static const std::vector<std::string> texts = {"the cat sat on the mat", "a", "abc abc abc abc abc", "x y", " "};
  std::string text;
  const std::string& part = texts[static_cast<std::size_t>(draw.below(5))];
  for (int n = draw.below(16); n >= 0; --n) text += part;
  std::string body =
      "{\"text\": \"" + text + "\", \"switches\": " + switches_of(draw) + ", \"generated\": " + list_of(draw, 6);
  if (const int step = draw.below(5); step > 0) body += ", \"step\": " + std::to_string(step);
  if (const int layer = draw.below(4); layer > 0) body += ", \"layer\": " + std::to_string(layer - 1);
  return TinyExplorer::post("runs", body + "}");
}

std::string range_of(Draw& draw) {
  const int first = draw.below(64);
  return std::to_string(first) + ":" + std::to_string(first + draw.below(96));
}

Request call_of(Draw& draw) {
  const int what = draw.below(8);
  if (what == 0) return TinyExplorer::get("about");
  if (what <= 2) return open_run(draw);
  const std::string run = "runs/s" + std::to_string(1 + draw.below(3)) + ".r" + std::to_string(1 + draw.below(12));
  if (what == 3)
    return TinyExplorer::post(run + "/step", "{\"generated\": " + list_of(draw, 6) +
                                                 ", \"temperature\": " + draw.number(3) +
                                                 (draw.below(2) == 0 ? "" : ", \"token\": " + draw.number(66)) + "}");
  const std::string head = "?layer=" + draw.number(3) + "&head=" + draw.number(5);
  if (what == 4)
    return TinyExplorer::get(run + "/map" + head + "&queries=" + range_of(draw) + "&keys=" + range_of(draw) +
                             "&cells=" + draw.number(80) + "x" + draw.number(80));
  if (what == 5)
    return TinyExplorer::get(run + "/thumbs?layers=" + draw.number(3) + ":" + draw.number(4) +
                             "&cells=" + draw.number(40));
  if (what == 6) return TinyExplorer::get(run + "/tensors" + head);
  return TinyExplorer::get(run + (draw.below(2) == 0
                                      ? "/values" + head
                                      : "/cell" + head + "&query=" + draw.number(99) + "&key=" + draw.number(99)));
}

void check_frames(const std::string& bytes) {
  for (const Frame& frame : frames_of(bytes)) {
    const attend::io::Json* kind = frame.head.find("kind");
    if (kind == nullptr || *kind->string() != "map") continue;
    std::vector<float> cells(frame.numbers.size() / sizeof(float));
    std::memcpy(cells.data(), frame.numbers.data(), frame.numbers.size());
    for (const float cell : cells)
      if (!std::isnan(cell) && !(cell >= 0 && cell <= 96 * 1.001F)) stop("a cell of " + std::to_string(cell));
  }
}

void check(SlowReply& reply) {
  if (reply.left) return;
  const Response answer = reply.wait();
  switch (answer.status) {
    case 200:
      if (answer.content_type == "application/octet-stream")
        check_frames(answer.body);
      else
        (void)attend::io::parse_json(answer.body, "answer");
      break;
    case 400:
    case 404:
    case 413:
    case 503:
      if (attend::io::parse_json(answer.body, "answer").find("error") == nullptr) stop("no error: " + answer.body);
      break;
    default:
      stop("status " + std::to_string(answer.status) + ": " + answer.body.substr(0, 300));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path folder = (attend::set_threads(1), attend::server::test::write_tiny_model());
  Draw draw(data, size);
  const auto budget = std::make_shared<MemoryBudget>((2200 + 40 * draw.below(64)) << 10);
  std::vector<std::shared_ptr<SlowReply>> replies;
  {
    const TinyExplorer explorer({.runs = 1 + draw.below(4),
                                 .memory = budget,
                                 .exact = 64,
                                 .waiting = 6,
                                 .models = 1 + draw.below(2),
                                 .piece = {.weights = 1 + 100 * draw.below(8), .bytes = 1 + 200 * draw.below(8)}},
                                kSteps, folder);
    while (!draw.empty() && replies.size() < kMostCalls) {
      const int how = draw.below(8);
      if (how == 0 && !replies.empty()) {  // a client goes on, or away
        SlowReply& one = *replies[static_cast<std::size_t>(draw.below(static_cast<int>(replies.size())))];
        if (draw.below(3) == 0) one.leave();
        one.reading = true;
        continue;
      }
      replies.push_back(std::make_shared<SlowReply>());
      replies.back()->reading = how > 2;
      explorer.begin(call_of(draw), replies.back());
      if (how > 5) check(*replies.back());  // this client waits for its answer
      if (budget->reserved() > budget->limit()) stop("more is reserved than the budget has");
    }
    for (const auto& reply : replies) reply->reading = true;
    for (const auto& reply : replies) check(*reply);
  }
  if (budget->reserved() != 0) stop(std::to_string(budget->reserved()) + " bytes stay reserved");
  return 0;
}
