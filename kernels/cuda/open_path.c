/* open_path.c - chooses the path that runs the model, and allocates memory. See cuda.h. */
#include "common/assert.h"
#include "kernels/cuda/cuda.h"

#define MIN_SUMS_BYTES 65536

int cuda_failed(cudaError_t rc, const char *what, struct err *e)
{
	return err_set(e, rc == cudaErrorMemoryAllocation ? PS_ENOMEM : PS_EDEVICE,
		"device cuda: %s: %s", what, cudaGetErrorString(rc));
}

void cuda_drop_graphs(struct cuda *c)
{
	while (c->n_graphs)
		cudaGraphExecDestroy(c->graph[--c->n_graphs].exec);
}

/* Returns cuda.n_sums. It is 0 for a short vector of parameters, because the CPU hashes it
 * faster. */
static size_t count_hash_sums(const struct cuda *c)
{
	const size_t bytes = c->model->n_params * sizeof(float);

	return c->options.forward_only || bytes < MIN_SUMS_BYTES ? 0 : xxh3_blocks(bytes);
}

static void cuda_place(struct cuda *c, struct cuda_arena *a)
{
	const size_t n = c->model->n_params;

	for (int i = 0; i < c->rounds; i++) {
		struct slot *s = &c->slot[i];

		s->params = arena_take(a, n, sizeof(float));
		s->start = c->may_fail ? arena_take(a, n, sizeof(float)) : s->params;
		if (c->options.forward_only)
			continue;
		s->grad = arena_take(a, n, sizeof(float));
	}
	c->index = arena_take(a, c->max_index, sizeof(uint32_t));
	c->now = arena_take(a, 1, sizeof(*c->now));
	c->result = arena_take(a, 1, sizeof(*c->result));
}

static void place_pinned(struct cuda *c, struct cuda_arena *a)
{
	for (int i = 0; i < c->rounds; i++) {
		struct slot *s = &c->slot[i];

		s->index = arena_take(a, c->max_index, sizeof(uint32_t));
		s->now = arena_take(a, CUDA_CHUNKS, sizeof(*s->now));
		s->result = arena_take(a, 1, sizeof(*s->result));
		s->start_sums = arena_take(a, c->n_sums + 1, sizeof(*s->start_sums));
		s->grad_sums = arena_take(a, c->n_sums + 1, sizeof(*s->grad_sums));
		s->tail = arena_take(a, XXH3_TAIL, 1);
		s->grad_tail = arena_take(a, XXH3_TAIL, 1);
	}
}

static int too_many_images(const struct cuda *c, struct err *e)
{
	return err_set(e, PS_ENOMEM, "no memory for batches of %zu images", c->max_batch);
}

static int cuda_allocate(struct cuda *c, struct err *e)
{
	struct cuda_arena device = {0}, host = {0};
	cudaError_t rc;

	c->n_sums = count_hash_sums(c);
	cuda_place(c, &device);
	place_pinned(c, &host);
	if (device.overflow || host.overflow)
		return too_many_images(c, e);
	if ((rc = cudaMalloc(&c->memory, device.used)))
		return cuda_failed(rc, "memory on the GPU", e);
	if ((rc = cudaHostAlloc(&c->pinned, host.used, cudaHostAllocDefault)))
		return cuda_failed(rc, "pinned memory", e);
	device = (struct cuda_arena){.base = c->memory};
	host = (struct cuda_arena){.base = c->pinned};
	cuda_place(c, &device);
	place_pinned(c, &host);
	if ((rc = cudaMemset(c->result, 0, sizeof(*c->result))))
		return cuda_failed(rc, "the first copies", e);
	return PS_OK;
}

/* Allocates the memory of the path. */
static int allocate_path(struct cuda *c, struct err *e)
{
	struct cuda_arena device = {0};
	size_t width, bytes;
	cudaError_t rc;

	c->path->place(c->net, &device, NULL);
	c->path->logits(c->net, &width);
	if (device.overflow || __builtin_mul_overflow(c->max_batch, width * sizeof(float), &bytes))
		return too_many_images(c, e);
	if ((rc = cudaMalloc(&c->path_memory, device.used)))
		return cuda_failed(rc, "memory on the GPU", e);
	if ((rc = cudaHostAlloc((void **)&c->logits, bytes, cudaHostAllocDefault)))
		return cuda_failed(rc, "pinned memory", e);
	device = (struct cuda_arena){.base = c->path_memory};
	c->path->place(c->net, &device, &c->result->trouble);
	return PS_OK;
}

void cuda_close_path(struct cuda *c)
{
	cuda_drop_graphs(c);
	cudaFree(c->path_memory);
	cudaFreeHost(c->logits);
	if (c->net)
		c->path->close(c->net);
	c->path_memory = c->logits = c->net = NULL;
	c->path = NULL;
}

int cuda_open_path(struct cuda *c, struct err *e)
{
	static const struct cuda_path *const paths[] = {&cuda_seed, &cuda_tensor, &cuda_net};
	int rc;

	cuda_close_path(c);
	for (size_t i = 0; !c->path && i < sizeof(paths) / sizeof(paths[0]); i++)
		if (paths[i]->fits(c->model, &c->options))
			c->path = paths[i];
	PS_ASSERT(c->path); /* cuda_net fits every model */
	if ((rc = c->path->open(&c->net, c->model, &c->options, e)))
		return rc;
	if (!c->memory) {
		c->may_fail = c->path->may_fail && c->path->may_fail(c->net);
		if ((rc = cuda_allocate(c, e)))
			return rc;
	}
	if ((rc = allocate_path(c, e)))
		return rc;
	if (c->path->fill(c->net, c->stream))
		return cuda_failed(cudaGetLastError(), "the first copies", e);
	return PS_OK;
}
