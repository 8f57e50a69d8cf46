"""Test `make install`: a program outside the tree can use libcnnps, and manual pages and
completions agree with the programs.

The tests install into a temporary directory (DESTDIR), as the build of a package does.
"""
import fcntl
import os
import pty
import re
import select
import shutil
import socket
import struct
import subprocess
import termios

import pytest
from support.build import BUILD, FLAVOUR, ROOT, without
from support.programs import Process

NEEDED = ("libzmq", "libuv", "libprotobuf-c", "libxxhash")
MAP = ROOT / "worker/client/cnnps.map"


def run(*argv, **kwargs):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=300, check=False, **kwargs)
    assert done.returncode == 0, f"{argv}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def exported():
    return sorted(re.findall(r"^\t(cnnps_\w+);", MAP.read_text(encoding="utf-8"), re.M))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns the root directory of an installation with prefix /usr."""
    root = tmp_path_factory.mktemp("root")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    cuda = [] if "-DKX_CUDA=1" in (BUILD / "flags").read_text(encoding="utf-8") else ["CUDA=0"]
    run("make", "-C", ROOT, "install", f"DESTDIR={root}", "prefix=/usr", f"FLAVOUR={FLAVOUR}",
        *cuda, env=clean)
    return root


def compiler_flags(root):
    env = dict(os.environ, PKG_CONFIG_PATH=str(root / "usr/lib/pkgconfig"),
               PKG_CONFIG_SYSROOT_DIR=str(root), PKG_CONFIG_ALLOW_SYSTEM_LIBS="1",
               PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1")
    flags = run("pkg-config", "--cflags", "--libs", "cnnps", env=env).split()
    # Only libcnnps is installed below the sysroot `root`. Remove `root` from the paths of all other
    # libraries, which are in the directories of this machine.
    return [re.sub(f"^(-[IL]){root}(?!/usr/(include|lib)$)", r"\1", flag) for flag in flags]


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_program_outside_the_tree_trains(programs, installed, tmp_path, static):
    source = tmp_path / "line.c"
    text = (ROOT / "worker/examples/line.c").read_text(encoding="utf-8")
    source.write_text(text.replace('"worker/client/cnnps.h"', "<cnnps.h>"), encoding="utf-8")
    if static:
        # Link only libcnnps statically: Debian 12 lacks static versions of some other libraries.
        flags = [{"-lcnnps": "-l:libcnnps.a"}.get(f, f) for f in compiler_flags(installed)]
        flags += run("pkg-config", "--libs", *NEEDED).split()
    else:
        flags = compiler_flags(installed)
    run("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "line", source, *flags,
        "-lm", cwd=tmp_path)
    needed = run("readelf", "-d", tmp_path / "line")
    assert ("libcnnps.so.0" in needed) == (not static)
    server = programs.server("--model", "vector:2", "--optimizer", "sgd", "--lr", 0.5,
                             directory=None)
    line = programs.add(Process("line", [tmp_path / "line", server.endpoint],
                                env={"LD_LIBRARY_PATH": str(installed / "usr/lib")}))
    assert line.wait(60) == 0, line.tail()
    a, b = re.search(r"a=(\S+) b=(\S+)", "\n".join(line.out)).groups()
    assert abs(float(a) - 2) < 0.2 and abs(float(b) + 1) < 0.2


def test_libraries_export_exactly_the_interface(installed):
    """The libraries export exactly the functions of cnnps.h. These names are the ABI: the removal
    of a name needs a new SONAME."""
    header = (ROOT / "worker/client/cnnps.h").read_text(encoding="utf-8")
    assert exported() == sorted(set(re.findall(r"^[a-z].*?\b(cnnps_\w+)\(", header, re.M)))
    shared = run("nm", "-D", "--defined-only", installed / "usr/lib/libcnnps.so.0")
    assert sorted(re.findall(r" T (\w+)@@CNNPS_0", shared)) == exported()
    # one more symbol is the name of the version
    assert len(re.findall(r" [A-Z] ", shared)) == len(exported()) + 1
    static = run("nm", "-g", "--defined-only", installed / "usr/lib/libcnnps.a")
    assert sorted(re.findall(r" [A-Z] (\w+)", static)) == exported()
    assert "libcnnps.so.0]" in run("readelf", "-d", installed / "usr/lib/libcnnps.so")


def test_debian_package_names_every_exported_symbol():
    """Without a line of this file for each symbol, `make deb` fails."""
    file = ROOT / "deploy/debian/libcnnps0.symbols"
    listed = re.findall(r"^ (cnnps_\w+)@CNNPS_0 ", file.read_text(encoding="utf-8"), re.M)
    assert listed == exported()


def test_header_fits_cplusplus_and_says_the_version(installed, tmp_path):
    version = re.search(r'"(\d+)\.(\d+)\.(\d+)"', (ROOT / "common/version.h").read_text())
    (tmp_path / "a.cc").write_text(
        "#include <cnnps.h>\n#include <cstring>\nint main() {\n\tstruct cnnps_pull pull = {};\n"
        "\tpull.size = sizeof(pull);\n\treturn std::strcmp(cnnps_version(), "
        f'"{version[0][1:-1]}") || CNNPS_VERSION_MAJOR != {version[1]} || '
        f"CNNPS_VERSION_MINOR != {version[2]} || CNNPS_VERSION_PATCH != {version[3]};\n}}\n",
        encoding="utf-8")
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("no C++ compiler")
    run(compiler, "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", tmp_path / "a",
        tmp_path / "a.cc", *compiler_flags(installed))
    run(tmp_path / "a", env=dict(os.environ, LD_LIBRARY_PATH=str(installed / "usr/lib")))


@pytest.mark.parametrize("program", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_manual_page_has_every_option(installed, program):
    page = (installed / f"usr/share/man/man1/{program}.1").read_text(encoding="utf-8")
    page = page.replace("\\-", "-")
    options = re.findall(r"^  --(?:\[no-\])?([a-z-]+)", run(BUILD / program, "--help"), re.M)
    assert len(options) > 5
    for option in options:
        assert f"--{option}" in page or f"]{option}" in page, option
    assert ".SH \"EXIT STATUS\"" in page and ".SH \"SEE ALSO\"" in page


def test_manual_page_of_the_library_has_every_call(installed):
    page = (installed / "usr/share/man/man3/cnnps.3").read_text(encoding="utf-8")
    for name in exported():
        assert re.search(rf"^\S.*\b{name}\(", page, re.M), name


def complete(installed, *words):
    """Returns the completions that bash proposes for the last element of `words`."""
    script = installed / "usr/share/bash-completion/completions" / words[0]
    return run("bash", "-c", 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
               '_cnn_ps "$1"; printf "%s\\n" "${COMPREPLY[@]}"', script, *words).split()


def test_bash_completes_options_values_and_commands(installed):
    assert "--durability" in complete(installed, "cnn-ps", "--du")
    assert complete(installed, "cnn-ps", "--durability", "")[:2] == ["replay", "always"]
    assert complete(installed, "cnn-worker", "--precision", "b") == ["bf16"]
    assert complete(installed, "cnn-ctl", "ex") == ["export"]
    assert complete(installed, "cnn-worker", "--bind") == []
    assert complete(installed, "cnn-ps", "--durability", "=") == ["replay", "always"]
    assert complete(installed, "cnn-ps", "--durability", "=", "al") == ["always"]


def zsh_lists(installed, line):
    """Returns the text that zsh shows when the user presses Tab after `line`."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 500, 200, 0, 0))  # rows, columns
    env = {"PATH": f"{BUILD}:{os.environ['PATH']}", "TERM": "dumb", "HOME": "/nonexistent"}

    def shown_until(pattern):
        shown = ""
        while not re.search(pattern, shown, re.S):
            assert select.select([master], [], [], 20)[0], f"no {pattern}: {shown}"
            shown += os.read(master, 65536).decode()
        return shown
    with subprocess.Popen(["zsh", "-f", "-i"], stdin=slave, stdout=slave, stderr=slave, env=env,
                          start_new_session=True) as shell:
        os.close(slave)
        try:
            functions = installed / "usr/share/zsh/site-functions"
            os.write(master, f"fpath=({functions} $fpath); autoload -U compinit; compinit -D -u; "
                             "bindkey '^I' list-choices; PS1=; echo ready$((6*7))\n".encode())
            shown_until(r"ready42.*\x1b\[\?2004h")  # zsh has printed its prompt and edits a line
            os.write(master, f"{line}\t\x15echo end$((6*7))\n".encode())  # ^U empties the line
            return shown_until("end42").split(line, 1)[1].split(line)[0]
        finally:
            shell.kill()
            os.close(master)


def test_zsh_completes_options_values_commands_and_files(installed):
    if not shutil.which("zsh"):
        without("zsh", "deploy/setup.sh")
    assert re.search(r"--durability +-- what survives", zsh_lists(installed, "cnn-ps --du"))
    assert zsh_lists(installed, "cnn-ps --durability ").split() == ["always", "replay"]
    assert zsh_lists(installed, "cnn-ps --durability=al").split() == ["always"]
    assert zsh_lists(installed, "cnn-worker --precision b").split() == ["bf16"]
    assert zsh_lists(installed, "cnn-ctl ex").split() == ["export"]
    assert zsh_lists(installed, "cnn-worker --no-pr").split()[0] == "--no-print-data-id"
    assert zsh_lists(installed, f"cnn-ctl export {ROOT}/Makef").split() == ["Makefile"]


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_server_reports_to_the_service_manager(programs, tmp_path, abstract):
    """The server sends READY=1 when workers can connect, and STOPPING=1 when it stops, as systemd's
    Type=notify expects."""
    name = f"\0cnn-ps-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(20)
        manager.bind(name)
        server = programs.server("--model", "vector:2", directory=None,
                                 env={"NOTIFY_SOCKET": name.replace("\0", "@")})
        assert manager.recv(100) == b"READY=1"
        server.line("net listening", 0.1)
        server.popen.terminate()
        assert manager.recv(100) == b"STOPPING=1"
        assert server.wait(20) == 0


@pytest.mark.parametrize("value", ["relative", "/nowhere/at/all", "/" + 200 * "x", ""])
def test_service_manager_that_is_not_there_changes_nothing(programs, value):
    server = programs.server("--model", "vector:2", directory=None, env={"NOTIFY_SOCKET": value})
    server.line("server waiting")
    server.popen.terminate()
    assert server.wait(20) == 0
