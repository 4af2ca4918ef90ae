// Stands in for llm/ where attend is built without language models (ATTEND_LLM=OFF).
#include "bindings.hpp"

namespace attend::python {

void bind_llm(nb::module_&) {}

}  // namespace attend::python
