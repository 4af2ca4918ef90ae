// The large pattern of the chosen head: choose a cell, zoom, look at it in other ways.
import {CanvasPainter} from "./painter.js";
import {clamp, count, el, milliseconds, number, percent} from "./format.js";
import {aboutHead} from "./grid.js";
import {place, strongest, windowNow} from "./loader.js";
import {paint} from "./paint.js";
import {limits, plotNow, sentence, viewNow, zoomed} from "./plot.js";
import {receipt} from "./receipts.js";
import {sinkMass} from "./weights.js";
import {crosses, data, headOf, length, on, put, set, state, switched} from "./store.js";
import {t} from "./texts.js";

let canvas = null, geometryNow = null, plot = null;

export function zoom(factor, at = null) {
  const {a, b, c, d, all, keys} = zoomed();
  if (!all) return;
  const centre = at ?? {query: state.query !== null && state.query >= a && state.query < b ? state.query : (a + b) / 2,
                        key: state.key !== null && state.key >= c && state.key < d ? state.key : (c + d) / 2};
  const along = (low, high, x, most) => {
    const size = clamp(Math.round((high - low) * factor), Math.min(8, most), most);
    const first = clamp(Math.round(x - (x - low) / Math.max(high - low, 1) * size), 0, most - size);
    return [first, first + size];
  };
  const q = along(a, b, centre.query, all), k = along(c, d, centre.key, keys);
  set({window: q[1] - q[0] >= all && k[1] - k[0] >= keys ? null : [...q, ...k]});
}

export function pan(queries, keys) {
  const {a, b, c, d, all, keys: most} = zoomed();
  const q = clamp(a + queries, 0, all - (b - a)), k = clamp(c + keys, 0, most - (d - c));
  set({window: [q, q + b - a, k, k + d - c]});
}

// The window around a cell when it lies outside of it.
export function follow() {
  if (!state.window || state.query === null) return;
  const {a, b, c, d} = zoomed(), key = state.key ?? (crosses() ? c : state.query);
  const dq = state.query < a ? state.query - a : state.query >= b ? state.query - b + 1 : 0;
  const dk = key < c ? key - c : key >= d ? key - d + 1 : 0;
  if (dq || dk) pan(dq, dk);
}

function cellUnder(event) {
  if (!geometryNow || !plot) return null;
  const box = canvas.getBoundingClientRect(), hit = geometryNow.under(event.clientX - box.left, event.clientY - box.top);
  if (!hit) return null;
  if (hit.r === null) return {query: null, key: plot.key(0, hit.c)};
  const query = plot.query(hit.r);
  return {query, key: hit.c === null ? null : hit.gutter ? 0 : plot.key(hit.r, hit.c)};
}

function attachPointer() {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drag = {x: event.clientX, y: event.clientY, moved: false, window: windowNow()};
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && state.window && geometryNow) {
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      drag.moved = true;
      const {all, keys} = zoomed(), [a, b, c, d] = drag.window;
      const along = (-dx / geometryNow.w) * (d - c), down = (-dy / geometryNow.h) * (b - a);
      const q = clamp(Math.round(a + (state.transpose ? along : down)), 0, all - (b - a));
      const k = clamp(Math.round(c + (state.transpose ? down : along)), 0, keys - (d - c));
      return set({window: [q, q + b - a, k, k + d - c]});
    }
    if (event.pointerType !== "mouse") return;
    const cell = cellUnder(event);
    canvas.style.cursor = cell ? "crosshair" : "default";
    const now = data.hover;
    if (cell?.query !== now?.query || cell?.key !== now?.key) put({hover: cell && cell.key !== null && cell.query !== null ? cell : null});
  });
  canvas.addEventListener("pointerleave", () => data.hover && put({hover: null}));
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag?.moved;
    drag = null;
    if (moved) return;
    const cell = cellUnder(event);
    if (!cell) return;
    put({hover: null});
    if (cell.query === null) set({key: cell.key});
    else set({query: cell.query, key: cell.key ?? strongest(data.map, cell.query)});
  });
  canvas.addEventListener("wheel", (event) => {
    if (length() <= 32) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, cellUnder(event));
  }, {passive: false});
}

function select(name, field, values) {
  const node = el("select", {id: `choose-${field}`, onchange: () => set({[field]: node.value})},
    ...values.map(([value, text]) => el("option", {value, selected: state[field] === value}, text)));
  return el("label", {class: "field"}, name, node);
}

function segmented(name, field, values) {
  return el("div", {class: "segmented", role: "group", "aria-label": name}, ...values.map(([value, text]) =>
    el("button", {"aria-pressed": String(state[field] === value), "data-view": value, onclick: () => set({[field]: value})}, text)));
}

function controls(exact) {
  const press = (name, hint, on_, run) => el("button", {class: "push", title: hint, "aria-pressed": String(on_), onclick: run}, name);
  const compare = [["", t("compare_off")]];
  if (switched()) compare.push(["before", t("compare_before")]);
  if (state.pin) compare.push(["pin", `${t("compare_pin")} ${state.pin.join("·")}`]);
  const main = [
    segmented(t("view"), "view", ["auto", "heat", "dots", "lines"].map((v) => [v, t(`view_${v}`)])),
    ...(crosses() ? [] : [press(t("sheared"), t("sheared_hint"), state.sheared, () => set({sheared: !state.sheared}))]),
    press(t("transpose"), t("transpose_hint"), state.transpose, () => set({transpose: !state.transpose})),
    press(t("pin"), t("pin_hint"), Boolean(state.pin), () => set({pin: state.pin ? null : [state.layer, state.head]})),
  ];
  if (compare.length > 1) main.push(select(t("compare"), "compare", compare));
  const drawing = el("details", {class: "drawing"}, el("summary", {}, t("more")), el("div", {class: "drawing-box"},
    select(t("colour"), "colour", ["linear", "sqrt", "log"].map((v) => [v, t(`colour_${v}`)])),
    select(t("range"), "range", ["row", "head", "global"].map((v) => [v, t(`range_${v}`)])),
    select(t("measure"), "measure", ["weight", "value"].map((v) => [v, t(`measure_${v}`)])),
    select(t("sink"), "sink", ["show", "split", "hide", "renorm"].map((v) => [v, t(`sink_${v}`)])),
    select(t("plane"), "plane", ["peak", "mass"].map((v) => [v, t(`plane_${v}`)]))));
  return [...main, drawing];
}

// Also for files: the same plot with the same choice.
export function paintOn(painter) {
  const now = plotNow();
  if (!now) return null;
  const {view} = viewNow(now), {query, key} = place();
  const chosen = {r: query === null ? -1 : Math.floor(now.rowOf(query)), c: key === null || query === null ? -1 : Math.floor(now.columnOf(query, key))};
  return {plot: now, geometry: paint(painter, now, view, chosen), view};
}

export function title() {
  const head = headOf(state.layer, state.head);
  if (!head) return t("pattern");
  const place = t("layer_head", {layer: state.layer, head: state.head});
  return head.type ? `${place} — ${t(`type_${head.type}`)}` : place;
}

function finder() {
  const input = el("input", {type: "search", id: "find", "aria-label": t("find"), placeholder: t("find"), value: state.find});
  const out = el("span", {class: "about", "aria-live": "polite"});
  input.addEventListener("input", () => set({find: input.value}));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && data.found?.length) {
      event.preventDefault();
      const at = data.found.findIndex((n) => n > (state.query ?? -1)), n = data.found[at < 0 ? 0 : at];
      set({query: n, key: null});
      follow();
      out.textContent = t("find_at", {n: (at < 0 ? 0 : at) + 1, all: data.found.length});
    }
  });
  on("find run", () => {
    const found = findTokens(state.find);
    put({found});
    out.textContent = state.find === "" ? "" : found.length ? t("find_at", {n: "–", all: count(found.length)}) : t("find_none");
  });
  return [input, out];
}

// Tokens that a text runs through, by where each begins in the whole text.
export function findTokens(text) {
  if (text === "" || !data.run) return [];
  const starts = [], ends = [];
  let whole = "";
  for (const {text: own, units = [{text: own, part: 1}]} of data.run.tokens) {
    units.forEach(({text: one, part}, n) => {
      const lower = one.toLowerCase(), begun = part > 1 ? lower.length : 0;  // the token before has said it
      if (n === 0) starts.push(whole.length - begun);
      if (!begun) whole += lower;
    });
    ends.push(whole.length);
  }
  const wanted = text.toLowerCase(), found = new Set();
  let token = 0;
  for (let at = whole.indexOf(wanted); at >= 0 && found.size < 20000; at = whole.indexOf(wanted, at + wanted.length)) {
    while (ends[token] <= at) ++token;
    for (let n = token; n < starts.length && starts[n] < at + wanted.length; ++n) found.add(n);
  }
  return [...found];
}

export function showPattern() {
  const box = document.getElementById("pattern");
  const heading = el("h2", {tabindex: "-1"}), badge = el("span", {class: "badge"}), line = el("p", {class: "line"});
  const tools = el("div", {class: "pattern-tools"}), foot = el("div", {class: "pattern-foot"});
  canvas = el("canvas", {class: "big", tabindex: "0", role: "img"});
  const hold = el("div", {class: "canvas-hold"}, canvas);
  const zoomBox = el("div", {class: "zoom"});
  const [input, found] = finder();
  box.append(el("div", {class: "panel-head"}, heading, badge, line), tools, hold, foot);
  attachPointer();

  const draw = () => {
    const width = hold.clientWidth, height = hold.clientHeight;
    if (width < 10 || height < 10) return;
    canvas.style.width = `${width}px`, canvas.style.height = `${height}px`;
    const painter = new CanvasPainter(canvas, width, height);
    const painted = paintOn(painter);
    plot = painted?.plot ?? null, geometryNow = painted?.geometry ?? null;
    if (!plot) return foot.replaceChildren(), void (line.textContent = "");
    const {refused} = viewNow(plot);
    line.textContent = sentence(plot, painted.view) +
      (refused ? ` (${t("view_refused", {view: t(`view_${refused}`), n: limits[refused], drawn: t(`view_${painted.view}`)})})` : "") +
      (state.sheared && !plot.exact ? ` ${t("sheared_refused", {n: count(data.about.limits.exact)})}` : "");
    canvas.setAttribute("aria-label", `${t("pattern_label")} ${title()}`);
    const mass = plot.diff ? null : sinkMass(), map = data.map;
    foot.replaceChildren(receipt(
      mass === null ? null : ["", t("sink_mass", {p: percent(mass)}), "sink"],
      [t(plot.exact ? "receipt_exact" : "receipt_pooled"), `${count(map.rows)} × ${count(map.columns)}`, "cells"],
      [t("receipt_kernel"), `${map.kernel ?? "–"}, ${data.about.dtype}`, "kernel"],
      map.ms === null || map.ms === undefined ? null : [t("receipt_time"), milliseconds(map.ms), "time"]));
  };
  const frame = () => {
    if (!data.run) return;
    heading.textContent = t("layer_head", {layer: state.layer ?? "–", head: state.head ?? "–"});
    const head = state.layer === null ? null : headOf(state.layer, state.head);
    badge.hidden = !head?.type;
    if (head?.type) badge.textContent = `${t(`type_${head.type}`)} ${number(head.score, 2)}`, badge.title = aboutHead(head), badge.dataset.type = head.type;
    const open = tools.querySelector("details")?.open;
    const {whole, all} = zoomed();
    zoomBox.replaceChildren(
      el("button", {class: "push", "aria-label": t("zoom_in"), title: `${t("zoom_in")} (+)`, onclick: () => zoom(0.5)}, "+"),
      el("button", {class: "push", "aria-label": t("zoom_out"), title: `${t("zoom_out")} (−)`, onclick: () => zoom(2)}, "−"),
      el("button", {class: "push", disabled: whole, onclick: () => set({window: null})}, t("zoom_all")));
    zoomBox.hidden = all <= 32;
    input.placeholder = t("find"), input.setAttribute("aria-label", t("find"));
    if (input.value !== state.find) input.value = state.find;
    const active = tools.contains(document.activeElement) && document.activeElement !== input ? [...tools.querySelectorAll("button,select,summary")].indexOf(document.activeElement) : -1;
    const keep = el("span", {class: "find-box"}, input, found);
    tools.replaceChildren(...controls(data.map?.exact), zoomBox, keep);
    if (open) tools.querySelector("details").open = true;
    if (active >= 0) tools.querySelectorAll("button,select,summary")[active]?.focus();
  };
  on("run layer head view sheared transpose colour range measure plane sink compare pin switches window words shown find", () => {
    const typing = document.activeElement === input, at = input.selectionStart;
    frame();
    if (typing) input.focus(), input.setSelectionRange(at, at);
  });
  on("run map other values hover query key view sheared transpose colour range measure plane sink compare pin words look tab shown", draw);
  new ResizeObserver(() => draw()).observe(hold);
  frame();
}
