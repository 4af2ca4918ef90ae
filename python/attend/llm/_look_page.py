"""The explorer's page around one run, in a frame that needs no server and no network."""

from __future__ import annotations

import base64
import html
import json
import pathlib
import re
from typing import TYPE_CHECKING, Dict

from .._errors import InvalidArgument
from . import _look_html

if TYPE_CHECKING:
    from ._look import Look

_PAGE = pathlib.Path(__file__).parent / "explorer"  # the files of apps/explorer, where the package was built with them
_IMPORT = re.compile(r'(from\s+|import\s*\(|import\s+)"\./([\w.]+)"')


def _modules() -> Dict[str, str]:
    """main.js and all that it imports, by name."""
    found: Dict[str, str] = {}
    wanted = ["main.js"]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found[name] = (_PAGE / name).read_text(encoding="utf-8")
        wanted += [other for _, other in _IMPORT.findall(found[name])]
    return found


def document(look: Look, limit: int = 24 << 20) -> str:
    """One HTML document, as the explorer's own export is: its modules as data: addresses, the numbers beside them."""
    path = pathlib.Path(look.model.info.path)
    name = (path.stem if path.suffix in (".gguf", ".pth") else path.name).split(":")[-1] + (f" ({look.switches})" if look.switches else "")
    data = look._core.page_data(name, limit)
    imports = {}
    for module, text in _modules().items():
        code = _IMPORT.sub(r'\1"attend/\2"', text)
        imports[f"attend/{module}"] = "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()
    page = (_PAGE / "index.html").read_text(encoding="utf-8")
    style = (_PAGE / "style.css").read_text(encoding="utf-8")
    page = re.sub(r'<link rel="icon"[^>]*>', "", page)
    page = re.sub(r'<link rel="stylesheet"[^>]*>', lambda _: f"<style>{style}</style>", page)
    scripts = (f'<script type="application/json" id="attend-data">{data.replace("<", chr(92) + "u003c")}</script>\n'
               f'<script type="importmap">{json.dumps({"imports": imports})}</script>\n'
               '<script type="module">import "attend/main.js";</script>')
    return re.sub(r'<script type="module"[^>]*></script>', lambda _: scripts, page)


def frame(look: Look, height: int = 860) -> str:
    """What a notebook shows: the page, or, of a run too long for one, pictures of its heads."""
    if not _PAGE.is_dir():
        return _look_html.page(look)
    try:
        page = document(look)
    except InvalidArgument:  # too many weights: pooled pictures are what is left
        return _look_html.page(look)
    return (f'<iframe title="attend explorer" style="width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 8px" '
            f'srcdoc="{html.escape(page, quote=True)}"></iframe>')
