// The top line: which model, language, theme, link, export, keys.
import {dark} from "./colours.js";
import {exportHtml, exportJson, exportPng, exportSvg} from "./export.js";
import {count, el} from "./format.js";
import {openHelp} from "./keys.js";
import {encode} from "./permalink.js";
import {data, on, put, set, state} from "./store.js";
import {language, t} from "./texts.js";

export function parameters(n) {
  return n >= 1e9 ? `${(n / 1e9).toFixed(1)} B` : n >= 1e6 ? `${Math.round(n / 1e6)} M` : count(n);
}

// An encoder, a decoder and what goes between them have names of their own; others are called as the model calls them.
function partName(name) {
  return ["encoder", "decoder", "cross"].includes(name) ? t(`part_${name}`) : name;
}

async function share() {
  const link = `${location.href.split("#")[0]}#${await encode(state, data.about?.model.name)}`;
  history.replaceState(null, "", link);
  try {
    await navigator.clipboard.writeText(link);
    put({problem: {kind: "share_done"}});
  } catch {
    prompt(t("share_hint"), link);  // a page without the right to copy
  }
}

function menu(title, items) {
  const list = el("div", {class: "menu", role: "menu"}, ...items.map(([name, run]) =>
    el("button", {role: "menuitem", onclick: () => (close(), run())}, name)));
  const button = el("button", {class: "tool", "aria-haspopup": "menu", "aria-expanded": "false"}, title);
  const box = el("div", {class: "menu-box"}, button, list);
  const close = () => (box.classList.remove("open"), button.setAttribute("aria-expanded", "false"));
  button.addEventListener("click", () => {
    const open = box.classList.toggle("open");
    button.setAttribute("aria-expanded", String(open));
    if (open) list.firstChild.focus();
  });
  box.addEventListener("focusout", (event) => box.contains(event.relatedTarget) || close());
  box.addEventListener("keydown", (event) => {
    const at = [...list.children].indexOf(document.activeElement), all = list.children.length;
    if (event.key === "Escape") close(), button.focus(), event.stopPropagation();
    else if (event.key === "ArrowDown" && at >= 0) list.children[(at + 1) % all].focus();
    else if (event.key === "ArrowUp" && at >= 0) list.children[(at + all - 1) % all].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return box;
}

export function showHead() {
  const tools = document.getElementById("tools"), model = document.getElementById("model"), parts = document.getElementById("parts");
  const draw = () => {
    const about = data.about?.model;
    if (about) {
      const gqa = about.kv_heads < about.heads ? t("model_gqa", {kv: about.kv_heads}) : "";
      model.replaceChildren(t("model_line", {...about, gqa}), about.parameters ? t("model_size", {parameters: parameters(about.parameters)}) : "");
      if (about.rounds_rows) model.append(el("span", {title: t("model_rounded_hint")}, t("model_rounded")));
      else if (about.compute && about.compute !== "file") model.append(t("model_compute", about));
      if (data.live === false) model.append(el("em", {}, ` — ${t("embedded_note")}`));
    }
    const names = data.about?.parts ?? [];
    parts.hidden = names.length < 2;
    parts.setAttribute("aria-label", t("parts"));
    parts.replaceChildren(...names.map((name, n) =>
      el("button", {"aria-pressed": String(state.part === n), onclick: () => set({part: n})}, partName(name))));
    tools.replaceChildren(
      ...(data.about?.labs && data.live !== false ? [el("a", {class: "tool", href: "labs.html", title: t("labs_hint")}, t("labs"))] : []),
      el("button", {class: "tool", lang: language() === "zh" ? "en" : "zh-Hans", title: t("language_hint"),
                    onclick: () => set({lang: language() === "zh" ? "en" : "zh"})}, t("language")),
      el("button", {class: "tool icon", title: t("theme"), "aria-label": t("theme"),
                    onclick: () => set({theme: dark() ? "light" : "dark"})}, dark() ? "☀" : "☾"),
      // A notebook's frame has no address to hand on.
      ...(location.protocol === "about:" ? [] : [el("button", {class: "tool", title: t("share_hint"), onclick: share}, t("share"))]),
      menu(t("export"), [[t("export_png"), exportPng], [t("export_svg"), exportSvg], [t("export_json"), exportJson],
                         ...(data.live === false ? [] : [[t("export_html"), exportHtml]])]),
      el("button", {class: "tool icon", title: t("help"), "aria-label": t("help"), onclick: openHelp}, "?"));
  };
  on("about words look live part", draw);
  draw();
}
