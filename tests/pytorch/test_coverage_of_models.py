"""`kiln coverage` says of a model's configuration what attention the model then calls for.

Every sixteenth of Transformers' architectures and some well-known ones; all with KILN_TEST_ARCHITECTURES=all.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="5.4", reason="needs transformers 5.4 or later")

import every_architecture as every
import families
import torch
import transformers
from recorded_attention import NAME, Call, Recorder

from kiln_build.coverage.attention import Attention
from kiln_build.coverage.configuration import config, fields
from kiln_recipe.errors import UsageError

LOCK = Path(__file__).resolve().parents[1] / "transformers.lock"
PARTS = 16
RECORDED = 0.7  # of the models at least; of others no inputs are found, or they have attention of their own
KNOWN = (
    "llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "mistral", "phi3", "deepseek_v3", "t5", "whisper", "bert",
    "vit", "modernbert", "clip_text_model", "t5gemma", "granite_swa",
)  # fmt: skip
# Why a model calls for something else than is said of it.
DIFFER = {
    "bridgetower": "its layers of text and image alone say that they are causal, and are given no mask",
    "colpali": "images are given, and so all text is a prefix that sees itself; here there are none",
    "deepseek_v4": "its compressed layers have a window too; a note says that they are shown with all keys",
    "grounding-dino": "a backbone of several widths",
    "jetmoe": "repeats keys for each expert",
    "kyutai_speech_to_text": "its window is longer than what it is given here",
    "llama4": "a window inside chunks; a note says that each chunk is shown as a call",
    "llama4_text": "a window inside chunks; a note says that each chunk is shown as a call",
    "mimo_v2_flash": "sliding layers alone have sinks, and other numbers of heads",
    "mm-grounding-dino": "a backbone of several widths",
    "mobilebert": "a bottleneck narrower than the hidden size",
    "moshi": "its window is longer than what it is given here",
    "neomme": "one of its windows is longer than what it is given here",
    "paligemma": "images are given, and so all text is a prefix that sees itself; here there are none",
    "qwen4_exp": "its index chooses keys; a note says that they are shown with all",
    "qwen4_exp_text": "its index chooses keys; a note says that they are shown with all",
    "sam2_hiera_det_model": "stages of several numbers of heads; a note says that the first alone is shown",
    "sam2_vision_model": "stages of several numbers of heads; a note says that the first alone is shown",
    "segformer": "a backbone of several widths",
    "splinter": "its layers do not say that they are not causal, and are given no mask",
    "t5gemma2_encoder": "an encoder by itself, whose text does not say that it is one",
    "videoprism": "caps the scores of its text alone",
}
WHOLE = os.environ.get("KILN_TEST_ARCHITECTURES") == "all"


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    torch.set_num_threads(1)
    return Recorder()


def chosen() -> list[tuple[str, str]]:
    found = every.architectures()
    return found if WHOLE else [*found[::PARTS], *[one for one in found if one[0] in KNOWN]]


def fits(call: Call, kind: Attention) -> bool:
    return (
        (call.heads, call.heads_kv, call.head_dim, call.head_dim_v)
        == (kind.heads, kind.heads_kv, kind.head_dim, kind.head_dim_v)
        and call.causal in (None, kind.causal)
        and call.has_window == bool(kind.window)
        and call.is_capped == bool(kind.softcap)
        and call.has_sinks == kind.sinks
        and (not call.has_bias or kind.bias or kind.alibi)
    )  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What of a model's calls `kiln coverage` does not tell, and which kinds it tells that no call is of; or why there
    are no calls that could be recorded."""

    calls: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    unrecorded: str = ""


def compare(model_type: str, name: str, recorder: Recorder, folder: Path) -> Told:
    try:
        with every.limited(every.SECONDS):
            fed = every.fed(every.Finding(model_type, name), "cpu", torch.float32)
            if fed is None:
                return Told(unrecorded="no inputs are found that it takes")
            given_config, eager, given, _ = fed
            recorder.calls.clear()
            model = every.build(type(eager), copy.deepcopy(given_config), NAME, "cpu", torch.float32)
            with torch.no_grad():
                model(**given)
    except Exception as error:  # noqa: BLE001  (of any architecture: test_transformers_every.py is the judge of that)
        return Told(unrecorded=f"{type(error).__name__}: {error}")
    except every.TooLong:
        return Told(unrecorded="it takes too long")
    if not recorder.calls:
        return Told(unrecorded="it asks for no attention")
    model.config.architectures = [name]
    model.config.save_pretrained(folder / name)
    try:
        kinds = config.read(folder / name / "config.json").kinds
    except UsageError as error:
        return Told((str(error),))
    return Told(
        tuple(str(call) for call in recorder.calls if not any(fits(call, kind) for kind in kinds)),
        tuple(
            kind.name
            for kind in kinds
            if "prefill" in kind.uses and not any(fits(call, kind) for call in recorder.calls)
        ),
    )


def test_what_is_said_is_what_is_called(recorder, tmp_path):
    told = {one: compare(*one, recorder, tmp_path) for one in chosen()}
    known = [one for one, it in told.items() if not it.unrecorded]
    assert len(known) >= RECORDED * len(told), {one: it.unrecorded for one, it in told.items() if it.unrecorded}
    assert {one: told[one] for one in told if one[0] in KNOWN and told[one] != Told()} == {}
    assert {one: told[one].calls for one in known if told[one].calls and one[0] not in DIFFER} == {}
    if WHOLE:
        assert {one[0] for one in known if told[one].calls} == set(DIFFER)


def test_what_classes_fill_in_is_up_to_date():
    text = fields.FAMILIES.read_text(encoding="utf-8")
    made, update = json.loads(text)["transformers"], "PYTHONPATH=v3python python tests/pytorch/families.py"
    assert f"transformers=={made};" in LOCK.read_text(), f"the lock has another version; run: {update}"
    if made != transformers.__version__:
        pytest.skip(f"needs transformers {made}, from which families.json was made")
    assert text == families.text(), f"run: {update}"
