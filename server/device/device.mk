# The store modules: shared objects that cnn-ps loads with --store (server/device/module.h). The
# CUDA module exists only in a build with CUDA. The test double is a module that computes on the
# CPU. A test uses the double with a copy of cnn-ps in the directory of the double.
STORE_NAME   := cnnps-store-cuda.so
STORE_MODULE := $(if $(CU),$(B)/$(STORE_NAME))
STORE_DOUBLE := $(B)/tests/device/$(STORE_NAME)

# -fmad=false: no fused multiply-add, so that the GPU computes the bits of the CPU.
$(B)/$(STORE_NAME): server/device/cuda/store.cu server/device/step.h server/device/module.h common/param_device.h common/gpu_memory.h common/xxh3_lane.h common/xxh3_sums.h common/xxh3_secret.h $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) $(NVCC_FLAGS) -fmad=false -Xcompiler -fPIC,-fvisibility=hidden -shared -cudart static \
		-Xlinker -z,relro,-z,now,-z,noexecstack -o $@ $<
$(B)/tests/device/%.o: EXTRA_CFLAGS += $(CORE_FLAGS)
$(B)/tests/device/$(STORE_NAME): tests/device/store_double.c tests/device/store_double.h server/device/step.h server/device/module.h \
		common/param_device.h common/xxh3_sums.c server/core/vec.c common/xxh3_lane.h $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(CFLAGS) $(CORE_FLAGS) -fPIC -shared -o $@ $(filter %.c,$^) -lm
# copies of the double where gpu_store.c finds it: for the programs in tests/unit, and for their
# mutants
STORE_DOUBLE += $(B)/tests/lib/cnn-ps/$(STORE_NAME) $(B)/rule-mutants/lib/cnn-ps/$(STORE_NAME)
$(B)/tests/lib/cnn-ps/$(STORE_NAME) $(B)/rule-mutants/lib/cnn-ps/$(STORE_NAME): $(B)/tests/device/$(STORE_NAME)
	@mkdir -p $(@D)
	$(call say,CP,$@)cp $< $@
$(B)/tests/unit/test_gpu_lane: | $(STORE_DOUBLE)
# cnn-ps beside the double: the server searches for its module in the directory of its program.
STORE_DOUBLE += $(B)/tests/device/cnn-ps
$(B)/tests/device/cnn-ps: $(B)/cnn-ps
	@mkdir -p $(@D)
	$(call say,CP,$@)cp $< $@
