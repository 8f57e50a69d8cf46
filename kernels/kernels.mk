# The Makefile includes this file, which sets KERNEL_OBJECTS, the objects of libkernels.a.
# kernels/cpu/simd.c is compiled once per instruction set; kernels/cpu/cpu.c selects one at run time.
SIMD.baseline :=
SIMD.avx2     := -mavx2 -mfma
SIMD.avx512   := -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma
SIMD_SETS     := baseline $(if $(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null)),avx2 avx512)
SIMD_OBJECTS  := $(SIMD_SETS:%=$(B)/kernels/cpu/simd.%.o)
CU_OBJECTS    := $(CU:%.cu=$(B)/%.o)
KERNEL_OBJECTS = $(filter-out %/cpu/simd.o $(if $(CU),,$(call obj,$(wildcard kernels/cuda/*.c))),$(call obj,$(SRC.kernels))) \
	$(SIMD_OBJECTS) $(CU_OBJECTS)

# the rule below is the first one that make reads
.DEFAULT_GOAL := all
# -std=c11 alone would forbid fused multiply-add
$(SIMD_OBJECTS): $(B)/kernels/cpu/simd.%.o: kernels/cpu/simd.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC,$< ($*))$(CC) $(CFLAGS) -O3 -ffp-contract=fast $(SIMD.$*) -DSIMD_NAME=$* \
		-MMD -MP -c -o $@ $<

# SM=90: Hopper, with the instructions of sm_90a (wgmma). With KX_SYNC=1 the programs wait after each
# kernel launch, so that an error message names the kernel that caused the error.
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -gencode arch=compute_$(SM:90=90a),code=sm_$(SM:90=90a) -I. \
	-Xcompiler -Wall,-Wextra,-fPIE $(if $(KX_SYNC),-DKX_SYNC)
$(CU_OBJECTS): $(B)/%.o: %.cu $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
