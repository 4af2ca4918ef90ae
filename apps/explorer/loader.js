// Loads what the state asks for: a run, small pictures of all heads, the chosen head's map, one cell. A newer wish ends an
// older one; a server that went away is asked again until it answers.
import {joinCharacters} from "./characters.js";
import {clamp} from "./format.js";
import {NotKept} from "./source_embedded.js";
import {Lost, ServerError} from "./source_server.js";
import {followTraining} from "./training_data.js";
import {crosses, data, keyLength, length, on, put, set, state, switched, writes} from "./store.js";

const thumbCells = 24, mapCells = 512, manyTokens = 1024;
let source = null;
const wishes = new Map();

// Runs work(signal) and ends the one of the same name that is under way. Gives what it gives, or null when it was ended.
async function latest(name, work) {
  wishes.get(name)?.abort();
  const wish = new AbortController();
  wishes.set(name, wish);
  put({busy: data.busy + 1});
  try {
    const result = await work(wish.signal);
    return wish.signal.aborted ? null : result;
  } catch (error) {
    if (error.name !== "AbortError" && !wish.signal.aborted) failed(error);
    return null;
  } finally {
    put({busy: data.busy - 1});
  }
}

function failed(error) {
  if (error instanceof Lost) {
    wait();
  } else if (error instanceof ServerError && error.error.code === "gone") {
    return;
  } else if (error instanceof ServerError && ["no_run", "layer_not_kept"].includes(error.error.code)) {
    loadRun();  // it was forgotten, or this layer of it: the server holds only so many
  } else if (error instanceof ServerError) {
    put({problem: {kind: error.error.code ?? "other", ...error.error}});
  } else if (error instanceof NotKept) {
    put({problem: {kind: "not_kept", layer: state.layer, head: state.head}, map: null, cell: null});
  } else {
    put({problem: {kind: "other", message: error.message}});
    console.error(error);
  }
}

// Asks until the server answers, then loads everything again.
async function wait() {
  if (data.lost) return;
  put({lost: true, playing: false});
  for (let pause = 500; ; pause = Math.min(pause * 1.5, 4000)) {
    await new Promise((done) => setTimeout(done, pause));
    try {
      put({about: await source.about(), lost: false, problem: {kind: "back"}});
      loadRun();
      return;
    } catch (error) {
      if (!(error instanceof Lost)) console.error(error);
    }
  }
}

export async function start(opened, hasText) {
  source = opened;
  put({live: source.live});
  if (!source.live) source.choose(state.part);
  try {
    put({about: await source.about()});
  } catch (error) {
    failed(error);
    if (error instanceof Lost) return;
    throw error;
  }
  if (!hasText && state.text === "") set({text: source.live ? data.about.example : source.state.text ?? ""});
  on("text generated switches step", (changed) => loadRun(changed));
  on("run layer head window shown compare pin base", loadMap);
  on("query key", chooseKey);
  on("run layer head query key hover shown", loadCell);
  on("run layer head measure", loadValues);
  on("layer", () => data.run && data.run.tokens.length > manyTokens && loadThumbs());
  if (source.live && data.about.training) await followTraining(source, failed);
  checkStep();
  on("step", checkStep);
  on("part", choosePart);
  on("training", (changed) => stepNow() !== data.run?.trained && loadRun(changed));
  await loadRun();
}

// The step whose model is looked at: the chosen one, where it was kept, else the newest. Null: there is but one model.
export function stepNow() {
  const kept = data.training?.kept ?? [];
  return kept.includes(state.step) ? state.step : kept.at(-1) ?? null;
}

function checkStep() {
  if (state.step === null || stepNow() === state.step) return;
  put({problem: {kind: "no_step", step: state.step}});
  set({step: null});
}

// Another part of the page has other layers, heads and tokens.
async function choosePart() {
  if (source.live) return;
  source.choose(state.part);
  put({about: await source.about(), run: null, map: null, cell: null, thumbs: null, values: null});
  set({text: source.state.text ?? "", layer: null, head: null, query: null, key: null, shown: null, window: null, pin: null, compare: ""});
  loadRun();
}

function tooLarge(text) {
  const limit = data.about.limits.text_bytes;
  if (text.length * 3 <= limit) return false;
  const size = new TextEncoder().encode(text).length;
  if (size <= limit) return false;
  const kept = text.slice(0, new TextEncoder().encodeInto(text, new Uint8Array(limit)).read);
  put({problem: {kind: "too_large", size, limit}});
  set({text: kept, generated: [], shown: null});
  return true;
}

async function loadRun(changed = null) {
  if (!data.about) return;
  if (source.live && tooLarge(state.text)) return;
  if (source.live && state.text.trim() === "") {
    wishes.get("run")?.abort();
    put({problem: {kind: "empty"}, run: null, map: null, cell: null, thumbs: null, base: null});
    return;
  }
  const key = runKey();
  if (key === coming || (data.run && data.run.of === key && changed)) return;  // it is under way, or a step has brought it
  coming = key;
  const {text, generated, switches} = state, step = stepNow();
  const run = await latest("run", (signal) => source.run({text, generated, switches, layer: layerNow(), step}, signal));
  if (coming === key) coming = null;
  if (!run) return;
  run.trained = step;
  arrived(run, key, changed?.has("text"));
  if (switched() && state.compare === "before") loadBase();
}

let coming = null;  // the run that was asked for

// The chosen layer, where the model has it: a link may come from a larger one.
function layerNow() {
  return state.layer !== null && state.layer < data.about.model.layers ? state.layer : null;
}

function runKey() {
  return JSON.stringify([state.part, state.text, state.generated, state.switches, stepNow()]);
}

function arrived(run, key, newText) {
  run.of = key;
  joinCharacters(run.tokens);
  if (run.keys) joinCharacters(run.keys);
  if (["empty", "too_long", "too_large", "other", "back"].includes(data.problem?.kind) && data.problem.kind !== "too_large")
    put({problem: null});
  const cut = run.cut ? {kind: "too_long", tokens: run.cut.tokens, context: run.cut.context} : null;
  put({run, base: null, ...(cut ? {problem: cut} : {})});
  choose(run, newText);
  loadThumbs();
}

// Keeps the choice where it still exists; else the head with the most to see, and the last token's strongest cell.
function choose(run, newText) {
  const {layers, heads} = data.about.model, all = run.tokens.length, keys = keyLength(), changes = {};
  if (state.layer === null || state.layer >= layers || state.head === null || state.head >= heads) {
    const best = mostToSee(run);
    changes.layer = best.layer, changes.head = best.head;
  }
  if (state.query === null || state.query >= all) changes.query = all - 1, changes.key = null;
  if (newText && state.generated.length === 0) changes.query = all - 1, changes.key = null, changes.window = null;
  if (state.key !== null && state.key >= keys) changes.key = null;
  if (state.shown !== null && state.shown > all) changes.shown = null;
  if (state.window && (state.window[1] > all || state.window[3] > keys)) changes.window = null;
  set(changes);
}

function mostToSee(run) {
  // A look back at the same words, or at what followed them, is the easiest to understand.
  // Where heads have no kind, the one that chooses most.
  const score = (h) => !h.type ? 1 - h.entropy : (1 - h.sink) * ((h.induction ?? 0) + (h.duplicate ?? 0) + 0.1 * (1 - (h.local ?? 0)));
  return run.heads.reduce((a, b) => (score(b) > score(a) ? b : a));
}

async function loadBase() {
  const {text, generated} = state;
  const wish = {text, generated, switches: [], layer: layerNow(), step: stepNow()};
  const base = await latest("base", (signal) => source.run(wish, signal));
  if (base) put({base});
}

// Small pictures of all layers; of a long text those of the chosen layer alone: each is a sweep over all its weights.
async function loadThumbs() {
  const run = data.run, {layers, heads} = data.about.model, all = run.tokens.length <= manyTokens;
  const wanted = all ? [0, layers] : [state.layer ?? 0, (state.layer ?? 0) + 1];
  const thumbs = await latest("thumbs", (signal) => source.thumbs(run, thumbCells, wanted, signal));
  if (!thumbs || data.run !== run) return;
  if (all) return put({thumbs});
  const {cells} = thumbs, size = heads * cells * cells;
  const kept = data.thumbs?.of === run ? data.thumbs : {of: run, first: 0, layers, heads, cells, values: new Uint8Array(layers * size).fill(255)};
  kept.values.set(thumbs.values, wanted[0] * size);
  put({thumbs: kept});
}

// The window that is drawn, inside what is shown.
export function windowNow() {
  const all = length(), keys = keyLength();
  if (!state.window) return [0, all, 0, keys];
  const [a, b, c, d] = state.window;
  return [clamp(a, 0, all - 1), clamp(b, 1, all), clamp(c, 0, keys - 1), clamp(d, 1, keys)];
}

async function loadMap() {
  const run = data.run;
  if (!run || state.layer === null || length() === 0) return;
  const [a, b, c, d] = windowNow();
  const wish = {layer: state.layer, head: state.head, queries: [a, b], keys: [c, d]};
  wish.cells = [Math.min(b - a, mapCells), Math.min(d - c, mapCells)];
  // Up to the limit single weights are sent: a click is then answered from what is here.
  if (Math.max(b - a, d - c) <= data.about.limits.exact) wish.cells = [b - a, d - c];
  const tagged = (map) => ({...map, layer: wish.layer, head: wish.head, run: run.run});
  const map = await latest("map", (signal) => source.map(run, wish, signal, (part) => {
    if (!signal.aborted) put({map: tagged(part)});
  }));
  if (!map) return;
  put({map: tagged(map)});
  chooseKey();
  if (!state.compare) return;
  let against = run, place = wish;
  if (state.compare === "before") {
    if (!data.base && switched()) return void loadBase();
    against = data.base ?? run;
  } else if (state.pin) place = {...wish, layer: state.pin[0], head: state.pin[1]};
  if (against.tokens.length !== run.tokens.length) return put({problem: {kind: "diff_lengths"}});
  const other = await latest("other", (signal) => source.map(against, place, signal));
  if (other) put({other});
}

// A chosen query without a key gets the one that it looks at most.
function chooseKey() {
  const {map, run} = data;
  if (state.key !== null || state.query === null || map?.run !== run?.run || map?.layer !== state.layer || map.head !== state.head) return;
  set({key: strongest(map, state.query)});
}

// The key with the largest weight besides the first token of the same text, of a row that the map holds.
export function strongest(map, query) {
  const plane = map.planes.weight ?? map.planes.peak;
  const row = Math.floor((query - map.queries[0]) / map.rowStep);
  if (row < 0 || row >= map.rows) return null;
  let best = null, most = -1;
  for (let n = map.keys[0] === 0 && !crosses() ? 1 : 0; n < map.columns; ++n) {
    const w = plane[row * map.columns + n];
    if (w > most) most = w, best = n;
  }
  if (best === null) best = 0;
  return map.keys[0] + Math.floor(best * (map.keys[1] - map.keys[0]) / map.columns);
}

// What is previewed, or else what is chosen.
export function place() {
  return {query: data.hover?.query ?? state.query, key: data.hover?.key ?? state.key};
}

async function loadCell() {
  const run = data.run, {query, key} = place();
  if (!run || state.layer === null || query === null || key === null) return;
  if (query >= run.tokens.length || key >= (run.keys ?? run.tokens).length) return;
  const wish = {layer: state.layer, head: state.head, query, key};
  const cell = await latest("cell", (signal) => source.cell(run, wish, signal));
  if (cell) put({cell});
}

async function loadValues() {
  if (!data.run || state.layer === null || state.measure !== "value") return;
  const run = data.run, wish = {layer: state.layer, head: state.head};
  const values = await latest("values", (signal) => source.values(run, wish, signal));
  if (values) put({values});
}

// One token more: the likeliest, a drawn one, or the given one. Null when the server could not.
export async function step(token = null) {
  const run = data.run;
  if (!run || !source.live || !writes()) return null;
  const all = run.tokens.length, shown = length();
  if (token === null && shown < all) {  // forward again through what was generated
    set({shown: shown + 1 >= all ? null : shown + 1, query: shown, key: null});
    return run.tokens[shown];
  }
  const generated = state.generated.slice(0, shown - run.prompt_tokens);
  const request = {generated, token, temperature: state.heat, seed: state.seed};
  const grown = await latest("step", (signal) => source.step(run, request, signal));
  if (!grown) return null;
  const chosen = [...generated, grown.step.token], steps = data.steps.slice(0, generated.length);
  steps[generated.length] = {...grown.step, next: grown.next};
  put({steps});
  set({generated: chosen, shown: null, query: grown.tokens.length - 1, key: null, window: null});
  arrived({...grown, trained: run.trained}, runKey(), false);
  return grown.step;
}

export function source_() {
  return source;
}
