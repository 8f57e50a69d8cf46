/*
 * tensors.h - names and shapes of the tensors that make up vector:N, for exports. The run takes its
 * list from --init, or from the first worker that has one. In training, only the names of running
 * statistics matter. As in PyTorch, a tensor NAME.running_mean and the tensor NAME.running_var
 * after it are the running statistics of a batchnorm. Their limits depend on the running variance
 * (running.h).
 */
#ifndef SERVER_CORE_TENSORS_H
#define SERVER_CORE_TENSORS_H
#include "server/core/core.h"

struct tensors {
	/* the run's list (tensor_list.h), with room for the longest list; "": the run has no
	 * list */
	char *list;
};

/* Returns 1 if this HELLO has no list, or if its list is sound and does not differ from a list of
 * the run. If the list is bad or differs, refuses `peer` with the reason. */
int tensors_admit(struct core *c, const struct msg_hello *h, uint32_t peer);
/* Called when a worker joins with this HELLO, which tensors_admit has admitted: if the run has no
 * list of tensors, takes over the list of the HELLO. */
void tensors_joined(struct core *c, const struct msg_hello *h);
/* Finds the batchnorms of vector:N in the list, which has been checked, and writes them to
 * c->cfg.running. Batchnorms after the first MAX_BATCHNORMS do not count. Does nothing if the model
 * has layers, because c->cfg.running is then set already. */
void tensors_find_running(struct core *c);

#endif
