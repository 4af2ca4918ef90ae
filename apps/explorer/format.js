// Numbers and tokens as text.
import {textInLine, textOf} from "./characters.js";

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "style") node.style.cssText = value;  // the server's policy allows no style attributes
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A token as it stands on an axis: spaces and line ends are seen.
export function shown(text) {
  if (text === "") return "∅";
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ +/, (s) => "·".repeat(Math.min(s.length, 3)))
    .replace(/[\u0000-\u001f\u007f]/g, "␣");
}

// A token's words in a line of tokens, with the space before them set apart; what is nothing but space is marked.
export function words(token) {
  const text = textInLine(token), bare = text.replace(/^ +/, "");
  return bare === "" || /^\s+$/.test(bare) ? {space: false, text: shown(text)} : {space: bare !== text, text: shown(bare)};
}

// A token as it is named elsewhere, without the mark of the space before a word.
export function label(token) {
  const text = textOf(token), bare = text.trim();
  return bare === "" ? shown(text) : bare.replace(/\n/g, "↵");
}

export function percent(p) {
  if (!Number.isFinite(p)) return "–";
  const x = p * 100;
  if (x !== 0 && Math.abs(x) < 0.01) return `${x < 0 ? "−" : ""}<0.01 %`;
  return `${x.toFixed(Math.abs(x) >= 9.95 ? 0 : Math.abs(x) >= 0.995 ? 1 : 2).replace("-", "−")} %`;
}

export function number(x, digits = 4) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (x === Infinity) return "∞";
  if (x === -Infinity) return "−∞";
  const size = Math.abs(x);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5) ? x.toExponential(2) : String(Number(x.toPrecision(digits)));
  return text.replace("-", "−").replace("e−", "e−");
}

export function bytes(n) {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let x = n, unit = -1;
  while (x >= 1024 && unit < units.length - 1) x /= 1024, unit += 1;
  return `${x < 10 ? x.toFixed(1) : Math.round(x)} ${units[unit]}`;
}

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  return ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

export function count(n) {
  return n.toLocaleString("en").replace(/,/g, " ");
}

export function clamp(x, low, high) {
  return Math.max(low, Math.min(high, x));
}
