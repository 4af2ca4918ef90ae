"""Published models on their real weights: the table of docs/guide/models.md, made again.

Takes minutes and gigabytes: runs if ATTEND_REAL_WEIGHTS=1, for the models that are pulled. llama.cpp's column needs
llama-cpp-python, Transformers' the package gguf: real_weights.py says how they are found."""

import os
from pathlib import Path

import pytest
import real_weights

GUIDE = (Path(__file__).resolve().parents[3] / "docs/guide/models.md").read_text()

needs_weights = pytest.mark.skipif(os.environ.get("ATTEND_REAL_WEIGHTS") != "1",
                                   reason="ATTEND_REAL_WEIGHTS=1 runs it, with the models that are pulled")


def test_the_text_is_the_one_of_the_table():
    import hashlib

    assert hashlib.sha256(real_weights.TEXT.encode()).hexdigest() == real_weights.TEXT_SHA256


@needs_weights
@pytest.mark.parametrize("name", real_weights.GENERATORS + real_weights.ENCODERS)
def test_the_table_again(name):
    if name not in real_weights.attend("completion", "models").split():
        pytest.skip(f"attend pull {name}")
    result = real_weights.check(name)
    assert real_weights.faults(result) == []
    assert f"| {name} | `{result['file']}` | `{result['sha256'][:16]}…` |" in GUIDE
