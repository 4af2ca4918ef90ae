// Generation: play, pause, step, back; the tokens that were made, and the cache that they fill.
import {bytes, count, el, label, milliseconds, percent, shown} from "./format.js";
import {drawCache} from "./cache.js";
import {textOf} from "./characters.js";
import {step} from "./loader.js";
import {data, length, on, put, set, state, writes} from "./store.js";
import {t} from "./texts.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export async function play() {
  if (data.playing) return put({playing: false});
  put({playing: true});
  while (data.playing) {
    const made = await step();
    if (!made || made.ends) break;
    await new Promise((done) => setTimeout(done, calm.matches ? 900 : 350));
  }
  put({playing: false});
}

export function back() {
  const run = data.run;
  if (!run) return;
  const to = Math.max(run.prompt_tokens, length() - 1);
  if (to < length()) set({shown: to, query: to - 1, key: null, window: null});
}

export function forward() {
  put({playing: false});
  return step();
}

export function toPrompt() {
  const run = data.run;
  if (run && length() > run.prompt_tokens) set({shown: run.prompt_tokens, query: run.prompt_tokens - 1, key: null, window: null});
}

export function showTimeline() {
  const box = document.getElementById("timeline");
  const title = el("h2", {}), buttons = el("div", {class: "transport"}), made = el("ol", {class: "made-list"});
  const told = el("p", {class: "about"}), canvas = el("canvas", {class: "cache", role: "img"}), cacheTitle = el("h2", {}), cacheTold = el("p", {class: "about"});
  const left = el("div", {class: "generation"}, el("div", {class: "panel-head"}, title, buttons), made, told);
  const right = el("div", {class: "cache-box"}, el("div", {class: "panel-head"}, cacheTitle, cacheTold), canvas);
  box.append(left, right);

  const draw = () => {
    const run = data.run;
    title.textContent = t("generation");
    left.hidden = !writes() || data.live === false && (run?.tokens.length ?? 0) === (run?.prompt_tokens ?? 0);
    if (!run) return buttons.replaceChildren(), made.replaceChildren(), void (told.textContent = "");
    const all = run.tokens.length, now = length(), live = data.live !== false;
    const button = (name, sign, run_, off) => el("button", {class: "push", "aria-label": name, title: name, disabled: off, onclick: run_}, sign);
    const focus = buttons.contains(document.activeElement) ? [...buttons.querySelectorAll("button,select")].indexOf(document.activeElement) : -1;
    const heat = el("select", {id: "heat", onchange: (e) => set({heat: Number(e.target.value)})},
      ...[0, 0.5, 0.8, 1, 1.5].map((h) => el("option", {value: h, selected: state.heat === h}, h === 0 ? t("sampling_greedy") : `T = ${h}`)));
    buttons.replaceChildren(
      button(t("to_prompt"), "❘◀", toPrompt, now <= run.prompt_tokens),
      button(t("back"), "◀", back, now <= run.prompt_tokens),
      button(t(data.playing ? "pause" : "play"), data.playing ? "❚❚" : "▶ " + t("play"), play, !live),
      button(t("step"), "▶❘", forward, !live && now >= all),
      ...(live ? [el("label", {class: "field"}, t("sampling"), heat)] : []));
    if (focus >= 0) buttons.querySelectorAll("button,select")[focus]?.focus();
    made.replaceChildren(...run.tokens.slice(run.prompt_tokens).map((token, n) => {
      const at = run.prompt_tokens + n;
      return el("li", {}, el("button", {class: `token${at >= now ? " later" : ""}${at === now - 1 ? " last" : ""}`, dir: "auto",
        onclick: () => set({shown: at + 1 >= all ? null : at + 1, query: at, key: null})}, shown(textOf(token))));
    }));
    const n = now - run.prompt_tokens, last = data.steps[n - 1];
    told.textContent = last ? t("step_line", {n, token: label(run.tokens[now - 1]), p: percent(last.probability), ms: milliseconds(last.ms)}) +
      (last.ends ? ` · ${t("ended")}` : "") : live && all === run.prompt_tokens ? t("generation_hint") : "";
  };
  const cache = () => {
    box.hidden = !writes();  // nor does it keep keys and values
    cacheTitle.textContent = t("cache", {layer: state.layer ?? 0});
    const run = data.run;
    right.hidden = !run?.cache;
    if (right.hidden) return;
    const now = length(), each = run.cache.bytes_per_token;
    const outside = drawCache(canvas, right.clientWidth);
    cacheTold.textContent = t("cache_line", {tokens: count(now), each: bytes(each), bytes: bytes(each * now), layers: data.about.model.layers}) +
      ` · ${run.cache.format}` + (outside > 0 ? ` · ${t("cache_window", {n: outside})}` : "");
    canvas.setAttribute("aria-label", `${cacheTitle.textContent}: ${cacheTold.textContent}`);
  };
  on("run shown playing words steps heat live", draw);
  on("run shown layer head query hover map words look tab switches", cache);
  new ResizeObserver(() => data.run && cache()).observe(right);
  on("run", () => {
    if (data.run && data.run.tokens.length === data.run.prompt_tokens) put({steps: Object.assign([], {at_prompt: data.run.next})});
  });
  draw();
}
