"""The verbs of the command line, in the order of its help. What a verb does is in `cli/<verb>.py`; what it needs is
here, since `./kiln` must know that before anything is installed.

Standard library only, and read by any Python from 3.8 on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """What a verb needs.

    Attributes:
        needs: what `./kiln` installs before it runs: "nothing"; "front", the packages of input/front.lock; "reading",
            also those that read a release or a store; "packing", also what compresses one; "everything", also Triton
            and compilers, as a build; "cluster", also what speaks to a Dask cluster.
        python: the lowest Python that it runs in, --help aside; what only looks runs in older ones than a build.
        is_packaged: whether the wheel kiln-build brings it; not if it is about the repository, or another wheel does.
    """

    needs: str = "front"
    python: tuple[int, int] = (3, 10)
    is_packaged: bool = True


VERBS = {
    "targets": Verb(),
    "recipes": Verb(),
    "plan": Verb(),
    "simulate": Verb("reading"),
    "build": Verb("everything"),
    "worker": Verb("cluster"),
    "coverage": Verb("reading"),
    "model": Verb("reading"),
    "list": Verb("reading", python=(3, 9)),
    "inspect": Verb("reading", python=(3, 9)),
    "diff": Verb("reading"),
    "report": Verb("reading"),
    "verify": Verb("reading", python=(3, 9)),
    "sign": Verb("reading"),
    "rebuild": Verb("reading"),
    "select": Verb("packing"),
    "split": Verb("packing"),
    "merge": Verb("packing"),
    "delta": Verb("packing"),
    "apply": Verb("packing"),
    "wheel": Verb("everything"),
    "store": Verb("reading"),
    "ledger": Verb("everything", is_packaged=False),
    "clean": Verb("nothing"),
    "doctor": Verb(),
    "fetch": Verb(),
    "bench": Verb("nothing", is_packaged=False),
    "tune": Verb("nothing", is_packaged=False),
    "verify-device": Verb("nothing", is_packaged=False),
}
