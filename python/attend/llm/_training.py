"""Training: stories to learn from, tokenizers, data, whole stages, and a model in training a step at a time."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from .. import _core
from .._errors import FileError, InvalidArgument
from . import _arguments as arguments
from ._documents import Inputs
from ._model import Model
from ._tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]


# --- texts ---

def stories(count: int, *, seed: int = 1, language: str = "both", format: str = "text", relations: bool = False,
            start: int = 0) -> List[Dict[str, Any]]:
    """Generated stories, the same on every machine: a list of dicts as JSONL has them, for prepare().

    language: "en", "zh", or "both" in turn. format: "text" (with questions and answers), "chat" (a talk about it), "pairs"
    (a right and a wrong answer), "exercises" (talks that look back at what was said) or "easy" (the same with little to remember).
    relations: with each, which word belongs to which, as bytes of the text. "nats" is the
    information in a text: no model reaches a lower loss on average.

    >>> llm.stories(1, language="en")[0]["text"]
    """
    first = arguments.number(start, "start", 0, 2**62)
    return [json.loads(_core.story(arguments.number(seed, "seed", 0, 2**64 - 1), language, format, bool(relations), first + n))
            for n in range(arguments.number(count, "count", 0, 2**40))]


def train_tokenizer(texts: Any, out: Any, *, vocabulary: int = 2048, skip_broken: bool = False, replace: bool = False,
                    column: str = "", progress: Optional[Progress] = None) -> Tokenizer:
    """Learns a byte-level BPE with ChatML's markers from texts, writes it into the folder ``out``, and opens it.

    texts, column: as for prepare().

    >>> tok = llm.train_tokenizer(llm.stories(2000), "tokenizer", vocabulary=1024)
    """
    with Inputs(texts) as paths:
        _core.make_tokenizer(paths, arguments.path_bytes(out, "out"), arguments.number(vocabulary, "vocabulary", 260, 2**20),
                             bool(skip_broken), bool(replace), progress, arguments.text(column, "column"))
    return Tokenizer(out)


@dataclass(frozen=True)
class Data:
    """Tokens to train on: what prepare() made."""

    path: str
    kind: str  #: "text", "chat" or "preference"
    documents: int
    tokens: int
    learnt: int  #: tokens that are to be predicted: of a chat, what the assistant says
    vocabulary: int
    skipped: int  #: rows that could not be used and were left out
    nats: float  #: information of the documents, where their maker told it; 0: not known
    rows: int = 0  #: that were read, the skipped ones included
    report: Tuple[str, ...] = ()  #: what was read, and what was skipped and why

    def __fspath__(self) -> str:
        return self.path

    @property
    def entropy(self) -> Optional[float]:
        """The lowest loss that any model can reach on average, in nats a token; None where it is not known."""
        return self.nats / self.tokens if self.nats > 0 else None

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return Tokenizer(self.path)

    def document(self, number: int) -> Tuple[np.ndarray, np.ndarray]:
        """The tokens of a document, int64, and whether each is to be predicted."""
        starts = np.memmap(os.path.join(self.path, "documents.bin"), np.int64, "r")
        n = arguments.number(number, "number", 0, len(starts) - 2)
        stored = np.memmap(os.path.join(self.path, "tokens.bin"), np.int32, "r")[starts[n]:starts[n + 1]].astype(np.int64)
        return np.where(stored < 0, ~stored, stored), stored >= 0

    def batches(self, rows: int, length: int, *, seed: int = 0) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Batches without end, for Learner.step(): tokens and targets, int64 [rows, length].

        Each row begins with a document drawn at random and goes on with others until it is full; what a row has of a document
        is a text by itself only where documents are longer than it. Whole stages, llm.train(), keep documents apart.
        """
        rng = np.random.default_rng(seed)
        rows, length = arguments.number(rows, "rows", 1), arguments.number(length, "length", 1)
        while True:
            tokens, targets = np.zeros((2, rows, length), np.int64)
            for r in range(rows):
                row, learnt = np.empty(0, np.int64), np.empty(0, bool)
                while len(row) <= length:
                    more, told = self.document(int(rng.integers(self.documents)))
                    row, learnt = np.concatenate([row, more]), np.concatenate([learnt, told])
                tokens[r] = row[:length]
                targets[r] = np.where(learnt[1:length + 1], row[1:length + 1], -100)
            yield tokens, targets


def prepare(texts: Any, out: Any, *, tokenizer: Any = None, vocabulary: int = 2048, column: str = "",
            skip_broken: bool = False, replace: bool = False, progress: Optional[Progress] = None) -> Data:
    """Makes tokens to train on, in the folder ``out``.

    texts: files or folders (text, JSON, JSON Lines and CSV, each also as .gz and .zst; Parquet, with pyarrow; of a folder with
        Parquet files only those), or documents: str, or dicts of one of the forms below, as a list, an iterable, a pandas
        DataFrame, a datasets.Dataset or a pyarrow.Table.
    tokenizer: that of a model, a folder or other data; None: one of ``vocabulary`` tokens is learnt from the texts.
    column: the name of a column or field that holds a text to learn; "": a row has one of these forms:
        {"text": ...}; {"messages": [...], "tools": [...]} (OpenAI); {"conversations": [...], "system": ...} (ShareGPT,
        MiniMind); {"instruction": ..., "input": ..., "output": ...} (Alpaca); {"prompt": ..., "completion": ...};
        {"prompt": ..., "chosen": ..., "rejected": ...} (pairs, for DPO).
    skip_broken: leave out rows that cannot be used; ``report`` of the result says how many, and why.

    >>> data = llm.prepare(llm.stories(20000), "data")
    """
    with Inputs(texts) as paths:
        made = _core.make_data(paths, arguments.path_bytes(out, "out"), arguments.number(vocabulary, "vocabulary", 260, 2**20),
                               bool(skip_broken), bool(replace), progress, arguments.text(column, "column"),
                               b"" if tokenizer is None else arguments.path_bytes(tokenizer, "tokenizer"))
    return Data(os.fspath(out), **{**made, "report": tuple(made["report"])})


# --- whole stages ---

@dataclass(frozen=True)
class Step:
    """A step of a run, for its callback."""

    step: int
    steps: int  #: of the whole run
    tokens: int  #: so far
    loss: float
    gradient: float  #: its length before it was shortened
    rate: float
    tokens_per_second: float
    seconds_left: float
    more: Dict[str, float] = field(default_factory=dict)  #: what else the stage tells, such as dpo's margin


def _read(path: str) -> str:
    """The text of a regular file of a run: a pipe in its place would never open."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileError(f"cannot read {path}: it is not a regular file")
        return file.read()


@dataclass(frozen=True)
class Run:
    """A training run that has ended: why, and what it left in its folder."""

    path: str
    end: str  #: "done", "no_better" (patience is over) or "stopped"
    step: int
    tokens: int
    loss: float  #: of the last step
    best: Optional[float]  #: the best validation loss; None: there was no validation
    best_step: int  #: its step; 0: there was none
    held_out: int  #: tokens held out for validation

    def __fspath__(self) -> str:
        return self.path

    def model(self, **options: Any) -> Model:
        """The model with the best validation loss; options as Model() has them."""
        return Model(self.path, **options)

    def metrics(self, kind: str = "step") -> Dict[str, np.ndarray]:
        """The curves as arrays: of every "step", or of every "validation".

        >>> steps, losses = run.metrics()["step"], run.metrics()["loss"]
        """
        text = _read(os.path.join(self.path, "metrics.jsonl"))
        lines = [line for line in map(json.loads, text.splitlines()) if line.pop("kind") == kind]
        names = list(lines[0]) if lines else []
        return {name: np.array([line.get(name, np.nan) for line in lines]) for name in names}

    @property
    def settings(self) -> Dict[str, Any]:
        """Every setting, the defaults too."""
        return json.loads(_read(os.path.join(self.path, "config.json")))


def training_settings(stage: str = "pretrain", shape: str = "") -> Dict[str, Any]:
    """Every setting of a stage with its default; shape: "storyteller", "stories", "minimind2-small", "minimind3", ..."""
    return json.loads(_core.training_defaults(arguments.text(stage, "stage"), arguments.text(shape, "shape")))


def _settings(stage: str, shape: str, given: Mapping[str, Any]) -> str:
    settings = training_settings(stage, shape) if shape else {}
    known = training_settings(stage)
    for name, value in given.items():
        if isinstance(value, (np.integer, np.floating, np.bool_)):
            value = value.item()
        if isinstance(known.get(name), float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        settings[name] = value
    try:
        return json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"training: a setting cannot be used: {error}") from None


def train(stage: str, data: Any, out: Any, *, start: Any = None, shape: str = "", replace: bool = False, watch: bool = False,
          on_step: Optional[Callable[[Step], Optional[bool]]] = None,
          on_validation: Optional[Callable[[int, float], None]] = None,
          on_sample: Optional[Callable[[int, str, str], None]] = None, on_note: Optional[Callable[[str], None]] = None,
          **settings: Any) -> Run:
    """Runs a stage of training to its end: "pretrain", "sft", "lora", "dpo" or "distil".

    data: what prepare() made. out: a folder for the run. start: a model to go on from; all stages but pretrain and distil
    need one. shape: one of the named shapes, for a model from nothing. settings: as training_settings() names them; those not
    given have their defaults. replace: a run that is in ``out`` is removed first, but for data in it; otherwise it is an error.
    watch: the models of many steps are kept for the explorer, with the samples: `attend explore out` in another terminal shows
    the run while it goes on, and afterwards. on_note is told before the first step which tokens are held out for validation, and
    which settings have no effect.

    on_step is called with a Step after each; where it returns False the run is saved and ends. What a callback raises, and
    Ctrl-C, end it so too: resume() goes on, to the same bits.

    >>> data = llm.prepare(llm.stories(20000), "data")
    >>> run = llm.train("pretrain", data, "run", shape="storyteller", batch=4, rate=2e-3, steps=500,
    ...                 on_step=lambda s: print(s.step, s.loss) if s.step % 50 == 0 else None)
    >>> run.model().generate("Once upon a time")
    """
    told = _core.run_training(arguments.text(stage, "stage"), _settings(stage, shape, settings),
                              arguments.path_bytes(data, "data"), b"" if start is None else arguments.path_bytes(start, "start"),
                              arguments.path_bytes(out, "out"), bool(replace), bool(watch), _told(on_step), on_validation,
                              on_sample, on_note)
    return Run(os.fspath(out), **told)


def resume(out: Any, *, on_step: Optional[Callable[[Step], Optional[bool]]] = None,
           on_validation: Optional[Callable[[int, float], None]] = None,
           on_sample: Optional[Callable[[int, str, str], None]] = None, on_note: Optional[Callable[[str], None]] = None) -> Run:
    """Goes on with a run that was stopped, to the same bits as if it had not been."""
    told = _core.resume_training(arguments.path_bytes(out, "out"), _told(on_step), on_validation, on_sample, on_note)
    return Run(os.fspath(out), **told)


def _told(on_step: Optional[Callable[[Step], Optional[bool]]]) -> Optional[Callable[[dict], Optional[bool]]]:
    if on_step is None:
        return None
    return lambda fields: on_step(Step(**{**fields, "more": dict(fields["more"])}))


# --- a step at a time ---

class Learner:
    """A model in training, a step at a time, over NumPy arrays of tokens: for loops of your own.

    >>> import itertools
    >>> learner = llm.Learner(vocabulary=2048, hidden=128, layers=4, heads=4, kv_heads=2)
    >>> for tokens, targets in itertools.islice(data.batches(8, 64), 20):
    ...     loss = learner.step(tokens, targets, rate=1e-3)
    >>> learner.save("model", tokenizer=data)
    >>> llm.Model("model").generate("Once upon a time")

    model: a model to go on from (a name, a path, a Run); None: random weights for ``vocabulary`` tokens.
    shape, settings: as for train(): hidden, layers, heads, compute ("bf16" or "f32"), clip, decay, beta1, beta2, seed, ...

    A row is a text by itself. targets: what each token is to predict, -100 for nothing; None: the next one of its row.
    """

    def __init__(self, model: Any = None, *, vocabulary: Optional[int] = None, shape: str = "", **settings: Any) -> None:
        text = _settings("pretrain", shape, settings)
        if model is None:
            if vocabulary is None:
                raise InvalidArgument("learner: expected a model to go on from, or a vocabulary for one from nothing")
            self._core = _core.new_learner(arguments.number(vocabulary, "vocabulary", 1, 2**31 - 1), text)
        else:
            self._core = _core.learner_of(arguments.path_bytes(model, "model"), text)

    def loss(self, tokens: Any, targets: Any = None) -> float:
        """The mean loss of rows of tokens, in nats; nothing changes."""
        return self._core.loss(*self._rows(tokens, targets))

    def gradients(self, tokens: Any, targets: Any = None) -> Tuple[float, Dict[str, np.ndarray]]:
        """The mean loss, and its gradient by every parameter; update() would step along it."""
        loss = self._core.gradients(*self._rows(tokens, targets))
        return loss, self._core.arrays(True)

    def step(self, tokens: Any, targets: Any = None, *, rate: float) -> float:
        """One step of AdamW along the gradient of the mean loss, which it returns as it was before the step."""
        loss = self._core.gradients(*self._rows(tokens, targets))
        self.update(rate=rate)
        return loss

    def update(self, *, rate: float) -> float:
        """A step of AdamW along the last gradients(), shortened to ``clip``; gives their length before."""
        return self._core.update(arguments.real(rate, "rate"))

    @property
    def parameters(self) -> Dict[str, np.ndarray]:
        """Copies of all parameters by their names, float32."""
        return self._core.arrays(False)

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Writes parameters by their names; those not given stay."""
        for name, value in values.items():
            self._core.set_array(arguments.text(name, "name"), np.ascontiguousarray(value, np.float32))

    @property
    def parameter_count(self) -> int:
        """Numbers in all parameters."""
        return self._core.parameter_count

    @property
    def vocabulary(self) -> int:
        """Tokens it knows."""
        return self._core.vocabulary

    @property
    def steps(self) -> int:
        """Steps of the optimiser so far."""
        return self._core.steps

    def save(self, folder: Any, *, tokenizer: Any) -> str:
        """Writes a folder that Model() and Transformers open, with the tokenizer of a model, a folder or data."""
        self._core.save(arguments.path_bytes(folder, "folder"), arguments.path_bytes(tokenizer, "tokenizer"))
        return os.fspath(folder)

    def __repr__(self) -> str:
        return f"Learner({self.parameter_count:,} parameters, vocabulary {self.vocabulary:,}, {self.steps:,} steps)"

    @staticmethod
    def _rows(tokens: Any, targets: Any) -> Tuple[np.ndarray, np.ndarray]:
        rows = np.asarray(tokens)
        if rows.ndim == 1:
            rows = rows[None]
        if rows.ndim != 2 or rows.dtype.kind not in "iu":
            raise InvalidArgument(f"tokens: got {rows.dtype} of shape {rows.shape}, expected whole numbers [rows, length]")
        rows = np.ascontiguousarray(rows, np.int64)
        if targets is None:
            wanted = np.full_like(rows, -100)
            wanted[:, :-1] = rows[:, 1:]
            return rows, wanted
        wanted = np.asarray(targets)
        wanted = wanted[None] if wanted.ndim == 1 else wanted
        if wanted.shape != rows.shape or wanted.dtype.kind not in "iu":
            raise InvalidArgument(f"targets: got {wanted.dtype} of shape {wanted.shape}, expected whole numbers {rows.shape}")
        return rows, np.ascontiguousarray(wanted, np.int64)
