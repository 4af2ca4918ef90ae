// The page's one store: what a person has chosen (state, the whole of a permalink) and what was loaded for it (data).

export const defaults = Object.freeze({
  part: 0,                // of a page with several: an encoder, a decoder, what goes between them
  text: "",
  step: null,             // of a training run, whose model is looked at; null: the newest
  generated: [],          // ids of tokens appended to the text
  shown: null,            // so many tokens are shown; null: all
  layer: null,
  head: null,
  query: null,
  key: null,
  view: "auto",           // auto, heat, dots, lines, tiles
  sheared: false,
  transpose: false,
  colour: "sqrt",         // linear, sqrt, log
  range: "head",          // row, head, global
  measure: "weight",      // weight, value: weight x norm of the value
  plane: "peak",          // of pooled cells: mass, peak
  sink: "split",          // show, split, hide, renorm
  sort: "layer",
  filter: "",
  switches: [],           // edits of the forward pass: "scale=off", "knock=zero@3.5", ...
  compare: "",            // "", before, pin
  unrotated: false,       // q and k of the cell before RoPE turned them
  pin: null,              // [layer, head] that the chosen head is compared with
  window: null,           // [first query, end, first key, end]; null: all
  find: "",
  heat: 0,                // temperature of sampling; 0: the likeliest
  seed: 1,
  lang: "",
  theme: "",              // "", light, dark
  tab: "pattern",         // on a phone
});

export const state = structuredClone(defaults);
export const data = {
  about: null,            // the model and the server's limits
  run: null,              // tokens, heads, next tokens
  base: null,             // the same run without switches, when there are any
  thumbs: null,
  map: null,              // of the chosen head, in the window
  other: null,            // the map that is compared with
  values: null,           // norms of the value vectors of the chosen head
  cell: null,             // the arithmetic of one cell
  hover: null,            // {query, key}: previewed, not chosen
  busy: 0,
  problem: null,          // {kind, ...}: what a banner says
  lost: false,            // the server does not answer
  steps: [],              // of generation: {token, ms, next}
  playing: false,
  training: null,         // of a training run: what it is, its curves, its samples, the steps whose models were kept
};

const listeners = [];
let changed = new Set();
let scheduled = false;

// Calls fn once per frame when one of the keys has changed.
export function on(keys, fn) {
  listeners.push({keys: keys.split(" "), fn});
}

function notify() {
  scheduled = false;
  const now = changed;
  changed = new Set();
  for (const {keys, fn} of listeners)
    if (keys.some((key) => now.has(key))) fn(now);
}

function same(a, b) {
  return a === b || (a && b && typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));
}

function merge(target, changes, compare) {
  for (const [key, value] of Object.entries(changes)) {
    if (compare && same(target[key], value)) continue;
    target[key] = value;
    changed.add(key);
  }
  if (changed.size && !scheduled) {
    scheduled = true;
    // A hidden tab draws no frames; what was loaded must still arrive.
    if (document.hidden) setTimeout(notify, 16);
    else requestAnimationFrame(notify);
  }
}

export function set(changes) {
  merge(state, changes, true);
}

export function put(changes) {
  merge(data, changes, false);
}

// How many tokens are shown.
export function length() {
  if (!data.run) return 0;
  const all = data.run.tokens.length;
  return state.shown === null ? all : Math.min(state.shown, all);
}

// In cross-attention the queries' text looks at another one.
export function crosses() {
  return Boolean(data.run?.keys);
}

// The tokens that are looked at, and how many of them are shown.
export function keyTokens() {
  return data.run?.keys ?? data.run?.tokens ?? [];
}

export function keyLength() {
  return crosses() ? data.run.keys.length : length();
}

export function headOf(layer, head) {
  const about = data.about;
  return data.run && about ? data.run.heads[layer * about.model.heads + head] : null;
}

// Whether the model writes on; one that embeds sees both ways and expects nothing.
export function writes() {
  return data.about?.model.causal !== false;
}

// Whether anything differs from the model as it is.
export function switched(switches = state.switches) {
  return switches.length > 0;
}
