"""What kiln.torch uses of PyTorch that PyTorch calls private: each name with the reason, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

BINDINGS = Path(__file__).resolve().parents[2] / "bindings"

# By name: why there is no public one that is as right.
REASONS = {
    "torch._C._AutoDispatchBelowAutograd": "the guard by which a kernel for Autograd goes to the next key; PyTorch has "
    "it in C++ under a public name (at::AutoDispatchBelowADInplaceOrView), and torch.library uses this one",
    "torch._C._stash_obj_in_tls": "only what lies there is handed to the threads that run a backward, whose recomputed "
    "forward (checkpoints) is to be routed as the forward was",
    "torch._C._is_key_in_tls": "reads the same",
    "torch._C._get_obj_in_tls": "reads the same",
    "torch.jit._builtins._get_builtin_table": "torch.jit.script finds the operator of a function there, by its "
    "identity; without it a module that calls the routed function could not be scripted",
    "torch._subclasses.fake_tensor.FakeTensor": "no public name; what torch.compile traces is of this class",
    "torch._subclasses.functional_tensor.FunctionalTensor": "the same of what AOTAutograd traces",
    "Tensor._make_wrapper_subclass": "the way to make a tensor without memory that PyTorch's documentation of "
    "__torch_dispatch__ shows",
    "mask._version": "the count of a tensor's changes in place, by which a mask that was changed since it was made is "
    "known; PyTorch's notes on autograd name it, and nothing else tells it",
    "self._version": "the same",
    "aten._to_copy": "an operator of PyTorch's, seen by __torch_dispatch__ under that name",
}

# Of other libraries.
OTHERS = {
    "interpreter._get_np_dtype": "Triton's", "self._interpreter._get_np_dtype": "Triton's",
    "interpreter._patch_lang": "Triton's", "kind._can_set_attn_implementation": "Transformers'",
}  # fmt: skip


def is_private(name: str) -> bool:
    """One leading underscore: two at either end are a protocol's (__torch_dispatch__, DLPack's)."""
    return name.startswith("_") and not name.startswith("__")


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def own_names(trees: dict[Path, ast.Module]) -> set[str]:
    """Private names that this package defines: functions, classes, variables, attributes, arguments, modules."""
    found = {path.stem for path in trees}
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
            found.add(node.attr)
    return found


def foreign_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names of others, as they are spelled."""
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "torch")
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if name.startswith("torch."):
                if node not in inner:  # the whole of it, which the parts are in
                    yield name
            elif is_private(node.attr) and node.attr not in own:
                yield name
        elif isinstance(node, ast.Call) and dotted(node.func) in ("getattr", "hasattr", "setattr", "delattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if is_private(name) and name not in own:
                yield f"{dotted(node.args[0])}.{name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield from re.findall(r"\btorch(?:\.\w+)+", node.value)


def used() -> dict[str, set[str]]:
    """Private names of others in the Python of bindings/, and where."""
    package = BINDINGS / "python/kiln"
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    own, found = own_names(trees), {}
    for path, tree in trees.items():
        for name in foreign_names(tree, own):
            if any(map(is_private, name.split("."))):
                found.setdefault(name, set()).add(path.relative_to(package).as_posix())
    return found


def test_each_private_name_has_a_reason() -> None:
    names = {}
    every = used()
    assert set(OTHERS) <= set(every)
    for name, places in ((name, places) for name, places in every.items() if name not in OTHERS):
        listed = [known for known in REASONS if name == known or name.startswith(f"{known}.")]
        names.setdefault(listed[0] if listed else name, set()).update(places)
    places = {name: sorted(places) for name, places in names.items() if name not in REASONS}
    assert not places, "use a public name, or write the reason into REASONS"
    assert set(names) == set(REASONS), "the others are not used any more"


def test_the_search_finds_every_kind_of_use() -> None:
    source = """
import torch._dynamo
from torch import _C, Tensor
from torch.amp.autocast_mode import _cast
torch._C._is_tracing()
tensor._version, getattr(torch, "_VF"), self._own
importlib.import_module("torch._inductor")
"""
    found = {name for name in foreign_names(ast.parse(source), {"_own"}) if any(map(is_private, name.split(".")))}
    assert found == {
        "torch._dynamo", "torch._C", "torch.amp.autocast_mode._cast", "torch._C._is_tracing", "tensor._version",
        "torch._VF", "torch._inductor",
    }  # fmt: skip


def test_no_private_name_of_pytorchs_is_used_in_c() -> None:
    """Neither of libtorch's symbols, nor of Python's attributes, which C names by strings."""
    symbols = (BINDINGS / "torch/libtorch.symbols").read_text().splitlines()[1:]
    assert not [name for name in symbols if not re.match(r"(aoti_)?torch_", name)]
    sources = [path for folder in ("core", "torch") for path in (BINDINGS / folder).glob("*.[ch]*")]
    assert len(sources) > 15
    for path in sources:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.S)
        strings = re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)
        assert not [s for s in strings if is_private(s) or re.search(r"\btorch\S*\._", s)], path.name
