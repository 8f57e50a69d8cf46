/* tensors.c - see tensors.h. */
#include "server/core/tensors.h"
#include "common/tensor_list.h"
#include "server/core/effects.h"
#include "server/core/state.h"
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
	if (has_list(h) && !c->tensors.list[0])
		memcpy(c->tensors.list, h->tensors, strlen(h->tensors) + 1);
}

const char *core_tensors(const struct core *c)
{
	return c->tensors.list;
}

const char *core_name_tensors(struct core *c, const char *list, size_t *line)
{
	const char *why = tensor_list_check(list, c->store.n, c->store.trained, line);

	if (!why)
		memcpy(c->tensors.list, list, strlen(list) + 1);
	return why;
}
