"""`kiln store`: what is in a store of images; checks it, makes it smaller."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.options import options
from kiln_build.options.words import check_store, scheme_of
from kiln_recipe import digests
from kiln_recipe.console import spelling
from kiln_recipe.console.files import read_given
from kiln_recipe.console.usage import filled, one_of
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError, escaped

if TYPE_CHECKING:
    from kiln_build.cache.traffic import Traffic
    from kiln_build.store.store import Collected, Store, StoreInfo, Verified

EXAMPLE = """
kiln store info --store workspace             counts and sizes
kiln store verify --store /shared/kiln-store  read everything; exit code 6 if anything was broken, and is removed
kiln store gc --max-size 10G                  of the store that KILN_STORE names
kiln store push --cache http://host:8080/kiln                              to a team's cache, what it lacks
kiln list RELEASE --json | kiln store pull --cache http://host:8080/kiln --keys -    from it, the images of a release
kiln store stats --cache http://host:8080/kiln --json                      how many of the store's images it has
"""

_MOST_KEYS = 1 << 28  # bytes of a text with keys; 271,294 rows of `kiln list --json` have about 200 million
_WITH_CACHE = ("push", "pull", "stats")
_ACTIONS = ("info", "verify", "gc", *_WITH_CACHE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", type=one_of("action", _ACTIONS), default="info",
        help="info (default): counts and sizes; verify: read everything and remove what is corrupt; "
        "gc: remove what was not used for longest, except what a running build uses; push: send images to a cache; "
        "pull: fetch images from it; stats: how many of the images it has",
    )  # fmt: skip
    parser.add_argument(
        "--store", type=filled("--store", "a store, or a build's workspace"), metavar="FOLDER",
        help="the store, or a build's workspace; default: KILN_STORE, or the current folder if it is one",
    )  # fmt: skip
    parser.add_argument(
        "--max-size",
        type=filled("--max-size", "a number with K, M, G or T, like 10G"),
        metavar="SIZE",
        help="for gc: the size that the store may keep: 10G, 500M, 0",
    )
    parser.add_argument(
        "--cache", type=filled("--cache", "the address of a cache"), metavar="ADDRESS",
        help="for push, pull and stats: the cache; variables KILN_CACHE_... say how it is opened; default: KILN_CACHE",
    )  # fmt: skip
    parser.add_argument(
        "--keys", type=filled("--keys", "a text with keys"), metavar="FILE",
        help="for push, pull and stats: only the images of the keys in this text, or in standard input with -: every "
        "word of 64 hexadecimal digits, or in JSON each \"key\"; default: all of the store, which pull does not take",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as JSON: the counts, or what was removed")


def check(arguments: argparse.Namespace) -> None:
    if arguments.action == "gc" and arguments.max_size is None:
        raise UsageError(
            "`kiln store gc` needs the size that the store may keep; give --max-size SIZE, for example 20G"
        )
    if arguments.action != "gc" and arguments.max_size is not None:
        raise UsageError(
            f"--max-size is only for `kiln store gc`; `kiln store {arguments.action}` removes nothing by size"
        )
    for option in ("cache", "keys"):
        if getattr(arguments, option) and arguments.action not in _WITH_CACHE:
            raise UsageError(
                f"--{option} is only for {', '.join(_WITH_CACHE)}; `kiln store {arguments.action}` asks no cache"
            )
    if arguments.action == "pull" and not arguments.keys:
        raise UsageError(
            "`kiln store pull` needs to know of what; give --keys FILE, for example of what `kiln list --json` prints"
        )
    if arguments.max_size is not None:
        parse_size(arguments.max_size)
    options.check_environment()


def run(arguments: argparse.Namespace) -> int:
    max_bytes = parse_size(arguments.max_size) if arguments.max_size is not None else 0
    if arguments.action in _WITH_CACHE:
        return _with_cache(arguments)
    store = _open(arguments.store or options.read_build_variables(os.environ).store)
    if arguments.action == "info":
        info = store.info()
        _print(
            arguments,
            info,
            f"{info.root}: {info.variants} keys and {info.irs} IRs in {info.objects} objects, "
            f"{spelling.spell_size(info.bytes)}; {info.running_builds} running builds",
        )
        return 0
    if arguments.action == "gc":
        collected = store.collect(max_bytes)
        text = f"{collected.removed_images} images removed, {spelling.spell_size(collected.removed_bytes)}; "
        text += f"{spelling.spell_size(collected.bytes)} are left"
        if collected.bytes > max_bytes:
            text += f", of which running builds use {spelling.spell_size(collected.protected_bytes)}"
        _print(arguments, collected, text)
        return 0
    verified = store.verify()
    broken = len(verified.removed_objects) + len(verified.removed_entries)
    text = f"{verified.objects} objects and {verified.entries} entries read: "
    text += f"{broken} were broken and are removed; the next build compiles them anew" if broken else "all whole"
    if verified.earlier:
        text += f"; {verified.earlier} entries have an earlier format; `kiln store gc` removes them"
    _print(arguments, verified, text)
    return ArtifactError.exit_code if broken else 0


def _with_cache(arguments: argparse.Namespace) -> int:
    from kiln_build.cache import traffic  # here, so that --help needs no package
    from kiln_build.cache.access import read_access
    from kiln_recipe.console.progress import make_progress

    asked = options.read_build_variables(os.environ | ({"KILN_CACHE": arguments.cache} if arguments.cache else {}))
    called = {"KILN_CACHE": "--cache"} if arguments.cache else None
    word, name = (arguments.store, "--store") if arguments.store else (asked.store, "KILN_STORE")
    asked = options.make_absolute(replace(asked, store=None, recipes=(), log_json=None), Path.cwd(), called)
    if not asked.cache:
        raise UsageError(f"`kiln store {arguments.action}` needs a cache; name it with --cache ADDRESS or KILN_CACHE")
    local = _open(word) if arguments.action != "pull" or not word else _open_or_make(word, name)
    keys = _keys(arguments.keys) if arguments.keys else None
    with make_progress() as progress:
        made = traffic.ACTIONS[arguments.action](local, asked.cache, read_access(asked), keys, progress)
    _print(arguments, made, made.spell())
    if made.problem:
        raise EnvironmentProblem(
            f"the cache {made.cache} did not do all that was asked of it: {made.problem}; mend that, or name another"
        )
    return 0


def _open_or_make(word: str, name: str) -> Store:
    from kiln_build.store.stores import open_store

    try:
        return _open(word)
    except EnvironmentProblem:
        return open_store(check_store(word, Path.cwd(), name))


def _keys(word: str) -> list[str]:
    """What a text names as a key, in JSON such as of `kiln list`, which has digests of other things beside them; else
    all its words of 64 hexadecimal digits. Each once."""
    if word == "-" and sys.stdin is None:
        raise EnvironmentProblem("--keys - needs standard input, which is closed; give a file, or a pipe")
    if word == "-" and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")
    try:
        text = (
            sys.stdin.read(_MOST_KEYS + 1) if word == "-" else read_given(word, _MOST_KEYS + 1).decode(errors="replace")
        )
    except OSError as error:
        raise EnvironmentProblem(f"--keys {word} cannot be read ({error.strerror}); give a text with keys") from error
    if len(text) > _MOST_KEYS:
        raise UsageError(f"--keys {word} has more than {_MOST_KEYS >> 20} MiB; give the keys alone, or several parts")
    named = re.findall(rf'"key": ?"({digests.PATTERN})"', text)
    keys = list(dict.fromkeys(named or re.findall(rf"\b{digests.PATTERN}\b", text)))
    if not keys:
        raise UsageError(
            f"--keys {word} has no key, which has 64 hexadecimal digits; give what `kiln list --json` prints, say"
        )
    return keys


def _print(arguments: argparse.Namespace, result: StoreInfo | Collected | Verified | Traffic, text: str) -> None:
    print(json.dumps(asdict(result), indent=2) if arguments.json else escaped(text), file=sys.stdout)


def _open(word: str | None) -> Store:
    from kiln_build.store.stores import open_store  # here, so that --help needs no package

    try:
        return open_store(word if word and scheme_of(word) else Path.cwd() / (word or ""), there=True)
    except EnvironmentProblem:
        if word:
            raise
    raise UsageError("no store given; name it, or a build's workspace, with --store FOLDER or KILN_STORE")


def parse_size(word: str) -> int:
    """Bytes that a word like 10G, 1.5GiB, 500m or 0 means; K, M, G and T are powers of 1024.

    Raises:
        UsageError: it is no size.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:I?B)?", word.strip().upper())
    if match is None:
        raise UsageError(f"{word!r} is not a size; write a number with K, M, G or T, like 10G, 500M or 0")
    return int(float(match[1]) * spelling.UNITS[match[2]])
