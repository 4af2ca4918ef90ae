// `attend merge`: the adapters of LoRA into the model they were trained beside.
#include <fmt/format.h>

#include <memory>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "interrupt.hpp"
#include "io/file_error.hpp"
#include "llm/train/trainable.hpp"
#include "llm/train/trained_model.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::string model, adapter, out;
};

int run_merge(const Arguments& a) {
  namespace fs = std::filesystem;
  if (fs::exists(a.out)) throw UsageError(fmt::format("{} is there already, expected a new folder", a.out));
  const llm::ModelFiles files(llm::find_model(a.model));
  // A run's folder stands for the adapters in it.
  const fs::path adapter =
      fs::exists(fs::path(a.adapter) / "adapter") ? fs::path(a.adapter) / "adapter" : fs::path(a.adapter);
  with_progress("merging", [&] {
    const llm::ParameterLayout layout(files.config());
    Tensor parameters(DType::f32, {1, 1, 1, layout.count()});
    llm::load_parameters(files, layout, parameters.view());
    llm::merge_adapters(adapter, layout, parameters.view(), files.config().family == "minimind-v1");
    llm::write_trained(a.out, files.config(), layout, parameters.view(), files.path());
  });
  fmt::print("{}\n", io::printable(a.out));
  return kSuccess;
}

}  // namespace

Command add_merge(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("merge", "Put the adapters of LoRA into their model");
  app.add_option("model", a->model, "The model they were trained beside").required().type_name("MODEL");
  app.add_option("adapter", a->adapter,
                 "A run of attend train lora, a folder with adapter_model.safetensors (PEFT), or MiniMind's LoRA .pth")
      .required()
      .type_name("PATH");
  app.add_option("out", a->out, "A new folder").required().type_name("OUT");
  app.footer(
      "The weights become W + alpha / rank x B A, in f32; MiniMind's LoRA has no alpha: W + B A. The model is as fast "
      "as\n"
      "it was.\n"
      "\nExamples:\n"
      "  attend merge run/model lora merged\n"
      "  attend merge full_sft_512.pth lora_medical_512.pth merged     tokenizer.json next to full_sft_512.pth");
  return {app, [a] { return run_stoppable("attend merge", [&] { return run_merge(*a); }); }};
}

}  // namespace attend::cli
