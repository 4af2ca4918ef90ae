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
  for (const llm::CatalogModel& model : llm::known_models()) models.emplace_back(model.name, model.about);
  return models;
}

llm::StoredModel fetch(const std::string& name, const std::vector<nb::bytes>& files, const nb::object& progress) {
  const llm::CatalogModel* model = llm::known_model(name);
  if (model == nullptr) {
    std::string names;
    for (const llm::CatalogModel& other : llm::known_models()) names += (names.empty() ? "" : ", ") + other.name;
    throw InvalidArgument("pull: the model is '" + name + "', expected one of " + names);
  }
  llm::PullOptions options;
  for (const nb::bytes& file : files) options.files.emplace_back(std::string(file.c_str(), file.size()));
  options.progress = [&](std::string_view stage, std::int64_t done, std::int64_t all) {
    const GilAcquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(stage, done, all);
  };
  const GilRelease release;
  return llm::pull(*model, options);
}

nb::object pull(const std::string& name, const std::vector<nb::bytes>& files, const nb::object& progress) {
  return path_of(fetch(name, files, progress).path);
}

}  // namespace

void bind_model_store(nb::module_& m) {
  m.def("known_models", &known);
  m.def("default_model", &llm::default_model);
  m.def("stored_models", &llm::stored_names);
  m.def("pull_model", &pull, "name"_a, "files"_a, "progress"_a.none());
}

}  // namespace attend::python
