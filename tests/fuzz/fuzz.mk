# Fuzz targets: each .c file in this folder except replay.c. With clang and FLAVOUR=fuzz or fuzz-fast
# they are linked with libFuzzer; with any other flavour they replay the files of their corpus.
FUZZ_ENGINE := $(if $(filter fuzz%,$(FLAVOUR)),-fsanitize=fuzzer,$(B)/tests/fuzz/replay.o)
$(B)/tests/fuzz/%: $(B)/tests/fuzz/%.o $(TEST_ARCHIVES) $(if $(filter fuzz%,$(FLAVOUR)),,$(B)/tests/fuzz/replay.o)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $(filter-out %/replay.o,$^) $(FUZZ_ENGINE) \
		$(LIBS.server) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
# The programs of `make fuzz-coverage` need only a few archives, so that the command takes seconds.
COVER_TARGETS := $(addprefix build/cover/tests/fuzz/,wire session core snapshot checkpoint)
ifeq ($(FLAVOUR),cover)
$(COVER_TARGETS): %: %.o $(B)/tests/fuzz/replay.o $(call obj,tests/support/fuzz_input.c tests/support/core_config.c \
		tests/support/core_invariants.c worker/client/session.c) $(A.core) $(A.proto) $(A.common)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIBS.base)
build/cover/tests/fuzz/checkpoint: $(call obj,server/durability/upgrade.c server/durability/wal_replay.c \
		server/durability/wal_record.c server/config/fill_model.c)
endif
# These files get complete messages from the fuzzer. In these files, code that passes each compared
# value to the fuzzer as a hint would not help it and would cost time, so they are compiled without
# such code.
$(if $(filter fuzz%,$(FLAVOUR)),$(call obj,$(SRC.core) worker/client/session.c tests/fuzz/core.c)) \
$(if $(filter fuzz-fast,$(FLAVOUR)),$(call obj,$(SRC.proto) tests/support/fuzz_input.c)): \
	FUZZ_COVERAGE := -fsanitize-coverage=inline-8bit-counters,pc-table
# In fuzz-fast, the target `core` has shorter inputs, and leaves the codec to the target `wire`.
$(B)/tests/fuzz/core.o: EXTRA_CFLAGS += $(if $(filter fuzz-fast,$(FLAVOUR)),-DFUZZ_FAST)

# The dictionary of the target `options` also has the names of all options.
$(B)/tests/fuzz/options.dict: tests/fuzz/options.dict $(B)/gen/opt_names.h
	@mkdir -p $(@D)
	@sed -n 's/^{"cnn-ps", "\([^"]*\)".*/"--\1\\x0a"/p' $(B)/gen/opt_names.h | cat $< - >$@

.PHONY: fuzz fuzz-build fuzz-coverage
fuzz-build: $(FUZZ) $(B)/tests/fuzz/options.dict
# Fuzz each target for SECONDS of wall time, on all CPUs. FAST=1: without ASan.
SECONDS ?= 60
FUZZ_FLAVOUR := $(if $(FAST),fuzz-fast,fuzz)
fuzz: installed
	@$(MAKE) $(JOBS) FLAVOUR=$(FUZZ_FLAVOUR) CC=clang CUDA=0 fuzz-build
	@FLAVOUR=$(FUZZ_FLAVOUR) tests/fuzz/run $(SECONDS)
# Print the lines that the committed corpora reach. The command fails if the corpora reach too few
# lines (PARTS in coverage.py).
fuzz-coverage: installed
	@$(MAKE) $(JOBS) FLAVOUR=cover CUDA=0 $(COVER_TARGETS)
	@tests/fuzz/coverage.py
