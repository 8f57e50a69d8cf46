"""Finds and runs the programs cnn-ps and cnn-ctl."""
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

from .errors import AgainError, Error

_SECONDS = 120  # time limit of a call of cnn-ctl, in seconds


def find(name: str) -> str:
    """Returns the path of a program, which may be in the directory $CNNPS_PROGRAMS, in the wheel,
    in the source tree, or on $PATH."""
    here = Path(__file__).resolve()
    places = [Path(os.environ.get("CNNPS_PROGRAMS", "/nowhere")), here.parent / "bin",
              here.parents[3] / "build" / "release"]
    for place in places:
        if os.access(place / name, os.X_OK):
            return str(place / name)
    found = shutil.which(name)
    # the wheel installs scripts of the same names on $PATH, which call this function; such a script
    # begins with "#!" and is not the program
    if not found or Path(found).read_bytes()[:2] == b"#!":
        raise FileNotFoundError(f"{name} is not installed: install the wheel or the package cnn-ps")
    return found


def environment() -> Dict[str, str]:
    """Returns the environment of a program that this package starts. The environment lacks the
    variables CNN_*, which would set options that the caller has not chosen."""
    return {k: v for k, v in os.environ.items() if not k.startswith("CNN_")}


def tied(argv: List[str], signal: str) -> List[str]:
    """Returns a command that runs `argv`. The system sends `signal` to this command when the thread
    that has started it ends, even if this process is killed. If the program setpriv (util-linux) is
    not installed, returns `argv` unchanged, and the command does not end with the thread."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", signal, "--", *argv] if setpriv else argv


def ctl(*arguments: str) -> None:
    try:
        done = subprocess.run([find("cnn-ctl"), *arguments], text=True, capture_output=True,
                              timeout=_SECONDS, check=False, env=environment())
    except subprocess.TimeoutExpired:
        raise AgainError(f"cnn-ctl {arguments[0]} has not ended within {_SECONDS} s") from None
    if done.returncode:
        raise Error(done.stderr.strip())


def export(checkpoint_dir: str, file: str) -> None:
    """Writes the weights of the last checkpoint to a .safetensors file."""
    ctl("export", "--checkpoint", checkpoint_dir, file)


def keygen(directory: str) -> None:
    """Writes new keys of a server, a worker and an administrator to a directory."""
    ctl("keygen", directory)


def _become(name: str) -> None:
    path = find(name)
    os.execv(path, [name, *sys.argv[1:]])


def cnn_ps() -> None:
    _become("cnn-ps")


def cnn_ctl() -> None:
    _become("cnn-ctl")
