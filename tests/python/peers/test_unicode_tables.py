"""The tables of characters are what tools/make_unicode_tables.py makes with the versions they were made with."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")
TOOL = Path(__file__).resolve().parents[3] / "tools" / "make_unicode_tables.py"


def test_tables_are_as_made():
    spec = importlib.util.spec_from_file_location("make_unicode_tables", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    hf, utf8proc = tool.HuggingFace(), tool.Utf8proc()
    if (hf.version, utf8proc.version) != (tool.TOKENIZERS, tool.UTF8PROC_UNICODE):
        pytest.skip(f"tokenizers {hf.version} and Unicode {utf8proc.version} of utf8proc may give other tables")
    made = tool.write_source(tool.make_tables(hf, utf8proc))
    assert tool.without_spaces(made) == tool.without_spaces(tool.FILE.read_text())
