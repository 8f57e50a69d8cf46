# The targets that test the CUDA device, compare it with PyTorch, and pack both for a GPU host.
#   gpu-test   runs all tests in tests/gpu; without a GPU, skips the tests that need one
#   gpu-bench  measures the kernels and PyTorch, in turns
#   bundle     makes build/bundle/cnn-ps-VERSION-linux-x86_64.tar.gz
# These programs link no server, so that changes of the server cannot break their build.
GPU_TESTS  := $(patsubst tests/gpu/%.c,$(B)/tests/gpu/%,$(wildcard tests/gpu/test_*.c))
GPU_POISON := $(B)/tests/gpu/poison.so
GPU_PROGRAMS := $(GPU_TESTS) $(GPU_POISON) $(B)/tests/bench/gpu $(B)/tests/bench/operations \
	$(B)/tests/tools/broken_worker $(if $(CU),$(B)/tests/bench/store_probe $(B)/tests/bench/step_probe)

ifneq ($(CU),)
WRAP = $(addprefix -Xlinker --wrap=,$(1))
SMALL_GPU := $(call WRAP,cudaDeviceGetAttribute cudaFuncSetAttribute cudaMalloc)
FAKE_GPUS := $(call WRAP,cudaGetDeviceCount cudaGetDeviceProperties cudaGetDeviceProperties_v2 cudaSetDevice kx_runs_here \
	dlopen dlsym dlclose)
endif
# In this program, the CUDA runtime finds the GPUs of tests/gpu/fake_gpus.c.
$(B)/tests/gpu/test_choose: $(B)/tests/gpu/fake_gpus.o
$(B)/tests/gpu/test_choose: SMALL_GPU += $(FAKE_GPUS)
$(B)/tests/gpu/test_%: $(B)/tests/gpu/test_%.o $(B)/tests/gpu/poison.o $(B)/tests/gpu/small_gpu.o $(A.test) $(A.support) $(ARCHIVES.worker)
	$(call say,LD,$@)$(CC) $(LDFLAGS) $(SMALL_GPU) -o $@ $^ -lcmocka $(LIBS.worker) $(LIBS.cuda) $(LIBS.base) -ldl
# test_store also links optim.o and vec.o of the core, because it compares the GPU's steps with
# theirs.
$(B)/tests/gpu/test_store: $(B)/server/core/optim.o $(B)/server/core/vec.o
# broken_worker is a cnn-worker whose device breaks (tests/tools/broken_worker.c). The object file
# of broken_worker has a device table of its own, which the linker finds before the table in the
# archive.
$(B)/tests/tools/broken_worker: $(B)/tests/tools/broken_worker.o $(B)/worker/main.o $(ARCHIVES.worker)
	$(call say,LD,$@)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS.worker) $(LIBS.cuda) $(LIBS.base)
$(B)/tests/bench/%_probe: tests/bench/%_probe.cu $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) $(NVCC_FLAGS) -o $@ $< -lxxhash
$(GPU_POISON): tests/gpu/poison.c tests/gpu/poison_preload.c tests/gpu/poison.h
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(CFLAGS) -fPIC -shared -o $@ $(filter %.c,$^) -ldl

.PHONY: gpu-test gpu-bench bundle
gpu-test: installed
	@$(MAKE) $(JOBS) tests
	@PYTHON=$(PYTHON) tests/gpu/run
# The first python3 in PATH must have PyTorch for this GPU: Debian's PyTorch is for CPUs only.
gpu-bench: installed
	@$(MAKE) $(JOBS) FLAVOUR=release tests
	@CNN_DATA="$$(deploy/data.sh)" tests/bench/gpu_vs_torch
bundle: installed
	@$(MAKE) $(JOBS) FLAVOUR=release all $(subst $(B),build/release,$(GPU_PROGRAMS))
	@deploy/bundle.sh
	@CNN_DATA="$$(deploy/data.sh)" CNN_BUNDLE=1 $(call PYTEST,release) tests/gpu/test_bundle.py
