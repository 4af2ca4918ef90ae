// A question, its answer, what it cost, and where one head of the model looked while it read the question.
#include "demo_model.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "attend/attention.hpp"
#include "attend/llm/store.hpp"
#include "draw/columns.hpp"
#include "draw/picture.hpp"
#include "draw/terminal.hpp"
#include "io/atomic_file.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "language_model.hpp"

namespace attend::cli {
namespace {

// smollm2, where it was pulled, is asked anything; the model inside the program is asked what it knows.
struct Asked {
  std::string model = llm::stored_model("smollm2") ? "smollm2" : llm::embedded_model();
  std::string question =
      model == llm::embedded_model() ? "Tell me a story about Lily and a red kite." : "What does a compiler do?";
};

// What a head's weights over the prompt look like. Shares are means over queries.
struct Head {
  std::int64_t layer = -1, head = -1;
  double first = 0, previous = 0, other = 0;  // on the first token, on the one before, elsewhere but on itself
  std::vector<float> weights;                 // [tokens, tokens]
};

Head describe_head(std::int64_t layer, std::int64_t head, const float* weights, std::int64_t T) {
  Head h{.layer = layer, .head = head, .weights = std::vector<float>(weights, weights + T * T)};
  for (std::int64_t i = 2; i < T; ++i) {
    const float* row = weights + i * T;
    h.first += static_cast<double>(row[0]);
    h.previous += static_cast<double>(row[i - 1]);
    h.other += 1.0 - static_cast<double>(row[0]) - static_cast<double>(row[i - 1]) - static_cast<double>(row[i]);
  }
  const double rows = static_cast<double>(std::max<std::int64_t>(1, T - 2));
  h.first /= rows, h.previous /= rows, h.other /= rows;
  return h;
}

// The head that looks most at tokens other than the first, itself and the one before: the most to see.
class HeadFinder {
 public:
  void look(std::int64_t layer, View q, View k, View v) {
    const std::int64_t T = q.length(), H = q.heads();
    if (T < 3 || k.length() != T) return;
    const AttentionResult result = attention(q, k, v, {.mask = causal()}, {.weights = true});
    for (std::int64_t h = 0; h < H; ++h) {
      Head found = describe_head(layer, h, result.weights.data<float>() + h * T * T, T);
      if (best_.layer < 0 || found.other > best_.other) best_ = std::move(found);
      ++heads_;
    }
  }
  const Head& best() const { return best_; }
  std::int64_t heads() const { return heads_; }

 private:
  Head best_;
  std::int64_t heads_ = 0;
};

draw::HeatMap map_of(const std::string& model, const Head& head, const std::vector<std::string>& tokens) {
  const std::int64_t T = std::ssize(tokens);
  draw::HeatMap map{.captions = {fmt::format("Layer {}, head {}", head.layer, head.head),
                                 {fmt::format("{} reading a question; a cell is one query and one key", model)}},
                    .values = draw::grid_of(head.weights.data(), T, T, true)};
  map.across.labels = map.down.labels = tokens;
  return map;
}

void line(const draw::Screen& screen, const char* label, const std::string& text) {
  fmt::print("  {}{}\n", draw::emphasised(screen, fmt::format("{:<10}", label)), text);
  (void)std::fflush(stdout);
}

// Words below one another as wide as the screen, behind the label.
std::string wrapped(const std::string& text, int columns) {
  constexpr int kIndent = 12;
  const int room = std::max(columns - kIndent - 1, 20);
  std::string out;
  int column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string word = text.substr(at, end - at);
    if (column > 0 && column + 1 + draw::columns_of(word) > room) {
      out += "\n" + std::string(kIndent, ' ');
      column = 0;
    }
    if (column > 0) out += ' ';
    out += word;
    column += draw::columns_of(word) + 1;
    at = end + 1;
  }
  return out;
}

// "attend-demo.png" -> "attend-demo-model.png".
void draw_picture(const draw::Screen& screen, const std::filesystem::path& png, const draw::HeatMap& map) {
  std::filesystem::path path = png;
  path.replace_filename(png.stem().string() + "-model" + png.extension().string());
  io::write_file_atomically(path, draw::to_png(map));
  line(screen, "picture", path.string());
}

// With words on both axes where they fit; else pooled, without the captions, which are said before.
std::string on_screen(draw::HeatMap map, const draw::Screen& screen) {
  map.captions = {};
  if (draw::words_fit(map.down.labels, screen)) return draw::to_terminal(map, screen);
  return draw::to_terminal(draw::pooled(map, draw::cells_that_fit(screen), draw::Pooling::mass), screen);
}

}  // namespace

void demo_model(const draw::Screen& screen, const std::string& png) {
  const Asked asked;
  ModelArguments arguments;
  arguments.model = asked.model;
  arguments.quiet = true;
  llm::OpenModel open = open_model(arguments);
  const llm::ModelConfig config = open.files->config();
  const llm::ChatTemplate chat = chat_template_of(open.tokenizer, {});
  const llm::Message messages[] = {{"user", asked.question}};
  llm::Request request{.prompt = llm::encode_chat(open.tokenizer, chat, messages, true),
                       .max_tokens = asked.model == llm::embedded_model() ? 200 : 40,
                       .stop_tokens = llm::stop_tokens(open.tokenizer, config, &chat)};
  const std::int64_t T = std::ssize(request.prompt);
  const llm::CacheOptions cache = cache_options(arguments, *open.files, T + request.max_tokens);
  llm::Transformer model = load_model(open, llm::plan_memory(*open.files, cache, T, 1), true);
  llm::RunningBatch engine(model, open.tokenizer, llm::batch_options(cache, open.context));

  fmt::print("\n  The same attention inside a language model: {} ({} layers, {} heads, {} parameters)\n\n", asked.model,
             config.layers, config.heads, io::readable_count(llm::count_parameters(config).total()));
  line(screen, "question", asked.question);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto first = start;
  Tally tally{.prompt = T};
  std::string answer;
  llm::Finish finish = llm::Finish::not_yet;
  engine.submit(request);
  while (!engine.idle())
    for (const llm::Event& event : engine.step()) {
      if (event.has_token && ++tally.generated == 1) first = Clock::now();
      answer += event.text;
      finish = event.finish;
    }
  tally.prompt_seconds = std::chrono::duration<double>(first - start).count();
  tally.generate_seconds = std::chrono::duration<double>(Clock::now() - first).count();
  if (finish == llm::Finish::length)
    answer += fmt::format(" ... (cut after {})", io::counted(tally.generated, "token"));
  line(screen, "answer", wrapped(io::printable_text(answer), screen.columns));
  line(screen, "speed", describe(tally));
  const std::int64_t held = T + tally.generated;
  line(screen, "cache",
       fmt::format("{} of keys and values for {} ({} each, {})",
                   io::readable_bytes(static_cast<double>(engine.cache().bytes_per_token() * held)),
                   io::counted(held, "token"),
                   io::readable_bytes(static_cast<double>(engine.cache().bytes_per_token())), name(cache.dtype)));

  // Once more over the prompt, now watched.
  HeadFinder finder;
  model.observe([&](std::int64_t layer, View q, View k, View v) { finder.look(layer, q, k, v); });
  const std::int64_t lengths[] = {T};
  model.encode(request.prompt, lengths);
  model.observe({});
  const Head& head = finder.best();
  std::vector<std::string> tokens;
  for (const llm::Token token : request.prompt) tokens.emplace_back(open.tokenizer.piece(token));
  const draw::HeatMap map = map_of(asked.model, head, tokens);
  fmt::print(
      "\n  Of its {} heads, head {} of layer {} looks most at other tokens while it reads the\n"
      "  prompt: {:.0f} % of its attention; {:.0f} % goes to the first token and {:.0f} % to the one before.\n\n{}\n",
      finder.heads(), head.head, head.layer, 100 * head.other, 100 * head.first, 100 * head.previous,
      on_screen(map, screen));
  if (!png.empty()) draw_picture(screen, png, map);
}

}  // namespace attend::cli
