/* tensors.c - see tensors.h. */
#include "server/core/tensors.h"
#include "common/tensor_list.h"
#include "server/core/core_state.h"
#include "server/core/effects.h"
#include "server/core/store.h"
#include <string.h>

_Static_assert(TENSOR_LIST_BYTES == WIRE_MAX_TENSORS, "a list fits HELLO, WELCOME and the core");

static int has_list(const struct msg_hello *h)
{
	return h->tensors && h->tensors[0];
}

static void refuse_tensors(struct core *c, const char *why, size_t line, uint32_t peer)
{
	struct say *s = &c->effects.said;

	say_begin(s, "this worker's list of tensors");
	if (line) {
		say_text(s, ", line ");
		say_number(s, line);
	}
	say_text(s, ": ");
	say_text(s, why);
	effects_refuse(c, peer, PS_EWRONGDATA, 0, s->text);
}

static const char *check_list(const struct core *c, const char *list, size_t *line)
{
	const char *why;

	/* the list of the run was checked when the run took it over */
	if (c->tensors.list[0] && strcmp(list, c->tensors.list) == 0)
		return NULL;
	why = tensor_list_check(list, c->store.n, c->store.trained, line);
	if (why || !c->tensors.list[0])
		return why;
	*line = tensor_list_difference(list, c->tensors.list);
	return *line ? "the run has another tensor there: all workers of a run have one model"
		     : NULL;
}

int tensors_admit(struct core *c, const struct msg_hello *h, uint32_t peer)
{
	size_t line;
	const char *why = has_list(h) ? check_list(c, h->tensors, &line) : NULL;

	if (why)
		refuse_tensors(c, why, line, peer);
	return !why;
}

void tensors_joined(struct core *c, const struct msg_hello *h)
{
	if (!has_list(h) || c->tensors.list[0])
		return;
	memcpy(c->tensors.list, h->tensors, strlen(h->tensors) + 1);
	tensors_find_running(c);
}

/* Returns the bytes of the name before `end`, or -1 if the name does not end with `end`. */
static ptrdiff_t bytes_before(const struct tensor_line *l, const char *end)
{
	const size_t n = strlen(end);

	return l->name_bytes >= n && memcmp(l->name + l->name_bytes - n, end, n) == 0
		       ? (ptrdiff_t)(l->name_bytes - n)
		       : -1;
}

/* Returns 1 if the two lines are the means and the variances of one batchnorm. */
static int are_statistics(const struct tensor_line *mean, const struct tensor_line *variance)
{
	const ptrdiff_t n = bytes_before(mean, "running_mean");

	return n >= 0 && bytes_before(variance, "running_var") == n &&
	       memcmp(mean->name, variance->name, (size_t)n) == 0 && mean->count == variance->count;
}

void tensors_find_running(struct core *c)
{
	struct running_layout *r = &c->cfg.running;
	struct tensor_line l, last = {0};
	size_t n = 0;

	if (r->n > 0)
		return;
	for (const char *at = c->tensors.list; *at && !tensor_list_next(&at, &l);) {
		if (l.type || l.other)
			continue;
		if (n > c->store.trained && n - last.count >= c->store.trained &&
			r->n < MAX_BATCHNORMS && are_statistics(&last, &l)) {
			r->norm[r->n].first = (uint32_t)(n - last.count - c->store.trained);
			r->norm[r->n++].channels = (uint32_t)l.count;
		}
		n += l.count;
		last = l;
	}
}

const char *core_tensors(const struct core *c)
{
	return c->tensors.list;
}

const char *core_name_tensors(struct core *c, const char *list, size_t *line)
{
	const char *why = tensor_list_check(list, c->store.n, c->store.trained, line);

	if (!why) {
		memcpy(c->tensors.list, list, strlen(list) + 1);
		tensors_find_running(c);
	}
	return why;
}
