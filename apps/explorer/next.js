// What the model expects next: bars, and the same before the switches as outlines.
import {following} from "./characters.js";
import {el, label, milliseconds, number, percent, words} from "./format.js";
import {step} from "./loader.js";
import {receipt} from "./receipts.js";
import {data, length, on, switched, writes} from "./store.js";
import {t} from "./texts.js";

// The expectation after the last token that is shown.
export function expectation() {
  const run = data.run;
  if (!run) return null;
  const back = run.tokens.length - length();
  if (back === 0) return run.next;
  const at = length() - run.prompt_tokens;
  return (at === 0 ? data.steps.at_prompt : data.steps[at - 1]?.next) ?? null;
}

function bar(entry, most, live) {
  const before = entry.before ?? null, {space, text} = words(entry);
  const inside = [el("span", {class: "word", dir: "auto"}, space ? el("span", {class: "space"}, "·") : "", text),
    el("span", {class: "bar"}, el("i", {style: `width:${100 * entry.p / most}%`}),
       before === null ? null : el("b", {style: `width:${100 * before / most}%`})),
    el("span", {class: "p"}, percent(entry.p)),
    before === null ? null : el("span", {class: "was"}, percent(before))];
  const row = el("button", {class: "next-row", disabled: !live, title: live ? t("next_hint") : null, "data-token": entry.token,
                            onclick: () => step(entry.token)}, ...inside);
  return el("li", {}, row);
}

export function showNext() {
  const box = document.getElementById("next");
  const title = el("h2", {}), after = el("span", {class: "about"}), list = el("ol", {class: "bars"}), foot = el("div", {});
  box.append(el("div", {class: "panel-head"}, title, after), list, foot);
  const draw = () => {
    title.textContent = t("next");
    box.hidden = !writes();
    const run = data.run, next = expectation();
    if (!run || !next) return list.replaceChildren(), foot.replaceChildren(), void (after.textContent = "");
    const read = run.tokens.slice(0, length()), name = (token) => following(read, token);
    const changed = switched(), entries = next.slice(0, changed ? 5 : 7).map(name);  // with what changed below them
    after.textContent = t("next_after", {token: label(run.tokens[length() - 1])});
    const most = Math.max(...entries.map((e) => Math.max(e.p, changed ? e.before ?? 0 : 0)), 1e-9);
    list.replaceChildren(...entries.map((e) => bar(changed ? e : {...e, before: null}, most, data.live)));
    box.classList.toggle("with-before", changed);
    const notes = [];
    if (changed && run.kl !== null && length() === run.tokens.length) {
      notes.push(el("p", {class: "about"}, t("kl", {kl: number(run.kl, 3)}), " · ", t("next_before")));
      if (run.before?.length) {
        const [a, b] = [run.before[0], run.next[0]].map(name);
        notes.push(el("p", {class: "verdict"}, a.token === b.token ? t("next_same", {token: label(a)})
          : t("next_changed", {before: label(a), p: percent(a.p), after: label(b), q: percent(b.p)})));
      }
    }
    foot.replaceChildren(...notes, receipt([t("receipt_entropy"), `${number(run.entropy_next, 4)} nats`, "entropy"],
                                           [t("receipt_kernel"), `${run.kernel}, ${run.dtype}`, "kernel"],
                                           [t("receipt_time"), milliseconds(run.ms), "time"]));
  };
  on("about run shown words switches steps live", draw);
  draw();
}
