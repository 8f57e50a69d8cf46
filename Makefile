# The Makefile of cnn-ps. `make help` prints this text.
#
#   make                 build the programs in build/release/
#   make demo            train a small network with one server and two workers
#   make test            run all tests that need no GPU, in their short form (minutes)
#   make lint            check format, warnings, clang-tidy, includes, spelling, documents
#   make asan|ubsan|tsan run the unit tests and the simulator with a sanitizer
#   make fuzz SECONDS=60 fuzz each target for 60 s; make fuzz-coverage: show the covered lines
#   make mutants         show that a test fails without each rule against a hostile peer
#   make faults          run every fault test in full; writes docs/faults.md
#   make documents       run the commands of all documents, also those that take minutes
#   make bench           measure the transport, and CPU kernels and Python beside PyTorch
#   make cluster         train in containers; make cluster-faults: fault tests of containers
#   make gpu-test        test the CUDA kernels; make gpu-bench: measure their speed
#   make bundle          pack programs, libraries and GPU tests for another machine
#   make ladder          measure each step from a sequential gradient to the CUDA kernels in use
#   make units           build programs, unit tests and simulator; make tests: build all tests
#   make install         install programs, libcnnps, manual pages (prefix=/usr/local, DESTDIR=)
#   make library, man    build libcnnps.so and libcnnps.a; build the manual pages
#   make wheel           build the wheel of the Python package in build/wheel
#   make deb             build Debian packages in build/deb; make deb-test: test them
#   make docs/options.md write docs/options.md from the programs' --help
#   make walk-trace      compare the calls of a push in a real server with docs/architecture.md
#   make compile_commands.json  write the compilation database for clangd and clang-tidy
#   make data            find or download the training images
#   make deps            install missing packages, as root
#   make clean           remove build/
#
# Variables: V=1 shows commands; FLAVOUR=release|asan|ubsan|tsan; CC=clang; CUDA=0 disables CUDA;
# DEBUG=-g1 compiles faster, with debug information for stack traces only.
#
# Only `make deps`, `make cluster` and `make cluster-faults` install packages. Other targets list
# missing packages and stop. Every target builds the programs that it needs.
#
# Each flavour builds in its own directory, build/<flavour>/. If the flags change, make rebuilds all
# files of this directory. Objects depend on the headers that they include (-MMD). Generated
# protobuf code is only in build/<flavour>/gen.

FLAVOUR ?= release
B := build/$(FLAVOUR)
Q := $(if $(V),,@)
silent := $(findstring s,$(firstword -$(MAKEFLAGS)))
say = $(if $(V),,@$(if $(silent),,printf '  %-5s %s\n' '$(1)' '$(2)';))

MAKEFLAGS += --no-print-directory
ifeq ($(origin CC),default)
CC := gcc
endif
PROTOC_C ?= protoc-c
# Debian's Python: only this Python finds the modules of Debian's python3-* packages
PYTHON   ?= /usr/bin/python3

# ---- libraries: the server links no CUDA -----------------------------------
PKGS.base   := libzmq libuv libprotobuf-c libxxhash zlib jansson
PKGS.server := libmicrohttpd libseccomp
PKGS.worker := libpng libjpeg
PKGS.ctl    := ncursesw
PKGS        := $(PKGS.base) $(PKGS.server) $(PKGS.worker) $(PKGS.ctl)
ifeq ($(shell pkg-config --exists $(PKGS) 2>/dev/null && echo yes),yes)
PKG_CFLAGS  := $(shell pkg-config --cflags $(PKGS))
LIBS.base   := $(shell pkg-config --libs $(PKGS.base)) -lm
LIBS.server := $(shell pkg-config --libs $(PKGS.server))
LIBS.worker := $(shell pkg-config --libs $(PKGS.worker))
LIBS.ctl    := $(shell pkg-config --libs $(PKGS.ctl))
else ifneq ($(filter-out demo test data lint bench cluster cluster-faults faults documents asan ubsan tsan gpu-test gpu-bench bundle ladder deps clean help,$(or $(MAKECMDGOALS),all)),)
$(error libraries are missing: run deploy/setup.sh build as root)
endif
LIBS.cuda   :=

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wformat=2 -Wimplicit-fallthrough \
	-Wstrict-prototypes -Wmissing-prototypes -Wundef
# All automatic variables are initialised to zero, if the compiler accepts this option. Older
# versions of clang accept this option only under another name.
ZERO := $(shell $(CC) -ftrivial-auto-var-init=zero -fsyntax-only -xc /dev/null 2>/dev/null && \
	echo -ftrivial-auto-var-init=zero)
HARDEN := $(ZERO) -fstack-protector-strong -fstack-clash-protection -fcf-protection=full -fPIE
DEBUG ?= -g
OPT.release := -O2 $(DEBUG) -D_FORTIFY_SOURCE=3 $(HARDEN)
OPT.asan    := -O1 $(DEBUG) -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT.ubsan   := -O1 $(DEBUG) -fsanitize=undefined -fno-sanitize-recover=undefined
OPT.tsan    := -O1 $(DEBUG) -fsanitize=thread -include tests/support/tsan.h
OPT.cover   := -O0 -g --coverage
# Each function records that it was entered (tests/support/call_trace.c). The paths in the objects
# are relative: ccache may take an object from another clone, and the object then names the files of
# this clone.
OPT.trace   := -O0 -g -finstrument-functions -ffile-prefix-map=$(CURDIR)=.
# The fuzz flavours have small tables (FUZZ_LIMITS), so that a core of the server starts in
# microseconds.
OPT.fuzz     = -O1 $(DEBUG) -fsanitize=address,undefined -fno-sanitize-recover=undefined $(FUZZ_LIMITS)
# fuzz-fast makes more executions per second: it has no ASan, and no checks of UBSan at each memory
# access.
OPT.fuzz-fast = -O2 -g -fsanitize=undefined -fsanitize-trap=undefined \
	-fno-sanitize=alignment,null,object-size,pointer-overflow $(FUZZ_LIMITS)
FUZZ_LIMITS   = $(FUZZ_COVERAGE) -DWIRE_MAX_BATCHES=64u -DWIRE_MAX_SLICES=9u -DNORMS_RING=16u
FUZZ_COVERAGE := -fsanitize=fuzzer-no-link
ifeq ($(OPT.$(FLAVOUR)),)
$(error FLAVOUR is release, asan, ubsan, tsan, cover, trace, fuzz or fuzz-fast, not "$(FLAVOUR)")
endif
LD.release := -pie -Wl,-z,relro,-z,now,-z,noexecstack
LD.asan    := -fsanitize=address,undefined
LD.ubsan   := -fsanitize=undefined
LD.tsan    := -fsanitize=thread
LD.cover   := --coverage
LD.fuzz    := -fsanitize=address,undefined

CFLAGS  = -std=c11 -D_GNU_SOURCE -I. -I$(B)/gen $(WARN) $(OPT.$(FLAVOUR)) $(EXTRA_CFLAGS) $(PKG_CFLAGS) -pthread
LDFLAGS = $(LD.$(FLAVOUR)) -pthread

# ---- CUDA: enabled if there is an nvcc of CUDA 12 or newer; otherwise make prints one line --------
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
ifeq ($(NVCC),)
NO_CUDA := nvcc not found
else ifneq ($(CUDA),0)
# Debian 12 has nvcc 11.8, which cannot compile for compute_90a.
NO_CUDA := $(if $(shell $(NVCC) --version | grep -E 'release ([1-9]|1[01])[.]'),nvcc is older than 12)
endif
CU   := $(if $(filter 0,$(CUDA))$(NO_CUDA),,$(wildcard kernels/cuda/*/*.cu))
ifneq ($(CU),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(NVCC))
LIBS.cuda := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
CFLAGS += -DKX_CUDA=1 -isystem $(CUDA_HOME)/include
endif

# ---- sources ----------------------------------------------------------------------------------
MAINS := server/main.c worker/main.c worker/ctl/ctl.c
SRC.common := $(wildcard common/*.c) $(if $(filter tsan,$(FLAVOUR)),tests/support/tsan.c) \
	$(if $(filter trace,$(FLAVOUR)),tests/support/call_trace.c)
SRC.proto  := $(wildcard proto/*.c)
SRC.core   := $(wildcard server/core/*.c)
SRC.server := $(filter-out $(MAINS) $(SRC.core),$(wildcard server/*.c server/*/*.c))
SRC.kernels := $(wildcard kernels/*.c kernels/device/*.c kernels/cpu/*.c kernels/cuda/*.c)
SRC.client := $(wildcard worker/client/*.c)
SRC.worker := $(filter-out $(MAINS),$(wildcard worker/*.c worker/data/*.c worker/ctl/*.c))
SRC.support := $(filter-out %/failing_disk.c %/call_trace.c %/test.c $(SRC.common),$(wildcard tests/support/*.c tests/device/*.c))

# The fuzz targets link only these files of the worker and of the tests, so `make fuzz` compiles no
# others.
ifneq ($(filter fuzz%,$(FLAVOUR)),)
SRC.client := worker/client/session.c
SRC.worker := worker/data/idx.c worker/ctl/picture.c
SRC.support := $(addprefix tests/support/,core_config.c core_invariants.c fuzz_input.c zmtp.c)
endif

obj = $(patsubst %.c,$(B)/%.o,$(1))
include kernels/kernels.mk
A.common  := $(B)/libcommon.a
A.proto   := $(B)/libproto.a
A.core    := $(B)/libcore.a
A.server  := $(B)/libserver.a
A.kernels := $(B)/libkernels.a
A.client  := $(B)/libclient.a
A.worker  := $(B)/libworker.a
A.support := $(B)/libsupport.a
A.test    := $(B)/libtest.a
ARCHIVES.worker := $(A.worker) $(A.client) $(A.kernels) $(A.proto) $(A.common)
ARCHIVES.server := $(A.server) $(A.core) $(A.proto) $(A.common)

BINARIES := $(B)/cnn-ps $(B)/cnn-worker $(B)/cnn-ctl
UNIT  := $(patsubst tests/unit/%.c,$(B)/tests/unit/%,$(wildcard tests/unit/test_*.c))
# tests/bench/ladder.c is not in this list: kernels/ladder/ladder.mk builds cnn-ladder from it.
BENCH := $(patsubst tests/bench/%.c,$(B)/tests/bench/%,$(filter-out %/ladder.c,$(wildcard tests/bench/*.c)))
EXAMPLES := $(patsubst worker/examples/%.c,$(B)/examples/%,$(wildcard worker/examples/*.c))
TOOLS := $(patsubst tests/tools/%.c,$(B)/tests/tools/%,$(wildcard tests/tools/*.c)) $(B)/tests/fault/lossy_link
FUZZ  := $(patsubst %.c,$(B)/%,$(filter-out tests/fuzz/replay.c,$(wildcard tests/fuzz/*.c)))
SIM   := $(if $(wildcard tests/sim/*.c),$(B)/tests/sim/sim)
MUTANTS := $(patsubst tests/sim/mutants/%.patch,$(B)/mutants/%,$(wildcard tests/sim/mutants/*.patch))
RULE_MUTANTS := $(patsubst tests/mutants/%.patch,$(B)/rule-mutants/%/made,$(wildcard tests/mutants/*.patch))
VARIANTS := $(foreach v,newer older six needy,$(addprefix $(B)/variants/$v/,cnn-ps cnn-worker cnn-ctl))

include server/device/device.mk
include tests/gpu/gpu.mk
include kernels/ladder/ladder.mk
include tests/fault/fault.mk

.PHONY: FORCE installed buildable mutants walk-trace all demo test data lint bench cluster cluster-faults asan ubsan tsan clean deps tests units threaded faults documents help
.SECONDARY:
.DELETE_ON_ERROR:
all: $(BINARIES) $(STORE_MODULE) $(EXAMPLES) $(B)/libcnnps.a
units: all $(UNIT) $(SIM)
# The unit tests of code with threads. The tests of the core and of the worker's session are left
# out: the lints ensure that this code starts no thread, and test_engine runs the core on threads.
# test_server_upgrade is left out, too: it only reads checkpoints, and needs two minutes with TSan.
THREADED := $(filter-out $(addprefix $(B)/tests/unit/,test_core_% test_session% test_server_upgrade),$(UNIT))
threaded: all $(THREADED)
# The tests run `make install` several times at once, so everything that it copies is built before.
tests: installable $(UNIT) $(SIM) $(MUTANTS) $(RULE_MUTANTS) $(VARIANTS) $(BENCH) $(TOOLS) $(GPU_TESTS) $(GPU_POISON) $(STORE_DOUBLE) $(FAULT_SHIMS) $(FUZZ)
ifeq ($(CU)$(filter 0,$(CUDA)),)
all: no-cuda
.PHONY: no-cuda
no-cuda:
	@echo "cuda: $(NO_CUDA): the workers will compute on CPUs only (docs/gpu.md)"
endif

# ---- rules --------------------------------------------------------------------------------------
GEN := $(B)/gen/cnnps.pb-c
$(GEN).c $(GEN).h &: proto/cnnps.proto
	@mkdir -p $(@D)
	$(call say,GEN,$<)$(PROTOC_C) --c_out=$(B)/gen -Iproto $<
$(GEN).o: $(GEN).c
	$(call say,CC,$<)$(CC) -std=c11 -I$(B)/gen $(OPT.$(FLAVOUR)) $(EXTRA_CFLAGS) $(PKG_CFLAGS) -c -o $@ $<
$(B)/proto/schema.o: $(GEN).h
ONNX := $(B)/gen/onnx.pb-c
$(ONNX).c $(ONNX).h &: worker/ctl/onnx.proto
	@mkdir -p $(@D)
	$(call say,GEN,$<)$(PROTOC_C) --c_out=$(B)/gen -Iworker/ctl $<
$(ONNX).o: $(ONNX).c
	$(call say,CC,$<)$(CC) -std=c11 -I$(B)/gen $(OPT.$(FLAVOUR)) $(EXTRA_CFLAGS) $(PKG_CFLAGS) -c -o $@ $<
$(B)/worker/ctl/onnx.o: $(ONNX).h
# opt_names.h has the names of all options of all programs. This header is generated from the option
# tables.
OPT_TABLES := cnn-ps:server/config/options.c cnn-ps:server/core/options.def cnn-worker:worker/options.c cnn-worker:common/client_opt.h \
	cnn-ctl:worker/ctl/ctl.c cnn-ctl:common/client_opt.h
$(B)/gen/opt_names.h: common/opt_names.sh $(sort $(foreach t,$(OPT_TABLES),$(lastword $(subst :, ,$(t)))))
	@mkdir -p $(@D)
	$(call say,GEN,$@)sh common/opt_names.sh $(OPT_TABLES) >$@
$(B)/common/opt.o: $(B)/gen/opt_names.h

# page_bytes.h has all files of the server's page as one array of bytes.
PAGE := server/monitor/page
$(B)/gen/page_bytes.h: $(addprefix $(PAGE)/,embed.sh page.html page.css dygraph.min.js charts.js live.js)
	@mkdir -p $(@D)
	$(call say,GEN,$@)$(PAGE)/embed.sh page_bytes $(wordlist 2,9,$^) >$@
$(B)/server/monitor/page.o: $(B)/gen/page_bytes.h
# report_bytes.h has the page of `cnn-ctl report`, which uses parts of the server's page.
REPORT := worker/ctl/report
$(B)/gen/report_bytes.h: $(PAGE)/embed.sh $(REPORT)/report.html $(addprefix $(PAGE)/,page.css dygraph.min.js charts.js) $(REPORT)/report.js
	@mkdir -p $(@D)
	$(call say,GEN,$@)$(PAGE)/embed.sh report_bytes $(wordlist 2,9,$^) >$@
$(B)/worker/ctl/report.o: $(B)/gen/report_bytes.h

# The file build/FLAVOUR/flags has the compiler and its flags. If the flags change (CUDA=0,
# CC=clang, a new nvcc), this file becomes newer than all targets, so make rebuilds everything.
$(B)/flags: FORCE
	@mkdir -p $(@D); flags='$(lastword $(CC)) $(CFLAGS) $(if $(CU),$(NVCC) $(NVCC_FLAGS))'; \
		echo "$$flags" | cmp -s - $@ || echo "$$flags" >$@
FORCE:

# WERROR=-Werror, which .ci/run sets, is not in build/FLAVOUR/flags, because it does not change the
# objects.
$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(CFLAGS) $(WERROR) -MMD -MP -c -o $@ $<

# The core uses no fused multiply-add, so that all CPUs compute the same bits.
CORE_FLAGS := -ffp-contract=off -fno-math-errno $(if $(filter release,$(FLAVOUR)),-fno-trapping-math)
$(B)/server/core/%.o: EXTRA_CFLAGS += $(CORE_FLAGS)

archive = @rm -f $@; $(if $(V),echo ar rcs $@;)ar rcs $@ $^
$(A.common): $(call obj,$(SRC.common))
	$(archive)
$(A.proto): $(call obj,$(SRC.proto)) $(GEN).o
	$(archive)
# In the kernels, automatic variables are not initialised, which is 2 % faster. The kernels read
# weights from the server, but only as values of arithmetic, never as sizes, indices or pointers.
$(B)/kernels/%.o: EXTRA_CFLAGS += $(ZERO:zero=uninitialized)
# In the simulator, automatic variables are not initialised either, because its functions have a
# struct msg of 5 KB for each message. It gets no bytes of a peer, so it does without the compiler's
# other protections against an attacker, too.
$(B)/tests/sim/%.o: EXTRA_CFLAGS += $(ZERO:zero=uninitialized) \
	-fno-stack-protector -fno-stack-clash-protection -fcf-protection=none
# The objects below are compiled with -O3, because their code loops over whole vectors or tables.
# All others are compiled with -O2: with -O3 they would be larger, and a step of the core would miss
# the instruction cache more often.
CORE_LOOPS := accumulator aggregate backups blocks config downpour lbfgs norms optim running snapshot snapshot_check store vec
$(CORE_LOOPS:%=$(B)/server/core/%.o) \
$(B)/server/durability/checkpointer.o $(addprefix $(B)/tests/,sim/bounds.o support/core_invariants.o) $(B)/worker/steps.o $(B)/worker/client/feedback.o $(B)/proto/checksum.o $(B)/proto/bf16.o: EXTRA_CFLAGS += $(if $(filter release,$(FLAVOUR)),-O3)
$(A.core): $(call obj,$(SRC.core))
	$(archive)
$(A.server): $(call obj,$(SRC.server))
	$(archive)
$(A.kernels): $(KERNEL_OBJECTS)
	$(archive)
$(A.client): $(call obj,$(SRC.client))
	$(archive)
$(A.worker): $(call obj,$(SRC.worker)) $(ONNX).o
	$(archive)
$(A.support): $(call obj,$(SRC.support))
	$(archive)
$(A.test): $(B)/tests/support/test.o
	$(archive)

$(B)/cnn-ps: $(B)/server/main.o $(ARCHIVES.server)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.server) $(LIBS.base)
$(B)/cnn-worker: $(B)/worker/main.o $(ARCHIVES.worker)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
$(B)/cnn-ctl: $(B)/worker/ctl/ctl.o $(ARCHIVES.worker)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.ctl) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
$(B)/examples/%: $(B)/worker/examples/%.o $(A.client) $(A.proto) $(A.common)
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.base)

# A test may use all archives. The linker takes only the files of tests/support that the test needs.
TEST_ARCHIVES := $(A.support) $(A.server) $(A.core) $(ARCHIVES.worker)
$(addprefix $(B)/tests/unit/,test_server_wal test_server_wal_replay): $(B)/tests/support/failing_disk.o
$(B)/tests/unit/test_server_history: private LDFLAGS += -Wl,--wrap=log_wall_ms,--wrap=clock_boot_ms
$(B)/tests/unit/test_server_port: private LDFLAGS += -Wl,--wrap=zmonitor_next
$(B)/tests/unit/test_trainer_damage: private LDFLAGS += \
	-Wl,--wrap=backend_hashes -Wl,--wrap=backend_start_hash -Wl,--wrap=cnnps_pull_unchecked
$(B)/tests/unit/%: $(B)/tests/unit/%.o $(A.test) $(TEST_ARCHIVES)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS.server) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
$(B)/tests/bench/%: $(B)/tests/bench/%.o $(TEST_ARCHIVES)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.server) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
SCIENCE := $(call obj,tests/bench/science.c $(wildcard tests/bench/virtual/*.c))
$(B)/tests/bench/science: $(SCIENCE) $(TEST_ARCHIVES)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.server) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
$(B)/tests/tools/%: $(B)/tests/tools/%.o $(TEST_ARCHIVES)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.server) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
include tests/fuzz/fuzz.mk
# The simulator links the server's own code and wraps its system calls (tests/sim/calls.h).
SIM_CALLS := open openat close read pread write pwrite fsync fdatasync ftruncate renameat unlinkat flock fstat fstatat \
	stat mkdir faccessat access opendir readdir rewinddir dirfd closedir uv_queue_work getrandom log_write mem_must mem_try mem_lazy \
	mem_lazy_free free getpid
SIM_LINK  = $(CC) $(LDFLAGS) $(SIM_CALLS:%=-Wl,--wrap=%)
SIM_PARTS := $(call obj,$(wildcard tests/sim/*.c)) $(call obj,$(addprefix tests/support/,core_invariants.c shuffled_engine.c)) \
	$(B)/worker/client/session.o $(ARCHIVES.server)
$(SIM): $(SIM_PARTS)
	$(call say,LD,$@)$(SIM_LINK) -o $@ $^ $(LIBS.base)
# A mutant is a simulator that is linked with a bug (tests/sim/mutants). The files with the bug are
# compiled quickly, because a mutant runs once.
MUTANT_FLAGS := -w -O1 -g0
$(B)/mutants/%: tests/sim/mutants/%.patch tests/sim/mutate $(SIM)
	$(call say,MUTAT,$*)COMPILE="$(CC) $(CFLAGS) $(MUTANT_FLAGS)" CORE_FLAGS="$(CORE_FLAGS)" LINK="$(SIM_LINK)" BUILD="$(B)" \
		OBJECTS="$(SIM_PARTS)" LIBS="$(LIBS.base)" tests/sim/mutate $* $@

# A rule mutant lacks a rule against a hostile peer. It is built as a unit test, or as cnn-ps and
# cnn-worker.
$(B)/rule-mutants/%/made: tests/mutants/%.patch tests/mutants/mutate $(UNIT) $(BINARIES)
	$(call say,MUTAT,$*)COMPILE="$(CC) $(CFLAGS) $(MUTANT_FLAGS)" CORE_FLAGS="$(CORE_FLAGS)" LINK="$(CC) $(LDFLAGS)" BUILD="$(B)" \
		SERVER_ARCHIVES="$(ARCHIVES.server)" WORKER_ARCHIVES="$(ARCHIVES.worker)" TEST_ARCHIVES="$(A.test) $(TEST_ARCHIVES)" \
		LIBS="-lcmocka $(LIBS.server) $(LIBS.worker) $(LIBS.ctl) $(LIBS.cuda) $(LIBS.base)" tests/mutants/mutate $* $(@D)

# A variant is a build of the programs with another protocol schema. Tests run a variant with the
# usual programs to check that other versions of the protocol work together with this one.
VARIANT_PARTS := $(sort $(ARCHIVES.server) $(ARCHIVES.worker) $(B)/server/main.o $(B)/worker/main.o $(B)/worker/ctl/ctl.o)
$(B)/variants/%/cnn-ps $(B)/variants/%/cnn-worker $(B)/variants/%/cnn-ctl: tests/wire/variant $(wildcard proto/*) $(VARIANT_PARTS)
	$(call say,VARIA,$*)CC="$(CC)" FLAGS="$(CFLAGS)" LINK="$(CC) $(LDFLAGS)" PROTOC_C="$(PROTOC_C)" COMMON="$(A.common)" \
		SERVER="$(B)/server/main.o $(A.server) $(A.core)" SERVER_LIBS="$(LIBS.server) $(LIBS.base)" \
		WORKER="$(A.worker) $(A.client) $(A.kernels)" MAIN="$(B)/worker/main.o" CTL="$(B)/worker/ctl/ctl.o" \
		WORKER_LIBS="$(LIBS.worker) $(LIBS.cuda) $(LIBS.base)" CTL_LIBS="$(LIBS.ctl)" tests/wire/variant $* $(B)/variants/$*

include deploy/install/install.mk

# ---- targets for users --------------------------------------------------------------------------
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))
PYTEST = env FLAVOUR=$(or $(1),$(FLAVOUR)) $(PYTHON) -B -m pytest -q -rs -p no:cacheprovider
# Tests often wait, so pytest starts more processes than the machine has processors: one more for the
# unit tests and the simulator, and three more for the other tests, which wait more. A process takes
# one test, or all tests of an xdist_group, which it runs in order. All tests of one C test program
# are such a group. Tests that measure time run last, one at a time.
BY_UNIT = -n $(shell expr $$(nproc) + 1) --dist loadgroup
PROGRAMS = tests --ignore tests/unit --ignore tests/sim
BY_TEST = -n $(shell expr $$(nproc) + 3) --dist loadgroup

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile
deps:
	@deploy/setup.sh
installed:
	@deploy/setup.sh check
buildable:
	@deploy/setup.sh check build
data: buildable
	@deploy/data.sh
demo: buildable
	@$(MAKE) $(JOBS) all
	@deploy/demo.sh
test: installed
	@$(MAKE) $(JOBS) tests
	@CNN_DATA="$$(deploy/data.sh)" && export CNN_DATA && $(call PYTEST) $(BY_UNIT) tests/unit tests/sim && \
		$(call PYTEST) $(BY_TEST) -m "not alone" $(PROGRAMS) && exec $(call PYTEST) -m alone $(PROGRAMS)
# Run every fault test in its long form, and write the figures to docs/faults.md. A test that
# measures time runs alone.
faults: installed
	@$(MAKE) $(JOBS) tests
	@rm -f build/faults/results.tsv
	@export CNN_DATA="$$(deploy/data.sh)" CNN_SLOW=1; \
		$(call PYTEST) -n $(shell expr $$(nproc) + 2) --dist loadgroup -m "not alone" tests/fault; rc=$$?; \
		$(call PYTEST) -m alone tests/fault || rc=1; tests/fault/table.py; exit $$rc
# Run the commands that the documents show, also those of the blocks that are marked as slow. The
# commands that use containers need a Docker engine.
documents: installed
	@$(MAKE) $(JOBS) tests library
	@export CNN_DATA="$$(deploy/data.sh)" CNN_SLOW=1 && \
		exec deploy/docker_engine.sh $(call PYTEST) --durations=40 tests/e2e/test_documents.py
# Write the compilation database for clangd, clang-tidy and editors.
# clang does not know each flag of gcc, so the flag that only affects uninitialised variables is left out.
ALL_C := $(sort $(MAINS) $(SRC.common) $(SRC.proto) $(SRC.core) $(SRC.server) $(SRC.kernels) $(SRC.client) \
	$(SRC.worker) $(wildcard kernels/*/*.c worker/examples/*.c tests/*/*.c tests/*/*/*.c))
compile_commands.json: $(GEN).h $(ONNX).h $(B)/gen/opt_names.h $(B)/gen/page_bytes.h $(B)/gen/report_bytes.h FORCE
	@{ echo '['; for file in $(ALL_C); do \
		case $$file in server/core/*|tests/device/*) core='$(CORE_FLAGS) ';; *) core=;; esac; \
		printf '%s{"directory": "%s", "file": "%s", "command": "%s %s-c %s"}' "$$comma" '$(CURDIR)' $$file \
			'$(CC) $(filter-out $(ZERO),$(CFLAGS))' "$$core" $$file; comma=','; echo; done; echo ']'; } >$@
lint: installed
	@tests/lint/run
# Run the unit tests and the simulator with a sanitizer, without mutants. ThreadSanitizer runs only
# the tests of code with threads. `make gpu-test` runs the sanitizer of CUDA.
asan ubsan: installed
	@$(MAKE) $(JOBS) FLAVOUR=$@ CUDA=0 units
	@$(call PYTEST,$@) $(BY_UNIT) -k 'not mutant' tests/unit tests/sim
tsan: installed
	@$(MAKE) $(JOBS) FLAVOUR=$@ CUDA=0 threaded
	@$(call PYTEST,$@) $(BY_UNIT) -k 'not mutant' tests/unit \
		--ignore-glob='*/test_core_*' --ignore-glob='*/test_session*' --ignore-glob='*/test_server_upgrade*'
mutants: installed
	@$(MAKE) $(JOBS) all $(RULE_MUTANTS)
	@CNN_DATA="$$(deploy/data.sh)" && export CNN_DATA && exec $(PYTEST) tests/mutants
# Trace a push through a server, and compare the trace with the walk in docs/architecture.md.
walk-trace: installed
	@$(MAKE) $(JOBS) FLAVOUR=trace CUDA=0 build/trace/cnn-ps
	@$(PYTHON) -B tests/tools/walk_trace.py --check
bench:
	@deploy/setup.sh check bench
	@$(MAKE) $(JOBS) FLAVOUR=release tests
	build/release/tests/bench/transport
	build/release/tests/bench/curve
	CNN_DATA="$$(deploy/data.sh)" tests/bench/cpu_vs_torch
	tests/bench/python_rate
	tests/bench/python_rate --kill --seconds 3 --programs python,tutorial,allreduce
	build/release/tests/sim/sim --seeds 1..5000
# This target needs only Docker, because Docker builds everything inside an image.
cluster:
	@deploy/docker_engine.sh deploy/cluster.sh
# Run the long form of the fault tests of containers, which takes six minutes.
cluster-faults: installed
	@$(MAKE) $(JOBS) all $(B)/tests/tools/ledger_worker
	@export CNN_DATA="$$(deploy/data.sh)" CNN_SLOW=1 && \
		exec deploy/docker_engine.sh $(call PYTEST) tests/fault/test_compose.py
docs/options.md: $(BINARIES)
	@tests/lint/options.sh $(B) >$@.tmp && mv $@.tmp $@
clean:
	rm -rf build
# Print the value of a variable, for scripts.
print-%:
	@echo $($*)

-include $(shell find $(B) -name '*.d' 2>/dev/null)
