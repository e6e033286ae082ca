"""Progress on terminals, in logs and as JSON."""

from __future__ import annotations

import io
import json
import os
import sys
import threading

import pytest

from kiln_recipe.console.progress import Bar, JsonLines, Line, Lines, Progress, Several, make_progress
from kiln_recipe.console.spelling import spell_seconds
from kiln_recipe.errors import EnvironmentProblem


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_are_few_but_each_failure_shows():
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, interval=5, clock=clock)
    lines.start(100, 50.0, title="compile")
    for number in range(100):
        clock.now += 0.1
        lines.done(f"v{number}", 0.1, "failed" if number == 7 else "compiled", detail="no such register", remaining=3)
    lines.close()
    lines.close()
    shown = stream.getvalue().splitlines()
    assert shown[0] == "FAILED v7 after 0.1 s: no such register"
    assert shown[-1] == "compile 100/100: 99 compiled, 1 failed, in 10.0 s"
    assert 1 <= len(shown) - 2 <= 2
    assert all("about 3.0 s left" in line for line in shown[1:-1])


def test_a_terminal_without_tqdm_gets_a_line_that_is_written_over(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert isinstance(make_progress(Terminal()), Line)
    stream, clock = io.StringIO(), Clock()
    line = Line(stream, clock)
    line.start(4, 8.0, title="bench")
    for number in range(4):
        clock.now += 1.0
        line.done(f"v{number}", 1.0, "failed" if number == 2 else "measured", detail="why", remaining=3.0 - number)
    line.close()
    first, *shown, end = [text.removesuffix("\x1b[K") for text in stream.getvalue().split("\r")[1:]]
    assert first == "bench 1/4 after 1.0 s, about 3.0 s left |######------------------|"
    assert shown[0].endswith("|############------------|") and shown[1] == "FAILED v2 after 1.0 s: why\x1b[K\n"
    assert end == "bench 4/4: 1 failed, 3 measured, in 4.0 s\x1b[K\n" and len(shown) == 4


def test_nothing_is_left_where_the_estimate_is_used_up():
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, interval=5, clock=clock)
    lines.start(2, 9.0, title="compile")
    clock.now += 13
    lines.done("a", 13.0, "compiled", remaining=0.0)
    assert stream.getvalue() == "compile 1/2 after 13 s\n"


@pytest.mark.parametrize(
    ("remaining", "said"),
    [
        (725.0, "about 12:05 left"),
        ((480.0, 1200.0), "8 to 20 min left"),
        ((20.0, 70.0), "20 to 70 s left"),
        ((80.0, 100.0), "1 to 2 min left"),
        ((3600.0, 4 * 3600.0), "1 to 4 h left"),
        ((60.1, 60.2), "about 1:00 left"),
        ((0.0, 0.0), ""),
    ],
)
def test_what_is_left_may_be_a_spread(remaining, said, tmp_path):
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, interval=5, clock=clock)
    lines.start(2, title="compile")
    clock.now += 13
    lines.done("a", 13.0, "compiled", remaining=remaining)
    assert stream.getvalue() == f"compile 1/2 after 13 s{f', {said}' if said else ''}\n"
    with make_progress(io.StringIO(), log_json=tmp_path / "log") as progress:
        progress.start(2)
        progress.done("a", 13.0, remaining=remaining)
    told = json.loads((tmp_path / "log").read_text().splitlines()[1])
    if isinstance(remaining, tuple):
        assert (told["remaining"], told["spread"]) == (sum(remaining) / 2, list(remaining))
    else:
        assert (told["remaining"], told["spread"]) == (remaining, None)


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_equal_failures_are_said_once_and_counted_at_the_end(stream):
    shown = make_progress(stream())
    with shown:
        shown.start(5, title="compile")
        for number in range(3):
            shown.done(f"v{number}", 1.0, "failed", detail=f"k.py:14: nn is not defined (log: /logs/v{number}.log)")
        shown.done("w0", 1.0, "failed", detail="took longer (log: /logs/w0.log)")
        shown.done("w1", 1.0, "failed")
        shown.close()
    text = shown._stream.getvalue()
    assert text.count("nn is not defined") == 1 and text.count("FAILED") == 4
    assert "FAILED v0 after 1.0 s: k.py:14: nn is not defined (log: /logs/v0.log)\n" in text
    assert "FAILED v0 (and 2 more variants)\n" in text


def test_programs_are_told_of_each_failure(tmp_path):
    with make_progress(io.StringIO(), tmp_path / "log") as progress:
        progress.start(2)
        for name in "ab":
            progress.done(name, 1.0, "failed", detail="k.py:14: nn is not defined")
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["name"] for line in told if line.get("detail") == "k.py:14: nn is not defined"] == ["a", "b"]


def test_a_phase_of_nothing_is_told_to_programs_alone(tmp_path):
    for stream in (io.StringIO(), Terminal()):
        with make_progress(stream, tmp_path / "log") as progress:
            progress.start(0, 0.0, title="compile")
            progress.close()
        assert stream.getvalue() == ""
    told = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert told == ["start", "close"] * 2


def test_bytes_as_lines():
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, interval=5, clock=clock)
    lines.start(10 << 20, title="fetch", unit="B")
    clock.now += 6
    lines.advance(5 << 20)
    lines.done("triton.whl", 6)
    lines.advance(5 << 20)
    lines.close()
    assert stream.getvalue().splitlines() == ["fetch 5.0/10.0 MiB after 6.0 s", "fetch 10.0/10.0 MiB: 1 done, in 6.0 s"]


def test_bar_shows_estimate_and_keeps_failures():
    stream = Terminal()
    bar = make_progress(stream)
    assert isinstance(bar, Bar)
    with bar:
        bar.start(2, 125.0, title="compile")
        bar._bar.refresh()
        assert "about 2:05 left" in stream.getvalue()
        bar.done("a", 1.0, "failed", detail="broken")
        bar.done("b", 1.0, "compiled", remaining=0.0)
        bar._bar.refresh()
    assert "0.0 s left" not in stream.getvalue()
    assert "FAILED a after 1.0 s: broken\n" in stream.getvalue()
    assert "2/2" in stream.getvalue()


def test_bar_counts_bytes():
    stream = Terminal()
    with make_progress(stream) as bar:
        bar.start(2 << 20, title="fetch", unit="B")
        bar.advance(2 << 20)
        bar.done("wheel", 0.1)
    assert "2.00M/2.00M" in stream.getvalue()


def test_json_lines_to_a_file(tmp_path):
    path = tmp_path / "log with space.jsonl"
    progress = make_progress(io.StringIO(), log_json=path)
    with progress:
        progress.start(1, 2.0, title="compile")
        progress.done("a[x=1]@sm_90", 1.25, "compiled", remaining=0.0)
        progress.message("a ü sentence")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "done", "message", "close"]
    assert events[0]["total"] == 1 and events[0]["estimate"] == 2.0
    assert events[1]["name"] == "a[x=1]@sm_90" and events[1]["seconds"] == 1.25
    assert events[2]["text"] == "a ü sentence"
    assert all(event["time"] > 1e9 for event in events)


def test_whoever_leaves_it_closes_the_file_that_it_opened_and_no_other(tmp_path):
    before = set(os.listdir("/proc/self/fd"))
    with make_progress(io.StringIO(), log_json=tmp_path / "log") as progress:
        progress.start(1)
        progress.close()
        progress.message("between phases")
    assert set(os.listdir("/proc/self/fd")) == before
    assert [json.loads(line)["event"] for line in (tmp_path / "log").open()] == ["start", "close", "message"]
    reader, writer = os.pipe()
    with make_progress(io.StringIO(), log_json=writer) as progress:
        progress.message("to a descriptor of the caller's")
    os.close(writer)  # still open
    os.close(reader)


def test_json_lines_to_a_descriptor_from_many_threads():
    reader, writer = os.pipe()
    progress = make_progress(io.StringIO(), log_json=str(writer))
    progress.start(400)
    threads = [
        threading.Thread(target=lambda: [progress.done("x" * 50, 0.1, "compiled") for _ in range(100)])
        for _ in range(4)
    ]
    received = bytearray()
    drain = threading.Thread(
        target=lambda: [received.extend(block) for block in iter(lambda: os.read(reader, 4096), b"")]
    )
    drain.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    os.close(writer)
    drain.join()
    os.close(reader)
    events = [json.loads(line) for line in received.decode().splitlines()]
    assert sum(event["event"] == "done" for event in events) == 400


@pytest.mark.parametrize("where", ["/nonexistent/folder/log", "987"])
def test_json_to_nowhere_is_one_sentence(where):
    with pytest.raises(EnvironmentProblem, match=f"^progress (cannot be written to|goes to descriptor) {where}[ ,]"):
        make_progress(io.StringIO(), log_json=where)


def test_nobody_reading_stops_nothing():
    reader, writer = os.pipe()
    os.close(reader)
    JsonLines(writer).message("lost")
    os.close(writer)
    stream = io.StringIO()
    lines = Lines(stream)
    lines.start(1)
    stream.close()
    lines.done("a", 1, "failed", detail="lost")
    lines.close()


def test_events_outside_a_phase_are_harmless():
    for progress in (Progress(), Lines(io.StringIO()), Bar(Terminal()), Several([Progress(), Lines(io.StringIO())])):
        progress.done("late", 1.0, "failed")
        progress.advance(4)
        progress.message("hello")
        progress.close()


@pytest.mark.parametrize(
    "seconds, text",
    [(-1, "0.0 s"), (4.24, "4.2 s"), (9.99, "10.0 s"), (59, "59 s"), (59.6, "1:00"), (125, "2:05"), (3725, "1:02:05")],
)
def test_spell_seconds(seconds, text):
    assert spell_seconds(seconds) == text
