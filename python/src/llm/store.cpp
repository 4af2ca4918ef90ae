// The store of models: which are there, which can be pulled.
#include "attend/llm/store.hpp"

#include <string_view>

#include <nanobind/stl/string_view.h>

#include "../engine_call.hpp"
#include "attend/error.hpp"
#include "bindings.hpp"

namespace attend::python {
namespace {

std::vector<std::pair<std::string, std::string>> known() {
  std::vector<std::pair<std::string, std::string>> models;
  for (const llm::ModelSource& source : llm::known_models()) models.emplace_back(source.name, source.about);
  return models;
}

llm::StoredModel fetch(const std::string& name, const nb::object& progress) {
  const llm::ModelSource* source = llm::known_model(name);
  if (source == nullptr) {
    std::string names;
    for (const llm::ModelSource& other : llm::known_models()) names += (names.empty() ? "" : ", ") + other.name;
    throw InvalidArgument("pull: the model is '" + name + "', expected one of " + names);
  }
  const auto report = [&](std::string_view stage, std::int64_t done, std::int64_t all) {
    const GilAcquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(stage, done, all);
  };
  const GilRelease release;
  return llm::pull(*source, {.progress = report});
}

nb::object pull(const std::string& name, const nb::object& progress) {
  return path_of(fetch(name, progress).path);
}

}  // namespace

void bind_model_store(nb::module_& m) {
  m.def("known_models", &known);
  m.def("default_model", &llm::default_model);
  m.def("stored_models", &llm::stored_names);
  m.def("pull_model", &pull, "name"_a, "progress"_a.none());
}

}  // namespace attend::python
