/*
 * tensors.h - names and shapes of the tensors that make up vector:N, for exports. They change
 * nothing in training. --init or the first worker that has a list gives it to the run.
 */
#ifndef SERVER_CORE_TENSORS_H
#define SERVER_CORE_TENSORS_H
#include "server/core/core.h"

struct tensors {
	char *list; /* tensor_list.h, room for TENSOR_LIST_BYTES and a NUL; "": none */
};

/* Returns 1 if this HELLO has no list, or if its list is sound and does not differ from a list of
 * the run. Otherwise refuses `peer` with the reason. */
int tensors_admit(struct core *c, const struct msg_hello *h, uint32_t peer);
/* A worker with this HELLO, which tensors_admit has admitted, joins. */
void tensors_joined(struct core *c, const struct msg_hello *h);

#endif
