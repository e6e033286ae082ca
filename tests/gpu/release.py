"""A release, called through its C interface."""

from __future__ import annotations

import ctypes
from pathlib import Path

import ffi
import torch
from calls import Inputs
from check import Outputs
from decode_check import DecodeRun
from device import Device
from storage import Storage, describe

WORKSPACE_GUARD, ALIGNMENT = 1024, 256  # bytes
WRITTEN = frozenset(
    ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "mask", "seed_out", "offset_out", "k_cache", "v_cache",
     "workspace")
)  # fmt: skip


def decoded(structure: dict) -> dict:
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in structure.items()}


def _given(params: ctypes.Structure, tensors: dict[str, object]) -> dict[str, ffi.Tensor]:
    """Sets the tensors of a call in its structure; returns their kiln_tensors, which must live as long."""
    views = {}
    for name, tensor in tensors.items():
        if tensor is not None:
            view = tensor if isinstance(tensor, ffi.Tensor) else (
                tensor.describe() if isinstance(tensor, Storage) else describe(tensor)
            )  # fmt: skip
            views[name] = view
            setattr(params, name, ctypes.pointer(view))
    return views


class Flash:
    """libkiln_flash.so of an unpacked release, with a kiln_t of a device."""

    def __init__(self, prefix: Path, device: Device | None = None, **options: object) -> None:
        self.device = device or Device()
        self.library = ffi.Library(prefix / "lib")
        self.flash = ctypes.CDLL(str(prefix / "lib/libkiln_flash.so"))
        self.kiln = ffi.Kiln(self.library, None, **self.device.options, **options)
        self.kiln.register(self.flash, "flash")
        self.left = 255  # each byte of a workspace before its call

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.kiln.close()

    @property
    def target(self) -> str:
        return self.kiln.devices()[0]["target"].decode()

    def images(self, operation: str, target: str) -> list[dict]:
        """The variants of "attn_fwd" and the like that have an image; none where the release has no such target."""
        try:
            variants = self.kiln.variants(f"flash.{operation}", target)
        except ffi.Failure as failure:
            if failure.status == ffi.NOT_FOUND:
                return []
            raise
        return [v for v in map(decoded, variants) if v["unavailable"] is None]

    def enqueue(
        self, entry: str, params: ctypes.Structure, tensors: dict[str, object], *, keys: tuple[str, ...] = (),
        target: str | None = None, stream: int | None = None, device: int = -1, has_workspace: bool = True,
    ) -> torch.Tensor | None:  # fmt: skip
        """Calls a typed entry with a workspace as large as it asks for; returns the workspace, whose bytes are `left`
        but for what was written.

        Args:
            tensors: by the field's name a Storage, a torch.Tensor, a kiln_tensor or None.

        Raises:
            ffi.Failure: its status is not KILN_OK.
        """
        views = _given(params, tensors)
        stream = self.device.stream() if stream is None else stream
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), self.device.vendor, device, stream or None)
        names = (ctypes.c_char_p * max(len(keys), 1))(*[key.encode() for key in keys])
        params.force_target = target and target.encode()
        workspace = None
        call = (self.kiln.handle, ctypes.byref(queue), ctypes.byref(params))
        if has_workspace:
            params.force_keys, params.force_count = names, len(keys)
            size = ctypes.c_uint64()
            self.library.check(getattr(self.flash, f"{entry}_workspace")(*call, ctypes.byref(size)))
            if size.value:
                room = size.value + WORKSPACE_GUARD
                memory = torch.full((room + ALIGNMENT,), self.left, dtype=torch.uint8, device=self.device.name)
                workspace = memory[-memory.data_ptr() % ALIGNMENT :][:room]
                params.workspace, params.workspace_bytes = workspace.data_ptr(), size.value
                views["workspace"] = describe(workspace[: size.value])
        with self.device.lending(views, WRITTEN):
            self.library.check(getattr(self.flash, entry)(*call))
        return workspace

    def explain(self, entry: str, params: ctypes.Structure, tensors: dict[str, object]) -> list[dict]:
        """The variants that such a call would run."""
        seen: list[dict] = []
        visit = ffi.VariantFn(lambda variant, _: seen.append(decoded(ffi._fields(variant.contents))) or 0)
        views = _given(params, tensors)
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), self.device.vendor, -1, self.device.stream() or None)
        with self.device.lending(views, WRITTEN):
            call = (self.kiln.handle, ctypes.byref(queue), ctypes.byref(params))
            self.library.check(getattr(self.flash, f"{entry}_explain")(*call, visit, None))
        return seen

    def launch(self, operation: str, arguments: list, keys: tuple[str, ...], target: str | None) -> None:
        """Calls an operation by its arguments in their order, on the device's stream."""
        call = self.kiln.call(
            arguments, operation=operation, vendor=self.device.vendor, device=0, stream=self.device.stream(), keys=keys,
            target=target,
        )  # fmt: skip
        views = {f"argument {n}": view for n, view in enumerate(arguments) if isinstance(view, ffi.Tensor)}
        with self.device.lending(views, views.keys()):
            self.kiln.launch(call)

    def _check_workspace(self, workspace: torch.Tensor | None, entry: str) -> None:
        if workspace is not None:
            assert bool((workspace[-WORKSPACE_GUARD:] == self.left).all()), f"{entry}: wrote behind its workspace"

    def _shared(self, params: ctypes.Structure, inputs: Inputs) -> dict[str, object]:
        """Sets what forward and backward have in common; returns the tensors."""
        call = inputs.call
        params.causal, params.bottom_right = int(call.causal), int(call.bottom_right)
        params.window_left, params.window_right = call.left, call.right
        params.sm_scale, params.softcap, params.dropout = call.sm_scale, call.softcap, call.dropout
        params.padded = int("sums" in (call.varlen_q, call.varlen_k))
        if inputs.cu_q is not None and call.longest:
            params.max_seqlen_q = call.rows
        if inputs.cu_k is not None and call.longest:
            params.max_seqlen_k = call.keys
        tensors = {
            "q": inputs.q, "k": inputs.k, "v": inputs.v, "sinks": inputs.sinks, "alibi_slopes": inputs.slopes,
            "cu_seqlens_q": inputs.cu_q, "cu_seqlens_k": inputs.cu_k, "seqused_q": inputs.used_q,
            "seqused_k": inputs.used_k,
        }  # fmt: skip
        if inputs.bias is not None:
            tensors["bias"] = describe(inputs.bias.values, (call.batch, call.heads, call.rows, call.keys))
        if call.dropout or call.in_memory:
            params.seed_value, params.offset_value = inputs.seed_value, inputs.offset_value
            tensors |= {"seed": inputs.seed, "offset": inputs.offset}
        return tensors

    def forward(
        self, inputs: Inputs, outputs: Outputs, keys: tuple[str, ...] = (), target: str | None = None, **more: object
    ) -> None:
        params = ffi.AttnFwd()
        tensors = self._shared(params, inputs) | {"out": outputs["out"], "lse": outputs.get("lse")}
        drawn = ()
        if inputs.call.in_memory:
            drawn = [torch.full((), -1, dtype=torch.int64, device=inputs.device) for _ in range(2)]
            tensors |= {"seed_out": drawn[0], "offset_out": drawn[1]}
        workspace = self.enqueue("kiln_attn_fwd", params, tensors, keys=keys, target=target, **more)
        self._check_workspace(workspace, "kiln_attn_fwd")
        if drawn and inputs.call.rows:
            used, wanted = [int(number) for number in drawn], [inputs.call.seed, inputs.call.offset]
            assert used == wanted, f"kiln_attn_fwd: seed_out and offset_out are {used}, not {wanted}"

    def backward(
        self, inputs: Inputs, outputs: Outputs, keys: tuple[str, ...] = (), target: str | None = None, **more: object
    ) -> None:
        call = inputs.call
        params = ffi.AttnBwd(deterministic=int(call.deterministic))
        names = ("out", "lse", "dq", "dk", "dv")
        tensors = self._shared(params, inputs) | {name: outputs[name] for name in names} | {"dout": inputs.dout}
        if outputs.get("dbias"):
            tensors["dbias"] = describe(outputs["dbias"].values, (call.batch, call.heads, call.rows, call.keys))
        if outputs.get("dsinks"):
            tensors["dsinks"] = describe(outputs["dsinks"].values[0, 0])
        workspace = self.enqueue("kiln_attn_bwd", params, tensors, keys=keys, target=target, **more)
        self._check_workspace(workspace, "kiln_attn_bwd")

    def decode(self, run: DecodeRun, keys: tuple[str, ...] = (), target: str | None = None) -> None:
        inputs, call = run.inputs, run.inputs.call
        params = ffi.AttnDecode(
            causal=int(call.causal), rotary_interleaved=int(call.rotary == "interleaved"), softcap=call.softcap,
            sm_scale=call.sm_scale, splits=call.splits, window_left=call.left, window_right=call.right,
            max_seqlen_q=max(call.lengths_q, default=0) if call.longest else 0, max_seqlen_k=call.longest_k,
        )  # fmt: skip
        tensors = {
            "q": inputs.q, "k_cache": inputs.k_cache, "v_cache": inputs.v_cache, "out": run.out, "lse": run.lse,
            "k_new": inputs.k_new, "v_new": inputs.v_new, "seqused_k": inputs.used, "cu_seqlens_q": inputs.cu_q,
            "block_table": inputs.table, "cache_batch": inputs.cache_batch, "leftpad": inputs.leftpad,
            "rotary_cos": inputs.cos, "rotary_sin": inputs.sin, "k_scale": inputs.k_scale, "v_scale": inputs.v_scale,
            "sinks": inputs.sinks, "alibi_slopes": inputs.slopes,
        }  # fmt: skip
        workspace = self.enqueue("kiln_attn_decode", params, tensors, keys=keys, target=target)
        self._check_workspace(workspace, "kiln_attn_decode")

    def dropout_mask(self, inputs: Inputs, target: str | None = None) -> torch.Tensor:
        """[batch, heads, rows, keys] uint8, of a call's seed and offset."""
        call = inputs.call
        mask = torch.full((call.batch, call.heads, call.rows, call.keys), 7, dtype=torch.uint8, device=inputs.device)
        params = ffi.DropoutMask(
            size=ctypes.sizeof(ffi.DropoutMask), seed_value=inputs.seed_value, offset_value=inputs.offset_value,
            dropout=call.dropout,
        )  # fmt: skip
        tensors = {"mask": mask, "seed": inputs.seed, "offset": inputs.offset}
        self.enqueue("kiln_dropout_mask", params, tensors, target=target, has_workspace=False)
        assert mask.numel() == 0 or int(mask.max()) <= 1, "kiln_dropout_mask: not every element was written"
        return mask

    def attention(
        self, q, k, v, out, lse=None, *, sm_scale: float = 0.0, causal: bool = False, **more: object
    ) -> None:  # fmt: skip
        """kiln_attn_fwd of plain tensors."""
        params = ffi.AttnFwd(sm_scale=sm_scale, causal=int(causal))
        self.enqueue("kiln_attn_fwd", params, {"q": q, "k": k, "v": v, "out": out, "lse": lse}, **more)
