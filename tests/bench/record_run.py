#!/usr/bin/env python3
"""Record a run and write it as an animated picture: docs/kill.svg.

Three workers train cnn99. After 5 s the script kills the server with -9, and 3 s later starts it
again with the same command. All figures in the picture come from the history of the run. The script
needs the programs (make) and the images (deploy/data.sh).

usage: tests/bench/record_run.py OUT.svg
"""
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/release"
KILL_S, AWAY_S, END_S = 5, 3, 16
WIDTH, HEIGHT, LEFT, RIGHT = 820, 420, 150, 800
TOP, BOTTOM, LOOP_S = 64, 244, 12
TICKS = (0.03, 0.1, 0.3, 1, 3, 10)

# the colours of docs/figures.gp
STYLE = """
text { font: 14px sans-serif; fill: #787d80 } .small { font-size: 12px }
.grid { stroke: #787d80; stroke-opacity: 0.25 } .loss { stroke: #3d5cad; stroke-width: 3; fill: none }
.live { fill: #52a37a } .away { fill: #ff5c14 } .mark { stroke: #ff5c14; stroke-dasharray: 4 3 }
@media (prefers-reduced-motion: reduce) { .moving { clip-path: none } }
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def record(place):
    """Make the run. Returns the lines of the run's history.jsonl, and the times at which the server
    was killed and started again."""
    data = subprocess.run([ROOT / "deploy/data.sh"], check=True, capture_output=True,
                          text=True).stdout.strip()
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    command = [BUILD / "cnn-ps", "--bind", endpoint, "--model", "cnn99", "--epochs", "100",
               "--checkpoint-dir", place]
    log = subprocess.DEVNULL
    processes = []
    try:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        workers = [subprocess.Popen([BUILD / "cnn-worker", "--server", endpoint, "--data", data,
                                     "--threads", "1"], stderr=log) for _ in range(3)]
        processes = [server, *workers]
        while '"sample"' not in history(place):
            time.sleep(0.05)
        time.sleep(KILL_S)
        server.send_signal(signal.SIGKILL)
        server.wait()
        killed = time.time()
        time.sleep(AWAY_S)
        processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        time.sleep(END_S - KILL_S - AWAY_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(line) for line in history(place).splitlines()], killed


def history(place):
    file = Path(place) / "history.jsonl"
    return file.read_text() if file.exists() else ""


def picture(lines, killed):
    samples = [o for o in lines if o["kind"] == "sample" and o["updates"]]
    zero = min(o["t"] for o in lines) / 1000
    back = [o["t"] / 1000 for o in lines if o["kind"] == "start"][1]
    end = samples[-1]["t"] / 1000
    lowest, highest = (f(o["loss"] for o in samples) for f in (min, max))

    def x(t):
        return LEFT + (t - zero) / (end - zero) * (RIGHT - LEFT)

    def y(loss):
        return BOTTOM - math.log(loss / lowest) / math.log(highest / lowest) * (BOTTOM - TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
           "<title>The server is killed with -9 and started again: three workers return, and the "
           "loss goes on falling</title>",
           f"<style>{STYLE}</style>",
           f'<text x="{LEFT}" y="24">kill -9 of the server: three workers return, and the loss '
           'goes on falling</text>',
           f'<text class="small" x="{LEFT}" y="44">cnn99 on MNIST; a server and three workers on one '
           f'machine with {os.cpu_count()} cores, --checkpoint-dir</text>',
           f'<clipPath id="past"><rect x="0" y="0" height="{HEIGHT}" width="{WIDTH}">'
           f'<animate attributeName="width" dur="{LOOP_S}s" repeatCount="indefinite" '
           f'values="{LEFT};{WIDTH};{WIDTH}" keyTimes="0;0.8;1"/></rect></clipPath>']
    for loss in (tick for tick in TICKS if lowest <= tick <= highest):
        out += [f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>',
                f'<text class="small" x="{LEFT - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">'
                f'{loss:g}</text>']
    out += [f'<text class="small" x="16" y="{TOP + 4}">training loss</text>',
            f'<text class="small" x="16" y="{TOP + 20}">logarithmic</text>',
            f'<text class="small" x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
            'time since the start of the server</text>']
    for second in range(0, int(end - zero) + 1, 2):
        out += [f'<text class="small" x="{x(zero + second):.1f}" y="{HEIGHT - 28}" '
                f'text-anchor="middle">{second} s</text>']
    out += ['<g class="moving" clip-path="url(#past)">']
    for part in ([o for o in samples if o["t"] / 1000 <= killed],
                 [o for o in samples if o["t"] / 1000 > killed]):
        points = " ".join(f'{x(o["t"] / 1000):.1f},{y(o["loss"]):.1f}' for o in part)
        out += [f'<polyline class="loss" points="{points}"/>']
    out += [f'<line class="mark" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{TOP}" y2="{HEIGHT - 48}"/>'
            for t in (killed, back)]
    out += [f'<text class="small" x="{x(killed) + 4:.1f}" y="{TOP + 12}">kill -9</text>',
            f'<text class="small" x="{x(back) + 4:.1f}" y="{TOP + 28}">same command again</text>']
    for row, name in enumerate(("server", "worker 1", "worker 2", "worker 3")):
        top = BOTTOM + 24 + 26 * row
        spans = [(zero, killed, "live"), (killed, back, "away"), (back, end, "live")]
        if row:
            seen = [o["t"] / 1000 for o in lines if o["kind"] == "worker" and o["worker"] == row]
            returned = [t for t in seen if t > killed][:1] or [back]
            spans = [(min(seen), killed, "live"), (killed, returned[0], "away"),
                     (returned[0], end, "live")]
        out += [f'<rect class="{state}" x="{x(a):.1f}" y="{top}" width="{x(b) - x(a):.1f}" '
                'height="14"/>' for a, b, state in spans]
    out += ["</g>"]
    out += [f'<text class="small" x="16" y="{BOTTOM + 36 + 26 * row}">{name}</text>'
            for row, name in enumerate(("server", "worker 1", "worker 2", "worker 3"))]
    for at, state in (16, "live"), (66, "away"):  # the legend of the picture
        out += [f'<rect class="{state}" x="{at}" y="{HEIGHT - 18}" width="12" height="12"/>',
                f'<text class="small" x="{at + 16}" y="{HEIGHT - 8}">{state}</text>']
    return "\n".join([*out, "</svg>", ""])


def main():
    place = tempfile.mkdtemp()
    try:
        lines, killed = record(place)
    finally:
        shutil.rmtree(place)
    Path(sys.argv[1]).write_text(picture(lines, killed))


if __name__ == "__main__":
    sys.exit(__doc__ if len(sys.argv) != 2 else main())
