"""A secret key, from where it is kept: a file, an open descriptor, or a variable. Never from the repository, which has
none, and never from a word of the command line, which every user of the host can read."""

from __future__ import annotations

import getpass
import os
import re
import sys
from pathlib import Path

from kiln_build.base import ROOT
from kiln_build.trust import minisign
from kiln_build.trust.minisign import SecretKey
from kiln_recipe.console.files import read_given, what_keeps
from kiln_recipe.errors import EnvironmentProblem, UsageError

WHERE = "a file, the number of an open descriptor, or env:NAME for a variable that holds its text"


def check(word: str, what: str) -> None:
    """Refuses, without reading anything, what cannot be read later.

    Args:
        what: "the key" or "the password".

    Raises:
        EnvironmentProblem: there is no such file, descriptor or variable.
        UsageError: the file lies in the source tree.
    """
    if name := _variable(word):
        if name not in os.environ:
            raise EnvironmentProblem(f"{what} is to be in the variable {name}, which is not set; give {WHERE}")
    elif word.isdecimal():
        if problem := what_keeps(word, os.O_WRONLY):
            raise EnvironmentProblem(f"{what} is to come from descriptor {word}, which {problem}; give {WHERE}")
    elif not Path(word).exists():
        raise EnvironmentProblem(f"{what} is to be in {word}, which does not exist; give {WHERE}")
    elif Path(word).is_dir():
        raise EnvironmentProblem(f"{what} is to be in {word}, which is a folder; give {WHERE}")
    elif ROOT in Path(word).resolve().parents:
        raise UsageError(f"{what} is in {word}, within Kiln's source tree, which others get; keep it elsewhere")


def check_key(word: str) -> None:
    """Refuses what is not a secret key, as far as it may be read twice: a descriptor's text, or a pipe's, comes once.

    Raises:
        EnvironmentProblem, UsageError: as `check`, or it is not a secret key of minisign's.
    """
    check(word, "the key")
    if name := _variable(word):
        minisign.check_secret_key(os.fsencode(os.environ[name]), "the key")
    elif Path(word).is_file():
        minisign.check_secret_key(read_text(word, "the key"), word)


def read_key(word: str, password_word: str | None, option: str = "--password") -> SecretKey:
    """Gets a key, and its password if it has one: from where `password_word` says, else from the terminal.

    Args:
        option: what gives the password's place, for the sentence.

    Raises:
        EnvironmentProblem: something cannot be read, or there is no terminal.
        UsageError: it is not a key, or the password is wrong.
    """
    data = read_text(word, "the key")
    name = "the key" if word.isdecimal() or _variable(word) else word
    password = b""
    if minisign.is_encrypted(data):
        if password_word is not None:
            password = read_text(password_word, "the password").rstrip(b"\r\n")
        else:
            password = _ask(name, option)
    return minisign.read_secret_key(data, password, name)


def _ask(name: str, option: str) -> bytes:
    if not _has_terminal():
        raise EnvironmentProblem(
            f"{name} is encrypted, and there is no terminal to ask for its password; give {option} with {WHERE}"
        )
    try:
        return os.fsencode(getpass.getpass(f"Password of {name}: ", sys.stderr))
    except EOFError:
        raise UsageError(f"no password was given for {name}; give the one that `minisign -G` was told") from None


def _has_terminal() -> bool:
    try:
        with open("/dev/tty"):
            return True
    except OSError:
        return False


def _variable(word: str) -> str:
    found = re.fullmatch("env:([A-Za-z_][A-Za-z0-9_]*)", word)
    return found[1] if found else ""


def read_text(word: str, what: str) -> bytes:
    """What is kept where `word` says. A variable is taken out of the environment.

    Raises:
        EnvironmentProblem, UsageError: as `check`; or it cannot be read, or is too long.
    """
    check(word, what)
    if name := _variable(word):
        return os.fsencode(os.environ.pop(name))  # what we start has no need of it
    try:
        if word.isdecimal():
            with open(int(word), "rb") as file:
                data = file.read(minisign.LARGEST + 1)
        else:
            data = read_given(word, minisign.LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"{what} cannot be read from {word} ({error.strerror}); give {WHERE}") from error
    if len(data) > minisign.LARGEST:
        raise UsageError(f"{what} in {word} has more than {minisign.LARGEST} bytes; give {WHERE}")
    return data
