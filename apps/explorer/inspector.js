// How one weight comes about: every number of it, from q and k to the head's output.
import {el, label, number, percent} from "./format.js";
import {place} from "./loader.js";
import {cellReceipt} from "./receipts.js";
import {find, toggleKnock} from "./switches.js";
import {columnOf, rowOf, topOf} from "./weights.js";
import {data, keyTokens, on, set, state} from "./store.js";
import {t} from "./texts.js";

const ns = "http://www.w3.org/2000/svg";

// Numbers as bars around zero; the same scale where they are to be compared.
function bars(values, kind, most = Math.max(...values.map(Math.abs), 1e-12)) {
  const height = 34, step = 256 / values.length, svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", `0 0 256 ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", `vector ${kind}`);
  svg.setAttribute("aria-hidden", "true");
  let path = "";
  values.forEach((x, n) => {
    const size = x / most * (height / 2 - 1);
    path += `M${(n * step + 0.25).toFixed(2)} ${height / 2}h${(step - 0.5).toFixed(2)}v${(-size).toFixed(2)}h${(0.5 - step).toFixed(2)}z`;
  });
  svg.innerHTML = `<path class="zero" d="M0 ${height / 2}h256"/><path d="${path}"/>`;
  return svg;
}

function vector(letter, kind, name, values, most) {
  const hover = el("output", {class: "element"});
  const drawing = bars(values, kind, most);
  drawing.addEventListener("pointermove", (event) => {
    const n = Math.min(values.length - 1, Math.max(0, Math.floor(event.offsetX / drawing.clientWidth * values.length)));
    hover.textContent = `[${n}] ${number(values[n], 5)}`;
  });
  drawing.addEventListener("pointerleave", () => (hover.textContent = ""));
  return el("div", {class: `vector-row ${kind}`}, el("div", {class: "vector-name"}, el("b", {class: "letter"}, letter), el("span", {class: "name", title: name}, name), hover), drawing);
}

function line(name, value, kind) {
  return el("div", {class: "sum-line", "data-line": kind}, el("span", {}, name), el("b", {class: "number"}, value));
}

function scaleLine(cell) {
  const d = cell.q.length, usual = Math.abs(cell.scale * Math.sqrt(d) - 1) < 1e-6;
  if (usual) return t("cell_scale", {d});
  // A model may do without √d of its own.
  return find("scale") ? t("cell_scale_off") : t("cell_scale_other", {scale: number(cell.scale)});
}

// Whether q and k are shown as they are multiplied, or as the layer made them.
function rotation() {
  const choice = (value, name) => el("button", {"aria-pressed": String(state.unrotated === value), onclick: () => set({unrotated: value})}, t(name));
  return el("div", {class: "segmented rotation", role: "group", "aria-label": t("rotation")}, choice(false, "rotation_after"), choice(true, "rotation_before"));
}

function arithmetic(cell, query, key) {
  // Before RoPE turned them, where the server kept that: what they say without their places.
  const before = state.unrotated && cell.q_before, q = before ? cell.q_before : cell.q, k = before ? cell.k_before : cell.k;
  const products = q.map((x, n) => x * k[n]), scaled = cell.dot * cell.scale, most = Math.max(...q.map(Math.abs), ...k.map(Math.abs));
  const share = cell.v.map((x) => x * cell.weight), out = Math.max(...cell.output.map(Math.abs), ...share.map(Math.abs), 1e-12);
  const group = data.about.model.heads / data.about.model.kv_heads;
  const pair = (...vectors) => el("div", {class: "pair"}, ...vectors);
  const parts = [
    pair(vector("q", "q", t("cell_q", {token: query}), q, most), vector("k", "k", t("cell_k", {token: key}), k, most)),
    vector("×", "product", t("cell_products"), products),
    ...(before ? [line(t("cell_sum_before"), number(products.reduce((a, b) => a + b, 0), 6), "before")] : []),
    line(t(before ? "cell_sum_after" : "cell_sum", {distance: cell.query - cell.key}), number(cell.dot, 6), "dot"),
    line(scaleLine(cell), number(scaled, 6), "scaled"),
  ];
  if (!cell.masked && Math.abs(cell.score - scaled) > 1e-4 * Math.max(1, Math.abs(scaled)))
    parts.push(line(t("cell_rest"), number(cell.score, 6), "score"));
  parts.push(line(t("cell_mask"), cell.masked ? t("cell_hidden") : t("cell_visible"), "mask"),
             line(t("cell_softmax", {lse: number(cell.lse, 5)}), number(cell.weight, 7), "weight"),
             pair(vector("v", "v", t("cell_v", {token: key, norm: number(cell.value_norm, 4)}), cell.v),
                  vector("×", "share", t("cell_times_v"), share, out)),
             vector("o", "o", t("cell_out"), cell.output, out));
  const notes = [];
  if (data.about.model.positions === "rope" && !cell.q_before) notes.push(t("cell_rotated"));
  if (group > 1)
    notes.push(t("cell_shared", {first: cell.kv_head * group, last: (cell.kv_head + 1) * group - 1, kv: cell.kv_head}));
  if (notes.length) parts.push(el("p", {class: "about"}, notes.join(" · ")));
  return parts;
}

function lists(query, key) {
  const one = (title, tokens, top, choose) => el("div", {class: "top-list"}, el("h3", {}, title),
    top.length ? el("ol", {}, ...top.map(([w, n]) => el("li", {}, el("button", {class: "plain", onclick: () => choose(n)},
      el("span", {class: "word", dir: "auto"}, label(tokens[n])), el("small", {}, ` ${n}`)), el("span", {class: "p"}, percent(w)))))
               : el("p", {class: "about"}, t("nobody")));
  const queries = data.run.tokens, keys = keyTokens();
  return el("div", {class: "top-lists"},
    one(t("looks_at", {token: label(queries[query])}), keys, topOf(rowOf(query), 5), (n) => set({key: n})),
    one(t("used_by", {token: label(keys[key])}), queries, topOf(columnOf(key), 5), (n) => set({query: n})));
}

export function showInspector() {
  const box = document.getElementById("inspector");
  const title = el("h2", {}), body = el("div", {class: "cell-body"});
  box.append(el("div", {class: "panel-head"}, title), body);
  const draw = () => {
    title.textContent = t("cell");
    const cell = data.cell, run = data.run, {query, key} = place();
    if (!run || !cell || query === null || key === null || cell.query >= run.tokens.length || cell.key >= keyTokens().length)
      return body.replaceChildren(el("p", {class: "about"}, t("cell_none")));
    const q = label(run.tokens[cell.query]), k = label(keyTokens()[cell.key]);
    const first = el("p", {class: "verdict"}, cell.masked ? t("cell_masked", {query: q, key: k})
      : t("cell_line", {query: q, p: percent(cell.weight), key: k}));
    const places = el("div", {class: "cell-place"}, el("span", {class: "about"}, `${t("layer_head", {layer: cell.layer, head: cell.head})} · ${cell.query} → ${cell.key}`),
      cell.q_before ? rotation() : null);
    const knock = data.live === false ? null : el("p", {class: "about honest"}, t("weights_honest"), " ",
      el("button", {class: "plain", onclick: () => toggleKnock(cell.layer, cell.head)}, t("knock_this", {place: `${cell.layer}·${cell.head}`})));
    const at = body.scrollTop;
    body.replaceChildren(first, places, ...arithmetic(cell, q, k), cellReceipt(cell), lists(cell.query, cell.key), ...(knock ? [knock] : []));
    body.scrollTop = at;
  };
  on("cell run words map live unrotated", draw);
  draw();
}
