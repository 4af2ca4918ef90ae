// Paints a plot: heat-map and tiles, dots, lines; axes and legend with it, the same on the screen and in files.
import {css, dark, differences, inkOn, theme, uncurve, viridis} from "./colours.js";
import {number, percent} from "./format.js";
import {state} from "./store.js";
import {t} from "./texts.js";

export const warm = "#e08e0b";

// About how wide a word is: wide characters (Chinese, emoji) count twice.
function widthOf(text) {
  let width = 0;
  for (const c of text) width += c.codePointAt(0) > 0x2e7f ? 13 : 7;
  return width;
}

// Where everything lies, in a surface of this size. Rows go down and columns across, unless transposed.
export function geometry(plot, width, height) {
  const across = state.transpose ? plot.rows : plot.columns, down = state.transpose ? plot.columns : plot.rows;
  const words = plot.exact && Math.max(across, down) <= 130;
  // Room for the longest words, within bounds.
  const most = (count, name) => (words ? Math.max(...Array.from({length: count}, (_, n) => widthOf(name(n)))) : 0);
  const names = [most(plot.rows, plot.rowName), most(plot.columns, plot.columnName)];
  const [longest, above] = state.transpose ? names.reverse() : names;
  const left = (words ? Math.min(92, longest + 14) : 58) + 20, top = (words && !plot.sheared ? Math.min(72, above * 0.87 + 16) : 26) + 18;
  const right = words ? Math.min(40, above * 0.5) : 14, bottom = width < 440 ? 62 : 52;
  const first = plot.without && !plot.sheared ? 1 : 0;  // that column is drawn apart or not at all
  const columns = plot.columns - first;
  const nAcross = state.transpose ? plot.rows : columns, nDown = state.transpose ? columns : plot.rows;
  const fit = (apart, more) => Math.max(0.05, Math.min((width - left - right - (state.transpose ? 0 : apart)) / (nAcross + (state.transpose ? 0 : more)),
                                                       (height - top - bottom - (state.transpose ? apart : 0)) / (nDown + (state.transpose ? more : 0)), 54));
  // The first token's column, set apart: as wide as the others, and never narrower than 12.
  const gap = 10, narrow = 12, even = plot.gutter ? fit(gap, 1) : 0;
  const cell = !plot.gutter ? fit(0, 0) : even >= narrow ? even : fit(gap + narrow, 0);
  const apart = plot.gutter ? Math.max(cell, narrow) + gap : 0;
  const sideways = state.transpose ? 0 : apart, downwards = state.transpose ? apart : 0;
  const g = {width, height, left, top, cell, words, longest, first, columns, nAcross, nDown, apart,
             x: left + sideways, y: top + downwards, w: cell * nAcross, h: cell * nDown, transpose: state.transpose};
  g.end = g.y + g.h;
  // A plot that is smaller than its room stands in the middle of it.
  const spare = Math.max(0, width - right - g.x - g.w) / 2;
  g.x += spare, g.left += spare;
  g.at = (r, c) => g.transpose ? [g.x + r * cell, g.y + (c - first) * cell] : [g.x + (c - first) * cell, g.y + r * cell];
  g.gutterAt = (r) => g.transpose ? [g.x + r * cell, top] : [g.left, g.y + r * cell];
  g.gutterSize = Math.max(cell, narrow);
  // The cell under a point: {r, c}, c = 0 in the gutter; null outside.
  g.under = (px, py) => {
    let u = (px - g.x) / cell, v = (py - g.y) / cell;
    if (g.transpose) [u, v] = [v, u];
    const r = Math.floor(v), gutterPlace = g.transpose ? py - top : px - g.left;
    if (r < 0 || r >= plot.rows) return null;
    if (plot.gutter && gutterPlace >= 0 && gutterPlace <= g.gutterSize) return {r, c: 0, gutter: true};
    const c = Math.floor(u) + first;
    return c < first || c >= plot.columns ? null : {r, c};
  };
  return g;
}

function colourTable(plot) {
  return plot.diff ? differences() : viridis;
}

// All cells as one picture, kept for as long as the same is drawn; what is masked stays clear.
const pictures = new WeakMap();
function picture(plot, g) {
  const key = `${state.colour} ${state.range} ${g.transpose} ${plot.diff} ${plot.what.most} ${dark()} ${g.nAcross}`;
  const kept = pictures.get(plot.cells);
  if (kept?.key === key) return kept.image;
  const image = new OffscreenCanvas(g.nAcross, g.nDown);
  image.getContext("2d").putImageData(pixels(plot, g), 0, 0);
  pictures.set(plot.cells, {key, image});
  return image;
}

function pixels(plot, g) {
  const image = new ImageData(g.nAcross, g.nDown), out = new Uint32Array(image.data.buffer), {cells, rows, columns} = plot;
  const table = colourTable(plot), packed = Uint32Array.from({length: 256}, (_, n) => (255 << 24 | table[n * 3 + 2] << 16 | table[n * 3 + 1] << 8 | table[n * 3]) >>> 0);
  const root = state.colour === "sqrt" && !plot.diff;
  for (let r = 0; r < rows; ++r) {
    const most = state.range === "row" ? plot.what.rowMost[r] : plot.what.most, step = most > 0 ? 1 / most : 0;
    for (let c = g.first; c < columns; ++c) {
      const value = cells[r * columns + c];
      if (value !== value) continue;  // NaN: masked, or left out
      const t_ = root ? Math.min(1, Math.sqrt(value * step)) : plot.tone(r, value);
      out[g.transpose ? (c - g.first) * g.nAcross + r : r * g.nAcross + c - g.first] = packed[Math.round(t_ * 255)];
    }
  }
  return image;
}

function short(value) {
  const size = Math.abs(value);
  if (size < 0.005) return "0";
  if (size >= 0.995) return number(value, 2);
  return `${value < 0 ? "−" : ""}${size.toFixed(2).slice(1)}`;
}

function paintHeat(p, plot, g) {
  p.hatch(g.x, g.y, g.w, g.h, theme("hatch"));
  if (g.cell < 7) p.image(picture(plot, g), g.x, g.y, g.w, g.h);
  else
    for (let r = 0; r < plot.rows; ++r)
      for (let c = g.first; c < plot.columns; ++c) {
        const value = plot.cells[r * plot.columns + c];
        if (!Number.isNaN(value)) paintTile(p, plot, g, r, value, ...g.at(r, c), g.cell, g.cell);
      }
  clearFirst(p, plot, g);
}

function paintTile(p, plot, g, r, value, x, y, w, h) {
  const gap = g.cell >= 12 ? 1 : g.cell >= 7 ? 0.5 : 0, colours = colourTable(plot), tone = plot.tone(r, value);
  p.rect(x, y, w - gap, h - gap, css(colours, tone), {radius: g.cell >= 16 ? 2 : 0});
  if (g.cell >= 28) p.text(short(value), x + w / 2, y + h / 2, {size: g.cell >= 40 ? 12 : 10.5, align: "center", colour: inkOn(colours, tone)});
}

// The area of a dot is the weight: the largest fills its cell.
function paintDots(p, plot, g) {
  p.hatch(g.x, g.y, g.w, g.h, theme("hatch"));
  for (let r = 0; r < plot.rows; ++r)
    for (let c = g.first; c < plot.columns; ++c) {
      const value = plot.cells[r * plot.columns + c];
      if (Number.isNaN(value)) continue;
      const [x, y] = g.at(r, c);
      p.rect(x, y, g.cell - 0.5, g.cell - 0.5, theme("panel"));
      paintDot(p, plot, g, r, value, x + g.cell / 2, y + g.cell / 2);
    }
  clearFirst(p, plot, g);
}

function paintDot(p, plot, g, r, value, x, y) {
  const most = state.range === "row" ? plot.what.rowMost[r] : plot.what.most;
  const radius = most > 0 ? Math.sqrt(Math.min(1, Math.abs(value) / most)) * dotRadius(g) : 0;
  if (radius > 0.3) p.circle(x, y, radius, plot.diff ? css(colourTable(plot), value < 0 ? 0.12 : 0.88) : theme("dot"));
}

function dotRadius(g) {
  return Math.max(0.5, g.cell / 2 - 1);
}

// By distance the first token's cells lie among the others. Where they are drawn apart or left out their places are empty:
// they are not masked.
function clearFirst(p, plot, g) {
  if (!plot.without || !plot.sheared) return;
  const gap = g.cell >= 12 ? 1 : 0;
  for (let r = 0; r < plot.rows; ++r) {
    const c = plot.first(r);
    if (c < plot.columns) p.rect(...g.at(r, c), g.cell - gap, g.cell - gap, theme("panel"));
  }
}

// The first token's column, on the scale of the others.
function paintGutter(p, plot, g, view) {
  if (!plot.gutter) return;
  for (let r = 0; r < plot.rows; ++r) {
    const value = plot.gutter[r], [x, y] = g.gutterAt(r);
    if (Number.isNaN(value)) continue;
    const w = g.transpose ? g.cell : g.gutterSize, h = g.transpose ? g.gutterSize : g.cell;
    if (view === "dots") p.rect(x, y, w - 0.5, h - 0.5, theme("panel")), paintDot(p, plot, g, r, value, x + w / 2, y + h / 2);
    else paintTile(p, plot, g, r, value, x, y, w, h);
  }
  const [x, y] = g.gutterAt(0);
  if (g.transpose) p.text(t("first_token"), g.x - 8, y + g.gutterSize / 2, {size: 11, align: "right", colour: theme("muted")});
  else p.text(t("first_token"), x + g.gutterSize / 2 - 2, y - 6, {size: 11, angle: -Math.PI / 3, colour: theme("muted")});
}

function paintLines(p, plot, g, chosen) {
  const half = Math.min(130, g.width / 5), x0 = g.width / 2 - half, x1 = g.width / 2 + half;
  const top = 34, room = g.height - top - (g.width < 440 ? 62 : 40), rows = Math.max(plot.rows, plot.columns), step = Math.min(24, room / rows);
  const y = (n) => top + (n + 0.5) * step, size = Math.max(6, Math.min(13, step - 2));
  const wide = [plot.rowTitle, plot.columnTitle].map((title) => p.measure(title, 11.5)), apart = wide[0] + wide[1] + 16 > g.width;
  p.text(plot.rowTitle, Math.max(x0 - 10, wide[0] + 2), apart ? 8 : 14, {size: 11.5, align: "right", colour: theme("q-ink")});
  p.text(plot.columnTitle, Math.min(x1 + 10, g.width - wide[1] - 2), apart ? 23 : 14, {size: 11.5, colour: theme("k-ink")});
  for (const front of [false, true])
    for (let r = 0; r < plot.rows; ++r) {
      if ((r === chosen.r) !== front) continue;
      for (let c = 0; c < plot.columns; ++c) {
        const value = plot.weight(r, c), size_ = Math.abs(value);
        if (!(size_ > 0.004)) continue;
        const t_ = Math.sqrt(Math.min(1, size_ / Math.max(plot.what.most, 1e-9)));
        const colour = plot.diff ? css(differences(), value < 0 ? 0.1 : 0.9) : front ? warm : theme("thread");
        p.curve(x0, y(r), x1, y(c), colour, {width: 0.5 + 3.5 * t_, alpha: front ? 0.25 + 0.75 * t_ : 0.05 + 0.4 * t_});
      }
    }
  for (let r = 0; r < plot.rows; ++r)
    p.text(plot.rowName(r), x0 - 10, y(r), {size, align: "right", room: x0 - 16, weight: r === chosen.r ? 700 : 400,
                                            colour: theme(r === chosen.r ? "q-ink" : "ink")});
  for (let c = 0; c < plot.columns; ++c)
    p.text(plot.columnName(c), x1 + 10, y(c), {size, room: x0 - 16, weight: c === chosen.c ? 700 : 400,
                                               colour: theme(c === chosen.c ? "k-ink" : "ink")});
  g.end = top + rows * step;
  g.under = (px, py) => {
    const n = Math.floor((py - top) / step);
    if (px < g.width / 2) return n >= 0 && n < plot.rows ? {r: n, c: null} : null;
    return n >= 0 && n < plot.columns ? {r: null, c: n} : null;
  };
}

function paintAxes(p, plot, g, chosen) {
  const acrossIsKeys = !g.transpose, ink = theme("ink"), muted = theme("muted");
  const across = {n: g.nAcross, name: (n) => acrossIsKeys ? plot.columnName(n + g.first) : plot.rowName(n), chosen: acrossIsKeys ? chosen.c - g.first : chosen.r,
                  title: acrossIsKeys ? plot.columnTitle : plot.rowTitle, colour: theme(acrossIsKeys ? "k-ink" : "q-ink")};
  const down = {n: g.nDown, name: (n) => acrossIsKeys ? plot.rowName(n) : plot.columnName(n + g.first), chosen: acrossIsKeys ? chosen.r : chosen.c - g.first,
                title: acrossIsKeys ? plot.rowTitle : plot.columnTitle, colour: theme(acrossIsKeys ? "q-ink" : "k-ink")};
  const size = Math.max(8, Math.min(12.5, g.cell - 1)), every = (n) => Math.max(1, Math.ceil((g.words ? 9 : 46) / g.cell / 1) * 1 || 1, g.words ? 1 : Math.ceil(n / 8));
  // Makes room for the chosen one's name.
  const near = (n, chosen, room) => chosen >= 0 && Math.abs(n - chosen) * g.cell < (!g.words ? room : g.cell < 9 ? 10 : 0);
  for (let n = 0; n < across.n; ++n) {
    const is = n === across.chosen;
    if (!is && (n % every(across.n) || near(n, across.chosen, 36))) continue;
    const x = g.x + (n + 0.5) * g.cell, style = {size, colour: is ? across.colour : g.words ? ink : muted, weight: is ? 700 : 400};
    if (g.words && !plot.sheared) p.text(across.name(n), x - 2, g.y - g.apartTop - 6, {...style, angle: -Math.PI / 3, room: 70});
    else p.text(across.name(n), x, g.y - g.apartTop - 10, {...style, size: g.words ? size : 10.5, align: "center"});
  }
  for (let n = 0; n < down.n; ++n) {
    const is = n === down.chosen;
    if (!is && (n % every(down.n) || near(n, down.chosen, 12))) continue;
    p.text(down.name(n), g.x - g.apartLeft - 8, g.y + (n + 0.5) * g.cell, {size: g.words ? size : 10.5, align: "right", room: g.words ? 86 : 50,
      colour: is ? down.colour : g.words ? ink : muted, weight: is ? 700 : 400});
  }
  p.text(`${across.title} →`, g.x + g.w / 2, 9, {size: 11.5, align: "center", colour: across.colour});
  p.text(`← ${down.title}`, g.x - g.apartLeft - (g.words ? Math.min(92, g.longest + 14) + 10 : 62), g.y + g.h / 2, {size: 11.5, align: "center", angle: -Math.PI / 2, colour: down.colour});
}

function paintChoice(p, plot, g, chosen) {
  const {r, c} = chosen, ink = theme("ink");
  const row = r >= 0 && r < plot.rows, column = c >= g.first && c < plot.columns;
  if (g.cell >= 2) {
    if (row) {
      const [x, y] = g.at(r, g.first);
      if (g.transpose) p.frame(x - 0.5, y - 0.5, g.cell, g.h, theme("q"), {width: 1.5});
      else p.frame(x - 0.5, y - 0.5, g.w, g.cell, theme("q"), {width: 1.5});
    }
    if (column && !plot.sheared) {
      const [x, y] = g.at(0, c);
      if (g.transpose) p.frame(x - 0.5, y - 0.5, g.w, g.cell, theme("k"), {width: 1.5});
      else p.frame(x - 0.5, y - 0.5, g.cell, g.h, theme("k"), {width: 1.5});
    }
  }
  if (row && (column || (c === 0 && plot.gutter))) {
    const [x, y] = column ? g.at(r, c) : g.gutterAt(r), size = Math.max(g.cell, 6), w = column ? size : g.transpose ? g.cell : g.gutterSize;
    const h = column ? size : g.transpose ? g.gutterSize : g.cell, off = column ? (size - g.cell) / 2 : 0;
    p.frame(x - off - 1, y - off - 1, w + 1, h + 1, theme("panel"), {width: 4, radius: 2});
    p.frame(x - off - 1, y - off - 1, w + 1, h + 1, ink, {width: 2, radius: 2});
  }
}

// What a number is called beside a legend.
function legendValue(value) {
  return value === 0 ? "0" : state.measure === "value" ? number(value, 2) : percent(value).replace("<0.01 %", "0").replace(" %", "%");
}

const legendSize = 10.5, legendRoom = 13;

// What the end of the scale is.
const scales = {row: "legend_scale_row", head: "legend_scale_head", global: "legend_scale_global"};
const scaleText = (range) => t(scales[range]);

function legendText(p, text) {
  return {width: p.measure(text, legendSize), paint: (x, y) => p.text(text, x, y, {size: legendSize, colour: theme("muted")})};
}

function legendMasked(p) {
  const text = t("legend_masked");
  return {width: 18 + p.measure(text, legendSize), paint: (x, y) => {
    p.frame(x, y - 6, 12, 11, theme("line-strong"));
    p.hatch(x, y - 6, 12, 11, theme("hatch"));
    p.text(text, x + 18, y, {size: legendSize, colour: theme("muted")});
  }};
}

// Below the plot, in one line or, where that is too narrow, in two.
function paintLegend(p, plot, g, view) {
  const items = view === "dots" || view === "lines" ? legendSizes(p, plot, g, view) : legendColours(p, plot, g);
  if (view !== "lines") items.push(legendMasked(p));
  const gap = 16, all = items.reduce((sum, item) => sum + item.width + gap, -gap), room = g.width - 24;
  const left = view === "lines" ? g.width / 2 - all / 2 : g.left;
  let x = Math.max(12, Math.min(left, g.width - 12 - all)), y = Math.min(g.end + 32, g.height - (all <= room ? 18 : 37));
  const start = x;
  for (const item of items) {
    if (x > start && x + item.width > g.width - 8) x = start, y += 27;
    item.paint(x, y);
    x += item.width + gap;
  }
}

// Dots and lines have no colours to read: some of them, as large as in the plot, with their weights; of dots those for which
// there is room, and what fills a cell.
function legendSizes(p, plot, g, view) {
  const row = state.range === "row" && view === "dots", most = row && !plot.diff ? 1 : plot.what.most;
  const all = plot.diff ? [-1, -0.25, 0.25, 1] : g.width < 420 ? [0.02, 0.25, 1] : [0.02, 0.1, 0.25, 0.5, 1];
  const full = dotRadius(g), shares = all.filter((share) => view === "lines" || Math.sqrt(Math.abs(share)) * full <= legendRoom);
  const largest = Math.max(0, ...shares.map((share) => Math.sqrt(Math.abs(share)) * full)), wide = (view === "dots" ? 2 * largest : 22) + 5;
  const samples = shares.map((share) => {
    const size = Math.sqrt(Math.abs(share)), text = legendValue(share * most);
    const colour = plot.diff ? css(differences(), share < 0 ? 0.12 : 0.88) : theme(view === "dots" ? "dot" : "thread");
    return {width: wide + p.measure(text, legendSize), paint: (x, y) => {
      if (view === "dots") p.circle(x + largest, y, Math.max(0.3, size * full), colour);
      else p.line(x, y, x + 22, y, colour, {width: 0.5 + 3.5 * size, alpha: 0.05 + 0.4 * size + 0.4});
      p.text(text, x + wide, y, {size: legendSize, colour: theme("muted")});
    }};
  });
  const scale = scaleText(row || state.range !== "row" ? state.range : "head");
  return [...samples, legendText(p, `${t(`measure_${state.measure}`)} · ${t(view === "dots" ? "legend_area" : "legend_width")}`),
          legendText(p, view === "dots" && !row ? `${scale} · ${t("legend_full_cell", {value: legendValue(most)})}` : scale)];
}

function legendColours(p, plot, g) {
  const width = g.width < 420 ? 100 : 150, steps = 60, colours = colourTable(plot), most = state.range === "row" && !plot.diff ? 1 : plot.what.most;
  const value = (at) => (plot.diff ? Math.sign(at - 0.5) * uncurve(state.colour, Math.abs(at - 0.5) * 2) : uncurve(state.colour, at)) * most;
  const bar = {width, paint: (x, y) => {
    for (let n = 0; n < steps; ++n) p.rect(x + n * width / steps, y - 5, width / steps + 0.5, 9, css(colours, n / (steps - 1)));
    for (const [at, align] of [[0, "left"], [0.5, "center"], [1, "right"]])
      p.text(legendValue(value(at)), x + at * width, y + 12, {size: legendSize, colour: theme("muted"), align});
  }};
  return [bar, legendText(p, [t(`measure_${state.measure}`), t(`colour_${state.colour}`), scaleText(state.range)].join(" · "))];
}

// Everything; gives the geometry, for the pointer.
export function paint(p, plot, view, chosen) {
  const g = geometry(plot, p.width, p.height);
  g.apartTop = g.transpose ? g.apart : 0, g.apartLeft = g.transpose ? 0 : g.apart;
  if (view === "lines") {
    paintLines(p, plot, g, chosen);
  } else {
    if (view === "dots") paintDots(p, plot, g);
    else paintHeat(p, plot, g);
    paintGutter(p, plot, g, view);
    paintAxes(p, plot, g, chosen);
    paintChoice(p, plot, g, chosen);
  }
  paintLegend(p, plot, g, view);
  return g;
}
