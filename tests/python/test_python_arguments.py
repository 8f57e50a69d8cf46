"""Test that wrong arguments of the Python package raise one clear exception: TypeError for a wrong
type, UsageError (a ValueError) for a wrong value."""
import os
import subprocess
import sys

import numpy as np
import pytest

import cnnps
from cnnps import launched, safetensors

NOWHERE = "tcp://127.0.0.1:1"
DATA = cnnps.Data(n_train=22, n_test=7)


@pytest.mark.parametrize("options, kind, text", [
    ({"data": 5}, TypeError, "data: expected cnnps.Data, not int"),
    ({"data": {"n_train": 5}}, TypeError, "data: expected cnnps.Data, not dict"),
    ({"name": 5}, TypeError, "name: expected a text, not int"),
    ({"name": "a\0b"}, cnnps.UsageError, "name='a.x00b': a text must not contain NUL"),
    ({"name": "x" * 100}, cnnps.UsageError, "name is longer than"),
    ({"key": "/nowhere\0/key"}, cnnps.UsageError, "key=.*NUL"),
    ({"device": b"a\0"}, cnnps.UsageError, "device=.*NUL"),
    ({"tensors": "a\0b"}, cnnps.UsageError, "tensors=.*NUL"),
    ({"tensors": "\ud800"}, cnnps.UsageError, "tensors: .*surrogate"),
    ({"lane": "fast"}, cnnps.UsageError, "lane='fast': expected auto, tcp, shm"),
    ({"metrics": "accuracy"}, TypeError, "metrics: expected a list of names, not str"),
    ({"metrics": [1]}, TypeError, "metrics: expected a list of names, and one is int"),
    ({"metrics": 5}, TypeError, "metrics: expected a list of names, not int"),
    ({"metrics": ["Not OK"]}, cnnps.UsageError, "Not OK"),
    ({"replay_bytes": -1}, cnnps.UsageError, "replay_bytes=-1: expected 0 to"),
    ({"replay_bytes": 1 << 64}, cnnps.UsageError, "replay_bytes=18446744073709551616"),
    ({"replay_bytes": 1.5}, TypeError, "replay_bytes: expected an integer, not float"),
    ({"connect_timeout": 0}, cnnps.UsageError, "connect_timeout=0: expected seconds"),
    ({"connect_timeout": -1}, cnnps.UsageError, "connect_timeout=-1: expected seconds"),
    ({"connect_timeout": 1e10}, cnnps.UsageError, "connect_timeout=1e.10"),
    ({"disconnect_timeout": float("nan")}, cnnps.UsageError, "disconnect_timeout=nan"),
    ({"batch_timeout": float("inf")}, cnnps.UsageError, "batch_timeout=inf"),
    ({"batch_timeout": "5"}, TypeError, "batch_timeout: expected a number, not str"),
    ({"batch_timeout": None}, TypeError, "batch_timeout: expected a number, not NoneType"),
    ({"no_such": 1}, TypeError, "no_such")], ids=str)
def test_options_of_a_connection(options, kind, text):
    with pytest.raises(kind, match=text):
        cnnps.connect(NOWHERE, **{"connect_timeout": 5, **options})


def test_key_files_that_cannot_be_used(tmp_path):
    """A key file that cannot be used raises the error whose status cnnps.h and errors.py
    document."""
    junk, open_to_all = tmp_path / "junk", tmp_path / "open"
    for file, mode in (junk, 0o600), (open_to_all, 0o644):
        file.write_text("junk")
        file.chmod(mode)
    for file in junk, open_to_all, tmp_path, tmp_path / "absent":
        with pytest.raises(cnnps.UsageError, match=str(file)) as refused:
            cnnps.connect(NOWHERE, key=str(file))
        assert refused.value.status == -1
    documented = ["key file is missing" in (kind.__doc__ or "") for kind in (
        cnnps.UsageError, cnnps.InputOutputError)]
    assert documented == [True, False]


@pytest.mark.parametrize("server, kind", [
    (5, TypeError), ("a\0b", cnnps.UsageError), ("tcp://" + "x" * 300, cnnps.UsageError)], ids=repr)
def test_address_of_a_server(server, kind):
    with pytest.raises(kind, match="server"):
        cnnps.connect(server)


@pytest.mark.parametrize("fields, kind", [
    ({"n_train": 1 << 40}, cnnps.UsageError), ({"n_train": -1}, cnnps.UsageError),
    ({"n_train": 5.0}, TypeError), ({"n_train": "5"}, TypeError),
    ({"n_train": 5, "xxh3": 1 << 64}, cnnps.UsageError)], ids=str)
def test_fields_of_data(fields, kind):
    with pytest.raises(kind, match="Data: "):
        cnnps.Data(**fields)
    assert cnnps.Data(np.int64(5), xxh3=(1 << 64) - 1).n_train == 5


def test_times_are_rounded_up():
    from cnnps import _arguments
    assert [_arguments.milliseconds("t", s) for s in (1e-6, 0.0011, 1, 4294967.295)] == [
        1, 2, 1000, (1 << 32) - 1]
    assert _arguments.milliseconds("t", 0, 0) == 0


def test_pushes_pulls_and_results(server):
    run = server(model="vector:10", epochs=1, batch_size=8, optimizer="sgd", lr=1)
    with run.connect(data=DATA) as client:
        lease = client.lease()
        batch = next(lease.batches())
        w = client.pull()
        ones = np.ones(10, np.float32)
        for kind, text, call in [
                (TypeError, "gradient: ", lambda: client.push(None, batch)),
                (TypeError, "gradient: ", lambda: client.push(ones * 1j, batch)),
                (TypeError, "gradient: ", lambda: client.push("abc", batch)),
                # the library would take a count of 0 for all values of the model
                (cnnps.UsageError, "without values", lambda: client.push(ones[:0], batch)),
                (cnnps.UsageError, "offset=-1", lambda: client.push(ones, batch, offset=-1)),
                (cnnps.UsageError, "offset=", lambda: client.push(ones, batch, offset=1 << 70)),
                (cnnps.UsageError, "version=", lambda: client.push(ones, batch, version=1 << 64)),
                (TypeError, "batch: expected cnnps.Batch", lambda: client.push(ones, 5)),
                (TypeError, "loss: expected a number", lambda: client.push(ones, batch, "low")),
                (cnnps.UsageError, "into", lambda: client.pull(5)),
                (cnnps.UsageError, "into", lambda: client.push(ones, batch, then=w[:3])),
                (TypeError, "lease: expected cnnps.Lease", lambda: client.result(5, 0, 0.0)),
                (cnnps.UsageError, "correct=-1", lambda: client.result(lease, -1, 0.0)),
                (cnnps.UsageError, "correct=", lambda: client.result(lease, 1 << 40, 0.0)),
                (TypeError, "loss_sum: ", lambda: client.result(lease, 0, None)),
                (cnnps.UsageError, "metric_sums: 5", lambda: client.result(lease, 0, 0.0, [1] * 5)),
                (cnnps.UsageError, "metric_sums: 1 .* has 0 names",
                 lambda: client.result(lease, 0, 0.0, [1])),
                (TypeError, "metric_sums: ", lambda: client.result(lease, 0, 0.0, ["a"])),
                (cnnps.UsageError, "only an EVAL lease", lambda: client.result(lease, 0, 0.0)),
                (cnnps.UsageError, "timeout=-1", lambda: client.flush(timeout=-1)),
                (cnnps.UsageError, "an epoch has 3", lambda: client.batch(0, 3)),
                (cnnps.UsageError, "an epoch has 3", lambda: client.batch(0, 2, 2)),
                (cnnps.UsageError, "first=-1", lambda: client.batch(0, -1)),
                (cnnps.UsageError, "count=0", lambda: client.batch(0, 0, 0)),
                (TypeError, "epoch: expected an integer", lambda: client.batch("a", 0))]:
            with pytest.raises(kind, match=text):
                call()
        assert client.stats().pushed == 0
        client.push(ones, batch, np.float32(1))
        assert client.flush(timeout=30) and client.stats().acked == 1


def test_options_of_a_server(server):
    with pytest.raises(cnnps.UsageError, match="model=.*NUL"):
        server(model="a\0b")
    with pytest.raises(cnnps.Error, match="lr"):
        server(model="vector:3", lr="much")
    with pytest.raises(cnnps.UsageError, match="log_level='warn': expected 'info' or 'debug'"):
        server(model="vector:3", log_level="warn")
    for bind in 5, None, b"tcp://127.0.0.1:0":
        with pytest.raises(TypeError, match="bind: expected a text"):
            cnnps.Server(bind, model="vector:3")
    for wrong in True, 5:
        with pytest.raises(TypeError, match="checkpoint_dir: expected a path"):
            server(model="vector:3", checkpoint_dir=wrong)
    for wrong in ["accuracy"], {"f1": print}, ("f1",):
        with pytest.raises(TypeError, match="metrics: expected a text or a number, not "):
            server(model="vector:3", metrics=wrong)
    for wrong, text in [
            ({"insecure": 1}, "insecure=1: expected True or False"),
            ({"epochs": True, "batch_size": 20}, "epochs=True: expected a value"),
            ({"epochs": True, "lr": True}, "epochs=True: expected a value"),
            ({"epochs": False}, "epochs=False: expected a value")]:
        with pytest.raises(cnnps.UsageError, match=text):
            server(model="vector:3", **wrong)
    run = server(model="vector:3", log_format="json", log_level="debug")
    run.connect(observer=True).close()
    with pytest.raises(cnnps.AgainError, match="has not ended within 0.01 s"):
        run.wait(0.01)


@pytest.mark.parametrize("content", [
    b"", b"\0", b"junk that is longer than eight bytes", b"\xff" * 8 + b"{}", b"\x02" + b"\0" * 7,
    b"\x02" + b"\0" * 7 + b"[]", b"\x07" + b"\0" * 7 + b'{"a":1}',
    b'\x3c' + b"\0" * 7 + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,999999]}} ',
    b'\x3a' + b"\0" * 7 + b'{"a":{"dtype":"Q99","shape":[2],"data_offsets":[0,8]}}    ' + b"\0" * 8],
    ids=repr)
def test_files_of_junk(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(cnnps.DataError, match=f"{tmp_path}/a: "):
        safetensors.load(str(tmp_path / "a"))


def test_options_that_json_lacks_reach_the_launcher(tmp_path):
    launched.write(tmp_path / "a", {"checkpoint_dir": tmp_path, "lr": np.float32(0.5), "n_push": 2})
    assert launched.read(tmp_path / "a", 1) == {
        "checkpoint_dir": str(tmp_path), "lr": "0.5", "n_push": 2}


def test_a_type_that_files_lack(tmp_path):
    with pytest.raises(cnnps.UsageError, match="tensor b: .* no type complex64"):
        safetensors.save(str(tmp_path / "a"), {"a": np.zeros(1), "b": np.zeros(1, np.complex64)})
    assert not list(tmp_path.iterdir())


def test_a_library_without_the_functions():
    """CNNPS_LIBRARY names a library that lacks the functions: here libc, in practice perhaps an
    older libcnnps."""
    (other,) = {line.split()[-1] for line in open("/proc/self/maps", encoding="utf-8")
                if "/libc.so" in line}
    done = subprocess.run([sys.executable, "-c", "import cnnps"], capture_output=True, text=True,
                          env={**os.environ, "CNNPS_LIBRARY": other}, check=False)
    assert f"ImportError: cnnps: {other} has no function cnnps_version" in done.stderr


def test_a_program_that_hangs(tmp_path, monkeypatch):
    (tmp_path / "cnn-ctl").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "cnn-ctl").chmod(0o755)
    monkeypatch.setenv("CNNPS_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(cnnps.programs, "_SECONDS", 0.1)
    with pytest.raises(cnnps.AgainError, match="cnn-ctl export has not ended within 0.1 s"):
        cnnps.programs.export("run", "file")
