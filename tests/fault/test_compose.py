"""Tests of the cluster of deploy/compose.yaml: the 17 faults of its containers in FAULTS, and
attack A21 of docs/faults.md.

Every fault is tested in two clusters. The workers of one cluster push the ledger gradient, so that
the final weights show each push. The workers of the other cluster train: each image must count once
per epoch, and the accuracy must be that of a run without faults.
"""
import re
import time
from pathlib import Path

import pytest

from containers import (CONFINED, SOON, Images, Ledger, NoEngine, Training, call, docker, inspect,
                        run_out_of_memory)
from support.build import FULL
from support.programs import until

# The tests share container images, so they run in one process. In the short form, the test with the
# ledger runs in another process with its own images, because it takes as long as all other tests
# together. In the long form all these tests run in one process: the tests of the documents then
# also run their blocks with Docker, and these blocks permit no other containers at the same time.
pytestmark = pytest.mark.xdist_group("containers")
OWN_GROUP = pytest.mark.xdist_group("containers" if FULL else "containers of the ledger")
SIZE = 3
TRAIN, POINT = 60000, 0.01
EPOCHS = 96  # enough epochs for the run to last longer than all faults together


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Yields the container images with this build's programs, or a NoEngine with the reason why
    this machine cannot make images."""
    try:
        images = Images(tmp_path_factory.mktemp("image"))
    except NoEngine as no:
        yield no
        return
    yield images
    images.close()


@pytest.fixture
def cluster(built, figure, data):
    """Yields a function that makes a cluster: cluster(Training, CNN_EPOCHS=8). The function skips
    the test if no container can run on this machine."""
    made = []

    def make(kind, **env):
        if isinstance(built, NoEngine):
            figure.cannot("C1", f"no containers: {built}")
        made.append(kind(kind.__name__.lower(), built, data, SIZE, env))
        return made[-1]
    yield make
    for c in made:
        c.close()


# ---- faults: each function causes a fault, after which the cluster must recover without help -----
#
# A function that ends a worker waits until the server no longer counts this worker. Otherwise
# at_work() could count it as live before its container has started again, and the next fault would
# hit a worker that has not connected.


def deaths(c):
    return c.ask("counters")["deaths"]


def given_up(c, before):
    """Wait until the server has declared a worker dead and then applied another push."""
    until(lambda: deaths(c) > before, SOON, "it is given up")
    c.goes_on()


def a_worker_is_killed(c):
    worker, before = c.workers()[0], deaths(c)
    docker("kill", worker)
    given_up(c, before)
    docker("start", worker)


def a_worker_is_stopped(c):
    worker = c.workers()[1]
    docker("stop", worker)
    until(lambda: c.ask("live_workers") < c.size, SOON, "it has left")
    c.goes_on()
    docker("start", worker)


def a_worker_is_paused_past_its_death(c):
    worker, before = c.workers()[0], deaths(c)
    docker("pause", worker)
    given_up(c, before)
    docker("unpause", worker)


def a_worker_loses_its_network(c):
    worker, before = c.workers()[1], deaths(c)
    docker("network", "disconnect", c.network, worker)
    given_up(c, before)
    docker("network", "connect", c.network, worker)


def a_worker_has_no_memory_left(c):
    """Docker starts the worker again by itself, so the server counts it as dead or as back."""
    def lost():
        counters = c.ask("counters")
        return counters["deaths"] + counters["rejoins"]
    before = lost()
    run_out_of_memory(c.workers()[0])
    until(lambda: lost() > before, SOON, "it is given up or back")


def workers_are_added(c):
    c.scale(SIZE + 2)
    c.at_work()


def workers_are_taken_away(c):
    c.scale(SIZE)


def the_server_is_killed(c):
    docker("kill", c.server)
    docker("start", c.server)


def the_server_is_stopped(c):
    """`docker stop` drains the server: the server sends BYE, and the workers exit. After that, the
    test starts the containers of the server and of all workers again, as an operator does with
    `docker-compose up`."""
    fleet = c.workers()
    docker("stop", c.server)
    docker("start", c.server, *fleet)


def the_server_is_paused(c):
    docker("pause", c.server)
    docker("exec", c.holder, "sleep", 3)
    docker("unpause", c.server)


def the_server_loses_its_network(c):
    before = deaths(c)
    docker("network", "disconnect", c.network, c.server)
    until(lambda: deaths(c) >= before + SIZE, SOON, "all are given up")
    docker("network", "connect", "--alias", "server", c.network, c.server)


def the_server_has_no_memory_left(c):
    run_out_of_memory(c.server)


def the_checkpoint_volume_is_full(c):
    # A server whose disk is full deletes older checkpoints to get space. So that it cannot do this
    # here, delete the older checkpoints first, and fill their space, too.
    fill = "head -c 100M /dev/zero >>/checkpoints/fill"
    old = "ls -t /checkpoints/ckpt-* | tail -n +2 | xargs -r rm -f"

    def is_full():
        docker("exec", c.holder, "sh", "-c", f"{fill}; {old}; {fill}", check=False)
        return c.ask("degraded")
    until(is_full, SOON, "the server says that it cannot save")
    docker("exec", c.holder, "rm", "/checkpoints/fill")
    until(lambda: not c.ask("degraded"), SOON, "it can save again")


def all_are_killed_at_once(c):
    everybody = [c.server, *c.workers()]
    docker("kill", *everybody)
    docker("start", *everybody)


def the_image_is_replaced(c):
    """Replace the image of the workers first, and then the image of the server."""
    c.env["CNN_IMAGE"] = c.images.second
    c.replace_workers()
    c.goes_on()
    fleet = c.workers()
    c.compose("up", "-d", "--no-deps", "server")
    docker("start", *fleet)
    for container in [c.server, *c.workers()]:
        assert inspect(container, ".Config.Image") == c.images.second


def refused(c, *options, prepare="true"):
    """Check that a worker whose key is not listed exits with 9 and logs one line, and that the
    other workers continue."""
    before = c.ask("counters")
    code, said = c.unlisted_worker(*options, prepare=prepare)
    bad = [line for line in said.splitlines() if " level=info " not in line]
    assert (code, len(bad)) == (9, 1), said
    after = c.ask("counters")
    for what in ("deaths", "rejoins", "unauthorized", "refusals"):
        assert after[what] == before[what], what
    return after["keys_refused"] - before["keys_refused"]


def a_container_has_a_wrong_key(c):
    assert refused(c, "--key", "/dev/shm/keys/worker.key", prepare="cnn-ctl keygen /dev/shm/keys "
                   "&& cp /keys/server.pub /dev/shm/keys/server.pub") > 0


def a_container_has_no_key(c):
    refused(c)


FAULTS = (
    workers_are_added, workers_are_taken_away, a_worker_is_killed, a_worker_is_stopped,
    a_worker_is_paused_past_its_death, a_worker_loses_its_network, a_worker_has_no_memory_left,
    the_server_is_killed, the_server_is_stopped, the_server_is_paused,
    the_server_loses_its_network, the_server_has_no_memory_left, the_checkpoint_volume_is_full,
    the_image_is_replaced, all_are_killed_at_once, a_container_has_a_wrong_key,
    a_container_has_no_key)


FEW = (a_worker_is_killed, a_worker_is_paused_past_its_death, the_server_is_killed,
       all_are_killed_at_once)


def go_through(c, faults=FAULTS):
    for fault in faults:
        begun = time.monotonic()
        try:
            fault(c)
            c.at_work()
            print(f"{fault.__name__}: {time.monotonic() - begun:.1f} s")
        except Exception as bad:
            raise AssertionError(f"{fault.__name__}: {bad}\n{c.logs()}") from bad


# ---- the two ledgers -----------------------------------------------------------------------------


@OWN_GROUP
def test_compose_ledger(cluster, figure, tmp_path):
    """Every acknowledged push is in the weights, and no push was applied twice."""
    c = cluster(Ledger)
    go_through(c)
    applied, lost, twice = c.tally(tmp_path / "w.safetensors")
    assert applied > 0
    figure("C1", lost, f"acknowledged pushes lost of {applied}, {len(FAULTS)} faults", lost == 0,
           "lost")
    figure("C1", twice, "pushes applied twice", twice == 0, "twice")


def test_compose_training(cluster, figure, full):
    """In spite of the faults, each image counts once per epoch, and the accuracy is that of a run
    without faults."""
    run = {"CNN_MODEL": "seed:32", "CNN_EPOCHS": EPOCHS, "CNN_THREADS": 1, "CNN_MIN_WORKERS": 1}
    c = cluster(Training, **run)
    faults = FAULTS if full else FEW
    go_through(c, faults)
    if not full:
        c.ends_an_epoch()
        docker("stop", c.server)
    result = c.result()
    images = [n for n in result["images_per_epoch"] if n]
    whole = images if full else images[:-1]
    wrong = sum(n != TRAIN for n in whole)
    figure("C2", wrong,
           f"of {len(whole)} epochs with a wrong number of images, {len(faults)} faults",
           wrong == 0 and 0 < len(whole) and (len(whole) == EPOCHS or not full), "images")
    if full:
        c.close()
        calm = cluster(Training, **run).result()
        figure("C2", calm["accuracy"] - result["accuracy"], "less accuracy than undisturbed",
               abs(calm["accuracy"] - result["accuracy"]) <= POINT, "accuracy")


# ---- limits and secrets of a container -----------------------------------------------------------


def processes(container):
    """Yields /proc/PID/status of each process in the container as a dict. Skips processes that have
    just ended, such as the container's health check."""
    for pid in docker("top", container, "-o", "pid").split()[1:]:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if "VmHWM" in found:  # a process that has ended, but is still listed, has no memory
            yield found


def listening(container):
    """Returns the addresses on which processes of the container listen, as /proc/net/tcp has
    them."""
    table = docker("exec", container, "cat", "/proc/net/tcp").splitlines()[1:]
    return {line.split()[1] for line in table if line.split()[3] == "0A"}


def test_compose_confined(cluster, figure):
    """A container has no root user, no capability and no writable files outside its volumes and
    /dev/shm, and uses no more memory than docs/cluster.md says."""
    c = cluster(Training, CNN_MODEL="seed:32", CNN_EPOCHS=1000, CNN_THREADS=2, CNN_BATCH_SIZE=100)
    weights, million = 4 * c.ask("n_params"), 10 ** 6
    # the formula in docs/cluster.md with V = 2, C = 1.125 and --push-window 8
    limits = {c.server: 32 * 2**20 + weights * (2 + 1.125 * 3 + 11 * SIZE + 2)}
    limits.update({w: 256 * million + weights * 256 for w in c.workers()})
    for container in limits:
        for p in processes(container):
            assert "0" not in p["Uid"].split() + p["Gid"].split(), p
            assert int(p["CapEff"], 16) == int(p["CapBnd"], 16) == 0, p
            assert (p["NoNewPrivs"], p["Seccomp"]) == ("1", "2"), p
        for place in ("/", "/tmp", "/usr/local/bin", "/keys"):
            said = docker("exec", container, "sh", "-c", f"touch {place}/x 2>&1", check=False)
            assert "Read-only" in said, f"{place}: {said}"
    max_threads = call(["docker", "run", "--rm", *CONFINED, "--network", "none", "-v",
                        f"{c.env['CNN_IMAGES']}:/data:ro", c.images.first, "cnn-worker",
                        "--server", "tcp://127.0.0.1:1", "--connect-timeout-ms", "100", "--data",
                        "/data", "--device", "cpu", "--threads", "256"], check=False)
    assert max_threads.returncode == 3, f"they start, there is no server: {max_threads.stderr}"
    share = max(resident(container) / limit for container, limit in limits.items())
    figure("C3", share, "of the memory that is documented, at most", share <= 1)


def resident(container):
    """Returns the sum of the peak resident bytes of all processes in the container."""
    return sum(1024 * int(p["VmHWM"].split()[0]) for p in processes(container))


def test_compose_secrets(cluster, figure):
    """Secret keys and the token occur only in their files, and the HTTP port is open only inside the
    container."""
    c = cluster(Training, CNN_MODEL="seed:8", CNN_EPOCHS=1000, CNN_LOG_LEVEL="debug",
                CNN_HTTP="8080")
    assert docker("exec", c.workers()[0], "ls", "/keys").split() == ["server.pub", "worker.key"]
    names = docker("exec", c.server, "sh", "-c", "ls /keys/*.key").split()
    secrets = [docker("exec", c.server, "sed", "-n", "2p", name) for name in names]
    assert len(secrets) == 4 and all(len(s) == 40 for s in secrets)
    secrets.append(docker("exec", c.server, "cat", "/keys/http.token"))
    assert re.fullmatch(r"[\w-]{32}", secrets[-1])
    docker("exec", c.server, "cnn-ps", "--check-config", "--http", "0.0.0.0:8080", "--http-token",
           "/keys/http.token")
    everybody = [c.server, *c.workers(), *c.containers("keys", "-a")]
    said = "".join(docker("inspect", i) + str(call(["docker", "logs", i])) for i in everybody)
    for container in [c.server, *c.workers()]:
        said += docker("exec", container, "sh", "-c", "cat /proc/[0-9]*/cmdline", check=False)
    assert "listening" in said and "--key" in said
    found = sum(s in said for s in secrets)
    assert listening(c.server) >= {"0100007F:1F90", "00000000:15B3"}, "8080 here, 5555 for all"
    abroad = {a for a in listening(c.server) if not re.search("00007F:", a)}
    assert abroad == {"00000000:15B3"}, abroad
    figure("C3", found, "secrets in logs, arguments or environments", found == 0)


def test_compose_key_taken_out(cluster, figure):
    """When a key is deleted from the list, its workers exit, and Docker does not start them
    again."""
    c = cluster(Training, CNN_MODEL="seed:8", CNN_EPOCHS=1000)
    fleet = c.workers()
    docker("run", "--rm", "--network", "none", "-v", f"{c.project}_server-keys:/keys",
           c.images.first, "sed", "-i", "/ worker$/d", "/keys/authorized_keys")
    docker("kill", "-s", "HUP", c.server)
    until(lambda: not c.workers(), SOON, "they end")
    assert {inspect(w, ".State.Status") for w in fleet} == {"exited"}
    for worker in fleet:
        assert "PS_EAUTH" in call(["docker", "logs", worker]).stderr.splitlines()[-1]
    again = sum(int(inspect(w, ".RestartCount")) for w in fleet)
    figure("C3", again, "times that Docker started a refused worker again", again == 0)
