"""Training data as pandas, pyarrow and datasets write and hold it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import data_files  # noqa: E402
from test_llm_data_formats import check, tokenizer  # noqa: E402, F401

from attend import llm  # noqa: E402

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")


def rows_of(case, folder):
    """Rows of one form that datasets can hold (every row has the same features), and what they say."""
    name, write, expected = case()
    write(folder / name)
    return datasets.load_dataset("json", data_files=str(folder / name), split="train", cache_dir=str(folder / "cache")), expected


CASES = [data_files.text_lines, data_files.alpaca, data_files.alpaca_with_history, data_files.sharegpt, data_files.minimind3,
         lambda: data_files.pairs("explicit"), lambda: data_files.pairs("explicit_text")]


@pytest.mark.parametrize("case", CASES)
def test_what_datasets_holds_and_writes(case, tokenizer, tmp_path):  # noqa: F811
    rows, expected = rows_of(case, tmp_path)
    (tmp_path / "parquet").mkdir()
    rows.to_parquet(str(tmp_path / "parquet/rows.parquet"))
    rows.to_json(str(tmp_path / "rows.jsonl"))
    rows.to_json(str(tmp_path / "rows.json"), lines=False)
    given = {"dataset": rows, "stream": rows.to_iterable_dataset(), "table": rows.data.table, "frame": rows.to_pandas(),
             "parquet": tmp_path / "parquet/rows.parquet", "folder": tmp_path / "parquet", "lines": tmp_path / "rows.jsonl",
             "array": tmp_path / "rows.json"}
    for name, texts in given.items():
        check(llm.prepare(texts, tmp_path / f"data-{name}", tokenizer=tokenizer), expected)


@pytest.mark.parametrize("case", [data_files.text_lines, data_files.alpaca])
def test_csv_of_datasets_and_pandas(case, tokenizer, tmp_path):  # noqa: F811
    rows, expected = rows_of(case, tmp_path)
    rows = rows.select_columns([name for name in rows.column_names if name != "meta"])
    rows.to_csv(str(tmp_path / "datasets.csv"))
    rows.to_pandas().to_csv(tmp_path / "pandas.csv.gz", index=True)
    for name in ("datasets.csv", "pandas.csv.gz"):
        check(llm.prepare(tmp_path / name, tmp_path / f"data-{name}", tokenizer=tokenizer), expected)
