// A language model, its answers, and what can be known before it is loaded.
#include <array>
#include <functional>
#include <map>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include "bindings.hpp"
#include "session.hpp"

namespace attend::python {
namespace {

using llm::Token;
using Number = std::int64_t;
using Tokens = std::vector<Token>;

llm::CacheFormat cache_named(const std::string& name) {
  static const std::map<std::string, llm::CacheFormat> formats = {{"auto", llm::CacheFormat::automatic},
                                                                  {"f32", llm::CacheFormat::f32},
                                                                  {"f16", llm::CacheFormat::f16},
                                                                  {"bf16", llm::CacheFormat::bf16},
                                                                  {"int8", llm::CacheFormat::int8}};
  const auto found = formats.find(name);
  if (found == formats.end()) throw InvalidArgument("cache is '" + name + "', expected auto, f32, f16, bf16 or int8");
  return found->second;
}

std::string text_of(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

nb::dict fields(const llm::ModelInfo& info) {
  nb::dict named;
  named["path"] = path_of(info.path);
  named["family"] = info.family;
  named["generates"] = info.generates;
  named["layers"] = info.layers;
  named["hidden"] = info.hidden;
  named["heads"] = info.heads;
  named["kv_heads"] = info.kv_heads;
  named["head_dim"] = info.head_dim;
  named["vocabulary"] = info.vocabulary;
  named["context"] = info.context;
  named["parameters"] = info.parameters;
  named["file_bytes"] = info.file_bytes;
  named["quantised"] = info.quantised;
  named["compute"] = name(info.compute);
  named["rounds_rows"] = info.rounds_rows();
  return named;
}

nb::dict fields(const llm::MemoryPlan& plan) {
  nb::dict named;
  named["weights"] = plan.weights;
  named["cache"] = plan.cache;
  named["working"] = plan.working;
  return named;
}

// Rows [rows, columns] as an array that owns them.
nb::object array_of(std::vector<float> rows, Number columns) {
  auto held = std::make_unique<std::vector<float>>(std::move(rows));
  const auto width = static_cast<std::size_t>(columns);
  const std::array<std::size_t, 2> shape{width == 0 ? 0 : held->size() / width, width};
  float* data = held->data();
  const nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  held.release();  // NOLINT(bugprone-unused-return-value): the capsule has it
  return nb::cast(nb::ndarray<nb::numpy, float>(data, 2, shape.data(), owner));
}

llm::ModelOptions model_options(Number context, const std::string& cache, const std::string& compute, Number stream) {
  return {.context = context, .cache = cache_named(cache), .compute = llm::compute_named(compute), .stream = stream};
}

std::shared_ptr<Session> open_model(const nb::bytes& name, Number context, const std::string& cache,
                                    const std::string& compute, Number stream, bool check_memory,
                                    const nb::object& progress, const nb::object& warning) {
  llm::ModelOptions options = model_options(context, cache, compute, stream);
  options.check_memory = check_memory;
  options.progress = [&](Number done, Number all) {
    const GilAcquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done, all);
  };
  options.warning = [&](const std::string& text) {
    const GilAcquire acquire;
    warning(text);
  };
  const std::string path = text_of(name);
  const GilRelease release;
  return std::make_shared<Session>(path, options);
}

std::shared_ptr<Answers> start(std::shared_ptr<Session> session, std::vector<Tokens> prompts, Number max_tokens,
                               double temperature, Number top_k, double top_p, double min_p, double repetition_penalty,
                               double presence_penalty, std::uint64_t seed, Number logprobs,
                               const std::vector<std::string>& stop, const Tokens& stop_tokens) {
  llm::Request request{.max_tokens = max_tokens,
                       .sampling = {.temperature = temperature,
                                    .top_k = top_k,
                                    .top_p = top_p,
                                    .min_p = min_p,
                                    .repetition_penalty = repetition_penalty,
                                    .presence_penalty = presence_penalty,
                                    .seed = seed,
                                    .logprobs = logprobs},
                       .stop = stop,
                       .stop_tokens = stop_tokens};
  std::vector<llm::Request> requests(prompts.size(), request);
  for (std::size_t n = 0; n < prompts.size(); ++n) requests[n].prompt = std::move(prompts[n]);
  return std::make_shared<Answers>(std::move(session), std::move(requests));
}

// (request, text, token, log-probability, likeliest, why it ended). No token where there is none in the answer.
nb::tuple event_of(const llm::Event& event) {
  const bool token = event.has_token && event.finish != llm::Finish::stop_token;
  const bool ended = event.finish != llm::Finish::not_yet;
  return nb::make_tuple(event.request, event.text, token ? nb::cast(event.choice.token) : nb::none(),
                        event.choice.logprob, event.choice.likeliest,
                        ended ? nb::cast(name(event.finish)) : nb::none());
}

std::vector<nb::tuple> step(Answers& answers) {
  std::vector<nb::tuple> events;
  for (const llm::Event& event : answers.step()) events.push_back(event_of(event));
  return events;
}

nb::object embed(Session& session, const std::vector<std::string>& texts) {
  return array_of(session.alone([&](llm::Model& model) { return model.embed(texts); }), session.model().info().hidden);
}

nb::object logits(Session& session, const Tokens& tokens, bool last) {
  return array_of(session.alone([&](llm::Model& model) { return model.logits(tokens, last); }),
                  session.model().info().vocabulary);
}

nb::tuple perplexity(Session& session, const Tokens& tokens, Number window) {
  const llm::Perplexity p = session.alone([&](llm::Model& model) { return model.perplexity(tokens, window); });
  return nb::make_tuple(p.loss, p.perplexity, p.error, p.predicted);
}

}  // namespace

void bind_language_model(nb::module_& m) {
  nb::class_<Answers>(m, "Answers")
      .def_prop_ro("open", &Answers::open)
      .def("step", &step)
      .def("cancel", &Answers::cancel);
  nb::class_<Session>(m, "LanguageModel")
      .def_prop_ro("info", [](const Session& s) { return fields(s.model().info()); })
      .def_prop_ro("memory", [](const Session& s) { return fields(s.model().memory()); })
      .def_prop_ro("context", [](const Session& s) { return s.model().context(); })
      .def_prop_ro("tokenizer",
                   [](const std::shared_ptr<Session>& s) {
                     // Lives as long as its model; nothing changes it.
                     return std::shared_ptr<llm::Tokenizer>(s, &const_cast<llm::Tokenizer&>(s->model().tokenizer()));
                   })
      .def(
          "chat_template", [](const Session& s, const std::string& name) { return s.model().chat_template(name); },
          "name"_a)
      .def(
          "stop_tokens", [](const Session& s, const llm::ChatTemplate* chat) { return s.model().stop_tokens(chat); },
          "chat"_a.none())
      .def("start", &start, "prompts"_a, "max_tokens"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "repetition_penalty"_a, "presence_penalty"_a, "seed"_a, "logprobs"_a, "stop"_a, "stop_tokens"_a)
      .def("logits", &logits, "tokens"_a, "last"_a)
      .def("embed", &embed, "texts"_a)
      .def("perplexity", &perplexity, "tokens"_a, "window"_a);
  m.def("open_model", &open_model, "name"_a, "context"_a, "cache"_a, "compute"_a, "stream"_a, "check_memory"_a,
        "progress"_a.none(), "warning"_a);
  m.def("model_info", [](const nb::bytes& name) { return fields(llm::model_info(text_of(name))); }, "name"_a);
  m.def(
      "plan_memory",
      [](const nb::bytes& name, Number context, const std::string& cache, const std::string& compute, Number stream) {
        return fields(llm::plan_memory(text_of(name), model_options(context, cache, compute, stream)));
      },
      "name"_a, "context"_a, "cache"_a, "compute"_a, "stream"_a);
  m.def("free_memory", &llm::free_memory);
}

}  // namespace attend::python
