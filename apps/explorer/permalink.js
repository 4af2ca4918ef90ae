// The whole state in the fragment of the address: readable fields, and a long text packed.
import {defaults} from "./store.js";
import {fromBase64, toBase64} from "./frames.js";

export const version = "1";
const longText = 1500;

const isText = (x) => typeof x === "string";
const whole = (x) => Number.isSafeInteger(x) && x >= 0;
const wholes = (x) => Array.isArray(x) && x.length <= 4096 && x.every(whole);
const oneOf = (...names) => (x) => names.includes(x);
const pair = (x) => wholes(x) && x.length === 2;

// How each field is written, and what it has to be when it is read.
const fields = {
  part: whole, text: isText, step: whole, generated: wholes, shown: whole, layer: whole, head: whole, query: whole, key: whole,
  view: oneOf("auto", "heat", "dots", "lines", "tiles"), sheared: (x) => typeof x === "boolean",
  transpose: (x) => typeof x === "boolean", colour: oneOf("linear", "sqrt", "log"), range: oneOf("row", "head", "global"),
  measure: oneOf("weight", "value"), plane: oneOf("mass", "peak"), sink: oneOf("show", "split", "hide", "renorm"),
  unrotated: (x) => typeof x === "boolean", sort: oneOf("layer", "type", "score", "entropy", "sink", "distance"), filter: isText,
  switches: (x) => Array.isArray(x) && x.length <= 512 && x.every((s) => isText(s) && s.length < 100),
  compare: oneOf("", "before", "pin"), pin: pair, window: (x) => wholes(x) && x.length === 4 && x[0] < x[1] && x[2] < x[3],
  find: isText, heat: (x) => typeof x === "number" && x >= 0 && x <= 10, seed: whole,
  lang: oneOf("", "en", "zh"), theme: oneOf("", "light", "dark"), tab: oneOf("grid", "pattern", "cell", "next"),
};

async function through(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}

const webSafe = (text) => text.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

export async function encode(state, model) {
  const parts = [["v", version]];
  if (model) parts.push(["model", model]);
  for (const name of Object.keys(fields)) {
    const value = state[name];
    if (value === null || JSON.stringify(value) === JSON.stringify(defaults[name])) continue;
    if (name === "text" && value.length > longText) {
      const packed = await through(new CompressionStream("deflate-raw"), new TextEncoder().encode(value));
      parts.push(["packed", webSafe(toBase64(packed))]);
    } else if (isText(value)) parts.push([name, value]);
    else parts.push([name, Array.isArray(value) ? value.join(",") : String(value)]);
  }
  return parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

function parse(name, text) {
  const initial = defaults[name];
  if (name === "switches") return text.split(",").map((s) => s.trim()).filter(Boolean);
  if (name === "generated" || name === "pin" || name === "window") return text === "" ? [] : text.split(",").map(Number);
  if (typeof initial === "boolean") return text === "true" ? true : text === "false" ? false : null;
  if (initial === null || typeof initial === "number") return text.trim() === "" ? NaN : Number(text);
  return text;
}

// {state, model, version, broken: [names]}: what could be read; the rest is left as it is.
export async function decode(fragment) {
  const out = {state: {}, model: null, version: null, broken: []};
  for (const part of fragment.replace(/^#/, "").split("&")) {
    if (part === "") continue;
    const cut = part.indexOf("="), name = cut < 0 ? part : part.slice(0, cut);
    try {
      const value = cut < 0 ? "" : decodeURIComponent(part.slice(cut + 1));
      if (name === "v") out.version = value;
      else if (name === "model") out.model = value;
      else if (name === "packed") {
        const packed = fromBase64(value.replace(/-/g, "+").replace(/_/g, "/"));
        out.state.text = new TextDecoder("utf-8", {fatal: true}).decode(await through(new DecompressionStream("deflate-raw"), packed));
      } else if (fields[name]) {
        const read = parse(name, value);
        if (fields[name](read)) out.state[name] = read;
        else out.broken.push(name);
      } else out.broken.push(name.slice(0, 20));
    } catch {
      out.broken.push(name.slice(0, 20));
    }
  }
  return out;
}
