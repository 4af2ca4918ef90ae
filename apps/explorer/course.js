// The course: every lab with its question, its exercises, and how many of its quiz questions were answered right.
import {el} from "./format.js";
import {ask, failed, say} from "./labs.js";
import {t} from "./texts.js";

function card(lab, n, exercises) {
  const quiz = el("a", {class: "push", href: `#quiz&lab=${lab.name}`, hidden: true});
  return {lab, quiz, node: el("li", {class: "card"},
    el("h2", {}, el("a", {href: `#lab=${lab.name}`}, `${n + 1}. ${say(lab.title)}`)),
    el("p", {}, say(lab.question)),
    el("p", {class: "card-foot"}, el("span", {class: "about"}, `${t("labs_minutes", {n: lab.minutes})} · ${t("labs_runs", {n: lab.about_seconds})}`),
      ...exercises.map((e) => el("a", {class: "push", href: `#exercises=${e.short_name}`}, t("labs_to_exercise", {name: e.name}))), quiz))};
}

export function showCourse(content, course) {
  const minutes = course.labs.reduce((sum, lab) => sum + lab.minutes, 0);
  const cards = course.labs.map((lab, n) => card(lab, n, course.exercises.filter((e) => e.lab === lab.name)));
  content.append(el("article", {class: "lab course-page"}, el("h1", {}, t("labs_course")),
    el("p", {}, t("labs_overview", {n: course.labs.length, minutes, exercises: course.exercises.length, questions: course.questions})),
    el("ol", {}, ...cards.map((one) => one.node))));
  (async () => {
    try {
      const {questions} = await (await ask("quiz")).json();
      for (const {lab, quiz} of cards) {
        const mine = questions.filter((q) => q.lab === lab.name), known = mine.filter((q) => q.last_right).length;
        quiz.hidden = mine.length === 0;
        quiz.textContent = t("labs_card_quiz", {known, all: mine.length});
      }
    } catch (error) {
      failed(error);
    }
  })();
}
