# What libkernels.a is made of: set KERNEL_OBJECTS. Included by the Makefile.
# kernels/cpu_simd.c is compiled once per instruction set; kernels/cpu.c picks one at run time.
SIMD.baseline :=
SIMD.avx2     := -mavx2 -mfma
SIMD.avx512   := -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma
SIMD_SETS     := baseline $(if $(filter x86_64-%,$(shell $(CC) -dumpmachine)),avx2 avx512)
SIMD_OBJECTS  := $(SIMD_SETS:%=$(B)/kernels/cpu_simd.%.o)
KERNEL_OBJECTS = $(filter-out %/cpu_simd.o,$(call obj,$(SRC.kernels))) $(SIMD_OBJECTS)

# the rule below is the first one that make reads
.DEFAULT_GOAL := all
# -std=c11 alone would forbid fused multiply-add
$(SIMD_OBJECTS): $(B)/kernels/cpu_simd.%.o: kernels/cpu_simd.c
	@mkdir -p $(@D)
	$(call say,CC,$< ($*))$(CC) $(CFLAGS) -O3 -ffp-contract=fast $(SIMD.$*) -DSIMD_NAME=$* \
		-MMD -MP -c -o $@ $<
