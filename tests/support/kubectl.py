"""Finds the kubectl of the tests."""
import functools
import re
import shutil
import subprocess

from support.build import ROOT, without


@functools.cache
def kubectl():
    """Returns the path of a kubectl with kustomize 5. This is the one that `deploy/setup.sh tools`
    installs or, if it is not installed, the system's."""
    places = ROOT / "build/tools/bin/kubectl", "kubectl"
    for path in filter(None, map(shutil.which, places)):
        done = subprocess.run([path, "version", "--client"], capture_output=True, text=True,
                              timeout=30, check=False)
        version = re.search(r"Kustomize Version: v(\d+)", done.stdout)
        if version and int(version[1]) >= 5:
            return path
    return without("kubectl with kustomize 5", "deploy/setup.sh tools")
