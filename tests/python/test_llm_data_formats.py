"""Every accepted format of training data: 1,000 rows of each, read and skipped add up, and every text and role is the file's."""

import gzip
import json
import types

import numpy as np
import pytest

import data_files
from attend import InvalidArgument, llm

ROWS = data_files.ROWS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return llm.prepare(llm.stories(20), tmp_path_factory.mktemp("tokenizer") / "data", vocabulary=300)


def messages_of(data, number):
    """A chat as its tokens have it: (role, text, learned); of learned messages what is learned is the text."""
    tokenizer = data.tokenizer
    start, end = tokenizer.find("<|im_start|>"), tokenizer.find("<|im_end|>")
    tokens, learned = data.document(number)
    begins = np.flatnonzero(tokens == start).tolist()
    assert begins[0] == 0
    found = []
    for first, last in zip(begins, [*begins[1:], len(tokens)]):
        close = first + int(np.flatnonzero(tokens[first:last] == end)[0])
        role, text = tokenizer.decode(tokens[first + 1:close]).split("\n", 1)
        mask = learned[first:last]
        if mask.any():
            assert tokenizer.decode(tokens[first:close][mask[:close - first]]) == text and mask[close - first:].all()
        found.append((role, text, bool(mask.any())))
    return found


def same(got, expected):
    if len(got) != len(expected):
        return False
    for (role, text, learned), (right_role, right_text, right_learned) in zip(got, expected):
        parts = right_text if isinstance(right_text, list) else None
        right = all(part in text for part in parts) and text.startswith(parts[0]) if parts else text == right_text
        if not right or (role, learned) != (right_role, right_learned):
            return False
    return True


def check(data, expected):
    used = [one for one in expected if one is not None]
    assert data.rows == len(expected) == ROWS and data.skipped == len(expected) - len(used), data.report
    documents = [one for pair in used for one in pair] if data.kind == "preference" else used
    assert data.documents == len(documents)
    for n, right in enumerate(documents):
        if right[0][0] == "":
            tokens, learned = data.document(n)
            assert learned.all() and data.tokenizer.decode(tokens[:-1]) == right[0][1]
        else:
            assert same(messages_of(data, n), right), (n, messages_of(data, n), right)


@pytest.mark.parametrize("case", data_files.CASES, ids=lambda case: case.__name__)
def test_a_thousand_rows(case, tokenizer, tmp_path):
    name, write, expected = case()
    write(tmp_path / name)
    check(llm.prepare(tmp_path / name, tmp_path / "data", tokenizer=tokenizer, skip_broken=True), expected)
    if None in expected:
        with pytest.raises(llm.FileError, match=rf"{name}:\d+: "):
            llm.prepare(tmp_path / name, tmp_path / "refused", tokenizer=tokenizer)


@pytest.mark.parametrize("form", data_files.PAIRS)
def test_a_thousand_pairs(form, tokenizer, tmp_path):
    name, write, expected = data_files.pairs(form)
    write(tmp_path / name)
    data = llm.prepare(tmp_path / name, tmp_path / "data", tokenizer=tokenizer, skip_broken=True)
    assert data.kind == "preference"
    check(data, expected)


def test_compressed_files_and_iterables_give_the_same(tokenizer, tmp_path):
    name, write, expected = data_files.minimind2()
    write(tmp_path / name)
    packed = tmp_path / (name + ".gz")
    packed.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    plain = llm.prepare(tmp_path / name, tmp_path / "a", tokenizer=tokenizer, skip_broken=True)
    check(llm.prepare(packed, tmp_path / "b", tokenizer=tokenizer, skip_broken=True), expected)
    rows = (json.loads(line) for line in (tmp_path / name).read_text().split("\n") if line.startswith("{\""))
    given = llm.prepare(rows, tmp_path / "c", tokenizer=tokenizer)
    for other in ("b", "c"):
        assert (tmp_path / other / "tokens.bin").read_bytes() == (tmp_path / "a/tokens.bin").read_bytes()
    assert (plain.skipped, given.skipped) == (20, 0)
    assert plain.report[0] == "read 1,000 records: 980 messages, 20 skipped"
    assert plain.report[1].startswith("skipped 20: ") and f"(first: {tmp_path / name}:8)" in plain.report[1]


class Table:
    """What this package asks of a pandas DataFrame."""

    def __init__(self, rows):
        self.rows, self.columns = rows, list(rows[0])

    def __len__(self):
        return len(self.rows)

    @property
    def iloc(self):
        return Slices(self.rows)


class Slices:
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, part):
        return types.SimpleNamespace(to_dict=lambda kind: self.rows[part] if kind == "records" else None)


def test_tables_of_python(tokenizer, tmp_path):
    rows = [{"text": f"number {n}", "score": np.float32(n), "list": np.arange(2), "missing": float("nan")} for n in range(3000)]
    tables = [Table(rows), types.SimpleNamespace(to_batches=lambda max_chunksize: [types.SimpleNamespace(to_pylist=lambda: rows)])]
    for n, one in enumerate([*tables, iter(rows), tuple(rows)]):
        data = llm.prepare(one, tmp_path / str(n), tokenizer=tokenizer)
        assert data.documents == data.rows == 3000
        assert data.tokenizer.decode(data.document(2999)[0][:-1]) == "number 2999"
    named = llm.prepare([{"body": "b"}], tmp_path / "column", tokenizer=tokenizer, column="body")
    assert named.documents == 1
    for bad, words in (({"train": [], "test": []}, "mapping with the keys 'train', 'test'"), ([], "there are no rows"),
                       ([{"text": "a"}, 7], r"texts\[1\] is of type int"), ([{"text": b"\xff"}], "binary data")):
        with pytest.raises((TypeError, InvalidArgument), match=words):
            llm.prepare(bad, tmp_path / "bad", tokenizer=tokenizer)


def test_parquet_without_pyarrow_names_it(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15")
    with pytest.raises(InvalidArgument, match="pip install pyarrow"):
        llm.prepare(tmp_path / "a.parquet", tmp_path / "x", tokenizer=tokenizer)
