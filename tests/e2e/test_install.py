"""Test `make install`: a program outside the tree can use libcnnps, and manual pages and
completions agree with the programs.

The tests install into a temporary directory (DESTDIR), as the build of a package does.
"""
import fcntl
import fnmatch
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
    """Returns the DESTDIR of a `make install` with prefix /usr."""
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
    # The sysroot `root` contains libcnnps, but none of its dependencies. Remove `root` from the
    # paths of all other libraries, which are in the directories of this machine.
    return [re.sub(f"^(-[IL]){root}(?!/usr/(include|lib)$)", r"\1", flag) for flag in flags]


def static_flags(root):
    """Returns the flags of the command in docs/install.md that links statically."""
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    words = re.search(r"^gcc -o worker worker\.c (\$.* -l:libcnnps\.a [^`]*)", text, re.M)[1]
    installed = "$(pkg-config --cflags --libs-only-L cnnps)"
    others = "$(pkg-config --libs libzmq libxxhash)"
    assert installed in words and others in words
    words = words.replace(installed, f"-I{root}/usr/include -L{root}/usr/lib").replace("\\\n", " ")
    return words.replace(others, run("pkg-config", "--libs", "libzmq", "libxxhash")).split()


def test_static_flags_of_pkg_config_name_every_library(installed):
    """Debian 12 lacks a static library that libzmq needs, so no program is linked here."""
    env = dict(os.environ, PKG_CONFIG_PATH=str(installed / "usr/lib/pkgconfig"))
    flags = run("pkg-config", "--static", "--libs", "cnnps", env=env).split()
    assert flags.index("-lcnnps") < min(flags.index(f"-l{name[3:]}") for name in NEEDED)
    assert "-lm" in flags and "-pthread" in flags


@pytest.mark.parametrize("static", [False, True], ids=["shared", "static"])
def test_program_outside_the_tree_trains(programs, installed, tmp_path, static):
    source = tmp_path / "line.c"
    text = (ROOT / "worker/examples/line.c").read_text(encoding="utf-8")
    source.write_text(text.replace('"worker/client/cnnps.h"', "<cnnps.h>"), encoding="utf-8")
    flags = static_flags(installed) if static else compiler_flags(installed)
    run("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "line", source, *flags,
        "-lm", cwd=tmp_path)
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", tmp_path / "line"))
    assert ("libcnnps.so.0" in needed) == (not static), needed
    shared = {"libzmq.so.5", "libxxhash.so.0", "libm.so.6", "libc.so.6"}
    assert not static or set(needed) <= shared, needed
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
    # one more than the functions: the name of the symbol version counts as a symbol
    assert len(re.findall(r" [A-Z] ", shared)) == len(exported()) + 1
    static = run("nm", "-g", "--defined-only", installed / "usr/lib/libcnnps.a")
    assert sorted(re.findall(r" [A-Z] (\w+)", static)) == exported()
    assert "libcnnps.so.0]" in run("readelf", "-d", installed / "usr/lib/libcnnps.so")


def test_debian_package_names_every_exported_symbol():
    """libcnnps0.symbols must have a line for each symbol, or `make deb` fails. The line of a symbol
    gives the first version of the package that has the symbol. A package whose program uses the
    symbol depends on at least this version. There was no shared library before 0.3.0."""
    text = (ROOT / "deploy/debian/libcnnps0.symbols").read_text(encoding="utf-8")
    found = re.search(r'PS_VERSION "(.*)"', (ROOT / "common/version.h").read_text(encoding="utf-8"))
    newest = found[1].replace("-dev", "~dev")
    listed = dict(re.findall(r"^ (\w+)@CNNPS_0 (\S+)$", text, re.M))
    assert list(listed) == ["CNNPS_0", *exported()] and text.count("@") == len(listed)
    for version in set(listed.values()):
        run("dpkg", "--compare-versions", "0.3.0~dev", "le", version)
        run("dpkg", "--compare-versions", version, "le", newest)


def in_debian_tmp(installed):
    """Returns the files that deploy/debian/rules writes to debian/tmp. `make install` writes all of
    them except the Python package and the worker with CUDA; no package has a store module with
    CUDA."""
    rules = (ROOT / "deploy/debian/rules").read_text(encoding="utf-8")
    files = {str(p.relative_to(installed)) for p in installed.rglob("*") if not p.is_dir()}
    files = {re.sub("^usr/lib/", "usr/lib/x86_64-linux-gnu/", f) for f in files
             if not f.startswith("usr/lib/cnn-ps/")}
    files |= set(re.findall(r"debian/tmp/(usr/bin/\S+)", rules))
    python, = re.findall(r"cp -r (\S+) debian/tmp/usr/lib/python3/dist-packages\n", rules)
    return files | {f"usr/lib/python3/dist-packages/cnnps/{p.name}"
                    for p in (ROOT / python).glob("*.py")}


def below(pattern, files):
    """Returns the files that a line of a *.install file selects. The line has a pattern for the
    path of a file or of a directory."""
    parts = pattern.split("/")
    return {f for f in files if len(f.split("/")) >= len(parts)
            and all(fnmatch.fnmatchcase(*pair) for pair in zip(f.split("/"), parts))}


def test_debian_packages_have_each_installed_file_once(installed):
    """Each line of the *.install files names a file of `make install` or of the tree, and each file
    of `make install` is in exactly one package. Otherwise `make deb` fails."""
    debian, files, owners = ROOT / "deploy/debian", in_debian_tmp(installed), {}
    packages = re.findall(r"^Package: (\S+)", (debian / "control").read_text(), re.M)
    assert sorted(p.stem for p in debian.glob("*.install")) == sorted(packages)
    for package in packages:
        for line in (debian / f"{package}.install").read_text().splitlines():
            source, *target = line.split()
            found = below(source, files)
            assert found or (target and (ROOT / source).exists()), f"{package}: {line}"
            for file in found:
                owners.setdefault(file, []).append(package)
    assert {f: owners.get(f, []) for f in files if len(owners.get(f, [])) != 1} == {}
    for path in debian.glob("*.links"):
        for line in path.read_text().splitlines():
            assert line.split()[0].removesuffix(".gz") in files, f"{path.name}: {line}"
    # none, because `make install` installs the manual pages
    assert not list(debian.glob("*.manpages"))


def test_debian_package_installs_completions_where_the_shells_search(installed):
    """zsh of Debian searches /usr/share/zsh/vendor-completions, and below /usr/local, where `make
    install` writes by default, share/zsh/site-functions."""
    lines = (ROOT / "deploy/debian/cnn-ps.install").read_text().splitlines()
    zsh, = (line.split() for line in lines if "/zsh" in line)
    assert (installed / zsh[0]).is_file()
    assert zsh[1:] == ["usr/share/zsh/vendor-completions"]
    bash = "usr/share/bash-completion/completions"
    assert bash in lines and (installed / bash / "cnn-ctl").is_file()
    if not shutil.which("zsh"):
        without("zsh", "deploy/setup.sh")
    searched = run("zsh", "-f", "-c", "print -l $fpath").split()
    assert {f"/{zsh[1]}", "/usr/local/share/zsh/site-functions"} <= set(searched)


def test_header_fits_cplusplus_and_says_the_version(installed, tmp_path):
    version = re.search(r'"(\d+)\.(\d+)\.(\d+)(?:-dev)?"', (ROOT / "common/version.h").read_text())
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


@pytest.mark.parametrize("program", ["cnn-ps", "cnn-worker"])
def test_manual_page_has_every_exit_status(installed, program):
    """The manual page lists the same exit statuses as the table in docs/operations.md."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8").split("\n## Exit status\n")[1]
    column, expected = ["cnn-ps", "cnn-worker"].index(program) + 2, set()
    for line in re.findall(r"^\| \d.*", text.split("\n## ")[0], re.M):
        cells = [cell.strip() for cell in line.split("|")]
        expected |= set(cells[1].split(", ")) if cells[column] else set()
    page = (installed / f"usr/share/man/man1/{program}.1").read_text(encoding="utf-8")
    section = " ".join(page.split('.SH "EXIT STATUS"\n')[1].split("\n.SH")[0].split())
    assert set(re.findall(r"(?:^|; )(\d+) ", section)) == expected


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


@pytest.mark.parametrize("program", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_completions_have_every_option(installed, program):
    rows = re.findall(r"^  --(\[no-\])?([a-z0-9-]+)(?: ([a-z|]+\|[a-z|]+) )?",
                      run(BUILD / program, "--help"), re.M)
    names = [f"--{no}{name}" for maybe, name, _ in rows for no in ("", "no-" if maybe else "")]
    assert set(complete(installed, program, "--")) == set(names)
    functions = (installed / "usr/share/zsh/site-functions/_cnn-ps").read_text(encoding="utf-8")
    ours = functions.split(f"\n{program})\n")[1].split("\n\t;;")[0]
    assert set(re.findall(r"^\t\t'(--[a-z0-9-]+)", ours, re.M)) == set(names)
    for _, name, values in rows:
        if values:
            assert complete(installed, program, f"--{name}", "") == values.split("|")
    if program == "cnn-ps":
        assert complete(installed, program, "--push", "") == ["mean", "sum"]
        assert complete(installed, program, "--n-push", "") == []
        assert complete(installed, program, "--aggregate", "") == ["mean", "median", "trimmed",
                                                                   "krum"]


def zsh_lists(installed, line):
    """Returns the text that zsh shows when the user presses Tab after `line`."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 500, 200, 0, 0))  # 500 rows, 200 columns
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
