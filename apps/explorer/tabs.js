// On a phone: one column, one part at a time.
import {el} from "./format.js";
import {on, set, state, writes} from "./store.js";
import {t} from "./texts.js";

const names = ["pattern", "grid", "cell", "next"];

export function showTabs() {
  const nav = document.getElementById("tabs");
  const draw = () => {
    nav.setAttribute("aria-label", t("view"));
    nav.replaceChildren(...names.filter((name) => name !== "next" || writes()).map((name) =>
      el("button", {"aria-pressed": String(state.tab === name), onclick: () => set({tab: name})}, t(`tab_${name}`))));
    for (const part of document.querySelectorAll("[data-tab]")) part.classList.toggle("current", part.dataset.tab === state.tab);
  };
  on("about tab words", draw);
  draw();
}
