"""Which source is built: commits, tags, patches; in checkouts and outside of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kiln_build.front import source
from kiln_build.front.source import Origin, apply_patches, copy_tree, describe, export_tag, patch_files, tag_commit
from kiln_recipe.errors import EnvironmentProblem, UsageError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, **identity}
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "a tree"
    (root / "input").mkdir(parents=True)
    (root / "build.sh").write_text("echo tag\n")
    (root / "kernel.py").write_text("one\ntwo\nthree\n")
    (root / ".gitignore").write_text("/input/cache/\n")
    git(tmp_path, "init", "-q", "a tree")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")
    git(root, "tag", "-a", "1.0", "-m", "x")
    return root


def test_describe(tree):
    commit = git(tree, "rev-parse", "HEAD")
    assert describe(tree) == Origin(commit, False)
    (tree / "input" / "cache").mkdir()
    (tree / "input" / "cache" / "big.whl").touch()
    assert not describe(tree).dirty  # ignored files are no change
    (tree / "new file").touch()
    assert describe(tree) == Origin(commit, True)


def test_without_git_or_a_checkout_the_commit_is_unknown(tree, tmp_path, monkeypatch):
    inner = tree / "vendored"
    inner.mkdir()
    assert describe(inner) == Origin("unknown", False)  # another project's checkout is not ours
    assert tag_commit(inner, "1.0") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(tree) == Origin("unknown", False) and tag_commit(tree, "1.0") is None


def test_the_callers_git_variables_do_not_mislead(tree, tmp_path, monkeypatch):
    commit = describe(tree).commit
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert describe(tree).commit == commit


def test_a_tag_is_exported_clean(tree, tmp_path):
    commit = git(tree, "rev-parse", "HEAD")
    (tree / "kernel.py").write_text("changed\n")
    assert tag_commit(tree, "1.0") == commit and tag_commit(tree, "1.1") is None
    target = tmp_path / "w" / "tag-1.0"
    for _ in range(2):  # again, over the first
        export_tag(tree, "1.0", commit, target)
        assert (target / "kernel.py").read_text() == "one\ntwo\nthree\n"
        assert describe(target) == Origin(commit, False)
        (target / "left over").touch()
    assert [path.name for path in target.parent.iterdir()] == ["tag-1.0"]


def test_a_branch_is_no_tag(tree):
    git(tree, "branch", "2.0")
    assert tag_commit(tree, "2.0") is None


def test_a_tag_without_build_sh(tree, tmp_path):
    git(tree, "rm", "-q", "build.sh")
    git(tree, "commit", "-q", "-m", "y")
    with pytest.raises(UsageError, match="the git tag 0.9 has no build.sh; KILN_SOURCE=tree"):
        export_tag(tree, "0.9", git(tree, "rev-parse", "HEAD"), tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_what_is_left_out_is_what_git_kiln_and_its_tools_make():
    root = Path(__file__).resolve().parents[1]
    text = "\n".join([*((root / name).read_text() for name in (".gitignore", ".dockerignore")), *source._LEFT_OUT])
    hidden = {line.strip("/") for line in text.splitlines() if line.startswith((".", "/."))}
    tools = {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"}
    assert hidden == {".git", ".kiln", ".venv", ".*_cache", *tools}


@pytest.mark.parametrize("with_git", [True, False])
def test_a_copy_has_what_belongs_to_the_tree(tree, tmp_path, with_git):
    (tree / "input" / "cache").mkdir()
    (tree / "input" / "cache" / "big.whl").touch()
    (tree / "new").write_text("n")
    (tree / "link").symlink_to("new")
    if not with_git:
        shutil.rmtree(tree / ".git")
    copy = copy_tree(tree, tmp_path / "copy", Origin("abc", True))
    names = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir()}
    assert names == {".gitignore", "build.sh", "kernel.py", "new", "link", ".source.json"}
    assert os.readlink(copy / "link") == "new" and describe(copy) == Origin("abc", True)


PATCH = "--- a/kernel.py\n+++ b/kernel.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"


@pytest.fixture
def patched(tree, tmp_path):
    folder = tmp_path / "input"
    (folder / "patch-1.0").mkdir(parents=True)
    (folder / "patch-1.0" / "0001-two.patch").write_text(PATCH)
    return folder, copy_tree(tree, tmp_path / "copy", describe(tree))


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_patches_are_applied_and_recorded(patched, tmp_path, monkeypatch, tool):
    folder, copy = patched
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    files = patch_files(folder, "1.0")
    made = apply_patches(copy, files)
    assert (copy / "kernel.py").read_text() == "one\nTWO\nthree\n"
    assert len(made.patches) == 64 and describe(copy) == made and not made.dirty
    with pytest.raises(UsageError, match=r"0001-two.patch does not apply: "):
        apply_patches(copy, files)


def test_a_patch_within_another_checkout_is_not_lost(patched, tmp_path):
    git(tmp_path, "init", "-q", ".")
    folder, copy = patched
    apply_patches(copy, patch_files(folder, "1.0"))
    assert "TWO" in (copy / "kernel.py").read_text()


def test_no_tool_to_patch_with(patched, tmp_path, monkeypatch):
    folder, copy = patched
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(EnvironmentProblem, match="neither patch nor git is installed"):
        apply_patches(copy, patch_files(folder, "1.0"))


def test_no_patches_of_another_version(patched):
    assert patch_files(patched[0], "1.1") == []
    assert source.patch_files(patched[0], "1.0")[0].name == "0001-two.patch"
