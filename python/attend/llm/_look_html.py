"""A look as HTML that stands alone: the sheet of all heads, one head's map, the next tokens."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import TYPE_CHECKING, Any, List, Tuple

import numpy as np

if TYPE_CHECKING:
    from ._look import HeadType, Look

# Viridis at nine even places: grows evenly brighter, and reads the same to colour-blind eyes.
_VIRIDIS = np.array([(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129),
                     (92, 200, 99), (170, 220, 50), (253, 231, 37)], np.float64)
_SHEET_CELLS = 24
_TOKENS_IN_CELLS = 48  # up to so many every weight is a cell with its words


def _colours(weights: np.ndarray) -> np.ndarray:
    """Square roots of weights as colours: a sink does not flatten the rest."""
    place = np.sqrt(np.clip(weights, 0, 1)) * (len(_VIRIDIS) - 1)
    low = np.clip(place.astype(int), 0, len(_VIRIDIS) - 2)
    part = (place - low)[..., None]
    return np.rint(_VIRIDIS[low] * (1 - part) + _VIRIDIS[low + 1] * part).astype(np.uint8)


def _png(pixels: np.ndarray) -> str:
    """Pixels [rows, cols, 4] as the address of a picture that is part of the page."""
    rows, cols = pixels.shape[:2]
    raw = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    data = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", cols, rows, 8, 6, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _shares(look: Look, layer: int, head: int, cells: int) -> np.ndarray:
    """The map as means over the queries of a row of cells: a row adds up to 1."""
    mass = look.map(layer, head, cells=cells)
    edges = np.arange(mass.shape[0] + 1) * len(look) // mass.shape[0]
    return mass / np.diff(edges)[:, None]


def _picture(look: Look, layer: int, head: int, cells: int) -> str:
    shares = _shares(look, layer, head, cells)
    hidden = np.triu(np.ones(shares.shape, bool), 1) & (shares == 0)
    alpha = np.where(hidden, 0, 255).astype(np.uint8)[..., None]
    return _png(np.concatenate([_colours(shares), alpha], axis=2))


def _badge(kind: Any) -> str:
    return kind.kind if kind.kind == "mixed" or kind.score is None else f"{kind.kind} {kind.score:.2f}"


def _title(one: HeadType) -> str:
    return html.escape(f"layer {one.layer}, head {one.head}: {_badge(one.kind)} ({one.kind.rule}); runner-up "
                       f"{_badge(one.runner_up)}; {one.left_out} of {one.rows + one.left_out} rows left out; the same kind on "
                       f"{list(one.on_texts.values()).count(one.kind.kind)} of {len(one.on_texts)} fixed texts", quote=True)


def _sheet(look: Look) -> str:
    head_row = "".join(f"<th>{head}</th>" for head in range(look.heads))
    rows = [f"<tr><th></th>{head_row}</tr>"]
    for layer in range(look.layers):
        cells = []
        for one in look.types[layer * look.heads:(layer + 1) * look.heads]:
            image = f'<img src="{_picture(look, layer, one.head, _SHEET_CELLS)}" alt="{_title(one)}">'
            cells.append(f'<td title="{_title(one)}">{image}<br>{_badge(one.kind)}</td>')
        rows.append(f"<tr><th>{layer}</th>{''.join(cells)}</tr>")
    return f'<table class="sheet">{"".join(rows)}</table>'


def telling_head(types: List[HeadType]) -> Tuple[int, int]:
    """The head whose kind is the clearest, those that look far first."""
    far = {"induction": 2, "duplicate": 2, "long-range": 2, "mixed": 0, "sink-resting": 0, "diffuse": 0}

    def clear(one: HeadType) -> Tuple[int, float]:
        return far.get(one.kind.kind, 1), (one.kind.score or 0) / (one.kind.threshold or 1)

    best = max(types, key=clear)
    return best.layer, best.head


def _map(look: Look, layer: int, head: int) -> str:
    if len(look) > _TOKENS_IN_CELLS:
        return f'<img class="map" src="{_picture(look, layer, head, 512)}" alt="map of head {layer}.{head}">'
    words = [html.escape(word.replace(" ", "\u2423").replace("\n", "\\n")) for word in look.tokens]
    weights = look.weights(layer, head)
    colours = _colours(weights)
    top = "".join(f'<th class="key"><span>{word}</span></th>' for word in words)
    rows = [f"<tr><th></th>{top}</tr>"]
    for i, word in enumerate(words):
        cells = []
        for j, key in enumerate(words):
            if j > i and weights[i, j] == 0:
                cells.append("<td></td>")
                continue
            red, green, blue = colours[i, j]
            cells.append(f'<td style="background:rgb({red},{green},{blue})" '
                         f'title="{word} looks at {key}: {weights[i, j]:.4f}"></td>')
        rows.append(f"<tr><th>{word}</th>{''.join(cells)}</tr>")
    return f'<table class="map">{"".join(rows)}</table>'


_STYLE = """<style>
.attend-look { font-size: 12px; color: inherit; }
.attend-look table { border-collapse: separate; border-spacing: 3px; }
.attend-look td, .attend-look th { padding: 0; text-align: center; background: none; font-weight: normal; font-size: 12px; }
.attend-look .sheet img { width: 72px; height: 72px; image-rendering: pixelated; border: 1px solid #8888; }
.attend-look .sheet td { font-size: 10px; }
.attend-look table.map { border-spacing: 1px; }
.attend-look table.map td { width: 14px; height: 14px; min-width: 14px; }
.attend-look table.map th { text-align: right; white-space: pre; padding-right: 4px; }
.attend-look table.map th.key { vertical-align: bottom; padding: 0; }
.attend-look table.map th.key span { writing-mode: vertical-rl; transform: rotate(180deg); }
.attend-look img.map { width: 512px; image-rendering: pixelated; border: 1px solid #8888; }
.attend-look details { margin: 4px 0; }
</style>"""


def page(look: Look) -> str:
    """What a notebook shows of a look."""
    parts = [_STYLE, f"<p>{html.escape(repr(look))}</p>"]
    layer, head = telling_head(look.types)
    one = look.types[layer * look.heads + head]
    parts.append(f"<details open><summary>layer {layer}, head {head}: {_badge(one.kind)}. Queries from the top, keys from "
                 f"the left; bright is much, on a square-root scale</summary>{_map(look, layer, head)}</details>")
    if look.model.info.generates:
        rows = "".join(f"<tr><td>{100 * t.probability:.2f} %</td><th>{html.escape(t.text)}</th></tr>"
                       for t in look.next_tokens(-1, 5))
        parts.append(f"<details open><summary>next token</summary><table>{rows}</table></details>")
    opened = " open" if look.layers * look.heads <= 100 else ""
    parts.append(f"<details{opened}><summary>all heads: rows are layers</summary>{_sheet(look)}</details>")
    return f'<div class="attend-look">{"".join(parts)}</div>'
