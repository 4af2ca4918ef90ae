// The numbers from the page itself: an exported file and a notebook have no server. What was not kept is said.
import {fromBase64, readFrame} from "./frames.js";

export class NotKept extends Error {}

function pooled(weights, all, queries, keys, cells) {
  const [a, b] = queries, [c, d] = keys, rows = Math.min(cells[0], b - a), columns = Math.min(cells[1], d - c);
  const exact = rows === b - a && columns === d - c;
  const mass = new Float32Array(rows * columns), peak = exact ? null : new Float32Array(rows * columns);
  const edge = (n, cells, size) => Math.floor(n * size / cells);
  for (let r = 0; r < rows; ++r)
    for (let k = 0; k < columns; ++k) {
      const i0 = a + edge(r, rows, b - a), i1 = a + edge(r + 1, rows, b - a);
      let sum = 0, most = NaN;
      for (let i = i0; i < i1; ++i)
        for (let j = c + edge(k, columns, d - c); j < c + edge(k + 1, columns, d - c); ++j) {
          const w = weights[i * all + j];
          if (Number.isNaN(w)) continue;
          sum += w;
          most = most >= w ? most : w;
        }
      mass[r * columns + k] = Number.isNaN(most) ? NaN : sum / (i1 - i0);
      if (peak) peak[r * columns + k] = most;
    }
  return {queries, keys, rows, columns, done: rows, ms: null, exact, rowStep: (b - a) / rows,
          planes: exact ? {weight: mass} : {mass, peak}};
}

export class EmbeddedSource {
  live = false;
  constructor(embedded) {
    if (embedded.format !== 1) throw new NotKept(`data of format ${embedded.format}, expected 1`);
    this.parts = embedded.parts ?? [embedded];
    this.choose(0);
  }
  // An encoder, a decoder and the attention between them are parts of one page; most have one.
  choose(part) {
    this.embedded = this.parts[part] ?? this.parts[0];
    this.read = new Map();
  }
  get state() {
    return this.embedded.state ?? {};
  }
  async about() {
    return {...this.embedded.about, parts: this.parts.map((part) => part.name)};
  }
  async run() {
    return this.embedded.run;
  }
  #frame(name) {
    if (!this.read.has(name)) {
      const text = this.embedded.frames[name];
      if (!text) throw new NotKept(name);
      this.read.set(name, readFrame(fromBase64(text)));
    }
    return this.read.get(name);
  }
  async thumbs() {
    const {head, values} = this.#frame("thumbs");
    return {first: 0, layers: head.shape[0], heads: head.shape[1], cells: head.shape[2], values};
  }
  async map(run, {layer, head, queries, keys, cells}) {
    const {head: about, values} = this.#frame(`map.${layer}.${head}`);
    return {...pooled(values, about.shape[2], queries, keys, cells), kernel: about.kernel};
  }
  async values(run, {layer, head}) {
    const {q, v} = this.#tensors(layer);
    const kvHead = Math.floor(head / (q.shape[0] / v.shape[0])), [, N, E] = v.shape;
    const lengths = new Float32Array(N);
    for (let j = 0; j < N; ++j) lengths[j] = Math.hypot(...v.values.subarray((kvHead * N + j) * E, (kvHead * N + j + 1) * E));
    return lengths;
  }
  #tensors(layer) {
    const one = (name) => {
      const {head, values} = this.#frame(`${name}.${layer}`);
      return {shape: head.shape, values};
    };
    return {q: one("q"), k: one("k"), v: one("v")};
  }
  async tensors(run, layer) {
    return this.#tensors(layer);
  }
  // The arithmetic again, in double, from the kept q, k and v.
  async cell(run, {layer, head, query, key}) {
    const {q, k, v} = this.#tensors(layer), rule = this.embedded.scores?.[layer] ?? {};
    const {head: about, values: weights} = this.#frame(`map.${layer}.${head}`);
    const [H, , D] = q.shape, [G, N] = k.shape, E = v.shape[2], kvHead = Math.floor(head / (H / G));
    const row = (t, h, n, size) => t.values.subarray((h * t.shape[1] + n) * size, (h * t.shape[1] + n + 1) * size);
    const at = (j) => weights[query * about.shape[2] + j];
    const qi = row(q, head, query, D), scale = rule.scale ?? 1 / Math.sqrt(D);
    const dot = (j) => row(k, kvHead, j, D).reduce((sum, x, n) => sum + x * qi[n], 0);
    // With a soft-cap, a bias or a learnt sink the scores are more than q·k: then the kernel's own sums are here, and each
    // score is what its weight says.
    const sums = rule.more ? this.#frame(`lse.${layer}`).values : null, own = sums?.[head * q.shape[1] + query];
    const score = (j) => (sums === null ? dot(j) * scale : own + Math.log(at(j)));
    let most = -Infinity, sum = 0, entropy = 0, visible = 0, error = sums === null ? 0 : null;
    const scores = [];
    for (let j = 0; j < N; ++j) {
      const masked = Number.isNaN(at(j));
      scores.push(masked ? -Infinity : score(j));
      most = Math.max(most, scores[j]);
      visible += masked ? 0 : 1;
    }
    for (const s of scores) sum += Math.exp(s - most);
    const lse = own ?? most + Math.log(sum), output = new Array(E).fill(0);
    let total = 0;
    for (let j = 0; j < N; ++j) {
      const exact = Math.exp(scores[j] - lse), w = Number.isNaN(at(j)) ? 0 : at(j);
      total += w;
      if (exact > 0) entropy -= exact * Math.log(exact);
      if (error !== null) error = Math.max(error, Math.abs(exact - w));
      if (w > 0) row(v, kvHead, j, E).forEach((x, n) => (output[n] += w * x));
    }
    const vj = row(v, kvHead, key, E), masked = Number.isNaN(at(key));
    return {query, key, layer, head, kv_head: kvHead, q: [...qi], k: [...row(k, kvHead, key, D)], v: [...vj],
            dot: dot(key), scale, score: scores[key], masked, lse, row_max: most, weight: masked ? 0 : at(key),
            output, value_norm: Math.hypot(...vj), row: {sum: total, entropy, visible, max_error: error},
            kernel: this.embedded.about.kernel, dtype: this.embedded.about.dtype, ms: null};
  }
}
