// The module attend._core: the engine without conveniences. The package attend is what people use.
#include "bindings.hpp"

NB_MODULE(_core, m) {
  using namespace attend::python;
  // An autograd graph that outlives the interpreter may hold a mask: no harm, and nothing a user could mend.
  nb::set_leak_warnings(false);
  // In Python InvalidArgument is a ValueError, and a RuntimeError, which PyTorch and FlashAttention raise.
  nb::object invalid_argument = nb::module_::import_("attend._errors").attr("InvalidArgument");
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* type) {
        try {
          std::rethrow_exception(error);
        } catch (const attend::InvalidArgument& refused) {
          PyErr_SetString(static_cast<PyObject*>(type), refused.what());
        }
      },
      invalid_argument.release().ptr());  // never freed, for the interpreter may go first
  bind_tensor(m);
  bind_arrays(m);
  bind_mask(m);
  bind_patterns(m);
  bind_array_attention(m);
  bind_observers(m);
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
}
