// A look inside a language model: one run of it, and what can be asked of what it kept.
#include <array>

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include "bindings.hpp"
#include "session.hpp"

namespace attend::python {
namespace {

using Number = std::int64_t;

// A run and its model, which lives as long.
struct Looked {
  std::shared_ptr<Session> session;
  llm::Look look;
};

template <class T>
nb::object array_of(std::vector<T> values, const std::vector<std::size_t>& shape) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  T* data = held->data();
  const nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  held.release();  // NOLINT(bugprone-unused-return-value): the capsule has it
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner));
}

std::size_t size(Number n) {
  return static_cast<std::size_t>(n);
}

// A strided view [1, heads, length, dim] as an array of its own.
nb::object copied(const View& view) {
  std::vector<float> values(size(view.heads() * view.length() * view.dim()));
  const Shape shape = view.shape;
  convert(view, view_of(values.data(), shape));
  return array_of(std::move(values), {size(view.heads()), size(view.length()), size(view.dim())});
}

nb::tuple next_token_of(const llm::NextToken& token) {
  return nb::make_tuple(token.id, nb::bytes(token.text.data(), token.text.size()), token.probability);
}

nb::object next_of(const std::vector<llm::NextToken>& tokens) {
  nb::list list;
  for (const llm::NextToken& token : tokens) list.append(next_token_of(token));
  return list;
}

nb::tuple score_of(const llm::KindScore& score) {
  return nb::make_tuple(name(score.kind), score.measured ? nb::cast(score.score) : nb::none(), score.threshold,
                        llm::rule_of(score.kind));
}

std::shared_ptr<Looked> look(const std::shared_ptr<Session>& session, const std::vector<llm::Token>& tokens,
                             const std::string& switches, bool keep, const std::vector<Number>& layers, bool losses,
                             Number sinks, Number memory_limit) {
  llm::LookOptions options{.switches = llm::parse_switches(switches),
                           .keep = keep,
                           .layers = layers,
                           .before_rotation = false,
                           .losses = losses,
                           .sinks = sinks,
                           .memory_limit = memory_limit};
  return session->looking(
      [&](llm::LookSession& looks) { return std::make_shared<Looked>(Looked{session, looks.run(tokens, options)}); });
}

nb::list tokens_of(const Looked& l) {
  nb::list list;
  for (const llm::LookToken& token : l.look.tokens())
    list.append(nb::make_tuple(token.id, nb::bytes(token.text.data(), token.text.size())));
  return list;
}

// [layers, heads, length]
nb::object statistic(const Looked& l, const std::string& name) {
  const auto which = llm::statistic_of(name);
  if (!which) throw InvalidArgument("statistic is '" + name + "', expected one of mass, entropy, ..., argmax");
  std::vector<float> values;
  for (Number layer = 0; layer < l.look.layers(); ++layer)
    for (Number head = 0; head < l.look.heads(); ++head) {
      const std::vector<float> rows = l.look.statistic(layer, head, *which);
      values.insert(values.end(), rows.begin(), rows.end());
    }
  return array_of(std::move(values), {size(l.look.layers()), size(l.look.heads()), size(l.look.length())});
}

nb::list types(const Looked& l) {
  const std::vector<llm::HeadType> types =
      l.session->looking([&](llm::LookSession& looks) { return looks.types(l.look); });
  nb::list list;
  for (const llm::HeadType& type : types) {
    nb::list scores;
    for (const llm::KindScore& score : type.scores) scores.append(score_of(score));
    nb::dict on_texts;
    for (const llm::KindOnText& one : type.on_texts) on_texts[one.text] = llm::name(one.kind);
    list.append(nb::make_tuple(type.layer, type.head, score_of(type.kind), score_of(type.runner_up), scores, type.rows,
                               type.left_out, type.median_sink, on_texts));
  }
  return list;
}

// (mass, peak), [rows, cols] each.
nb::tuple map(const Looked& l, Number layer, Number head, Number rows, Number cols, bool values) {
  const PooledMap map = l.session->alone([&](llm::Model&) {
    return l.look.map(layer, head, {.rows = rows, .cols = cols},
                      values ? llm::Measure::weight_value : llm::Measure::weight);
  });
  const auto array = [&](const Tensor& tensor) {
    const auto* data = tensor.data<float>();
    return array_of(std::vector<float>(data, data + tensor.size()), {size(map.rows), size(map.cols)});
  };
  return nb::make_tuple(array(map.mass), array(map.peak));
}

// For the explorer's page in a notebook.
std::string page_data(const Looked& l, const std::string& name, Number bytes) {
  return l.session->looking(
      [&](llm::LookSession& looks) { return llm::page_data(looks, l.look, {.name = name, .bytes = bytes}); });
}

nb::object zoom(const Looked& l, Number layer, Number head, Number first_query, Number queries, Number first_key,
                Number keys) {
  std::vector<float> weights =
      l.session->alone([&](llm::Model&) { return l.look.zoom(layer, head, {first_query, queries, first_key, keys}); });
  return array_of(std::move(weights), {size(queries), size(keys)});
}

nb::tuple compare(const Looked& before, const Looked& after, Number top) {
  const llm::LookComparison change =
      after.session->alone([&](llm::Model&) { return llm::compare(before.look, after.look, {}, top); });
  nb::list losses;
  for (const llm::LossChange& loss : change.losses) losses.append(nb::make_tuple(loss.before, loss.after, loss.tokens));
  return nb::make_tuple(change.divergence ? nb::cast(*change.divergence) : nb::none(), next_of(change.before),
                        next_of(change.after), losses);
}

// (heads, predictions, tokens) that differ most.
nb::tuple changes(const Looked& before, const Looked& after, Number count) {
  const llm::LookChanges changes =
      after.session->alone([&](llm::Model&) { return llm::changes(before.look, after.look, count); });
  nb::list heads, predictions, tokens;
  for (const llm::HeadChange& one : changes.heads)
    heads.append(nb::make_tuple(one.layer, one.head, one.change, one.query, one.query_change));
  for (const llm::PredictionChange& one : changes.predictions)
    predictions.append(
        nb::make_tuple(one.position, one.divergence, next_token_of(one.before), next_token_of(one.after)));
  for (const llm::TokenChange& one : changes.tokens) tokens.append(nb::make_tuple(one.position, one.before, one.after));
  return nb::make_tuple(heads, predictions, tokens);
}

// [vocabulary]
nb::object logits(const Looked& l, Number position) {
  std::vector<float> logits = l.session->alone([&](llm::Model&) { return l.look.next_logits(position); });
  const std::size_t count = logits.size();
  return array_of(std::move(logits), {count});
}

// [length]
nb::object received(const Looked& l, Number layer, Number head) {
  std::vector<double> sums = l.session->alone([&](llm::Model&) { return l.look.received(layer, head); });
  const std::size_t count = sums.size();
  return array_of(std::move(sums), {count});
}

// [heads, length]
nb::object lse(const Looked& l, Number layer) {
  const View view = l.look.lse(layer);
  std::vector<float> rows;
  const auto* data = static_cast<const float*>(view.data);
  for (Number head = 0; head < l.look.heads(); ++head)
    for (Number i = 0; i < l.look.length(); ++i) rows.push_back(data[head * view.strides[1] + i * view.strides[2]]);
  return array_of(std::move(rows), {size(l.look.heads()), size(l.look.length())});
}

// [length]
nb::object value_lengths(const Looked& l, Number layer, Number kv_head) {
  std::vector<float> lengths = l.look.value_lengths(layer, kv_head);
  const std::size_t count = lengths.size();
  return array_of(std::move(lengths), {count});
}

// (seed, tokens, induction, duplicate, first loss, second loss)
nb::tuple probe(const Looked& l) {
  const llm::InductionProbe probe = l.session->looking([](llm::LookSession& looks) { return looks.probe(); });
  const std::vector<std::size_t> shape = {size(l.look.layers()), size(l.look.heads())};
  return nb::make_tuple(probe.seed, probe.tokens, array_of(std::vector<double>(probe.induction), shape),
                        array_of(std::vector<double>(probe.duplicate), shape), probe.first_loss, probe.second_loss);
}

nb::dict cell(const Looked& l, Number layer, Number head, Number query, Number key) {
  const llm::LookCell cell = l.look.cell(layer, head, query, key);
  const CellArithmetic& a = cell.arithmetic;
  nb::dict named;
  const auto vector = [&](const char* name, const std::vector<double>& values) {
    named[name] = array_of(std::vector<double>(values), {values.size()});
  };
  vector("q", a.q);
  vector("k", a.k);
  vector("products", a.products);
  vector("v", a.v);
  vector("weighted", a.weighted);
  named["dot"] = a.dot;
  named["scale"] = a.scale;
  named["scaled"] = a.scaled;
  named["capped"] = a.capped;
  named["alibi"] = a.alibi;
  named["score"] = a.score;
  named["visible"] = a.visible;
  named["lse"] = a.lse;
  named["sink_weight"] = a.sink_weight;
  named["weight"] = a.weight;
  named["value_length"] = cell.value_length;
  return named;
}

nb::tuple next_step(const Looked& l, double temperature, std::uint64_t seed) {
  llm::Look look = l.look;  // the same run
  const llm::LookStep step =
      l.session->alone([&](llm::Model&) { return look.next({.temperature = temperature, .seed = seed}); });
  return nb::make_tuple(step.token, nb::bytes(step.text.data(), step.text.size()), step.probability, step.ends,
                        step.cache_bytes);
}

}  // namespace

void bind_look(nb::module_& m) {
  nb::class_<Looked>(m, "Look")
      .def_prop_ro("layers", [](const Looked& l) { return l.look.layers(); })
      .def_prop_ro("heads", [](const Looked& l) { return l.look.heads(); })
      .def_prop_ro("kv_heads", [](const Looked& l) { return l.look.kv_heads(); })
      .def_prop_ro("length", [](const Looked& l) { return l.look.length(); })
      .def_prop_ro("bytes", [](const Looked& l) { return l.look.bytes(); })
      .def_prop_ro("milliseconds", [](const Looked& l) { return l.look.milliseconds(); })
      .def_prop_ro("tokens", &tokens_of)
      .def("statistic", &statistic, "name"_a)
      .def("types", &types)
      .def("map", &map, "layer"_a, "head"_a, "rows"_a, "cols"_a, "values"_a)
      .def("page_data", &page_data, "name"_a, "bytes"_a)
      .def("zoom", &zoom, "layer"_a, "head"_a, "first_query"_a, "queries"_a, "first_key"_a, "keys"_a)
      .def(
          "q", [](const Looked& l, Number layer) { return copied(l.look.q(layer)); }, "layer"_a)
      .def(
          "k", [](const Looked& l, Number layer) { return copied(l.look.k(layer)); }, "layer"_a)
      .def(
          "v", [](const Looked& l, Number layer) { return copied(l.look.v(layer)); }, "layer"_a)
      .def("cell", &cell, "layer"_a, "head"_a, "query"_a, "key"_a)
      .def(
          "next_tokens",
          [](const Looked& l, Number position, Number count) {
            return next_of(l.session->alone([&](llm::Model&) { return l.look.next_tokens(position, count); }));
          },
          "position"_a, "count"_a)
      .def("logits", &logits, "position"_a)
      .def("received", &received, "layer"_a, "head"_a)
      .def("lse", &lse, "layer"_a)
      .def("value_lengths", &value_lengths, "layer"_a, "kv_head"_a)
      .def("probe", &probe)
      .def("losses",
           [](const Looked& l) {
             const std::span<const float> losses = l.look.losses();
             return array_of(std::vector<float>(losses.begin(), losses.end()), {losses.size()});
           })
      .def("next", &next_step, "temperature"_a, "seed"_a)
      .def(
          "back",
          [](const Looked& l, Number count) {
            llm::Look look = l.look;
            l.session->alone([&](llm::Model&) { look.back(count); });
          },
          "count"_a)
      .def(
          "compare", [](const Looked& after, const Looked& before, Number top) { return compare(before, after, top); },
          "before"_a, "top"_a)
      .def(
          "changes",
          [](const Looked& after, const Looked& before, Number count) { return changes(before, after, count); },
          "before"_a, "count"_a);
  m.def("look", &look, "model"_a, "tokens"_a, "switches"_a, "keep"_a, "layers"_a, "losses"_a, "sinks"_a,
        "memory_limit"_a);
}

}  // namespace attend::python
