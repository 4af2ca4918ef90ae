// A look printed: tokens, kinds of heads, one head's map, the next tokens, tables.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "attend/llm/store.hpp"
#include "draw/columns.hpp"
#include "draw/labels.hpp"
#include "io/file_error.hpp"
#include "io/readable.hpp"
#include "look.hpp"

namespace attend::cli {
namespace {

const char* short_name(llm::HeadKind kind) {
  using llm::HeadKind;
  switch (kind) {
    case HeadKind::mixed:
      return "mixed";
    case HeadKind::previous:
      return "prev";
    case HeadKind::self:
      return "self";
    case HeadKind::local:
      return "local";
    case HeadKind::induction:
      return "induc";
    case HeadKind::duplicate:
      return "dupl";
    case HeadKind::diffuse:
      return "diff";
    case HeadKind::long_range:
      return "long";
    case HeadKind::sink_resting:
      return "sink";
  }
  return "";
}

std::string label(std::string_view piece, std::size_t most = 16) {
  return draw::token_label(piece, most);
}

void heading(const draw::Screen& screen, const std::string& text) {
  fmt::print("\n{}\n", draw::emphasised(screen, text));
}

// All tokens, or the first and the last of many.
void print_tokens(const llm::Look& look, const draw::Screen& screen) {
  constexpr std::int64_t kShown = 60;
  std::string line, lines;
  const std::int64_t T = look.length();
  for (std::int64_t i = 0; i < T; ++i) {
    if (T > kShown && i == kShown / 2) {
      i = T - kShown / 2;
      line += "... ";
    }
    const std::string word = label(look.tokens()[static_cast<std::size_t>(i)].text) + " ";
    if (draw::columns_of(line) + draw::columns_of(word) > screen.columns - 10) {
      lines += line + "\n          ";
      line.clear();
    }
    line += word;
  }
  fmt::print("  tokens  {}\n", lines + line);
}

// The same kind on fewer than half of the fixed texts.
bool is_unstable(const llm::HeadType& type) {
  return 2 * type.texts_of_kind() < std::ssize(type.on_texts);
}

void print_stability(const Looked& looked) {
  std::int64_t same = 0, all = 0, unstable = 0;
  for (const llm::HeadType& type : looked.types) {
    same += type.texts_of_kind();
    all += std::ssize(type.on_texts);
    unstable += is_unstable(type);
  }
  if (all == 0) return;
  fmt::print("     ?     {:>4}  on fewer than half of {} fixed texts the same kind as here; on average {:.0f} %\n",
             unstable, looked.types.front().on_texts.size(),
             100 * static_cast<double>(same) / static_cast<double>(all));
}

// "prose: induction, code: mixed"
std::string kinds_on_texts(const llm::HeadType& type) {
  std::string text;
  for (const llm::KindOnText& one : type.on_texts)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", one.text, llm::name(one.kind));
  return text;
}

void print_kinds(const Looked& looked, const draw::Screen& screen) {
  const llm::Look& look = looked.look;
  heading(screen, "kinds of heads: a row a layer, a column a head");
  const bool wide = look.heads() * 10 + 5 <= screen.columns;
  fmt::print("     ");
  for (std::int64_t head = 0; head < look.heads(); ++head) fmt::print("{:<{}}", head, wide ? 10 : 7);
  fmt::print("\n");
  std::map<llm::HeadKind, std::int64_t> counts;
  for (std::int64_t layer = 0; layer < look.layers(); ++layer) {
    fmt::print("{:>3}  ", layer);
    for (std::int64_t head = 0; head < look.heads(); ++head) {
      const llm::HeadType& type = type_of(looked, layer, head);
      const llm::KindScore& kind = type.kind;
      ++counts[kind.kind];
      std::string text = short_name(kind.kind);
      if (wide && kind.kind != llm::HeadKind::mixed)
        text += fmt::format("{:.2f}", kind.score).substr(kind.score < 1 ? 1 : 0);
      if (is_unstable(type)) text += '?';
      fmt::print("{:<{}}", text, wide ? 10 : 7);
    }
    fmt::print("\n");
  }
  for (const auto& [kind, count] : counts)
    fmt::print("     {:<6}{:>4}  {}: {}\n", short_name(kind), count, llm::name(kind), llm::rule_of(kind));
  print_stability(looked);
}

// "7 ␣Bob"
std::string place(const llm::Look& look, std::int64_t position) {
  return fmt::format("{} {}", position, label(look.tokens()[static_cast<std::size_t>(position)].text));
}

void print_changed_heads(const Looked& looked, std::size_t most) {
  const std::vector<llm::HeadChange>& heads = looked.changes.heads;
  if (heads.front().change <= 0) {
    fmt::print("  no head's weights changed: nothing that was edited comes before another layer's attention\n");
    return;
  }
  fmt::print("  heads: share of the attention that moved\n");
  for (std::size_t n = 0; n < std::min(most, heads.size()) && heads[n].change > 0; ++n)
    fmt::print("    {:>6}  {:.4f}  most at query {} ({:.4f})\n", fmt::format("{}.{}", heads[n].layer, heads[n].head),
               heads[n].change, place(looked.look, heads[n].query), heads[n].query_change);
}

void print_changes(const Looked& looked, const draw::Screen& screen) {
  constexpr std::size_t kShown = 5;
  heading(screen, "what changed most against " + io::printable(looked.before_name));
  if (looked.before->length() != looked.look.length()) {
    fmt::print("  heads, predictions and tokens are compared between runs of as many tokens; these have {} and {}\n",
               looked.before->length(), looked.look.length());
    return;
  }
  if (looked.changes.heads.empty())
    fmt::print("  heads are compared between models of as many layers and heads\n");
  else
    print_changed_heads(looked, kShown);
  if (!looked.changes.predictions.empty()) fmt::print("  predictions: KL in nats, the likeliest next token of each\n");
  for (std::size_t n = 0; n < std::min(kShown, looked.changes.predictions.size()); ++n) {
    const llm::PredictionChange& one = looked.changes.predictions[n];
    fmt::print("    {:8.4f}  after {}: {} {:.2f} -> {} {:.2f}\n", one.divergence, place(looked.look, one.position),
               label(one.before.text), one.before.probability, label(one.after.text), one.after.probability);
  }
  if (!looked.changes.tokens.empty()) fmt::print("  tokens: change in loss\n");
  for (std::size_t n = 0; n < std::min(kShown, looked.changes.tokens.size()); ++n) {
    const llm::TokenChange& one = looked.changes.tokens[n];
    fmt::print("    {:+8.4f}  {}: {:.4f} -> {:.4f}\n", one.after - one.before, place(looked.look, one.position),
               one.before, one.after);
  }
}

void print_head(const Looked& looked, const draw::Screen& screen) {
  const LookView& view = looked.view;
  const llm::HeadType& type = type_of(looked, view.layer, view.head);
  heading(screen, fmt::format("layer {}, head {}: {}", view.layer, view.head, badge(type.kind)));
  fmt::print("  rule      {}\n", llm::rule_of(type.kind.kind));
  fmt::print("  runner-up {} (its threshold is {:.2g})\n", badge(type.runner_up), type.runner_up.threshold);
  fmt::print("  rows      {} scored without their sinks, {} left out (above 0.95 on sinks); median on sinks {:.2f}\n",
             type.rows, type.left_out, type.median_sink);
  if (!type.on_texts.empty())
    fmt::print("  stability the same kind on {} of {} fixed texts ({})\n", type.texts_of_kind(), type.on_texts.size(),
               kinds_on_texts(type));
  fmt::print("\n");
  draw::HeatMap map = looked.change && looked.before->length() == looked.look.length()
                          ? difference_picture(looked, view, draw::cells_that_fit(screen))
                          : map_picture(looked, view, draw::cells_that_fit(screen));
  map.captions = {};
  if (looked.change) map.captions.title = "this run less " + looked.before_name;
  fmt::print("{}", draw::to_terminal(map, screen));
}

void print_next(const Looked& looked, const draw::Screen& screen) {
  const llm::Look& look = looked.look;
  heading(screen, "next token");
  if (!looked.change) {
    for (const llm::NextToken& token : look.next_tokens(-1, looked.next))
      fmt::print("  {:6.2f} %  {}\n", 100 * token.probability, label(token.text, 40));
    return;
  }
  const llm::LookComparison& change = *looked.change;
  fmt::print("  {:<30}{}\n", io::printable(looked.before_name), "this run");
  for (std::size_t n = 0; n < std::min(change.before.size(), change.after.size()); ++n) {
    const auto text = [&](const llm::NextToken& token) {
      return fmt::format("{:6.2f} %  {}", 100 * token.probability, label(token.text));
    };
    const std::string left = text(change.before[n]);
    const int gap = std::max(1, 30 - draw::columns_of(left));
    fmt::print("  {}{}{}\n", left, std::string(static_cast<std::size_t>(gap), ' '), text(change.after[n]));
  }
  if (change.divergence) fmt::print("\n  KL        {:.4f} nats from one to the other\n", *change.divergence);
  for (const llm::LossChange& loss : change.losses)
    fmt::print("  loss      {:.4f} -> {:.4f} ({:+.4f}) over {}: {}\n", loss.before, loss.after,
               loss.after - loss.before, loss.range.name, io::counted(loss.tokens, "token"));
}

std::string numbers(const std::vector<double>& values, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(values.size(), most); ++i) text += fmt::format("{:8.3f}", values[i]);
  return text + (values.size() > most ? "  ..." : "");
}

// A causal model attends from the word that comes later, whichever of the two that is.
const char* words_of(const std::string& relation) {
  if (relation == "adjective_noun") return "noun and its adjective: the later word -> the earlier one";
  if (relation == "pronoun_antecedent") return "pronoun -> the name it stands for";
  if (relation == "verb_subject") return "verb -> its subject";
  return "name or noun said again -> the first time";
}

void print_rules(const llm::RelationReport& report) {
  constexpr std::size_t kShown = 3;
  for (std::size_t n = 0; n < std::min(kShown, report.rules.size()); ++n) {
    const llm::RelationRule& rule = report.rules[n];
    fmt::print("  {}    {:.3f} {}{}\n", n == 0 ? "chance" : "      ", rule.rate, rule.rule,
               rule.distance != 0 ? fmt::format(": {} back", io::counted(rule.distance, "token")) : "");
  }
}

}  // namespace

const llm::HeadType& type_of(const Looked& looked, std::int64_t layer, std::int64_t head) {
  return looked.types[static_cast<std::size_t>(layer * looked.look.heads() + head)];
}

std::string badge(const llm::KindScore& score) {
  if (score.kind == llm::HeadKind::mixed) return llm::name(score.kind);
  if (!score.measured) return fmt::format("{} (not measured)", llm::name(score.kind));
  return fmt::format("{} {:.2f}", llm::name(score.kind), score.score);
}

std::string name_of(const llm::ModelInfo& model) {
  return model.path == llm::find_model(llm::embedded_model()) ? llm::embedded_model()
                                                              : io::printable(model.path.filename().string());
}

void print_compute(const llm::ModelInfo& info) {
  if (info.rounds_rows())
    fmt::print(
        "  compute file: rows are rounded to int8 before each product with the quantised weights, so attention "
        "weights\n"
        "          differ from those of an f32 pass; --compute f32 computes without that rounding\n");
  if (info.quantised && info.compute == llm::Compute::f32)
    fmt::print("  compute f32: the quantised weights were dequantised on loading\n");
}

void print_look(const Looked& looked, const draw::Screen& screen) {
  const llm::Look& look = looked.look;
  const llm::ModelInfo& info = look.model();
  fmt::print("  model   {}: {}, {} of {} heads ({} for keys and values), {} parameters\n", name_of(info), info.family,
             io::counted(info.layers, "layer"), info.heads, info.kv_heads, io::readable_count(info.parameters));
  print_compute(info);
  print_tokens(look, screen);
  fmt::print("  run     {}, {:.0f} ms; {} kept\n", io::counted(look.length(), "token"), look.milliseconds(),
             io::readable_bytes(static_cast<double>(look.bytes())));
  if (!look.options().switches.empty())
    fmt::print("  switch  {}\n", io::printable(llm::to_text(look.options().switches)));
  print_kinds(looked, screen);
  if (looked.change) print_changes(looked, screen);
  print_head(looked, screen);
  if (info.generates) print_next(looked, screen);
}

void print_statistics(const Looked& looked) {
  const llm::Look& look = looked.look;
  std::vector<std::vector<double>> means;
  fmt::print("\nmeans over rows; the sinks' weight counts as sink alone\n{:>7}", "head");
  constexpr RowStatistic kShown[] = {RowStatistic::mass,        RowStatistic::entropy, RowStatistic::distance_mean,
                                     RowStatistic::sink_tokens, RowStatistic::self,    RowStatistic::previous,
                                     RowStatistic::local,       RowStatistic::recent,  RowStatistic::duplicate,
                                     RowStatistic::induction,   RowStatistic::maximum};
  constexpr const char* kHeads[] = {"mass",  "entropy", "distance", "sink",    "self",   "previous",
                                    "local", "recent",  "duplic.",  "induct.", "largest"};
  for (std::size_t n = 0; n < std::size(kShown); ++n) {
    fmt::print("{:>10}", kHeads[n]);
    means.push_back(look.means(kShown[n]));
  }
  fmt::print("\n");
  for (std::int64_t n = 0; n < look.layers() * look.heads(); ++n) {
    fmt::print("{:>7}", fmt::format("{}.{}", n / look.heads(), n % look.heads()));
    for (const std::vector<double>& column : means) fmt::print("{:10.3f}", column[static_cast<std::size_t>(n)]);
    fmt::print("\n");
  }
}

void print_query(const Looked& looked, std::int64_t query, std::int64_t count) {
  const llm::Look& look = looked.look;
  const LookView& view = looked.view;
  const std::int64_t at = query < 0 ? look.length() - 1 : query;
  const auto text = [&](std::int64_t i) { return label(look.tokens()[static_cast<std::size_t>(i)].text); };
  const std::vector<llm::Attended> top = look.top(view.layer, view.head, at, count);
  fmt::print("\ntoken {} ({}) in head {}.{} looks at\n", at, text(at), view.layer, view.head);
  for (const llm::Attended& one : top)
    fmt::print("  {:8.4f}  {:>6}  {}\n", one.weight, one.position, text(one.position));
  fmt::print("and is looked at by\n");
  for (const llm::Attended& one : look.users(view.layer, view.head, at, count))
    fmt::print("  {:8.4f}  {:>6}  {}\n", one.weight, one.position, text(one.position));
}

void print_cell(const Looked& looked, std::int64_t query, std::int64_t key) {
  const llm::Look& look = looked.look;
  const LookView& view = looked.view;
  const llm::LookCell cell = look.cell(view.layer, view.head, query, key);
  const CellArithmetic& a = cell.arithmetic;
  constexpr std::size_t kShown = 8;
  const auto text = [&](std::int64_t i) { return label(look.tokens()[static_cast<std::size_t>(i)].text); };
  fmt::print("\nthe weight of query {} ({}) and key {} ({}) in head {}.{}\n", cell.query, text(cell.query), cell.key,
             text(cell.key), view.layer, view.head);
  fmt::print("  q         {}\n  k         {}\n  q x k     {}\n", numbers(a.q, kShown), numbers(a.k, kShown),
             numbers(a.products, kShown));
  fmt::print("  sum       {:.6f}\n  x scale   {:.6f} = {:.6f} x {:.6f}\n", a.dot, a.scaled, a.dot, a.scale);
  if (a.softcap > 0) fmt::print("  soft-cap  {:.6f}\n", a.capped);
  if (a.alibi != 0) fmt::print("  ALiBi     -{:.6f} = {:.6f} x {:.0f}\n", a.alibi, a.alibi_slope, a.alibi_distance);
  fmt::print("  score     {:.6f}\n  mask      {}\n", a.score, a.visible ? "visible" : "hidden");
  fmt::print("  softmax   {:.6f} = exp({:.6f} - {:.6f})\n", a.weight, a.score, a.lse);
  if (a.sink) fmt::print("  sink      {:.6f} of the row\n", a.sink_weight);
  fmt::print("  v         {}   length {:.4f}\n  weight x v{}\n", numbers(a.v, kShown), cell.value_length,
             numbers(a.weighted, kShown));
}

void print_relations(const std::vector<llm::RelationReport>& reports, const draw::Screen& screen) {
  if (reports.empty()) return;
  fmt::print(
      "A head hits where its largest weight (without the first token's) is on the related word. Chance is the rate of\n"
      "the best simple rule, which needs no model; in every second story such rules are often wrong. Intervals are\n"
      "Wilson's over as many cases as vary like independent ones, {:.4f} % each: 95 % for all heads and relations\n"
      "together. A head is named where its interval is above chance.\n",
      100 * reports[0].confidence);
  for (const llm::RelationReport& report : reports) {
    heading(screen, fmt::format("{} ({})", words_of(report.relation), io::counted(report.cases, "case")));
    if (report.cases == 0) {
      fmt::print("  none in these stories\n");
      continue;
    }
    print_rules(report);
    std::vector<llm::RelationScore> order = report.heads;
    std::sort(order.begin(), order.end(), [](const llm::RelationScore& a, const llm::RelationScore& b) {
      return std::tuple(-a.rate, a.layer, a.head) < std::tuple(-b.rate, b.layer, b.head);
    });
    const std::int64_t holding = std::count_if(order.begin(), order.end(), [](const auto& s) { return s.holds; });
    constexpr std::int64_t kShown = 5;
    for (std::int64_t n = 0; n < std::min(kShown, std::ssize(order)); ++n) {
      const llm::RelationScore& s = order[static_cast<std::size_t>(n)];
      fmt::print("  {:>6}    {:.3f}  [{:.3f}, {:.3f}]  weight {:.3f}  rule wrong: {} of {}  {}\n",
                 fmt::format("{}.{}", s.layer, s.head), s.rate, s.low, s.high, s.weight, s.hits_rule_wrong,
                 report.rule_wrong, s.holds ? "above chance" : "not shown to be above chance");
    }
    if (report.best) {
      const llm::RelationScore& best = report.heads[static_cast<std::size_t>(*report.best)];
      fmt::print("  Head {}.{} does this: {:.0f} % of the time, chance {:.0f} %; {} above chance.\n", best.layer,
                 best.head, 100 * best.rate, 100 * report.chance, io::counted(holding, "head"));
    } else {
      fmt::print("  No head is shown to do this.\n");
    }
  }
}

}  // namespace attend::cli
