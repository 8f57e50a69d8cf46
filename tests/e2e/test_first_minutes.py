"""A newcomer's first ten minutes, as one test: the demo, the page, a killed worker and a killed
server, the history of both kills, an export, and the class of an image of your own.

With CNN_SLOW=1 the test begins with a clone of the checkout, `make demo` builds it, and the programs
are those of the clone. Otherwise they are those of the build under test.
"""
import json
import os
import re
import shutil
import subprocess
import time

import numpy as np

from support import idx, safetensors
from support.build import BUILD, FULL, PATIENCE, ROOT
from support.programs import until
from test_images import png

OPTIONS = ("--model", "seed:8", "--epochs", 400, "--checkpoint-ms", 200)


def shown(browser, element):
    return browser.execute_script(f"return document.getElementById('{element}').textContent")


def demo(place, data, target):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CNN_", "MAKE", "MFLAGS"))}
    done = subprocess.run(target, cwd=place, env=dict(env, CNN_DATA=str(data), CUDA="0"), text=True,
                          capture_output=True, timeout=900 * PATIENCE if FULL else 240 * PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def newcomers_checkout(tmp_path, data):
    """Run the demo in a checkout as a newcomer has it. Returns the directory of its programs."""
    place = tmp_path / "cnn-ps"
    if FULL:
        subprocess.run(["git", "clone", "-q", ROOT, place], check=True, timeout=60)
        text = demo(place, data, ["make", "demo"])
    else:
        shutil.copytree(ROOT / "deploy", place / "deploy")
        (place / "build").mkdir()
        (place / "build/release").symlink_to(BUILD)
        text = demo(place, data, ["deploy/demo.sh"])
    assert re.search(r"accuracy", text), text
    return place / "build/release"


def kill_a_worker_and_the_server_and_look(programs, small, browser):
    """Returns the directory of the run."""
    server = programs.server(*OPTIONS)
    url = server.line(r"http listening.* url=(\S+?)/?$")[1]
    victim = programs.worker(server.endpoint, "--name", "victim", data=small)
    other = programs.worker(server.endpoint, "--name", "other", data=small)
    browser.get(url)
    until(lambda: "%" in shown(browser, "accuracy"), 30, "the page shows an accuracy")
    victim.kill()
    until(lambda: re.search("victim.*?(silent|suspect|away|gone)", shown(browser, "workers"), re.S), 30,
          "the page shows that the worker is gone")
    server.kill()
    until(lambda: "server" in shown(browser, "notice").lower(), 30, "the page shows the gap")
    server = programs.restart(server, *OPTIONS, "--http", url.removeprefix("http://"))
    until(lambda: "start 2 of the server" in shown(browser, "foot"), 60, "the page is live again")
    until(lambda: (server.status()["accuracy"] or 0) > 0.75, 60, "the network knows most images")
    programs.ctl("--server", server.endpoint, "drain")
    assert server.wait(20 * PATIENCE) == 0 and other.wait(20 * PATIENCE) == 12
    lines = [json.loads(line) for line in (server.directory / "history.jsonl").read_text().splitlines()]
    assert [o["resumed"] for o in lines if o["kind"] == "start"] == [False, True]
    changes = {(o["name"], o["change"]) for o in lines if o["kind"] == "worker"}
    assert ("victim", "joined") in changes and ("other", "back") in changes
    assert {change for name, change in changes if name == "victim"} & {"silent", "gone"}
    return server.directory


def export_and_predict_an_image_of_ones_own(programs, small, run):
    weights = safetensors.load(programs.export(run))
    assert weights["conv1.weight"].shape == (8, 1, 3, 3)
    programs.ctl("export", "--checkpoint", run, programs.directory / "net.onnx")
    assert (programs.directory / "net.onnx").stat().st_size > 4 * sum(t.size for t in weights.values())
    digit, label = idx.read(small, idx.NAMES[2])[0], idx.read(small, idx.NAMES[3])[0]
    mine = programs.directory / "mine.png"  # drawn with a dark pen, as most people do
    mine.write_bytes(png(255 - np.array(digit)))
    warned = programs.ctl("predict", "--checkpoint", run, mine)
    assert any("add --invert" in line for line in warned.lines)
    found = programs.ctl("predict", "--checkpoint", run, "--invert", mine)
    assert found.out[0].startswith(f"{mine}: {label} (")


def test_the_first_ten_minutes(programs, small, browser, data, tmp_path, monkeypatch):
    begun = time.monotonic()
    monkeypatch.setattr("support.build.BUILD", newcomers_checkout(tmp_path, data))
    run = kill_a_worker_and_the_server_and_look(programs, small, browser)
    export_and_predict_an_image_of_ones_own(programs, small, run)
    assert time.monotonic() - begun < 600 * PATIENCE
