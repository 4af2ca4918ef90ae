// The parts of the module that bind language models.
#pragma once

#include "../bindings.hpp"

namespace attend::python {

void bind_tokenizer(nb::module_& m);
void bind_language_model(nb::module_& m);
void bind_model_store(nb::module_& m);

}  // namespace attend::python
