"""`kiln coverage`, as users run it: what a profile serves of a model, why not, and what would."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from builds import ROOT
from kiln_build import cli
from kiln_build.coverage import line, show
from kiln_build.coverage.judge import Verdict, in_words, judge
from kiln_build.coverage.source import ReleasedImage, Source, open_source, place_of
from kiln_recipe import targets
from kiln_recipe.errors import UsageError
from kiln_recipe.plan import plan

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "torch_dtype": "bfloat16",
}  # fmt: skip


def verdicts(capsys: pytest.CaptureFixture[str], *words: str, target: str = "sm_90") -> dict[tuple[str, str], dict]:
    """By attention and use the verdict on the target."""
    assert cli.main(["coverage", *words, "--target", target, "--json"]) == 0
    return {(v["attention"], v["use"]): v for v in json.loads(capsys.readouterr().out)["verdicts"]}


def written(tmp_path: Path, document: object) -> str:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_a_model_is_served_by_the_images_of_its_head_dimension(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verdicts(capsys, "core", "--model", written(tmp_path, LLAMA))
    assert {use for _, use in found} == {"prefill", "decode", "training"}
    assert all(one["served"] and not one["refusal"] for one in found.values())
    kernels = {image["kernel"]: image["functional"] for image in found["full attention", "decode"]["images"]}
    assert kernels["attn_decode.short"] == "dtype=bf16 cache_dtype=bf16 head_dim=128 extras=none"
    assert {i["operation"] for i in found["full attention", "training"]["images"]} == {
        "flash.attn_fwd", "flash.attn_bwd"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "line", "use", "why", "remedy"),
    [
        ("core", "head_dim=192/128", "prefill", "in the full profile only", "the profile full"),
        ("core", "head_dim=64 fp8-cache", "decode", "in the full profile only", "a cache in bf16"),
        ("core", "head_dim=64 dtype=fp32", "training", "in the full profile only", "bf16 in place of fp32"),
        ("full", "head_dim=600/512 heads_kv=1", "decode", "has no image for", "beyond head_dim 576"),
    ],
)
def test_what_is_not_served_says_why_and_what_would_serve_it(
    capsys: pytest.CaptureFixture[str], profile: str, line: str, use: str, why: str, remedy: str
) -> None:
    found = verdicts(capsys, profile, "--model", line)["attention", use]
    assert not found["served"] and not found["images"]
    assert why in found["refusal"]
    assert any(remedy in one for one in found["remedies"]), found["remedies"]


def test_targets_of_one_answer_share_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["coverage", "full", "--model", "head_dim=128 fp8-cache", "--target", "sm_80;sm_90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "sm_80 sm_90" in next(line for line in lines if " prefill " in line and " yes " in line)
    refused = next(line for line in lines if " decode " in line and " NO " in line)
    assert " sm_80 " in refused and "sm_90" not in refused  # Ampere has no conversions of fp8
    assert "another target: sm_90" in next(line for line in lines if "what would serve it" in line)


def test_most_targets_are_named_by_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["coverage", "core", "--model", "head_dim=128 fp8-cache", "--html", str(tmp_path / "page.html")]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(re.search(" decode +all but sm_80 sm_86 sm_87 +NO ", line) for line in lines)
    assert any(" on all targets but sm_80, sm_86, sm_87: cache_dtype=fp8e4m3 is in the full" in line for line in lines)
    assert "<b>decode</b> on all but sm_80 sm_86 sm_87" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("model", "target", "code"),
    [("head_dim=64", "sm_90", 0), ("head_dim=192", "sm_90", 10), ("head_dim=64 fp8-cache", "sm_80;sm_90", 10)],
)
def test_scripts_learn_what_is_not_served(
    capsys: pytest.CaptureFixture[str], model: str, target: str, code: int
) -> None:
    words = ["coverage", "full" if "fp8" in model else "core", "--model", model, "--target", target]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert cli.main([*words, "--check"]) == code
    checked = capsys.readouterr()
    assert checked.out == shown
    if "fp8" in model:
        assert "does not serve 1 of 6 uses, each on a target; the first is decode of" in checked.err
        assert checked.err.rstrip().endswith("attention, on sm_80")
    assert bool(checked.err) == bool(code)
    assert cli.main([*words, "--check", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdicts"]


def test_a_file_of_a_profile_s_name_is_not_the_profile(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core").write_text("mine")
    assert cli.main(["coverage", "core", "--model", "head_dim=64", "--target", "sm_90"]) == 0
    assert cli.main(["coverage", "./core", "--model", "head_dim=64", "--target", "sm_90"]) != 0
    assert "core is not a release, a pack or an image" in capsys.readouterr().err


DEEPSEEK = str(ROOT / "tests/models/deepseek-v3.json")


@pytest.mark.parametrize(("profile", "where"), [("core", " with the profile full"), ("full", "")])
def test_a_latent_cache_can_be_expanded(capsys: pytest.CaptureFixture[str], profile: str, where: str) -> None:
    found = verdicts(capsys, profile, "--model", DEEPSEEK, target="sm_80")["absorbed latent attention", "decode"]
    expanded = f"full attention over keys and values expanded to 128 KV heads of head_dim 192/128{where}"
    assert found["remedies"] == [expanded]


def test_a_latent_cache_is_read_on_hopper(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdicts(capsys, "core", "--model", DEEPSEEK)["absorbed latent attention", "decode"]
    assert found["remedies"][0] == "the profile full"
    found = verdicts(capsys, "full", "--model", DEEPSEEK)["absorbed latent attention", "decode"]
    assert found["served"] and "attn_decode.latent" in {image["kernel"] for image in found["images"]}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("head_dim=128 windows=4", "'windows=4', which is unknown; did you mean 'window'?"),
        ("gqa=8", "lacks head_dim"),
        ("head_dim=x", "head_dim=x; it must be a whole number from 1 to 1048576, such as 128, or two of them"),
        ("head_dim=128/0", "head_dim=128/0; it must be a whole number from 1 to 1048576"),
        ("head_dim=1/2/3", "head_dim=1/2/3; it must be a whole number from 1 to 1048576"),
        *(
            (f"head_dim=128 keys={word}", f"keys={word}; it must be a whole number from 1 to 2147483647")
            for word in ("", "0", "-1", "1e14", "2147483648", "9" * 30, "nan", "many")
        ),
        ("head_dim=128 gqa=1048577", "gqa=1048577; it must be a whole number from 1 to 1048576"),
        *(
            (f"head_dim=128 softcap={word}", f"softcap={word}; it must be a number from 0 to 1e+30")
            for word in ("", "-1", "1.1e30", "1e999", "nan", "inf", "much")
        ),
        ("head_dim=128 dropout=1", "dropout=1; it must be a number from 0 to 0.9999"),
        ("head_dim=128 keys=3 keys=4", "says keys twice; say it once"),
        ("head_dim=128 keys", "'keys', and keys is to have a value"),
        ("head_dim=64 heads=6 heads_kv=4", "6 heads and 4 KV heads"),
        ("head_dim=64 causal cross", "says causal and cross"),
        ("head_dim=64 kv_heads=4", "has 'kv_heads=4'; it is called heads_kv"),
        ("head_dim=64 heads=7 gqa=2", "heads=7, which is not a multiple of gqa=2"),
        ("head_dim=64 dtype=int8", "dtype=int8"),
        ("nowhere.json", "cannot be read"),
    ],
)
def test_a_line_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], model: str, sentence: str) -> None:
    assert cli.main(["coverage", "core", "--model", model]) in (2, 7)
    assert sentence in capsys.readouterr().err


def test_the_bounds_themselves_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    model = "head_dim=1048576/1, gqa=1048576, keys=2147483647 window=1 softcap=1e30 dropout=0.9999"
    assert cli.main(["coverage", "core", "--model", model, "--target", "sm_90"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "does not tell what its attention is"),
        ([], "is not a JSON object"),
        ({**LLAMA, "num_attention_heads": "many"}, "num_attention_heads 'many'; it must be a whole number from 1 to"),
        (
            {**LLAMA, "model_type": "mistral", "sliding_window": 10**20},
            "it must be a whole number from 1 to 2147483647",
        ),
        ({**LLAMA, "attention_dropout": 1.5}, "attention_dropout 1.5; it must be a number from 0 to 0.9999"),
        ({**LLAMA, "torch_dtype": "int4"}, "the dtype 'int4'"),
        ({**LLAMA, "num_key_value_heads": 5}, "5 KV heads"),
    ],
)
def test_a_configuration_without_attention_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: object, sentence: str
) -> None:
    assert cli.main(["coverage", "core", "--model", written(tmp_path, document)]) in (2, 6)
    assert sentence in capsys.readouterr().err


def test_a_page_shows_the_answers_and_replaces_only_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["coverage", "core", "--model", "head_dim=192", "--target", "sm_90", "--html", str(tmp_path / "page.html")]
    assert cli.main(words) == 0 and cli.main(words) == 0
    text = (tmp_path / "page.html").read_text()
    assert "What would serve it: the profile full" in text and '<td class="bad"' in text
    (tmp_path / "page.html").write_text("mine")
    assert cli.main(words) == 2
    assert (tmp_path / "page.html").read_text() == "mine"
    assert "is not a page of `kiln coverage`, so it stays" in capsys.readouterr().err
    assert cli.main(["coverage", "core", "--model", "head_dim=64", "--html", "-"]) == 2
    assert "--html - would be a file called '-'; give its name, or ./- for that one" in capsys.readouterr().err


def test_images_are_listed_where_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["coverage", "core", "--model", "head_dim=128", "--target", "sm_90", "--images"]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("attn_bwd   attn_bwd_finish"))
    assert "dtype=bf16 head_dim=128" in line and "BLOCK_M=" in line and "aligned" in line


def test_models_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one, other = written(tmp_path / "a", LLAMA), written(tmp_path / "b", {**LLAMA, "num_key_value_heads": 4})
    words = ["coverage", "core", "--target", "sm_90", "--json"]
    assert cli.main([*words, "--model", one, "--model", other, "--model", one]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in document["models"]] == [one, other]
    assert len(document["verdicts"]) == 6


# ---- releases --------------------------------------------------------------------------------------------------------

SM_90 = targets.by_name("sm_90")


def release(lack: Callable[[str], str | None] = lambda name: None) -> Source:
    """As a release of the core profile for sm_90, without its files.

    Args:
        lack: by a variant's name why it has no image.
    """
    made = plan.make_plan([open_source("core").recipe], (SM_90,), "core", (), ROOT / "tuning")
    images = {place_of(v): ReleasedImage(f"key of {v.name}", lack(v.name)) for v in made.variants}
    return Source("kiln.tar.gz", "core", (), (SM_90,), images, "0.1.0b")


def of_release(source: Source, words: str, target: str = "sm_90") -> dict[str, Verdict]:
    """By use the verdict."""
    return {one.use: one for one in judge(source, [line.read(words)], (targets.by_name(target),))}


def test_a_release_names_the_keys_of_its_images() -> None:
    (image,) = of_release(release(), "head_dim=64")["prefill"].images
    assert image.key == (
        f"key of flash.attn_fwd/attn_fwd.hopper[{image.functional}][{image.configuration}]"
        f"[{image.specialization}]@sm_90"
    )


def test_an_image_that_a_release_lacks_serves_nothing() -> None:
    found = of_release(
        release(lambda name: "too large" if "attn_bwd_d" in name and "dtype=bf16" in name else None), "head_dim=64"
    )
    assert found["prefill"].is_served and not found["training"].is_served
    assert "too large" in str(found["training"].refusal)
    assert found["training"].remedies == ("a release of the profile core",)


def test_a_target_that_a_release_lacks_is_one_to_build() -> None:
    found = of_release(release(), "head_dim=64", "gfx942")["prefill"]
    assert found.refusal == "kiln.tar.gz has no images for gfx942"
    assert found.remedies == ("a release of the profile core for gfx942",)
    assert of_release(release(), "head_dim=192", "gfx942")["prefill"].remedies == (
        "a release of the profile full for gfx942",
    )


def test_a_target_without_its_pack_is_not_served() -> None:
    source = dataclasses.replace(release(), absent={"sm_90": "is missing"})
    for words, remedy in (
        ("head_dim=64", "the release's own pack of sm_90"),
        ("head_dim=192", "a release of the profile full for sm_90"),
    ):
        for found in of_release(source, words).values():
            assert found.refusal == "in kiln.tar.gz the pack of sm_90 is missing"
            assert (found.images, found.remedies) == ((), (remedy,))


def test_targets_that_a_release_lacks_share_an_answer() -> None:
    source, model = release(), line.read("head_dim=64")
    verdicts = judge(source, [model], targets.parse("gfx942;sm_80;sm_90"))
    text = "\n".join(show.lines(source, [model], verdicts))
    assert text.count("why not") == 3  # one for each use
    assert "kiln.tar.gz has no images for gfx942, sm_80" in text
    assert "a release of the profile core for gfx942, sm_80" in text


def test_a_release_of_another_source_is_refused() -> None:
    whole = release()
    assert whole.images is not None
    first, *rest = whole.images
    with pytest.raises(UsageError, match=r"another source than this Kiln: it does not know flash\."):
        of_release(dataclasses.replace(whole, images={place: whole.images[place] for place in rest}), "head_dim=64")
    more = {**whole.images, ("sm_90", "flash.attn_fwd/new", "", "", ""): whole.images[first]}
    with pytest.raises(UsageError, match=r"this Kiln does not know flash\.attn_fwd/new"):
        of_release(dataclasses.replace(whole, images=more), "head_dim=64")


def test_targets_are_told_in_words():
    known = ["sm_80", "sm_86", "sm_90"]
    assert in_words(["sm_90"], ["sm_90"]) == "sm_90"
    assert in_words(known, known) == "all"
    assert in_words(["sm_80", "sm_90"], known) == "all but sm_86"
    assert in_words(["sm_90"], known) == "sm_90"
