// The parts of the module that bind language models.
#pragma once

#include <filesystem>

#include "../bindings.hpp"

namespace attend::python {

// Paths are bytes to the system; Python writes those that are no UTF-8 as os.fsdecode does.
nb::object path_of(const std::filesystem::path& path);

void bind_tokenizer(nb::module_& m);
void bind_language_model(nb::module_& m);
void bind_model_store(nb::module_& m);
void bind_training(nb::module_& m);
void bind_look(nb::module_& m);

}  // namespace attend::python
