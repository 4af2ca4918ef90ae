// `attend bench serve`: load on a server that speaks OpenAI's API, and how long people wait under it.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "apps/server/client.hpp"
#include "command.hpp"
#include "io/environment.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"

namespace attend::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string what, server, model, concurrency = "1,4,8,16", prompt = "Tell me a story about a river.";
  std::int64_t requests = 4, tokens = 64;
  bool json = false;
};

struct Measured {
  std::vector<double> first, between, whole;  // seconds
  std::int64_t tokens = 0, answered = 0, failed = 0;
  double seconds = 0;
  std::string error{};  // the first one
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string body_of(const Arguments& a, std::int64_t number) {
  io::JsonObject message;
  message.string("role", "user");
  // No two alike: what one left in the cache is of no use to another.
  message.string("content", fmt::format("{}: {}", number, a.prompt));
  io::JsonObject object;
  if (!a.model.empty()) object.string("model", a.model);
  object.put("messages", "[" + message.text() + "]");
  object.number("max_tokens", a.tokens);
  object.number("temperature", 0.0);
  object.truth("stream", true);
  return object.text();
}

// One question after the other; what was waited for each time.
void ask(const Arguments& a, std::int64_t client_number, Measured& m) {
  server::Client client(server::parse_url(a.server), std::string(io::environment("ATTEND_TOKEN")));
  for (std::int64_t n = 0; n < a.requests; ++n) {
    const auto start = Clock::now();
    auto last = start;
    std::int64_t pieces = 0;
    server::EventReader events;
    std::string fault;
    const auto on_event = [&](std::string_view data) {
      if (data == "[DONE]") return true;
      const io::Json chunk = io::parse_json(data, "event");
      if (chunk.find("error") != nullptr) fault = data;
      const io::Json* choices = chunk.find("choices");
      if (choices == nullptr || choices->array() == nullptr || choices->array()->empty()) return true;
      const io::Json* delta = choices->array()->front().find("delta");
      const auto has = [&](const char* field) {
        const io::Json* text = delta != nullptr ? delta->find(field) : nullptr;
        return text != nullptr && text->string() != nullptr && !text->string()->empty();
      };
      if (!has("content") && !has("reasoning_content")) return true;
      (pieces++ == 0 ? m.first : m.between).push_back(seconds_since(last));
      last = Clock::now();
      return true;
    };
    try {
      const auto result = client.request("POST", "/v1/chat/completions", body_of(a, client_number * a.requests + n),
                                         [&](std::string_view piece) { return events.push(piece, on_event); });
      if (result.status != 200) fault = fmt::format("{}: {}", result.status, result.body.substr(0, 200));
    } catch (const std::exception& error) {
      fault = error.what();
    }
    m.whole.push_back(seconds_since(start));
    m.tokens += pieces;
    ++(fault.empty() ? m.answered : m.failed);
    if (!fault.empty() && m.error.empty()) m.error = fault;
  }
}

Measured run_level(const Arguments& a, std::int64_t clients, std::int64_t offset) {
  std::vector<Measured> each(static_cast<std::size_t>(clients));
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  for (std::int64_t i = 0; i < clients; ++i)
    threads.emplace_back([&, i] { ask(a, offset + i, each[static_cast<std::size_t>(i)]); });
  for (std::thread& thread : threads) thread.join();
  Measured all;
  all.seconds = seconds_since(start);
  for (const Measured& one : each) {
    all.first.insert(all.first.end(), one.first.begin(), one.first.end());
    all.between.insert(all.between.end(), one.between.begin(), one.between.end());
    all.whole.insert(all.whole.end(), one.whole.begin(), one.whole.end());
    all.tokens += one.tokens, all.answered += one.answered, all.failed += one.failed;
    if (all.error.empty()) all.error = one.error;
  }
  return all;
}

// In milliseconds.
double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return 1e3 * values[std::min(values.size() - 1, static_cast<std::size_t>(p * static_cast<double>(values.size())))];
}

std::vector<std::int64_t> levels_of(const std::string& text) {
  std::vector<std::int64_t> levels;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, end - at);
    const bool number = !one.empty() && one.size() < 5 && one.find_first_not_of("0123456789") == std::string::npos;
    if (!number || std::stoll(one) < 1 || std::stoll(one) > 1024)
      throw UsageError(fmt::format("--concurrency is '{}', expected numbers from 1 to 1024 such as 1,4,8", text));
    levels.push_back(std::stoll(one));
    at = end + 1;
  }
  return levels;
}

std::string json_of(std::int64_t clients, const Measured& m) {
  io::JsonObject object;
  object.number("clients", clients);
  object.number("tokens_per_second", static_cast<double>(m.tokens) / m.seconds);
  for (const auto& [name, p] : {std::pair("p50", 0.5), std::pair("p95", 0.95), std::pair("p99", 0.99)}) {
    object.number(fmt::format("first_token_ms_{}", name), percentile(m.first, p));
    object.number(fmt::format("between_tokens_ms_{}", name), percentile(m.between, p));
    object.number(fmt::format("answer_ms_{}", name), percentile(m.whole, p));
  }
  object.number("tokens", m.tokens);
  object.number("answered", m.answered);
  object.number("failed", m.failed);
  object.number("seconds", m.seconds);
  return object.text();
}

int run_bench(const Arguments& a) {
  const std::vector<std::int64_t> levels = levels_of(a.concurrency);
  if (!a.json)
    fmt::print("{:>7} {:>9} {:>24} {:>24} {:>8}\n{:>7} {:>9} {:>8}{:>8}{:>8} {:>8}{:>8}{:>8} {:>8}\n", "", "",
               "first token, ms", "between tokens, ms", "", "clients", "tokens/s", "p50", "p95", "p99", "p50", "p95",
               "p99", "failed");
  std::int64_t failed = 0, offset = 0;
  std::string error;
  for (const std::int64_t clients : levels) {
    const Measured m = run_level(a, clients, offset);
    offset += clients;
    failed += m.failed;
    if (error.empty()) error = m.error;
    if (a.json)
      fmt::print("{}\n", json_of(clients, m));
    else
      fmt::print("{:>7} {:>9.1f} {:>8.1f}{:>8.1f}{:>8.1f} {:>8.1f}{:>8.1f}{:>8.1f} {:>8}\n", clients,
                 static_cast<double>(m.tokens) / m.seconds, percentile(m.first, 0.5), percentile(m.first, 0.95),
                 percentile(m.first, 0.99), percentile(m.between, 0.5), percentile(m.between, 0.95),
                 percentile(m.between, 0.99), m.failed);
    (void)std::fflush(stdout);
  }
  if (failed == 0) return kSuccess;
  (void)std::fputs(
      fmt::format("attend bench: {} failed, the first with: {}\n", io::counted(failed, "request"), error).c_str(),
      stderr);
  return kFailure;
}

}  // namespace

Command add_bench(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("bench", "Measure a server under load");
  app.add_option("what", a->what, "What is measured: serve").required().check(one_of({"serve"})).type_name("WHAT");
  app.add_option("--server", a->server, "Its address, as attend serve prints it; ATTEND_TOKEN is its key")
      .required()
      .type_name("URL");
  app.add_option("--model", a->model, "One of the server's; without it, its first").type_name("NAME");
  app.add_option("--concurrency,-c", a->concurrency, "Clients at once, level after level")
      .type_name("N,...")
      .show_default();
  app.add_option("--requests", a->requests, "Questions that each client asks, one after the other")
      .check(whole_number(1, 1 << 20))
      .type_name("N")
      .show_default();
  app.add_option("--tokens,-n", a->tokens, "Longest answer, in tokens")
      .check(whole_number(1, 1 << 20))
      .type_name("N")
      .show_default();
  app.add_option("--prompt", a->prompt, "What is asked; a number before it makes each question a new one")
      .type_name("TEXT")
      .show_default();
  app.add_flag("--json", a->json, "A JSON object a line for each level, with more percentiles");
  app.footer(
      "Examples:\n"
      "  attend serve smollm2 --port 8080 &\n"
      "  attend bench serve --server http://127.0.0.1:8080\n"
      "  attend bench serve --server http://127.0.0.1:8080 -c 8 -n 200 --json\n"
      "\nThe clients stream their answers. A token is counted when its text arrives: one that only begins a character, "
      "or\n"
      "that ends an answer, has none.");
  return {app, [a] { return run_bench(*a); }};
}

}  // namespace attend::cli
