/* work.c - runs batches on the cuda device: copies, graphs, local training. See cuda.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/log.h"
#include "kernels/cuda/base/xxh3.h"
#include "kernels/cuda/cuda.h"

#define BLOCK_STEPS 60 /* maximum number of steps of local training in one graph */

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

/* `host` may also be memory of `share`, which is on the device: see struct backend_memory. */
static int to_device(
	struct cuda *c, void *device, const void *host, size_t bytes, cudaStream_t stream)
{
	return CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, stream));
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

/* Records the CUDA error of a failed launch, because the functions of c->path return only the code
 * PS_EDEVICE and do not say which CUDA error occurred. */
static int launched(struct cuda *c, int rc)
{
	if (rc == PS_EDEVICE)
		(void)cuda_check(c, cudaGetLastError(), "a launch");
	return rc;
}

/* Launches the kernels of a graph: `steps` steps of training or, if `steps` is 0 or less, the
 * gradient at the start of the round in slot -steps, whose arguments it copies first. */
static int launch(struct cuda *c, size_t images, int steps)
{
	struct kx_batch batch = batch_of(c, images, 1);
	int rc;

	if (steps > 0)
		return c->path->train(c->net, batch, c->now, steps, &c->result->loss, c->stream);
	const struct slot *s = &c->slot[-steps];
	rc = to_device(c, c->now, s->now, sizeof(*s->now), c->stream);
	if (!rc)
		rc = to_device(c, c->index, s->index, images * sizeof(*s->index), c->stream);
	if (!rc)
		rc = c->path->load(c->net, s->start, c->stream);
	return rc ? rc : c->path->gradient(c->net, batch, s->grad, &c->result->loss, c->stream);
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

/* a build with KX_SYNC=1 uses no graphs, because it waits for each kernel, and a capture does not
 * allow this */
#ifdef KX_SYNC
	return launched(c, launch(c, images, steps));
#endif
	while (g < end && (g->batch != images || g->steps != steps))
		g++;
	if (g == end) {
		if (c->n_graphs == CUDA_MAX_GRAPHS) { /* drop the oldest graph */
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

static int to_host(
	struct cuda *c, void *host, const void *device, size_t bytes, cudaStream_t stream)
{
	return CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, stream));
}

static int fetch_result(struct cuda *c, struct slot *s)
{
	return to_host(c, s->result, c->result, sizeof(*s->result), c->stream);
}

static int wait(struct cuda *c)
{
	return CHECK(cudaStreamSynchronize(c->stream));
}

static size_t params_bytes(const struct cuda *c)
{
	return c->model->n_params * sizeof(float);
}

/* set_now and set_index copy through the slot's pinned memory. An entry of this memory is not
 * reused until the round is over or the stream is idle. */
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

/* ---- kernels that gave up -------------------------------------------------------------------- */

/* Replaces the path whose kernel gave up by a path without kernels of fused/. */
static int fall_back(struct cuda *c, uint32_t trouble)
{
	const char *reason = trouble == KX_TROUBLE_RANGE
				     ? "a value is beyond the range of fp16"
				     : "a block of a kernel waited too long for another one";
	struct err e;
	int rc;

	log_warn("cuda", "general_kernels", "reason=\"%s\" device=\"%s\"", reason, c->name);
	rc = CHECK(cudaDeviceSynchronize());
	if (!rc)
		rc = CHECK(cudaMemset(c->result, 0, sizeof(*c->result)));
	c->options.fused = 0;
	c->may_fail = 0;
	if (!rc && (rc = cuda_open_path(c, &e)) && !c->why[0])
		snprintf(c->why, sizeof(c->why), "%.200s", e.text);
	return rc ? PS_EDEVICE : PS_OK;
}

/* ---- forward pass ---------------------------------------------------------------------------- */

/* Prepares a forward pass. No round is in flight, so slot 0 is free. */
static int set_batch(struct cuda *c, const float *params, struct kx_now now)
{
	struct slot *s = &c->slot[0];
	int rc = CHECK(cudaSetDevice(c->gpu));

	s->n_now = s->n_index = 0;
	if (!rc)
		rc = to_device(c, s->params, params, params_bytes(c), c->stream);
	return rc ? rc : set_now(c, s, now);
}

static int try_forward(struct cuda *c, const float *params, size_t first, size_t n)
{
	size_t width;
	const float *from = c->path->logits(c->net, &width);
	int rc = set_batch(c, params, (struct kx_now){.first = (uint32_t)first});

	if (!rc)
		rc = launched(c, c->path->load(c->net, c->slot[0].params, c->stream));
	if (!rc)
		rc = launched(c, c->path->forward(c->net, batch_of(c, n, 0), c->stream));
	if (!rc)
		rc = fetch_result(c, &c->slot[0]);
	if (!rc)
		rc = to_host(c, c->logits, from, n * width * sizeof(float), c->stream);
	return rc ? rc : wait(c);
}

int cuda_forward(void *self, const float *params, size_t first, size_t n, float *logits)
{
	struct cuda *c = self;
	const struct result *result = c->slot[0].result;
	const size_t classes = c->model->classes;
	int rc = try_forward(c, params, first, n);
	size_t width;

	if (!rc && result->trouble) {
		rc = fall_back(c, result->trouble);
		if (!rc)
			rc = try_forward(c, params, first, n);
	}
	if (rc)
		return rc;
	c->path->logits(c->net, &width);
	for (size_t i = 0; i < n; i++)
		memcpy(logits + i * classes, c->logits + i * width, classes * sizeof(float));
	return PS_OK;
}

/* ---- local training -------------------------------------------------------------------------- */

/* Makes the work that is submitted to stream `then` after this call wait for the work that was
 * submitted to stream `first` before this call. */
static int chain(struct cuda *c, cudaStream_t first, cudaEvent_t event, cudaStream_t then)
{
	int rc = CHECK(cudaEventRecord(event, first));

	return rc ? rc : CHECK(cudaStreamWaitEvent(then, event, 0));
}

/* Begins the round of a slot at the weights s->start. */
static int begin_round(struct cuda *c, struct slot *s)
{
	int rc = launched(c, c->path->load(c->net, s->start, c->stream));

	s->n_now = s->n_index = 0;
	if (!rc)
		rc = launched(c, c->path->start(c->net, c->stream));
	return rc ? rc : CHECK(cudaMemsetAsync(&c->result->loss, 0, sizeof(double), c->stream));
}

int cuda_local_start(void *self, int slot, const float *params)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = CHECK(cudaSetDevice(c->gpu));

	s->active = 1;
	s->finished = 0;
	s->log.gradient = 0;
	s->log.n_calls = s->log.n_index = 0;
	if (!rc)
		rc = to_device(c, s->start, params, params_bytes(c), c->in);
	if (!rc)
		rc = chain(c, c->in, s->in, c->stream);
	return rc ? rc : begin_round(c, s);
}

/* Runs `steps` steps. The indices of all these steps must fit in the index buffer. */
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

static int run_call(
	struct cuda *c, struct slot *s, const uint32_t *index, const struct round_call *call)
{
	const size_t max_chunk = c->max_index / call->batch;
	int rc = PS_OK;

	for (size_t i = 0, n; i < call->steps && !rc; i += n) {
		struct kx_now now = {.dropout_seed = call->dropout_seed + i, .rate = call->rate};

		n = call->steps - i < max_chunk ? call->steps - i : max_chunk;
		rc = local_chunk(c, s, index + i * call->batch, call->batch, n, now);
	}
	return rc;
}

/* Makes room for `n` more values of `size` bytes after the first `used` values. */
static int grow(void *memory, size_t size, size_t used, size_t n, size_t *max)
{
	void **at = memory, *more;

	if (used + n <= *max)
		return PS_OK;
	more = realloc(*at, 2 * (used + n) * size);
	if (!more)
		return PS_ENOMEM;
	*at = more;
	*max = 2 * (used + n);
	return PS_OK;
}

static int log_call(struct round_log *l, const uint32_t *index, struct round_call call)
{
	const size_t n = call.batch * call.steps;

	if (grow(&l->call, sizeof(*l->call), l->n_calls, 1, &l->max_calls) ||
		grow(&l->index, sizeof(*l->index), l->n_index, n, &l->max_index))
		return PS_ENOMEM;
	call.first = l->n_index;
	memcpy(l->index + l->n_index, index, n * sizeof(*index));
	l->n_index += n;
	l->call[l->n_calls++] = call;
	return PS_OK;
}

int cuda_local_steps(void *self, int slot, const uint32_t *index, size_t batch, size_t steps,
	float rate, uint64_t dropout_seed)
{
	const struct round_call call = {
		.batch = batch, .steps = steps, .dropout_seed = dropout_seed, .rate = rate};
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = CHECK(cudaSetDevice(c->gpu));

	if (!rc)
		rc = run_call(c, s, index, &call);
	if (!rc && c->may_fail) /* the kernels run while the CPU copies the indices */
		rc = log_call(&s->log, index, call);
	return rc;
}

static int finish_round(struct cuda *c, struct slot *s)
{
	const struct round_log *l = &s->log;
	int rc = PS_OK;

	if (!l->gradient) /* if the round is one gradient, s->grad has it already */
		rc = launched(c, c->path->save(c->net, l->params ? s->params : NULL,
					 l->sum ? s->grad : NULL, c->stream));
	if (!rc)
		rc = fetch_result(c, s);
	if (!rc)
		rc = chain(c, c->stream, s->computed, c->out);
	if (!rc && l->gradient && c->n_sums)
		rc = launched(c,
			kx_xxh3_sums(s->grad, params_bytes(c), s->grad_sums, s->grad_tail, c->out));
	if (!rc && l->params)
		rc = to_host(c, l->params, s->params, params_bytes(c), c->out);
	if (!rc && l->sum)
		rc = to_host(c, l->sum, s->grad, params_bytes(c), c->out);
	return rc ? rc : CHECK(cudaEventRecord(s->out, c->out));
}

/* Before the function returns, it waits until the weights that the caller passed to
 * cuda_local_start are on the device, because the caller may then use their memory for other data.
 * Usually this copy is complete before the call. The function does not wait for the results. */
int cuda_local_finish(void *self, int slot, float *params, float *sum)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = CHECK(cudaSetDevice(c->gpu));

	s->finished = 1;
	s->log.params = params;
	s->log.sum = sum;
	if (!rc)
		rc = finish_round(c, s);
	return rc ? rc : CHECK(cudaEventSynchronize(s->in));
}

/* Computes the sums for the checksum of the weights at the start of a round, while the first
 * kernels of the round run. */
static int hash_start(struct cuda *c, struct slot *s)
{
	int rc =
		launched(c, kx_xxh3_sums(s->start, params_bytes(c), s->start_sums, s->tail, c->in));

	return rc ? rc : CHECK(cudaEventRecord(s->hashed, c->in));
}

/* Returns the checksum of a vector of parameters, whose blocks have the sums `sums`. `end` points
 * just after the last bytes of the vector. */
static uint64_t mix_sums(const struct cuda *c, const struct xxh3_sum *sums, const void *end)
{
	struct xxh3_mix mix;

	xxh3_mix_begin(&mix);
	xxh3_mix_blocks(&mix, sums, c->n_sums);
	return xxh3_mix_end(&mix, end, params_bytes(c));
}

int cuda_hashes(const void *self)
{
	return ((const struct cuda *)self)->n_sums > 0;
}

int cuda_start_hash(void *self, uint64_t *xxh3)
{
	struct cuda *c = self;
	const struct slot *s = c->started;

	*xxh3 = 0;
	if (!s || !c->n_sums)
		return PS_OK;
	int rc = CHECK(cudaEventSynchronize(s->hashed));
	if (!rc)
		*xxh3 = mix_sums(c, s->start_sums, s->tail + XXH3_TAIL);
	return rc;
}

void cuda_sum_hash(const void *self, uint64_t *xxh3)
{
	const struct cuda *c = self;
	const struct slot *s = c->waited;

	*xxh3 = s && c->n_sums && s->log.sum ? mix_sums(c, s->grad_sums, s->grad_tail + XXH3_TAIL)
					     : 0;
}

/* Runs the gradient of a round whose weights, indices and other arguments are in the slot. */
static int run_gradient(struct cuda *c, struct slot *s)
{
	return run_graph(c, s->log.gradient, -(int)(s - c->slot));
}

int cuda_gradient_start(void *self, int slot, const float *params, const uint32_t *index,
	size_t batch, uint64_t dropout_seed)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = CHECK(cudaSetDevice(c->gpu));

	s->active = 1;
	s->finished = 0;
	s->log.gradient = batch;
	c->started = s;
	s->now[0] = (struct kx_now){.dropout_seed = dropout_seed};
	memcpy(s->index, index, batch * sizeof(*index));
	if (!rc)
		rc = to_device(c, s->start, params, params_bytes(c), c->in);
	if (!rc)
		rc = chain(c, c->in, s->in, c->stream);
	if (!rc)
		rc = run_gradient(c, s);
	return rc || !c->n_sums ? rc : hash_start(c, s);
}

static int repeat_round(struct cuda *c, struct slot *s)
{
	int rc = s->log.gradient ? run_gradient(c, s) : begin_round(c, s);

	for (size_t i = 0; i < s->log.n_calls && !rc && !s->log.gradient; i++)
		rc = run_call(c, s, s->log.index + s->log.call[i].first, &s->log.call[i]);
	return rc || !s->finished ? rc : finish_round(c, s);
}

static int wait_round(struct cuda *c, struct slot *s)
{
	int rc;

	if (s->finished)
		return CHECK(cudaEventSynchronize(s->out));
	rc = fetch_result(c, s);
	return rc ? rc : wait(c);
}

int cuda_local_wait(void *self, int slot, double *loss)
{
	struct cuda *c = self;
	struct slot *s = &c->slot[slot];
	int rc = wait_round(c, s);

	if (!rc && s->result->trouble) {
		rc = fall_back(c, s->result->trouble);
		for (int i = 0; i < c->rounds && !rc; i++) { /* the oldest first */
			struct slot *one = &c->slot[(slot + i) % c->rounds];

			if (one->active)
				rc = repeat_round(c, one);
		}
		if (!rc)
			rc = wait_round(c, s);
	}
	s->active = !s->finished;
	c->waited = s->finished && s->log.gradient ? s : NULL;
	*loss = s->result->loss;
	return rc;
}

int cuda_gradient(void *self, const float *params, const uint32_t *index, size_t batch,
	uint64_t dropout_seed, float *grad, double *loss)
{
	int rc = cuda_gradient_start(self, 0, params, index, batch, dropout_seed);

	if (!rc)
		rc = cuda_local_finish(self, 0, NULL, grad);
	return rc ? rc : cuda_local_wait(self, 0, loss);
}
