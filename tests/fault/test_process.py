"""Rows P1, P6 to P8, P10, P11, P13 to P15, P17: processes that die, hang, starve and come back."""
import hashlib
import time


def digest(directory):
    """Every byte of a directory, by name."""
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(directory.iterdir())}


# ---- P11: two servers on one directory -----------------------------------------------------------


def test_second_server_on_a_directory(lab, figure, full):
    """It exits with 8, names the holder, and has changed no byte; kill -9 frees the directory."""
    first = lab.server("--model", "vector:10")
    first.endpoint
    before = digest(first.directory)
    slowest = 0
    for _ in range(100 if full else 5):
        begun = time.monotonic()
        second = lab.server("--model", "vector:10")
        assert second.wait(10) == 8, second.tail()
        slowest = max(slowest, time.monotonic() - begun)
        assert f"process {first.popen.pid};" in "\n".join(second.lines), second.tail()
    changed = sum(digest(first.directory).get(k) != v for k, v in before.items())
    figure("P11", changed, "files changed", digest(first.directory) == before)
    figure("P11", slowest * 1e3, "ms at most", slowest < 5, what="refused within")
    first.kill()
    lab.restart(first, "--model", "vector:10").line("listening")
