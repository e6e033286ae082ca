"""A family `flash` to test its typed entries by: the operations of tritonsrc/flash/recipe.yaml with their own
arguments, so that entries and recipe cannot disagree unseen. Each has a single kernel, which is handed all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import flash_arguments
import packs
import yaml

from kiln_build.native import generate
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan
from kiln_recipe.read import recipe

ROOT = Path(__file__).resolve().parents[2]
TARGET, VERSION = "sm_90", "1.2.3"
_SCALARS = {"bool": "i32", "int64": "i64", "fp32": "fp32"}  # as parameters of kernels


@dataclass(frozen=True)
class Tables:
    """`source`: C++; `kernels`: by operation; `arguments`: by operation and name what the recipe says of them."""

    source: str
    kernels: dict[str, KernelPlan]
    arguments: dict[str, dict[str, dict]]

    def pack(self, has_image: Callable[[str], bool] = lambda functional: True, scratch: int = 0) -> bytes:
        """A pack of images for the fake driver, which are called as their functionals: "attn_fwd bf16".

        Args:
            has_image: by functional, as it is named.
            scratch: bytes that each program needs.
        """
        images, kernels = [], []
        for operation, one in self.kernels.items():
            slots = []
            for functional in one.functionals:
                key = packs.key_of(operation, functional.name)
                if not has_image(functional.name):
                    slots.append((packs.NONE, packs.NONE, "not in this pack", key))
                    continue
                symbol = " ".join([operation, *map(str, functional.values.values())]).replace(" ", "_")
                sizes = [4 if p.type in ("i32", "fp32") else 8 for p in one.kernel.parameters] + [8, 8]
                code = packs.fake_code(symbol, sizes)
                images.append(packs.Image(symbol, code, 1, len(sizes), scratch=scratch, scratch_align=16))
                slots.append((len(images) - 1, packs.NONE, None, key))
            kernels.append(
                packs.Kernel(
                    "flash", operation, operation, [c.name for c in one.configurations],
                    [s.name for s in one.kernel.specializations], [f.name for f in one.functionals],
                    bytes.fromhex(one.layout), slots,
                )
            )  # fmt: skip
        return packs.write(TARGET, VERSION, kernels, images)


def make(folder: Path) -> Tables:
    """Writes the recipe and its kernels into `folder`, and reads them as a build does."""
    functions, operations = ["import triton\nimport triton.language as tl\n"], {}
    for name, operation in flash_arguments.operations(ROOT / "tritonsrc/flash/recipe.yaml").items():
        arguments = flash_arguments.arguments(operation)
        dtypes = {argument["tensor"] for argument in arguments.values() if "tensor" in argument}
        choices = {n: {"of": c.of, "values": list(c.values)} for n, c in operation.choices.items() if n in dtypes}
        parameters = {
            n: {"type": f"*{a['tensor']}", "value": f"{n}.data"}
            if "tensor" in a
            else {"type": _SCALARS[a["scalar"]], "value": n}
            for n, a in arguments.items()
        }
        kernel = {
            "source": "kernels.py", "choices": list(choices), "parameters": parameters,
            "grid": [f"{next(iter(arguments))}.size[0]"], "configurations": [{"core": [{"num_warps": 4}]}],
        }  # fmt: skip
        operations[name] = {"arguments": arguments, "choices": choices, "kernels": {name: kernel}}
        functions.append(f"@triton.jit\ndef {name}({', '.join(parameters)}):\n    pass\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernels.py").write_text("\n\n".join(functions))
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"family": "flash", "operations": operations}, sort_keys=False))
    family = recipe.load(folder / "recipe.yaml")
    made = plan.make_plan([family], (targets.by_name(TARGET),), "full")
    tables = []
    for kernel in made.kernels:
        available = {variant.slot for variant in made.variants if variant.kernel == kernel.kernel.name}
        tables.append(generate.KernelTables(kernel, plan.lookup(kernel, available)))
    source = generate.family_source(family, tables, made.targets, made.served, {}, VERSION)
    return Tables(
        source,
        {kernel.operation: kernel for kernel in made.kernels},
        {name: operation["arguments"] for name, operation in operations.items()},
    )
