#!/usr/bin/python3
"""Record the pictures of the page in docs/: page.png (light) and page-dark.png.

    tests/tools/page_pictures.py

A server trains LeNet-5 with three workers. One worker is stopped for some seconds, and the server is
killed and started again after 5 s. The script needs `make`, Chromium and selenium. Data: $CNN_DATA
or the default data directories.
"""
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.build import ROOT
from support.programs import Programs, until

OPTIONS = ("--model", "conv:6:5:pad=same relu pool:2 conv:16:5 relu pool:2 fc:120 relu fc:84 relu fc:10",
           "--epochs", 120, "--lr", 0.0005, "--checkpoint-ms", 1000)
SIZE = (1300, 1450)


def open_page(url):
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", f"--window-size={SIZE[0]},{SIZE[1] + 150}"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False})
    browser.get(url)
    return browser


def record(programs):
    server = programs.server(*OPTIONS)
    port = server.line(r"http listening.* url=\S+:(\d+)")[1]
    workers = [programs.worker(server.endpoint, "--name", name) for name in ("anna", "ben", "carl")]
    browser = open_page(f"http://127.0.0.1:{port}")
    try:
        time.sleep(20)
        workers[1].signal(signal.SIGSTOP)
        time.sleep(4)
        workers[1].signal(signal.SIGCONT)
        time.sleep(6)
        server.kill()
        time.sleep(5)
        programs.restart(server, *OPTIONS, "--http", f"127.0.0.1:{port}")
        time.sleep(15)
        # close the stream of events at this moment, so that both pictures show the same state
        until(lambda: browser.execute_script(
            "if (!run.gaps.length || status.state != 'training' || !(status.images_per_s > 1000)"
            " || status.accuracy != run.epochs.at(-1).accuracy) return false;"
            "stream.close(); stream = null; return true;"), 60, "the page is live again")
        for theme, name in ("light", "page.png"), ("dark", "page-dark.png"):
            browser.execute_script("theme(arguments[0]); repaint()", theme)
            browser.save_screenshot(str(ROOT / "docs" / name))
    finally:
        browser.quit()


def main():
    data = next(Path(d) for d in (os.environ.get("CNN_DATA"), ROOT / "data/mnist") if d)
    with tempfile.TemporaryDirectory() as directory:
        programs = Programs(Path(directory), data)
        try:
            record(programs)
        finally:
            programs.close()


if __name__ == "__main__":
    main()
