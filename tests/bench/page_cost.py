#!/usr/bin/python3
"""Measure the processor time that the server's page costs, and the time until its first paint.

    tests/bench/page_cost.py paint    milliseconds until Chromium's first paint of the page
    tests/bench/page_cost.py idle     processor time of a server with 200 workers that do nothing
    tests/bench/page_cost.py pushes   processor time of the server per push, with and without pages

A viewer is a connection that reads /events as the page does. The processor time is the sum over all
threads of the server, read from /proc. `pushes` makes one run of the model seed:32 with two
workers and batches of 10 images, so that the server is busy, and measures pairs: ten seconds
without viewers and ten with viewers, in intervals of one second each, so that other programs on the
machine slow down both alike. `pushes` prints the median of the ratios of all pairs. The script
needs the programs that `make tests` builds, and an idle machine. The command `paint` also needs
Chromium. Data: $CNN_DATA or the default data directories.
"""
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE), str(HERE.parent / "wire")]

from support.programs import Process, Programs, until  # noqa: E402
from support.build import command  # noqa: E402
from through_server import data_directory  # noqa: E402

LOADS = 20              # how many times `paint` loads the page
WORKERS, IDLE_S = 200, 10
PAIRS, INTERVALS, INTERVAL_S, VIEWERS = 10, 10, 1, 3


def processor_s(process):
    """Returns the processor time that the process has used, in seconds."""
    tasks = Path(f"/proc/{process.popen.pid}/task").iterdir()
    return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks) / 1e9


class Viewers:
    """Connections of open pages. Each page reads /history/short once, and then /events until close()."""

    def __init__(self, server, n):
        host, port = server.line(r"http listening.* url=http://(\S+?)/?$")[1].split(":")
        self.streams, self.bytes = [], 0
        for _ in range(n):
            for path in "history/short", "events":
                s = socket.create_connection((host, int(port)), timeout=10)
                s.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n"
                          f"{'Connection: close' if path == 'history/short' else 'X: y'}\r\n\r\n".encode())
                if path == "history/short":
                    while s.recv(1 << 16):
                        pass
                    s.close()
            self.streams.append(s)
            threading.Thread(target=self.read, args=(s,), daemon=True).start()

    def read(self, stream):
        try:
            stream.settimeout(None)
            while data := stream.recv(1 << 16):
                self.bytes += len(data)
        except OSError:
            pass

    def close(self):
        for s in self.streams:
            s.shutdown(socket.SHUT_RDWR)
            s.close()


def paint(programs):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    options = webdriver.ChromeOptions()
    for argument in "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage":
        options.add_argument(argument)
    server = programs.server("--model", "seed:32", "--epochs", 1000)
    programs.worker(server.endpoint)
    until(lambda: server.status()["updates"], 30, "training")
    url = server.line(r"http listening.* url=(\S+?)/?$")[1]
    browser = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
    try:
        browser.get("about:blank")
        times = []
        for _ in range(LOADS):
            browser.get(url)
            times.append(until(lambda: browser.execute_script(
                "const e = performance.getEntriesByName('first-contentful-paint')[0];"
                "return e && e.startTime"), 10, "a paint"))
    finally:
        browser.quit()
    print(f"first paint, {LOADS} loads beside a training worker: median"
          f" {statistics.median(times):.0f} ms, highest {max(times):.0f} ms")


def idle(programs):
    from client import Worker
    workers = []
    options = ("--model", "vector:64", "--max-workers", 256, "--dead-ms", 600000)
    for http in False, True:
        if http:
            server = programs.server(*options, directory=None)
        else:
            server = programs.add(Process("cnn-ps", command(
                "cnn-ps", "--bind", "tcp://127.0.0.1:0", *options)))
        endpoint = server.line(r"net listening.* endpoint=(\S+)")[1]
        for i in range(WORKERS):
            workers.append(Worker(endpoint, name=f"worker-{i:03d}", host=f"compute-{i:04d}.cluster",
                                  pid=1000 + i))
            time.sleep(0.025)
        for n in (0, 1, VIEWERS) if http else (0,):
            viewers = Viewers(server, n) if n else None
            time.sleep(2)
            seen, begun, used = viewers.bytes if n else 0, time.monotonic(), processor_s(server)
            time.sleep(IDLE_S)
            seconds, used = time.monotonic() - begun, processor_s(server) - used
            sent = (viewers.bytes - seen) / seconds if n else 0
            print(f"{WORKERS} workers, {'' if http else 'no '}--http, {n} viewers:"
                  f" {100 * used / seconds:.3f} % of a core, {sent / 1000:.0f} kB/s", flush=True)
            if n:
                viewers.close()
        server.kill()
    for worker in workers:
        worker.close()


def interval(server, n):
    """Measure an interval with n viewers. Returns (seconds of processor time, number of pushes)."""
    viewers = Viewers(server, n)
    time.sleep(0.2)
    used, pushes = processor_s(server), server.status()["counters"]["pushes"]
    time.sleep(INTERVAL_S)
    used, pushes = processor_s(server) - used, server.status()["counters"]["pushes"] - pushes
    viewers.close()
    return used, pushes


def pushes(programs):
    server = programs.server("--model", "seed:32", "--epochs", 60000, "--batch-size", 10)
    for _ in range(2):
        programs.worker(server.endpoint)
    until(lambda: server.status()["updates"] > 1000, 60, "training")
    ratios = []
    for pair in range(PAIRS):
        order = (0, VIEWERS) if pair % 2 else (VIEWERS, 0)
        intervals = {n: [] for n in order}
        for _ in range(INTERVALS):
            for n in order:
                intervals[n].append(interval(server, n))
        ns = {n: 1e9 * sum(u for u, _ in t) / sum(p for _, p in t) for n, t in intervals.items()}
        ratios.append(ns[VIEWERS] / ns[0])
        print(f"{ns[0]:.0f} ns per push without a page, {ns[VIEWERS]:.0f} ns with {VIEWERS}:"
              f" {100 * (ratios[-1] - 1):+.2f} %", flush=True)
    print(f"median of {PAIRS} alternating pairs: {100 * (statistics.median(ratios) - 1):+.2f} %")


def main():
    what = {"paint": paint, "idle": idle, "pushes": pushes}
    if len(sys.argv) != 2 or sys.argv[1] not in what:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        programs = Programs(Path(directory), data_directory())
        try:
            what[sys.argv[1]](programs)
        finally:
            programs.close()


if __name__ == "__main__":
    main()
