"""A stand-in for a Kubernetes cluster of one node, for the commands of docs/kubernetes.md.

This program does not replace Kubernetes. A test with it proves that kubectl accepts the commands,
that the keys, mounts, variables, probes and names in the manifests fit together, and that the
programs train with them, also after a restart. Such a test proves nothing about the schemas of the
manifests (test_kubernetes.py checks them), the real controllers, scheduling, network policies,
limits of resources or disruption budgets.

kubernetes_api.py serves the Kubernetes API. This file acts on the objects of the API:

- A pod has one container: a process with namespaces of its own for processes, mounts and IPC. It
  has the user, groups and privileges of the manifest. Its file system is that of this machine,
  read-only as in the manifest, and /usr/local/bin has the programs of the build.
- Volumes are directories. As with a real kubelet, the files of a Secret are symbolic links.
- All pods share one network. /etc/hosts maps the names of the Services to addresses.
- A pod waits forever if it needs a device, an image other than IMAGE, or an object that does not
  exist.
- The stand-in supports only objects with the fields of the manifests in deploy/k8s, and ends with
  an error if such a field is missing.
- A worker that fails also fails the Job, unless podFailurePolicy ignores its exit status. If the
  policy ignores the status, the Job replaces the pod after one second. (Kubernetes waits for 10 s
  and more, and has other rules.)

    kubernetes.py DIRECTORY PORT PROGRAMS IMAGE

runs as root, as the first process of new namespaces for processes and networks.
"""
import base64
import copy
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from kubernetes_api import Refused, Store, now, serve

INDEX = "batch.kubernetes.io/job-completion-index"
ENDED = ("Succeeded", "Failed")
REPLACE_SECONDS = 1
TICK = 0.05

# Makes and enters the file system $1 of a container with the host name $2, the programs $3 and the
# file /etc/hosts $4. Node.start() adds the lines for volumes and for the program.
ENTER = """
mount -t tmpfs -o mode=755 none "$1"
cd "$1"
mkdir usr etc proc dev
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
mount --rbind /usr usr
mount --bind "$3" usr/local/bin
mount -t proc proc proc
mount -t tmpfs -o mode=755 none dev
mkdir -m 1777 dev/shm
for name in null zero random urandom; do touch dev/$name; mount --bind /dev/$name dev/$name; done
for name in passwd group nsswitch.conf ld.so.cache; do cp /etc/$name etc; done
touch etc/hosts
mount --bind "$4" etc/hosts
hostname "$2"
"""


class NotYet(Exception):
    """Raised if a pod cannot start yet. The text of the exception gives the reason."""


def meta(o):
    return o["metadata"]


class Container:
    """The container of a pod, from its start to its end."""

    def __init__(self, spec, argv, log):
        self.spec, self.kill_at, self.ready = spec, None, "readinessProbe" not in spec
        with log.open("wb") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        threading.Thread(target=self.probe, daemon=True).start()

    def first(self):
        """Returns the process that is number 1 in the container, or None."""
        pid = self.process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, IndexError):
            return None

    def stop(self, grace):
        """Ask the container to end. `grace` seconds after the first call, kill the container."""
        first, asked = self.first(), self.kill_at is not None
        if not asked:
            self.kill_at = time.monotonic() + grace
        if first and not asked:
            os.kill(first, signal.SIGTERM)
        elif first and time.monotonic() > self.kill_at:
            os.kill(first, signal.SIGKILL)

    def answers(self, probe):
        get = probe["httpGet"]
        port, = (p["containerPort"] for p in self.spec["ports"] if p["name"] == get["port"])
        peer = HTTPConnection("127.0.0.1", port, timeout=probe.get("timeoutSeconds", 1))
        try:
            peer.request("GET", get["path"])
            return peer.getresponse().status < 400
        except (OSError, HTTPException):
            return False
        finally:
            peer.close()

    def probe(self):
        """Call the probes of the container until it ends. The liveness and readiness probes begin
        when the startup probe has succeeded."""
        failed, due, started = Counter(), Counter(), "startupProbe" not in self.spec
        while self.process.poll() is None:
            for name in ("livenessProbe", "readinessProbe") if started else ("startupProbe",):
                if name not in self.spec or time.monotonic() < due[name]:
                    continue
                probe = self.spec[name]
                good = self.answers(probe)
                due[name] = time.monotonic() + probe.get("periodSeconds", 10)
                failed[name] = 0 if good else failed[name] + 1
                started = started or good
                if name == "readinessProbe":
                    self.ready = good
                elif failed[name] >= probe.get("failureThreshold", 3):
                    self.stop(0)
            time.sleep(TICK)


class Node:
    """Runs the containers of all pods. The caller of any method except execute() must hold the lock
    of the store."""

    def __init__(self, store, home, programs, image):
        self.store, self.home, self.programs, self.image = store, home, programs, image
        self.running = {}     # {uid of a pod: its container}
        self.restart_at = {}  # {uid of a pod: time of the next start}

    def place(self, *parts):
        path = self.home.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @staticmethod
    def status(pod):
        """Returns the status of the container of a pod."""
        return pod["status"].setdefault("containerStatuses", [
            {"name": pod["spec"]["containers"][0]["name"], "restartCount": 0, "state": {}}])[0]

    def log(self, pod, previous):
        number = self.status(pod)["restartCount"] - previous
        if number < 0:
            raise Refused(400, "BadRequest", "previous terminated container not found")
        return self.place("logs", meta(pod)["uid"], str(number)).read_text(errors="replace")

    def execute(self, pod, command):
        container = self.running.get(meta(pod)["uid"])
        first = container and container.first()
        if not first:
            raise Refused(400, "BadRequest", "the container does not run")
        return subprocess.run(["nsenter", f"--target={first}", "--all", "--root", "--wd",
                               *self.user(pod), *command], stdin=subprocess.DEVNULL,
                              capture_output=True, check=False)

    @staticmethod
    def user(pod):
        """Returns the beginning of a command line that starts a program with the user, groups and
        privileges of the manifest."""
        whole, own = pod["spec"]["securityContext"], pod["spec"]["containers"][0]["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]} and not own["allowPrivilegeEscalation"]
        return ["setpriv", f"--reuid={whole['runAsUser']}", f"--regid={whole['runAsGroup']}",
                f"--groups={whole['fsGroup']}", "--bounding-set=-all", "--inh-caps=-all",
                "--no-new-privs"]

    def needed(self, resource, pod, name):
        try:
            return self.store.get(resource, meta(pod)["namespace"], name)
        except Refused as why:
            raise NotYet(str(why)) from None

    def volume(self, pod, volume):
        """Returns the directory that stands for the volume `volume` of the pod."""
        group = pod["spec"]["securityContext"]["fsGroup"]
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]
            self.needed("persistentvolumeclaims", pod, claim["claimName"])
            path = self.place("claims", meta(pod)["namespace"], claim["claimName"])
            if not path.exists():
                path.mkdir()
                os.chown(path, 0, group)
                path.chmod(0o2775)
            return path
        secret = self.needed("secrets", pod, volume["secret"]["secretName"])
        path = self.place("volumes", meta(pod)["uid"], volume["name"])
        shutil.rmtree(path, ignore_errors=True)
        (path / "..data").mkdir(parents=True)
        for name, value in secret["data"].items():
            file = path / "..data" / name
            file.write_bytes(base64.b64decode(value))
            os.chown(file, 0, group)
            file.chmod(volume["secret"]["defaultMode"])
            (path / name).symlink_to(f"..data/{name}")
        return path

    def start(self, pod):
        spec, uid = pod["spec"]["containers"][0], meta(pod)["uid"]
        devices = [name for name in spec["resources"]["limits"] if "/" in name]
        if devices or spec["image"] != self.image:
            raise NotYet(f"no device {devices[0]}" if devices else f"no image {spec['image']}")
        values = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        for source in spec.get("envFrom", ()):
            values.update(self.needed("configmaps", pod, source["configMapRef"]["name"])["data"])
        values.update({e["name"]: e["value"] for e in spec.get("env", ())})
        places = {v["name"]: self.volume(pod, v) for v in pod["spec"]["volumes"]}
        lines = [ENTER]
        for mount in spec["volumeMounts"]:
            at = shlex.quote(mount["mountPath"].lstrip("/"))
            lines.append(f"mkdir -p {at}; mount --bind {places[mount['name']]} {at}")
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {at}")
        assert spec["securityContext"]["readOnlyRootFilesystem"]
        lines.append("mount -o remount,ro .")
        given = [re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], word)
                 for word in (*spec["command"], *spec["args"])]
        lines.append("exec " + shlex.join(["env", "-i", *(f"{k}={v}" for k, v in values.items()),
                                           "chroot", ".", *self.user(pod), *given]))
        hosts, root = self.place("hosts", meta(pod)["namespace"]), self.place("roots", uid)
        hosts.touch()
        root.mkdir(exist_ok=True)
        log = self.place("logs", uid, str(self.status(pod)["restartCount"]))
        self.running[uid] = Container(spec, [
            "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-euc",
            "\n".join(lines), "sh", root, meta(pod)["name"], self.programs, hosts], log)

    def step(self):
        """Start and stop containers as the objects require, and update the status of each pod."""
        for service in self.store.of("services"):
            hosts = self.place("hosts", meta(service)["namespace"])
            hosts.touch()
            if meta(service)["name"] not in hosts.read_text().split():
                hosts.write_text(f"{hosts.read_text()}127.0.0.1 {meta(service)['name']}\n")
        for pod in self.store.of("pods"):
            before = copy.deepcopy(pod["status"])
            self.step_pod(pod)
            if pod["status"] != before:
                self.store.record("pods", "MODIFIED", pod)

    def step_pod(self, pod):
        uid, status, ending = meta(pod)["uid"], self.status(pod), "deletionTimestamp" in meta(pod)
        container = self.running.get(uid)
        if container and container.process.poll() is None:
            if ending or container.kill_at is not None:
                container.stop(pod["spec"]["terminationGracePeriodSeconds"])
            pod["status"]["phase"], status["ready"] = "Running", container.ready
        elif container:
            del self.running[uid]
            code, count = container.process.returncode, status["restartCount"]
            ended = {"exitCode": code, "finishedAt": now()}
            status.update(ready=False, state={"terminated": ended})
            if ending or pod["spec"].get("restartPolicy") == "Never":
                pod["status"]["phase"] = ENDED[code != 0]
            # at once, then after 10 s, 20 s and so on, as the kubelet does
            self.restart_at[uid] = time.monotonic() + (10 * 2 ** (count - 1) if count else 0)
        elif ending:
            pod["status"]["phase"] = "Failed"
        elif (pod["status"]["phase"] not in ENDED
              and time.monotonic() >= self.restart_at.get(uid, 0)):
            if "terminated" in status["state"]:
                status.update(lastState=status["state"], restartCount=status["restartCount"] + 1)
            try:
                self.start(pod)
                status["state"] = {"running": {"startedAt": now()}}
            except NotYet as why:
                status["state"] = {"waiting": {"reason": "CannotStart", "message": str(why)}}


class Controllers:
    """Creates and deletes the pods of StatefulSets and indexed Jobs."""

    def __init__(self, store):
        self.store = store
        self.counted = set()  # uids of pods that have ended and that their Job has counted
        self.replace_at = {}  # {(uid of a Job, index): time of the next pod}

    def step(self):
        owners = {}
        for resource, step in (("statefulsets", self.step_stateful_set), ("jobs", self.step_job)):
            for owner in self.store.of(resource):
                owners[meta(owner)["uid"]] = owner
                step(owner)
        for pod in self.store.of("pods"):
            owner = owners.get(meta(pod)["ownerReferences"][0]["uid"])
            if not owner:
                self.store.delete("pods", pod)
            if "deletionTimestamp" in meta(pod) and pod["status"]["phase"] in ENDED and (
                    not owner or owner["kind"] != "Job" or meta(pod)["uid"] in self.counted):
                self.store.remove("pods", pod)

    def pods_of(self, owner):
        return [pod for pod in self.store.of("pods")
                if meta(pod)["ownerReferences"][0]["uid"] == meta(owner)["uid"]]

    def make_pod(self, owner, name, spec, **labels):
        template = meta(owner["spec"]["template"])
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True,
                     "name": meta(owner)["name"], "uid": meta(owner)["uid"]}
        self.store.create("pods", meta(owner)["namespace"], {
            "metadata": {"name": name, "labels": {**template["labels"], **labels},
                         "ownerReferences": [reference]},
            "spec": spec, "status": {"phase": "Pending"}})

    def step_stateful_set(self, owner):
        wanted = [f"{meta(owner)['name']}-{i}" for i in range(owner["spec"]["replicas"])]
        pods = {meta(pod)["name"]: pod for pod in self.pods_of(owner)}
        for name in pods.keys() - wanted:
            self.store.delete("pods", pods[name])
        for name in wanted - pods.keys():
            if ("pods", meta(owner)["namespace"], name) in self.store.objects:
                continue  # a pod of an earlier StatefulSet still has this name
            spec = copy.deepcopy(owner["spec"]["template"]["spec"])
            for claim in owner["spec"]["volumeClaimTemplates"]:
                full = f"{meta(claim)['name']}-{name}"
                spec["volumes"].append({"name": meta(claim)["name"],
                                        "persistentVolumeClaim": {"claimName": full}})
                key = "persistentvolumeclaims", meta(owner)["namespace"], full
                if key not in self.store.objects:
                    self.store.create(*key[:2], {"metadata": {"name": full}, "spec": claim["spec"]})
            self.make_pod(owner, name, spec)

    @staticmethod
    def ignores(job, pod):
        """Returns True if the first rule of the Job that matches the exit status says to ignore
        it."""
        code = Node.status(pod)["state"].get("terminated", {}).get("exitCode")
        rules = [rule["action"] for rule in job["spec"]["podFailurePolicy"]["rules"]
                 if code in rule.get("onExitCodes", {"values": ()})["values"]]
        return rules[:1] == ["Ignore"]

    def step_job(self, job):
        spec, uid, status, seconds = job["spec"], meta(job)["uid"], job["status"], time.monotonic()
        if "conditions" in status:
            return
        done, active = status.setdefault("done", []), {}
        for pod in self.pods_of(job):
            index = int(meta(pod)["labels"][INDEX])
            if pod["status"]["phase"] not in ENDED:
                active[index] = pod
            elif meta(pod)["uid"] not in self.counted:
                self.counted.add(meta(pod)["uid"])
                self.replace_at[uid, index] = seconds + REPLACE_SECONDS
                if pod["status"]["phase"] == "Succeeded":
                    done.append(index)
                elif not self.ignores(job, pod):
                    status.setdefault("end", "Failed")
        if len(done) >= spec["successPolicy"]["rules"][0]["succeededCount"]:
            status.setdefault("end", "Complete")
        wanted = [] if "end" in status else [
            i for i in range(spec["completions"]) if i not in done][:spec["parallelism"]]
        for index in active.keys() - wanted:
            self.store.delete("pods", active[index])
        for index in wanted:
            if index not in active and seconds >= self.replace_at.get((uid, index), 0):
                pod = copy.deepcopy(spec["template"]["spec"])
                pod["containers"][0]["env"].append(
                    {"name": "JOB_COMPLETION_INDEX", "value": str(index)})
                suffix = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
                self.make_pod(job, f"{meta(job)['name']}-{index}-{suffix}", pod,
                              **{INDEX: str(index)})
        if "end" in status and not active:
            status["conditions"] = [{"type": status["end"], "status": "True",
                                     "lastTransitionTime": now()}]
            self.store.record("jobs", "MODIFIED", job)


def main(home, port, programs, image):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    store = Store()
    node, controllers = Node(store, Path(home), programs, image), Controllers(store)
    serve(store, node, ("127.0.0.1", int(port)))
    print("ready", flush=True)
    while True:
        with store.lock:
            node.step()
            controllers.step()
        time.sleep(TICK)


if __name__ == "__main__":
    main(*sys.argv[1:])
