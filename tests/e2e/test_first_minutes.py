"""One test does what a newcomer does in the first ten minutes: the demo, its page, a killed worker
and a killed server, the history of both kills, an export, and a prediction for an image of one's
own.

The test begins with a clone of the checkout and `make demo` in it. With CNN_SLOW=1 make compiles
everything. Without CNN_SLOW=1 the clone gets the build under test, so that make has nothing to
compile. If the build under test has a sanitizer, the test starts deploy/demo.sh with this build
instead of `make demo`.
"""
import json
import os
import re
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest

from support import idx, safetensors
from support.build import BUILD, FLAVOUR, FULL, PATIENCE, ROOT
from support.programs import until
from test_images import png


def shown(browser, element):
    return browser.execute_script(f"return document.getElementById('{element}').textContent")


class Demo:
    """Runs `make demo`, or the script of this target, in a checkout as a newcomer has it. The
    member `text` has the output of the demo so far."""

    def __init__(self, place, data, target):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CNN_", "MAKE", "MFLAGS"))}
        self.place, self.text = place, ""
        env.pop("FLAVOUR", None)
        if FULL or "-DKX_CUDA=1" not in (BUILD / "flags").read_text():
            # as in the build under test, because with another value make would compile everything
            # again
            env["CUDA"] = "0"
        self.popen = subprocess.Popen(
            target, cwd=place, env=dict(env, CNN_DATA=str(data), EPOCHS="3000"), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.popen.stdout:
            self.text += line

    def found(self, pattern, seconds=30):
        return self.seen(lambda: re.search(pattern, self.text), seconds, pattern)

    def seen(self, what, seconds, name):
        """Wait for what() while the demo runs."""
        def look():
            assert self.popen.poll() is None, self.text[-3000:]
            return what()
        return until(look, seconds, name)

    def output(self):
        """Wait until the demo has ended. Returns its output."""
        assert self.popen.wait(30 * PATIENCE) == 0, self.text[-3000:]
        self.reader.join(10)
        return self.text

    def close(self):
        if self.popen.poll() is None:
            self.popen.terminate()
            self.popen.wait(30)


def take_the_build(place):
    """Copy the programs and objects of the build under test to the clone. All files get the present
    time, so that make finds them newer than the sources of the clone."""
    kept = shutil.ignore_patterns("tests", "*mutants", "variants", "pic", "man")
    shutil.copytree(BUILD, place / "build/release", symlinks=True, ignore=kept)
    now = time.time()
    for file in (place / "build/release").rglob("*"):
        os.utime(file, (now, now), follow_symlinks=False)


@pytest.fixture
def demo(tmp_path, small):
    place = tmp_path / "cnn-ps"
    if FLAVOUR == "release" or FULL:
        subprocess.run(["git", "clone", "-q", ROOT, place], check=True, timeout=60)
        if not FULL:
            take_the_build(place)
        demo = Demo(place, small, ["make", "demo"])
    else:
        shutil.copytree(ROOT / "deploy", place / "deploy")
        (place / "build").mkdir()
        (place / "build/release").symlink_to(BUILD)
        demo = Demo(place, small, ["deploy/demo.sh"])
    yield demo
    demo.close()


def see_one_gap(demo, browser):
    """Check that the page marks exactly one period without a server: the one after the kill. If the
    check fails, print the data of the page, and the history without its samples and epochs."""
    try:
        until(lambda: browser.execute_script("return run.gaps.length") == 1, 10, "the gap is marked")
    except AssertionError:
        print("gaps, starts, last and newest sample:", browser.execute_script(
            "return [run.gaps, run.starts.map(o => o.t), run.last, run.samples.at(-1)?.t]"))
        print("state and notice:", shown(browser, "state"), shown(browser, "notice"))
        history = (demo.place / "build/demo/history.jsonl").read_text().splitlines()
        for i, line in enumerate(history):
            o = json.loads(line)
            around = any('"kind":"start"' in other for other in history[max(0, i - 3):i + 4])
            if around or o["kind"] not in ("sample", "epoch"):
                print(i, line[:200])
        raise


def kill_a_worker_and_the_server_and_look(demo, programs, browser):
    """Kill a worker and the server of the demo, and check that the page shows both. Returns the
    directory of the demo's run."""
    url, endpoint = demo.found(r"page (\S+), server (\S+)", 900 if FULL else 30).groups()
    server, victim, _ = map(int, demo.found(
        r"processes (\d+) \(server\) (\d+) (\d+) \(workers\)").groups())
    assert FULL or "  CC  " not in demo.text, "make compiles what is built"
    until(lambda: os.path.exists(f"/proc/{server}/exe") and
          os.readlink(f"/proc/{server}/exe").endswith("cnn-ps"), 10, "the server is that process")
    browser.get_log("browser")
    browser.get(url)
    demo.seen(lambda: "%" in shown(browser, "accuracy"), 30, "the page shows an accuracy")
    assert browser.get_log("browser") == [], "the console is clean"
    os.kill(victim, 9)
    until(lambda: re.search("demo1.*?(silent|suspect|away|gone)", shown(browser, "workers"), re.S), 30,
          "the page shows that the worker is gone")
    demo.found("worker1 died from kill -9")
    until(lambda: shown(browser, "live") == "2", 60, "the worker is back")
    os.kill(server, 9)
    until(lambda: "server" in shown(browser, "notice").lower(), 30, "the page shows the gap")
    demo.found("server died from kill -9")
    until(lambda: "start 2 of the server" in shown(browser, "foot"), 60, "the page is live again")
    see_one_gap(demo, browser)
    until(lambda: float(shown(browser, "accuracy").removesuffix(" %").replace("–", "0")) > 75, 60,
          "the network classifies most images")
    programs.ctl("--server", endpoint, "drain")
    text = demo.output()
    assert re.search(r"^accuracy +\d\d\.\d\d %", text, re.M), text
    run = demo.place / re.search(r"^history .* (\S+)$", text, re.M)[1]
    report = demo.place / re.search(r"^report +(\S+),", text, re.M)[1]
    browser.get(report.as_uri())
    assert "workers over time" in shown(browser, "each") and "demo1" in shown(browser, "each")
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [o["resumed"] for o in lines if o["kind"] == "start"] == [False, True]
    changes = {(o["name"], o["change"]) for o in lines if o["kind"] == "worker"}
    assert {("demo1", "joined"), ("demo1", "back"), ("demo2", "back")} <= changes
    assert {change for name, change in changes if name == "demo1"} & {"silent", "gone"}
    return run


def export_and_predict_an_image_of_ones_own(programs, small, run):
    weights = safetensors.load(programs.export(run))
    assert weights["conv1.weight"].shape == (32, 1, 3, 3)
    programs.ctl("export", "--checkpoint", run, programs.directory / "net.onnx")
    assert (programs.directory / "net.onnx").stat().st_size > 4 * sum(t.size for t in weights.values())
    digit, label = idx.read(small, idx.NAMES[2])[0], idx.read(small, idx.NAMES[3])[0]
    mine = programs.directory / "mine.png"  # a digit as most people draw it, with a dark pen
    mine.write_bytes(png(255 - np.array(digit)))
    warned = programs.ctl("predict", "--checkpoint", run, mine)
    assert any("add --invert" in line for line in warned.lines)
    found = programs.ctl("predict", "--checkpoint", run, "--invert", mine)
    assert found.out[0].startswith(f"{mine}: {label} (")


def test_the_first_ten_minutes(demo, programs, small, browser, monkeypatch):
    begun = time.monotonic()
    run = kill_a_worker_and_the_server_and_look(demo, programs, browser)
    monkeypatch.setattr("support.build.BUILD", demo.place / "build/release")
    export_and_predict_an_image_of_ones_own(programs, small, run)
    assert time.monotonic() - begun < 600 * PATIENCE
