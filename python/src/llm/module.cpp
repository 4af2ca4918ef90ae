// Language models in the module attend._core; the package attend.llm is what people use.
#include "bindings.hpp"

namespace attend::python {

void bind_llm(nb::module_& m) {
  bind_tokenizer(m);
  bind_language_model(m);
  bind_model_store(m);
}

}  // namespace attend::python
