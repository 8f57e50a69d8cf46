# Builds cnn-ladder, which measures each stage of docs/ladder.md. The Makefile includes this file.
# Without nvcc, cnn-ladder has only the sequential stage.
#   ladder   measures every stage, and writes tables and figures to LADDER (build/ladder)
LADDER      ?= build/ladder
LADDER_MAIN := tests/bench/ladder.c
LADDER_CU   := $(if $(CU),$(wildcard kernels/ladder/*.cu))
LADDER_C    := $(filter-out $(LADDER_MAIN) $(if $(CU),,%/production.c %/pins.c),$(wildcard kernels/ladder/*.c))
LADDER_CU_OBJECTS := $(LADDER_CU:%.cu=$(B)/%.o)
A.ladder    := $(B)/libladder.a
BINARIES    += $(B)/cnn-ladder
LADDER_TESTS := $(wildcard tests/unit/test_ladder.c tests/gpu/test_ladder.c)
LADDER_LIBS = $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)

$(LADDER_CU_OBJECTS): $(B)/%.o: %.cu $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) $(NVCC_HOPPER) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(A.ladder): $(call obj,$(LADDER_C)) $(LADDER_CU_OBJECTS)
	$(archive)
$(B)/cnn-ladder: $(call obj,$(LADDER_MAIN)) $(A.ladder) $(ARCHIVES.worker)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LADDER_LIBS)
$(LADDER_TESTS:%.c=$(B)/%): $(B)/%: $(B)/%.o $(A.test) $(A.support) $(A.ladder) $(ARCHIVES.worker)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LADDER_LIBS)

.PHONY: ladder
ladder:
	@deploy/setup.sh check bench
	@$(MAKE) $(JOBS) FLAVOUR=release all
	@CNN_DATA="$$(deploy/data.sh)" kernels/ladder/run.sh build/release/cnn-ladder $(LADDER)
