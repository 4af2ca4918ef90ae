#!/usr/bin/env python3
"""Writes a model of a few thousand parameters with a tokenizer of one letter a token, as tests/cli uses it.

usage: golden_model.py <new folder>
"""

import json
import pathlib
import shutil
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "cli"))
import model_test  # noqa: E402


def main():
    folder = pathlib.Path(sys.argv[1])
    shutil.copytree(model_test.GOLDEN / "llama", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": None, "eos_token_id": 63}))
    (folder / "tokenizer.json").write_text(json.dumps(model_test.tokenizer("<|im_end|>")))


if __name__ == "__main__":
    main()
