"""The explorer's page as one HTML document around some numbers: no server, no network."""

from __future__ import annotations

import base64
import html
import json
import pathlib
import re
from typing import Dict

from ._errors import InvalidArgument

FILES = pathlib.Path(__file__).parent / "llm" / "explorer"  # those of apps/explorer, where the package was built with them
_IMPORT = re.compile(r'(from\s+|import\s*\(|import\s+)"\./([\w.]+)"')


def _modules() -> Dict[str, str]:
    """main.js and all that it imports, by name."""
    found: Dict[str, str] = {}
    wanted = ["main.js"]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        found[name] = (FILES / name).read_text(encoding="utf-8")
        wanted += [other for _, other in _IMPORT.findall(found[name])]
    return found


def document(data: str) -> str:
    """The page, as the explorer's own export is: its modules as data: addresses, the numbers (JSON) beside them."""
    if not FILES.is_dir():
        raise InvalidArgument("html: this build of the package has no explorer in it; one with attend.llm has")
    imports = {}
    for module, text in _modules().items():
        code = _IMPORT.sub(r'\1"attend/\2"', text)
        imports[f"attend/{module}"] = "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()
    page = (FILES / "index.html").read_text(encoding="utf-8")
    style = (FILES / "style.css").read_text(encoding="utf-8")
    page = re.sub(r'<link rel="icon"[^>]*>', "", page)
    page = re.sub(r'<link rel="stylesheet"[^>]*>', lambda _: f"<style>{style}</style>", page)
    scripts = (f'<script type="application/json" id="attend-data">{data.replace("<", chr(92) + "u003c")}</script>\n'
               f'<script type="importmap">{json.dumps({"imports": imports})}</script>\n'
               '<script type="module">import "attend/main.js";</script>')
    return re.sub(r'<script type="module"[^>]*></script>', lambda _: scripts, page)


def frame(page: str, height: int = 860) -> str:
    """The page inside a notebook."""
    return (f'<iframe title="attend explorer" style="width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 8px" '
            f'srcdoc="{html.escape(page, quote=True)}"></iframe>')
