"""A program that waits logs the cause of the wait, its length so far, the time at which the program
will give up, and the command that ends the wait."""
import http.server
import os
import re
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
import zmq

from support.build import command
from support.programs import SIGTERM, Process, until

SHORT = ("--model", "seed:8", "--epochs", 1000)


def command_of(server):
    return rf"start one with: cnn-worker --server {server.endpoint}"


def test_a_server_without_workers_says_so_and_how_to_start_one(programs):
    server = programs.server(*SHORT)
    server.line("net listening")
    started = time.monotonic()
    server.line(rf"server waiting.*workers: 0 of 1 for [12] s, without a time limit; "
                rf"{command_of(server)}", 5)
    assert 0.5 < time.monotonic() - started < 4
    assert f"cnn-worker --server {server.endpoint}" in server.status()["waiting"]


def test_the_lines_of_a_wait_come_at_growing_intervals(programs):
    server = programs.server(*SHORT)
    server.line(r"waiting .* for [45] s", 9)
    assert len([line for line in server.lines if "server waiting" in line]) == 2, server.tail()


def test_a_server_with_too_few_workers_names_both_numbers(programs, small):
    for mode in ("downpour", "sync", "sandblaster"):
        server = programs.server(*SHORT, "--mode", mode, "--min-workers", 2, directory=mode)
        first = programs.worker(server.endpoint, data=small)
        server.line(rf"waiting .*workers: 1 of 2 .*{command_of(server)}", 9)
        assert server.status()["state"] == "waiting"
        programs.worker(server.endpoint, data=small)
        until(lambda s=server: s.status()["images"] > 0, 20, "training")
        assert server.status()["waiting"] is None and server.status()["state"] == "training"
        for process in (first, server):
            process.kill()


def test_a_run_that_lost_its_last_worker_waits_for_another(programs, small):
    server = programs.server(*SHORT)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["images"] > 0, 20, "training")
    assert not [line for line in server.lines if "server waiting" in line
                and "0 of 1 for 0" in line]
    worker.signal(SIGTERM)
    assert worker.wait(10) == 12
    after = len(server.lines)
    server.line(rf"server waiting.*workers: 0 of 1 for [12] s.*{command_of(server)}", 5, after)
    status = server.status()
    assert status["state"] == "waiting" and status["eta_s"] is None


def test_a_restarted_server_waits_for_its_workers_to_return(programs, small):
    server = programs.server(*SHORT, "--recovery-ms", 6000)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["images"] > 0, 20, "training")
    server.kill()
    worker.kill()
    again = programs.restart(server, *SHORT, "--recovery-ms", 6000)
    again.line(r"server waiting.*return.* 0 of 1 for [12] s, for [45] s more", 5)
    again.line(r"server waiting.*workers: 0 of 1 .*start one with: cnn-worker", 12)


def test_a_wildcard_address_is_shown_as_one_that_workers_can_dial(programs):
    server = programs.server(*SHORT, endpoint="tcp://0.0.0.0:0")
    line = server.line(r"start one with: cnn-worker --server tcp://([^:]+):(\d+)", 5)
    assert line[1] not in ("0.0.0.0", "*") and line[2] == server.endpoint.rpartition(":")[2]


def test_with_keys_the_command_asks_for_one(programs):
    keys = programs.keygen()
    server = programs.server(*SHORT, "--key", keys / "server.key")
    server.line(r"start one with: cnn-worker --server \S+ --key ", 5)


def test_a_vector_run_waits_for_a_program_of_the_users(programs):
    server = programs.server("--model", "vector:3")
    server.line(r"waiting .*workers: 0 of 1 .*libcnnps.*tcp://127", 5)


# ---- a worker, cnn-ctl and libcnnps without a server: each cause has its own line ----------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def nothing():
    yield free_port(), "connection refused"


@contextmanager
def black_hole():
    """Yields a port whose queue of connections is full, so that the kernel answers no further
    SYN."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for s in fillers:
            s.setblocking(False)
            s.connect_ex(listener.getsockname())
        yield listener.getsockname()[1], "no answer to connection attempts"
        for s in fillers:
            s.close()


@contextmanager
def tcp_service(serve, cause):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        kept = []

        def accept():
            while True:
                try:
                    kept.append(listener.accept()[0])
                except OSError:
                    return
                serve(kept[-1])
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], cause
        listener.shutdown(socket.SHUT_RDWR)
        for s in kept:
            s.close()


def mute():
    return tcp_service(lambda s: None, "sends nothing")


def closer():
    return tcp_service(lambda s: s.close(), "closes it")


def ssh():
    return tcp_service(lambda s: s.sendall(b"SSH-2.0-x\r\n"),
                       r"another service answers \(SSH-2.0-x")


@contextmanager
def web():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, "an HTTP server answers"
    server.shutdown()
    server.server_close()


@contextmanager
def zmq_socket(kind, cause):
    with zmq.Context() as context, context.socket(kind) as s:
        s.linger = 0
        yield s.bind_to_random_port("tcp://127.0.0.1"), cause


def zmq_match():
    return zmq_socket(zmq.ROUTER, "a ZeroMQ socket answers, but not as cnn-ps")


def zmq_no_match():
    return zmq_socket(zmq.PUB, "a ZeroMQ socket answers, but it is not cnn-ps")


WRONG = [nothing, black_hole, mute, closer, ssh, web, zmq_match, zmq_no_match]


def waiting_line(process, endpoint, cause, seconds=6):
    return process.line(rf"waiting for a server at {endpoint} for \d s, gives up in \d+ s: "
                        rf".*{cause}.*; \w+", seconds)


@pytest.mark.parametrize("place", WRONG)
def test_a_worker_says_what_keeps_it_from_a_server(programs, small, place):
    with place() as (port, cause):
        endpoint = f"tcp://127.0.0.1:{port}"
        worker = programs.worker(endpoint, "--connect-timeout-ms", 7000, data=small)
        waiting_line(worker, endpoint, cause)
        assert worker.wait(12) == 3
        worker.line(rf"worker end.*{endpoint}: no contact within 7000 ms: .*{cause}.*; \w+", 0.1)


@pytest.mark.parametrize("place", WRONG)
def test_cnn_ctl_says_so_too(programs, place):
    with place() as (port, cause):
        endpoint = f"tcp://127.0.0.1:{port}"
        ctl = programs.ctl("--server", endpoint, "--connect-timeout-ms", 4000, "status", code=3)
        waiting_line(ctl, endpoint, cause, 0.1)
        ctl.line(rf"cnn-ctl: {endpoint}: no contact within 4000 ms: .*{cause}.*; \w+", 0.1)


@pytest.mark.parametrize("place", [nothing, web])
def test_libcnnps_says_so_in_its_error(programs, place):
    """worker/examples/line waits for 30 s. Either no program listens on the port, or a service that
    is not cnn-ps does. The program must print an error of libcnnps whose text gives this cause."""
    with place() as (port, cause):
        line = programs.add(Process("line", command("examples/line", f"tcp://127.0.0.1:{port}")))
        waiting_line(line, f"tcp://127.0.0.1:{port}", cause)


def test_a_name_that_does_not_resolve_is_named(programs, small):
    worker = programs.worker("tcp://no-such-host.invalid:5555", "--connect-timeout-ms", 3000,
                             data=small)
    worker.line(r"waiting .*the name no-such-host.invalid does not resolve \(.+\)", 5)
    assert worker.wait(9) == 3
    worker.line(r"worker end.*the name no-such-host.invalid does not resolve", 0.1)


def test_each_cause_has_a_line_of_its_own(programs):
    """Each cause has a text of its own, so that a line of the log has only one meaning."""
    seen = {}
    for place in WRONG:
        with place() as (port, cause):
            ctl = programs.ctl("--server", f"tcp://127.0.0.1:{port}", "--connect-timeout-ms", 3000,
                               "status", code=3)
            found = re.search(r"no contact within 3000 ms: ([^;]+); \w", ctl.lines[-1])
            assert found and re.search(cause, found[1]), (place.__name__, ctl.lines[-1])
            seen[place.__name__] = found[1]
    for name, words in seen.items():
        alike = [other for other in seen if other != name and words in seen[other]]
        assert not alike, f"{name} is said as if it were {alike}: {words}"


def own_hosts_file(hosts):
    """Returns a command prefix that gives one process the file `hosts` as its /etc/hosts."""
    wrap = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"',
            str(hosts)]
    if os.geteuid() or subprocess.run([*wrap, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace")
    return wrap


def test_a_name_that_resolves_later_is_found(programs, small):
    server = programs.server(*SHORT)
    hosts = programs.directory / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    name = f"tcp://later.invalid:{server.endpoint.rpartition(':')[2]}"
    argv = command("cnn-worker", "--server", name, "--data", small, "--device", "cpu", "--threads",
                   1)
    worker = programs.add(Process("cnn-worker", [*own_hosts_file(hosts), *argv]))
    worker.line(r"waiting .*the name later.invalid does not resolve", 5)
    with hosts.open("a") as file:
        file.write("127.0.0.1 later.invalid\n")
    worker.line(r"worker connected", 5)


@pytest.mark.parametrize("place", [nothing, web, zmq_match, zmq_no_match])
def test_a_server_that_starts_later_on_a_port_in_use_is_found(programs, small, place):
    """libzmq makes no further connection after a peer had an incompatible socket type, so the
    client must reconnect by itself."""
    with place() as (port, cause):
        endpoint = f"tcp://127.0.0.1:{port}"
        worker = programs.worker(endpoint, data=small)
        waiting_line(worker, endpoint, cause)
    programs.server(*SHORT, endpoint=endpoint)
    worker.line(r"worker connected", 8)


def test_a_worker_that_lost_its_server_says_so(programs, small):
    server = programs.server(*SHORT)
    worker = programs.worker(server.endpoint, data=small)
    worker.line("worker connected")
    until(lambda: server.status()["images"] > 0, 20, "training")
    server.kill()
    worker.line(rf"waiting for the server at {server.endpoint} to return for [1-3] s, "
                r"gives up in (59\d|600) s: connection refused; start it again with the same options; "
                r"the run goes on if --checkpoint-dir is one of them", 6)
    programs.restart(server, *SHORT)
    after = len(worker.lines)
    worker.line("net connected", 10)
    time.sleep(2)
    assert not [line for line in worker.lines[after:] if "to return" in line]


def test_a_worker_whose_server_hangs_says_that_it_is_silent(programs, small):
    """If a server hangs after it has answered a worker, the worker logs that the server is
    silent."""
    server = programs.server(*SHORT)
    worker = programs.worker(server.endpoint, data=small)
    until(lambda: server.status()["images"] > 0, 20, "training")
    server.signal(signal.SIGSTOP)
    try:
        worker.line(rf"waiting for the server at {server.endpoint} to return for [5-9] s, gives up in "
                    r"(59\d|600) s: connected, but the server has been silent for [5-9] s; "
                    r"it may be stopped", 14)
        worker.line(r"waiting .* connected, but the server has been silent for 1?\d s", 9,
                    len(worker.lines))
    finally:
        server.signal(signal.SIGCONT)
    assert not [line for line in worker.lines if "has not welcomed" in line], worker.tail()
    after = server.status()["images"]
    until(lambda: server.status()["images"] > after, 20, "training goes on")


def test_a_worker_without_work_says_that_it_waits(programs, small):
    server = programs.server(*SHORT, "--min-workers", 2)
    worker = programs.worker(server.endpoint, data=small)
    worker.line(rf"waiting for work from {server.endpoint} for [1-3] s, .*"
                rf"cnn-ctl --server {server.endpoint} status", 6)


def test_a_worker_that_no_slot_is_free_for_says_so(programs, small):
    server = programs.server(*SHORT, "--max-workers", 1)
    first = programs.worker(server.endpoint, data=small)
    first.line("worker connected")
    second = programs.worker(server.endpoint, data=small)
    second.line(r"waiting for a server .*: all 1 worker slots are taken: .*--max-workers\"$", 6)
