// Curves over two axes, linear or logarithmic, for training runs and labs.
import {count, number} from "./format.js";
import {theme} from "./colours.js";

// Blue, vermilion, green, purple, orange, sky, black-or-white: told apart by colour-blind eyes too.
const palette = ["q", "k", "v", "o", "thread", "dot", "ink"];
export const curveColour = (n) => theme(palette[n % palette.length]);

// Places for numbers along an axis: 1, 2, 5 times a power of ten; whole powers on a logarithmic one.
export function ticks(low, high, log, most) {
  if (!(high > low)) return [low];
  const out = [];
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    for (let n = first - 1; n <= last; ++n)
      for (const part of last - first < 3 ? [1, 2, 5] : [1])
        if (part * 10 ** n >= low * 0.999 && part * 10 ** n <= high * 1.001) out.push(part * 10 ** n);
    const every = Math.ceil(out.length / (2 * most));
    if (out.length >= 2) return out.filter((_, n) => n % every === 0);
    out.length = 0;
  }
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough * 0.999);
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12); ++n) out.push(Number((n * step).toPrecision(12)));
  return out;
}

function span(values, log, padded) {
  let low = Infinity, high = -Infinity;
  for (const x of values)
    if (Number.isFinite(x) && (!log || x > 0)) low = Math.min(low, x), high = Math.max(high, x);
  if (low > high) return log ? [1, 10] : [0, 1];
  if (low === high) return log ? [low / 2, low * 2] : [low - 0.5, high + 0.5];
  if (!padded) return [low, high];
  if (log) return [low / Math.max(1.15, (high / low) ** 0.12), high * 1.1];
  const room = (high - low) * 0.05;
  return [low >= 0 && low < room * 4 ? 0 : low - room, high + room];
}

// So many digits that two neighbours read differently.
function labels(at) {
  const step = at.length > 1 ? Math.min(...at.slice(1).map((x, n) => Math.abs(x - at[n]))) : 0;
  const digits = (x) => (step > 0 && x !== 0 ? Math.max(1, Math.min(8, Math.floor(Math.log10(Math.abs(x))) - Math.floor(Math.log10(step)) + 1)) : 3);
  return at.map((x) => (x >= 1000 && x < 1e6 ? count(x) : number(x, digits(x))));
}

const places = {left: 52, right: 14, top: 20, bottom: 34};

// figure: {across, up, logX, logY, curves: [{name, points, colour, width, alpha, dots}], levels: [{name, value, below}], marks: [x], at: x}. Gives how numbers become pixels and back.
export function paintCurves(painter, figure) {
  const {curves, levels = [], marks = [], at = null, logX = false, logY = false} = figure;
  const {left, right, bottom} = places, {width, height} = painter;
  const named = curves.filter((c) => c.name), top = places.top + legendRows(painter, named, left, width - right) * 16;
  const xs = curves.flatMap((c) => c.points.map((p) => p[0])), ys = curves.flatMap((c) => c.points.map((p) => p[1]));
  const [x0, x1] = span(figure.rangeX ?? xs, logX, false), [y0, y1] = span([...ys, ...levels.map((l) => l.value)], logY, true);
  const part = (x, a, b, log) => (log ? Math.log(x / a) / Math.log(b / a) : (x - a) / (b - a));
  const px = (x) => left + part(x, x0, x1, logX) * (width - left - right);
  const py = (y) => height - bottom - part(y, y0, y1, logY) * (height - top - bottom);
  const grid = theme("line"), muted = theme("muted");
  const ups = ticks(y0, y1, logY, Math.max(2, Math.floor((height - top - bottom) / 34))), upLabels = labels(ups);
  for (const [n, y] of ups.entries()) {
    painter.line(left, py(y), width - right, py(y), grid);
    painter.text(upLabels[n], left - 6, py(y), {size: 10.5, colour: muted, align: "right"});
  }
  const across = ticks(x0, x1, logX, Math.max(2, Math.floor((width - left - right) / 70))), acrossLabels = labels(across);
  for (const [n, x] of across.entries()) {
    painter.line(px(x), height - bottom, px(x), height - bottom + 4, theme("line-strong"));
    painter.text(acrossLabels[n], px(x), height - bottom + 12, {size: 10.5, colour: muted, align: "center"});
  }
  painter.text(figure.across, width - right, height - 7, {size: 10.5, colour: muted, align: "right"});
  for (const x of marks) painter.line(px(x), height - bottom - 5, px(x), height - bottom, theme("o"), {width: 2});
  for (const {value} of levels) painter.line(left, py(value), width - right, py(value), muted, {dash: [5, 4]});
  if (at !== null) painter.line(px(at), top, px(at), height - bottom, theme("o"), {width: 1.5});
  curves.forEach((curve, n) => {
    const colour = curve.colour ?? curveColour(n), good = curve.points.filter(([x, y]) => Number.isFinite(y) && (!logY || y > 0) && (!logX || x > 0));
    painter.path(good.map(([x, y]) => [px(x), py(y)]), colour, {width: curve.width ?? 2, alpha: curve.alpha ?? 1});
    if (curve.dots ?? good.length <= 24) for (const [x, y] of good) painter.circle(px(x), py(y), 2.6, colour);
  });
  for (const {name, value, below = false} of levels) {
    const wide = Math.min(painter.measure(name, 10.5), width - left - right - 8);
    // On the other side of its line where a curve runs through the name.
    const crowded = (y) => curves.some((c) => c.points.some((p) => px(p[0]) > width - right - wide - 8 && Math.abs(py(p[1]) - y) < 10));
    const [one, other] = below ? [8, -8] : [-8, 8], y = py(value) + (crowded(py(value) + one) && !crowded(py(value) + other) ? other : one);
    painter.rect(width - right - wide - 6, y - 7, wide + 4, 14, theme("panel"), {alpha: 0.8});
    painter.text(name, width - right - 4, y, {size: 10.5, colour: muted, align: "right", room: width - left - right - 8});
  }
  painter.text(figure.up, 4, 9, {size: 10.5, colour: muted, room: width - right});
  eachLegend(painter, named, left, width - right, (curve, x, row) => {
    painter.line(x, 26 + row * 16, x + 14, 26 + row * 16, curve.colour ?? curveColour(curves.indexOf(curve)), {width: 3});
    painter.text(curve.name, x + 19, 26 + row * 16, {size: 11, room: width - right - x - 19});
  });
  const fromPixel = (p) => {
    const t = (p - left) / (width - left - right);
    return logX ? x0 * (x1 / x0) ** t : x0 + (x1 - x0) * t;
  };
  return {px, py, fromPixel};
}

// Names beside short lines, in as many rows as they need.
function eachLegend(painter, curves, left, right, show) {
  let x = left, row = 0;
  for (const curve of curves) {
    const wide = painter.measure(curve.name, 11) + 34;
    if (x + wide > right && x > left) x = left, row += 1;
    show(curve, x, row);
    x += wide;
  }
  return curves.length ? row + 1 : 0;
}

function legendRows(painter, curves, left, right) {
  return eachLegend(painter, curves, left, right, () => {});
}
