// The keyboard, and the list of its keys.
import {el} from "./format.js";
import {moveHead} from "./grid.js";
import {follow, zoom} from "./pattern.js";
import {nextMask, toggle, toggleHidden, toggleKnock} from "./switches.js";
import {back, forward, play} from "./timeline.js";
import {data, keyLength, length, put, set, state, switched} from "./store.js";
import {t} from "./texts.js";

const list = [
  ["← →", "key_tokens"], ["↑ ↓", "key_layers"], ["[ ]", "key_heads"], ["space", "key_play"], [". ,", "key_step"],
  ["S", "key_scale"], ["M", "key_mask"], ["X", "key_knock"], ["H", "key_hide"], ["D", "key_diff"], ["P", "key_pin"], ["T", "key_transpose"],
  ["V", "key_view"], ["+ − 0", "key_zoom"], ["/", "key_find"], ["Esc", "key_escape"], ["?", "key_help"],
];

export function openHelp() {
  const before = document.activeElement;
  const dialog = el("dialog", {class: "help", "aria-label": t("help")}, el("h2", {}, t("help")),
    el("dl", {}, ...list.flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, t(text))])),
    el("p", {class: "about"}, t("help_mouse")), el("button", {class: "push", onclick: () => dialog.close()}, t("close")));
  dialog.addEventListener("close", () => (dialog.remove(), before?.focus?.()));
  document.body.append(dialog);
  dialog.showModal();
}

// In a pattern or in the tokens the arrows move along both axes; elsewhere up and down change the layer.
function moveKey(by) {
  if (state.query === null) return;
  set({key: Math.max(0, Math.min(keyLength() - 1, (state.key ?? state.query) + by))});
  follow();
}

function moveQuery(by) {
  const at = state.query === null ? 0 : state.query + by;
  set({query: Math.max(0, Math.min(length() - 1, at)), key: null});
  follow();
}

function cycle(field, values) {
  set({[field]: values[(values.indexOf(state[field]) + 1) % values.length]});
}

function difference() {
  if (state.compare) return set({compare: ""});
  if (switched()) set({compare: "before"});
  else if (state.pin) set({compare: "pin"});
}

const actions = {
  "[": () => moveHead(0, -1), "]": () => moveHead(0, 1), " ": play, ".": forward, ",": back,
  s: () => data.live && toggle("scale=off"), m: () => data.live && nextMask(), x: () => data.live && toggleKnock(), h: () => data.live && toggleHidden(),
  d: difference, t: () => set({transpose: !state.transpose}), v: () => cycle("view", ["auto", "heat", "dots", "lines"]),
  p: () => set({pin: state.pin ? null : [state.layer, state.head]}),
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => set({window: null}),
  "/": () => document.getElementById("find")?.focus(), "?": openHelp,
  Escape: () => (put({hover: null, playing: false, problem: null}), set({key: null, query: length() - 1})),
};

export function attachKeys() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target, typing = /^(TEXTAREA|SELECT)$/.test(target.tagName) || (target.tagName === "INPUT");
    if (typing) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const onButton = /^(BUTTON|SUMMARY|A)$/.test(target.tagName);
    if (onButton && (event.key === " " || event.key === "Enter")) return;
    const inPattern = target.classList?.contains("big");
    const asked = target.closest?.(".asked") ? {ArrowLeft: () => moveKey(-1), ArrowRight: () => moveKey(1)} : null;
    const arrows = asked ?? (inPattern && !event.shiftKey
      ? {ArrowLeft: () => moveKey(-1), ArrowRight: () => moveKey(1), ArrowUp: () => moveQuery(-1), ArrowDown: () => moveQuery(1)}
      : {ArrowLeft: () => moveQuery(-1), ArrowRight: () => moveQuery(1), ArrowUp: () => moveHead(-1, 0), ArrowDown: () => moveHead(1, 0)});
    const act = arrows[event.key] ?? actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
