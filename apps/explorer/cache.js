// The keys and values that a layer keeps: a column a token, a lane a KV head; bright where the chosen query reads.
import {CanvasPainter} from "./painter.js";
import {css, theme, viridis} from "./colours.js";
import {rowOf} from "./weights.js";
import {place} from "./loader.js";
import {data, length, state} from "./store.js";
import {t} from "./texts.js";

// Gives how many tokens the mask puts out of reach of the newest one.
export function drawCache(canvas, width) {
  const {heads, kv_heads} = data.about.model, run = data.run, now = length(), group = heads / kv_heads;
  const lanes = Math.min(kv_heads, 8), left = 118, lane = lanes > 4 ? 12 : 18, height = lanes * (lane + 4) + 4;
  canvas.style.width = `${width}px`, canvas.style.height = `${height}px`;
  const p = new CanvasPainter(canvas, width, height);
  const most = Math.max(8, Math.floor((width - left) / 2)), first = Math.max(0, now - most), count = now - first;
  const cell = Math.min(16, (width - left - 2) / Math.max(count, 1)), gap = cell > 4 ? 1 : 0;
  const {query} = place(), row = query === null ? null : rowOf(query);
  const newest = rowOf(now - 1);
  let outside = 0;
  const mine = Math.floor((state.head ?? 0) / group), from = Math.min(Math.max(0, mine - lanes + 1), kv_heads - lanes);
  for (let n = 0; n < lanes; ++n) {
    const g = from + n, y = 2 + n * (lane + 4), chosen = g === mine;
    p.text(t("cache_sharing", {first: g * group, last: (g + 1) * group - 1}), left - 8, y + lane / 2,
           {size: 10.5, align: "right", colour: theme(chosen ? "ink" : "muted"), weight: chosen ? 600 : 400});
    for (let at = 0; at < count; ++at) {
      const j = first + at, x = left + at * cell, w = Math.max(cell - gap, 0.5);
      const hidden = newest && Number.isNaN(newest.values[j - newest.first]);
      const reads = chosen && row && j >= row.first && j < row.first + row.values.length ? row.values[j - row.first] : NaN;
      const made = j >= run.prompt_tokens, alpha = made ? 0.95 : 0.45;
      if (hidden) {
        p.frame(x + 0.5, y + 0.5, Math.max(w - 1, 0.5), lane - 1, theme("line-strong"), {dash: [2, 2]});
        if (n === 0) outside += 1;
        continue;
      }
      p.rect(x, y, w, lane / 2 - 0.5, theme("k"), {alpha});
      p.rect(x, y + lane / 2 + 0.5, w, lane / 2 - 0.5, theme("v"), {alpha});
      if (reads > 0.002) p.rect(x, y + lane / 2 - 2.5, w, 5, css(viridis, Math.sqrt(reads)), {});
    }
    if (count) p.frame(left + (count - 1) * cell - 1, y - 1, cell + 1 - gap, lane + 2, theme("ink"), {width: 1.5});
  }
  return outside;
}
