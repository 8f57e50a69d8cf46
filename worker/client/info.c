/* info.c - see info.h. */
#include "worker/client/info.h"
#include <stdlib.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/model.h"

struct cnnps_info info_of(const struct msg_welcome *w)
{
	return (struct cnnps_info){.model = w->model,
		.n_params = w->n_params,
		.seed = w->seed,
		.batch = w->batch,
		.epochs = w->epochs,
		.worker = w->stamp.worker,
		.incarnation = w->stamp.incarnation,
		.term = w->stamp.term,
		.mode = (enum cnnps_mode)w->mode,
		.n_push = w->n_push,
		.n_fetch = w->n_fetch,
		.push_sum = w->push_sum != 0,
		.prefetch = w->prefetch != 0,
		.local_rate = w->local_rate,
		.momentum = w->momentum,
		.validate = w->validate,
		.tensors = w->tensors};
}

size_t info_trained(const struct cnnps_info *info)
{
	struct model *m = mem_try(1, sizeof(*m));
	size_t n = (size_t)info->n_params;
	struct err e;

	/* a newer server may have a model that this library cannot parse */
	if (m && model_parse(m, info->model, MODEL_MNIST, &e) == PS_OK && m->n_params == n)
		n = m->n_trained;
	free(m);
	return n;
}

struct cnnps_lease lease_of(const struct msg_grant *g, uint64_t term)
{
	if (g->kind == GRANT_EVAL)
		return (struct cnnps_lease){.size = sizeof(struct cnnps_lease),
			.kind = CNNPS_EVAL,
			.first = g->eval_first,
			.count = g->eval_count,
			.eval_id = g->eval_id,
			.term = term};
	return (struct cnnps_lease){.size = sizeof(struct cnnps_lease),
		.kind = CNNPS_TRAIN,
		.epoch = g->work.epoch,
		.first = g->work.first,
		.count = g->work.count,
		.exact = g->exact != 0,
		.version = g->version,
		.term = term};
}

uint32_t info_process(char *host, size_t size)
{
	if (gethostname(host, size))
		host[0] = '\0';
	host[size - 1] = '\0'; /* gethostname may truncate a longer name without a NUL */
	for (char *c = host; *c; c++)
		if (*c < '!' || *c > '~')
			*c = '?';
	return (uint32_t)getpid();
}
