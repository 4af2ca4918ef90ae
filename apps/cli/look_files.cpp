// A look as files: pictures, JSON, NPY, one HTML page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "command.hpp"
#include "io/atomic_file.hpp"
#include "io/json.hpp"
#include "io/mapped_file.hpp"
#include "look.hpp"
#include "screen.hpp"

namespace attend::cli {
namespace {

namespace fs = std::filesystem;

template <class Range, class Text>
std::string list(const Range& range, const Text& text) {
  std::string out = "[";
  for (const auto& one : range) out += (out.size() > 1 ? ", " : "") + text(one);
  return out + "]";
}

std::string numbers(const std::vector<double>& values) {
  return list(values, [](double x) { return io::json_number(x); });
}

std::string token_json(const llm::NextToken& token) {
  io::JsonObject object;
  object.number("id", static_cast<std::int64_t>(token.id));
  object.string("text", token.text);
  object.number("probability", token.probability);
  return object.text();
}

std::string tokens_json(const std::vector<llm::NextToken>& tokens) {
  return list(tokens, token_json);
}

std::string score_json(const llm::KindScore& score) {
  io::JsonObject object;
  object.string("kind", llm::name(score.kind));
  object.put("score", score.measured ? io::json_number(score.score) : "null");
  object.number("threshold", score.threshold);
  object.string("rule", llm::rule_of(score.kind));
  return object.text();
}

std::string head_json(const llm::HeadType& type) {
  io::JsonObject object;
  object.number("layer", type.layer);
  object.number("head", type.head);
  object.put("kind", score_json(type.kind));
  object.put("runner_up", score_json(type.runner_up));
  object.put("scores", list(type.scores, score_json));
  object.number("rows", type.rows);
  object.number("left_out", type.left_out);
  object.number("median_sink", type.median_sink);
  io::JsonObject on_texts;
  for (const llm::KindOnText& one : type.on_texts) on_texts.string(one.text, llm::name(one.kind));
  object.put("on_texts", on_texts.text());
  return object.text();
}

std::string change_json(const Looked& looked) {
  const llm::LookComparison& change = *looked.change;
  io::JsonObject object;
  object.string("against", looked.before_name);
  object.put("kl", change.divergence ? io::json_number(*change.divergence) : "null");
  object.put("before", tokens_json(change.before));
  object.put("after", tokens_json(change.after));
  object.put("losses", list(change.losses, [](const llm::LossChange& loss) {
               io::JsonObject one;
               one.string("tokens", loss.range.name);
               one.number("count", loss.tokens);
               one.number("before", loss.before);
               one.number("after", loss.after);
               return one.text();
             }));
  object.put("heads", list(looked.changes.heads, [](const llm::HeadChange& head) {
               io::JsonObject one;
               one.number("layer", head.layer);
               one.number("head", head.head);
               one.number("change", head.change);
               one.number("query", head.query);
               one.number("query_change", head.query_change);
               return one.text();
             }));
  object.put("predictions", list(looked.changes.predictions, [](const llm::PredictionChange& prediction) {
               io::JsonObject one;
               one.number("position", prediction.position);
               one.number("kl", prediction.divergence);
               one.put("before", token_json(prediction.before));
               one.put("after", token_json(prediction.after));
               return one.text();
             }));
  object.put("tokens", list(looked.changes.tokens, [](const llm::TokenChange& token) {
               io::JsonObject one;
               one.number("position", token.position);
               one.number("loss_before", token.before);
               one.number("loss_after", token.after);
               return one.text();
             }));
  return object.text();
}

// NumPy's format 1.0 of a matrix of floats.
std::string npy_bytes(const std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, cols);
  constexpr std::size_t kFront = 10, kAlign = 64;
  header.append(kAlign - (kFront + header.size() + 1) % kAlign, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return bytes;
}

void write(const fs::path& path, const std::string& text) {
  io::write_file_atomically(path, std::as_bytes(std::span(text)));
}

bool has_picture(const Looked& looked, const std::string& kind) {
  return kind == "changes"       ? !looked.changes.heads.empty()
         : kind == "predictions" ? !looked.changes.predictions.empty()
                                 : !looked.changes.tokens.empty();
}

draw::Picture picture_of(const Looked& looked, const std::string& kind) {
  constexpr std::int64_t kCells = 512;
  if (kind == "sheet") return sheet_picture(looked);
  if (kind == "lines") return lines_picture(looked, looked.view);
  if (kind == "next") return next_picture(looked);
  const bool changes = kind == "changes" || kind == "predictions" || kind == "tokens";
  if ((kind == "difference" || changes) && !looked.before)
    throw UsageError("there is nothing to take the difference to: expected --switch or --against");
  if (kind == "difference") return difference_picture(looked, looked.view, kCells);
  if (changes && !has_picture(looked, kind))
    throw UsageError(fmt::format("--picture {} needs two runs of as many tokens, of models alike", kind));
  if (kind == "changes") return changes_picture(looked);
  if (kind == "predictions") return predictions_picture(looked);
  if (kind == "tokens") return tokens_picture(looked);
  draw::HeatMap map = map_picture(looked, looked.view, kCells);
  if (kind == "dots") map.mark = draw::Mark::dot;
  if (kind == "distance") return draw::by_distance(map);
  return map;
}

std::string weights_npy(const Looked& looked) {
  const llm::Look& look = looked.look;
  LensArea area = looked.view.area;
  if (area.queries < 0) area.queries = look.length() - area.first_query;
  if (area.keys < 0) area.keys = look.length() - area.first_key;
  constexpr std::int64_t kMost = std::int64_t{1} << 28;
  if (area.queries * area.keys > kMost)
    throw UsageError(fmt::format("the weights of {} queries and {} keys, expected at most {}; --area takes a part",
                                 area.queries, area.keys, kMost));
  return npy_bytes(look.zoom(looked.view.layer, looked.view.head, area), area.queries, area.keys);
}

// The heads that changed most, each as a map of differences, and the predictions.
draw::Section changes_section(const Looked& looked) {
  constexpr std::size_t kDrawn = 3;
  draw::Section section{.heading = "What changed most"};
  const std::vector<llm::HeadChange>& heads = looked.changes.heads;
  if (!heads.empty()) section.pictures.emplace_back(changes_picture(looked));
  for (std::size_t n = 0; n < std::min(kDrawn, heads.size()) && heads[n].change > 0; ++n) {
    LookView view = looked.view;
    view.layer = heads[n].layer, view.head = heads[n].head;
    section.pictures.emplace_back(difference_picture(looked, view, 512));
  }
  if (!looked.changes.predictions.empty()) section.pictures.emplace_back(predictions_picture(looked));
  if (!looked.changes.tokens.empty()) section.pictures.emplace_back(tokens_picture(looked));
  return section;
}

std::string html(const Looked& looked) {
  const llm::Look& look = looked.look;
  const LookView& view = looked.view;
  draw::Page page;
  page.title = fmt::format("{}: {} tokens", name_of(look.model()), look.length());
  draw::Section heads{.heading = "All heads"};
  heads.paragraphs = {
      "Weights say where a head looks, not what that does to the answer: a switch that knocks it out does."};
  heads.pictures.emplace_back(sheet_picture(looked));
  draw::Section one{.heading = fmt::format("Layer {}, head {}", view.layer, view.head)};
  const llm::HeadType& type = type_of(looked, view.layer, view.head);
  one.paragraphs = {
      fmt::format("{}. Rule: {}. Runner-up: {}. {} rows scored, {} left out with more than 0.95 on sinks. "
                  "The same kind on {} of {} fixed texts.",
                  badge(type.kind), llm::rule_of(type.kind.kind), badge(type.runner_up), type.rows, type.left_out,
                  type.texts_of_kind(), type.on_texts.size())};
  one.pictures.emplace_back(picture_of(looked, "map"));
  if (look.length() <= 64) one.pictures.emplace_back(picture_of(looked, "lines"));
  if (looked.before && looked.before->length() == look.length())
    one.pictures.emplace_back(picture_of(looked, "difference"));
  page.sections = {heads, one};
  if (!looked.changes.heads.empty() || !looked.changes.predictions.empty())
    page.sections.insert(page.sections.begin(), changes_section(looked));
  if (look.model().generates) {
    draw::Section next{.heading = "Next token"};
    if (looked.change && looked.change->divergence)
      next.paragraphs.push_back(
          fmt::format("KL {:.4f} nats from {} to this run.", *looked.change->divergence, looked.before_name));
    next.pictures.emplace_back(next_picture(looked));
    page.sections.push_back(next);
  }
  page.json = look_json(looked);
  return draw::to_html(page);
}

}  // namespace

std::string look_json(const Looked& looked) {
  const llm::Look& look = looked.look;
  io::JsonObject object(true);
  object.string("model", name_of(look.model()));
  object.number("layers", look.layers());
  object.number("heads", look.heads());
  object.number("kv_heads", look.kv_heads());
  object.string("compute", name(look.model().compute));
  object.truth("rounds_rows", look.model().rounds_rows());
  object.string("switches", llm::to_text(look.options().switches));
  object.put("tokens", list(look.tokens(), [](const llm::LookToken& token) {
               io::JsonObject one;
               one.number("id", static_cast<std::int64_t>(token.id));
               one.string("text", token.text);
               return one.text();
             }));
  object.put("types", list(looked.types, head_json));
  io::JsonObject statistics;
  for (std::int64_t n = 0; n < kRowStatistics; ++n)
    statistics.put(llm::name(static_cast<RowStatistic>(n)), numbers(look.means(static_cast<RowStatistic>(n))));
  object.put("statistics", statistics.text());
  if (look.model().generates) object.put("next", tokens_json(look.next_tokens(-1, looked.next)));
  if (looked.change) object.put("change", change_json(looked));
  return object.text();
}

std::string relations_json(const std::vector<llm::RelationReport>& reports) {
  return list(reports,
              [](const llm::RelationReport& report) {
                io::JsonObject object;
                object.string("relation", report.relation);
                object.number("cases", report.cases);
                object.number("chance", report.chance);
                object.put("rules", list(report.rules, [](const llm::RelationRule& rule) {
                             io::JsonObject one;
                             one.string("rule", rule.rule);
                             one.number("rate", rule.rate);
                             if (rule.distance != 0) one.number("distance", rule.distance);
                             return one.text();
                           }));
                object.number("rule_wrong", report.rule_wrong);
                object.number("confidence", report.confidence);
                object.put("heads", list(report.heads, [](const llm::RelationScore& score) {
                             io::JsonObject one;
                             one.number("layer", score.layer);
                             one.number("head", score.head);
                             one.number("hits", score.hits);
                             one.number("rate", score.rate);
                             one.number("low", score.low);
                             one.number("high", score.high);
                             one.number("weight", score.weight);
                             one.truth("holds", score.holds);
                             one.number("hits_rule_wrong", score.hits_rule_wrong);
                             return one.text();
                           }));
                return object.text();
              }) +
         "\n";
}

namespace {

// `advice`: what the first picture lacks.
std::vector<std::string> write_files(const Looked& looked, const std::string& out, const std::string& kind,
                                     draw::Theme theme, std::string& advice) {
  const std::string ending = fs::path(out).extension().string();
  const draw::Style style{.theme = theme};
  if (ending == ".json") return write(out, look_json(looked)), std::vector{out};
  if (ending == ".npy") return write(out, weights_npy(looked)), std::vector{out};
  if (ending == ".html") return write(out, html(looked)), std::vector{out};
  if (ending == ".png" || ending == ".svg" || ending == ".pdf") {
    const draw::Picture picture = picture_of(looked, kind);
    io::write_file_atomically(out, draw::to_file_bytes(out, picture, style));
    if (advice.empty()) advice = draw::font_advice(picture);
    return {out};
  }
  if (!ending.empty())
    throw UsageError(
        fmt::format("--out is '{}', expected a folder, or a file .png, .svg, .pdf, .json, .npy or .html", out));
  std::error_code error;
  fs::create_directories(out, error);
  if (error) throw io::FileError(fmt::format("{}: cannot be made: {}", out, error.message()));
  std::vector<std::string> written;
  const auto put = [&](const std::string& name) {
    const std::vector<std::string> one =
        write_files(looked, (fs::path(out) / name).string(), fs::path(name).stem().string(), theme, advice);
    written.insert(written.end(), one.begin(), one.end());
  };
  std::vector<std::string> pictures = {"sheet", "map", "distance"};
  if (looked.look.length() <= 64) pictures.insert(pictures.end(), {"dots", "lines"});
  if (looked.look.model().generates) pictures.emplace_back("next");
  if (looked.before && looked.before->length() == looked.look.length()) pictures.emplace_back("difference");
  for (const char* changes : {"changes", "predictions", "tokens"})
    if (has_picture(looked, changes)) pictures.emplace_back(changes);
  for (const std::string& name : pictures) {
    put(name + ".png");
    put(name + ".svg");
  }
  put("look.json");
  put("look.html");
  put("weights.npy");
  return written;
}

}  // namespace

std::vector<std::string> write_look(const Looked& looked, const std::string& out, const std::string& kind,
                                    draw::Theme theme) {
  std::string advice;
  std::vector<std::string> written = write_files(looked, out, kind, theme, advice);
  if (!advice.empty()) tell("attend look: " + advice);
  return written;
}

}  // namespace attend::cli
