# cnn-ladder: every step of how the gradients became fast (docs/ladder.md). Included by the Makefile.
# Without nvcc (CUDA=0) it has the sequential rung alone. `make ladder` measures and draws.
LADDER_MAIN := kernels/ladder/main.c
LADDER_CU   := $(if $(CU),$(wildcard kernels/ladder/*.cu))
A.ladder    := $(B)/libladder.a
LADDER_OBJECTS := $(call obj,$(filter-out $(LADDER_MAIN) $(if $(CU),,kernels/ladder/production.c),$(wildcard kernels/ladder/*.c))) \
	$(LADDER_CU:%.cu=$(B)/%.cu.o)
LADDER_ARCHIVES := $(A.ladder) $(ARCHIVES.worker)

$(A.ladder): $(LADDER_OBJECTS)
	$(archive)
$(B)/kernels/ladder/rungs.o: EXTRA_CFLAGS += $(if $(CU),-DLADDER_CUDA)
$(B)/cnn-ladder: $(B)/kernels/ladder/main.o $(LADDER_ARCHIVES)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
$(B)/tests/unit/test_ladder $(B)/tests/gpu/test_ladder: $(B)/%: $(B)/%.o $(A.ladder) $(TEST_ARCHIVES)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS.server) $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
