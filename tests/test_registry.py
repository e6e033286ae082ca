"""The package client's configuration, and the pages of indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln_build.fetch.registry import (
    Candidate,
    ClientConfiguration,
    Registry,
    parse_configuration,
    parse_html,
    read_configuration,
)


def test_configuration_of_the_client():
    made = parse_configuration(
        "global.index-url='https://a.org/simple'\n"
        "global.extra-index-url='file:///b/simple\\nhttps://u:p@c.org/simple'\n"
        "download.index-url='https://d.org/simple'\n"
        ":env:.find-links='/opt/wheels https://e.org/w.html'\n"
        "global.find-links='/lost'\n"
        "global.cert='/etc/ca.pem'\n"
        "list.format='columns'\n"
        "nonsense\n"
    )
    assert made == ClientConfiguration(
        indexes=("https://d.org/simple", "file:///b/simple", "https://u:p@c.org/simple"),
        find_links=("/opt/wheels", "https://e.org/w.html"),
        verify="/etc/ca.pem",
    )
    assert "p@" not in Registry(made).places()


def test_no_index_certificates_and_defaults():
    assert parse_configuration(":env:.no-index='1'").indexes == ()
    assert parse_configuration("").indexes == ("https://pypi.org/simple",)
    assert parse_configuration("").verify is True
    assert parse_configuration("global.cert='/a.pem'", Path("/site.pem")).verify == "/site.pem"


def test_the_running_client_is_asked(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://x.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://y.example/simple https://z.example/simple")
    assert read_configuration().indexes == tuple(f"https://{host}.example/simple" for host in "xyz")


def test_html_pages():
    digest = "0" * 64
    text = (
        f'<a href="../../f/a-1.0+cpu-py3-none-any.whl#sha256={digest}" data-requires-python="&gt;=3.11">a</a>'
        '<A HREF="https://cdn.example/b%2B1.whl#md5=1">b</A><a name="x">no link</a>'
    )
    assert parse_html(text, "https://i.example/simple/a/") == [
        Candidate(
            "a-1.0+cpu-py3-none-any.whl", "https://i.example/f/a-1.0+cpu-py3-none-any.whl", digest, None, ">=3.11"
        ),
        Candidate("b+1.whl", "https://cdn.example/b%2B1.whl"),
    ]
    assert parse_html('<base href="https://o.example/x/"><a href="c.whl">c</a>', "https://i.example/")[0].url == (
        "https://o.example/x/c.whl"
    )


@pytest.mark.parametrize("as_address", [True, False])
def test_folders_and_file_indexes(tmp_path, as_address):
    page = tmp_path / "simple" / "my-package" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="../../files/my_package-1.whl">x</a>')
    links = tmp_path / "links here"
    links.mkdir()
    (links / "other-1.whl").touch()
    place = [path.as_uri() if as_address else str(path) for path in (links, tmp_path / "simple")]
    registry = Registry(ClientConfiguration(indexes=(place[1], "/not/there"), find_links=(place[0],)))
    found = {candidate.name: candidate.url for candidate in registry.candidates("My_Package")}
    assert found == {
        "other-1.whl": (links / "other-1.whl").as_uri(),
        "my_package-1.whl": (tmp_path / "files" / "my_package-1.whl").as_uri(),
    }
