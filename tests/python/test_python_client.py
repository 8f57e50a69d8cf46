"""Test the Python package cnnps: connections, leases, tensors, errors, signals and forks."""
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.build import ROOT
from support.programs import until

import cnnps
from cnnps import errors
from cnnps.order import held_back, order

SGD = {"optimizer": "sgd", "lr": 1, "lr_scaling": "none", "staleness_scaling": "constant",
       "warm_start_updates": 0}
DATA = cnnps.Data(n_train=22, n_test=7, xxh3=5)


def vector(n=10, **options):
    return {"model": f"vector:{n}", **SGD, **options}


def python(code, *arguments):
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_order_is_that_of_the_protocol():
    text = (ROOT / "proto/WIRE.md").read_text(encoding="utf-8")
    for epoch, said in ((0, "9 5 0 3 6 7 2 1 8 4"), (1, "0 5 9 3 4 6 2 8 7 1")):
        assert said in text
        assert order(7, epoch, 10).tolist() == [int(x) for x in said.split()]
    # tests/unit/test_rng.c has the same shuffle: 1 6 8 2 9 ...
    assert held_back(10, 4).tolist() == [1, 2, 6, 8] and not held_back(10, 0).size
    assert sorted(order(1, 2, 1000)) == list(range(1000)) and order(3, 0, 1).tolist() == [0]


def test_statuses_and_exceptions_are_those_of_the_header():
    header = (ROOT / "worker/client/cnnps.h").read_text(encoding="utf-8")
    numbers = {int(line.split("=")[1].split(",")[0].split("/")[0]) for line in header.splitlines()
               if line.startswith("\tCNNPS_E") and "= -" in line}
    assert numbers == set(errors.BY_STATUS)
    for status, kind in errors.BY_STATUS.items():
        assert kind("why").status == status and str(kind("why")) == "why"


def test_structs_are_those_of_the_header(tmp_path):
    """Compare the structs of the package with a C program that prints the sizes of the header's
    structs and the offsets of their fields."""
    import ctypes
    from cnnps import _library
    kinds = {k.__name__.lower(): k for k in (_library.Options, _library.Data, _library.Info,
             _library.Lease, _library.Pull, _library.Push, _library.Work, _library.Stats,
             _library.Evaluation)}
    lines, expected = [], []
    for name, kind in kinds.items():
        lines.append(f'printf("%zu ", sizeof(struct cnnps_{name}));')
        expected.append(ctypes.sizeof(kind))
        for field, _ in kind._fields_:
            lines.append(f'printf("%zu ", offsetof(struct cnnps_{name}, {field}));')
            expected.append(getattr(kind, field).offset)
    (tmp_path / "a.c").write_text('#include "worker/client/cnnps.h"\n#include <stdio.h>\n'
                                  "int main(void) { " + "\n".join(lines) + " return 0; }\n")
    subprocess.run(["gcc", "-I", ROOT, "-o", tmp_path / "a", tmp_path / "a.c"], check=True)
    text = subprocess.run([tmp_path / "a"], check=True, capture_output=True, text=True).stdout
    assert [int(x) for x in text.split()] == expected


@pytest.mark.parametrize("options", [
    {}, {"n_push": 3}, {"n_push": 2, "n_fetch": 2}, {"n_fetch": 3}, {"prefetch": True},
    {"n_push": 4, "n_fetch": 2, "prefetch": True}, {"push": "sum", "n_push": 3},
    {"mode": "ssp"}, {"mode": "sync"}, {"mode": "sandblaster", "optimizer": "sgd"},
    {"mode": "easgd", "n_push": 2}, {"mode": "easgd", "prefetch": True}], ids=str)
def test_every_mode_trains_every_sample_once_per_epoch(server, options):
    options = vector(**{"epochs": 3, "batch_size": 4, **options})
    if options.get("mode") == "easgd":
        options = {k: v for k, v in options.items() if k in
                   ("model", "mode", "epochs", "batch_size", "n_push", "prefetch")}
    if options.get("mode") in ("sync", "sandblaster"):
        for name in ("staleness_scaling", "warm_start_updates", "lr_scaling"):
            options.pop(name)
    run = server(**options)
    seen, tests = {}, {}
    with run.connect(data=DATA) as client:
        def gradient(weights, batch, out):
            assert len(batch) == (2 if batch.first == 5 else 4)
            for i in batch.indices.tolist():
                seen[batch.epoch, i] = seen.get((batch.epoch, i), 0) + 1
            out[:] = weights - 3
            return float(((weights - 3) ** 2).sum())

        def evaluate(weights, first, count):
            for i in range(first, first + count):
                tests[i] = tests.get(i, 0) + 1
            return count - 1, 0.5 * count
        cnnps.Worker(client, gradient, evaluate).train(progress=True)
        stats = client.stats()
    result = run.wait(20)
    assert stats.rejected == stats.superseded == 0 and stats.acked == stats.pushed
    assert seen == {(e, i): 1 for e in range(3) for i in range(22)}
    assert tests == {i: 3 for i in range(7)}
    assert result["images_per_epoch"] == [22, 22, 22] and result["loss"] == 0.5


def test_leases_batches_and_results(server):
    run = server(**vector(epochs=1, batch_size=8))
    with run.connect(data=DATA) as client:
        assert client.info.mode == "downpour" and client.info.batch == 8
        batches = evaluations = 0
        for lease in client.leases():
            if lease.is_eval:
                weights = client.pull_eval()
                assert (weights == -batches).all()
                client.result(lease, lease.count, 1.0)
                evaluations += 1
                continue
            for batch in lease.batches():
                client.pull()
                client.push(np.ones(10, np.float32), batch, loss=2.0)
                batches += 1
        assert (batches, evaluations) == (3, 1)
        assert client.stats().acked == 3
        with pytest.raises(cnnps.Done):
            client.lease()
    assert run.wait(20)["images"] == 22


def test_a_run_that_holds_back_samples(server):
    """Training leases contain none of the samples that --validate holds back, and evaluations use
    only these samples."""
    run = server(**vector(epochs=2, batch_size=4, validate=5))
    with pytest.raises(cnnps.UsageError, match="holds back 5 .*`validates`"):
        run.connect(data=DATA)
    seen, tests = [], []
    with run.connect(data=DATA, validates=True) as client:
        held = client.held_back.tolist()
        assert client.info.validate == 5 and len(set(held)) == 5 and held == sorted(held)

        def gradient(weights, batch, out):
            seen.extend(batch.indices.tolist())
            out[:] = 0
            return 1.0

        def evaluate(weights, first, count):
            tests.extend(client.held_back[first:first + count].tolist())
            return 0, 1.0
        cnnps.Worker(client, gradient, evaluate).train(progress=True)
    assert run.wait(20)["images_per_epoch"] == [17, 17]
    assert sorted(seen) == sorted(2 * list(set(range(22)) - set(held)))
    assert sorted(tests) == sorted(2 * held)
    with server(**vector()).connect() as client:
        assert client.info.validate == len(client.held_back) == 0


def test_a_metric_that_is_not_finite_is_refused(server):
    """The server takes any value that is not finite for a sign that training has diverged, but only
    the loss is such a sign. So the client must refuse a metric that is not finite."""
    run = server(**vector(epochs=1, batch_size=22, metrics="f1"))
    with run.connect(data=DATA, metrics=("f1",)) as client:
        for lease in client.leases():
            if not lease.is_eval:
                client.push(np.zeros(10, np.float32), lease.whole())
                continue
            client.pull_eval()
            for bad in float("nan"), float("inf"):
                with pytest.raises(cnnps.UsageError, match=f"metric_sums: {bad}: .* finite"):
                    client.result(lease, 0, 1.0, [bad])
            client.result(lease, 0, 1.0, [2.0])
    assert run.wait(20)["metrics"] == {"f1": pytest.approx(2 / 7)}


def test_own_server_ignores_the_keys_of_the_environment(server, monkeypatch, tmp_path):
    """Environment variables may name the server and the keys of another run. A server with keys of
    its own takes the keys that connect() takes."""
    cnnps.programs.keygen(str(tmp_path / "keys"))
    own = server(**vector(), checkpoint_dir=False)
    keyed = server(**vector(), checkpoint_dir=False, key=str(tmp_path / "keys/server.key"))
    monkeypatch.setenv("CNN_SERVER", "tcp://127.0.0.1:1")
    monkeypatch.setenv("CNN_KEY", str(tmp_path / "keys/worker.key"))
    monkeypatch.setenv("CNN_SERVER_KEY", str(tmp_path / "keys/server.pub"))
    with own.connect(connect_timeout=5), keyed.connect(connect_timeout=5):
        pass
    with cnnps.connect(own.endpoint, key="", server_key="", connect_timeout=5):
        pass


def test_leases_end_if_the_run_ends_before_the_progress_bar_asks(server, monkeypatch):
    def ended(self):
        raise cnnps.Done("training is done")
    monkeypatch.setattr("cnnps.progress.Progress.update", ended)
    run, leases = server(**vector(epochs=1, batch_size=8)), None
    with run.connect(data=DATA) as client:
        leases = list(client.leases(progress=True))
    assert leases and len(leases) == 1


class Bar:
    """A progress bar with the parts of tqdm's bar that the class Progress uses."""

    bars: "list[Bar]" = []

    def __init__(self, **options):
        self.shown = []
        self.bars.append(self)

    def set_postfix(self, **values):
        self.shown.append((self.n, self.total, values["epoch"]))

    def close(self):
        pass


def test_progress_bar_counts_all_samples_of_a_long_run(server, monkeypatch):
    """The bar must count all epochs, although a status has the records of only the newest 20
    epochs."""
    import types
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    monkeypatch.setattr("cnnps.progress._SECONDS", 0)
    monkeypatch.setattr(Bar, "bars", [])
    run = server(**vector(epochs=30, batch_size=11, metrics="none"))
    with run.connect(data=DATA, metrics=()) as client:
        cnnps.Worker(client, lambda weights, batch, out: 1.0).train(progress=True)
    run.wait(20)
    shown = Bar.bars[0].shown
    assert {total for _, total, _ in shown} == {30 * 22}
    counts = [n for n, _, _ in shown]
    assert counts == sorted(counts) and counts[-1] > 28 * 22, shown
    assert all(22 * (epoch - 2) <= n <= 22 * (epoch + 1) for n, _, epoch in shown), shown


def test_gradients_and_weights_are_not_copied(server):
    run = server(lane="tcp", **vector(4))
    with run.connect() as client:
        weights = np.zeros((2, 2), np.float32)
        assert client.pull(weights).base is weights or client.pull(weights) is weights
        g = client.gradient()
        assert client.gradient().ctypes.data == g.ctypes.data and g.ctypes.data % 64 == 0
        g[:] = [1, 2, 3, 4]
        client.push(g, then=weights)
        assert client.gradient().ctypes.data != g.ctypes.data  # the library owns g after push
        assert weights.tolist() == [[-1, -2], [-3, -4]] and client.version == 1
        client.push(np.array([5], np.float32), offset=2)
        client.push([[1, 0], [0, 0]])  # push converts the list
        assert client.flush()
        assert client.pull().tolist() == [-2, -2, -8, -4]
        for wrong in (np.zeros(3, np.float32), np.zeros(4), np.zeros(8, np.float32)[::2]):
            with pytest.raises(cnnps.UsageError, match="4 writable float32"):
                client.pull(wrong)
        with pytest.raises(cnnps.UsageError, match="outside the parameters"):
            client.push(np.zeros(5, np.float32))
        late = client.gradient()
    late[:] = 1  # an array from gradient() can be used after its connection is closed


def test_bfloat16_feeds_its_errors_back(server):
    """The server is killed twice. The final weights must be the sum of all gradients, except for
    the rounding error of the newest push: each push also carries the rounding error of the push
    before it. The gradients are multiples of 2^-14, so that float32 adds them exactly."""
    run = server(lane="tcp", checkpoint_ms=50, max_staleness=100, **vector(5000))
    draw = np.random.default_rng(3)
    total = np.zeros(5000)
    with pytest.raises(cnnps.UsageError, match="fp32, bf16"):
        run.connect(wire="fp8")
    with run.connect(wire="bf16") as client:
        for k in range(60):
            gradient = (draw.integers(-2**14, 2**14, 5000) / 2**14).astype(np.float32)
            total += gradient
            client.push(gradient)
            if k in (20, 40):
                run.restart()
        assert client.flush()
        assert run.connect(observer=True).status()["workers"][0]["wire"] == "bf16"
        rounded = client.pull()
        assert client.stats().replayed > 0
    with run.connect(observer=True) as observer:
        error = -observer.pull() - total
        assert (rounded.view(np.uint32) & 0xffff == 0).all()
        assert (abs(error) <= 2**-8).all() and (error != 0).mean() > 0.5


def test_observer_reads_and_operates(server, tmp_path):
    run = server(**vector(), checkpoint_dir=str(tmp_path / "run"))
    with run.connect(observer=True) as client:
        assert client.status()["model"] == "vector:10"
        assert client.checkpoint() > 0
        with pytest.raises(cnnps.UsageError, match="observer cannot push"):
            client.push(np.zeros(10, np.float32))
        client.log_level("debug")
        until(lambda: any("from=info to=debug" in line for line in run.log), 10, "the level is set")
        with pytest.raises(cnnps.UsageError, match="the level is error"):
            client.log_level("loud")
        with pytest.raises(cnnps.UsageError, match="no worker in quarantine has this name"):
            client.release("nobody")
        client.drain()
    assert run.wait(20)["status"] == "drained" or not run.running()
    run.export(str(tmp_path / "w.safetensors"))
    assert (tmp_path / "w.safetensors").stat().st_size > 40


def test_quarantine_ends_with_a_release(server):
    """To put a name in quarantine, the test first starts workers of this name, one after the other,
    which push gradients that are not finite."""
    run = server(**vector(epochs=1, batch_size=1, eval_checks=0))

    def broken():
        with run.connect(data=DATA, name="a") as client:
            for lease in client.leases():
                for batch in lease.batches():
                    client.push(np.full(10, np.nan, np.float32), batch)
    for _ in range(4):
        with pytest.raises(cnnps.QuarantineError):
            broken()
    with run.connect(observer=True) as client:
        client.release("a")
    run.connect(data=DATA, name="a").close()


def test_errors(server):
    run = server(**vector(epochs=1))
    with pytest.raises(cnnps.WrongDataError, match="needs a data set") as refused:
        run.connect()
    assert refused.value.status == -8
    with pytest.raises(cnnps.UnreachableError, match="no contact within"):
        cnnps.connect("tcp://127.0.0.1:1", connect_timeout=1)
    with pytest.raises(ConnectionError):
        cnnps.connect("tcp://127.0.0.1:1", connect_timeout=1)
    with pytest.raises(cnnps.UsageError):
        cnnps.connect("nonsense")
    with pytest.raises(cnnps.UsageError, match="absent"):
        cnnps.connect("tcp://127.0.0.1:1", key="/nowhere/absent")
    with pytest.raises(cnnps.Error, match="no-such"):
        server(no_such_option=1)
    client = run.connect(data=DATA)
    client.close()
    client.close()
    with pytest.raises(cnnps.UsageError, match="is closed"):
        client.pull()


def test_a_run_without_epochs_has_no_leases(server):
    """In a run without epochs the server never grants a lease, and pushes need no lease."""
    run = server(**vector())
    with run.connect(data=DATA) as client:
        assert client.info.epochs == 0
        for call in client.lease, lambda: next(client.leases()), cnnps.Worker(client, None).train:
            with pytest.raises(cnnps.UsageError, match=r"no data set \(--epochs 0\).*--epochs N"):
                call()
        client.push(np.ones(10, np.float32))
        assert client.flush() and (client.pull() == -1).all()


def test_a_wait_releases_the_gil(server):
    run = server(**vector(epochs=1, min_workers=2))
    with run.connect(data=DATA) as client:
        thread = threading.Thread(target=lambda: pytest.raises(cnnps.Error, client.lease))
        thread.start()
        begin, count = time.monotonic(), 0
        while time.monotonic() < begin + 0.3:
            count += 1
        assert count > 1000 and thread.is_alive()
        run.close()
        thread.join(20)
        assert not thread.is_alive()


INTERRUPTED = """
import cnnps, sys, time
with cnnps.connect(sys.argv[1], data=cnnps.Data(n_train=10)) as client:
    print("waiting", flush=True)
    try:
        client.lease()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_wait(server):
    run = server(**vector(epochs=1, min_workers=2))
    waiting = python(INTERRUPTED, run.endpoint)
    assert waiting.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    begin = time.monotonic()
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=20)
    assert (out, err, waiting.returncode) == ("interrupted\n", "", 0)
    assert time.monotonic() - begin < 4


def test_ctrl_c_ends_a_connect():
    waiting = python("import cnnps\nprint('begun', flush=True)\ncnnps.connect('tcp://127.0.0.1:1')")
    assert waiting.stdout.readline() == "begun\n"
    time.sleep(0.3)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and "ignored" not in err


def _child(client, queue):
    try:
        client.pull()
    except cnnps.UsageError as why:
        queue.put(str(why))
    client.close()


def test_a_forked_child_neither_uses_nor_harms_the_connection(server):
    """A forked child inherits the connection and exits, as a worker process of DataLoader does."""
    run = server(**vector())
    with run.connect() as client:
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_child, args=(client, queue))
        child.start()
        assert "parent process" in queue.get()
        child.join(20)
        assert child.exitcode == 0
        pid = os.fork()
        if not pid:
            try:
                del client
                gc.collect()
                from cnnps._connection import _close_all
                _close_all()
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        client.push(np.ones(10, np.float32))
        assert client.flush() and (client.pull() == -1).all()
        with pytest.raises(TypeError, match="another process"):
            pickle.dumps(client)


def test_interpreter_ends_with_an_open_connection(server):
    run = server(**vector())
    done = python("import cnnps, sys, logging\nlogging.basicConfig(level=logging.DEBUG)\n"
                  "c = cnnps.connect(sys.argv[1])\nc.push(c.gradient())\n", run.endpoint)
    _, err = done.communicate(timeout=20)
    assert done.returncode == 0 and "DEBUG:cnnps:" in err, err
    with run.connect(observer=True) as client:
        until(lambda: client.status()["live_workers"] == 0, 5, "the worker said goodbye")
        assert client.status()["updates"] == 1


def test_notebook_server_restarts_and_ends(server, tmp_path):
    run = server(**vector())
    with run.connect(name="a") as client:
        client.push(np.ones(10, np.float32))
        assert client.flush()
        before = run.endpoint
        run.restart()
        assert run.endpoint == before
        client.push(np.ones(10, np.float32))
        assert client.flush() and (client.pull() == -2).all() and client.term == 2
    run.export(str(tmp_path / "w.safetensors"))
    run.close()
    assert not run.running() and not os.path.exists(run.checkpoint_dir)


def test_the_end_of_training_ends_a_loop_whichever_call_meets_it(server):
    """The run may end while this worker computes, because another worker has finished the work.
    Whichever call the worker makes next must then end its loop without an error."""
    run = server(**vector(epochs=1, batch_size=11))
    with run.connect(data=DATA) as client:
        def ended(weights, batch, out):
            raise cnnps.Done("training is done")
        cnnps.Worker(client, ended).train()
        next(client.leases())
        raise cnnps.Done("training is done")


@pytest.mark.parametrize("rule", [{"stop_at": "accuracy=0.5"}, {"patience_epochs": 1}], ids=str)
def test_a_stop_rule_ends_a_loop_like_the_last_epoch(server, rule):
    """Two workers with different kinds of loops train in one run, so the end of the run must end
    both loops."""
    run = server(**vector(epochs=1000, batch_size=11), **rule)

    def gradient(weights, batch, out):
        out[:] = 1
        return 1.0

    def correct(weights, first, count):
        return count, 1.0
    with run.connect(data=DATA) as one, run.connect(data=DATA) as two:
        loop = cnnps.Worker(two, gradient, correct)
        thread = threading.Thread(target=cnnps.Worker(one, gradient, correct).train)
        thread.start()
        for lease in two.leases():
            loop.run(lease)
        thread.join(20)
        assert not thread.is_alive()
        with pytest.raises(cnnps.Done):
            one.lease()
    assert run.wait(20)["status"] == "drained"


ORPHANS = """
import cnnps, os, threading
servers = []
thread = threading.Thread(target=lambda: servers.append(cnnps.Server(model="vector:3")))
thread.start()
thread.join()
assert servers[0].running()
servers[0].connect(observer=True).close()
print(servers[0].pid, servers[0].checkpoint_dir, flush=True)
os.kill(os.getpid(), 9)
"""


def test_notebook_server_ends_with_a_killed_process():
    """A server that a thread has started must not end with this thread, but it must end when the
    Python process is killed."""
    done = python(ORPHANS)
    out, err = done.communicate(timeout=60)
    assert done.returncode == -9, err
    pid, directory = out.split()

    def ended():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        except FileNotFoundError:
            return True
        return stat.split(")")[1].split()[0] == "Z"
    until(ended, 20, "the server ends")
    shutil.rmtree(directory)
