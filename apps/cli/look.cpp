// `attend look`: where every head of a model looks, what kind of head it is, and what changes when it is switched off.
#include "look.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <stdexcept>

#include "attend/runtime.hpp"
#include "command.hpp"
#include "draw/labels.hpp"
#include "io/readable.hpp"
#include "io/utf8_text.hpp"
#include "language_model.hpp"
#include "progress.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

struct Arguments {
  ModelArguments model;
  std::string text, text_file, head, against, against_model, area, cell, out;
  std::string picture = "map", measure = "weight", pooling = "mass";
  std::string layers;
  std::vector<std::string> switches, ranges;
  std::int64_t memory_mb = 0, query = -2, top = 5, next = 5, generate = 0, sinks = 1, stories = 64;
  std::uint64_t seed = 1;
  bool statistics = false, relations = false, chinese = false, json = false, dark = false, losses = false;
};

std::int64_t number(std::string_view text, const std::string& what, const char* expected) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw UsageError(fmt::format("{}, expected {}", what, expected));
  return value;
}

// "3.5", "100:164": two whole numbers and what stands between them.
std::pair<std::int64_t, std::int64_t> two(const std::string& option, std::string_view text, char between,
                                          const char* expected) {
  const std::string what = fmt::format("{} is '{}'", option, text);
  const std::size_t at = text.find(between);
  if (at == std::string_view::npos) throw UsageError(fmt::format("{}, expected {}", what, expected));
  return {number(text.substr(0, at), what, expected), number(text.substr(at + 1), what, expected)};
}

// "0,3,5-7": layers and ranges of layers, the last one included.
std::vector<std::int64_t> layers_of(const Arguments& a) {
  constexpr const char* kExpected = "layers and ranges such as 0,3,5-7";
  constexpr std::int64_t kMost = 100000;
  std::vector<std::int64_t> layers;
  for (std::size_t at = 0; at < a.layers.size();) {
    const std::size_t end = std::min(a.layers.find(',', at), a.layers.size());
    const std::string part = a.layers.substr(at, end - at), what = fmt::format("--layers is '{}'", a.layers);
    const auto [first, last] = part.find('-') != std::string::npos
                                   ? two("--layers", part, '-', kExpected)
                                   : std::pair(number(part, what, kExpected), number(part, what, kExpected));
    if (last < first || last > kMost) throw UsageError(fmt::format("{}, expected {}", what, kExpected));
    for (std::int64_t layer = first; layer <= last; ++layer) layers.push_back(layer);
    at = end + 1;
  }
  return layers;
}

std::vector<llm::Switch> switches_of(const Arguments& a) {
  std::vector<llm::Switch> switches;
  for (const std::string& text : a.switches)
    for (const llm::Switch& one : llm::parse_switches(text)) switches.push_back(one);
  return switches;
}

std::string text_of(const Arguments& a) {
  if (!a.text_file.empty()) {
    if (!a.text.empty()) throw UsageError("got a text and --text-file, expected one of them");
    return io::read_utf8_file(a.text_file);
  }
  const std::string text = a.text == "-" ? read_standard_input() : a.text;
  if (text.empty())
    throw UsageError(
        "there is no text to look at: expected 'attend look MODEL TEXT', '-' for standard input, or --text-file");
  check_utf8("the text", text);
  return text;
}

llm::Model open(const std::string& name, const ModelArguments& a) {
  if (name.empty() && !a.quiet) say_default_model();
  std::unique_ptr<ProgressBar> bar;
  llm::ModelOptions options{.context = a.context, .compute = llm::compute_named(a.compute)};
  options.progress = [&](std::int64_t done, std::int64_t all) {
    if (!bar) bar = std::make_unique<ProgressBar>("loading", all);
    bar->update(done);
  };
  options.warning = [&](const std::string& text) {
    if (!a.quiet) tell("warning: " + text);
  };
  return llm::Model::open(name, options);
}

llm::Look run(llm::LookSession& session, const std::string& text, const llm::LookOptions& options) {
  ProgressBar bar("looking", session.model().info().layers, "layers");
  llm::LookOptions with_bar = options;
  with_bar.progress = [&](std::int64_t done, std::int64_t) { bar.update(done); };
  return session.run(text, with_bar);
}

// Of the kept layers the head that has the most to show: the clearest kind that is not about the nearest tokens only.
std::pair<std::int64_t, std::int64_t> telling_head(const Looked& looked) {
  const auto telling = [](const llm::HeadType& t) {
    const llm::HeadKind kind = t.kind.kind;
    const bool far =
        kind == llm::HeadKind::induction || kind == llm::HeadKind::duplicate || kind == llm::HeadKind::long_range;
    const bool plain =
        kind == llm::HeadKind::mixed || kind == llm::HeadKind::sink_resting || kind == llm::HeadKind::diffuse;
    return (far ? 100.0 : plain ? 0.0 : 10.0) + (t.kind.threshold > 0 && !plain ? t.kind.score / t.kind.threshold : 0);
  };
  const llm::HeadType* best = nullptr;
  for (const llm::HeadType& type : looked.types)
    if (looked.look.kept(type.layer) && (best == nullptr || telling(type) > telling(*best))) best = &type;
  return {best->layer, best->head};
}

// Where there is a run to compare with, the head that changed most; where no weights changed, the one that was edited.
std::pair<std::int64_t, std::int64_t> head_to_show(const Looked& looked) {
  const std::vector<llm::HeadChange>& changed = looked.changes.heads;
  if (!changed.empty() && changed.front().change > 0) return {changed.front().layer, changed.front().head};
  for (const llm::Switch& one : looked.look.options().switches)
    if (one.where.head >= 0 && looked.look.kept(one.where.layer)) return {one.where.layer, one.where.head};
  return telling_head(looked);
}

LookView view_of(const Arguments& a, const Looked& looked) {
  LookView view;
  view.measure = a.measure == "value" ? llm::Measure::weight_value : llm::Measure::weight;
  view.peak = a.pooling == "peak";
  std::tie(view.layer, view.head) =
      a.head.empty() ? head_to_show(looked) : two("--head", a.head, '.', "LAYER.HEAD, such as 3.5");
  if (view.layer >= looked.look.layers() || view.head >= looked.look.heads())
    throw UsageError(fmt::format("--head is '{}', expected layer 0 to {} and head 0 to {}", a.head,
                                 looked.look.layers() - 1, looked.look.heads() - 1));
  if (!looked.look.kept(view.layer))
    throw UsageError(
        fmt::format("--head is '{}', but --layers keeps '{}': add layer {} to --layers", a.head, a.layers, view.layer));
  if (a.area.empty()) return view;
  constexpr const char* kExpected = "QUERIES,KEYS as FROM:TO each, such as 100:164,0:64";
  const std::size_t comma = a.area.find(',');
  if (comma == std::string::npos) throw UsageError(fmt::format("--area is '{}', expected {}", a.area, kExpected));
  const auto queries = two("--area", a.area.substr(0, comma), ':', kExpected);
  const auto keys = two("--area", a.area.substr(comma + 1), ':', kExpected);
  if (queries.second > looked.look.length() || keys.second > looked.look.length() || queries.first >= queries.second ||
      keys.first >= keys.second)
    throw UsageError(fmt::format("--area is '{}', expected parts of the {} tokens", a.area, looked.look.length()));
  view.area = {queries.first, queries.second - queries.first, keys.first, keys.second - keys.first};
  return view;
}

// Goes on token by token, and says of each what the chosen head looked at while it was chosen.
void generate(Looked& looked, const Arguments& a) {
  const LookView& view = looked.view;
  fmt::print("\ngenerating, with head {}.{} in view\n", view.layer, view.head);
  fmt::print("  {:>6}  {:<18}{:>8}  {:>10}  {:>8}  looks at\n", "token", "", "p", "cache", "ms");
  for (std::int64_t n = 0; n < a.generate; ++n) {
    const llm::LookStep step = looked.look.next({.seed = a.seed});
    std::string seen;
    for (const llm::Attended& one : looked.look.top(view.layer, view.head, step.position, 3))
      seen += fmt::format("{} {:.2f}  ",
                          draw::token_label(looked.look.tokens()[static_cast<std::size_t>(one.position)].text, 12),
                          one.weight);
    fmt::print("  {:>6}  {:<18}{:8.3f}  {:>10}  {:8.1f}  {}\n", step.position, draw::token_label(step.text),
               step.probability, io::readable_bytes(static_cast<double>(step.cache_bytes)), step.milliseconds, seen);
    (void)std::fflush(stdout);
    if (step.ends) break;
  }
}

int relations(llm::LookSession& session, const Arguments& a) {
  if (!a.layers.empty() || a.memory_mb > 0)
    throw UsageError("--layers and --memory are for the run of a text: leave them out with --relations");
  llm::RelationOptions options{.stories = a.stories, .seed = a.seed, .chinese = a.chinese, .switches = switches_of(a)};
  std::vector<llm::RelationReport> reports;
  {
    ProgressBar bar("stories", a.stories, "stories");
    options.progress = [&](std::int64_t done, std::int64_t) { bar.update(done); };
    reports = llm::score_relations(session, options);
  }
  if (a.json) {
    fmt::print("{}", relations_json(reports));
  } else {
    print_compute(session.model().info());
    print_relations(reports, look_at_screen(true));
  }
  return kSuccess;
}

// Prints what the run takes; an error where that is more than the limit.
void check_memory(const llm::Model& model, const std::string& text, const llm::LookOptions& options,
                  const Arguments& a) {
  const std::vector<llm::Token> tokens = model.tokenizer().encode(text);
  const llm::LookMemory plan = llm::plan_look(model, std::ssize(tokens), options);
  const auto readable = [](std::int64_t bytes) { return io::readable_bytes(static_cast<double>(bytes)); };
  const std::string parts = fmt::format("{} for queries, keys and values, {} for statistics, {} to work with",
                                        readable(plan.kept), readable(plan.statistics), readable(plan.working));
  if (plan.total() > plan.limit)
    throw std::runtime_error(
        fmt::format("{} take {} ({}), more than the limit of {}; keep fewer layers with --layers, raise the limit with "
                    "--memory, or take a shorter text",
                    io::counted(std::ssize(tokens), "token"), readable(plan.total()), parts, readable(plan.limit)));
  if (!a.model.quiet && !a.json) (void)std::fputs(("memory: " + parts + "\n").c_str(), stderr);
}

llm::LookChanges find_changes(const Looked& looked) {
  constexpr std::int64_t kListed = 10;
  ProgressBar bar("comparing", looked.look.layers(), "layers");
  return llm::changes(*looked.before, looked.look, kListed, [&](std::int64_t done, std::int64_t) { bar.update(done); });
}

// Runs what the look is compared with: the text without switches, another text, or the text through another model.
void compare(Looked& looked, llm::Model& model, const std::string& text, llm::LookOptions options, const Arguments& a) {
  if (a.against.empty() && a.against_model.empty()) options.switches.clear();
  llm::LookSession session(model);
  looked.before = run(session, a.against.empty() ? text : a.against, options);
  looked.before_name = !a.against_model.empty() ? a.against_model
                       : !a.against.empty()     ? "the other text"
                                                : "the plain run";
  std::vector<llm::TokenRange> ranges;
  for (const std::string& range : a.ranges) {
    const auto [from, to] = two("--range", range, ':', "FROM:TO, such as 20:40");
    ranges.push_back({from, to, fmt::format("tokens {}", range)});
  }
  looked.change = llm::compare(*looked.before, looked.look, ranges, a.next);
  looked.changes = find_changes(looked);
}

int run_look(Arguments a) {
  if (a.text_file.empty() && !a.relations) find_text(a.model.model, a.text);
  if (a.model.threads > 0) set_threads(a.model.threads);
  const std::string text = a.relations ? "" : text_of(a);
  llm::Model model = open(a.model.model, a.model);
  llm::LookSession session(model);
  if (a.relations) return relations(session, a);
  const std::vector<llm::Switch> switches = switches_of(a);
  const bool compared = !switches.empty() || !a.against.empty() || !a.against_model.empty();
  const llm::LookOptions options{.switches = switches,
                                 .layers = layers_of(a),
                                 .before_rotation = true,
                                 .losses = model.info().generates && (compared || a.losses),
                                 .sinks = a.sinks,
                                 .memory_limit = a.memory_mb << 20};
  if (a.generate > 0 && !a.layers.empty())
    throw UsageError("--generate needs the keys and values of all layers: leave out --layers");
  check_memory(model, text, options, a);
  Looked looked{.look = run(session, text, options), .types = {}, .next = a.next};
  looked.types = session.types(looked.look);
  std::optional<llm::Model> other;
  if (!a.against_model.empty()) other.emplace(open(a.against_model, a.model));
  if (compared) compare(looked, other ? *other : model, text, options, a);
  looked.view = view_of(a, looked);
  if (looked.before && (looked.before->layers() <= looked.view.layer || looked.before->heads() <= looked.view.head))
    throw UsageError("the other model has no such head");
  const draw::Screen screen = look_at_screen(true);
  if (a.json) {
    fmt::print("{}", for_screen(look_json(looked)));
  } else {
    print_look(looked, screen);
    if (a.statistics) print_statistics(looked);
    if (a.query >= -1) print_query(looked, a.query, a.top);
    if (!a.cell.empty()) {
      const auto [query, key] = two("--cell", a.cell, ',', "QUERY,KEY, such as 9,4");
      print_cell(looked, query, key);
    }
  }
  if (a.generate > 0) generate(looked, a);
  if (a.out.empty()) return kSuccess;
  const std::vector<std::string> written =
      write_look(looked, a.out, a.picture, a.dark ? draw::Theme::dark : draw::Theme::light);
  if (!a.model.quiet)
    for (const std::string& path : written) tell("wrote " + path);
  return kSuccess;
}

void add_view_arguments(const Subcommand& app, Arguments& a) {
  app.add_option("--head", a.head,
                 "The head to show, LAYER.HEAD from 0; none: the one that changed most, or one whose kind is clear")
      .type_name("L.H");
  app.add_option("--area", a.area, "Only these queries and keys, FROM:TO each: 100:164,0:64").type_name("Q,K");
  app.add_option("--measure", a.measure, "The map shows each weight, or weight x length of its value")
      .check(one_of({"weight", "value"}))
      .type_name("NAME")
      .show_default();
  app.add_option("--pooling", a.pooling, "A cell of many tokens shows their mass, or their peak")
      .check(one_of({"mass", "peak"}))
      .type_name("NAME")
      .show_default();
  app.add_flag("--statistics", a.statistics, "Print the statistics of all heads too");
  app.add_option("--query", a.query, "Print what this token looks at and who looks at it; -1: the last")
      .check(whole_number(-1, std::int64_t{1} << 40))
      .type_name("N");
  app.add_option("--top", a.top, "With --query: so many").check(whole_number(1, 1000)).type_name("K").show_default();
  app.add_option("--cell", a.cell, "Print the arithmetic of one weight").type_name("Q,K");
  app.add_option("--next", a.next, "So many of the likeliest next tokens")
      .check(whole_number(1, 100))
      .type_name("N")
      .show_default();
  app.add_option("--layers", a.layers,
                 "Keep queries, keys and values of these layers only, such as 0,3,5-7; none: of all. Less memory")
      .type_name("LIST");
  app.add_option("--memory", a.memory_mb, "A run may hold at most so many MiB; 0: half of the free memory")
      .check(whole_number(0, std::int64_t{1} << 30))
      .type_name("MIB")
      .show_default();
  app.add_option("--sinks", a.sinks, "So many first tokens count as sinks, and not for kinds")
      .check(whole_number(0, 64))
      .type_name("N")
      .show_default();
}

void add_change_arguments(const Subcommand& app, Arguments& a) {
  app.add_option("--switch,-s", a.switches, "Edit the forward pass, and print and draw what changed most; see below")
      .type_name("NAME=VALUE");
  app.add_option("--against", a.against, "Compare with the run of this text instead of the plain one")
      .type_name("TEXT");
  app.add_option("--against-model", a.against_model, "Compare with the run of this model").type_name("MODEL");
  app.add_option("--range", a.ranges, "Say the change in loss for these tokens too, FROM:TO; more than once is allowed")
      .type_name("A:B");
  app.add_flag("--losses", a.losses, "Measure the loss of every token (switches do so always)");
  app.add_option("--generate", a.generate, "Go on for so many tokens, with the head in view")
      .check(whole_number(0, std::int64_t{1} << 20))
      .type_name("N")
      .show_default();
  app.add_flag("--relations", a.relations,
               "Score every head on the known relations of generated stories, against simple rules, instead");
  app.add_option("--stories", a.stories, "With --relations: so many stories")
      .check(whole_number(1, 100000))
      .type_name("N")
      .show_default();
  app.add_flag("--chinese", a.chinese, "With --relations: stories in Chinese");
  app.add_option("--seed", a.seed, "Of the stories and of --generate")
      .check(seed_number())
      .type_name("N")
      .show_default();
}

}  // namespace

Command add_look(Program& program) {
  auto a = std::make_shared<Arguments>();
  const Subcommand app = program.add_subcommand("look", "See where every head of a model looks, and what it is for");
  app.add_option("model", a->model.model, kModelHelp).type_name("MODEL");
  app.add_option("text", a->text, "The text to read; '-' reads standard input").type_name("TEXT");
  app.add_option("--text-file", a->text_file, "The text, in UTF-8").type_name("FILE");
  add_view_arguments(app, *a);
  add_change_arguments(app, *a);
  app.add_option("--out,-o", a->out, "A folder for everything, or a file: .png, .svg, .pdf, .json, .npy or .html")
      .type_name("PATH");
  app.add_option("--picture", a->picture, "Which picture a file gets")
      .check(one_of(
          {"map", "dots", "lines", "distance", "sheet", "next", "difference", "changes", "predictions", "tokens"}))
      .type_name("NAME")
      .show_default();
  app.add_flag("--dark", a->dark, "Pictures on a dark ground");
  app.add_flag("--json", a->json, "Print JSON");
  app.add_option("--context", a->model.context, "Longest text in tokens; 0: what the model was made for")
      .check(whole_number(0, std::int64_t{1} << 30))
      .type_name("N")
      .show_default();
  add_compute_argument(app, a->model.compute);
  app.add_option("--threads", a->model.threads, "Threads; 0: ATTEND_THREADS, or one for each CPU")
      .check(whole_number(0, 1024))
      .type_name("N")
      .show_default();
  app.add_flag("--quiet,-q", a->model.quiet, "Say nothing but the result");
  app.footer(
      "Switches, for all heads, or with @LAYER or @LAYER.HEAD behind them for some:\n"
      "  scale=off              scores are q.k, not divided by the root of their size\n"
      "  temperature=T          scores are divided by T besides\n"
      "  mask=full|causal|window:W|sinks:S+W      instead of the model's own mask\n"
      "  padding=FROM-TO        keys FROM to TO - 1 are hidden\n"
      "  knock=zero|mean        the heads give nothing, or their mean over positions\n"
      "  only=layer|model       with @LAYER.HEAD: all other heads of the layer, or of the model, give nothing\n"
      "  positions=off          no RoPE, no ALiBi, no learnt positions\n"
      "  shuffle=SEED           the tokens in another order\n"
      "\nWeights are those of the pass that runs the model; the matrix of all of them never exists. With a quantised "
      "model\n"
      "rows are rounded to int8 before each product, and weights differ from an f32 pass: --compute f32 avoids that.\n"
      "They say where a head looks, not what that does: knock it out to see.\n"
      "\nExamples:\n"
      "  attend look \"The cat sat on the mat because the cat was tired\"\n"
      "  attend look smollm2 \"Alice met Bob. Alice gave Bob a\" --head 5.2 --query -1\n"
      "  attend look smollm2 --text-file book.txt --statistics --out book\n"
      "  attend look \"one two three one two\" -s knock=zero@2.3          what this head is for\n"
      "  attend look \"Once upon a time\" --generate 20 --cell 3,0\n"
      "  attend look --relations                                        which head knows who 'she' is");
  return {app, [a] { return run_look(*a); }};
}

}  // namespace attend::cli
