// All heads at once: a small picture each, its kind as a letter, brackets over heads that share keys and values.
import {theme, viridis} from "./colours.js";
import {clamp, el, number, percent} from "./format.js";
import {toggleKnock, toggleOnly} from "./switches.js";
import {data, headOf, on, set, state} from "./store.js";
import {t} from "./texts.js";

export const letters = {previous: "P", self: "S", local: "L", induction: "I", duplicate: "D", diffuse: "~", long_range: "R",
                        sink_resting: "•", mixed: ""};
const types = Object.keys(letters);
const masked = 255;

// All small pictures side by side; what is masked stays clear.
function atlas(thumbs) {
  const {layers, heads, cells, values} = thumbs;
  const image = new ImageData(heads * cells, layers * cells), out = image.data;
  for (let l = 0; l < layers; ++l)
    for (let h = 0; h < heads; ++h)
      for (let r = 0; r < cells; ++r)
        for (let c = 0; c < cells; ++c) {
          const value = values[((l * heads + h) * cells + r) * cells + c];
          if (value === masked) continue;
          const at = 4 * ((l * cells + r) * heads * cells + h * cells + c), n = Math.min(255, value) * 3;
          out[at] = viridis[n], out[at + 1] = viridis[n + 1], out[at + 2] = viridis[n + 2], out[at + 3] = 255;
        }
  const sheet = new OffscreenCanvas(heads * cells, layers * cells);
  sheet.getContext("2d").putImageData(image, 0, 0);
  return sheet;
}

// What kind of head it is, and by which rule; of one without a kind what its rows are like.
export function aboutHead(head) {
  if (!head.type) return t("head_rows", {entropy: percent(head.entropy), first: percent(head.sink)});
  const kind = t("badge", {type: t(`type_${head.type}`), score: number(head.score, 2), rule: t(`rule_${head.type}`)});
  // Induction is measured on random tokens: rows of this text that do not count say nothing about it, and where none counts
  // no other rule has a score.
  const next = head.rows ? t("badge_next", {runner: t(`type_${head.runner_up}`), runner_score: number(head.runner_score, 2)}) : "";
  const left = head.left_out && head.type !== "induction" ? t("badge_left_out", {n: head.left_out, all: head.rows + head.left_out}) : "";
  const stable = head.texts ? t("badge_stability", {n: head.texts_of_type, all: head.texts}) : "";
  return [kind, next, left, stable].filter(Boolean).join(" ");
}

const sorts = {
  type: (a, b) => types.indexOf(a.type) - types.indexOf(b.type) || b.score - a.score,
  score: (a, b) => b.score - a.score,
  entropy: (a, b) => a.entropy - b.entropy,
  sink: (a, b) => a.sink - b.sink,
  distance: (a, b) => b.distance - a.distance,
};

// The heads in the order they are drawn in.
export function order() {
  const heads = data.run?.heads ?? [];
  return state.sort === "layer" ? heads : [...heads].sort((a, b) => sorts[state.sort](a, b) || a.layer - b.layer || a.head - b.head);
}

export function moveHead(layers, heads) {
  const about = data.about?.model;
  if (!about || state.layer === null) return;
  set({layer: clamp(state.layer + layers, 0, about.layers - 1), head: (state.head + heads + about.heads) % about.heads, key: null});
}

export function showGrid() {
  const box = document.getElementById("grid");
  const title = el("h2", {}), about = el("p", {class: "line"}), tools = el("div", {class: "grid-tools"});
  const brackets = el("canvas", {class: "brackets", "aria-hidden": "true"});
  const canvas = el("canvas", {class: "heads", role: "img"});
  const scroll = el("div", {class: "grid-scroll", tabindex: "0", role: "group"}, canvas);
  const told = el("p", {class: "told"});
  box.append(el("div", {class: "panel-head"}, title), about, tools, brackets, scroll, told);
  let sheet = null, place = null, hovered = null;

  const layout = () => {
    const {layers, heads, kv_heads} = data.about.model, width = scroll.clientWidth, natural = state.sort === "layer";
    const group = heads / kv_heads, apart = kv_heads > 1 && kv_heads < heads && natural ? 5 : 0, label = 24;
    const columns = natural ? heads : Math.max(4, Math.floor((width - 4) / 36));
    const room = width - (natural ? label : 2) - apart * (kv_heads - 1) - 2;
    const size = clamp(Math.floor(room / columns) - 2, 7, natural ? 76 : 44), extra = natural ? 0 : 11;
    const x = (c) => (natural ? label : 2) + c * (size + 2) + (natural ? Math.floor(c / group) * apart : 0);
    return {natural, group, apart, label: natural ? label : 2, columns, size, stepX: size + 2, stepY: size + 2 + extra,
            width: Math.max(width, x(columns - 1) + size + 4),  // many heads: scrolled sideways
            rows: natural ? layers : Math.ceil(layers * heads / columns), x, y: (r) => r * (size + 2 + extra) + 1};
  };

  const paintBrackets = () => {
    const {heads, kv_heads} = data.about.model, ratio = devicePixelRatio || 1, shown = place.natural && kv_heads < heads;
    brackets.hidden = !shown;
    if (!shown) return;
    brackets.width = place.width * ratio, brackets.height = 22 * ratio;
    brackets.style.width = `${place.width}px`;
    const to = brackets.getContext("2d");
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    to.clearRect(0, 0, place.width, 22);
    to.font = "10px system-ui, sans-serif", to.textAlign = "center", to.textBaseline = "middle";
    for (let g = 0; g < kv_heads; ++g) {
      const x0 = place.x(g * place.group) + 1, x1 = place.x((g + 1) * place.group - 1) + place.size - 1;
      const mine = state.head !== null && Math.floor(state.head / place.group) === g;
      to.strokeStyle = theme(mine ? "k" : "line-strong"), to.lineWidth = mine ? 2 : 1;
      to.beginPath();
      to.moveTo(x0, 21), to.lineTo(x0, 15), to.lineTo(x1, 15), to.lineTo(x1, 21);
      to.stroke();
      to.fillStyle = theme(mine ? "k-ink" : "muted");
      if (x1 - x0 > 24) to.fillText(t("kv", {n: g}), (x0 + x1) / 2, 7);
    }
  };

  const draw = () => {
    const run = data.run;
    canvas.hidden = !run;
    if (!run) brackets.hidden = true;
    if (!run || scroll.clientWidth < 20) return;
    place = layout();
    const height = place.rows * place.stepY + 4, ratio = devicePixelRatio || 1;
    canvas.width = place.width * ratio, canvas.height = height * ratio;
    canvas.style.width = `${place.width}px`, canvas.style.height = `${height}px`;
    const to = canvas.getContext("2d");
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    to.textBaseline = "middle";
    const off = new Set(state.switches.filter((s) => s.startsWith("knock=")).map((s) => s.split("@")[1]));
    const cells = data.thumbs?.cells ?? 1;
    order().forEach((head, n) => {
      const r = Math.floor(n / place.columns), c = n % place.columns, x = place.x(c), y = place.y(r);
      const dim = (state.filter && head.type !== state.filter) || off.has(`${head.layer}.${head.head}`);
      to.fillStyle = theme("well");
      to.fillRect(x, y, place.size, place.size);
      to.globalAlpha = dim ? 0.18 : 1;
      to.imageSmoothingEnabled = place.size < cells;
      if (sheet && data.thumbs) to.drawImage(sheet, head.head * cells, head.layer * cells, cells, cells, x, y, place.size, place.size);
      if (place.size >= 18 && letters[head.type]) {
        to.font = `600 ${Math.min(11, place.size / 2.6)}px system-ui, sans-serif`, to.textAlign = "right";
        to.fillStyle = theme("ink");
        to.fillText(letters[head.type], x + place.size - 2.5, y + Math.min(8, place.size / 3.4));
      }
      to.globalAlpha = 1;
      if (off.has(`${head.layer}.${head.head}`)) {
        to.strokeStyle = theme("k"), to.lineWidth = 1.5;
        to.beginPath();
        to.moveTo(x + 3, y + 3), to.lineTo(x + place.size - 3, y + place.size - 3);
        to.stroke();
      }
      if (!place.natural) {
        to.font = "9px system-ui, sans-serif", to.textAlign = "center", to.fillStyle = theme("muted");
        to.fillText(`${head.layer}·${head.head}`, x + place.size / 2, y + place.size + 6);
      } else if (c === 0) {
        to.font = "10px system-ui, sans-serif", to.textAlign = "right";
        to.fillStyle = theme(head.layer === state.layer ? "ink" : "muted");
        to.fillText(String(head.layer), place.label - 6, y + place.size / 2);
      }
      const chosen = head.layer === state.layer && head.head === state.head;
      const pinned = state.pin && head.layer === state.pin[0] && head.head === state.pin[1];
      if (chosen || pinned || n === hovered) {
        to.strokeStyle = theme(chosen ? "ink" : pinned ? "o" : "muted"), to.lineWidth = chosen ? 2.5 : 1.5;
        to.strokeRect(x - 1, y - 1, place.size + 2, place.size + 2);
      }
    });
    paintBrackets();
    const chosen = headOf(state.layer, state.head);
    canvas.setAttribute("aria-label", chosen?.type ? t("head_said", {...chosen, type: t(`type_${chosen.type}`), score: number(chosen.score, 2)}) : t("grid"));
  };

  const tell = () => {
    const head = hovered === null ? headOf(state.layer, state.head) : order()[hovered];
    told.textContent = head ? `${head.layer}·${head.head}  ${aboutHead(head)}` : "";
  };

  const under = (event) => {
    if (!place || !data.run) return null;
    const box_ = canvas.getBoundingClientRect(), px = event.clientX - box_.left, py = event.clientY - box_.top;
    const r = Math.floor(py / place.stepY);
    for (let c = 0; c < place.columns; ++c)
      if (px >= place.x(c) && px < place.x(c) + place.size + 2) {
        const n = r * place.columns + c;
        return n >= 0 && n < data.run.heads.length ? n : null;
      }
    return null;
  };

  scroll.addEventListener("scroll", () => (brackets.style.transform = `translateX(${-scroll.scrollLeft}px)`));
  canvas.addEventListener("pointermove", (event) => {
    const n = under(event);
    if (n === hovered) return;
    hovered = n;
    draw();
    tell();
  });
  canvas.addEventListener("pointerleave", () => (hovered = null, draw(), tell()));
  canvas.addEventListener("click", (event) => {
    const n = under(event);
    if (n === null) return;
    const {layer, head} = order()[n];
    if (event.shiftKey) return toggleKnock(layer, head);
    set({layer, head, key: null});
  });
  canvas.addEventListener("dblclick", (event) => {
    const n = under(event);
    if (n !== null && data.live) toggleOnly(order()[n].layer, order()[n].head);
  });

  const words = () => {
    title.textContent = t("grid"), about.textContent = t("grid_about");
    scroll.setAttribute("aria-label", t("grid_label"));
    const present = types.filter((type) => data.run?.heads.some((h) => h.type === type));
    const counts = (type) => data.run.heads.filter((h) => h.type === type).length;
    const sorted = present.length ? ["layer", "type", "score", "entropy", "sink", "distance"] : ["layer", "entropy", "sink"];
    const sort = el("select", {id: "sort", onchange: (e) => set({sort: e.target.value})},
      ...sorted.map((s) => el("option", {value: s, selected: state.sort === s}, t(`sort_${s}`))));
    const filter = el("select", {id: "filter", onchange: (e) => set({filter: e.target.value})}, el("option", {value: ""}, t("filter_all")),
      ...present.map((type) => el("option", {value: type, selected: state.filter === type}, `${letters[type]} ${t(`type_${type}`)} (${counts(type)})`.trim())));
    tools.replaceChildren(el("label", {class: "field"}, t("sort"), sort),
                          ...(present.length ? [el("label", {class: "field"}, t("filter"), filter)] : []));
  };
  const reveal = () => {
    if (!place || state.layer === null) return;
    const n = order().findIndex((h) => h.layer === state.layer && h.head === state.head), y = place.y(Math.floor(n / place.columns));
    if (y < scroll.scrollTop || y + place.size > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = y - scroll.clientHeight / 2;
  };
  on("thumbs", () => (sheet = data.thumbs ? atlas(data.thumbs) : null));
  on("run words sort filter", words);
  on("run thumbs layer head sort filter switches pin words look tab", () => (draw(), tell()));
  on("layer head sort run", reveal);
  new ResizeObserver(() => data.run && draw()).observe(scroll);
  words();
}
