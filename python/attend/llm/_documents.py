"""Training data given as Python objects: texts, tables of pandas, datasets and pyarrow, Parquet files. They reach the engine as
lines of JSON in temporary files."""

from __future__ import annotations

import datetime
import json
import math
import os
import shutil
import tempfile
from typing import Any, Iterable, Iterator, List, Mapping, Optional

import numpy as np

from .._errors import FileError, InvalidArgument
from . import _arguments as arguments

_BATCH = 1024  # rows of a table that are Python objects at once
_EXPECTED = ("a path, a list of paths, or documents: str, or dicts as JSON Lines hold them, in a list, an iterable, a pandas "
             "DataFrame, a datasets.Dataset or a pyarrow.Table")


class Inputs:
    """Paths that the engine reads, for as long as the with block lasts."""

    def __init__(self, texts: Any) -> None:
        self._folder: Optional[str] = None
        self.paths: List[bytes] = []
        if isinstance(texts, (str, os.PathLike)):
            if not os.path.exists(texts):
                raise InvalidArgument(f"texts: there is no file or folder {os.fspath(texts)!r}; documents are given as a list")
            texts = [texts]
        try:
            if _are_paths(texts):
                for n, one in enumerate(texts):
                    self._add_path(arguments.path_bytes(one, f"texts[{n}]"))
            else:
                self._add_rows(_rows(texts), "documents")
        except BaseException:
            self.__exit__()
            raise

    def _add_path(self, path: bytes) -> None:
        parquet = _parquet_files(os.fsdecode(path))
        for file in parquet:
            self._add_rows(_parquet_rows(file), os.path.basename(file))
        if not parquet:
            self.paths.append(path)

    def _add_rows(self, rows: Iterable[Any], name: str) -> None:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="attend-texts-")
        folder = os.path.join(self._folder, str(len(self.paths)))
        os.mkdir(folder)
        path = os.path.join(folder, name + ".jsonl")
        count = 0
        with open(path, "w", encoding="utf-8") as lines:
            for count, row in enumerate(rows, 1):
                lines.write(_line(row, f"texts[{count - 1}]"))
        if count == 0:
            raise InvalidArgument(f"texts: there are no rows in {name}")
        self.paths.append(os.fsencode(path))

    def __enter__(self) -> List[bytes]:
        return self.paths

    def __exit__(self, *_: Any) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _are_paths(texts: Any) -> bool:
    return isinstance(texts, (list, tuple)) and len(texts) > 0 and all(
        isinstance(one, os.PathLike) or (isinstance(one, str) and os.path.exists(one)) for one in texts)


def _parquet_files(path: str) -> List[str]:
    """The file, or all those of a folder, by name."""
    if not os.path.isdir(path):
        return [path] if path.endswith(".parquet") else []
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names
                  if name.endswith(".parquet"))


def _parquet_rows(path: str) -> Iterator[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InvalidArgument(f"{path}: Parquet is read by the package pyarrow, which is not installed: pip install pyarrow") \
            from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise FileError(f"{path}: is not a Parquet file that pyarrow can read: {error}") from None


def _rows(texts: Any) -> Iterator[Any]:
    """The rows of a table or the elements of an iterable."""
    if isinstance(texts, Mapping):
        names = ", ".join(repr(name) for name in list(texts)[:8])
        raise TypeError(f"texts: is a mapping with the keys {names}, expected one of its splits, such as texts[...], or a list")
    if hasattr(texts, "iloc") and hasattr(texts, "columns"):  # pandas
        batches = (texts.iloc[n:n + _BATCH].to_dict("records") for n in range(0, len(texts), _BATCH))
        return (row for batch in batches for row in batch)
    if hasattr(texts, "to_batches"):  # pyarrow
        return (row for batch in texts.to_batches(max_chunksize=_BATCH) for row in batch.to_pylist())
    try:
        return iter(texts)
    except TypeError:
        raise TypeError(f"texts: is of type {type(texts).__name__}, expected {_EXPECTED}") from None


def _line(row: Any, name: str) -> str:
    if isinstance(row, str):
        row = {"text": arguments.text(row, name)}
    elif not isinstance(row, Mapping):
        raise TypeError(f"{name} is of type {type(row).__name__}, expected a str or a dict")
    return json.dumps(_plain(row, name, 64), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any, name: str, levels: int) -> Any:
    """A value as JSON has it: arrays are lists, what is missing is null."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)
    if levels == 0:
        raise InvalidArgument(f"{name} is nested too deeply, expected at most 64 levels")
    if isinstance(value, Mapping):
        return {str(key): _plain(one, f"{name}[{key!r}]", levels - 1) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, name, levels - 1) for one in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return _plain(value.tolist(), name, levels - 1)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta)):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{name} is binary data, expected text: leave the column out") from None
    raise TypeError(f"{name} is of type {type(value).__name__}, which JSON has no form for")
