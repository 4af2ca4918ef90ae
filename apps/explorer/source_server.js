// The numbers by fetch: small things as JSON, maps as frames that are drawn as they come.
import {FrameError, MapBuilder, readFrame} from "./frames.js";
import {t} from "./texts.js";

export class ServerError extends Error {
  constructor(status, error) {
    super(error.message ?? `status ${status}`);
    this.status = status;
    this.error = error;
  }
}
export class Lost extends Error {}

let token = "";  // of a server that asks for one

async function reach(url, options = {}) {
  let response;
  const headers = {...options.headers, ...(token ? {Authorization: `Bearer ${token}`} : {})};
  try {
    response = await fetch(url, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Lost(String(error));
  }
  if (response.ok) return response;
  if (response.status === 401) {
    const given = prompt(t("ask_token"));
    if (given) return token = given.trim(), reach(url, options);
  }
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    error = {message: `status ${response.status}`};
  }
  throw new ServerError(response.status, error);
}

export class ServerSource {
  live = true;  // switches and generation work
  constructor(base) {
    this.base = base;
  }
  async about() {
    return (await reach(`${this.base}/about`)).json();
  }
  async #post(path, body, signal) {
    const response = await reach(`${this.base}/${path}`, {
      method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});
    return response.json();
  }
  run({text, generated, switches, layer, step}, signal) {
    return this.#post("runs", {text, generated, switches, layer, step}, signal);
  }
  // What a training run is, and its lines from these bytes on.
  async training(metrics, samples) {
    return (await reach(`${this.base}/training?${new URLSearchParams({metrics, samples})}`)).json();
  }
  step(run, request, signal) {
    return this.#post(`runs/${run.run}/step`, request, signal);
  }
  #url(run, what, values) {
    return `${this.base}/runs/${run.run}/${what}?${new URLSearchParams(values)}`;
  }
  async #frame(url, signal) {
    const bytes = new Uint8Array(await (await reach(url, {signal})).arrayBuffer());
    const frame = readFrame(bytes);
    if (!frame) throw new FrameError("the answer ended early");
    return frame;
  }
  async thumbs(run, cells, layers, signal) {
    const {head, values} = await this.#frame(this.#url(run, "thumbs", {cells, layers: layers.join(":")}), signal);
    return {first: layers[0], layers: head.shape[0], heads: head.shape[1], cells: head.shape[2], values};
  }
  // onRows is shown the map while it grows.
  async map(run, {layer, head, queries, keys, cells}, signal, onRows = null) {
    const url = this.#url(run, "map", {layer, head, queries: queries.join(":"), keys: keys.join(":"), cells: cells.join("x")});
    const reader = (await reach(url, {signal})).body.getReader();
    const builder = new MapBuilder();
    let held = new Uint8Array(0);
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const joined = new Uint8Array(held.length + value.length);
      joined.set(held), joined.set(value, held.length);
      let at = 0;
      for (let frame = readFrame(joined, at); frame; frame = readFrame(joined, at)) {
        at = frame.end;
        const map = builder.add(frame);
        if (onRows && map.done < map.rows) onRows(map);
      }
      held = joined.slice(at);
    }
    if (!builder.map || builder.map.done < builder.map.rows) throw new Lost("the map ended early");
    return builder.map;
  }
  async cell(run, {layer, head, query, key}, signal) {
    return (await reach(this.#url(run, "cell", {layer, head, query, key}), {signal})).json();
  }
  async values(run, {layer, head}, signal) {
    return (await this.#frame(this.#url(run, "values", {layer, head}), signal)).values;
  }
  // q, k and v of a layer, for a file that is to work without a server.
  async tensors(run, layer, signal) {
    const bytes = new Uint8Array(await (await reach(this.#url(run, "tensors", {layer}), {signal})).arrayBuffer());
    const out = {};
    for (let frame = readFrame(bytes); frame; frame = frame.end < bytes.length ? readFrame(bytes, frame.end) : null)
      out[frame.head.name] = {shape: frame.head.shape, values: frame.values};
    return out;
  }
}
