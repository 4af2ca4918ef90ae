// The switchboard: edits of the forward pass, as chips that can be taken off again.
import {el, label} from "./format.js";
import {data, on, set, state, writes} from "./store.js";
import {t} from "./texts.js";

// The model's own comes first.
function masks() {
  const [own, other] = writes() ? ["causal", "full"] : ["full", "causal"];
  return [own, other, "window:8", "sinks:1+8", "window:64", "sinks:4+64"];
}

const nameOf = (one) => one.split("=")[0];
const placeOf = (one) => one.split("@")[1] ?? "";
const valueOf = (one) => one.slice(one.indexOf("=") + 1).split("@")[0];

// The switch of this name (and place), or nothing.
export function find(name, where = "") {
  return state.switches.find((one) => nameOf(one) === name && (where === "" || placeOf(one) === where));
}

export function toggle(one) {
  const has = state.switches.includes(one);
  set({switches: has ? state.switches.filter((s) => s !== one) : [...state.switches, one]});
}

// Sets the switch of this name, or takes it away.
export function choose(name, one) {
  const rest = state.switches.filter((s) => nameOf(s) !== name);
  set({switches: one ? [...rest, one] : rest});
}

export function toggleKnock(layer = state.layer, head = state.head) {
  const where = `${layer}.${head}`, has = find("knock", where);
  if (has) set({switches: state.switches.filter((s) => s !== has)});
  else set({switches: [...state.switches, `knock=zero@${where}`]});
}

export function toggleOnly(layer = state.layer, head = state.head) {
  const one = `only=layer@${layer}.${head}`;
  choose("only", state.switches.includes(one) ? null : one);
}

// Hides the chosen key from every query.
export function toggleHidden(key = state.key) {
  if (key === null) return;
  const one = `padding=${key}-${key + 1}`;
  choose("padding", state.switches.includes(one) ? null : one);
}

export function nextMask() {
  const all = masks(), now = find("mask") ? valueOf(find("mask")) : all[0], at = all.indexOf(now);
  const next = all[(at + 1) % all.length];
  choose("mask", next === all[0] ? null : `mask=${next}`);
}

function maskText(value) {
  const [kind, size = ""] = value.split(":");
  if (kind === "window") return t("mask_window", {n: size});
  if (kind === "sinks") return t("mask_sinks", {s: size.split("+")[0], n: size.split("+")[1]});
  return kind === "full" ? t("mask_full") : kind === "causal" ? t("mask_causal") : value;
}

function hiddenText(first, end) {
  const token = end === first + 1 ? data.run?.tokens[first] : null;
  return token ? t("mask_hidden", {token: label(token), n: first}) : t("mask_padding", {a: first, b: end - 1});
}

export function describe(one) {
  const value = valueOf(one), where = placeOf(one).replace(".", "·");
  switch (nameOf(one)) {
    case "scale": return t("chip_scale");
    case "temperature": return t("chip_temperature", {n: value});
    case "mask": return maskText(value);
    case "padding": return hiddenText(...value.split("-").map(Number));
    case "positions": return t("chip_positions");
    case "shuffle": return t("chip_shuffle", {n: value});
    case "knock": return t(value === "mean" ? "chip_knock_mean" : "chip_knock", {place: where});
    case "only": return t("chip_only", {place: where});
    default: return one;
  }
}

function lever(name, on_, hint, press) {
  return el("button", {class: "lever", role: "switch", "aria-checked": String(on_), title: hint, onclick: press},
            el("i", {"aria-hidden": "true"}), name);
}

export function showSwitches() {
  const box = document.getElementById("switches");
  // On a phone the levers are folded away behind their name.
  let open = false;
  const name = el("span", {}), title = el("button", {class: "fold", onclick: () => (open = !open, draw())}, name);
  const levers = el("div", {class: "levers"}), chips = el("div", {class: "chips"});
  box.append(el("h2", {}, title), levers, chips);
  let held = null;

  const temperature = () => {
    const value = find("temperature") ? Number(valueOf(find("temperature"))) : 1;
    const out = el("output", {}, value.toFixed(2));
    const slider = el("input", {type: "range", id: "temperature", min: "-2", max: "2", step: "0.1", value: Math.log2(value),
      onpointerdown: () => (held = slider), onpointerup: () => (held = null)});
    slider.addEventListener("input", () => {
      const chosen = Math.pow(2, Number(slider.value));
      out.textContent = chosen.toFixed(2);
      choose("temperature", Math.abs(chosen - 1) < 1e-6 ? null : `temperature=${Number(chosen.toFixed(3))}`);
    });
    return el("label", {class: "slider"}, t("switch_temperature"), slider, out);
  };

  const keyName = () => (state.key !== null && data.run?.tokens[state.key] ? `“${label(data.run.tokens[state.key]).slice(0, 12)}”` : "");
  const draw = () => {
    name.textContent = t("switches");
    title.setAttribute("aria-expanded", String(open));
    box.classList.toggle("open", open);
    box.hidden = data.live === false;
    const all = masks(), mask = find("mask") ? valueOf(find("mask")) : all[0];
    const options = all.includes(mask) ? all : [...all, mask];
    const knocked = Boolean(find("knock", `${state.layer}.${state.head}`));
    const where = state.layer === null ? "" : `${state.layer}·${state.head}`;
    const seed = find("shuffle");
    // A slider that is being dragged stays the same element.
    if (!held || !levers.contains(held)) {
      const focus = levers.contains(document.activeElement) ? [...levers.querySelectorAll("button,select,input")].indexOf(document.activeElement) : -1;
      levers.replaceChildren(
        lever(t("switch_scale"), !find("scale"), t("switch_scale_hint"), () => toggle("scale=off")),
        el("label", {class: "field", title: t("switch_mask_hint")}, t("switch_mask"),
           el("select", {id: "mask", onchange: (event) => choose("mask", event.target.value === all[0] ? null : `mask=${event.target.value}`)},
              ...options.map((m) => el("option", {value: m, selected: m === mask}, maskText(m))))),
        temperature(),
        lever(t("switch_positions"), !find("positions"), t("switch_positions_hint"), () => toggle("positions=off")),
        el("button", {class: "push", "aria-pressed": String(Boolean(seed)), title: t("switch_shuffle_hint"),
          onclick: () => choose("shuffle", `shuffle=${seed ? Number(valueOf(seed)) + 1 : 1}`)}, t("switch_shuffle")),
        el("button", {class: "push", "aria-pressed": String(knocked), title: t("switch_knock_hint"), id: "knock",
          onclick: () => toggleKnock()}, `${t("switch_knock")} ${where}`),
        el("button", {class: "push", "aria-pressed": String(Boolean(find("only"))), title: t("switch_only_hint"),
          onclick: () => toggleOnly()}, t("switch_only")),
        el("button", {class: "push", "aria-pressed": String(state.switches.includes(`padding=${state.key}-${state.key + 1}`)), title: t("switch_hide_hint"), id: "hide",
          disabled: state.key === null, onclick: () => toggleHidden()}, t("switch_hide", {token: keyName()})));
      if (focus >= 0) levers.querySelectorAll("button,select,input")[focus]?.focus();
    }
    const taken = state.switches.map((one) => {
      const remove = el("button", {class: "chip", "data-switch": one, "aria-label": t("chip_remove", {what: describe(one)}),
        onclick: () => set({switches: state.switches.filter((s) => s !== one)})}, describe(one), el("span", {"aria-hidden": "true"}, "×"));
      const mean = nameOf(one) === "knock" ? el("button", {class: "chip-side", "aria-pressed": String(valueOf(one) === "mean"),
        onclick: () => set({switches: state.switches.map((s) => (s === one ? `knock=${valueOf(one) === "mean" ? "zero" : "mean"}@${placeOf(one)}` : s))})},
        t("switch_knock_mean")) : null;
      return el("span", {class: "chip-box"}, remove, mean);
    });
    chips.replaceChildren(...(taken.length ? [...taken, el("button", {class: "plain reset", onclick: () => set({switches: []})}, t("reset"))]
                                           : [el("span", {class: "about"}, t("unchanged"))]));
  };
  on("about run switches layer head key words live", draw);
  draw();
}
