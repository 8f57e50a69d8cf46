/*
 * tensors.h - names and shapes of the tensors that make up the weights of the model vector:N, for
 * exports. Names and shapes change nothing in training. The run takes its list from --init, or from
 * the first worker that has one.
 */
#ifndef SERVER_CORE_TENSORS_H
#define SERVER_CORE_TENSORS_H
#include "server/core/core.h"

struct tensors {
	char *list; /* tensor_list.h, room for TENSOR_LIST_BYTES and a NUL; "": none */
};

/* Returns 1 if this HELLO has no list, or if its list is sound and does not differ from a list of
 * the run. If the list is bad or differs, refuses `peer` with the reason. */
int tensors_admit(struct core *c, const struct msg_hello *h, uint32_t peer);
/* Called when a worker joins with this HELLO, which tensors_admit has admitted: if the run has no
 * list of tensors, takes over the list of the HELLO. */
void tensors_joined(struct core *c, const struct msg_hello *h);

#endif
