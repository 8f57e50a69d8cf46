"""Test the manifests of deploy/k8s: kustomize builds them, the schemas of Kubernetes accept them,
and the programs have every flag, port, page, path and variable that the manifests name."""
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from support.build import BUILD, ROOT, command, without
from support.kubectl import kubectl
from support.programs import Process

K8S = ROOT / "deploy/k8s"
TOOLS = ROOT / "build/tools/bin"  # `deploy/setup.sh tools` makes it
VALIDATE = TOOLS / "kubernetes-validate"
VERSIONS = ("1.33", "1.34", "1.35")
TOKEN = "0123456789-abcdefghijkl"
UNIT = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
# name: (resources, components) of a user's overlay; None: an unchanged overlay of deploy/k8s
MIXTURES = {
    "cpu": None, "gpu": None,
    "gpu on spot nodes with metrics": ("overlays/gpu", ["components/spot", "components/podmonitor"]),
    "cpu with metrics": ("overlays/cpu", ["components/podmonitor"]),
    "the overlay of docs/kubernetes.md": "page"}


@pytest.fixture(params=MIXTURES)
def manifests(request, tmp_path):
    """Returns all objects of one overlay, as kustomize builds them."""
    mixture = MIXTURES[request.param]
    directory = K8S / "overlays" / request.param
    if mixture == "page":
        text, = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.S)
        shutil.copytree(K8S, tmp_path / "deploy/k8s")
        directory = tmp_path / "run"
        directory.mkdir()
        (directory / "kustomization.yaml").write_text(text)
    elif mixture:
        shutil.copytree(K8S, tmp_path / "k8s")
        directory = tmp_path / "k8s/own"
        directory.mkdir()
        (directory / "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [f"../{mixture[0]}"], "components": [f"../{c}" for c in mixture[1]]}))
    done = subprocess.run([kubectl(), "kustomize", directory], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests, kind, name=None):
    found = [m for m in manifests if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    assert found, f"no {kind} {name}"
    return found[0]


def containers(manifests):
    """Yields (object, container) of the server, and then of a worker."""
    for kind, name in (("StatefulSet", "server"), ("Job", "worker")):
        o = of_kind(manifests, kind, name)
        one, = o["spec"]["template"]["spec"]["containers"]
        yield o, one


def variables(manifests, container):
    """Returns the environment variables of a container."""
    found = {}
    for source in container.get("envFrom", ()):
        found.update(of_kind(manifests, "ConfigMap", source["configMapRef"]["name"])["data"])
    found.update({e["name"]: e["value"] for e in container.get("env", ())})
    return found


def test_schemas_accept_every_object(manifests, tmp_path):
    if not VALIDATE.exists():
        without("kubernetes-validate", "deploy/setup.sh tools")
    # the schemas of Kubernetes lack PodMonitor
    known = [m for m in manifests if m["kind"] != "PodMonitor"]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(known))
    done = subprocess.run([VALIDATE, "--strict",
                           *(w for v in VERSIONS for w in ("-k", v)), tmp_path / "all.yaml"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_flags_and_variables_exist(manifests):
    for _, c in containers(manifests):
        assert c["command"][:2] == ["tini", "--"]
        program = c["command"][2]
        text = subprocess.run(command(program, "--help"), capture_output=True, text=True).stdout
        flags = {f for f in re.findall(r"^  --(?:\[no-\])?([a-z-]+)", text, re.M)}
        names = set(re.findall(r"\b(CNN_[A-Z_]+)\b", text))
        assert flags and names
        for argument in c["args"]:
            assert re.match(r"--([a-z-]+)", argument)[1] in flags, argument
        for name in variables(manifests, c):
            assert name in names, name
        used = {n for a in c["args"] for n in re.findall(r"\$\((\w+)\)", a)}
        # Kubernetes sets this variable in the pods of an indexed Job
        assert used <= {"JOB_COMPLETION_INDEX"}


def test_ports_agree(manifests):
    (server, c), (_, worker) = containers(manifests)
    ports = {p["name"]: p["containerPort"] for p in c["ports"]}
    text = " ".join(c["args"])
    assert int(re.search(r"--bind=tcp://\S+:(\d+)", text)[1]) == ports["workers"]
    assert int(re.search(r"--http=\S+:(\d+)", text)[1]) == ports["http"]
    service = of_kind(manifests, "Service")
    assert f"--server=tcp://{service['metadata']['name']}:{ports['workers']}" in worker["args"]
    assert [p["port"] for p in service["spec"]["ports"]] == [ports["workers"]]
    assert server["spec"]["serviceName"] == service["metadata"]["name"]
    labels = server["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels
    allowed = {p["port"] for m in manifests if m["kind"] == "NetworkPolicy"
               for rule in m["spec"].get("ingress", ()) for p in rule["ports"]}
    assert ports["workers"] in allowed and allowed <= set(ports.values())
    for m in manifests:
        if m["kind"] == "PodMonitor":
            assert m["spec"]["selector"]["matchLabels"].items() <= labels
            assert {e["port"] for e in m["spec"]["podMetricsEndpoints"]} == {"http"}
            assert ports["http"] in allowed


def test_a_token_protects_the_pages(manifests):
    """The server and the Prometheus operator take the token from the Secret that a command of
    docs/kubernetes.md creates."""
    _, c = next(containers(manifests))
    server = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]
    folder, key = re.search(r"--http-token=(/\w+)/(\w+)", " ".join(c["args"])).groups()
    assert "--insecure" not in c["args"]
    assert "CNN_INSECURE" not in variables(manifests, c)
    volume, = [m["name"] for m in c["volumeMounts"] if m["mountPath"] == folder]
    secret, = [v["secret"]["secretName"] for v in server["volumes"] if v["name"] == volume]
    page = (ROOT / "docs/kubernetes.md").read_text()
    assert f"create secret generic {secret} --from-file=keys/{key}\n" in page
    for m in manifests:
        if m["kind"] == "PodMonitor":
            for endpoint in m["spec"]["podMetricsEndpoints"]:
                assert endpoint["authorization"] == {"credentials": {"name": secret, "key": key}}


def test_paths_are_mounted_and_in_the_image(manifests):
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    uid = int(re.search(r"--uid (\d+)", dockerfile)[1])
    assert "tini" in dockerfile and all(p in dockerfile for p in ("cnn-ps", "cnn-worker"))
    for o, c in containers(manifests):
        pod = o["spec"]["template"]["spec"]
        claims = o["spec"].get("volumeClaimTemplates", ())
        volumes = {v["name"] for v in pod.get("volumes", ())} | {v["metadata"]["name"] for v in claims}
        mounts = {m["mountPath"]: m for m in c["volumeMounts"]}
        for argument in c["args"]:
            path = re.match(r"--(key|http-token|data|checkpoint-dir)=(/\S+)", argument)
            if path:
                mount, = [m for p, m in mounts.items() if f"{path[2]}/".startswith(f"{p}/")]
                assert mount["name"] in volumes
                assert mount.get("readOnly", False) == (path[1] != "checkpoint-dir")
        security = pod["securityContext"]
        assert {security[k] for k in ("runAsUser", "runAsGroup", "fsGroup")} == {uid}
        for v in pod["volumes"]:
            assert v.get("secret", {}).get("defaultMode", 0o440) == 0o440


def test_grace_fits_into_the_time_of_the_pod(manifests):
    (server, _), (job, worker) = containers(manifests)
    grace = int(variables(manifests, worker)["CNN_GRACE_MS"]) / 1000
    assert grace < job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 30


def test_a_job_replaces_what_a_restart_can_repair(manifests):
    """The rules of the Job's podFailurePolicy agree with the meaning of the exit statuses in
    docs/operations.md."""
    job = of_kind(manifests, "Job")
    action = {}
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"operator": "In", "values": []})
        assert codes["operator"] == "In"
        action.update({n: rule["action"] for n in codes["values"]})
    assert action == {2: "FailJob", 4: "FailJob", 6: "FailJob", 9: "FailJob", 11: "FailIndex",
                      3: "Ignore", 5: "Ignore", 12: "Ignore", 13: "Ignore"}
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    page = (ROOT / "docs/operations.md").read_text()
    table = page[page.index("## Exit status"):]
    assert {int(n) for row in re.findall(r"^\| ([\d, ]+) \|.*\| \S.* \|$", table, re.M)
            for n in row.split(",")} - {0, 1, 10} == set(action)


def test_a_drain_can_evict_every_pod(manifests):
    """Kubernetes computes a budget with maxUnavailable or a percentage from the /scale subresource
    of a pod's owner. A Job has none, so such a budget forbids every eviction of its pods. No budget
    of the manifests may forbid the eviction of the only server."""
    owners = {kind: of_kind(manifests, kind)["spec"] for kind in ("Job", "StatefulSet")}
    for budget in (m["spec"] for m in manifests if m["kind"] == "PodDisruptionBudget"):
        wanted = budget["selector"]["matchLabels"].items()
        selected = {kind for kind, spec in owners.items()
                    if wanted <= spec["template"]["metadata"]["labels"].items()}
        assert selected, budget
        if "Job" in selected:
            assert isinstance(budget.get("minAvailable"), int), budget
        if "StatefulSet" in selected:
            assert budget.get("maxUnavailable") == owners["StatefulSet"].get("replicas", 1) == 1


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(\w+)", quantity).groups()
    return int(number) * UNIT[unit]


def test_memory_limits_are_those_of_the_formula(manifests, tmp_path):
    """The memory limits in the manifests are at least those of docs/cluster.md, "Limits". For the
    server, the test uses the figure that cnn-ps prints."""
    (_, server), (_, worker) = containers(manifests)
    (tmp_path / "checkpoints").mkdir()
    keys = subprocess.run(command("cnn-ctl", "keygen", tmp_path / "keys"), capture_output=True)
    assert keys.returncode == 0
    (tmp_path / "http").mkdir()
    (tmp_path / "http/token").touch(0o600)
    (tmp_path / "http/token").write_text(TOKEN)
    arguments = [a.replace("=/", f"={tmp_path}/") for a in server["args"]]
    done = subprocess.run(command("cnn-ps", "--check-config", *arguments), capture_output=True,
                          text=True, env=dict(os.environ, **variables(manifests, server)))
    assert done.returncode == 0, done.stderr
    need = int(re.search(r"memory_bytes=(\d+)", done.stdout)[1])
    limit = bytes_of(server["resources"]["limits"]["memory"])
    assert need <= limit <= 3 * need, f"{need / 2**20:.0f} MiB"
    weights = 4 * int(re.search(r"parameters=(\d+)", done.stdout)[1])
    threads = int(variables(manifests, worker).get("CNN_THREADS", 1))
    need = 256e6 + 3e6 * threads + min(256 << 20, 256 * weights)
    assert need <= bytes_of(worker["resources"]["limits"]["memory"])


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to root")
def test_the_server_runs_with_a_mounted_secret(programs, data):
    """The files of the keys and of the token are as Kubernetes mounts them: they belong to root and
    the group of the pod, have mode 0440, and are behind links. Server and worker run as another
    user, and train with these keys."""
    keys = programs.keygen()
    (keys / "token").write_text(TOKEN)
    place = Path("/run") / f"cnn-test-{os.getpid()}"
    try:
        (place / "..data").mkdir(parents=True)
        for name in ("server.key", "worker.key", "server.pub", "authorized_keys", "token"):
            shutil.copy(keys / name, place / "..data" / name)
            os.chown(place / "..data" / name, 0, 10001)
            (place / "..data" / name).chmod(0o440)
            (place / name).symlink_to(f"..data/{name}")
        place.chmod(0o755)
        user = ["setpriv", "--reuid=10001", "--regid=10001", "--groups=10001"]
        # copy the programs, because the user 10001 may have no access to the checkout
        for name in ("cnn-ps", "cnn-worker"):
            shutil.copy(BUILD / name, place / name)
        server = programs.add(Process("cnn-ps", [
            *user, place / "cnn-ps", "--bind", "tcp://127.0.0.1:0", "--http", "0.0.0.0:0",
            "--http-token", place / "token", "--key", place / "server.key", "--model", "seed:8", "--epochs", "1", "--max-updates", "20"]))
        endpoint = server.line(r"net listening.* endpoint=(\S+)")[1]
        url = server.line(r"http listening.* url=(\S+?)/?$")[1]
        for page in ("/livez", "/healthz", "/metrics"):
            need = {"Authorization": f"Bearer {TOKEN}"} if page == "/metrics" else {}
            asked = urllib.request.Request(url.replace("0.0.0.0", "127.0.0.1") + page, headers=need)
            with urllib.request.urlopen(asked, timeout=5) as reply:
                assert reply.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(asked.full_url, timeout=5)
        images = place / "data"
        shutil.copytree(data, images)
        worker = programs.add(Process("cnn-worker", [
            *user, place / "cnn-worker", "--server", endpoint, "--key", place / "worker.key",
            "--data", images, "--device", "cpu", "--threads", "1"]))
        assert server.wait(60) == 0, server.tail()
        assert worker.wait(20) == 0, worker.tail()
    finally:
        programs.close()
        shutil.rmtree(place, ignore_errors=True)
