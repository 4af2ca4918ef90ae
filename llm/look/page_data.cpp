// A run with all that the explorer's page draws of it, for a page without a server: source_embedded.js reads it.
#include <algorithm>

#include "attend/attend.hpp"
#include "attend/error.hpp"
#include "io/base64.hpp"
#include "io/json.hpp"
#include "io/readable.hpp"
#include "llm/look/look_frames.hpp"
#include "llm/look/look_json.hpp"

namespace attend::llm {
namespace {

constexpr std::int64_t kThumbCells = 24;

std::vector<std::int64_t> kept_layers(const Look& look) {
  std::vector<std::int64_t> kept;
  for (std::int64_t layer = 0; layer < look.layers(); ++layer)
    if (look.kept(layer)) kept.push_back(layer);
  if (kept.empty()) throw InvalidArgument("page_data: the run kept no layer, and a page draws what was kept");
  return kept;
}

// The layer whose head follows its rule most clearly; those that rest or spread over everything tell the least.
std::int64_t clearest_layer(LookSession& session, const Look& look, const std::vector<std::int64_t>& kept) {
  std::int64_t best = kept.front();
  double most = -1;
  for (const HeadType& type : session.types(look)) {
    const HeadKind kind = type.kind.kind;
    if (!look.kept(type.layer) || kind == HeadKind::mixed || kind == HeadKind::sink_resting ||
        kind == HeadKind::diffuse)
      continue;
    const double clear = type.kind.score / std::max(type.kind.threshold, 1e-9);
    if (clear > most) most = clear, best = type.layer;
  }
  return best;
}

void put_layer(io::JsonObject& frames, const Look& look, std::int64_t layer) {
  const std::string number = std::to_string(layer);
  const std::pair<const char*, View> all[] = {{"q", look.q(layer)}, {"k", look.k(layer)}, {"v", look.v(layer)}};
  for (const auto& [name, view] : all) frames.string(name + ("." + number), io::base64(tensor_frame(name, view)));
  const std::int64_t N = look.length();
  for (std::int64_t head = 0; head < look.heads(); ++head)
    frames.string(
        "map." + number + "." + std::to_string(head),
        io::base64(whole(MapInBands({layer, head, 0, N, 0, N, N, N}, {.weights = N * N, .bytes = 4 * N * N}), look)));
}

// What every score is multiplied by, a layer each; null for one that was not kept.
std::string scales_json(const Look& look) {
  std::string out;
  for (std::int64_t layer = 0; layer < look.layers(); ++layer) {
    io::JsonObject one;
    if (look.kept(layer)) one.number("scale", look.cell(layer, 0, 0, 0).arithmetic.scale);
    out += layer == 0 ? '[' : ',';
    out += one.text();
  }
  return out + "]";
}

}  // namespace

std::string page_data(LookSession& session, const Look& look, const PageOptions& options) {
  const Model& model = session.model();
  const std::int64_t N = look.length(), dim = model.info().head_dim;
  const std::int64_t each = 4 * (look.heads() * N * N + (look.heads() + 2 * look.kv_heads()) * N * dim);
  std::vector<std::int64_t> layers = kept_layers(look);
  if (each > options.bytes)
    throw InvalidArgument("page_data: one layer of " + std::to_string(N) + " tokens is " +
                          io::readable_bytes(static_cast<double>(each)) + ", expected at most " +
                          io::readable_bytes(static_cast<double>(options.bytes)) + "; look at a shorter text");
  if (each * std::ssize(layers) > options.bytes) layers = {clearest_layer(session, look, layers)};

  io::JsonObject out, about, limits, state, frames;
  limits.number("exact", N);
  limits.number("tokens", model.context());
  about.number("protocol", std::int64_t{1});
  about.string("version", version());
  about.put("model", model_json(model, options.name));
  about.put("limits", limits.text());
  about.string("kernel", kernel_name());
  about.string("dtype", "f32");
  std::string text;
  for (const LookToken& token : look.tokens()) text += token.text;
  state.string("text", text);
  if (layers.size() == 1) {
    state.number("layer", layers.front());
    state.number("head", std::int64_t{0});
  }
  frames.string("thumbs", io::base64(whole(Thumbs(look, 0, look.layers(), kThumbCells, {}), look)));
  for (const std::int64_t layer : layers) put_layer(frames, look, layer);
  out.number("format", std::int64_t{1});
  out.put("about", about.text());
  out.put("run",
          run_json(session, look, {.id = "kept", .prompt_tokens = N, .uncut_tokens = N, .context = model.context()}));
  out.put("state", state.text());
  out.put("frames", frames.text());
  out.put("scores", scales_json(look));
  return out.text();
}

}  // namespace attend::llm
