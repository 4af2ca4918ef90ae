// The tokens in a line: where the chosen one looks, and who looks at it.
import {clamp, el, percent, shown, words} from "./format.js";
import {place} from "./loader.js";
import {columnOf, rowOf} from "./weights.js";
import {data, length, on, put, set, state} from "./store.js";
import {t} from "./texts.js";

const room = 160;  // tokens in the page at once

export function showStrip() {
  const box = document.getElementById("strip");
  const before = el("button", {class: "plain"}), after = el("button", {class: "plain"});
  const list = el("div", {class: "tokens", role: "listbox", tabindex: "0", "aria-orientation": "horizontal"});
  box.append(before, list, after);
  let first = 0, nodes = [], of = null;

  const build = () => {
    const run = data.run, all = length();
    const centre = state.query ?? 0;
    if (all <= room) first = 0;
    else if (centre < first + 20 || centre >= first + room - 20) first = clamp(centre - room / 2, 0, all - room);
    first = clamp(first, 0, Math.max(0, all - room));
    const end = Math.min(first + room, all), key = `${run?.of}|${first}|${end}`;
    before.hidden = first === 0, after.hidden = end >= all;
    before.textContent = `‹ ${t("strip_before", {n: first})}`, after.textContent = `${t("strip_after", {n: all - end})} ›`;
    if (key === of) return;
    of = key;
    nodes = [];
    for (let n = first; n < end; ++n) {
      const token = run.tokens[n];
      const node = el("span", {class: `token${words(token.text).space ? " spaced" : ""}${token.special ? " special" : ""}${n >= run.prompt_tokens ? " made" : ""}`,
                               role: "option", id: `token-${n}`, dir: "auto", "data-n": n,
                               "aria-label": `${n}: ${token.text.trim() || shown(token.text)}`}, words(token.text).text);
      if (token.text.includes("\n")) node.classList.add("breaks");
      nodes.push(node);
    }
    list.replaceChildren(...nodes);
  };

  const tint = () => {
    const {query, key} = place();
    const row = query === null ? null : rowOf(query), column = query === null ? null : columnOf(query);
    const matches = new Set(data.found ?? []);
    nodes.forEach((node, at) => {
      const n = first + at;
      const w = row ? row.values[n - row.first] : 0, u = column && n > query ? column.values[n - column.first] : 0;
      const is = `${w > 0 ? Math.sqrt(w).toFixed(2) : 0} ${u > 0 ? Math.sqrt(u).toFixed(2) : 0} ${n === query} ${n === key} ${matches.has(n)} ${n === state.query}`;
      if (node.is === is) return;  // most do not change; every change costs the browser a new style
      node.is = is;
      node.style.setProperty("--w", w > 0 ? Math.sqrt(w).toFixed(2) : "0");
      node.style.setProperty("--u", u > 0 ? Math.sqrt(u).toFixed(2) : "0");
      node.classList.toggle("query", n === query);
      node.classList.toggle("key", n === key);
      node.classList.toggle("found", matches.has(n));
      node.setAttribute("aria-selected", String(n === state.query));
      node.title = w > 0 ? percent(w) : "";
    });
    list.setAttribute("aria-label", t("tokens_label"));
    if (state.query !== null && nodes[state.query - first]) {
      list.setAttribute("aria-activedescendant", `token-${state.query}`);
      const node = nodes[state.query - first];
      if (node.offsetTop < list.scrollTop || node.offsetTop + node.offsetHeight > list.scrollTop + list.clientHeight)
        list.scrollTop = node.offsetTop - list.clientHeight / 2;
    }
  };

  const numberOf = (event) => {
    const node = event.target.closest("[data-n]");
    return node ? Number(node.dataset.n) : null;
  };
  list.addEventListener("pointerover", (event) => {
    const n = numberOf(event);
    if (event.pointerType === "mouse" && n !== null) put({hover: {query: n, key: null}});
  });
  list.addEventListener("pointerleave", () => data.hover && put({hover: null}));
  list.addEventListener("click", (event) => {
    const n = numberOf(event);
    if (n === null) return;
    if (event.shiftKey) set({key: n});
    else set({query: n, key: null}), put({hover: null});
  });
  before.addEventListener("click", () => set({query: Math.max(0, first - room / 2), key: null}));
  after.addEventListener("click", () => set({query: Math.min(length() - 1, first + room + room / 2), key: null}));

  on("run shown query hover words", () => {
    if (!data.run) {
      list.replaceChildren(), nodes = [], of = null;
      before.hidden = after.hidden = true;
      return;
    }
    build();
  });
  on("run shown query key hover map words found", () => data.run && tint());
  before.hidden = after.hidden = true;
}
