// One lab: what is asked, your guess, what can be changed, then what came out of its own run, and why.
import {count, el} from "./format.js";
import {figure} from "./lab_figures.js";
import {ask, failed, say} from "./labs.js";
import {t} from "./texts.js";

// Events of a run as they come: [name, data].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    held += value;
    for (let end = held.indexOf("\n\n"); end >= 0; end = held.indexOf("\n\n")) {
      const lines = held.slice(0, end).split("\n"), of = (start) => lines.filter((l) => l.startsWith(start)).map((l) => l.slice(start.length)).join("\n");
      held = held.slice(end + 2);
      yield [of("event: "), JSON.parse(of("data: "))];
    }
  }
}

function control(parameter, value, changed) {
  const id = `parameter-${parameter.name}`, whole = parameter.least !== undefined;
  const input = el("input", {id, name: parameter.name, value, "aria-describedby": `${id}-help`, oninput: changed,
                             ...(whole ? {type: "number", min: parameter.least, max: parameter.most, step: 1, required: true} : {type: "text"})});
  const range = whole ? t("labs_range", {least: count(parameter.least), most: count(parameter.most)}) : "";
  return el("div", {class: "parameter"}, el("label", {for: id}, parameter.name), input,
    el("small", {id: `${id}-help`}, `${say(parameter.help)}${range ? ` (${range})` : ""}`));
}

function conclusion(one) {
  const [kind, words] = one.holds ? ["holds", "labs_holds"] : one.decided ? ["fails", "labs_fails"] : ["open", "labs_undecided"];
  return el("li", {class: kind, "data-conclusion": one.name}, el("b", {}, t(words)), el("span", {}, say(one.text)));
}

function outcome(report) {
  const parts = [el("h2", {}, t("labs_results")), ...report.blocks.map(figure), el("h2", {}, t("labs_conclusions")),
    el("p", {class: "about"}, t("labs_computed", {seconds: report.seconds.toFixed(1)})), el("ul", {class: "conclusions"}, ...report.conclusions.map(conclusion)),
    el("h2", {}, t("labs_lesson")), el("p", {class: "lesson"}, say(report.lesson)),  // it often holds the answer
    el("h2", {}, t("labs_why")), ...report.why.map((text) => el("p", {}, say(text)))];
  return parts;
}

const reports = new Map();  // of this visit, by lab: going back shows what came out
const guesses = new Map();

export function showLab(content, course, {name, parameters}) {
  const lab = course.labs.find((one) => one.name === name);
  if (!lab) return void content.append(el("p", {class: "verdict"}, t("labs_none", {name})), el("p", {}, el("a", {href: `#lab=${course.labs[0].name}`}, say(course.labs[0].title))));
  let wish = null;
  const results = el("div", {class: "results", "aria-live": "off"}), bar = el("progress", {max: 1, value: 0, "aria-label": t("labs_running")});
  const told = el("p", {class: "about", role: "status"});
  const run = el("button", {class: "push primary", type: "submit"}, t("labs_run")), quick = el("input", {type: "checkbox", id: "quick"});
  const form = el("form", {class: "controls", novalidate: false, onsubmit: (event) => (event.preventDefault(), start())},
    ...lab.parameters.map((p) => control(p, parameters[p.name] ?? reports.get(name)?.parameters.find((q) => q.name === p.name)?.value ?? p.value, () => {})),
    el("div", {class: "run"}, run, el("label", {class: "field"}, quick, t("labs_quick")), bar), told);
  const guess = el("textarea", {id: "guess", rows: 2, placeholder: t("labs_guess_hint"), oninput: (event) => guesses.set(name, event.target.value)});
  guess.value = guesses.get(name) ?? "";
  bar.hidden = true;

  function show(report) {
    results.replaceChildren(...outcome(report), next());
    for (const canvas of results.querySelectorAll("canvas")) canvas.paint();
  }
  function next() {
    const at = course.labs.indexOf(lab), after = course.labs[at + 1];
    const mine = course.exercises.filter((e) => e.lab === name);
    return el("p", {class: "next-lab"}, el("a", {class: "push", href: `#quiz&lab=${name}`}, t("labs_to_quiz")),
      ...mine.map((e) => el("a", {class: "push", href: `#exercises=${e.short_name}`}, t("labs_to_exercise", {name: e.name}))),
      ...(after ? [el("a", {class: "push", href: `#lab=${after.name}`}, t("labs_next", {title: say(after.title)}))] : []));
  }
  function idle() {
    bar.hidden = true, run.textContent = t("labs_run"), wish = null;
  }
  async function start() {
    if (wish) return wish.abort(), idle(), void (told.textContent = t("labs_stopped"));
    const chosen = {};
    for (const p of lab.parameters) {
      const value = form.elements[p.name].value;
      if (quick.checked ? value !== String(p.preset) : true) chosen[p.name] = value;
    }
    history.replaceState(null, "", `#${new URLSearchParams({lab: name, ...Object.fromEntries(lab.parameters.filter((p) => form.elements[p.name].value !== String(p.preset)).map((p) => [p.name, form.elements[p.name].value]))})}`);
    const mine = wish = new AbortController();
    run.textContent = t("labs_stop"), bar.hidden = false, bar.value = 0, told.textContent = t("labs_running");
    try {
      for await (const [kind, data] of events(await ask(`labs/${name}`, {parameters: chosen, quick: quick.checked}, mine.signal))) {
        if (kind === "progress") bar.value = data;
        if (kind === "failed") told.textContent = t("problem_other", {message: data});
        if (kind === "report") {
          reports.set(name, data);
          show(data);
          const held = data.conclusions.filter((c) => c.holds).length;
          told.textContent = t("labs_done", {seconds: data.seconds.toFixed(1), held, all: data.conclusions.length});
        }
      }
    } catch (error) {
      if (!mine.signal.aborted) failed(error), told.textContent = "";
    }
    if (wish === mine) idle();
  }

  content.append(el("article", {class: "lab"},
    el("h1", {}, say(lab.title)),
    el("h2", {}, t("labs_question")), el("p", {}, say(lab.question)),
    el("h2", {}, t("labs_guess")), el("p", {}, say(lab.guess)), el("label", {class: "spoken", for: "guess"}, t("labs_guess_hint")), guess,
    el("h2", {}, t("labs_try")), el("p", {class: "about"}, t("labs_about_seconds", {n: lab.about_seconds})), form, results));
  if (reports.has(name)) show(reports.get(name));
  return () => wish?.abort();
}
