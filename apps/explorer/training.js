// A training run: losses, rate, gradient and speed, samples, and a slider back through the steps whose models were kept.
import {CanvasPainter} from "./painter.js";
import {paintCurves} from "./chart.js";
import {count, el, number} from "./format.js";
import {theme} from "./colours.js";
import {stepNow} from "./loader.js";
import {data, on, set, state} from "./store.js";
import {t} from "./texts.js";
import {smoothed, speeds, thinned} from "./training_data.js";

const many = 600, calm = matchMedia("(prefers-reduced-motion: reduce)");

function timeLeft(training) {
  const {steps, about} = training, last = steps.at(-1), first = steps.at(-Math.min(steps.length, 100));
  if (!about || !last || last === first) return "…";
  const seconds = (about.steps - last.step) * (last.seconds - first.seconds) / (last.step - first.step);
  return seconds >= 5400 ? `${(seconds / 3600).toFixed(1)} h` : seconds >= 90 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds)} s`;
}

function lossFigure(training, wide) {
  const {steps, validations, about} = training, levels = [], last = smoothed(steps, "loss", many);
  for (const name of ["unigram", "trigram", "entropy"])
    if (Number.isFinite(about?.[name])) levels.push({name: t(`training_${name}`, {x: number(about[name], 3)}), value: about[name], below: name === "entropy"});
  return {
    across: t("training_step"), up: t("training_loss"), logY: true, levels, marks: training.kept, at: stepNow(),
    rangeX: [0, Math.max(about?.steps ?? 1, steps.at(-1)?.step ?? 1)],
    curves: [
      {name: "", points: thinned(steps, "loss", Math.min(many, wide)), colour: theme("q"), width: 1, alpha: 0.35, dots: false},
      {name: t("training_train"), points: last, colour: theme("q"), width: 2, dots: false},
      {name: t("training_validation"), points: validations.map((v) => [v.step, v.loss]), colour: theme("k"), width: 2, dots: true},
    ],
  };
}

// A small curve with its newest number.
function spark(name) {
  const canvas = el("canvas", {class: "spark", role: "img"}), title = el("span", {class: "about"}), value = el("span", {class: "number"});
  const box = el("div", {class: "spark-box"}, el("div", {class: "spark-head"}, title, value), canvas);
  const draw = (points, end) => {
    const now = points.at(-1)?.[1];
    title.textContent = t(`training_${name}`);
    value.textContent = now === undefined ? "–" : now >= 1000 ? count(Math.round(now)) : number(now, 3);
    canvas.setAttribute("aria-label", `${title.textContent}: ${value.textContent}`);
    const painter = new CanvasPainter(canvas, canvas.clientWidth, canvas.clientHeight);
    if (points.length < 2) return;
    const high = Math.max(...points.map((p) => p[1])), {width, height} = painter;
    const at = points.map(([x, y]) => [2 + x / end * (width - 4), height - 3 - y / (high || 1) * (height - 6)]);
    painter.line(0, height - 3, width, height - 3, theme("line"));
    painter.path(at, theme("thread"), {width: 1.5});
    painter.circle(...at.at(-1), 2.5, theme("q"));
  };
  return {box, draw};
}

function sampleAt(training, step) {
  return training.samples.filter((s) => step === null || s.step <= step).at(-1) ?? null;
}

export function showTraining() {
  const box = document.getElementById("training");
  const title = el("h2", {}), line = el("p", {class: "line"}), told = el("p", {class: "about training-told"});
  const canvas = el("canvas", {class: "losses", role: "img"}), sampleTitle = el("h3", {}), sample = el("p", {class: "sample", dir: "auto", tabindex: "0", role: "region"});
  const sparks = {rate: spark("rate"), gradient: spark("gradient"), speed: spark("speed")};
  const slider = el("input", {type: "range", min: 0, step: 1, class: "steps", oninput: () => chooseAt(Number(slider.value))});
  const shown = el("output", {class: "number step-shown"}), follow = el("button", {class: "push", onclick: () => set({step: null})});
  const play = el("button", {class: "push", onclick: playSteps}, "▶");
  const earlier = el("button", {class: "push", onclick: () => move(-1)}, "◀"), later = el("button", {class: "push", onclick: () => move(1)}, "▶❘");
  const controls = el("div", {class: "step-controls"}, earlier, play, later, slider, shown, follow);
  box.append(
    el("div", {class: "training-left"}, el("div", {class: "panel-head"}, title, line), el("div", {class: "losses-hold"}, canvas), told),
    el("div", {class: "training-middle"}, sparks.rate.box, sparks.gradient.box, sparks.speed.box),
    el("div", {class: "training-right"}, sampleTitle, sample),
    controls);
  let painted = null, playing = false;

  const kept = () => data.training?.kept ?? [];
  const chooseAt = (n) => set({step: n >= kept().length - 1 ? null : kept()[n]});
  const move = (by) => chooseAt(Math.max(0, Math.min(kept().length - 1, kept().indexOf(stepNow()) + by)));
  async function playSteps() {
    if (playing) return void (playing = false);
    playing = true;
    draw();
    for (let n = stepNow() === kept().at(-1) ? 0 : kept().indexOf(stepNow()); playing && n < kept().length; ++n) {
      chooseAt(n);
      await new Promise((done) => setTimeout(done, calm.matches ? 1500 : 700));
    }
    playing = false;
    draw();
  }

  function draw() {
    const training = data.training;
    box.hidden = !training;
    if (!training) return;
    const last = training.steps.at(-1), steps = training.about?.steps ?? last?.step ?? 0, step = stepNow(), at = kept().indexOf(step);
    title.textContent = t("training");
    const ended = last && last.step >= steps;
    line.textContent = t("training_about", {stage: training.about?.stage ?? "", run: training.name, step: count(last?.step ?? 0), steps: count(steps)}) +
      ` · ${training.running ? t("training_running", {left: timeLeft(training)}) : t(ended ? "training_ended" : "training_paused")}`;
    const wide = canvas.parentElement.clientWidth, high = canvas.parentElement.clientHeight;
    const painter = new CanvasPainter(canvas, wide, high);
    painted = paintCurves(painter, lossFigure(training, wide));
    canvas.setAttribute("aria-label", t("training_said", {loss: number(last?.loss, 4), step: last?.step ?? 0, steps,
                                                         validation: number(training.validations.at(-1)?.loss, 4)}));
    for (const name of ["rate", "gradient"]) sparks[name].draw(thinned(training.steps, name, 200), steps || 1);
    sparks.speed.draw(speeds(training.steps, 100), steps || 1);
    const text = sampleAt(training, step);
    sampleTitle.textContent = text ? t("training_sample", {step: text.step}) : t("training_no_sample");
    sample.setAttribute("aria-label", sampleTitle.textContent);
    sample.replaceChildren(...(text ? [el("span", {class: "asked"}, text.prompt), text.text] : []));
    controls.hidden = kept().length === 0;
    told.textContent = kept().length === 0 ? t("training_no_steps") : told.textContent;
    slider.max = Math.max(0, kept().length - 1), slider.value = at;
    slider.setAttribute("aria-label", t("training_slider"));
    slider.setAttribute("aria-valuetext", t("training_shown", {step}));
    shown.textContent = t("training_shown", {step: step === null ? "–" : count(step)});
    follow.textContent = t("training_follow"), follow.title = t("training_follow_hint");
    follow.setAttribute("aria-pressed", String(state.step === null));
    play.textContent = playing ? "❚❚" : "▶";
    for (const [button, key] of [[play, playing ? "pause" : "training_play"], [earlier, "training_earlier"], [later, "training_later"]])
      button.title = t(key), button.setAttribute("aria-label", t(key));
    earlier.disabled = at <= 0, later.disabled = at >= kept().length - 1;
  }
  canvas.addEventListener("pointermove", (event) => {
    const all = data.training?.steps ?? [];
    if (!painted || !all.length) return;
    const x = painted.fromPixel(event.offsetX), near = all.reduce((a, b) => (Math.abs(b.step - x) < Math.abs(a.step - x) ? b : a));
    told.textContent = t("training_at", {step: count(near.step), loss: number(near.loss), gradient: number(near.gradient, 3), rate: number(near.rate, 3)});
  });
  canvas.addEventListener("pointerleave", () => (told.textContent = ""));
  canvas.addEventListener("click", (event) => {
    if (!painted || !kept().length) return;
    const x = painted.fromPixel(event.offsetX);
    chooseAt(kept().reduce((best, step, n) => (Math.abs(step - x) < Math.abs(kept()[best] - x) ? n : best), 0));
  });
  on("training step words look", draw);
  new ResizeObserver(() => data.training && draw()).observe(box);
  draw();
}
