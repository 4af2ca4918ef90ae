// What the large pattern shows, as rows and columns: which token each stands for, what each cell holds.
import {count, label} from "./format.js";
import {windowNow} from "./loader.js";
import {drawn, tone} from "./weights.js";
import {crosses, data, keyLength, keyTokens, length, state} from "./store.js";
import {t} from "./texts.js";

export const limits = {lines: 64, dots: 64, heat: 2048};

// The view that is drawn, and why it is not the wished one.
export function viewNow({rows, columns, exact}) {
  const wished = state.view === "auto" ? (exact ? "heat" : "tiles") : state.view;
  if ((wished === "lines" || wished === "dots") && (!exact || Math.max(rows, columns) > limits[wished]))
    return {view: exact ? "heat" : "tiles", refused: wished};
  if (wished === "heat" && !exact) return {view: "tiles", refused: state.view === "auto" ? null : "heat"};
  return {view: wished, refused: null};
}

function nameAt(tokens, n, single) {
  return single && tokens[n] ? label(tokens[n]) : count(n);
}

// Rows of queries; columns of keys, or of distances when sheared. Null while nothing is there.
export function plotNow() {
  const what = drawn();
  if (!what || !data.run) return null;
  const {map} = what, [q0, q1] = map.queries, [k0, k1] = map.keys;
  const stepQ = map.rowStep, stepK = (k1 - k0) / map.columns;
  const plot = {
    what, rows: map.rows, columns: map.columns, cells: what.cells, diff: what.diff, exact: map.exact,
    // The first token's column: not among the cells, drawn apart, or neither where it is left out.
    without: what.without, gutter: what.without && state.sink === "split" ? what.gutter : null,
    window: [q0, q1, k0, k1], stepQ, stepK,
    rowName: (r) => nameAt(data.run.tokens, Math.floor(q0 + r * stepQ), map.exact),
    columnName: (c) => nameAt(keyTokens(), Math.floor(k0 + c * stepK), map.exact),
    query: (r) => Math.floor(q0 + r * stepQ), key: (r, c) => Math.floor(k0 + c * stepK),
    columnOf: (query, key) => (key - k0) / stepK, rowOf: (query) => (query - q0) / stepQ,
    rowTitle: t("queries"), columnTitle: t("keys"), sheared: false,
    tone: (r, value) => tone(what, r, value),
  };
  plot.weight = (r, c) => (plot.without && c === 0 ? plot.gutter?.[r] ?? NaN : plot.cells[r * plot.columns + c]);
  return state.sheared && map.exact && !crosses() ? shear(plot) : plot;
}

const sheared = new WeakMap();

// x = i - j: a head that looks a fixed distance back is one upright line. first(r): the column of the first token.
function shear(plot) {
  const [q0, q1, k0] = plot.window, columns = Math.max(1, q1 - k0);
  const kept = sheared.get(plot.cells), cells = kept ?? new Float32Array(plot.rows * columns).fill(NaN);
  sheared.set(plot.cells, cells);
  const low = plot.without ? 1 : 0, first = (r) => q0 + r;
  for (let r = 0; r < plot.rows && !kept; ++r)
    for (let c = low; c < plot.columns; ++c) {
      const back = q0 + r - (k0 + c);
      if (back >= 0 && back < columns) cells[r * columns + back] = plot.cells[r * plot.columns + c];
    }
  return {...plot, cells, columns, sheared: true, columnTitle: t("distance"), first,
          weight: (r, c) => (plot.without && c === first(r) ? plot.gutter?.[r] ?? NaN : cells[r * columns + c]),
          columnName: (c) => String(c), key: (r, c) => q0 + r - c, columnOf: (query, key) => query - key};
}

// The line that says what is drawn.
export function sentence(plot, view) {
  if (plot.diff) {
    const what = state.compare === "pin" && state.pin ? t("diff_pin", {layer: state.pin[0], head: state.pin[1]}) : t("diff_before");
    return t("pattern_line_diff", {what});
  }
  if (view === "lines") return t("pattern_line_lines");
  if (view === "dots") return t("pattern_line_dots");
  if (plot.sheared) return t("pattern_line_sheared");
  if (!plot.exact)
    return t("pattern_line_pooled", {n: count(length()), cell: Number(plot.stepQ.toFixed(1)), plane: t(`plane_${state.plane}`)});
  return t("pattern_line");
}

// The part of all tokens that the page looks at, and whether that is all of them.
export function zoomed() {
  const [a, b, c, d] = windowNow(), all = length(), keys = keyLength();
  return {a, b, c, d, all, keys, whole: a === 0 && c === 0 && b === all && d === keys};
}
