/* client_calls.c - see client_calls.h. */
#include "tests/support/client_calls.h"

/* Returns the work of a push for a test that gives none: in a run with a data set, each push must
 * have a batch. */
static struct cnnps_work needed_work(const struct cnnps *c)
{
	return (struct cnnps_work){.count = cnnps_info(c)->epochs > 0};
}

static int pull_with_flags(struct cnnps *c, uint32_t flags, float *into, struct cnnps_pull *p)
{
	*p = (struct cnnps_pull){.size = sizeof(*p), .flags = flags, .into = into};
	return cnnps_pull(c, p);
}

static int pull_into(struct cnnps *c, uint32_t flags, float *w, uint64_t *version)
{
	struct cnnps_pull p;
	int rc = pull_with_flags(c, flags, w, &p);

	if (!rc && version)
		*version = p.version;
	return rc;
}

int client_pull_all(struct cnnps *c, float *w, uint64_t *version)
{
	return pull_into(c, 0, w, version);
}

int client_pull_eval(struct cnnps *c, float *w, uint64_t *version)
{
	return pull_into(c, CNNPS_PULL_EVAL, w, version);
}

int client_view(struct cnnps *c, struct cnnps_pull *view)
{
	return pull_with_flags(c, 0, NULL, view);
}

int client_prefetch(struct cnnps *c)
{
	struct cnnps_pull p;

	return pull_with_flags(c, CNNPS_PULL_START, NULL, &p);
}

int client_await(struct cnnps *c)
{
	struct cnnps_pull p;

	return pull_with_flags(c, CNNPS_PULL_WAIT, NULL, &p);
}

int client_push_slice(struct cnnps *c, uint64_t offset, const float *g, size_t n, uint64_t version)
{
	return cnnps_push(c, &(struct cnnps_push){.size = sizeof(struct cnnps_push),
				     .gradient = g,
				     .offset = offset,
				     .count = n,
				     .version = version,
				     .work = needed_work(c)});
}

int client_push_all(struct cnnps *c, const float *g, uint64_t version)
{
	return client_push_slice(c, 0, g, 0, version);
}

int client_push_work(
	struct cnnps *c, const float *g, uint64_t version, const struct cnnps_work *work)
{
	return cnnps_push(c, &(struct cnnps_push){.size = sizeof(struct cnnps_push),
				     .gradient = g,
				     .version = version,
				     .work = *work});
}

int client_push_view(struct cnnps *c, const float *g, uint64_t version, struct cnnps_pull *view)
{
	*view = (struct cnnps_pull){.size = sizeof(*view)};
	return cnnps_push(c, &(struct cnnps_push){.size = sizeof(struct cnnps_push),
				     .gradient = g,
				     .version = version,
				     .work = needed_work(c),
				     .then = view});
}

struct cnnps_stats client_stats(const struct cnnps *c)
{
	struct cnnps_stats s = {.size = sizeof(s)};

	(void)cnnps_stats(c, &s);
	return s;
}
