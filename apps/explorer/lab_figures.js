// The blocks of a report: paragraphs, tables, maps and curves.
import {CanvasPainter} from "./painter.js";
import {paintCurves} from "./chart.js";
import {css, differences, inkOn, theme, viridis} from "./colours.js";
import {el, number} from "./format.js";
import {say} from "./labs.js";
import {t} from "./texts.js";

function table({title, columns, rows}) {
  return el("figure", {class: "lab-table"}, el("figcaption", {}, say(title)), el("div", {class: "table-scroll", tabindex: "0", role: "region", "aria-label": say(title)},
    el("table", {}, el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", {scope: "col"}, say(c))))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, n) => el(n ? "td" : "th", n ? {} : {scope: "row"}, say(cell)))))))));
}

// A canvas that paints itself once it has a width, and again when that changes.
function drawing(height, label, paint) {
  const canvas = el("canvas", {role: "img", "aria-label": label, style: `height: ${height}px`});
  canvas.paint = () => canvas.clientWidth && paint(new CanvasPainter(canvas, canvas.clientWidth, height));
  new ResizeObserver(canvas.paint).observe(canvas);
  return canvas;
}

function curves(block) {
  const names = block.curves.map((c) => say(c.name));
  const said = block.curves.map((c, n) => {
    const [first, last] = [c.points[0], c.points.at(-1)];
    return first ? t("labs_curve_said", {name: names[n], x0: number(first[0]), y0: number(first[1]), x1: number(last[0]), y1: number(last[1])}) : names[n];
  }).join(" ");
  const canvas = drawing(300, `${say(block.title)}. ${said}`, (painter) => paintCurves(painter, {
    across: say(block.across), up: say(block.up), logX: block.log_x, logY: block.log_y,
    curves: block.curves.map((c, n) => ({name: names[n], points: c.points}))}));
  return el("figure", {}, el("figcaption", {}, say(block.title)), canvas);
}

const cellSide = 52, narrowest = 38, topRoom = 62;

function map(block) {
  const {values, digits} = block, rows = values.length, columns = values[0]?.length ?? 0;
  const seen = values.flat().filter((x) => x !== null && Number.isFinite(x)), low = Math.min(...seen, 0), high = Math.max(...seen);
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1, signed = low < 0;
  const usual = digits ? cellSide : Math.max(4, Math.min(28, Math.floor(560 / Math.max(columns, 1)))), tall = digits ? 30 : usual;
  const least = digits ? narrowest : usual;
  const label = (list, n) => (list.length ? say(list[n]) : String(n));
  const height = topRoom + rows * tall + 8;
  const said = `${say(block.title)}. ${t("labs_map_said", {rows, columns, low: number(Math.min(...seen)), high: number(high)})}`;
  const canvas = drawing(height, said, (painter) => {
    const left = Math.min(150, 30 + Math.max(...values.map((_, r) => painter.measure(label(block.row_labels, r), 12))));
    const side = Math.max(least, Math.min(usual, Math.floor((painter.width - left - 4) / columns)));
    const colours = signed ? differences() : viridis, at = (x) => (signed ? 0.5 + x / most / 2 : Math.sqrt(Math.max(0, x) / most));
    painter.text(`${say(block.columns_are)} →`, left, 10, {size: 11, colour: theme("k-ink")});
    painter.text(`↓ ${say(block.rows_are)}`, left, 26, {size: 11, colour: theme("q-ink")});
    const every = Math.ceil(columns * side < 40 * columns ? 40 / side : 1);
    for (let c = 0; c < columns; c += every) painter.text(label(block.column_labels, c), left + (c + 0.5) * side, topRoom - 12, {size: 12, align: "center", room: side * every - 4});
    for (let r = 0; r < rows; ++r) {
      if (tall >= 12 || r % 4 === 0) painter.text(label(block.row_labels, r), left - 8, topRoom + (r + 0.5) * tall, {size: 12, align: "right", room: left - 12});
      for (let c = 0; c < columns; ++c) {
        const x = values[r][c], px = left + c * side, py = topRoom + r * tall;
        if (x === null) {
          painter.hatch(px, py, side - 1, tall - 1, theme("line-strong"));
          continue;
        }
        painter.rect(px, py, side - 1, tall - 1, css(colours, at(x)));
        if (digits) painter.text(number(Number(x.toFixed(2)), 3), px + side / 2, py + tall / 2, {size: 11.5, align: "center", colour: inkOn(colours, at(x))});
      }
    }
  });
  return el("figure", {}, el("figcaption", {}, say(block.title)), el("div", {class: "map-scroll", tabindex: "0", role: "region", "aria-label": say(block.title)},
    el("div", {style: `min-width: ${(digits ? 60 : 160) + columns * least}px`}, canvas)));
}

export function figure(block) {
  const kinds = {table, curves, map, text: (b) => el("p", {class: "lab-text"}, say(b.text))};
  return kinds[block.kind](block);
}
