"""Test /metrics: promtool can read this page, docs/monitoring.md explains each metric, and the
alert rules and the dashboard use only metrics that exist."""
import json
import re
import shutil
import signal
import subprocess
import time
import urllib.request

import pytest

from support.build import ROOT, without
from support.programs import until

PROMETHEUS = ROOT / "deploy/prometheus"


def promtool(*arguments, **how):
    if not shutil.which("promtool"):
        without("promtool", "deploy/setup.sh")
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, **how)


@pytest.fixture
def metrics(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 500, "--durability", "always")
    programs.worker(server.endpoint, "--name", 'odd "name"', data=small)
    until(lambda: server.status()["accuracy"], 30, "an evaluation")
    until(lambda: server.status()["images_per_s"], 30, "a rate")
    url = server.line(r"http listening.* url=(\S+?)/?$")[1] + "/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        return page.read().decode()


def worker_series(server):
    url = server.line(r"http listening.* url=(\S+?)/?$")[1] + "/metrics"
    with urllib.request.urlopen(url, timeout=5) as page:
        text = page.read().decode()
    return dict(re.findall(r"^(cnnps_worker_\w+\{[^}]*\}) (\S+)$", text, re.M))


def test_series_of_workers_are_continuous(programs, small):
    """The labels of a worker's metrics do not change when the worker changes its state, or while
    the worker is away after a kill of the server."""
    options = ("--model", "seed:4", "--epochs", 5000, "--checkpoint-ms", 200)
    server = programs.server(*options)
    worker = programs.worker(server.endpoint, "--name", "a", data=small)
    until(lambda: server.status()["live_workers"], 30, "a worker")
    before = worker_series(server)
    host = re.search(r'cnnps_worker_live\{worker="1",name="a",host="(\S+)"\}', "\n".join(before))[1]
    states = {k: v for k, v in before.items() if k.startswith("cnnps_worker_state")}
    assert len(states) == 8 and sorted(states.values()) == 7 * ["0"] + ["1"]
    assert states[f'cnnps_worker_state{{worker="1",name="a",host="{host}",state="live"}}'] == "1"
    assert f'cnnps_worker_images_total{{worker="1",name="a",host="{host}"}}' in before
    until(lambda: server.status()["counters"]["pushes"] > 10, 30, "pushes")
    until(lambda: "joined" in (server.directory / "history.jsonl").read_text(), 10, "the history")
    server.kill()
    worker.kill()
    server = programs.restart(server, *options)
    after = worker_series(server)
    assert after[f'cnnps_worker_state{{worker="1",name="a",host="{host}",state="live"}}'] == "0"
    assert after[f'cnnps_worker_live{{worker="1",name="a",host="{host}"}}'] == "0"
    assert f'cnnps_worker_staleness{{worker="1",name="a",host="{host}"}}' in after
    lost = {k for k in set(before) - set(after) if "_info{" not in k}
    assert not lost and not set(after) - set(before)


def names_in(text):
    return set(re.findall(r"^# TYPE (cnnps_\w+) ", text, re.M))


def test_promtool_accepts_the_metrics(metrics):
    done = promtool("check", "metrics", input=metrics)
    assert done.returncode == 0, done.stdout + done.stderr


def test_values(metrics):
    values = dict(re.findall(r"^(cnnps_\w+)(?:\{[^}]*\})? (\S+)$", metrics, re.M))
    assert 0 < float(values["cnnps_accuracy"]) <= 1 and float(values["cnnps_test_loss"]) > 0
    assert float(values["cnnps_images_per_second"]) > 0
    assert 0 < float(values["cnnps_learning_rate"]) <= 0.009
    assert float(values["cnnps_push_seconds_count"]) > 0 and float(values["cnnps_push_seconds_sum"]) > 0
    assert float(values["cnnps_apply_seconds_count"]) >= float(values["cnnps_push_seconds_count"])
    assert float(values["cnnps_wal_write_seconds_count"]) > 0
    assert float(values["cnnps_received_bytes_total"]) > 0 and float(values["cnnps_sent_bytes_total"]) > 0
    assert float(values["cnnps_wal_groups_total"]) > 0 and float(values["cnnps_wal_seconds_total"]) > 0
    assert re.search(r'^cnnps_worker_live\{worker="1",name="odd \\"name\\"",host="\S*"\} 1$', metrics, re.M)
    assert re.search(r'^cnnps_build_info\{version="[\d.]+(-dev)?"\} 1$', metrics, re.M)


def test_the_document_explains_each_metric(metrics):
    page = (ROOT / "docs/monitoring.md").read_text()
    explained = set(re.findall(r"^\| `(cnnps_\w+)`", page, re.M))
    optional = {"cnnps_disk_write_age_seconds"}
    assert names_in(metrics) - explained == set() and explained - names_in(metrics) - optional == set()


def test_alerts_and_dashboard_use_metrics_that_exist(metrics):
    used = set(re.findall(r"\bcnnps_\w+", (PROMETHEUS / "alerts.yml").read_text()))
    board = json.loads((ROOT / "deploy/grafana.json").read_text())
    assert {"cnnps_test_loss", "cnnps_test_metric", "cnnps_epoch", "cnnps_eta_seconds", "cnnps_worker_state",
            "cnnps_staleness_bucket", "cnnps_pull_seconds_bucket", "cnnps_apply_seconds_bucket",
            "cnnps_received_bytes_total"} <= set(re.findall(r"\bcnnps_\w+", json.dumps(board)))
    places = [tuple(panel["gridPos"][k] for k in "xy") for panel in board["panels"]]
    assert len(places) == len(set(places))
    for panel in board["panels"]:
        for target in panel["targets"]:
            used |= set(re.findall(r"\bcnnps_\w+", target["expr"]))
    # test_without_accuracy.py checks cnnps_test_metric, which this run does not have
    known = names_in(metrics) | {"cnnps_test_metric"}
    assert {re.sub("_(bucket|sum|count)$", "", n) for n in used} <= known


def test_prometheus_accepts_the_expressions_of_the_dashboard(tmp_path):
    board = json.loads((ROOT / "deploy/grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{i}", "expr": text} for i, text in enumerate(expressions)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_shows_no_rates_across_a_restart(tmp_path):
    """The counters of the run continue from the checkpoint, and the seconds of a worker are 0 until
    its first heartbeat after the restart. Prometheus takes each decrease for a restart from 0, and
    rate() would show the whole count."""
    board = json.loads((ROOT / "deploy/grafana.json").read_text())
    counters = {"cnnps_duplicates_total": "", "cnnps_rejected_total": 'reason="norm"', "cnnps_refused_total": "",
                "cnnps_staleness_bucket": 'le="+Inf"', "cnnps_worker_seconds_total": 'part="lease"'}
    series = [(f'{name}{{job="cnn-ps", instance="a", {label}}}', "100x6 60x40") for name, label in counters.items()]
    series.append(('cnnps_term{job="cnn-ps", instance="a"}', "1x6 2x40"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]
                   if any(name in target["expr"] for name in counters)]
    assert len(expressions) == 6
    checks = [{"expr": text, "eval_time": "2m", "exp_samples": []} for text in expressions]
    for text in expressions:
        if "quantile" not in text and "group_left" not in text:  # without events these are NaN
            labels = '{instance="a"}' if "sum by" in text else '{job="cnn-ps", instance="a"}'
            checks += [{"expr": text, "eval_time": time, "exp_samples": [{"labels": labels, "value": 0}]}
                       for time in ("1m", "8m")]
    tests = [{"interval": "15s", "input_series": [{"series": s, "values": v} for s, v in series],
              "promql_expr_test": checks}]
    file = tmp_path / "dashboard_test.yml"
    file.write_text(json.dumps({"tests": tests}))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alert_rules():
    assert promtool("check", "rules", PROMETHEUS / "alerts.yml").returncode == 0
    done = promtool("test", "rules", "alerts_test.yml", cwd=PROMETHEUS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_time_of_workers_and_server(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 500)
    programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["workers"] and server.status()["workers"][0]["time"], 30, "a split")
    status = server.status()
    split = status["workers"][0]["time"]
    assert set(split) == {"compute", "weights", "push", "lease", "copy"}
    assert abs(sum(split.values()) - 1) < 1e-6 and split["compute"] > 0 and split["weights"] > 0
    time = status["time"]
    assert min(time.values()) > 0
    assert time["apply"] + time["verify"] + time["idle"] <= time["total"]


# the field `time` of a worker that has not yet reported how it spends its time
NO_TIME = {"compute": 1}


def shares(server, worker):
    return next((w["time"] for w in server.status()["workers"] if w["worker"] == worker), None) or {}


def test_a_worker_that_waits_for_work_spends_its_time_waiting(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 500, "--min-workers", 2)
    programs.worker(server.endpoint, data=small)
    until(lambda: shares(server, 1).get("lease", 0) > 0.99, 10, "a second of waiting")
    url = server.line(r"http listening.* url=(\S+?)/?$")[1] + "/metrics"

    def waited():
        with urllib.request.urlopen(url, timeout=5) as page:
            text = page.read().decode()
        return float(re.search(r'^cnnps_worker_seconds_total\{.*part="lease"\} (\S+)$', text, re.M)[1])
    until(lambda: waited() > 0.9, 10, "the total of the waits to grow")


def test_a_worker_of_sync_that_waits_for_another_spends_its_time_waiting(programs, small):
    """Stop one of two workers: the other waits for the end of the step, which needs both."""
    server = programs.server("--model", "seed:4", "--epochs", 500, "--mode", "sync", "--min-workers", 2,
                             "--suspect-ms", 60000, "--dead-ms", 70000)
    workers = [programs.worker(server.endpoint, "--name", name, data=small) for name in "ab"]
    until(lambda: shares(server, 1).get("compute", 0) > 0.1, 30, "work")
    name = next(w["name"] for w in server.status()["workers"] if w["worker"] == 2)
    workers["ab".index(name)].signal(signal.SIGSTOP)
    until(lambda: {**NO_TIME, **shares(server, 1)}["compute"] < 0.01, 10, "a second of waiting")
    until(lambda: not shares(server, 2), 10, "the stopped worker's shares are not known")


def test_the_rates_of_the_workers_add_up_to_that_of_the_run(programs, small):
    server = programs.server("--model", "seed:4", "--epochs", 5000)
    for name in "abc":
        programs.worker(server.endpoint, "--name", name, data=small)
    until(lambda: server.status()["images_per_s"], 30, "a rate")
    whole, parts = [], []
    for _ in range(30):
        status = server.status()
        whole.append(status["images_per_s"])
        parts.append(sum(w["images_per_s"] for w in status["workers"]))
        time.sleep(0.1)
    assert len(set(whole)) > 1 and whole == pytest.approx(parts, abs=len(status["workers"]))
