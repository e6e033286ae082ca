"""MLIR's verifier runs once a stage: what is not valid passes no stage, and no pass manager verifies besides."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiln_recipe.compile import verifier

PACKAGES = Path(verifier.__file__).parents[2]
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

# A function whose block has no end is not valid; a pass that leaves it so is refused, if the verifier runs.
REAL = """
import sys
sys.path.insert(0, sys.argv[1])
from triton._C import libtriton
from kiln_recipe.compile import verifier

ir = libtriton.ir
context = ir.context()
ir.load_dialects(context)

def module(is_valid):
    builder = ir.builder(context)
    made = builder.create_module()
    function = builder.get_or_insert_function(made, "f", builder.get_function_ty([], []), "public", False)
    made.push_back(function)
    block = function.add_entry_block()
    if is_valid:
        builder.set_insertion_point_to_start(block)
        builder.ret([])
    return made

def is_refused(is_valid):
    one = module(is_valid)
    assert one.verify() == is_valid
    passes = ir.pass_manager(context)
    libtriton.passes.common.add_symbol_dce(passes)
    try:
        passes.run(one, "test")
    except RuntimeError:
        return True
    return False

assert is_refused(False) and not is_refused(True)
assert verifier.verify_once_a_stage(ir, libtriton.llvm, libtriton.__file__)
assert not is_refused(False) and not is_refused(True)
verifier.verify(module(True))
for check in (verifier.verify, lambda one: libtriton.llvm.to_module(one, libtriton.llvm.context())):
    try:
        check(module(False))
    except RuntimeError as error:
        assert "not valid after its passes" in str(error), error
    else:
        raise AssertionError("a module that is not valid has passed")
print("done")
"""


@has_triton
def test_with_triton():
    done = subprocess.run([sys.executable, "-c", REAL, str(PACKAGES)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("library", ["none such.so", "libc.so.6"])
def test_a_library_without_the_method_changes_nothing(library):
    ir = SimpleNamespace(pass_manager=object, context=object)
    llvm = SimpleNamespace(to_module=len)
    assert not verifier.verify_once_a_stage(ir, llvm, library)
    assert ir.pass_manager is object and llvm.to_module is len


@has_triton
def test_an_object_of_another_class_is_not_touched():
    from triton._C import libtriton

    ir = SimpleNamespace(pass_manager=lambda context: context, context=libtriton.ir.context)
    llvm = SimpleNamespace(to_module=len)
    make = ir.pass_manager
    assert not verifier.verify_once_a_stage(ir, llvm, libtriton.__file__)
    assert ir.pass_manager is make and llvm.to_module is len
