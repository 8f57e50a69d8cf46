# What libkernels.a is made of: set KERNEL_OBJECTS. Included by the Makefile.
KERNEL_OBJECTS := $(call obj,$(SRC.kernels))
