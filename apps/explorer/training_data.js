// Follows a training run: asks for what was added since the last answer, and keeps the curves.
import {data, put} from "./store.js";

const pause = 1000, pauseAtRest = 5000;

function nothing() {
  return {file: "", next: 0, lines: []};
}

// Adds an answer's lines. A file that is another one now (a run that went on from its checkpoint) is read anew.
function grow(kept, piece) {
  const anew = piece.from !== kept.next || (kept.file !== "" && piece.file !== kept.file);
  if (anew && piece.from !== 0) return nothing();
  return {file: piece.file, next: piece.next, lines: anew ? piece.lines : kept.lines.concat(piece.lines)};
}

export async function followTraining(source, failed) {
  let metrics = nothing(), samples = nothing(), shown = "";
  const ask = async () => {
    for (let more = true; more; ) {
      const answer = await source.training(metrics.next, samples.next);
      metrics = grow(metrics, answer.metrics), samples = grow(samples, answer.samples);
      more = answer.metrics.more;
      const now = JSON.stringify([answer.running, answer.kept, metrics.next, samples.next, answer.about]);
      if (now === shown || more) continue;
      shown = now;
      put({training: {name: answer.name, running: answer.running, about: answer.about, kept: answer.kept,
                      steps: metrics.lines.filter((line) => line.kind === "step"),
                      validations: metrics.lines.filter((line) => line.kind === "validation"), samples: samples.lines}});
    }
  };
  await ask();
  (async () => {
    for (;;) {
      await new Promise((done) => setTimeout(done, data.training?.running ? pause : pauseAtRest));
      if (data.lost) continue;
      try {
        await ask();
      } catch (error) {
        failed(error);
      }
    }
  })();
}

// Means of equal parts of a line, so that a line of any length is drawn with at most `most` points.
export function thinned(lines, name, most) {
  const width = Math.max(1, Math.ceil(lines.length / most)), out = [];
  for (let n = 0; n < lines.length; n += width) {
    const part = lines.slice(n, n + width).filter((line) => Number.isFinite(line[name]));
    if (part.length) out.push([part.at(-1).step, part.reduce((sum, line) => sum + line[name], 0) / part.length]);
  }
  return out;
}

// Each point with the mean of those around it.
export function smoothed(lines, name, most) {
  const reach = Math.max(1, Math.round(lines.length / 40)), sums = [0];
  for (const line of lines) sums.push(sums.at(-1) + (line[name] ?? 0));
  const mean = lines.map((line, n) => {
    const a = Math.max(0, n - reach), b = Math.min(lines.length, n + reach + 1);
    return {step: line.step, [name]: (sums[b] - sums[a]) / (b - a)};
  });
  return thinned(mean, name, most);
}

// Tokens a second over about `reach` steps.
export function speeds(lines, most, reach = 10) {
  const width = Math.max(reach, Math.ceil(lines.length / most)), out = [];
  for (let n = width; n < lines.length; n += Math.max(1, Math.floor(width / 2))) {
    const a = lines[n - width], b = lines[n];
    if (b.seconds > a.seconds && b.tokens > a.tokens) out.push([b.step, (b.tokens - a.tokens) / (b.seconds - a.seconds)]);
  }
  return out;
}
