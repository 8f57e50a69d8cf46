/* pins.c - pins the caller's memory for rungs that copy directly from and to it. */
#include <cuda_runtime_api.h>
#include "kernels/ladder/ladder.h"

static int pin(void **pinned, void *memory, size_t bytes, struct err *e)
{
	cudaError_t rc = cudaSuccess;

	if (!*pinned)
		rc = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
	if (rc)
		return err_set(e, PS_EDEVICE, "cudaHostRegister: %s", cudaGetErrorString(rc));
	*pinned = memory;
	return PS_OK;
}

int ladder_pin(struct ladder_pins *p, const float *params, float *grad, size_t n, struct err *e)
{
	/* the device only reads the weights, but CUDA cannot pin host memory as read-only */
	int rc = pin(&p->params, (void *)params, n * sizeof(*params), e);

	return rc ? rc : pin(&p->grad, grad, n * sizeof(*grad), e);
}

static void unpin(void **pinned)
{
	if (*pinned)
		(void)cudaHostUnregister(*pinned);
	*pinned = NULL;
}

void ladder_unpin(struct ladder_pins *p)
{
	unpin(&p->params);
	unpin(&p->grad);
}
