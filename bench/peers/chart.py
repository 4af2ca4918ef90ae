"""The chart of ratios to PyTorch, as an SVG that reads in light and dark."""

from __future__ import annotations

import math
import textwrap
from xml.sax.saxutils import escape

RIVAL = "PyTorch SDPA"
WIDTH, LABELS, GAP, MARGIN = 960, 280, 44, 20
BAR, STEP, TOP = 13, 36, 92
LETTER, LINE = 6.6, 18  # room of a letter of the notes, more than the fonts need; between two lines of them
STYLE = """
.card { fill: #ffffff; stroke: #d0d7de } .text { fill: #1f2328 } .quiet { fill: #59636e } .grid { stroke: #d8dee4 }
.one { stroke: #59636e; stroke-width: 1.5 } .f32 { fill: #0072b2 } .bf16 { fill: #e69f00 } .spread { stroke: #1f2328 }
.warn { fill: #b3261e; font-weight: 600 }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117; stroke: #3d444d } .text { fill: #f0f6fc } .quiet { fill: #9198a1 } .grid { stroke: #2a313c }
.one { stroke: #9198a1 } .f32 { fill: #56b4e9 } .bf16 { fill: #e69f00 } .spread { stroke: #f0f6fc }
.warn { fill: #ff8a80 } }
text { font: 12px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif }
.title { font-size: 16px; font-weight: 600 } .head { font-weight: 600 } .end { text-anchor: end }
.middle { text-anchor: middle }
"""


def _text(x, y, content, classes="text"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}">{escape(content)}</text>'


def _line(x1, y1, x2, y2, classes):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{classes}"/>'


class _Panel:
    """One direction: its own axis of ratios, on a logarithmic scale so that twice as fast and twice as slow are as
    long."""

    def __init__(self, left, width, low, high):
        self.left, self.width, self.low, self.high = left, width, math.log2(low), math.log2(high)

    def x(self, ratio):
        return self.left + self.width * (math.log2(ratio) - self.low) / (self.high - self.low)

    def axis(self, title, bottom):
        parts = [_text(self.left + self.width / 2, TOP - 24, title, "text head middle")]
        for power in range(math.ceil(self.low), math.floor(self.high) + 1):
            x = self.x(2.0**power)
            parts.append(_line(x, TOP - 4, x, bottom, "one" if power == 0 else "grid"))
            parts.append(_text(x, TOP - 9, f"{2.0**power:g}×", "quiet middle"))
        return parts

    def bar(self, y, ratio, dtype):
        one, end = self.x(1), self.x(ratio["median"])
        low, high = self.x(ratio["low"]), self.x(ratio["high"])
        left, width = min(one, end), max(abs(end - one), 1)
        middle = y + BAR / 2
        label = f"{ratio['median']:.2f}" if ratio["median"] < 9.95 else f"{ratio['median']:.0f}"
        return [f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" class="{dtype}"/>',
                _line(low, middle, high, middle, "spread"),
                _text(max(one, end, high) + 4, y + BAR - 2.5, label, "text")]


def _range(ratios):
    """Powers of two around all bars, with room for the labels."""
    low = min([r["low"] for r in ratios] + [1.0])
    high = max([r["high"] for r in ratios] + [2.0])
    return 2.0 ** min(math.floor(math.log2(low)), -1), 2.0 ** (math.ceil(math.log2(high)) + 0.4)


def _notes(card):
    """What stands under the bars: lines that fit, each with its classes; the warning first."""
    notes = []
    if card.get("busy"):
        share = card.get("others_cpu_share")
        taken = f": others took {100 * share:.0f} % of the CPUs" if share is not None else ""
        notes.append((f"Made on a BUSY machine{taken}; not fit to be published.", "warn"))
    notes.append((f"{card['cpu']['model']}, {card['threads']} threads, {card['date'][:10]}. Median of interleaved "
                  "rounds, thin line: quartiles. Right of 1× attend is faster.", "quiet"))
    most = int((WIDTH - 2 * MARGIN) / LETTER)
    return [(line, classes) for text, classes in notes for line in textwrap.wrap(text, most)]


def draw(card, rows):
    """The SVG's text; None when no row has a ratio to PyTorch."""
    found = {(r["shape"], r["direction"], r["dtype"]): r["peers"][RIVAL]["ratio"] for r in rows
             if r["peers"].get(RIVAL, {}).get("status") == "ok"}
    if not found:
        return None
    shapes = list(dict.fromkeys(shape for shape, _, _ in found))
    directions = [d for d in ("forward", "backward") if any(key[1] == d for key in found)]
    bottom = TOP + STEP * len(shapes)
    notes = _notes(card)
    height = bottom + 26 + LINE * len(notes)
    low, high = _range(found.values())
    width = (WIDTH - LABELS - MARGIN - GAP * (len(directions) - 1)) / len(directions)
    version = card["versions"].get(RIVAL, "")
    title = f"attend: how many times as fast as PyTorch {version.split('+')[0]}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
             f'height="{height}" role="img" aria-label="{escape(title)}">', f"<style>{STYLE}</style>",
             f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6" class="card"/>',
             _text(MARGIN, 32, title, "text title")]
    for i, (dtype, label) in enumerate((("f32", "float32"), ("bf16", "bfloat16"))):
        x = WIDTH - MARGIN - 170 + 85 * i
        parts += [f'<rect x="{x}" y="22" width="11" height="11" class="{dtype}"/>', _text(x + 17, 32, label)]
    for i, direction in enumerate(directions):
        panel = _Panel(LABELS + i * (width + GAP), width, low, high)
        parts += panel.axis(direction, bottom)
        for row, shape in enumerate(shapes):
            bars = [(dtype, found.get((shape, direction, dtype))) for dtype in ("f32", "bf16")]
            bars = [(dtype, ratio) for dtype, ratio in bars if ratio]
            y = TOP + STEP * row + (STEP - len(bars) * (BAR + 1)) / 2
            for dtype, ratio in bars:
                parts += panel.bar(y, ratio, dtype)
                y += BAR + 1
    for row, shape in enumerate(shapes):
        parts.append(_text(LABELS - 14, TOP + STEP * row + STEP / 2 + 4, shape, "text end"))
    for n, (line, classes) in enumerate(notes):
        parts.append(_text(MARGIN, bottom + 28 + LINE * n, line, classes))
    return "\n".join(parts) + "\n</svg>\n"


def write(path, card, rows):
    svg = draw(card, rows)
    if svg is None:
        raise SystemExit(f"error: no row has a ratio to {RIVAL}, so there is no chart to draw")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, encoding="utf-8")
