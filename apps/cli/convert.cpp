// `attend convert`: a model in the format of another program.
#include <fmt/format.h>

#include <memory>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "interrupt.hpp"
#include "io/file_error.hpp"
#include "language_model.hpp"
#include "llm/model/export.hpp"
#include "llm/runtime/file_errors.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::string model, out, type = "keep";
  bool force = false;
};

int run_convert(const Arguments& a) {
  const llm::ModelFiles files(llm::find_model(a.model));
  warn_of_unused(files);
  llm::ExportOptions options{.replace = a.force};
  for (const WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::q8_0})
    if (a.type == name(format)) options.format = format;
  ProgressBar bar("converting", files.bytes());
  options.progress = [&](std::int64_t done, std::int64_t) {
    check_interrupted();
    bar.update(done);
  };
  llm::PthExport pth;
  llm::with_file_errors(files.path(), [&] {
    if (llm::has_extension(a.out, ".gguf"))
      llm::export_gguf(files, a.out, options);
    else if (llm::has_extension(a.out, ".pth"))
      pth = llm::export_pth(files, a.out, options);
    else
      llm::export_folder(files, a.out, options);
  });
  fmt::print("{}\n", io::printable(a.out));
  if (!pth.beside.empty()) fmt::print("next to it, to read it with: {}\n", fmt::join(pth.beside, ", "));
  if (!pth.note.empty()) fmt::print("note: {}\n", io::printable(pth.note));
  return kSuccess;
}

}  // namespace

Command add_convert(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand(
      "convert", "Write a model as GGUF (llama.cpp), a folder (Transformers) or a .pth (MiniMind)");
  app.alias("export");
  app.add_option("model", a->model, "A folder, a .pth or .gguf file, a training run, or a pulled model's name")
      .required()
      .type_name("MODEL");
  app.add_option("out", a->out, "A new file that ends in .gguf or .pth, or a new folder").required().type_name("OUT");
  app.add_option("--type", a->type, "Of the matrices: keep, f32, f16, bf16, or q8_0 (GGUF only)")
      .check(one_of({"keep", "f32", "f16", "bf16", "q8_0"}))
      .type_name("NAME")
      .show_default();
  app.add_flag("--force", a->force, "Replace what is at OUT: a file, or a folder that holds a model");
  app.footer(
      "Llama, Mistral (experimental), Qwen and MiniMind can be written. MiniMind becomes the Llama or Qwen model it\n"
      "is. From GGUF to GGUF any model can be converted: of every type that attend reads to f32, f16, bf16 or q8_0. "
      "With a .pth,\n"
      "config.json and the tokenizer are written next to it. OUT appears whole when all of it is on the disk: stopped\n"
      "or out of space, it is as it was before.\n"
      "attend export is the same command.\n"
      "\nExamples:\n"
      "  attend convert MiniMind2/ minimind.gguf --type q8_0     for llama.cpp\n"
      "  attend convert full_sft_512.pth minimind-hf             for Transformers (tokenizer.json beside the .pth)\n"
      "  attend convert smollm2 smollm2-f16 --type f16           GGUF to a folder; quantised weights become f16\n"
      "  attend convert model-q4_k.gguf model-q8_0.gguf --type q8_0\n"
      "  attend export run minimind.pth --type f16               a trained model for MiniMind's own code");
  return {app, [a] { return run_stoppable("attend convert", [&] { return run_convert(*a); }); }};
}

}  // namespace attend::cli
