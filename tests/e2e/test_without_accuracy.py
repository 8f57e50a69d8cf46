"""Test what programs show of a run with --metrics mae: its metric and its test loss take the place
of the accuracy."""
import json
import sys
import urllib.request

import numpy as np
import pytest

from support.build import ROOT
from support.programs import until
from test_page import text
from test_top import Terminal

sys.path.append(str(ROOT / "tests/wire"))
from client import Worker, pb  # noqa: E402  a client in Python, written from WIRE.md

IMAGES = 10  # number of training images, and of test images
OPTIONS = ("--model", "vector:4", "--epochs", 2, "--batch-size", IMAGES, "--metrics", "mae")


class Evaluator(Worker):
    """A worker whose evaluations always report a test loss of 2 and a metric mae of 0.25."""

    def __init__(self, endpoint):
        super().__init__(endpoint, metrics="mae", data=pb.DataId(
            n_train=IMAGES, n_test=IMAGES, rows=1, cols=1, classes=2, xxh3=1))

    def train_epoch(self):
        """Train and evaluate one epoch."""
        while (grant := self.lease()).kind != pb.GRANT_EVAL:
            if grant.kind == pb.GRANT_TRAIN:
                self.push(np.ones(4, np.float32), 0, grant.work, images=IMAGES, loss=1.0)
        self.bulk.send(pb.Result(
            stamp=self.stamp, eval_id=grant.eval_id, eval_first=grant.eval_first, code=grant.code,
            eval_count=grant.eval_count, loss_sum=2 * grant.eval_count,
            metric_1=0.25 * grant.eval_count))


@pytest.fixture
def trained(programs):
    """Yields a server whose first epoch is evaluated, and its worker."""
    server = programs.server(*OPTIONS)
    worker = Evaluator(server.endpoint)
    worker.train_epoch()
    until(lambda: server.status()["metrics"], 10, "the evaluation")
    yield server, worker
    worker.close()


def test_prometheus_gets_the_metric(trained):
    url = trained[0].line(r"http listening.* url=(\S+?)/?$")[1] + "/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        lines = page.read().decode().splitlines()
    assert 'cnnps_test_metric{name="mae"} 0.25' in lines and "cnnps_test_loss 2" in lines


def test_top(programs, trained):
    server, worker = trained
    shown = " ".join(" ".join(programs.ctl("--server", server.endpoint, "--once", "top").out).split())
    assert "test loss 2.0000 mae 0.25" in shown and "accuracy" not in shown
    top = Terminal(server.endpoint)
    try:
        top.shows("epoch 2 of 2")
        top.shows(r"test loss +\S+ 2\.0000")
        worker.train_epoch()
        assert top.wait() == 0
        assert "training done: mae 0.25, test loss 2.0000, loss " in top.last_line()
    finally:
        top.close()


def attribute(browser, element, name):
    return browser.find_element("id", element).get_attribute(name)


def test_the_page_draws_the_metric(trained, browser):
    server, worker = trained
    browser.get_log("browser")
    browser.get(server.line(r"http listening.* url=(\S+?)/?$")[1])
    until(lambda: text(browser, "accuracy") == "0.25", 20, "the page shows the metric")
    assert text(browser, "measure") == text(browser, "measure-title") == "mae"
    assert browser.title == "mae 0.25 · cnn-ps"
    assert text(browser, "best") == "test loss 2.0000 · best 2.0000 in epoch 1"
    until(lambda: attribute(browser, "chart-accuracy", "aria-label") == "mae after epoch 1: 0.25", 10,
          "the chart")
    assert "empty" not in attribute(browser, "chart-accuracy", "class")
    assert browser.execute_script("return curves[0].getValue(0, 1)") == 0.25
    # the page must also draw the history line of an epoch that has no metric
    browser.execute_script(
        "run = new Run('', ROOM); run.take({t: Date.now(), kind: 'epoch', epoch: 7, accuracy: null,"
        "test_loss: 0.5, metrics: {}}); status = {...status, metrics: {}, test_loss: 0.5};"
        "drawStatus(); draw();")
    assert text(browser, "measure") == "Test loss" and text(browser, "accuracy") == "0.5"
    assert text(browser, "best") == "best 0.5000 in epoch 7"
    assert browser.get_log("browser") == [], "the console is clean"


def test_the_page_names_the_metric_before_an_evaluation(programs, browser):
    server = programs.server(*OPTIONS)
    browser.get(server.line(r"http listening.* url=(\S+?)/?$")[1])
    until(lambda: text(browser, "state") == "waiting", 10, "the page")
    until(lambda: text(browser, "measure-title") == "mae", 10, "the name")
    assert text(browser, "measure") == "mae" and text(browser, "accuracy") == "–"


def test_report_compares_the_metric(programs, browser):
    places = [programs.directory / name for name in ("one", "two")]
    for i, place in enumerate(places):
        place.mkdir()
        start = {"t": 1000, "kind": "start", "model": "fc:1", "options": {}}
        epochs = [{"t": 1000 * n, "kind": "epoch", "epoch": n, "accuracy": None, "test_loss": loss,
                   "metrics": {"mae": 2 * loss + i, "rmse": 9}}
                  for n, loss in ((1, 0.75), (2, 0.25), (3, 0.5))]
        (place / "history.jsonl").write_text("".join(json.dumps(o) + "\n" for o in (start, *epochs)))
    page = programs.directory / "report.html"
    page.write_text("\n".join(programs.ctl("report", *places).out))
    browser.get_log("browser")
    browser.get(page.as_uri())
    assert browser.get_log("browser") == [], "the console is clean"
    cells = browser.execute_script("return [...document.querySelectorAll('#runs tbody tr')].map("
                                   "r => [...r.cells].slice(4, 8).map(c => c.textContent))")
    assert cells == [[f"mae {0.5 + i:g} · rmse 9", "2", f"mae {1 + i} · rmse 9", "0.5000"]
                     for i in (0, 1)]
    assert text(browser, "title-accuracy") == "mae by epoch"
    assert text(browser, "title-time") == "mae by time (s)"
    assert attribute(browser, "chart-time", "aria-label") == "mae by seconds of the server"
    assert browser.execute_script("return [0, 2].map(i => curves[0].getValue(0, i))") == [1, 2.5]
    assert "empty" not in attribute(browser, "chart-time", "class")
