// The tokens in a line: where the chosen one looks, and who looks at it. In cross-attention two lines: who asks, who is asked.
import {goesOn, textSaid} from "./characters.js";
import {clamp, el, percent, shown, words} from "./format.js";
import {place} from "./loader.js";
import {columnOf, rowOf} from "./weights.js";
import {crosses, data, keyTokens, length, on, put, set, state} from "./store.js";
import {t} from "./texts.js";

const room = 160;  // tokens in the page at once

// One line. `asked`: of the keys of another text.
function line(asked) {
  const before = el("button", {class: "plain"}), after = el("button", {class: "plain"}), name = el("span", {class: "strip-name"});
  const list = el("div", {class: "tokens", role: "listbox", tabindex: "0", "aria-orientation": "horizontal"});
  const box = el("div", {class: `strip-line ${asked ? "asked" : "asks"}`}, name, el("div", {}, before, list, after));
  let first = 0, nodes = [], of = null;
  const field = asked ? "key" : "query";
  const tokens = () => (asked ? keyTokens() : data.run.tokens.slice(0, length()));
  const choose = (n) => set(asked ? {key: n} : {query: n, key: null});

  const build = () => {
    const texts = tokens(), all = texts.length, centre = state[field] ?? 0;
    if (all <= room) first = 0;
    else if (centre < first + 20 || centre >= first + room - 20) first = clamp(centre - room / 2, 0, all - room);
    first = clamp(first, 0, Math.max(0, all - room));
    const end = Math.min(first + room, all), key = `${data.run.of}|${first}|${end}`;
    before.hidden = first === 0, after.hidden = end >= all;
    before.textContent = `‹ ${t("strip_before", {n: first})}`, after.textContent = `${t("strip_after", {n: all - end})} ›`;
    if (key === of) return;
    of = key;
    nodes = texts.slice(first, end).map((token, at) => {
      const n = first + at, {space, text} = words(token), made = !asked && n >= data.run.prompt_tokens;
      return el("span", {class: `token${space ? " spaced" : ""}${token.special ? " special" : ""}${made ? " made" : ""}${goesOn(token) ? " goes-on" : ""}`,
                         role: "option", id: `${field}-${n}`, dir: "auto", "data-n": n,
                         "aria-label": `${n}: ${textSaid(token).trim() || shown(token.text)}`}, text);
    });
    list.replaceChildren(...nodes);
  };

  const tint = () => {
    const {query, key} = place(), cross = crosses(), chosen = state[field];
    const row = query !== null && (asked || !cross) ? rowOf(query) : null;
    const looked = cross ? key : query, column = looked !== null && !asked ? columnOf(looked) : null;
    const matches = new Set(asked ? [] : data.found ?? []);
    nodes.forEach((node, at) => {
      const n = first + at;
      const w = row ? row.values[n - row.first] : 0, u = column && (cross || n > query) ? column.values[n - column.first] : 0;
      const asks = !asked && n === query, is_asked = (asked || !cross) && n === key;
      const is = `${w > 0 ? Math.sqrt(w).toFixed(2) : 0} ${u > 0 ? Math.sqrt(u).toFixed(2) : 0} ${asks} ${is_asked} ${matches.has(n)} ${n === chosen}`;
      if (node.is === is) return;  // most do not change; every change costs the browser a new style
      node.is = is;
      node.style.setProperty("--w", w > 0 ? Math.sqrt(w).toFixed(2) : "0");
      node.style.setProperty("--u", u > 0 ? Math.sqrt(u).toFixed(2) : "0");
      node.classList.toggle("query", asks);
      node.classList.toggle("key", is_asked);
      node.classList.toggle("found", matches.has(n));
      node.setAttribute("aria-selected", String(n === chosen));
      node.title = w > 0 ? percent(w) : "";
    });
    name.hidden = !cross;
    name.textContent = t(asked ? "strip_asked" : "strip_asks");
    list.setAttribute("aria-label", t(!cross ? "tokens_label" : asked ? "keys" : "queries"));
    const node = nodes[(chosen ?? -1) - first];
    if (!node) return;
    list.setAttribute("aria-activedescendant", node.id);
    if (node.offsetTop < list.scrollTop || node.offsetTop + node.offsetHeight > list.scrollTop + list.clientHeight)
      list.scrollTop = node.offsetTop - list.clientHeight / 2;
  };

  const numberOf = (event) => {
    const node = event.target.closest("[data-n]");
    return node ? Number(node.dataset.n) : null;
  };
  list.addEventListener("pointerover", (event) => {
    const n = numberOf(event);
    if (event.pointerType === "mouse" && n !== null) put({hover: asked ? {query: state.query, key: n} : {query: n, key: null}});
  });
  list.addEventListener("pointerleave", () => data.hover && put({hover: null}));
  list.addEventListener("click", (event) => {
    const n = numberOf(event);
    if (n === null) return;
    if (event.shiftKey && !crosses()) return set({key: n});
    choose(n), put({hover: null});
  });
  before.addEventListener("click", () => choose(Math.max(0, first - room / 2)));
  after.addEventListener("click", () => choose(Math.min(tokens().length - 1, first + room + room / 2)));

  on("run shown query key hover words", () => {
    box.hidden = !data.run || asked && !crosses();
    if (box.hidden) return list.replaceChildren(), nodes = [], void (of = null);
    build();
  });
  on("run shown query key hover map words found", () => box.hidden || tint());
  box.hidden = true;
  return box;
}

export function showStrip() {
  document.getElementById("strip").append(line(false), line(true));
}
