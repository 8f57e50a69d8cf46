# The Makefile includes this file. This file sets KERNEL_OBJECTS to the object files of
# libkernels.a. make compiles kernels/cpu/simd.c once for each instruction set; kernels/cpu/cpu.c
# selects one at run time.
SIMD.baseline :=
SIMD.avx2     := -mavx2 -mfma
SIMD.avx512   := -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma
SIMD_SETS     := baseline $(if $(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null)),avx2 avx512)
SIMD_OBJECTS  := $(SIMD_SETS:%=$(B)/kernels/cpu/simd.%.o)
CU_OBJECTS    := $(CU:%.cu=$(B)/%.o)
KERNEL_OBJECTS = $(filter-out %/cpu/simd.o $(if $(CU),,$(call obj,$(wildcard kernels/cuda/*.c))),$(call obj,$(SRC.kernels))) \
	$(SIMD_OBJECTS) $(CU_OBJECTS)

# Without this line, the rule below would be the default goal, because it is the first rule that
# make reads.
.DEFAULT_GOAL := all
# -ffp-contract=fast permits fused multiply-adds, which -std=c11 alone forbids. With all checks of
# UBSan, gcc takes three minutes to compile the version for AVX-512. Without the checks of pointers
# it takes 14 s, and ASan still checks the addresses. The fuzz targets compute no gradients, so the
# fuzz flavours have no checks here.
SIMD_POINTERS  := -fno-sanitize=null,alignment,object-size,bounds,pointer-overflow
SIMD.OPT.asan  := -O1 $(SIMD_POINTERS)
SIMD.OPT.ubsan := -O1 $(SIMD_POINTERS)
SIMD.OPT.fuzz  := -O1 -fno-sanitize=all
SIMD.OPT.fuzz-fast := $(SIMD.OPT.fuzz)
$(SIMD_OBJECTS): $(B)/kernels/cpu/simd.%.o: kernels/cpu/simd.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC,$< ($*))$(CC) $(CFLAGS) $(or $(SIMD.OPT.$(FLAVOUR)),-O3) -ffp-contract=fast $(SIMD.$*) -DSIMD_NAME=$* \
		-MMD -MP -c -o $@ $<

# The tests compare every device with cpu-ref. With -O1 and a sanitizer, cpu-ref would take half of
# the time of these tests.
$(if $(filter asan ubsan tsan,$(FLAVOUR)),$(B)/kernels/cpu/ref.o): EXTRA_CFLAGS += -O3

# CUDA_ARCHS lists the compute capabilities for which nvcc compiles the kernels, without the dot.
# `native` stands for the compute capabilities of the GPUs in this machine. nvcc before 12.8
# supports neither 100 nor 120. If 80 is in the list, the programs also have PTX for 8.0, which the
# driver compiles for GPUs that are not in the list. The kernels in fused/ are compiled for Hopper
# only, because they use instructions of sm_90a. With KX_SYNC=1 the programs capture no graphs and
# wait after each kernel launch, so that an error message names the kernel that caused the error.
CUDA_ARCHS ?= 80 86 89 90 100 120
ifneq ($(CU),)
ifeq ($(CUDA_ARCHS),native)
# without a driver nvidia-smi writes its message to stdout
override CUDA_ARCHS := $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n 's/^\([0-9]*\)[.]\([0-9]\)$$/\1\2/p'))
ifeq ($(CUDA_ARCHS),)
$(error CUDA_ARCHS=native: nvidia-smi names no GPU of this machine. Leave CUDA_ARCHS out to build for all GPUs, or give the compute capabilities of those that will run the programs, as in CUDA_ARCHS=90)
endif
endif
CUDA_KNOWN := $(subst compute_,,$(filter compute_%,$(shell $(NVCC) --list-gpu-arch)))
CUDA_CODE  := $(filter $(CUDA_ARCHS),$(CUDA_KNOWN))
ifeq ($(CUDA_CODE),)
$(error CUDA_ARCHS="$(CUDA_ARCHS)": nvcc compiles for $(CUDA_KNOWN). Choose one or more of these)
endif
endif
# ptxas compiles the PTX of 80 also for 86 and 89, and that of 100 also for 120. This saves runs of
# nvcc's front end, which takes most of the time. The kernels use no instruction that is new in 86,
# 89 or 120.
gencode = -gencode arch=compute_$(1),code=$(2)_$(1)
gencodes = $(if $(filter $(1),$(CUDA_CODE)),$(foreach a,$(filter $(1) $(2),$(CUDA_CODE)),-gencode arch=compute_$(1),code=sm_$a),\
	$(foreach a,$(filter $(2),$(CUDA_CODE)),$(call gencode,$a,sm)))
# With --compress-mode=size, nvcc 12.8 and later compress the code to a seventh of the usual size.
# Without --objdir-as-tempdir, an object file contains the name of a temporary file of nvcc. This
# name contains a process id, so no two builds would have the same bytes.
NVCC_BASE  = -std=c++17 -O3 -lineinfo --objdir-as-tempdir $(if $(filter 100,$(CUDA_KNOWN)),--compress-mode=size) -I. \
	-Xcompiler -Wall,-Wextra,-fPIE $(if $(KX_SYNC),-DKX_SYNC)
NVCC_CODE := $(call gencodes,80,86 89) $(call gencodes,100,120) \
	$(foreach a,$(patsubst 90,90a,$(filter-out 80 86 89 100 120,$(CUDA_CODE))),$(call gencode,$a,sm)) \
	$(if $(filter 80,$(CUDA_CODE)),$(call gencode,80,compute))
NVCC_HOPPER = $(NVCC_BASE) $(call gencode,90a,sm)
NVCC_FLAGS = $(NVCC_BASE) $(NVCC_CODE)
$(CU_OBJECTS): $(B)/%.o: %.cu $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) $(if $(findstring /fused/,$<),$(NVCC_HOPPER),$(NVCC_FLAGS)) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
$(B)/kernels/cuda/work.o: EXTRA_CFLAGS += $(if $(KX_SYNC),-DKX_SYNC)
