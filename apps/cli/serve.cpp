// `attend serve`: language models behind OpenAI's API, on this machine.
#include <arpa/inet.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "apps/server/api.hpp"
#include "apps/server/assets.hpp"
#include "apps/server/explore.hpp"
#include "apps/server/listener.hpp"
#include "attend/llm/store.hpp"
#include "attend/runtime.hpp"
#include "command.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"
#include "llm/runtime/memory.hpp"
#include "progress.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  std::vector<std::string> models;
  std::string host = "127.0.0.1", token_file, log = "lines", cache = "auto", compute = "file";
  std::vector<std::string> allowed, origins;
  bool accept_token_ids = false;
  std::int64_t port = 0, context = 0, parallel = 16, queue = 64, connections = 256, memory_mb = 1024;
  std::int64_t cache_tokens = 0, prompt_piece = 64, draft = 8, stop_seconds = 10;
  int threads = 0;
};

constexpr std::size_t kMaxToken = 4096;  // a header of 8 KiB has to hold it

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  for (char c = 0; line.size() <= kMaxToken && file.get(c) && c != '\n';) line += c;
  if (file.bad() || (!file && line.empty() && !file.eof()))
    throw UsageError(fmt::format("--token-file {}: the file cannot be read", path));
  return line;
}

// ATTEND_TOKEN, or the first line of a file: a token among the arguments could be read by everybody on the machine. An
// empty one is an error: a secret that was not filled in must not open the server to all.
std::string read_token(const Arguments& a) {
  const char* variable = std::getenv("ATTEND_TOKEN");
  if (a.token_file.empty() && variable == nullptr) return "";
  const std::string where = a.token_file.empty() ? "ATTEND_TOKEN" : "--token-file " + a.token_file;
  std::string token = a.token_file.empty() ? std::string(variable) : first_line(a.token_file);
  while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.empty())
    throw UsageError(
        fmt::format("{}: the token is empty, expected printable characters{}", where,
                    a.token_file.empty() ? "; unset the variable to serve without a token" : " in the first line"));
  if (token.size() > kMaxToken)
    throw UsageError(fmt::format("{}: the token is longer than {} bytes", where, kMaxToken));
  for (const char c : token)
    if (c <= ' ' || c > '~')
      throw UsageError(fmt::format(
          "{}: the token contains a space or a character that is not ASCII, expected printable characters", where));
  return token;
}

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

server::Access access_of(const Arguments& a, const std::string& token) {
  server::Access access;
  access.token = token;
  if (!is_address(a.host))
    throw UsageError(
        fmt::format("--host {}: that is no address; expected one such as 127.0.0.1, or localhost", a.host));
  const bool loopback = a.host == "127.0.0.1" || a.host == "::1";
  if (!loopback && token.empty())
    throw UsageError(
        fmt::format("--host {} lets other machines in, and there is no token; put one into a file and name it with "
                    "--token-file, or set ATTEND_TOKEN",
                    a.host));
  access.any_address = !loopback;
  for (std::string name : a.allowed) {
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    access.hosts.push_back(std::move(name));
  }
  for (const std::string& given : a.origins) {
    access.origins.push_back(server::as_origin(given));
    if (access.origins.back().empty())
      throw UsageError(
          fmt::format("--allow-origin {}: not an origin; expected a scheme, a host and perhaps a port, such as "
                      "https://chat.example:8443",
                      given));
  }
  return access;
}

// What clients call it: the name it was pulled by, or its file's without the ending.
std::string id_of(const std::string& name, const std::set<std::string>& taken) {
  std::string id = name;
  if (name.find('/') != std::string::npos || std::filesystem::exists(name)) {
    std::filesystem::path path = std::filesystem::path(name).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();
    id = path.extension() == ".gguf" || path.extension() == ".pth" ? path.stem().string() : path.filename().string();
  }
  if (taken.contains(id)) throw UsageError(fmt::format("two models are called {}; give one of them another name", id));
  return id;
}

std::unique_ptr<server::ServedModel> load(const std::string& name, const std::string& id, const Arguments& a,
                                          const server::ServeLimits& limits) {
  llm::OpenModel open(name, a.context, llm::compute_named(a.compute));
  warn_of_unused(*open.files);
  const std::int64_t bytes = open.files->bytes();
  ProgressBar bar("loading " + id, bytes);
  return std::make_unique<server::ServedModel>(id, std::move(open), limits,
                                               [&](std::int64_t done, std::int64_t) { bar.update(done); });
}

llm::CacheFormat format_of(const std::string& name) {
  return name == "f32"    ? llm::CacheFormat::f32
         : name == "f16"  ? llm::CacheFormat::f16
         : name == "bf16" ? llm::CacheFormat::bf16
         : name == "int8" ? llm::CacheFormat::int8
                          : llm::CacheFormat::automatic;
}

// Ends what is open: first by itself, then with a reason, then not at all.
void stop_gracefully(server::ApiContext& context, server::Listener& listener, server::Models& models,
                     server::StopSignals& signals, server::Log& log, std::int64_t seconds) {
  context.stopping = true;
  server::notify_systemd("STOPPING=1");
  log.say("stopping", {{"seconds", std::to_string(seconds)}});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!listener.drain(std::chrono::milliseconds(50))) {
    if (std::chrono::steady_clock::now() >= until || signals.wait(std::chrono::milliseconds(0))) break;
  }
  models.stop(fmt::format("the server stopped before the answer was whole; it gives running answers {} s", seconds));
  (void)listener.drain(std::chrono::seconds(1));
  log.say("stopped");
}

int run_serve(Arguments a) {
  llm::keep_few_arenas();
  if (a.host == "localhost") a.host = "127.0.0.1";
  const std::string token = read_token(a);
  const server::Access access = access_of(a, token);
  const auto memory = std::make_shared<server::MemoryBudget>(a.memory_mb << 20);
  const server::ListenOptions where{.address = a.host,
                                    .port = static_cast<std::uint16_t>(a.port),
                                    .connections = static_cast<std::size_t>(a.connections),
                                    .memory = memory};
  server::check_address(where);  // before a model is read, which may take its time
  if (a.threads > 0) set_threads(a.threads);
  server::Log log(a.log == "json"   ? server::LogForm::json
                  : a.log == "none" ? server::LogForm::none
                                    : server::LogForm::lines);
  server::ServeLimits limits{.context = a.context,
                             .parallel = a.parallel,
                             .queue = a.queue,
                             .cache_tokens = a.cache_tokens,
                             .prompt_piece = a.prompt_piece,
                             .draft = a.draft,
                             .cache = format_of(a.cache)};
  server::Models models;
  std::set<std::string> ids;
  std::vector<std::string> names = a.models;
  if (names.empty()) names.push_back(llm::default_model());
  const std::string first = id_of(names.front(), {});
  for (const std::string& name : names) {
    const std::string id = id_of(name, ids);
    ids.insert(id);
    models.add(load(name, id, a, limits));
  }
  server::ApiContext context{.models = models, .log = &log, .accept_token_ids = a.accept_token_ids};
  server::Router router(access);
  server::add_api(router, context);
  server::add_assets(router);
  // A copy of the first model with its weights, made when somebody opens the page.
  server::Explorer explorer({first,
                             [&](std::int64_t) {
                               return llm::Model::open(
                                   names.front(), {.context = a.context, .compute = llm::compute_named(a.compute)});
                             }},
                            {.bytes = memory->limit() / 2, .memory = memory});
  explorer.add_routes(router);
  server::StopSignals signals;
  server::Listener listener(router, where, log);
  context.listener = &listener;
  const std::string shown = a.host.find(':') != std::string::npos ? "[" + a.host + "]" : a.host;
  fmt::print("http://{}:{}/\n", shown, listener.port());
  (void)std::fflush(stdout);
  log.say("ready", {{"url", fmt::format("http://{}:{}/v1", shown, listener.port())},
                    {"models", io::joined(std::vector<std::string>(ids.begin(), ids.end()), ",")},
                    {"token", token.empty() ? "none" : "required"}});
  server::notify_systemd("READY=1");
  (void)signals.wait();
  stop_gracefully(context, listener, models, signals, log, a.stop_seconds);
  return kSuccess;
}

}  // namespace

Command add_serve(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("serve", "Serve models to programs that speak OpenAI's API");
  app.add_option("model", a->models,
                 "Pulled models' names (attend models), .gguf or .pth files, or folders; the first is the default")
      .type_name("MODEL...");
  app.add_option("--port,-p", a->port, "0: a free one").check(whole_number(0, 65535)).type_name("N").show_default();
  app.add_option("--host", a->host, "The address to listen on; any but this machine's own needs a token")
      .type_name("ADDRESS")
      .show_default();
  app.add_option("--allow-host", a->allowed,
                 "Another name that clients may call this server by, such as a reverse proxy's")
      .type_name("NAME");
  app.add_option("--allow-origin", a->origins,
                 "Pages of this site may use the server from a browser (CORS): https://chat.example")
      .type_name("ORIGIN");
  app.add_flag("--accept-token-ids", a->accept_token_ids,
               "Take token ids in /v1/embeddings: right only from clients with the model's own tokenizer");
  app.add_option("--token-file", a->token_file,
                 "Clients have to send the first line of this file as their API key; ATTEND_TOKEN does the same")
      .check(existing_file())
      .type_name("PATH");
  app.add_option("--context", a->context, "Longest sequence in tokens; 0: what the model was made for")
      .check(whole_number(0, std::int64_t{1} << 30))
      .type_name("N")
      .show_default();
  app.add_option("--parallel", a->parallel, "Answers that are written at once")
      .check(whole_number(1, 256))
      .type_name("N")
      .show_default();
  app.add_option("--queue", a->queue, "Requests that may wait beside them; beyond, they are refused with 429")
      .check(whole_number(0, 4096))
      .type_name("N")
      .show_default();
  app.add_option("--connections", a->connections, "Connections that are open at once; more clients wait to be accepted")
      .check(whole_number(1, 16384))
      .type_name("N")
      .show_default();
  app.add_option(
         "--memory", a->memory_mb,
         "MiB for what clients make the server hold beyond weights and caches: bodies, unread answers, explored "
         "runs")
      .check(whole_number(64, std::int64_t{1} << 20))
      .type_name("MIB")
      .show_default();
  app.add_option("--cache-tokens", a->cache_tokens,
                 "Room for keys and values, of all answers together; 0: the context, or 16384 tokens if that is more")
      .check(whole_number(0, std::int64_t{1} << 32))
      .type_name("N")
      .show_default();
  app.add_option("--cache", a->cache,
                 "Keys and values are kept as f32, f16, bf16 or int8; auto: f32 with f32 weights or --compute f32, "
                 "else f16")
      .check(one_of({"auto", "f32", "f16", "bf16", "int8"}))
      .type_name("NAME")
      .show_default();
  add_compute_argument(app, a->compute);
  app.add_option(
         "--prompt-piece", a->prompt_piece,
         "Tokens of prompts read in a step that also writes answers: fewer, and a long prompt holds answers up less")
      .check(whole_number(1, 4096))
      .type_name("N")
      .show_default();
  app.add_option("--draft", a->draft,
                 "Tokens guessed ahead from the text so far, and checked: the same answer in fewer steps; 0: none")
      .check(whole_number(0, 64))
      .type_name("N")
      .show_default();
  app.add_option("--stop-seconds", a->stop_seconds, "On SIGTERM, SIGHUP or Ctrl-C running answers have so long to end")
      .check(whole_number(0, 3600))
      .type_name("N")
      .show_default();
  app.add_option("--log", a->log,
                 "What is said on standard error: lines, json or none; never what was asked or answered")
      .check(one_of({"lines", "json", "none"}))
      .type_name("FORM")
      .show_default();
  app.add_option("--threads", a->threads, "Threads; 0: ATTEND_THREADS, or one for each CPU")
      .check(whole_number(0, 1024))
      .type_name("N")
      .show_default();
  app.footer(
      "Examples:\n"
      "  attend serve smollm2                          prints its address; nothing outside this machine can reach it\n"
      "  attend serve smollm2 minilm --port 8080       a model that chats and one that embeds\n"
      "  curl -s localhost:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
      "       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Name three rivers.\"}], \"max_tokens\": 40}'\n"
      "  OPENAI_BASE_URL=http://localhost:8080/v1 OPENAI_API_KEY=none python your_program.py\n"
      "\nThe standard output has one line, the address. /openapi.json describes every request, /metrics counts.\n"
      "A request's tokens are the same bits whatever runs beside it.");
  return {app, [a] { return run_serve(*a); }};
}

}  // namespace attend::cli
