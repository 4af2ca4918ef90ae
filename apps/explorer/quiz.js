// The quiz: one question at a time, graded by the server, which keeps the progress where `attend quiz` has it.
import {el} from "./format.js";
import {Refused, ask, failed, say} from "./labs.js";
import {t} from "./texts.js";

// Those answered wrongly come first, then those never answered, in the order of the course.
function order(questions, lab) {
  const mine = questions.filter((q) => !lab || q.lab === lab), never = (q) => q.right_so_far + q.wrong_so_far === 0;
  return [...mine.filter((q) => !never(q) && !q.last_right), ...mine.filter(never), ...mine.filter((q) => q.last_right)];
}

export function showQuiz(content, course, {lab}) {
  const box = el("article", {class: "lab quiz"});
  content.append(box);
  let questions = [], queue = [], at = 0, left = false;

  function standing() {
    const known = questions.filter((q) => q.last_right).length;
    return el("p", {class: "about", role: "status"}, t("quiz_standing", {known, all: questions.length}), " ",
      el("progress", {max: questions.length, value: known, "aria-label": t("quiz_progress")}));
  }
  function verdict(q, answer) {
    const of = course.labs.find((one) => one.name === answer.lab);
    return el("div", {class: `answer ${answer.right ? "holds" : "fails"}`, role: "alert"},
      el("b", {}, answer.right ? t("quiz_right") : t("quiz_wrong", {answer: say(answer.answer)})), el("p", {}, say(answer.why)),
      el("p", {class: "about"}, answer.computed ? t("quiz_computed") : ""),
      el("p", {}, el("a", {href: `#lab=${answer.lab}`}, t("quiz_lab", {title: of ? say(of.title) : answer.lab}))));
  }
  function show() {
    const q = queue[at];
    if (!q) return box.replaceChildren(el("h1", {}, t("labs_quiz")), standing(), el("p", {}, t("quiz_none")));
    const result = el("div", {}), next = el("button", {class: "push primary", type: "button", onclick: () => (at = (at + 1) % queue.length, show())}, t("quiz_next"));
    next.hidden = true;
    const field = q.kind === "choice"
      ? el("fieldset", {}, el("legend", {class: "spoken"}, say(q.text)), ...q.choices.map((choice, n) => {
          const letter = String.fromCharCode(97 + n);
          return el("label", {class: "choice"}, el("input", {type: "radio", name: "answer", value: letter, required: true}), el("span", {}, `${letter}) ${say(choice)}`));
        }))
      : el("label", {class: "field"}, t("quiz_number"), el("input", {name: "answer", inputmode: "decimal", autocomplete: "off", required: true}));
    const button = el("button", {class: "push primary", type: "submit"}, t("quiz_check"));
    const form = el("form", {class: "question", onsubmit: async (event) => {
      event.preventDefault();
      try {
        const answer = await (await ask("quiz", {question: q.name, answer: new FormData(form).get("answer").trim()})).json();
        q.last_right = answer.right;
        if (answer.right) q.right_so_far += 1;
        else q.wrong_so_far += 1;
        result.replaceChildren(verdict(q, answer));
        for (const input of form.querySelectorAll("input")) input.disabled = true;
        button.hidden = true, next.hidden = false;
        box.querySelector("[role=status]").replaceWith(standing());
        next.focus();
      } catch (error) {
        if (error instanceof Refused && error.status === 400) result.replaceChildren(el("p", {class: "answer fails", role: "alert"}, t("quiz_unreadable")));
        else failed(error);
      }
    }}, el("p", {class: "verdict"}, say(q.text)), field, el("p", {class: "run"}, button, next), result);
    box.replaceChildren(el("h1", {}, t("labs_quiz")), standing(),
      el("p", {class: "about"}, t("quiz_at", {n: at + 1, all: queue.length}) + (lab ? ` · ${say(course.labs.find((one) => one.name === lab)?.title ?? {en: lab, zh: lab})}` : "")), form);
  }
  (async () => {
    try {
      questions = (await (await ask("quiz")).json()).questions;
    } catch (error) {
      return failed(error);
    }
    queue = order(questions, lab);
    if (!left) show();
  })();
  return () => (left = true);
}
