/* work.c - runs batches on the cuda device: copies, graphs, local training. See cuda.h. */
#include <stdio.h>
#include <string.h>
#include "kernels/cuda/cuda.h"

#define BLOCK_STEPS 60 /* maximum steps of local training in one graph */

static int cuda_check(struct cuda *c, cudaError_t rc, const char *call)
{
	if (rc == cudaSuccess)
		return PS_OK;
	if (!c->why[0])
		snprintf(c->why, sizeof(c->why), "device cuda: %s: %s", call,
			cudaGetErrorString(rc));
	return PS_EDEVICE;
}
#define CHECK(call) cuda_check(c, call, #call)

void cuda_drop_graphs(struct cuda *c)
{
	while (c->n_graphs)
		cudaGraphExecDestroy(c->graph[--c->n_graphs].exec);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static struct kx_batch batch_of(const struct cuda *c, size_t images, int training)
{
	return (struct kx_batch){.pixels = c->pixels,
		.labels = c->labels,
		.index = training ? c->index : NULL,
		.now = c->now,
		.images = (int)images,
		.training = training};
}

/* Records the CUDA error of a failed launch. The path itself returns only PS_EDEVICE. */
static int launched(struct cuda *c, int rc)
{
	if (rc == PS_EDEVICE)
		(void)cuda_check(c, cudaGetLastError(), "a launch");
	return rc;
}

/* Launches the kernels of a graph: the gradient at the parameters of slot 0 (steps = 0), or `steps`
 * steps of training. */
static int launch(struct cuda *c, size_t images, int steps)
{
	struct kx_batch batch = batch_of(c, images, 1);
	int rc;

	if (steps)
		return c->path->train(c->net, batch, c->now, steps, c->loss, c->stream);
	rc = c->path->load(c->net, c->slot[0].params, c->stream);
	return rc ? rc : c->path->gradient(c->net, batch, c->slot[0].grad, c->loss, c->stream);
}

static int capture_graph(struct cuda *c, size_t images, int steps, cudaGraphExec_t *exec)
{
	cudaGraph_t graph = NULL;
	int rc = CHECK(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal)), end;

	if (rc)
		return rc;
	rc = launched(c, launch(c, images, steps));
	end = CHECK(cudaStreamEndCapture(c->stream, &graph));
	if (!rc)
		rc = end;
	if (!rc)
		rc = CHECK(cudaGraphInstantiate(exec, graph, 0));
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

/* Launches the graph for this size; captures it on first use. */
static int run_graph(struct cuda *c, size_t images, int steps)
{
	struct graph *g = c->graph, *end = c->graph + c->n_graphs;

	while (g < end && (g->batch != images || g->steps != steps))
		g++;
	if (g == end) {
		if (c->n_graphs == CUDA_MAX_GRAPHS) { /* the oldest makes room */
			cudaGraphExecDestroy(c->graph[0].exec);
			memmove(c->graph, c->graph + 1, (CUDA_MAX_GRAPHS - 1) * sizeof(*g));
			c->n_graphs--;
			g--;
		}
		int rc = capture_graph(c, images, steps, &g->exec);
		if (rc)
			return rc;
		g->batch = images;
		g->steps = steps;
		c->n_graphs++;
	}
	return CHECK(cudaGraphLaunch(g->exec, c->stream));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int to_device(
	struct cuda *c, void *device, const void *host, size_t bytes, cudaStream_t stream)
{
	return CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
}

static int to_host(
	struct cuda *c, void *host, const void *device, size_t bytes, cudaStream_t stream)
{
	return CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
}

static int wait(struct cuda *c)
{
	return CHECK(cudaStreamSynchronize(c->stream));
}

static size_t params_bytes(const struct cuda *c)
{
	return c->model->n_params * sizeof(float);
}

/* set_now and set_index copy through the slot's pinned memory. Its entries are not reused until the
 * round is over or the stream is idle. */
static int set_now(struct cuda *c, struct slot *s, struct kx_now now)
{
	s->now[s->n_now] = now;
	return to_device(c, c->now, &s->now[s->n_now++], sizeof(now), c->stream);
}

static int set_index(struct cuda *c, struct slot *s, const uint32_t *index, size_t n)
{
	uint32_t *from = s->index + s->n_index;

	memcpy(from, index, n * sizeof(*index));
	s->n_index += n;
	return to_device(c, c->index, from, n * sizeof(*index), c->stream);
}

/* ---- one batch ------------------------------------------------------------------------------- */

/* Prepares a single gradient or forward pass. No round is in flight, so slot 0 is free. */
static int set_batch(struct cuda *c, const float *params, struct kx_now now)
{
	struct slot *s = &c->slot[0];
	int rc = CHECK(cudaSetDevice(c->gpu.number));

	s->n_now = s->n_index = 0;
	if (!rc)
		rc = to_device(c, s->params, params, params_bytes(c), c->stream);
	return rc ? rc : set_now(c, s, now);
}

int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[0];
	int rc = set_batch(c, params, (struct kx_now){.dropout_seed = dropout_seed});

	if (!rc)
		rc = set_index(c, s, index, batch);
	if (!rc)
		rc = run_graph(c, batch, 0);
	if (!rc)
		rc = to_host(c, s->loss, c->loss, sizeof(*c->loss), c->stream);
	if (!rc)
		rc = to_host(c, grad, s->grad, params_bytes(c), c->stream);
	if (!rc)
		rc = wait(c);
	if (!rc)
		*loss = *s->loss;
	return rc;
}

int cuda_forward(void *self, const float *params, size_t first, size_t n, float *logits)
{
	struct cuda *c = self;
	size_t width, classes = c->model->classes;
	const float *from = c->path->logits(c->net, &width);
	int rc = set_batch(c, params, (struct kx_now){.first = (uint32_t)first});

	if (!rc)
		rc = launched(c, c->path->load(c->net, c->slot[0].params, c->stream));
	if (!rc)
		rc = launched(c, c->path->forward(c->net, batch_of(c, n, 0), c->stream));
	if (!rc)
		rc = to_host(c, c->logits, from, n * width * sizeof(float), c->stream);
	if (!rc)
		rc = wait(c);
	for (size_t i = 0; i < n && !rc; i++)
		memcpy(logits + i * classes, c->logits + i * width, classes * sizeof(float));
	return rc;
}

/* ---- local training -------------------------------------------------------------------------- */

/* Work submitted to stream `then` from now on waits for the work submitted to stream `first` so
 * far. */
static int chain(struct cuda *c, cudaStream_t first, cudaEvent_t event, cudaStream_t then)
{
	int rc = CHECK(cudaEventRecord(event, first));

	return rc ? rc : CHECK(cudaStreamWaitEvent(then, event, 0));
}

int cuda_local_start(void *self, int slot, const float *params)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = CHECK(cudaSetDevice(c->gpu.number));

	s->n_now = s->n_index = 0;
	s->finished = 0;
	if (!rc)
		rc = to_device(c, s->params, params, params_bytes(c), c->in);
	if (!rc)
		rc = chain(c, c->in, s->in, c->stream);
	if (!rc)
		rc = launched(c, c->path->load(c->net, s->params, c->stream));
	if (!rc)
		rc = launched(c, c->path->start(c->net, c->stream));
	return rc ? rc : CHECK(cudaMemsetAsync(c->loss, 0, sizeof(*c->loss), c->stream));
}

/* Runs `steps` steps whose indices fit the index buffer together. */
static int local_chunk(struct cuda *c, struct slot *s, const uint32_t *index, size_t batch,
	size_t steps, struct kx_now now)
{
	int rc = PS_OK;

	if (s->n_now == CUDA_CHUNKS || s->n_index + batch * steps > c->max_index) {
		rc = wait(c);
		s->n_now = s->n_index = 0;
	}
	if (!rc)
		rc = set_now(c, s, now);
	if (!rc)
		rc = set_index(c, s, index, batch * steps);
	for (size_t i = 0, n; i < steps && !rc; i += n) {
		n = steps - i < BLOCK_STEPS ? steps - i : BLOCK_STEPS;
		rc = run_graph(c, batch, (int)n);
	}
	return rc;
}

int cuda_local_steps(void *self, int slot, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed)
{
	struct cuda *c = self;
	const size_t max_chunk = c->max_index / batch;
	int rc = CHECK(cudaSetDevice(c->gpu.number));

	for (size_t i = 0, n; i < steps && !rc; i += n) {
		struct kx_now now = {.dropout_seed = dropout_seed + i, .rate = rate};

		n = steps - i < max_chunk ? steps - i : max_chunk;
		rc = local_chunk(c, &c->slot[slot], index + i * batch, batch, n, now);
	}
	return rc;
}

/* Returns when the copy of local_start's parameters is complete. Usually it is complete before the
 * call. */
int cuda_local_finish(void *self, int slot, float *params, float *sum)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = CHECK(cudaSetDevice(c->gpu.number));

	s->finished = 1;
	if (!rc)
		rc = launched(c, c->path->save(c->net, params ? s->params : NULL,
					 sum ? s->grad : NULL, c->stream));
	if (!rc)
		rc = to_host(c, s->loss, c->loss, sizeof(*c->loss), c->stream);
	if (!rc)
		rc = chain(c, c->stream, s->computed, c->out);
	if (!rc && params)
		rc = to_host(c, params, s->params, params_bytes(c), c->out);
	if (!rc && sum)
		rc = to_host(c, sum, s->grad, params_bytes(c), c->out);
	if (!rc)
		rc = CHECK(cudaEventRecord(s->out, c->out));
	return rc ? rc : CHECK(cudaEventSynchronize(s->in));
}

int cuda_local_wait(void *self, int slot, double *loss)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = PS_OK;

	if (s->finished) {
		rc = CHECK(cudaEventSynchronize(s->out));
	} else {
		rc = to_host(c, s->loss, c->loss, sizeof(*c->loss), c->stream);
		if (!rc)
			rc = wait(c);
	}
	*loss = *s->loss;
	return rc;
}
