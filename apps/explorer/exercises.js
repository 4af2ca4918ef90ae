// Exercises: write a function, and hear which mistake it makes; the server runs it where its key is known.
import {el} from "./format.js";
import {Refused, ask, failed, say} from "./labs.js";
import {remember, remembered} from "./preferences.js";
import {language, t} from "./texts.js";

let key = "";  // for as long as the page lives; it is never stored

function verdicts(result, course) {
  if (result.failure) return [el("p", {class: "answer fails", role: "alert"}, say(result.failure))];
  return result.verdicts.map((v) => {
    const lab = course.labs.find((one) => one.name === v.lab);
    return el("div", {class: `answer ${v.verdict === "right" ? "holds" : v.verdict === "unwritten" ? "" : "fails"}`, role: "alert", "data-verdict": v.verdict},
      el("b", {}, v.exercise), el("p", {}, say(v.text)),
      v.verdict === "wrong" && lab ? el("p", {}, el("a", {href: `#lab=${v.lab}`}, t("quiz_lab", {title: say(lab.title)}))) : null);
  });
}

export function showExercises(content, course, {name}) {
  const chosen = course.exercises.find((e) => e.short_name === name) ?? course.exercises[0], kinds = {py: "Python", cpp: "C++"};
  let kind = remembered("exercise.kind") === "cpp" ? "cpp" : "py";
  const kept = () => `exercise.${chosen.short_name}.${kind}`;
  const code = el("textarea", {id: "code", class: "code", spellcheck: "false", autocapitalize: "off", rows: 22, oninput: () => remember(kept(), code.value)});
  const result = el("div", {class: "results"}), told = el("p", {class: "about", role: "status"});
  const keyBox = el("input", {id: "key", autocomplete: "off", size: 16, value: key, oninput: (event) => (key = event.target.value.trim())});
  const check = el("button", {class: "push primary", type: "submit"}, t("exercise_check"));
  const load = (fresh) => (code.value = (!fresh && remembered(kept())) || chosen[kind][language()]);
  const picks = el("div", {class: "segmented", role: "group", "aria-label": t("exercise_language")}, ...Object.entries(kinds).map(([id, text]) =>
    el("button", {type: "button", "aria-pressed": String(id === kind), "data-kind": id, onclick: () => {
      kind = id;
      remember("exercise.kind", kind);
      for (const button of picks.children) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
      load(false);
    }}, text)));
  const form = el("form", {class: "exercise", onsubmit: async (event) => {
    event.preventDefault();
    check.disabled = true, told.textContent = t("exercise_checking"), result.replaceChildren();
    try {
      const answer = await (await ask("check", {key, language: kind, code: code.value})).json();
      result.replaceChildren(...verdicts(answer, course));
      told.textContent = "";
    } catch (error) {
      told.textContent = error instanceof Refused && error.code === "wrong_key" ? t("exercise_wrong_key") : "";
      if (told.textContent) keyBox.focus();
      else failed(error);
    }
    check.disabled = false;
  }},
    el("p", {class: "run"}, picks, el("button", {class: "push", type: "button", onclick: () => (load(true), remember(kept(), ""))}, t("exercise_again"))),
    el("label", {class: "spoken", for: "code"}, t("exercise_code")), code,
    course.checks ? el("p", {class: "run"}, check, el("label", {class: "field", for: "key"}, t("exercise_key")), keyBox) : null, told,
    el("p", {class: "about"}, t("exercise_terminal", {file: chosen.short_name})));
  load(false);
  content.append(el("article", {class: "lab"}, el("h1", {}, t("labs_exercises")),
    el("nav", {class: "segmented exercise-list", "aria-label": t("labs_exercises")}, ...course.exercises.map((e) =>
      el("a", {href: `#exercises=${e.short_name}`, "aria-current": e === chosen ? "page" : null}, e.name))),
    el("p", {}, say(chosen.asks)), el("p", {class: "about"}, t("exercise_about", {cases: chosen.cases, mistakes: chosen.mistakes})), form, result));
}
