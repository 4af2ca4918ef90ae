// The worker behind /explore/v1: reads requests, answers them on the model's thread.
#include "apps/server/explore.hpp"

#include <algorithm>
#include <charconv>
#include <list>
#include <optional>

#include "apps/server/explore_runs.hpp"
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

io::Json body_of(const Request& request) {
  try {
    return io::parse_json(request.body, "the request", {.bytes = kBodyBytes, .depth = kJsonDepth, .values = 1 << 16});
  } catch (const FileError& error) {
    throw RequestError({400, error.what(), "", "bad_json"});
  }
}

std::string text_of(const io::Json& body, const ExploreLimits& limits) {
  const io::Json* text = body.find("text");
  if (text == nullptr || text->string() == nullptr)
    throw RequestError({400, "text is missing, expected a string", "text", "bad_argument"});
  if (text->string()->size() > limits.text_bytes)
    throw RequestError({413,
                        "text has " + std::to_string(text->string()->size()) + " bytes, expected at most " +
                            std::to_string(limits.text_bytes),
                        "text", "too_large"});
  if (text->string()->find_first_not_of(" \t\r\n") == std::string::npos)
    throw RequestError({400, "text is empty, expected some words", "text", "empty"});
  return *text->string();
}

std::vector<llm::Token> generated_of(const io::Json& body) {
  std::vector<llm::Token> out;
  const io::Json* all = body.find("generated");
  if (all == nullptr || all->is_null()) return out;
  if (all->array() == nullptr || all->array()->size() > kMostGenerated)
    throw RequestError({400, "generated is expected to be a list of at most 4096 tokens", "generated", "bad_argument"});
  for (const io::Json& one : *all->array()) {
    if (one.integer() == nullptr || *one.integer() < 0 || *one.integer() > (1 << 30))
      throw RequestError({400, "generated is expected to hold tokens, whole numbers", "generated", "bad_argument"});
    out.push_back(static_cast<llm::Token>(*one.integer()));
  }
  return out;
}

std::vector<std::string> switches_of(const io::Json& body) {
  std::vector<std::string> out;
  const io::Json* all = body.find("switches");
  if (all == nullptr || all->is_null()) return out;
  if (all->array() == nullptr || all->array()->size() > kMostSwitches)
    throw RequestError({400, "switches is expected to be a list of at most 512 texts such as \"scale=off\"", "switches",
                        "bad_argument"});
  for (const io::Json& one : *all->array()) {
    if (one.string() == nullptr)
      throw RequestError({400, "switches holds something that is no text", "switches", "bad_argument"});
    out.push_back(*one.string());
  }
  return out;
}

double number_of(const io::Json& body, const char* name, double least, double most, double otherwise) {
  const io::Json* value = body.find(name);
  if (value == nullptr || value->is_null()) return otherwise;
  double x = 0;
  if (!value->number(x) || !(x >= least && x <= most))
    throw RequestError({400,
                        std::string(name) + " is expected to be a number from " + io::json_number(least) + " to " +
                            io::json_number(most),
                        name, "bad_argument"});
  return x;
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
      : models(std::move(what)), limits(bounds), queue(bounds.waiting) {}

  using Stopped = ReplyQueue::Stopped;
  // One request under way: a map in bands comes back into the queue until it is done.
  struct Job {
    Request request;
    Reply* reply = nullptr;
    std::optional<llm::MapInBands> map{};
  };

  std::string about_json(ExploreRuns& runs) {
    io::JsonObject bounds, out;
    bounds.number("text_bytes", static_cast<std::int64_t>(limits.text_bytes));
    bounds.number("tokens", runs.model().context());
    bounds.number("exact", limits.exact);
    bounds.number("runs", limits.runs);
    out.number("protocol", std::int64_t{1});
    out.string("version", version());
    out.put("model", llm::model_json(runs.model(), models.name));
    out.put("limits", bounds.text());
    out.string("kernel", kernel_name());
    out.string("dtype", "f32");
    const std::string example = models.example ? models.example() : "";
    out.string("example", !example.empty() ? example : models.name == llm::embedded_model() ? kStory : kExample);
    out.truth("training", static_cast<bool>(models.steps));
    out.truth("labs", models.labs);
    return out.text();
  }

  void submit(const Request& request, const std::shared_ptr<Reply>& reply) {
    queue.submit(reply, [this, job = std::make_shared<Job>(Job{request})](Reply& to, const Stopped& stopped) {
      job->reply = &to;
      if (!job->map) {
        handle(*job, stopped);
        return !job->map;
      }
      try {
        if (to.write(job->map->next()) && !job->map->done()) return false;
      } catch (const std::exception&) {
        // the page sees that rows are missing and asks again
      }
      to.end();
      return true;
    });
  }

  void handle(Job& job, const Stopped& stopped) {
    if (job.request.path == "/explore/v1/about") return job.reply->send({.body = about_json(runs_of(newest()))});
    if (job.request.path == "/explore/v1/runs") {
      const io::Json body = body_of(job.request);
      ExploreRuns& runs = runs_of(step_of(body));
      const RunWish wish{.text = text_of(body, limits),
                         .generated = generated_of(body),
                         .switches = switches_of(body),
                         .layer = static_cast<std::int64_t>(
                             number_of(body, "layer", -1, static_cast<double>(runs.model().info().layers - 1), -1))};
      ExploreRun& run = runs.run(wish, stopped);
      const std::string id = run.id, text = runs.json(run, nullptr, stopped);
      runs.find(id);  // what was made beside it is older
      return job.reply->send({.body = text});
    }
    const RunPath path = run_path(job.request);
    ExploreRuns& runs = runs_with(path.id);
    ExploreRun& run = runs.find(path.id);
    if (path.what == "step") return step(job, runs, run, stopped);
    const llm::Look& look = run.look;
    if (path.what == "thumbs") {
      const auto [first, end] = pair_argument(job.request, "layers", ':', 0, look.layers());
      if (first >= end) throw RequestError(bad("layers", argument(job.request, "layers"), "first:end"));
      return job.reply->send(
          {.content_type = kBinary,
           .body = llm::thumbs_frame(look, first, end, whole_argument(job.request, "cells", 1, 128))});
    }
    const std::int64_t layer = whole_argument(job.request, "layer", 0, look.layers() - 1);
    if (!look.kept(layer))
      throw RequestError(
          {404, "layer " + std::to_string(layer) + " was not kept of this run", "layer", "layer_not_kept"});
    if (path.what == "tensors")
      return job.reply->send({.content_type = kBinary, .body = llm::tensor_frames(look, layer)});
    const std::int64_t head = whole_argument(job.request, "head", 0, look.heads() - 1);
    if (path.what == "values")
      return job.reply->send({.content_type = kBinary, .body = llm::values_frame(look, layer, head)});
    if (path.what == "cell") {
      const std::int64_t query = position(job.request, "query", look), key = position(job.request, "key", look);
      return job.reply->send({.body = llm::cell_json(look, layer, head, query, key)});
    }
    if (path.what == "map") return begin_map(job, look, layer, head);
    throw RequestError(
        {404, "there is nothing called " + io::json_quoted(path.what.substr(0, 40)) + " of a run", "", "not_found"});
  }

  // The model of a step, open; the one that was not asked for the longest is closed where there are too many.
  ExploreRuns& runs_of(std::int64_t step) {
    for (auto at = opened.begin(); at != opened.end(); ++at)
      if (at->first == step) {
        opened.splice(opened.begin(), opened, at);
        return opened.front().second;
      }
    if (std::ssize(opened) >= limits.models) opened.pop_back();
    const std::string prefix = models.steps ? "s" + std::to_string(step) + "." : "";
    ExploreLimits each = limits;
    each.bytes /= models.steps ? limits.models : 1;
    opened.emplace_front(std::piecewise_construct, std::forward_as_tuple(step),
                         std::forward_as_tuple(models.open(step), each, prefix));
    return opened.front().second;
  }

  // The one that made this run; where it was closed, the newest, which says that it knows no such run.
  ExploreRuns& runs_with(const std::string& id) {
    std::int64_t step = -1;
    if (models.steps && id.starts_with('s')) (void)std::from_chars(id.data() + 1, id.data() + id.size(), step);
    for (auto& [of, runs] : opened)
      if (of == step) return runs_of(step);
    return runs_of(newest());
  }

  std::int64_t newest() const {
    if (!models.steps) return -1;
    const std::vector<std::int64_t> kept = models.steps();
    return kept.empty() ? -1 : kept.back();
  }

  std::int64_t step_of(const io::Json& body) const {
    const auto asked = static_cast<std::int64_t>(number_of(body, "step", 0, 1e15, -1));
    if (asked < 0) return newest();
    const std::vector<std::int64_t> kept = models.steps ? models.steps() : std::vector<std::int64_t>();
    if (std::find(kept.begin(), kept.end(), asked) == kept.end())
      throw RequestError({404, "the model of step " + std::to_string(asked) + " was not kept", "step", "no_step"});
    return asked;
  }

  // The run may be shorter than the page believes, when another page has gone back in it: that page asks anew.
  static std::int64_t position(const Request& request, const std::string& name, const llm::Look& look) {
    const std::int64_t n = whole_argument(request, name, 0, std::int64_t{1} << 40);
    if (n >= look.length())
      throw RequestError(
          {404, name + " lies beyond the run's " + std::to_string(look.length()) + " tokens", name, "no_run"});
    return n;
  }

  static void step(Job& job, ExploreRuns& runs, ExploreRun& run, const std::function<bool()>& stopped) {
    const io::Json body = body_of(job.request);
    const GenerateWish wish{.generated = generated_of(body),
                            .token = static_cast<std::int64_t>(number_of(body, "token", 0, 1 << 30, -1)),
                            .temperature = number_of(body, "temperature", 0, 10, 0),
                            .seed = static_cast<std::uint64_t>(number_of(body, "seed", 0, 9e15, 0))};
    const std::string id = run.id;
    const llm::LookStep made = runs.step(run, wish);
    const std::string text = runs.json(run, &made, stopped);
    runs.find(id);
    job.reply->send({.body = text});
  }

  void begin_map(Job& job, const llm::Look& look, std::int64_t layer, std::int64_t head) {
    const auto [q0, q1] = pair_argument(job.request, "queries", ':', 0, std::int64_t{1} << 40);
    const auto [k0, k1] = pair_argument(job.request, "keys", ':', 0, std::int64_t{1} << 40);
    const auto [rows, columns] = pair_argument(job.request, "cells", 'x', 1, 4096);
    if (q1 > look.length() || k1 > look.length())
      throw RequestError(
          {404, "the area lies beyond the run's " + std::to_string(look.length()) + " tokens", "", "no_run"});
    if (q0 >= q1 || k0 >= k1)
      throw RequestError({400, "the area is empty: expected first:end, end above first", "queries", "bad_argument"});
    llm::MapInBands map(look, {layer, head, q0, q1, k0, k1, rows, columns}, limits.band_weights);
    std::string first = map.next();
    if (map.done()) return job.reply->send({.content_type = kBinary, .body = std::move(first)});
    job.reply->begin({.content_type = kBinary, .body = std::move(first)});
    job.map.emplace(std::move(map));
  }

  ExploredModels models;
  ExploreLimits limits;
  std::list<std::pair<std::int64_t, ExploreRuns>> opened;  // by step, the last asked for first
  ReplyQueue queue;                                        // last: its thread uses all of the above
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
