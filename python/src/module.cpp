// The module attend._core: the engine without conveniences. The package attend is what people use.
#include "bindings.hpp"
#include "engine_call.hpp"

namespace nb = nanobind;

namespace {

// From here on an Error of C++ is an exception of this type in Python.
template <class Error>
void translate(nb::object type) {
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* raised) {
        try {
          std::rethrow_exception(error);
        } catch (const Error& caught) {
          PyErr_SetString(static_cast<PyObject*>(raised), caught.what());
        }
      },
      type.release().ptr());  // never freed, for the interpreter may go first
}

}  // namespace

NB_MODULE(_core, m) {
  using namespace attend::python;
  // An autograd graph that outlives the interpreter may hold a mask: no harm, and nothing a user could mend.
  nb::set_leak_warnings(false);
  register_exit();
  // In Python InvalidArgument is a ValueError, and a RuntimeError, which PyTorch and FlashAttention raise.
  const nb::module_ errors = nb::module_::import_("attend._errors");
  translate<attend::InvalidArgument>(errors.attr("InvalidArgument"));
  translate<attend::FileError>(errors.attr("FileError"));
  bind_tensor(m);
  bind_arrays(m);
  bind_mask(m);
  bind_patterns(m);
  bind_array_attention(m);
  bind_torch_operators(m);
  bind_gpu_cache(m);
  bind_observers(m);
  bind_lens(m);
  bind_paged_kv_cache(m);
  bind_weight(m);
  bind_positions(m);
  bind_operations(m);
  bind_blocks(m);
  bind_layer(m);
  bind_linformer(m);
  bind_reformer(m);
  bind_adaptive_span(m);
  bind_linear_attention(m);
  bind_additive_attention(m);
  bind_transformer_block(m);
  bind_latent_attention(m);
  bind_runtime(m);
  bind_llm(m);
}
