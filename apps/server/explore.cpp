// The worker behind /explore/v1: reads requests, answers them on the model's thread.
#include "apps/server/explore.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "apps/server/explore_runs.hpp"
#include "apps/server/fields.hpp"
#include "apps/server/reply_queue.hpp"
#include "attend/attend.hpp"
#include "attend/error.hpp"
#include "attend/llm/store.hpp"
#include "io/json.hpp"
#include "llm/look/look_frames.hpp"
#include "llm/look/look_json.hpp"

namespace attend::server {
namespace {

constexpr const char* kBinary = "application/octet-stream";
constexpr const char* kExample =
    "The capital of France is Paris. The capital of Japan is Tokyo. The capital of Italy is";
constexpr const char* kStory =
    "Once upon a time, there was a kind girl named Mia. She had a red ball. One day, she went to the park. There she "
    "met "
    "a little dog. The dog took the red";
constexpr std::size_t kMostGenerated = 4096, kMostSwitches = 512;
constexpr std::int64_t kLastToken = 1 << 30, kLastStep = std::int64_t{1} << 50;

ApiError bad(const std::string& param, const std::string& got, const std::string& expected) {
  return {400, param + " is " + io::json_quoted(got.substr(0, 60)) + ", expected " + expected, param, "bad_argument"};
}

std::int64_t whole(const std::string& name, std::string_view text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    throw RequestError(
        bad(name, std::string(text), "a whole number from " + std::to_string(least) + " to " + std::to_string(most)));
  return value;
}

std::string argument(const Request& request, const std::string& name) {
  std::string value;
  if (!query_value(request.query, name, value)) throw RequestError({400, name + " is missing", name, "bad_argument"});
  return value;
}

std::int64_t whole_argument(const Request& request, const std::string& name, std::int64_t least, std::int64_t most) {
  return whole(name, argument(request, name), least, most);
}

// "a:b" or "axb".
std::pair<std::int64_t, std::int64_t> pair_argument(const Request& request, const std::string& name, char between,
                                                    std::int64_t least, std::int64_t most) {
  const std::string text = argument(request, name);
  const std::size_t cut = text.find(between);
  if (cut == std::string::npos)
    throw RequestError(bad(name, text, std::string("two numbers with ") + between + " between them"));
  return {whole(name, std::string_view(text).substr(0, cut), least, most),
          whole(name, std::string_view(text).substr(cut + 1), least, most)};
}

std::string text_of(Fields& fields, const ExploreLimits& limits) {
  (void)fields.need("text", "a string");
  std::string text = fields.text("text", "");
  if (text.size() > limits.text_bytes)
    throw RequestError(
        {413,
         "text has " + std::to_string(text.size()) + " bytes, expected at most " + std::to_string(limits.text_bytes),
         "text", "too_large"});
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    throw RequestError({400, "text is empty, expected some words", "text", "empty"});
  return text;
}

// The elements of a list, which may be absent.
std::span<const io::Json> list_of(Fields& fields, const char* name, std::size_t most, const char* expected) {
  const io::Json* list = fields.find(name);
  if (list == nullptr) return {};
  if (list->array() == nullptr || list->array()->size() > most)
    refuse_field(name, " is expected to be a list of at most " + std::to_string(most) + " " + expected);
  return *list->array();
}

std::vector<llm::Token> generated_of(Fields& fields) {
  std::vector<llm::Token> out;
  for (const io::Json& one : list_of(fields, "generated", kMostGenerated, "tokens")) {
    if (one.integer() == nullptr || *one.integer() < 0 || *one.integer() > kLastToken)
      refuse_field("generated", " is expected to hold tokens, whole numbers");
    out.push_back(static_cast<llm::Token>(*one.integer()));
  }
  return out;
}

std::vector<std::string> switches_of(Fields& fields) {
  std::vector<std::string> out;
  for (const io::Json& one : list_of(fields, "switches", kMostSwitches, "texts such as \"scale=off\"")) {
    if (one.string() == nullptr) refuse_field("switches", " holds something that is no text");
    out.push_back(*one.string());
  }
  return out;
}

// ".../runs/ID/what"
struct RunPath {
  std::string id, what;
};
RunPath run_path(const Request& request) {
  constexpr std::string_view kBefore = "/explore/v1/runs/";
  const std::string rest = request.path.substr(kBefore.size());
  const std::size_t cut = rest.find('/');
  return {rest.substr(0, cut), cut == std::string::npos ? "" : rest.substr(cut + 1)};
}

}  // namespace

struct ExploreWork {
  ExploreWork(ExploredModels what, const ExploreLimits& bounds)
      : name(what.name),
        example(std::move(what.example)),
        training(static_cast<bool>(what.steps)),
        labs(what.labs),
        limits(bounds),
        runs(std::move(what), bounds),
        queue(bounds.waiting) {}

  using Stopped = ReplyQueue::Stopped;
  // One request under way: an answer in pieces comes back into the queue until it is done. It holds no run: one that
  // was forgotten in between is not kept alive by clients that read slowly.
  struct Job {
    Request request;
    std::unique_ptr<llm::FramePieces> pieces{};
    std::weak_ptr<ExploreRun> run{};
  };

  std::string about_json() {
    const std::shared_ptr<OpenedModel> newest = runs.model(-1);
    io::JsonObject bounds, out;
    bounds.number("text_bytes", static_cast<std::int64_t>(limits.text_bytes));
    bounds.number("tokens", newest->model.context());
    bounds.number("exact", limits.exact);
    bounds.number("runs", limits.runs);
    out.number("protocol", std::int64_t{1});
    out.string("version", version());
    out.put("model", llm::model_json(newest->model, name));
    out.put("limits", bounds.text());
    out.string("kernel", kernel_name());
    out.string("dtype", "f32");
    const std::string own = example ? example() : "";
    out.string("example", !own.empty() ? own : name == llm::embedded_model() ? kStory : kExample);
    out.truth("training", training);
    out.truth("labs", labs);
    return out.text();
  }

  void submit(const Request& request, const std::shared_ptr<Reply>& reply) {
    queue.submit(reply, [this, job = std::make_shared<Job>(Job{request})](Reply& to, const Stopped& stopped) {
      if (job->pieces) return next_piece(*job, to);
      handle(*job, to, stopped);
      return !job->pieces;
    });
  }

  // True: that was the last.
  static bool next_piece(Job& job, Reply& to) {
    const std::shared_ptr<ExploreRun> run = job.run.lock();
    try {
      if (run && to.write(job.pieces->next(run->look)) && !job.pieces->done()) return false;
    } catch (const std::exception&) {
      // the page sees that rows are missing and asks again
    }
    to.end();
    return true;
  }

  // The first piece; others come when it is this answer's turn again.
  static void begin(Job& job, Reply& to, const std::shared_ptr<ExploreRun>& run,
                    std::unique_ptr<llm::FramePieces> pieces) {
    Response first{.content_type = kBinary, .body = pieces->next(run->look)};
    if (pieces->done()) return to.send(std::move(first));
    to.begin(std::move(first));
    job = {{}, std::move(pieces), run};
  }

  void handle(Job& job, Reply& to, const Stopped& stopped) {
    if (job.request.path == "/explore/v1/about") return to.send({.body = about_json()});
    if (job.request.path == "/explore/v1/runs") return to.send({.body = run_json(job.request, stopped)});
    const RunPath path = run_path(job.request);
    const std::shared_ptr<ExploreRun> run = runs.find(path.id);
    if (path.what == "step") return to.send({.body = step_json(job.request, run, stopped)});
    const llm::Look& look = run->look;
    if (path.what == "thumbs") {
      const auto [first, end] = pair_argument(job.request, "layers", ':', 0, look.layers());
      if (first >= end) throw RequestError(bad("layers", argument(job.request, "layers"), "first:end"));
      const std::int64_t cells = whole_argument(job.request, "cells", 1, 128);
      return begin(job, to, run, std::make_unique<llm::Thumbs>(look, first, end, cells, limits.piece));
    }
    const std::int64_t layer = whole_argument(job.request, "layer", 0, look.layers() - 1);
    if (!look.kept(layer))
      throw RequestError(
          {404, "layer " + std::to_string(layer) + " was not kept of this run", "layer", "layer_not_kept"});
    if (path.what == "tensors")
      return begin(job, to, run, std::make_unique<llm::LayerTensors>(look, layer, limits.piece));
    const std::int64_t head = whole_argument(job.request, "head", 0, look.heads() - 1);
    if (path.what == "values") return to.send({.content_type = kBinary, .body = llm::values_frame(look, layer, head)});
    if (path.what == "cell") {
      const std::int64_t query = position(job.request, "query", look), key = position(job.request, "key", look);
      return to.send({.body = llm::cell_json(look, layer, head, query, key)});
    }
    if (path.what == "map")
      return begin(job, to, run,
                   std::make_unique<llm::MapInBands>(map_place(job.request, look, layer, head), limits.piece));
    throw RequestError(
        {404, "there is nothing called " + io::json_quoted(path.what.substr(0, 40)) + " of a run", "", "not_found"});
  }

  std::string run_json(const Request& request, const Stopped& stopped) {
    const io::Json body = parse_body(request);
    Fields fields(body);
    const std::shared_ptr<OpenedModel> of = runs.model(fields.whole("step", -1, 0, kLastStep));
    const RunWish wish{.text = text_of(fields, limits),
                       .generated = generated_of(fields),
                       .switches = switches_of(fields),
                       .layer = fields.whole("layer", -1, -1, of->model.info().layers - 1)};
    fields.done();
    const std::shared_ptr<ExploreRun> run = runs.run(of, wish, stopped);
    return answer_of(run, nullptr, stopped);
  }

  std::string step_json(const Request& request, const std::shared_ptr<ExploreRun>& run, const Stopped& stopped) {
    const io::Json body = parse_body(request);
    Fields fields(body);
    const GenerateWish wish{
        .generated = generated_of(fields),
        .token = fields.whole("token", -1, 0, kLastToken),
        .temperature = fields.real("temperature", 0, 0, 10),
        .seed = static_cast<std::uint64_t>(fields.whole("seed", 0, 0, std::numeric_limits<std::int64_t>::max()))};
    fields.done();
    const llm::LookStep made = runs.step(*run, wish);
    return answer_of(run, &made, stopped);
  }

  std::string answer_of(const std::shared_ptr<ExploreRun>& run, const llm::LookStep* step, const Stopped& stopped) {
    std::string text = runs.json(run, step, stopped);
    runs.find(run->id);  // the run without switches, asked for in between, is older
    return text;
  }

  // The run may be shorter than the page believes, when another page has gone back in it: that page asks anew.
  static std::int64_t position(const Request& request, const std::string& name, const llm::Look& look) {
    const std::int64_t n = whole_argument(request, name, 0, std::int64_t{1} << 40);
    if (n >= look.length())
      throw RequestError(
          {404, name + " lies beyond the run's " + std::to_string(look.length()) + " tokens", name, "no_run"});
    return n;
  }

  static llm::MapPlace map_place(const Request& request, const llm::Look& look, std::int64_t layer, std::int64_t head) {
    const auto [q0, q1] = pair_argument(request, "queries", ':', 0, std::int64_t{1} << 40);
    const auto [k0, k1] = pair_argument(request, "keys", ':', 0, std::int64_t{1} << 40);
    const auto [rows, columns] = pair_argument(request, "cells", 'x', 1, 4096);
    if (q1 > look.length() || k1 > look.length())
      throw RequestError(
          {404, "the area lies beyond the run's " + std::to_string(look.length()) + " tokens", "", "no_run"});
    if (q0 >= q1 || k0 >= k1)
      throw RequestError({400, "the area is empty: expected first:end, end above first", "queries", "bad_argument"});
    return {layer, head, q0, q1, k0, k1, rows, columns};
  }

  std::string name;
  std::function<std::string()> example;
  bool training, labs;
  ExploreLimits limits;
  ExploreRuns runs;
  ReplyQueue queue;  // last: its thread uses all of the above
};

Explorer::Explorer(ExploredModels models, const ExploreLimits& limits)
    : work_(std::make_unique<ExploreWork>(std::move(models), limits)) {}

Explorer::~Explorer() = default;

void Explorer::add_routes(Router& router) {
  const Handler submit = [this](const Request& request, const std::shared_ptr<Reply>& reply) {
    work_->submit(request, reply);
  };
  router.add("GET", "/explore/v1/about", submit);
  router.add("POST", "/explore/v1/runs", submit);
  router.add("GET", "/explore/v1/runs/*", submit);
  router.add("POST", "/explore/v1/runs/*", submit);
}

}  // namespace attend::server
