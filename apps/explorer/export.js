// Files of what is on the page: PNG, SVG, JSON, and one HTML file that needs no server.
import {CanvasPainter, SvgPainter} from "./painter.js";
import {bytes, label} from "./format.js";
import {makeFrame, toBase64} from "./frames.js";
import {source_} from "./loader.js";
import {paintOn, title} from "./pattern.js";
import {sentence} from "./plot.js";
import {theme} from "./colours.js";
import {data, length, put, state} from "./store.js";
import {t} from "./texts.js";

const width = 900, height = 860, most = 24 << 20;

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `attend-${data.about.model.name.replace(/[^\w.-]/g, "_")}-${state.layer}.${state.head}.${name}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function caption() {
  const text = state.text.length > 90 ? `${state.text.slice(0, 90)}…` : state.text;
  return `${data.about.model.name}: “${text.replace(/\s+/g, " ")}”`;
}

// The plot below its title; gives what was painted.
function paintSheet(painter) {
  const plot = {width, height: height - 70};
  const shifted = new Proxy(painter, {
    get(target, name) {
      if (name === "width") return plot.width;
      if (name === "height") return plot.height;
      const method = target[name];
      if (typeof method !== "function") return method;
      const places = {rect: [1], frame: [1], hatch: [1], circle: [1], line: [1, 3], curve: [1, 3], text: [2], image: [2]}[name] ?? [];
      if (name === "path") return (points, ...rest) => target.path(points.map(([x, y]) => [x, y + 70]), ...rest);
      return (...given) => (places.forEach((at) => (given[at] += 70)), method.apply(target, given));
    },
  });
  const painted = paintOn(shifted);
  if (!painted) return null;
  painter.text(title(), 20, 22, {size: 17, weight: 600});
  painter.text(caption(), 20, 44, {size: 12, colour: theme("muted"), room: width - 40});
  painter.text(sentence(painted.plot, painted.view), 20, 62, {size: 11, colour: theme("muted"), room: width - 40});
  return painted;
}

export async function exportPng() {
  const canvas = document.createElement("canvas"), painter = new CanvasPainter(canvas, width, height, 2);
  painter.rect(0, 0, width, height, theme("panel"));
  if (paintSheet(painter)) canvas.toBlob((blob) => save("png", blob), "image/png");
}

export function exportSvg() {
  const painter = new SvgPainter(width, height);
  if (paintSheet(painter)) save("svg", new Blob([painter.toString(`${title()}. ${caption()}`)], {type: "image/svg+xml"}));
}

// NaN, which JSON has not, is null: masked.
export function numbers() {
  const map = data.map, planes = {};
  for (const [name, values] of Object.entries(map.planes)) {
    planes[name] = [];
    for (let r = 0; r < map.rows; ++r)
      planes[name].push(Array.from(values.subarray(r * map.columns, (r + 1) * map.columns), (x) => (Number.isNaN(x) ? null : x)));
  }
  const {hover, ...rest} = {hover: null, ...structuredClone(state)};
  return {format: 1, model: data.about.model, state: rest, tokens: data.run.tokens, head: data.run.heads[state.layer * data.about.model.heads + state.head],
          next: data.run.next, kl: data.run.kl, queries: map.queries, keys: map.keys, exact: map.exact, ...planes, cell: data.cell};
}

export function exportJson() {
  if (data.map) save("json", new Blob([JSON.stringify(numbers())], {type: "application/json"}));
}

async function collect() {
  const {layers, heads, kv_heads, head_dim} = data.about.model, run = data.run, N = run.tokens.length, source = source_();
  const layerBytes = heads * N * N * 4 + (heads + 2 * kv_heads) * N * head_dim * 4, whole = layerBytes * layers <= most;
  const chosen = whole ? [...Array(layers).keys()] : [state.layer], frames = {};
  const thumbs = data.thumbs;
  frames.thumbs = toBase64(makeFrame({kind: "thumbs", dtype: "u8", shape: [thumbs.layers, thumbs.heads, thumbs.cells, thumbs.cells]}, thumbs.values));
  for (const layer of chosen) {
    put({problem: {kind: "export_working", done: layer, all: chosen.length}});
    const tensors = await source.tensors(run, layer);
    for (const [name, {shape, values}] of Object.entries(tensors))
      frames[`${name}.${layer}`] = toBase64(makeFrame({name, dtype: "f32", shape}, values));
    for (let head = 0; head < heads; ++head) {
      const map = await source.map(run, {layer, head, queries: [0, N], keys: [0, N], cells: [N, N]});
      frames[`map.${layer}.${head}`] = toBase64(makeFrame({kind: "map", dtype: "f32", shape: [1, N, N], kernel: map.kernel}, map.planes.weight));
    }
  }
  const scale = data.cell?.scale, {...kept} = state;
  put({problem: whole ? null : {kind: "export_part", layer: state.layer, size: bytes(layerBytes * layers)}});
  return {format: 1, about: data.about, run, state: kept, frames, scores: scale ? Array(layers).fill({scale}) : null};
}

// The page with its modules as an import map of data: addresses. `files`: name to text of index.html, style.css and modules.
export function bundle(files, embedded) {
  const imports = {};
  for (const [name, text] of Object.entries(files))
    if (name.endsWith(".js"))
      imports[`attend/${name}`] = `data:text/javascript;base64,${toBase64(new TextEncoder().encode(text.replace(/(from\s+|import\()"\.\/([\w.]+)"/g, '$1"attend/$2"')))}`;
  const json = JSON.stringify(embedded).replace(/</g, "\\u003c");
  return files["index.html"]
    .replace(/<link rel="icon"[^>]*>/, "")
    .replace(/<link rel="stylesheet"[^>]*>/, () => `<style>${files["style.css"]}</style>`)
    .replace(/<script type="module"[^>]*><\/script>/, () => `<script type="application/json" id="attend-data">${json}</script>
<script type="importmap">${JSON.stringify({imports})}</script>
<script type="module">import "attend/main.js";</script>`);
}

// The page's own files: this module, and what it and the others import.
async function ownFiles() {
  const files = {}, wanted = ["index.html", "style.css", "main.js"];
  const kept = document.getElementById("attend-files");
  if (kept) return JSON.parse(kept.textContent);
  while (wanted.length) {
    const name = wanted.pop();
    if (files[name] !== undefined) continue;
    files[name] = await (await fetch(new URL(name, document.baseURI.split("#")[0]))).text();
    for (const [, found] of files[name].matchAll(/from\s+"\.\/([\w.]+)"/g)) wanted.push(found);
  }
  return files;
}

export async function exportHtml() {
  if (!data.run || !data.map) return;
  try {
    const embedded = await collect(), html = bundle(await ownFiles(), embedded);
    save("html", new Blob([html], {type: "text/html"}));
  } catch (error) {
    put({problem: {kind: "other", message: error.message}});
  }
}
