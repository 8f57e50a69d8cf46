"""Every view of the server's state gives the reasons for which the server rejected pushes."""
import json

import numpy as np

from client import Worker
from support.programs import until


def samples(server):
    lines = (server.directory / "history.jsonl").read_text().splitlines()
    return [o for o in map(json.loads, lines) if o["kind"] == "sample"]


def test_each_view_says_why_pushes_were_rejected(programs):
    server = programs.server("--model", "vector:8")
    worker = Worker(server.endpoint)
    assert server.status()["counters"]["rejected_for"] == {}
    for _ in range(2):
        worker.push(np.full(8, np.nan, np.float32), 0, loss=1)
    counters = server.status()["counters"]
    assert (counters["rejected"], counters["rejected_for"]) == (2, {"nonfinite": 2})
    text = "\n".join(programs.ctl("--server", server.endpoint, "--once", "top").out)
    assert "rejected 2 (2 nonfinite)" in text
    until(lambda: samples(server) and samples(server)[-1].get("rejected_for") == {"nonfinite": 2}, 10,
          "a sample with the reason")
    assert all(("rejected_for" in s) == (s["rejected"] > 0) for s in samples(server))
    worker.close()
