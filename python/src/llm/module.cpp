// Language models in the module attend._core; the package attend.llm is what people use.
#include "bindings.hpp"

namespace attend::python {

nb::object path_of(const std::filesystem::path& path) {
  const std::string& bytes = path.native();
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

void bind_llm(nb::module_& m) {
  bind_tokenizer(m);
  bind_language_model(m);
  bind_model_store(m);
  bind_training(m);
  bind_look(m);
}

}  // namespace attend::python
