"""Training from Python: what the program does, with arrays and callbacks."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import tempfile

import numpy as np
import pytest

from attend import InvalidArgument, llm

TINY = dict(hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8, feed_forward=24, length=32, batch=4, held_out=0.1,
            validate_tokens=128, validate_every=4, sample_tokens=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return llm.prepare(llm.stories(24), tmp_path_factory.mktemp("train") / "data", vocabulary=300)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return llm.train("pretrain", data, tmp_path_factory.mktemp("train") / "run", steps=8, **TINY)


# --- texts ---

def test_stories_are_those_of_the_program():
    both = llm.stories(4)
    assert both[0]["text"].startswith("Amy was a clever princess.") and "。" in both[1]["text"] and both[0]["nats"] > 10
    assert llm.stories(2, start=2) == both[2:]
    assert llm.stories(1, language="zh", seed=7) != llm.stories(1, language="zh", seed=8)
    chat = llm.stories(1, format="chat")[0]["conversations"]
    assert [m["role"] for m in chat[:2]] == ["user", "assistant"]
    assert set(llm.stories(1, format="pairs")[0]) == {"chosen", "rejected"}
    relation = llm.stories(1, relations=True)[0]["relations"][0]
    assert set(relation) == {"kind", "from", "to"}
    with pytest.raises(InvalidArgument, match="language is \"fr\""):
        llm.stories(1, language="fr")


def test_prepares_texts_files_and_chats(tmp_path, data):
    assert (data.kind, data.documents, data.vocabulary) == ("text", 24, 300) and data.learnt == data.tokens
    assert data.entropy == pytest.approx(sum(s["nats"] for s in llm.stories(24)) / data.tokens)
    text = llm.stories(1)[0]["text"]
    tokens, learnt = data.document(0)
    assert data.tokenizer.decode(tokens[:-1]) == text and learnt.all()
    (tmp_path / "a.txt").write_text("A text in a file. " * 40)
    from_file = llm.prepare(tmp_path / "a.txt", tmp_path / "f", tokenizer=data)
    assert from_file.documents == 1 and from_file.tokenizer.encode("abc") == data.tokenizer.encode("abc")
    chats = llm.prepare(llm.stories(6, format="chat"), tmp_path / "c", tokenizer=data)
    assert chats.kind == "chat" and 0 < chats.learnt < chats.tokens and chats.entropy is None
    with pytest.raises(InvalidArgument, match="no file or folder"):
        llm.prepare("no such file", tmp_path / "x")
    with pytest.raises(TypeError):
        llm.prepare(3, tmp_path / "x")
    with pytest.raises(llm.FileError):
        llm.prepare([{"nothing": 1}], tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_text_that_is_not_utf8_is_refused(tmp_path):
    text = "从前有一座山，山里有一座庙。\n"
    for encoding, likely in (("gb18030", "GB18030"), ("utf-16", "UTF-16LE"), ("utf-16-be", "UTF-16BE")):
        path = tmp_path / f"{encoding}.txt"
        path.write_bytes(text.encode(encoding))
        for call in (lambda: llm.prepare(path, tmp_path / "bad", vocabulary=300),
                     lambda: llm.train_tokenizer(path, tmp_path / "bad", vocabulary=300)):
            with pytest.raises(llm.FileError, match=rf"{encoding}.txt:1: byte \d .*it looks like {likely}; convert it: iconv -f {likely} "):
                call()
    assert not (tmp_path / "bad").exists()
    (tmp_path / "windows.txt").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    windows, unix = (llm.prepare(given, tmp_path / name, vocabulary=300)
                     for name, given in (("w", tmp_path / "windows.txt"), ("u", [text.strip()])))
    assert (windows.tokens, windows.learnt, windows.documents) == (unix.tokens, unix.learnt, 1)
    assert (tmp_path / "w/tokens.bin").read_bytes() == (tmp_path / "u/tokens.bin").read_bytes()


def test_documents_that_cannot_be_written_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for bad, error in ((["fine", 3], TypeError), (["fine", "\ud800"], ValueError), ([{"text": object()}], TypeError)):
        with pytest.raises(error):
            llm.prepare(bad, tmp_path / "out", vocabulary=300)
        assert os.listdir(tmp_path) == []


def test_trains_a_tokenizer(tmp_path):
    stages = set()
    tokenizer = llm.train_tokenizer(["low lower lowest"] * 9, tmp_path / "t", vocabulary=270,
                                    progress=lambda stage, done, all: stages.add(stage))
    assert tokenizer.decode(tokenizer.encode("lower")) == "lower" and tokenizer.find("low") is not None
    assert "counting words" in stages


# --- whole stages ---

def test_a_run_and_what_it_leaves(run, data):
    assert (run.end, run.step) == ("done", 8) and run.settings["hidden"] == 16
    steps, held_out = run.metrics(), run.metrics("validation")
    assert steps["step"].tolist() == list(range(1, 9)) and steps["loss"][-1] == pytest.approx(run.loss)
    assert held_out["loss"].min() == pytest.approx(run.best)
    model = run.model()
    assert model.info.vocabulary == 300 and isinstance(model.generate("Once", max_tokens=4), str)
    with pytest.raises(InvalidArgument, match="holds a run already"):
        llm.train("pretrain", data, run, steps=1, **TINY)


def test_without_validation_there_is_no_best_loss(data, tmp_path):
    notes = []
    run = llm.train("pretrain", data, tmp_path / "run", on_note=notes.append, **{**TINY, "steps": 2, "held_out": 0.0})
    assert (run.best, run.best_step, run.held_out) == (None, 0, 0)
    assert any("held out none" in note for note in notes)


def test_what_is_held_out_is_told(data, tmp_path):
    notes = []
    run = llm.train("pretrain", data, tmp_path / "run", on_note=notes.append, **{**TINY, "steps": 1, "held_out": 0.2})
    assert run.held_out == pytest.approx(0.2 * data.tokens, rel=0.11)
    assert any(note.startswith(f"held out {run.held_out:,} of {data.tokens:,} tokens") for note in notes)


def test_a_run_is_replaced_when_asked(data, tmp_path):
    short = {**TINY, "steps": 2}
    whole = llm.train("pretrain", data, tmp_path / "whole", **short)
    llm.train("pretrain", data, tmp_path / "run", **{**short, "seed": 5, "steps": 3})
    with pytest.raises(InvalidArgument, match="holds a run already"):
        llm.train("pretrain", data, tmp_path / "run", **short)
    again = llm.train("pretrain", data, tmp_path / "run", replace=True, **short)
    assert again.metrics()["loss"].tolist() == whole.metrics()["loss"].tolist()
    with pytest.raises(InvalidArgument, match="is in the run that is to be replaced"):
        llm.train("sft", data, again, start=tmp_path / "run", replace=True, **short)


def test_the_shape_is_the_models(run, data, tmp_path):
    notes = []
    further = llm.train("pretrain", data, tmp_path / "further", start=run, on_note=notes.append, steps=1, length=32, hidden=64)
    assert further.settings["hidden"] == 16 and any("ignored: hidden" in note for note in notes)
    with pytest.raises(InvalidArgument, match="layers cannot be set: the model keeps its shape"):
        llm.Learner(run, hidden=16, layers=3)


def test_every_stage(run, data, tmp_path):
    chats = llm.prepare(llm.stories(12, format="chat"), tmp_path / "c", tokenizer=data)
    pairs = llm.prepare(llm.stories(12, format="pairs"), tmp_path / "p", tokenizer=data)
    short = {**TINY, "steps": 2}
    sft = llm.train("sft", chats, tmp_path / "sft", start=run, **short)
    assert llm.train("lora", chats, tmp_path / "lora", start=run, lora_rank=2, **short).end == "done"
    notes, steps = [], []
    llm.train("dpo", pairs, tmp_path / "dpo", start=sft, on_step=lambda s: steps.append(s), on_note=notes.append, **short)
    assert steps[0].loss == pytest.approx(np.log(2), abs=1e-6) and "margin" in steps[0].more
    assert "pairs are longer than length" in notes[0]
    assert llm.train("distil", data, tmp_path / "distil", teacher=str(tmp_path / "sft"), **short).end == "done"


def test_a_watched_run_keeps_its_steps(tmp_path, data, run):
    """For `attend explore RUN`: the models of its steps, its samples, what it is; the same losses as without, and resume() goes on so."""
    where = tmp_path / "run"
    kept = lambda: sorted(int(one.name) for one in (where / "watch").iterdir() if one.is_dir())  # noqa: E731
    assert llm.train("pretrain", data, where, steps=8, watch=True, on_step=lambda s: s.step < 3, **TINY).end == "stopped"
    assert kept() == [0, 1, 2, 3]
    watched = llm.resume(where)
    assert kept() == list(range(9)), "of eight steps all"
    assert np.array_equal(watched.metrics()["loss"], run.metrics()["loss"])
    about = json.loads((where / "watch/about.json").read_text())
    assert about["stage"] == "pretrain" and about["steps"] == 8 and about["text"]
    assert llm.Model(where / "watch/3").info.layers == watched.model().info.layers


def test_a_pipe_in_the_place_of_metrics_holds_nobody_up(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    moved = dataclasses.replace(run, path=str(folder))
    assert len(moved.metrics()["loss"]) == 8 and moved.settings["hidden"] == 16
    for name, read in (("metrics.jsonl", lambda: moved.metrics()), ("config.json", lambda: moved.settings),
                       ("metrics.jsonl", lambda: llm.resume(folder))):
        before = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(llm.FileError, match=f"{name}: it is not a regular file"):
            read()
        (folder / name).unlink()
        (folder / name).write_bytes(before)


def test_metrics_are_what_the_callbacks_were_told(data, tmp_path):
    steps, validations = [], []
    run = llm.train("pretrain", data, tmp_path / "run", steps=6, on_step=steps.append,
                    on_validation=lambda step, loss: validations.append((step, loss)), **{**TINY, "validate_every": 3})
    told = run.metrics()
    assert told["step"].tolist() == [s.step for s in steps] == [1, 2, 3, 4, 5, 6]
    for name in ("loss", "gradient", "rate", "tokens"):
        assert told[name].tolist() == [getattr(s, name) for s in steps]
    found = run.metrics("validation")
    assert list(zip(found["step"].tolist(), found["loss"].tolist())) == validations and [n for n, _ in validations] == [3, 6]
    assert run.metrics("nothing") == {}
    assert (run.step, run.tokens, run.loss) == (6, 6 * 4 * 32, steps[-1].loss)
    assert (run.best_step, run.best) == min(validations, key=lambda pair: pair[1])


def test_callbacks_and_going_on(data, run, tmp_path):
    told = []
    stopped = llm.train("pretrain", data, tmp_path / "run", steps=8, on_step=lambda s: s.step < 3, **TINY)
    assert (stopped.end, stopped.step) == ("stopped", 3)
    done = llm.resume(tmp_path / "run", on_step=told.append)
    assert [s.step for s in told] == [4, 5, 6, 7, 8] and done.end == "done"
    assert done.metrics()["loss"].tolist() == run.metrics()["loss"].tolist()  # to the bit


def test_what_a_callback_raises_ends_the_run_with_a_checkpoint(data, run, tmp_path):
    def fail(step):
        if step.step == 2:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        llm.train("pretrain", data, tmp_path / "run", steps=8, on_step=fail, **TINY)

    def interrupt(step):
        if step.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    # Where the tests run in the background of a shell, Python starts with the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        llm.resume(tmp_path / "run", on_step=interrupt)
    assert llm.resume(tmp_path / "run").metrics()["loss"].tolist() == run.metrics()["loss"].tolist()


def test_settings_are_checked(data, tmp_path):
    assert llm.training_settings("sft")["rate"] == 1e-4
    assert llm.training_settings(shape="storyteller")["hidden"] == 192
    for settings, words in ((dict(hiden=3), "hidden"), (dict(heads=3, kv_heads=2), "kv_heads"), (dict(rate="x"), "rate")):
        with pytest.raises(InvalidArgument, match=words):
            llm.train("pretrain", data, tmp_path / "run", **settings)
    with pytest.raises(InvalidArgument, match="pretrain"):
        llm.train("pretrian", data, tmp_path / "run")
    with pytest.raises(InvalidArgument, match="shape"):
        llm.train("pretrain", data, tmp_path / "run", shape="nonsuch")


# --- a step at a time ---

def small(**more):
    return llm.Learner(vocabulary=300, **{**TINY, "compute": "f32", **more})


def test_learns_a_batch_by_heart(data):
    learner = small(seed=3)
    tokens, targets = next(data.batches(2, 24))
    first = learner.loss(tokens, targets)
    assert first == pytest.approx(np.log(300), abs=0.3)
    losses = [learner.step(tokens, targets, rate=1e-2) for _ in range(60)]
    assert losses[0] == pytest.approx(first, abs=1e-5) and losses[-1] < 0.5 * first
    assert learner.steps == 60 and "60 steps" in repr(learner)


def test_gradients_are_those_of_the_loss(data):
    learner = small()
    tokens, targets = next(data.batches(2, 12, seed=5))
    loss, gradients = learner.gradients(tokens, targets)
    assert loss == pytest.approx(learner.loss(tokens, targets), abs=1e-6)
    before = learner.parameters
    assert set(gradients) == set(before) and all(gradients[n].shape == before[n].shape for n in before)
    assert sum(v.size for v in before.values()) == learner.parameter_count
    direction = {n: g / np.sqrt(sum((v.astype(float) ** 2).sum() for v in gradients.values())) for n, g in gradients.items()}
    sides = []
    for side in (1, -1):
        learner.set_parameters({n: before[n] + side * 1e-2 * direction[n] for n in before})
        sides.append(learner.loss(tokens, targets))
    length = np.sqrt(sum((v.astype(float) ** 2).sum() for v in gradients.values()))
    assert (sides[0] - sides[1]) / 2e-2 == pytest.approx(length, rel=2e-2)


def test_goes_on_from_a_model_and_is_opened_by_model(run, data, tmp_path):
    learner = llm.Learner(run, compute="f32")
    tokens = np.array(data.tokenizer.encode("Once upon a time, there was a girl."))
    logits = run.model().logits(tokens)
    exact = logits.astype(float) - np.log(np.exp(logits.astype(float)).sum(axis=1, keepdims=True))
    expected = -exact[np.arange(len(tokens) - 1), tokens[1:]].mean()
    assert learner.loss(tokens) == pytest.approx(expected, abs=1e-4)
    for batch in itertools.islice(data.batches(2, 16), 3):
        learner.step(*batch, rate=1e-3)
    learner.save(tmp_path / "model", tokenizer=data)
    again = llm.Learner(tmp_path / "model", compute="f32")
    assert again.loss(tokens) == pytest.approx(learner.loss(tokens), abs=1e-6)
    assert isinstance(llm.Model(tmp_path / "model").generate("Once", max_tokens=3), str)
    assert json.loads((tmp_path / "model/config.json").read_text())["eos_token_id"] is not None


def test_bad_arrays_are_refused():
    learner = small()
    for tokens, targets in (([[1.5]], None), ([[1, 2]], [[1]]), ([[[1]]], None), ([[1, 300]], None), ([[-1, 2]], None),
                            ([[1, 2]], [[-100, -100]]), (np.zeros((0, 4), int), None)):
        with pytest.raises(InvalidArgument):
            learner.loss(tokens, targets)
    with pytest.raises(InvalidArgument, match="gradients"):
        learner.update(rate=1e-3)
    with pytest.raises(InvalidArgument, match="no parameter"):
        learner.set_parameters({"nonsuch": np.zeros(3)})
    with pytest.raises(InvalidArgument, match="shape"):
        learner.set_parameters({next(iter(learner.parameters)): np.zeros(3)})
    with pytest.raises(InvalidArgument, match="vocabulary"):
        llm.Learner()


# --- the model inside the package ---

def test_there_is_a_model_inside(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTEND_HOME", str(tmp_path))
    assert llm.default_model() == "storyteller" and llm.models() == []
    model = llm.Model()
    assert model.info.parameters > 1e6 and model.info == llm.model_info("storyteller")
    assert model.generate("Once upon a time", max_tokens=12).startswith(", there was a")
    assert llm.Learner("storyteller", compute="f32").parameter_count == model.info.parameters
