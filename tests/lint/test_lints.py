"""Every lint finds nothing in a small copy of the tree, and finds each violation that a test adds
to the copy."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LINTS = ROOT / "tests" / "lint"
FOLDERS = ("common", "proto", "kernels", "server", "worker", "tests")


def run(tree, lint, *arguments):
    done = subprocess.run([next(LINTS.glob(f"{lint}.*")), *arguments], cwd=tree, text=True,
                          timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path):
    """Returns a directory with a copy of the headers, the build files, README.md, some other
    documents and a few sources."""
    for folder in FOLDERS:
        for header in (ROOT / folder).rglob("*.h"):
            place = tmp_path / header.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(header, place)
    for name in (".clang-format", ".clang-tidy", ".gitignore", "Makefile", "README.md",
                 "kernels/kernels.mk", "kernels/ladder/ladder.mk", "tests/gpu/gpu.mk",
                 "tests/fault/fault.mk", "tests/fuzz/fuzz.mk",
                 "deploy/install/install.mk", "server/device/device.mk",
                 "common/rng.c", "deploy/setup.sh", "deploy/docker_engine.sh", "deploy/Dockerfile",
                 "proto/cnnps.proto", "CONTRIBUTING.md",
                 "SECURITY.md", "docs/README.md", "kernels/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def write(tree, path, text):
    place = tree / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


# (lint, a file that the test adds, the text of the file, a word that the finding must contain)
VIOLATIONS = [
    ("format", "common/bad.c", "int  f( void ) ;\n", "common/bad.c"),
    ("includes", "common/bad.c", '#include "server/core/core.h"\n', "server/core/core.h"),
    ("includes", "kernels/bad.c", '#include "proto/msg.h"\n', "proto/msg.h"),
    ("includes", "server/bad.c", '#include "kernels/backend.h"\n', "kernels/backend.h"),
    ("includes", "server/bad.c", '# include "worker/client/cnnps.h"\n', "worker/client/cnnps.h"),
    ("includes", "server/bad.c", '#include "cnnps.pb-c.h"\n', "cnnps.pb-c.h"),
    ("includes", "server/core/bad.c", '#include "proto/wire.h"\n', "proto/wire.h"),
    ("includes", "server/core/bad.c", "#include <time.h>\n", "time.h"),
    ("includes", "server/core/bad.c", "#include <uv.h>\n", "uv.h"),
    ("includes", "worker/client/session.c", "#include <zmq.h>\n", "zmq.h"),
    ("includes", "worker/bad.c", '#include "server/core/core.h"\n', "server/core/core.h"),
    ("includes", "worker/client/cnnps.h", '#include "common/err.h"\n', "common/err.h"),
    ("includes", "worker/examples/bad.c", '#include "worker/client/session.h"\n',
     "worker/client/session.h"),
    ("includes", "proto/bad.c", '#include "cnnps.pb-c.h"\n', "cnnps.pb-c.h"),
    ("includes", "tests/unit/bad.c", '#include "cnnps.pb-c.h"\n', "cnnps.pb-c.h"),
    ("includes", "common/bad.c", "#include SOMETHING\n", "names no file"),
    ("modules", "server/core/bad.c", "void f(struct core *c)\n{\n\tpace_back(c, 0);\n}\n",
     "uses pace_back without pace.h"),
    ("modules", "server/core/bad.c", "int f(struct core *c)\n{\n\treturn c->later.n;\n}\n",
     "uses core.later without later_epochs.h"),
    ("modules", "server/core/bad.c", "int f(struct core *c)\n{\n\treturn c->now_ms;\n}\n",
     "uses struct core without core_state.h"),
    ("modules", "server/core/bad.c", '#include "server/core/sync.h"\n', "uses nothing of it"),
    ("modules", "server/core/sync.c", "int x;\n", "does not include sync.h"),
    ("folders", "server/net/bad.h", '#include "server/monitor/status.h"\n', "server/monitor"),
    ("folders", "common/err.h", '#include "common/keys.h"\n', "common/err.h"),
    ("mutants", "tests/sim/mutants/bad.patch", "--- a/common/rng.h\n+++ b/common/rng.h\n"
     "@@ -1,2 +1,1 @@\n-no such\n-lines\n+bug\n", "bad.patch"),
    ("banned", "common/bad.c", "void f(char *a, char *b) { strcpy(a, b); }\n", "strcpy"),
    ("banned", "worker/bad.c", "int f(char *a) { return\n atoi (a); }\n", "atoi"),
    ("banned", "server/bad.h", "#define F(x) sprintf(x, \"a\")\n", "sprintf"),
    ("banned", "server/bad.c", "#include <time.h>\nlong f(void) { return time(0); }\n", "clock"),
    ("banned", "worker/bad.c", "int f(void *t) { return clock_gettime(CLOCK_REALTIME, t); }\n",
     "worker/bad.c: reads the wall clock"),
    ("banned", "tests/unit/bad.c", "int f(void) { return rand(); }\n", "rand"),
    ("dialect", "common/bad.c", "int f(int a) { return (int)sizeof a; }\n", "common/bad.c: "),
    ("dialect", "common/bad.c", "int f(int most);\n", "min or max"),
    ("dialect", "tests/bench/bad.py", "def f(places, most):\n    return max(most)\n", "min or max"),
    ("dialect", "tests/bench/bad.py", "MOST = 5\n", "min or max"),
    ("dialect", "common/bad.c", "#define MOST 5\n", "min or max"),
    ("dialect", "common/bad.c", "int f(void)\n{\n\tint ret = g();\n}\n", "rc is"),
    ("dialect", "common/bad.c", "int f(void)\n{\n\tint status;\n\n\tstatus = g();\n}\n",
     "rc is"),
    ("dialect", "common/bad.c", "int f(void)\n{\n\tlog_info(\"disk\", \"on-fire\", NULL);\n}\n",
     "underscores"),
    ("names", "common/bad.c", "/* as no_such_function does */\nint f(void);\n",
     "common/bad.c:1: there is no no_such_function"),
    ("declarations", "common/bad.c", "int f(int a)\n{\n\tint b = a;\n\treturn b;\n}\n",
     "bad.c:4: "),
    ("declarations", "common/bad.c", "int f(int a)\n{\n\tif (a) {\n\t\tstruct err *e = g(\n"
     "\t\t\ta);\n\t\tput(e);\n\t}\n}\n", "bad.c:6: "),
    ("generated", "proto/cnnps.pb-c.h", "", "cnnps.pb-c.h"),
    ("generated", "tests/wire/cnnps_pb2.py", "", "cnnps_pb2.py"),
    ("generated", "server/core/core.o", "", "core.o"),
    ("generated", "worker/weights.safetensors", "", "weights.safetensors"),
    ("columns", "docs/bad.md", "| a | " + "é" * 95 + " |\n", "docs/bad.md:1: 103 columns"),
    ("spelling", "docs/bad.md", "A " + "recie" + "ved" + " push.\n", "received"),
    ("words", "docs/bad.md", "A stranger connects.\n", "unknown key"),
    ("words", "tests/unit/test_x.c", "int a_stranger_is_refused;\n", "tests/unit/test_x.c"),
    ("words", "tests/unit/router_lab.h", "\n", "router_lab.h"),
    ("words", "tests/sim/bad.c", "int server_life;\n", "server_process"),
    ("words", "worker/bad.c", "int cnnps_show_asked(void);\n", "request"),
    ("words", "server/bad.c", "--sync-spares\n", "--backup-workers"),
    ("words", "common/bad.h", "typedef int zloop_turn_fn(void *arg);\n", "iteration"),
    ("words", "server/net/bad.c", "/* at the end of each turn */\n", "iteration"),
    ("words", "server/core/bad.c", "void gather_add(struct gather *g);\n", "accumulator"),
    ("words", "server/auth/bad.c", "if (a->hung)\n", "stuck"),
    ("words", "server/net/bad.h", "int chunk_ahead(void);\n", "chunked push"),
    ("words", "docs/bad.md", "The workers hear of the new term.\n", "receive"),
    ("words", "docs/bad.md", "Three goals are not reached.\n", "planned"),
    ("words", "docs/bad.md", "So these three bars are not certain.\n", "planned"),
    ("words", "docs/bad.md", "a layer that the worker does not know\n", "receives"),
    ("words", "common/bad.c", "/* a program which wants weights */\n", "requests"),
    ("overlap", "kernels/bad.cu", "__global__ void early(int *p)\n{\n\t*p = 1;\n}\nint f(void)\n{\n"
     "\treturn kx_launch(early, 1);\n}\n", "early"),
]
HARMLESS = '/* strcpy(a, b) */\nextern int my_strcpy(int);\nint f(void) { return my_strcpy(1); }\n'


@pytest.mark.parametrize("lint, path, text, named", VIOLATIONS,
                         ids=[f"{row[0]}-{i}" for i, row in enumerate(VIOLATIONS)])
def test_violation_is_found(tree, lint, path, text, named):
    write(tree, path, text)
    code, output = run(tree, lint)
    assert code != 0 and named in output, output


@pytest.mark.parametrize("lint", ["format", "includes", "modules", "folders", "banned",
                                  "dialect", "declarations", "generated", "overlap", "mutants",
                                  "columns", "spelling", "words"])
def test_clean_copy_is_clean(tree, lint):
    assert run(tree, lint) == (0, "")


def test_what_the_commands_of_the_documents_make_is_no_finding(tree):
    text = "".join(file.read_text() for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    text = re.sub("(?m)^#+ .*", "", text)  # ignore headings, because a heading may quote a message
    made = set(re.findall(r"--checkpoint-dir ([a-z]\w*)\s", text))
    paths = [f"{name}/ckpt-0000000000000001" for name in made]
    paths += [f"{name}/server.tmp" for name in re.findall(r"cnn-ctl +keygen ([a-z]\w*)\s", text)]
    paths += re.findall(r"cnn-ctl .*export .*?(\w+\.safetensors)", text)
    assert len(paths) >= 3 and made, paths
    for path in paths:
        write(tree, path, "")
        if (ROOT / ".git").exists():
            ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
            assert ignored.returncode == 0, f"{path} is not in .gitignore"
    assert run(tree, "generated") == (0, "")


def test_compilation_database_has_every_c_file_and_suits_clang():
    subprocess.run(["make", "-s", "CUDA=0", "compile_commands.json"], cwd=ROOT, check=True,
                   timeout=120)
    flags = {entry["file"]: entry["command"].split()[1:]
             for entry in json.loads((ROOT / "compile_commands.json").read_text())}
    assert set(flags) == {str(file.relative_to(ROOT)) for folder in FOLDERS
                          for file in (ROOT / folder).rglob("*.c")}
    for file, entry in flags.items():
        assert ("-ffp-contract=off" in entry) == file.startswith(("server/core/", "tests/device/"))
    for file in "server/core/rights.c", "kernels/ladder/rungs.c":
        subprocess.run(["clang", "-fsyntax-only", *flags[file]], cwd=ROOT, check=True, timeout=60)


def test_options_that_docs_options_does_not_have_are_found(tree):
    """The lint `readme` compares docs/options.md with the programs. The test ignores other findings
    of the lint."""
    def program(name, text):
        write(tree, f"bin/{name}", f"#!/bin/sh\necho '{text}'\n")
        (tree / "bin" / name).chmod(0o755)
    (tree / "tests/lint").mkdir(exist_ok=True)
    shutil.copy(LINTS / "options.sh", tree / "tests/lint/options.sh")
    for name in ("cnn-ps", "cnn-worker", "cnn-ctl"):
        program(name, f"Usage: {name}")
    code, text = run(tree, "options", "bin")
    assert code == 0 and "Usage: cnn-ctl" in text
    write(tree, "docs/options.md", text)
    finding = "docs/options.md is not what --help says"
    assert finding not in run(tree, "readme", "bin")[1]
    program("cnn-worker", "Usage: cnn-worker [--new]")
    code, output = run(tree, "readme", "bin")
    assert code != 0 and finding in output and "--new" in output, output
    assert re.search(r"^for lint in .*\breadme\b", (LINTS / "run").read_text(), re.MULTILINE)


def test_what_the_pages_for_contributors_leave_out_is_found(tree):
    """The lint `readme` finds a package without a reason, a document to which no page links, and a
    kernel without a line in kernels/README.md."""
    page = (tree / "CONTRIBUTING.md").read_text()
    write(tree, "CONTRIBUTING.md", page.replace("libpng-dev", "libgif-dev") + "`make V=1 coffee`\n")
    write(tree, "docs/new.md", "# New\n")
    write(tree, "kernels/cuda/general/new.cu", "__global__ void new_kernel(int *p)\n{\n}\n")
    write(tree, "kernels/ladder/new.cu", "__global__ void rung_kernel(int *p)\n{\n}\n")
    write(tree, "server/device/cuda/new.cu", "__global__ void store_kernel(int *p)\n{\n}\n")
    code, output = run(tree, "readme", "bin")
    assert code != 0
    for finding in ("CONTRIBUTING.md: does not say why libpng-dev is there",
                    "CONTRIBUTING.md: nothing installs libgif-dev",
                    "make help: does not list coffee",
                    "docs/README.md: does not list ./docs/new.md",
                    "kernels/README.md: does not show how new_kernel maps to blocks",
                    "kernels/README.md: does not show how rung_kernel maps to blocks",
                    "kernels/README.md: does not show how store_kernel maps to blocks"):
        assert finding in output, output
    assert "why libuv1-dev" not in output and "list ./SECURITY.md" not in output, output


def test_invariant_without_a_proof_is_found(tree):
    write(tree, "tests/unit/test_one.c", "TEST(one_and_one_is_two)\n{\n}\n")
    write(tree, "server/one.c", "static void add(int a)\n{\n\tPS_ASSERT(a); /* 1 and 2 */\n}\n\n"
                                "static void no_number(int a)\n{\n\tPS_ASSERT(a);\n}\n\n"
                                "void one(void)\n{\n\tadd(1);\n}\n")
    write(tree, "server/two.c", "int two(int a,\n\tint b)\n{\n"
                                "\t/* invariant (2) of one.h */\n\tPS_ASSERT(a > b);\n}\n")
    comment = ("/*\n * one.h - counts.\n *\n * Invariants:\n"
               " * (1) one and one is two (asserted by add; one_and_one_is_two);\n"
               " * (2) two is\n *     more than one%s.\n *\n"
               " * Promises:\n * (1) one stays one%s.\n *\n * Thread: any.\n */\n")
    proof, test = " (asserted by add for one, and\n *     by two in two.c)", " (test_one)"
    write(tree, "server/one.h", comment % (proof, test))
    # the lint has findings for other headers, because the copy lacks most tests
    assert "server/one.h" not in run(tree, "invariants")[1]
    for invariant, promise, finding in (
            ("", test, "invariant (2) names no function that asserts it"),
            (" (one_and_one_is_two)", test, "invariant (2) names no function that asserts it"),
            (" (asserted by one)", test, "invariant (2) is not asserted by one"),
            (" (asserted by add and two)", test, "invariant (2) is not asserted by two"),
            (" (asserted by no_number)", test,
             "invariant (2) has no comment with its number in no_number"),
            (" (asserted by add in two.c)", test, "invariant (2) is not asserted by add"),
            (proof, "", "promise (1) names no test"),
            (proof, " (one_and_one_is_three)",
             "promise (1) names one_and_one_is_three, which does not exist"),
            (proof, " (asserted by add; test_one)", "promise (1) is asserted: it is an invariant")):
        write(tree, "server/one.h", comment % (invariant, promise))
        code, output = run(tree, "invariants")
        assert code != 0 and f"server/one.h: {finding}" in output, output
    write(tree, "kernels/one.cu", "/*\n * one.cu - counts.\n *\n * Invariant: one is one.\n */\n")
    assert "kernels/one.cu:4: an invariant without a number" in run(tree, "invariants")[1]


def test_static_name_of_two_files_is_found(tree):
    write(tree, "common/one.c", "static int twice(int a)\n{\n\treturn a;\n}\n")
    assert run(tree, "dialect") == (0, "")
    anonymous = "namespace\n{\nstruct s {\n\tvoid twice();\n};\n%s} /* namespace */\n%s"
    for path, text in (("worker/two.c", "static void twice(void)\n"),
                       ("server/two.h", "static inline void twice(void)\n"),
                       ("server/three.c", "PS_CLONES static void twice(\n\tint a)\n"),
                       ("server/three.c", "void twice(void)\n"),
                       ("kernels/two.cu", anonymous % ("cudaError_t twice(int a)\n{\n}\n", "")),
                       ("kernels/two.cu", "__global__ void __launch_bounds__(SIZE(2))\n\ttwice(\n"),
                       ("tests/unit/test_two.c", "static int twice(void **state)\n"),
                       ("tests/unit/test_two.c", "TEST(twice)\n{\n}\n"),
                       ("tests/unit/test_two.c", "TEST_IN(\n\ttwice, NULL, NULL)\n{\n}\n"),
                       ("tests/fault/two.c",
                        "__attribute__((constructor)) static void twice(void)\n"),
                       ("tests/bench/two.cc", "[[noreturn]] static void twice(int a)\n")):
        write(tree, path, text)
        code, output = run(tree, "dialect")
        assert code != 0 and path in output and "common/one.c" in output, output
        (tree / path).unlink()
    # a method, a call, and functions after the end of the namespace are no static functions
    write(tree, "kernels/two.cu", anonymous % ("", "int once(int a)\n{\n\treturn twice(a);\n}\n"))
    write(tree, "kernels/two.h", "int once(int a);\n")
    assert run(tree, "dialect") == (0, "")


def test_only_links_may_be_longer_than_a_line(tree):
    """A line may have 100 columns. A URL does not count towards the 100 columns, but the text
    beside the URL does."""
    url = "https://example.org/" + "x" * 100
    write(tree, "docs/long.md", f"{'é' * 100}\n* [name]({url}), <{url}>\n")
    assert run(tree, "columns") == (0, "")
    write(tree, "docs/long.md", f"# Long\n\n{url} {'word ' * 20}\n")
    code, output = run(tree, "columns")
    assert code != 0 and "docs/long.md:3: " in output, output


def test_help_that_is_too_wide_is_found(tree):
    """`make help` prints the comment at the start of the Makefile, up to the first empty line."""
    write(tree, "Makefile", f"# {'x' * 98}\n#\n# {'x' * 99}\n\n# {'x' * 99}\n")
    code, output = run(tree, "columns")
    assert code != 0 and output.splitlines() == ["Makefile:3: 101 columns"], output


def test_comment_that_is_too_wide_is_found(tree):
    """A tab has 8 columns. The lint leaves the width of code to clang-format."""
    write(tree, "common/wide.c", f"int a{'a' * 100};\n\t/* {'x' * 86} */\n\tint b; /* {'x' * 80} */\n")
    code, output = run(tree, "columns")
    assert code != 0 and output.splitlines() == ["common/wide.c:3: 101 columns"], output


WALK = """# Architecture

## The walk of a push

1. `server/net/in.c`: `receive` passes it to `apply` (`server/core/apply.c`).
2. `apply.c`: `apply` keeps `--durability always` and `EFFECT_SEND`.
   Back: `receive` in `in.c`.

| function | file |
|---|---|
| `question` | `server/core/apply.c` |
"""


@pytest.mark.parametrize("old, new, named", [
    ("", "", None),
    ("passes it to `apply`", "passes it to `gone`", "apply.c does not define gone"),
    ("`receive` passes", "`apply` passes and `gone`", "no file of this step defines gone"),
    ("`server/net/in.c`", "`server/net/old.c`", "old.c"),
    ("| `question`", "| `no_question`", "no file of this step defines no_question"),
    ("2. `apply.c`", "2. `in.c`", "enters server/net/in.c twice"),
    ("| function", "".join(f"{i}. `server/{i}.c`\n" for i in range(3, 12)) + "\n| function",
     "more than ten files"),
])
def test_walk_that_names_what_is_not_there_is_found(tree, old, new, named):
    write(tree, "server/net/in.c", "void receive(int a)\n{\n\tapply(a);\n\tquestion(a);\n}\n")
    write(tree, "server/core/apply.c", "int question(\n\tint a)\n{\n}\nvoid apply(int a)\n{\n}\n")
    write(tree, "docs/architecture.md", WALK.replace(old, new, 1) if old else WALK)
    code, output = run(tree, "walks")
    assert (code == 0 and output == "") if named is None else (code != 0 and named in output), output


def test_row_or_step_of_a_walk_that_no_file_calls_is_found(tree):
    write(tree, "server/core/apply.c", "int question(\n\tint a)\n{\n}\nvoid apply(int a)\n{\n}\n")
    write(tree, "docs/architecture.md", WALK)
    for calls, unused in (("\tapply(a);\n\t/* a question */\n", " question"), ("\tquestion(a);\n", " apply")):
        write(tree, "server/net/in.c", "void receive(int a)\n{\n" + calls + "}\n")
        code, output = run(tree, "walks")
        assert code != 0 and "no other file of the walk of a push uses" + unused in output, output


@pytest.mark.parametrize("file, found", [("apply", 0), ("in", 1)])
def test_every_walk_enters_a_file_once(tree, file, found):
    for name in ("in", "apply"):
        write(tree, f"common/{name}.c", "void receive(int a)\n{\n}\n")
    walk = "\n1. `common/in.c`: `receive`.\n2. `common/{}.c`: `receive`.\n"
    write(tree, "docs/architecture.md", "## The walk of a push\n" + walk.format("apply") +
          "\n## The walk of a batch\n" + walk.format(file))
    code, output = run(tree, "walks")
    assert code == found and (not found or "the walk of a batch enters common/in.c" in output), output


def test_comment_about_a_banned_call_is_not_one(tree):
    write(tree, "common/talk.c", HARMLESS)
    assert run(tree, "banned") == (0, "")


def test_header_that_needs_another_is_found(tree):
    write(tree, "common/bad.h", "struct bad {\n\tuint32_t n;\n};\n")
    code, output = run(tree, "headers", "common/bad.h")
    assert code != 0
    assert "under gcc" in output and "under clang" in output
    assert run(tree, "headers", "common/err.h") == (0, "")


def test_function_body_in_a_header_of_the_tests_is_found(tree):
    long = "static inline int f(int a)\n{\n\ta++;\n\treturn a;\n}\n"
    short = "static inline int f(int a)\n{\n\treturn a;\n}\n"
    for text, found in ((long, True), (short.replace("static inline ", ""), True), (short, False)):
        write(tree, "tests/support/bad.h", "int f(int a);\n" * ("static" not in text) + text)
        code, output = run(tree, "headers", "tests/support/bad.h")
        assert ("a function body in line" in output, code != 0) == (found, found), output
    write(tree, "common/good.h", long)  # the rule applies only to headers of tests
    assert run(tree, "headers", "common/good.h") == (0, "")


@pytest.mark.parametrize("only, found, other", [("defined(__clang__)", "clang", "gcc"),
                                                ("!defined(__clang__)", "gcc", "clang")])
def test_warning_of_either_compiler_is_found(tree, only, found, other):
    write(tree, "common/bad.c", f"extern int f(long);\n#if {only}\nint f(long a)\n{{\n"
          "\treturn a;\n}\n#endif\nextern int g;\n")
    code, output = run(tree, "warnings", "common/bad.c")
    assert code != 0
    assert f"not clean under {found}" in output and f"not clean under {other}" not in output
    assert run(tree, "warnings", "common/rng.c") == (0, "")


def test_weakness_that_clang_tidy_finds_is_found(tree):
    write(tree, "common/bad.c", "#include <stdlib.h>\nextern int f(void);\nint f(void)\n{\n"
          "\tint *p = malloc(sizeof(int));\n\tif (!p)\n\t\treturn 0;\n\tfree(p);\n"
          "\treturn *p;\n}\n")
    code, output = run(tree, "tidy", "common/bad.c", "common/rng.c")
    assert code != 0, output
    assert "common/bad.c:9:" in output and "clang-analyzer-unix.Malloc" in output
    assert run(tree, "tidy", "common/rng.c") == (0, "")


def objects(tree, core, session="int session(void) { return 0; }\n", others=()):
    """Make a build directory with the object files of a core, a session and other files. Each
    argument has the C code from which an object file is compiled."""
    write(tree, "docs/architecture.md", "### Inside `server/core`\n| layer | `core.c` |\n")
    for path, text in (("server/core/core", core), ("worker/client/session", session), *others):
        place = tree / "objects" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.with_suffix(".c").write_text(text)
        subprocess.run(["gcc", "-O2", "-w", "-c", "-o", place.with_suffix(".o"),
                        place.with_suffix(".c")], check=True)
    return run(tree, "symbols", "objects")


@pytest.mark.parametrize("code, named", [
    ("#include <time.h>\nlong f(void) { return time(0); }", "time"),
    ("#include <stdlib.h>\nvoid *f(int n) { return malloc(n); }", "malloc"),
    ("#include <stdlib.h>\nint f(void) { return rand(); }", "rand"),
    ("#include <stdio.h>\nvoid f(int n) { printf(\"%d\", n); }", "printf"),
    ("int counter;\nint f(void) { return ++counter; }", "counter"),
    ("static int calls = 3;\nint f(void) { return ++calls; }", "calls"),
    ("static const char *p = \"a\";\nconst char *f(void) { return p++; }", "p is a variable"),
    ("_Thread_local int mine;\nint f(void) { return ++mine; }", "mine"),
])
def test_impure_core_is_found(tree, code, named):
    status, output = objects(tree, code)
    assert status != 0 and named in output, output


def test_pure_core_is_clean(tree):
    assert objects(tree, """#include <string.h>
        #include <math.h>
        extern unsigned long rng_next(void *);
        static const char *const names[] = {"a", "b"};
        const char *name(int i) { return names[i]; }
        double f(char *p, int n) { memset(p, n, (unsigned)n); return sqrt(n) + rng_next(p); }
        """) == (0, "")


def test_session_that_reads_a_clock_is_found(tree):
    code, output = objects(tree, "int f;", "#include <time.h>\nlong f(void) { return time(0); }")
    assert code != 0 and "the session" in output
    assert objects(tree, "int f(void) { return 1; }",
                   "extern void *mem_try(long);\nvoid *f(void) { return mem_try(9); }") == (0, "")


def test_files_that_call_each_other_are_found(tree):
    one = ("worker/ctl/one", "int two(void); int three(void); int one(void) { return two(); }")
    two = ("common/two", "int three(void); int two(void) { return three(); }")
    for others, code in (((("common/three", "int one(void); int three(void) { return one(); }"),), 1),
                         ((("common/three", "int three(void) { return 3; }"),), 0)):
        for path, text in (one, two, *others):
            write(tree, path + ".c", text)
        status, output = objects(tree, "int f(void) { return 1; }", others=(one, two, *others))
        assert status == code, output
        assert not code or "common/two.o" in output and "worker/ctl/one.o" in output


def test_folders_that_call_each_other_are_found(tree):
    """In the first case, folders call each other in a circle, but files do not. If a test defines a
    function again, calls in the test refer to the definition of the test."""
    sources = [("kernels/one", "int two(void); int one(void) { return two(); }"),
               ("kernels/cpu/two", "int three(void); int two(void) { return three(); }"),
               ("kernels/three", "int three(void) { return 3; }"),
               ("tests/unit/test_x", "int two(void); int three(void) { return two(); }")]
    for place in ("kernels/three", "kernels/device/three"):
        sources[2] = (place, sources[2][1])
        for path, text in sources:
            write(tree, path + ".c", text)
        status, output = objects(tree, "int f(void) { return 1; }", others=sources)
        assert (status == 1) == (place == "kernels/three"), output
        assert status == 0 or "folders call each other in a circle: kernels kernels/cpu" in output
        (tree / "objects" / f"{place}.o").unlink()


def test_missing_objects_are_a_finding(tree):
    assert run(tree, "symbols", "nowhere")[0] != 0
