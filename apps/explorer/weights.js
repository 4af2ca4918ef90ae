// The chosen head's map as it is drawn: measure, sinks, difference, and the largest value that colours are scaled by.
import {curve} from "./colours.js";
import {crosses, data, state} from "./store.js";

// The rows and columns a map covers, one weight each; null where it is pooled or not there.
function exactMap() {
  const map = data.map;
  return map && map.exact && map.layer === state.layer && map.head === state.head ? map : null;
}

export function rowOf(query) {
  const map = exactMap();
  if (!map || query < map.queries[0] || query >= map.queries[1]) return null;
  const at = (query - map.queries[0]) * map.columns;
  return {first: map.keys[0], values: map.planes.weight.subarray(at, at + map.columns)};
}

export function columnOf(key) {
  const map = exactMap();
  if (!map || key < map.keys[0] || key >= map.keys[1]) return null;
  const values = new Float32Array(map.rows), at = key - map.keys[0];
  for (let n = 0; n < map.rows; ++n) values[n] = map.planes.weight[n * map.columns + at];
  return {first: map.queries[0], values};
}

function values(map) {
  const plane = map.planes.weight ?? map.planes[state.plane] ?? map.planes.peak;
  if (state.measure !== "value" || !map.exact || !data.values) return plane;
  const out = new Float32Array(plane.length);
  for (let r = 0; r < map.rows; ++r)
    for (let c = 0; c < map.columns; ++c) out[r * map.columns + c] = plane[r * map.columns + c] * data.values[map.keys[0] + c];
  return out;
}

// {map, cells, rows, columns, diff, without, gutter, most, rowMost}: what is drawn. without: the first token's column is not
// among the cells but in gutter, which is drawn apart or left out.
export function drawn() {
  const map = data.map;
  if (!map) return null;
  // Hovering draws often and changes none of this.
  const of = [map, map.done, data.other, data.values, state.measure, state.plane, state.compare, state.sink, state.range];
  if (!last || last.of.some((part, n) => part !== of[n])) last = {of, what: compute(map)};
  return last.what;
}

let last = null;

function compute(map) {
  let cells = values(map), diff = false;
  const other = data.other;
  if (state.compare && other && other.rows === map.rows && other.columns === map.columns &&
      other.queries[0] === map.queries[0] && other.keys[0] === map.keys[0]) {
    const theirs = values(other), out = new Float32Array(cells.length);
    for (let n = 0; n < out.length; ++n)
      out[n] = Number.isNaN(cells[n]) && Number.isNaN(theirs[n]) ? NaN : (cells[n] || 0) - (theirs[n] || 0);
    cells = out, diff = true;
  }
  const first = map.exact && map.keys[0] === 0 && map.columns > 2 && !diff && !crosses();
  const without = first && state.sink !== "show", gutter = without ? new Float32Array(map.rows) : null;
  if (without) {
    const rest = cells === map.planes.weight ? cells.slice() : cells;
    for (let r = 0; r < map.rows; ++r) {
      gutter[r] = cells[r * map.columns];
      const left = 1 - map.planes.weight[r * map.columns];
      if (state.sink === "renorm")
        for (let c = 1; c < map.columns; ++c) rest[r * map.columns + c] = left > 1e-9 ? rest[r * map.columns + c] / left : 0;
    }
    cells = rest;
  }
  return {map, cells, rows: map.rows, columns: map.columns, diff, without, gutter, ...largest(map, cells, without, gutter)};
}

// Of all that is drawn: one scale, for the first token's column too where it is drawn apart.
function largest(map, cells, without, gutter) {
  const rowMost = new Float32Array(map.rows);
  let most = 0;
  for (let r = 0; r < map.rows; ++r) {
    if (state.sink === "split" && gutter && gutter[r] > 0) rowMost[r] = gutter[r];
    for (let c = without ? 1 : 0; c < map.columns; ++c) {
      const size = Math.abs(cells[r * map.columns + c]);
      if (size > rowMost[r]) rowMost[r] = size;
    }
    if (rowMost[r] > most) most = rowMost[r];
  }
  const all = state.measure === "value" ? most : 1;
  return {most: state.range === "global" ? all : most, rowMost};
}

// A value's place on the colour scale, 0..1; differences have zero in the middle.
export function tone(what, row, value) {
  const most = state.range === "row" ? what.rowMost[row] : what.most;
  if (!(most > 0)) return what.diff ? 0.5 : 0;
  const t = curve(state.colour, Math.abs(value) / most);
  return what.diff ? 0.5 + Math.sign(value) * t / 2 : t;
}

// The first token's share of all attention in what is drawn.
export function sinkMass() {
  const map = exactMap();
  if (!map || map.keys[0] !== 0 || crosses()) return null;
  let sum = 0, rows = 0;
  for (let r = 0; r < map.rows; ++r) {
    if (map.queries[0] + r === 0) continue;
    sum += map.planes.weight[r * map.columns] || 0;
    rows += 1;
  }
  return rows ? sum / rows : null;
}

// The k largest of a row or a column, falling; ties by place.
export function topOf(line, k) {
  if (!line) return [];
  return [...line.values].map((w, n) => [w, line.first + n]).filter(([w]) => w > 0)
    .sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, k);
}
