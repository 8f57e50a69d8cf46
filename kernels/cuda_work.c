/* cuda_work.c - batches on the cuda device: copies, graphs, local training. See cuda.h. */
#include <string.h>
#include "common/log.h"
#include "kernels/cuda.h"

#define BLOCK_STEPS 10 /* steps of local training in one graph */

static int check(cudaError_t rc, const char *call)
{
	if (rc == cudaSuccess)
		return PS_OK;
	log_warn("cuda", "failed", "call=%s reason=\"%s\"", call, cudaGetErrorString(rc));
	return PS_EDEVICE;
}
#define CHECK(call) check((call), #call)

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

/* What a graph does: a gradient from c->params to c->grad and *c->loss, or steps of training. */
static int launch(struct cuda *c, size_t images, int steps)
{
	struct kx_batch batch = batch_of(c, images, 1);
	int rc;

	if (steps)
		return c->path->train(c->net, batch, c->now, steps, c->loss, c->stream);
	rc = c->path->load(c->net, c->params, c->stream);
	return rc ? rc : c->path->gradient(c->net, batch, c->grad, c->loss, c->stream);
}

static int capture(struct cuda *c, size_t images, int steps, cudaGraphExec_t *exec)
{
	cudaGraph_t graph = NULL;
	int rc = CHECK(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal)), end;

	if (rc)
		return rc;
	rc = launch(c, images, steps);
	end = CHECK(cudaStreamEndCapture(c->stream, &graph));
	if (!rc)
		rc = end;
	if (!rc)
		rc = CHECK(cudaGraphInstantiate(exec, graph, 0));
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

/* The graph for this size, made when it is first asked for. */
static int run_graph(struct cuda *c, size_t images, int steps)
{
	struct graph *g = c->graph, *end = c->graph + c->n_graphs;

	while (g < end && (g->batch != images || g->steps != steps))
		g++;
	if (g == end) {
		if (c->n_graphs == CUDA_MAX_GRAPHS) {
			cuda_drop_graphs(c);
			g = c->graph;
		}
		int rc = capture(c, images, steps, &g->exec);
		if (rc)
			return rc;
		g->batch = images;
		g->steps = steps;
		c->n_graphs++;
	}
	return CHECK(cudaGraphLaunch(g->exec, c->stream));
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int to_device(struct cuda *c, void *device, const void *host, size_t bytes)
{
	return CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, c->stream));
}

static int to_host(struct cuda *c, void *host, const void *device, size_t bytes)
{
	return CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, c->stream));
}

static int wait(struct cuda *c)
{
	return CHECK(cudaStreamSynchronize(c->stream));
}

/* A share of the parameters: the processor copies one while the GPU fetches or brings another. */
struct piece {
	size_t at, bytes;
};

static struct piece piece_of(const struct cuda *c, int i)
{
	const size_t n = c->model->n_params, pieces = CUDA_COPY_PIECES;
	size_t at = n * (size_t)i / pieces, end = n * (size_t)(i + 1) / pieces;

	return (struct piece){at, (end - at) * sizeof(float)};
}

/* Waits before the pinned buffers are written: nothing may still be on its way from them. */
static int set_params(struct cuda *c, const float *params)
{
	int rc = CHECK(cudaSetDevice(c->number));

	if (!rc)
		rc = wait(c);
	for (int i = 0; i < CUDA_COPY_PIECES && !rc; i++) {
		struct piece p = piece_of(c, i);
		memcpy(c->host_params + p.at, params + p.at, p.bytes);
		rc = to_device(c, c->params + p.at, c->host_params + p.at, p.bytes);
	}
	return rc;
}

/* Waits for all that was launched. */
static int get_grad(struct cuda *c, float *grad)
{
	int rc = PS_OK;

	for (int i = 0; i < CUDA_COPY_PIECES && !rc; i++) {
		struct piece p = piece_of(c, i);
		rc = to_host(c, c->host_params + p.at, c->grad + p.at, p.bytes);
		if (!rc)
			rc = CHECK(cudaEventRecord(c->copied[i], c->stream));
	}
	for (int i = 0; i < CUDA_COPY_PIECES && !rc; i++) {
		struct piece p = piece_of(c, i);
		rc = CHECK(cudaEventSynchronize(c->copied[i]));
		if (!rc)
			memcpy(grad + p.at, c->host_params + p.at, p.bytes);
	}
	return rc;
}

static int set_now(struct cuda *c, struct kx_now now)
{
	*c->host_now = now;
	return to_device(c, c->now, c->host_now, sizeof now);
}

static int set_index(struct cuda *c, const uint32_t *index, size_t n)
{
	memcpy(c->host_index, index, n * sizeof *index);
	return to_device(c, c->index, c->host_index, n * sizeof *index);
}

/* ---- work ------------------------------------------------------------------------------------ */

int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	struct cuda *c = self;
	int rc = set_params(c, params);

	if (!rc)
		rc = set_now(c, (struct kx_now){.dropout_seed = dropout_seed});
	if (!rc)
		rc = set_index(c, index, batch);
	if (!rc)
		rc = run_graph(c, batch, 0);
	if (!rc)
		rc = to_host(c, c->host_loss, c->loss, sizeof *c->loss);
	if (!rc)
		rc = get_grad(c, grad);
	if (!rc)
		*loss = *c->host_loss;
	return rc;
}

int cuda_forward(void *self, const float *params, size_t first, size_t n, float *scores)
{
	struct cuda *c = self;
	size_t width, classes = c->model->classes;
	const float *from = c->path->scores(c->net, &width);
	int rc = set_params(c, params);

	if (!rc)
		rc = set_now(c, (struct kx_now){.first = (uint32_t)first});
	if (!rc)
		rc = c->path->load(c->net, c->params, c->stream);
	if (!rc)
		rc = c->path->forward(c->net, batch_of(c, n, 0), c->stream);
	if (!rc)
		rc = to_host(c, c->host_scores, from, n * width * sizeof(float));
	if (!rc)
		rc = wait(c);
	for (size_t i = 0; i < n && !rc; i++)
		memcpy(scores + i * classes, c->host_scores + i * width, classes * sizeof(float));
	return rc;
}

/* ---- local training -------------------------------------------------------------------------- */

int cuda_local_start(void *self, const float *params)
{
	struct cuda *c = self;
	int rc = set_params(c, params);

	if (!rc)
		rc = c->path->load(c->net, c->params, c->stream);
	if (!rc)
		rc = c->path->start(c->net, c->stream);
	return rc ? rc : wait(c);
}

/* As many steps as fit in the index buffer. */
static int local_chunk(struct cuda *c, const uint32_t *index, size_t batch, size_t steps,
	struct kx_now now, double *loss)
{
	int rc = set_now(c, now);

	if (!rc)
		rc = set_index(c, index, batch * steps);
	if (!rc)
		rc = CHECK(cudaMemsetAsync(c->loss, 0, sizeof *c->loss, c->stream));
	for (size_t i = 0, n; i < steps && !rc; i += n) {
		n = steps - i >= BLOCK_STEPS ? BLOCK_STEPS : 1;
		rc = run_graph(c, batch, (int)n);
	}
	if (!rc)
		rc = to_host(c, c->host_loss, c->loss, sizeof *c->loss);
	if (!rc)
		rc = wait(c);
	*loss += rc ? 0 : *c->host_loss;
	return rc;
}

int cuda_local_steps(void *self, const uint32_t *index, size_t batch, size_t steps, float rate,
	uint64_t dropout_seed, double *loss)
{
	struct cuda *c = self;
	const size_t most = c->max_index / batch;
	double sum = 0;
	int rc = CHECK(cudaSetDevice(c->number));

	for (size_t i = 0; i < steps && !rc;) {
		size_t n = steps - i < most ? steps - i : most;
		struct kx_now now = {.dropout_seed = dropout_seed + i, .rate = rate};
		rc = local_chunk(c, index + i * batch, batch, n, now, &sum);
		i += n;
	}
	if (!rc && loss)
		*loss = sum / (double)steps;
	return rc;
}

int cuda_local_finish(void *self, float *params, float *sum)
{
	struct cuda *c = self;
	size_t bytes = c->model->n_params * sizeof(float);
	int rc = CHECK(cudaSetDevice(c->number));

	if (!rc)
		rc = c->path->save(c->net, c->params, c->grad, c->stream);
	if (!rc && params)
		rc = to_host(c, params, c->params, bytes);
	if (!rc && sum)
		rc = to_host(c, sum, c->grad, bytes);
	return rc ? rc : wait(c);
}
