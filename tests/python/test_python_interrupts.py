"""Test what interrupts a call of the Python package: signals, log handlers, the garbage collector,
forks and the end of the interpreter."""
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.programs import until

import cnnps

SGD = {"optimizer": "sgd", "lr": 1, "lr_scaling": "none", "staleness_scaling": "constant",
       "warm_start_updates": 0}
# the first lease waits for a second worker
WAIT = {"model": "vector:10", "epochs": 1, "min_workers": 2, **SGD}
SECONDS = 60  # time limit in seconds of a program that should end at once


def run_python(code, *arguments, send=None):
    """Runs a program, and sends it the next of the signals `send` each time it has printed
    "waiting". Returns the output of the program without the lines "waiting". The program must end
    with status 0 and without output to stderr, except for the message that it waits for the server,
    which it prints after a second."""
    lines = []
    with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            for number in send or ():
                for line in process.stdout:
                    if line == "waiting\n":
                        break
                    lines.append(line)
                time.sleep(0.3)
                process.send_signal(number)
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    other = [line for line in err.splitlines() if not line.startswith("waiting for a server")]
    assert (other, process.returncode) == ([], 0), out + err
    return "".join(lines) + out.replace("waiting\n", "")


def run_child(work):
    """Runs work() in a forked child, which then ends as a Python program does. Returns the exit
    status of the child."""
    pid = os.fork()
    if not pid:
        status = 99
        try:
            work()
            status = 0
        except SystemExit as end:
            status = end.code
        finally:
            import atexit
            atexit._run_exitfuncs()
            os._exit(status)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


# ---- signals ------------------------------------------------------------------------------------

HANDLERS = """
import cnnps, os, signal, sys

class Stop(Exception):
    pass

def counts(number, frame):
    print("counted", flush=True)
    print("waiting", flush=True)

def raises(number, frame):
    raise Stop

def calls(number, frame):
    client.alive()
    assert client.stats().pushed == 0
    try:
        client.status()
    except cnnps.UsageError as why:
        print(why, flush=True)
    print("waiting", flush=True)

signal.signal(signal.SIGUSR1, counts)
signal.signal(signal.SIGUSR2, calls)
signal.signal(signal.SIGTERM, raises)
with cnnps.connect(sys.argv[1], data=cnnps.Data(n_train=10)) as client:
    print("waiting", flush=True)
    try:
        client.lease()
    except Stop:
        print("stopped", flush=True)
    try:
        client.lease()
    except cnnps.ShutdownError as why:
        print(why, flush=True)
"""


def test_handlers_run_during_a_wait(server):
    """A handler that returns does not end the wait. A handler may not use the connection whose call
    it interrupts. An exception of a handler ends the wait."""
    out = run_python(HANDLERS, server(**WAIT).endpoint,
                     send=[signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
    assert out.splitlines() == [
        "counted", "this connection is in the middle of a call, which a handler of a signal or of "
        "the log has interrupted", "stopped",
        "an exception has ended a wait of this connection: connect again"]


CLOSES = """
import cnnps, signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: client.close())
client = cnnps.connect(sys.argv[1], data=cnnps.Data(n_train=10))
print("waiting", flush=True)
try:
    client.lease()
except cnnps.UsageError as why:
    print(why, flush=True)
client.close()
"""


def test_a_handler_may_close_the_connection(server):
    run = server(**WAIT)
    assert run_python(CLOSES, run.endpoint, send=[signal.SIGTERM]) == "this connection is closed\n"


LOGGED = """
import cnnps, logging, os, signal, sys

class Interrupt(logging.Handler):
    def emit(self, record):
        if not done:
            done.append(1)
            os.kill(os.getpid(), signal.SIGINT)

done = [1]
logging.getLogger("cnnps").addHandler(Interrupt())
logging.getLogger("cnnps").setLevel(logging.DEBUG)
logging.getLogger("cnnps").propagate = False
done.clear()
try:
    cnnps.connect("tcp://127.0.0.1:1", connect_timeout=20)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_during_a_log_handler_ends_the_wait():
    assert run_python(LOGGED) == "interrupted\n"


CALLS_FROM_LOG = """
import cnnps, logging, sys

class Asks(logging.Handler):
    def emit(self, record):
        if not done and "client" in globals():
            done.append(1)
            for call in (client.status, lambda: cnnps.connect(sys.argv[1])):
                try:
                    call()
                except cnnps.UsageError as why:
                    print(why, flush=True)

done = []
logging.getLogger("cnnps").addHandler(Asks())
logging.getLogger("cnnps").setLevel(logging.DEBUG)
logging.getLogger("cnnps").propagate = False
client = cnnps.connect(sys.argv[1], observer=True)
other = cnnps.connect(sys.argv[1], observer=True)
client.checkpoint()
other.close()
client.close()
"""


def test_a_log_handler_cannot_call_the_library(server):
    out = run_python(CALLS_FROM_LOG, server(model="vector:3").endpoint)
    assert out.splitlines() == ["a log handler cannot call libcnnps"] * 2


# ---- the garbage collector ----------------------------------------------------------------------

DROPPED = """
import cnnps, gc, logging, sys, time

class Drops(logging.Handler):
    def emit(self, record):
        if victims:
            victims.pop()  # the collector finalizes a client while the log is locked
            gc.collect()

victims = []
logging.getLogger("cnnps").addHandler(Drops())
logging.getLogger("cnnps").setLevel(logging.DEBUG)
logging.getLogger("cnnps").propagate = False
with cnnps.connect(sys.argv[1], observer=True) as client:
    victims += [cnnps.connect(sys.argv[1]) for _ in range(2)]
    for _ in range(20):
        cnnps.connect(sys.argv[1], observer=True).close()  # logs
        if not victims:
            break
    assert not victims
    end = time.monotonic() + 20
    while client.status()["live_workers"] and time.monotonic() < end:
        time.sleep(0.05)
    print(client.status()["live_workers"])
"""


def test_a_client_that_is_dropped_leaves_the_run(server):
    """The finalizer takes no lock and does not wait, so it may run inside a log handler. After the
    finalizer, the library never calls the callbacks of the client."""
    assert run_python(DROPPED, server(model="vector:3").endpoint) == "0\n"


def test_the_log_outlives_the_client_that_set_it(server):
    """The library has one log for the whole process, which the newest connection sets. The log must
    work after this connection is closed."""
    run = server(model="vector:3")
    with run.connect() as client:
        newer = run.connect()
        newer.close()
        del newer
        run.restart()
        client.push(np.ones(3, np.float32))
        assert client.flush()


# ---- clients at the end of the interpreter ------------------------------------------------------

ENDS = """
import cnnps, sys, threading, time
client = cnnps.connect(sys.argv[1], data=cnnps.Data(n_train=10))

def wait():
    try:
        client.lease()
    except cnnps.UsageError:
        pass

threading.Thread(target=wait, daemon=True).start()
time.sleep(0.3)
"""


def test_interpreter_ends_while_a_thread_waits(server):
    run = server(**WAIT)
    assert run_python(ENDS, run.endpoint) == ""
    with run.connect(observer=True) as client:
        until(lambda: client.status()["live_workers"] == 0, 20, "the worker said goodbye")


def test_close_ends_the_wait_of_another_thread(server):
    import threading
    client = server(**WAIT).connect(data=cnnps.Data(n_train=10))
    raised = []

    def wait():
        try:
            client.lease()
        except cnnps.Error as why:
            raised.append(why)
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    client.close()
    thread.join(SECONDS)
    assert [str(why) for why in raised] == ["this connection is closed"]


# ---- forks --------------------------------------------------------------------------------------

def test_a_forked_child_does_not_harm_the_server(server):
    run = server(model="vector:3", **SGD)
    calls = (run.kill, run.restart, run.wait, run.connect)

    def leave():
        with run:
            for call in calls[:3]:
                with pytest.raises(cnnps.UsageError, match="parent process"):
                    call()
            run.connect(observer=True).close()  # the child may make a connection of its own
            raise SystemExit(3)

    def forget():
        nonlocal run, calls
        del run, calls
        import gc
        gc.collect()
    with run.connect() as client:
        assert run_child(leave) == 3
        assert run_child(forget) == 0
        client.push(np.ones(3, np.float32))
        assert client.flush()
        assert run.running() and os.path.isdir(run.checkpoint_dir)
        assert client.checkpoint() > 0


FORKS = """
import cnnps, logging, os, sys, time

class Slow(logging.Handler):
    def emit(self, record):
        time.sleep(0.2)

logging.getLogger("cnnps").addHandler(Slow())
logging.getLogger("cnnps").setLevel(logging.DEBUG)
logging.getLogger("cnnps").propagate = False
ready = []
import threading
client = cnnps.connect(sys.argv[1], observer=True)

def log():
    while not ready:
        cnnps.connect(sys.argv[1], observer=True).close()  # logs

thread = threading.Thread(target=log)
thread.start()
bad = 0
for _ in range(8):
    pid = os.fork()
    if not pid:
        logging.getLogger("cnnps").handlers.clear()
        try:
            with cnnps.connect(sys.argv[1], observer=True) as own:
                own.status()
        finally:
            os._exit(0)
    end = time.monotonic() + 20
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > end:
            bad += 1
            os.kill(pid, 9)
        time.sleep(0.02)
ready.append(1)
thread.join()
client.close()
print(bad)
"""


def test_a_fork_while_the_log_is_locked_does_not_hang_the_child(server):
    assert run_python(FORKS, server(model="vector:3").endpoint) == "0\n"
