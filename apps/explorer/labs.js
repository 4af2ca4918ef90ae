// The labs' page: the course on the left; a lab, the quiz or the exercises beside it. The address says which.
import {dark} from "./colours.js";
import {el} from "./format.js";
import {showCourse} from "./course.js";
import {showExercises} from "./exercises.js";
import {showLab} from "./lab.js";
import {showQuiz} from "./quiz.js";
import {applyTheme, remember, remembered} from "./preferences.js";
import {language, t, useLanguage} from "./texts.js";
import "./texts_labs.js";

const base = "/labs/v1";
let course = null, leave = () => {};

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `status ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

// The server's answer; Refused with its sentence, or a TypeError when it is not there.
export async function ask(path, body = null, signal = null) {
  const response = await fetch(`${base}/${path}`, body === null ? {signal} :
    {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body), signal});
  if (!response.ok) throw new Refused(response.status, (await response.json().catch(() => ({}))).error);
  return response;
}

// A text that has both languages, in the one that is read.
export function say(text) {
  return text[language()];
}

export function tell(sentence) {
  const banner = document.getElementById("banner");
  banner.hidden = !sentence;
  banner.replaceChildren(...(sentence ? [el("span", {}, sentence), el("button", {class: "plain", onclick: () => tell("")}, t("dismiss"))] : []));
}

export function failed(error) {
  if (error.name === "AbortError") return;
  tell(error instanceof Refused ? t("problem_other", {message: error.message}) : t("labs_lost"));
}

// "lab=scale&dim=64", "quiz", "quiz&lab=masks", "exercises=sdpa"
function place() {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (fields.has("quiz")) return {kind: "quiz", lab: fields.get("lab") ?? ""};
  if (fields.has("exercises")) return {kind: "exercises", name: fields.get("exercises")};
  if (!fields.has("lab")) return {kind: "course"};
  const name = fields.get("lab");
  fields.delete("lab");
  return {kind: "lab", name, parameters: Object.fromEntries(fields)};
}

function showTop() {
  document.title = t("labs_title");
  document.body.dataset.place = place().kind;
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
  const at = place();
  const link = (kind, href, text) => el("a", {href, "aria-current": at.kind === kind ? "page" : null}, text);
  const places = document.getElementById("places");
  places.setAttribute("aria-label", t("labs_places"));
  places.replaceChildren(el("a", {href: "./"}, t("labs_explorer")), link("course", "#", t("labs_course_short")),
    link("exercises", "#exercises", t("labs_exercises")), link("quiz", "#quiz", t("labs_quiz")));
  document.getElementById("tools").replaceChildren(
    el("button", {class: "tool", lang: language() === "zh" ? "en" : "zh-Hans", title: t("language_hint"), onclick: () => {
      useLanguage(language() === "zh" ? "en" : "zh");
      remember("lang", language());
      showAll();
    }}, t("language")),
    el("button", {class: "tool icon", title: t("theme"), "aria-label": t("theme"), onclick: () => {
      remember("theme", dark() ? "light" : "dark");
      applyTheme(remembered("theme"));
      showAll();
    }}, dark() ? "☀" : "☾"));
}

function showList() {
  const at = place(), nav = document.getElementById("course");
  const minutes = course.labs.reduce((sum, lab) => sum + lab.minutes, 0);
  nav.setAttribute("aria-label", t("labs"));
  nav.replaceChildren(
    el("h2", {}, t("labs")), el("p", {class: "about"}, t("labs_course_about", {n: course.labs.length, minutes})),
    el("ol", {}, ...course.labs.map((lab, n) => el("li", {},
      el("a", {href: `#lab=${lab.name}`, "aria-current": at.kind === "lab" && at.name === lab.name ? "page" : null},
        el("span", {class: "count"}, String(n + 1)), el("span", {}, say(lab.title)), el("small", {}, t("labs_minutes", {n: lab.minutes})))))));
}

function showAll() {
  leave();
  tell("");
  showTop();
  showList();
  const at = place(), content = document.getElementById("content");
  content.replaceChildren();
  const shows = {course: () => showCourse(content, course), lab: () => showLab(content, course, at), quiz: () => showQuiz(content, course, at), exercises: () => showExercises(content, course, at)};
  leave = shows[at.kind]() ?? (() => {});
  document.querySelector(".course [aria-current]")?.scrollIntoView({block: "nearest"});
}

async function main() {
  useLanguage(remembered("lang"));
  applyTheme(remembered("theme"));
  for (;;) {
    try {
      course = await (await ask("labs")).json();
      break;
    } catch (error) {
      if (error instanceof Refused && error.status === 404) return tell(t("labs_absent"));
      failed(error);
      await new Promise((done) => setTimeout(done, 1500));
    }
  }
  showAll();
  addEventListener("hashchange", () => {
    showAll();
    document.getElementById("content").focus({preventScroll: true});
    scrollTo(0, 0);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showAll);
  document.documentElement.dataset.ready = "true";
}

main();
