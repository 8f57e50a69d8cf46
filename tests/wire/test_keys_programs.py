"""The programs print the right messages about keys, and a secret key never occurs in a log, in
arguments or in a core file.

The tests cover attack A11 of docs/faults.md.
"""
import os
import resource
import signal
import stat
import subprocess

import pytest

from client import Keys
from conftest import LEDGER, Honest, ends, started

from support import safetensors
from support.build import FLAVOUR, PATIENCE, command
from support.ledger import LEDGER as RUN
from support.programs import until


def test_a_key_where_the_server_has_none_is_refused_by_the_worker(programs, keys, data):
    plain = programs.server("--model", "seed:1", directory=None)
    code, worker = ends(programs, "cnn-worker", "--server", plain.endpoint, "--data", data,
                        "--device", "cpu", "--threads", 1, "--key", keys / "worker.key")
    assert code == 9 and "takes no keys" in worker.lines[-1], worker.tail()


@pytest.mark.parametrize("file, mode", [("server.key", 0o644), ("server.key", 0o640),
                                        ("authorized_keys", 0o666)])
def test_files_with_wrong_rights_are_refused(programs, keys, file, mode):
    (keys / file).chmod(mode)
    code, server = ends(programs, "cnn-ps", "--bind", "tcp://127.0.0.1:0", "--key",
                        keys / "server.key")
    assert code == 2 and file in server.lines[-1], server.tail()
    assert not any("listening" in line for line in server.lines)


def modes(directory):
    """Returns {name of a file: its mode} for all files and sockets in the directory."""
    return {file.name: oct(stat.S_IMODE(file.stat().st_mode))
            for file in directory.iterdir() if not file.is_dir()}


@pytest.mark.parametrize("mask", [0, 0o022, 0o027])
def test_only_the_owner_reads_checkpoints_and_keys(programs, mask, tmp_path):
    """Whatever the umask, only the server's user can read the checkpoints and the write-ahead log,
    which contain the secret of the run, and the secret keys. The umask decides who can read the
    other files of the run."""
    socket = tmp_path / "lane"
    before = os.umask(mask)
    try:
        keys = programs.keygen("second")
        server = programs.server(*LEDGER, "--durability", "always", "--key", keys / "server.key",
                                 "--lane-socket", socket)
        worker = Honest(server.endpoint, keys=Keys(keys / "worker.key", keys / "server.pub"))
        worker.goes_on()
        worker.close()
        made = modes(server.directory)
        sockets = modes(tmp_path)
        export = programs.export(server.directory)
    finally:
        os.umask(before)
    kinds = {name: name.split(".")[0].split("-")[0] for name in made}
    assert set(kinds.values()) >= {"LOCK", "history", "ckpt", "journal"}, made
    for name, mode in made.items():
        private = kinds[name] in ("ckpt", "journal")
        assert mode == ("0o600" if private else oct(0o644 & ~mask)), made
    assert oct(stat.S_IMODE(export.stat().st_mode)) == oct(0o644 & ~mask)
    assert sockets == {"lane": "0o600"}
    for name, mode in modes(keys).items():
        assert mode == "0o600" if name.endswith(".key") else int(mode, 8) & 0o022 == 0, (name, mode)


def test_a_bind_to_the_network_needs_a_key(programs, keys):
    code, server = ends(programs, "cnn-ps", "--bind", "tcp://0.0.0.0:0")
    assert code == 2 and "--insecure" in server.lines[-1], server.tail()
    for options in (["--key", keys / "server.key"], ["--insecure"]):
        server = started(programs, "cnn-ps", "--bind", "tcp://0.0.0.0:0", *options)
        server.line("net listening")


def test_secrets_stay_out_of_logs_arguments_and_cores(programs, keys, data):
    """No secret key occurs in the log at level debug, in /proc, or in the memory that a core file
    would contain."""
    server = programs.server("--model", "seed:1", "--epochs", 1, "--log-level", "debug", "--key",
                        keys / "server.key", directory=None)
    worker = programs.worker(server.endpoint, "--key", keys / "worker.key", "--log-level", "debug")
    until(lambda: server.status()["images"] > 0, 30 * PATIENCE, "training")
    secrets = [(keys / f"{n}.key").read_text().split("\n")[1] for n in ("server", "worker")]
    for process in (server, worker):
        pid = process.popen.pid
        for name in ("cmdline", "environ"):
            try:
                text = open(f"/proc/{pid}/{name}", "rb").read().decode(errors="replace")
            except PermissionError:  # only root may read the environment of a program that has keys
                assert name == "environ" and os.getuid()
                continue
            assert not any(s in text for s in secrets)
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
    server.result(60 * PATIENCE)
    assert worker.wait() == 0
    said = "\n".join(server.lines + server.out + worker.lines + worker.out)
    assert not any(s in said for s in secrets)


@pytest.mark.skipif(FLAVOUR != "release", reason="sanitizers have cores of their own")
def test_no_core_is_left(programs, keys, tmp_path):
    """A crash of a server with keys leaves no core file. A crash of a server without keys leaves a
    core file, if this machine allows core files."""
    def crash(*options):
        argv = command("cnn-ps", "--bind", "tcp://127.0.0.1:0", *options)
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                                   preexec_fn=lambda: resource.setrlimit(
                                       resource.RLIMIT_CORE, (1 << 30, 1 << 30)))
        for line in process.stderr:
            if "net listening" in line:
                break
        process.send_signal(signal.SIGABRT)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = status
        process.stderr.close()
        return os.WCOREDUMP(status)
    if not crash():
        pytest.skip("no core is written here, with or without keys")
    assert not crash("--key", keys / "server.key")


# ---- with keys, a run has the same guarantees as without keys

@pytest.mark.parametrize("durability", ["replay", "always"])
def test_ledger_with_keys_through_kills(programs, keys, durability):
    """The server and the workers use keys, and the test kills the server and a worker: each push
    must be applied exactly once. With the write-ahead log, the restarted server must also find the
    names of the workers in the log."""
    pushes, options = 400, ("--key", keys / "server.key", "--durability", durability, *RUN)
    server = programs.server("--model", f"vector:{2 * pushes}", *options)
    fleet = [programs.ledger_worker(server.endpoint, i, pushes, 0, 8, keys / f"{k}.key")
            for i, k in enumerate(("worker", "second"))]
    for worker in fleet:
        worker.line(r"pushed 100\b", 60 * PATIENCE)
    server.kill()
    server = programs.restart(server, "--model", f"vector:{2 * pushes}", *options)
    fleet[1].line(r"pushed 250\b", 60 * PATIENCE)
    fleet[1].kill()
    fleet[1] = programs.ledger_worker(server.endpoint, 1, pushes, 0, 8, keys / "second.key")
    for worker in fleet:
        assert worker.wait(120 * PATIENCE) == 0, worker.tail()
    programs.ctl("--server", server.endpoint, "--key", keys / "admin.key", "drain")
    assert server.wait(20) == 0
    weights = safetensors.flat(programs.export(server.directory))
    assert weights.tolist() == [-1] * (2 * pushes)
