"""The package itself: its version, docstrings, examples, type hints and stubs."""

import ast
import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import attend
from numpy_cases import qkv


def test_runtime():
    assert attend.__version__ == attend.version() and attend.__version__.count(".") == 2
    info = attend.cpu_info()
    assert attend.kernel_name() in info["kernels"] and info["cpus"] >= 1
    assert set(attend.__all__) <= set(dir(attend))


@pytest.mark.parametrize("name", sorted(set(attend.__all__)))
def test_documented(name):
    thing = getattr(attend, name)
    assert thing.__doc__, f"attend.{name} has no docstring"


def test_stubs():
    """_core.pyi names what the module has: the same functions, classes, members and arguments."""
    def arguments(signature):
        plain = re.sub(r"\\\d+", "...", signature.strip().rstrip(":"))  # defaults are numbered
        plain = re.sub(r"ndarray\[[^\]]*\]", "ndarray", plain)  # what nanobind says of an array is no Python
        node = ast.parse(plain + ": ...").body[0]
        return [a.arg for a in (*node.args.posonlyargs, *node.args.args)]

    def signature_of(thing):
        return thing.__nb_signature__[0][0] if hasattr(thing, "__nb_signature__") else None

    def compare(nodes, owner, where):
        named = {node.name: node for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        has = {name for name in vars(owner) if not name.startswith("_") or name in ("__init__", "__and__")}
        if inspect.ismodule(owner) or "__init__" not in named:
            has.discard("__init__")
        assert named.keys() == has, where
        for name, node in named.items():
            thing = getattr(owner, name)
            if isinstance(node, ast.ClassDef):
                compare(node.body, thing, f"{where}.{name}")
            elif signature_of(thing):
                stated = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
                assert stated == arguments(signature_of(thing)), f"{where}.{name}"
            else:
                assert isinstance(vars(owner)[name], property), f"{where}.{name}"

    stub = Path(attend.__file__).with_name("_core.pyi")
    compare(ast.parse(stub.read_text()).body, attend._core, "_core")


def test_type_hints():
    """Every argument and result of the public functions says its type."""
    for name in attend.__all__:
        thing = getattr(attend, name)
        if type(thing).__name__.startswith("nb_"):
            continue  # the stub says it
        members = [thing] if inspect.isfunction(thing) else [
            f for key, f in vars(thing).items() if inspect.isfunction(f) and (key[0] != "_" or key == "__call__")]
        for function in members:
            hints = inspect.signature(function)
            untyped = [p.name for p in hints.parameters.values() if p.annotation is p.empty and p.name != "self"]
            assert not untyped and hints.return_annotation is not hints.empty, f"{name}.{function.__name__}: {untyped}"


@pytest.mark.parametrize("module", [attend, attend.masks, attend._attention, attend._blocks, attend._operations, attend._layer,
                                    attend._observers, attend._paged_kv_cache, attend._weight], ids=lambda m: m.__name__)
def test_docstring_examples(module):
    """The examples run; where a result is shown, it is the result."""
    names = {"np": np, "attend": attend}
    names["q"], names["k"], names["v"] = qkv(1, 2, 2, 16, 16, 8, 8, dtype=np.float32)
    names["mask"], names["dout"] = attend.causal(), names["q"]
    names["dq"] = names["x"] = names["dy"] = names["q"]
    if module is attend._blocks:
        names["weight"] = names["bias"] = np.ones(8, np.float32)
        names["gate"] = names["up"] = names["dhidden"] = names["attention_out"] = names["x"]
        names["table"] = names["head"] = np.ones((5, 8), np.float32)
        names["tokens"] = names["targets"] = np.arange(5)
        names["dx"] = names["hidden"] = np.ones((5, 8), np.float32)
        names["n"], names["step"] = 5, 1
    count = 0
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names):
        if test.name.startswith("attend._layer"):
            test.globs["x"] = np.ones((1, 5, 512), np.float32)
            test.globs["layer"] = attend.MultiHeadAttention(512, 8).initialise(0)
        if not test.examples or "from_torch" in test.name:
            continue
        failed = run_examples(test)
        assert not failed, failed
        count += len(test.examples)
    assert count > 0


def run_examples(test):
    """Runs the examples; compares only those that show a result."""
    for example in test.examples:
        try:
            if example.want:
                got = repr(eval(example.source, test.globs)) + "\n"  # noqa: S307 - our own docstrings
                if got.split() != example.want.split():
                    return f"{test.name}: got {got}, the docstring says {example.want}"
            else:
                exec(compile(example.source, test.name, "exec"), test.globs)  # noqa: S102
        except Exception as error:  # noqa: BLE001 - reported with its example
            return f"{test.name}: {example.source.strip()}: {error!r}"
    return None
