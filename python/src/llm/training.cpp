// Training: stories, tokenizers, data, whole stages, and a model in training a step at a time.
#include "attend/llm/training.hpp"

#include <exception>
#include <span>
#include <string_view>

#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>

#include "../engine_call.hpp"
#include "bindings.hpp"

namespace attend::python {
namespace {

using Number = std::int64_t;
using Rows = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

std::string text_of(const nb::bytes& bytes) {
  return {bytes.c_str(), bytes.size()};
}

llm::TextInputs inputs_of(const std::vector<nb::bytes>& paths, const nb::bytes& out, Number vocabulary,
                          bool skip_broken, bool replace, const nb::object& progress, const std::string& column) {
  llm::TextInputs inputs;
  for (const nb::bytes& path : paths) inputs.paths.emplace_back(text_of(path));
  inputs.out = text_of(out), inputs.vocabulary = vocabulary;
  inputs.skip_broken = skip_broken, inputs.replace = replace, inputs.column = column;
  inputs.progress = [progress = &progress](const char* stage, Number done, Number all) {
    const GilAcquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress->is_none()) (*progress)(stage, done, all);
  };
  return inputs;
}

nb::dict fields(const llm::PreparedData& data) {
  nb::dict named;
  named["kind"] = data.kind;
  named["documents"] = data.documents;
  named["tokens"] = data.tokens;
  named["learnt"] = data.learnt;
  named["vocabulary"] = data.vocabulary;
  named["skipped"] = data.skipped;
  named["nats"] = data.nats;
  named["rows"] = data.rows;
  named["report"] = data.report;
  return named;
}

// What Python is told of a run. What a callback throws, and Ctrl-C, end the run with its checkpoint saved, and are
// thrown behind it.
class Listener {
 public:
  Listener(nb::object step, nb::object validation, nb::object sample, nb::object note)
      : step_(std::move(step)),
        validation_(std::move(validation)),
        sample_(std::move(sample)),
        note_(std::move(note)) {}

  llm::TrainingEvents events() {
    llm::TrainingEvents e;
    e.step = [this](const llm::TrainingStep& s) {
      call(step_, [&] {
        nb::dict named;
        named["step"] = s.step;
        named["steps"] = s.steps;
        named["tokens"] = s.tokens;
        named["loss"] = s.loss;
        named["gradient"] = s.gradient;
        named["rate"] = s.rate;
        named["tokens_per_second"] = s.tokens_per_second;
        named["seconds_left"] = s.seconds_left;
        named["more"] = s.more;
        const nb::object answer = step_(named);
        if (answer.is(nb::bool_(false))) stop_ = true;
      });
    };
    if (!validation_.is_none())
      e.validation = [this](Number step, double loss) { call(validation_, [&] { validation_(step, loss); }); };
    if (!sample_.is_none())
      e.sample = [this](Number step, const std::string& prompt, const std::string& text) {
        call(sample_, [&] { sample_(step, prompt, text); });
      };
    if (!note_.is_none()) e.note = [this](const std::string& text) { call(note_, [&] { note_(text); }); };
    e.stop = [this] {
      const GilAcquire acquire;
      if (!thrown_ && PyErr_CheckSignals() != 0) thrown_ = std::make_exception_ptr(nb::python_error());
      return stop_ || thrown_ != nullptr;
    };
    return e;
  }
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  template <class F>
  void call(const nb::object& callback, const F& calls) {
    if (callback.is_none() || thrown_) return;
    const GilAcquire acquire;
    try {
      calls();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  nb::object step_, validation_, sample_, note_;
  bool stop_ = false;
  std::exception_ptr thrown_;
};

template <class F>
nb::dict listened(Listener& listener, const F& runs) {
  llm::TrainingEnd end;
  {
    const GilRelease release;
    end = runs(listener.events());
  }
  listener.rethrow();
  nb::dict named;
  named["end"] = end.end;
  named["step"] = end.step;
  named["tokens"] = end.tokens;
  named["loss"] = end.loss;
  named["best"] = end.best ? nb::cast(*end.best) : nb::none();
  named["best_step"] = end.best_step;
  named["held_out"] = end.held_out;
  return named;
}

nb::dict run_training(const std::string& stage, const std::string& settings, const nb::bytes& data,
                      const nb::bytes& start, const nb::bytes& folder, bool replace, bool watch, nb::object step,
                      nb::object validation, nb::object sample, nb::object note) {
  llm::TrainingRun run;
  run.stage = stage, run.settings = settings, run.start = text_of(start), run.replace = replace, run.watch = watch;
  run.data = text_of(data), run.folder = text_of(folder);
  Listener listener(std::move(step), std::move(validation), std::move(sample), std::move(note));
  return listened(listener, [&](const llm::TrainingEvents& events) { return llm::run_training(run, events); });
}

nb::dict resume_training(const nb::bytes& folder, nb::object step, nb::object validation, nb::object sample,
                         nb::object note) {
  const std::string path = text_of(folder);
  Listener listener(std::move(step), std::move(validation), std::move(sample), std::move(note));
  return listened(listener, [&](const llm::TrainingEvents& events) { return llm::resume_training(path, events); });
}

std::span<const Number> numbers(const Rows& rows) {
  return {rows.data(), rows.size()};
}

nb::object copied(std::span<const float> values, const std::vector<Number>& shape) {
  auto held = std::make_unique<std::vector<float>>(values.begin(), values.end());
  const std::vector<std::size_t> sizes(shape.begin(), shape.end());
  float* data = held->data();
  const nb::capsule owner(held.get(), [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  held.release();  // NOLINT(bugprone-unused-return-value): the capsule has it
  return nb::cast(nb::ndarray<nb::numpy, float>(data, sizes.size(), sizes.data(), owner));
}

nb::dict arrays(llm::Learner& learner, bool gradients) {
  nb::dict named;
  for (const llm::Learner::Parameter& p : learner.parameters())
    named[p.name.c_str()] = copied(gradients ? p.gradient : std::span<const float>(p.values), p.shape);
  return named;
}

void set_array(llm::Learner& learner, const std::string& name, const Values& values) {
  for (const llm::Learner::Parameter& p : learner.parameters()) {
    if (p.name != name) continue;
    std::vector<Number> shape;
    for (std::size_t n = 0; n < values.ndim(); ++n) shape.push_back(static_cast<Number>(values.shape(n)));
    if (shape != p.shape) throw InvalidArgument("learner: the array for \"" + name + "\" has another shape");
    std::copy(values.data(), values.data() + values.size(), p.values.begin());
    return learner.changed();
  }
  throw InvalidArgument("learner: there is no parameter \"" + name + "\"");
}

void bind_learner(nb::module_& m) {
  nb::class_<llm::Learner>(m, "Learner")
      .def_prop_ro("parameter_count", &llm::Learner::parameter_count)
      .def_prop_ro("vocabulary", &llm::Learner::vocabulary)
      .def_prop_ro("steps", &llm::Learner::steps)
      .def("arrays", &arrays, "gradients"_a)
      .def("set_array", &set_array, "name"_a, "values"_a)
      .def(
          "loss",
          [](llm::Learner& l, const Rows& tokens, const Rows& targets) {
            const GilRelease release;
            return l.loss(numbers(tokens), numbers(targets), static_cast<Number>(tokens.shape(0)));
          },
          "tokens"_a, "targets"_a)
      .def(
          "gradients",
          [](llm::Learner& l, const Rows& tokens, const Rows& targets) {
            const GilRelease release;
            return l.gradients(numbers(tokens), numbers(targets), static_cast<Number>(tokens.shape(0)));
          },
          "tokens"_a, "targets"_a)
      .def("update", &llm::Learner::update, "rate"_a, nb::call_guard<GilRelease>())
      .def(
          "save",
          [](llm::Learner& l, const nb::bytes& folder, const nb::bytes& tokenizer) {
            l.save(text_of(folder), text_of(tokenizer));
          },
          "folder"_a, "tokenizer"_a);
  m.def("new_learner", &llm::Learner::from_nothing, "vocabulary"_a, "settings"_a);
  m.def(
      "learner_of",
      [](const nb::bytes& name, const std::string& settings) {
        return llm::Learner::from_model(text_of(name), settings);
      },
      "name"_a, "settings"_a);
}

}  // namespace

void bind_training(nb::module_& m) {
  m.def(
      "story",
      [](std::uint64_t seed, const std::string& language, const std::string& format, bool relations, Number number) {
        return llm::story({.seed = seed, .language = language, .format = format, .relations = relations}, number);
      },
      "seed"_a, "language"_a, "format"_a, "relations"_a, "number"_a);
  m.def(
      "make_tokenizer",
      [](const std::vector<nb::bytes>& paths, const nb::bytes& out, Number vocabulary, bool skip, bool replace,
         const nb::object& progress, const std::string& column) {
        const llm::TextInputs inputs = inputs_of(paths, out, vocabulary, skip, replace, progress, column);
        const GilRelease release;
        llm::make_tokenizer(inputs);
      },
      "paths"_a, "out"_a, "vocabulary"_a, "skip_broken"_a, "replace"_a, "progress"_a.none(), "column"_a);
  m.def(
      "make_data",
      [](const std::vector<nb::bytes>& paths, const nb::bytes& out, Number vocabulary, bool skip, bool replace,
         const nb::object& progress, const std::string& column, const nb::bytes& tokenizer) {
        const llm::TextInputs inputs = inputs_of(paths, out, vocabulary, skip, replace, progress, column);
        const std::string from = text_of(tokenizer);
        llm::PreparedData data;
        {
          const GilRelease release;
          data = llm::make_data(inputs, from);
        }
        return fields(data);
      },
      "paths"_a, "out"_a, "vocabulary"_a, "skip_broken"_a, "replace"_a, "progress"_a.none(), "column"_a, "tokenizer"_a);
  m.def("training_defaults", &llm::training_defaults, "stage"_a, "shape"_a);
  m.def("run_training", &run_training, "stage"_a, "settings"_a, "data"_a, "start"_a, "folder"_a, "replace"_a, "watch"_a,
        "step"_a.none(), "validation"_a.none(), "sample"_a.none(), "note"_a.none());
  m.def("resume_training", &resume_training, "folder"_a, "step"_a.none(), "validation"_a.none(), "sample"_a.none(),
        "note"_a.none());
  bind_learner(m);
}

}  // namespace attend::python
