"""A machine for tests that need more than a checkout: a Debian with systemd, in a container."""
import subprocess
import time

import pytest

from support.build import PATIENCE, ROOT

SECONDS = 1800 * PATIENCE


def run(*argv, seconds=SECONDS, check=True, **how):
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=seconds, check=False, **how)
    assert not check or done.returncode == 0, f"{argv}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def docker(*argv, **how):
    return run("docker", *argv, **how).strip()


def base_image():
    """Returns the name of a container image of a fresh Debian."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no containers: no Docker engine answers")
    return run(ROOT / "deploy/base_image.sh").strip()


# A script that starts systemd with a cgroup hierarchy of its own, in version 1.
INIT = """
umount /sys/fs/cgroup/* /sys/fs/cgroup
mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd && mount --make-rshared / &&
exec /sbin/init systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1
"""


class Booted:
    """A container in which systemd runs and the packages of the directory `made` are installed.
    Calling it runs a script in the container, and returns the output."""

    def __init__(self, name, made):
        self.name = name
        try:
            self.boot(made)
        except BaseException:
            self.close()
            raise

    def boot(self, made):
        name = self.name
        docker("run", "--name", f"{name}-made", "--network", "host", "-v", f"{made}:/made:ro",
               base_image(), "sh", "-c", "apt-get update -q && DEBIAN_FRONTEND=noninteractive "
               "apt-get install -q -y --no-install-recommends systemd-sysv procps sudo "
               "dataset-fashion-mnist /made/cnn-ps_*.deb")
        docker("commit", f"{name}-made", name)
        # the setting PrivateUsers= of the units needs SYS_PTRACE
        docker("run", "-d", "--name", name, "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE",
               "--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined",
               "--tmpfs", "/run", "--tmpfs", "/tmp", "-e", "container=docker", name, "sh", "-c", INIT)
        end = time.monotonic() + 30
        while subprocess.run(["docker", "exec", name, "systemctl", "is-system-running"],
                             capture_output=True, check=False).returncode:
            if time.monotonic() > end:
                pytest.skip("systemd does not run as the first process of a container here")
            time.sleep(0.5)

    def __call__(self, script):
        return docker("exec", self.name, "sh", "-euc", script, seconds=120)

    def close(self):
        for argv in (["rm", "-f", self.name, f"{self.name}-made"], ["rmi", self.name]):
            docker(*argv, check=False)
