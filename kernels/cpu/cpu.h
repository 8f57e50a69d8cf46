/* cpu.h - the devices of the CPU: cpu.c uses threads and SIMD, ref.c is the reference for tests. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H
#include "kernels/device/device.h"

extern const struct device device_cpu, device_cpu_ref;

#endif
