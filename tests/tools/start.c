/*
 * start.c - prints what a start of the server would restore from a checkpoint directory. The
 * program calls the server's own code in this process, without a socket, so it can check many
 * directories a second.
 *
 *   start OPTION... <DIRECTORIES
 *
 * OPTIONs are those of cnn-ps. Each line of stdin names a directory. For each directory the program
 * prints `STATUS RESUMED TERM LAST_SEQ APPLIED`:
 *
 *   STATUS    the status of the restore; if it is not 0, the other numbers are 0, and the reason
 *             follows
 *   RESUMED   1 if the restored core continues from a checkpoint
 *   TERM      the term of the restored core
 *   LAST_SEQ  the newest sequence number of worker 0
 *   APPLIED   n if the first n weights are -1.0 and all others 0; otherwise -1
 *
 * Use a vector:N model with plain SGD at rate 1, and a single worker. Push number n (1, 2, ...) of
 * this worker must have the gradient 1 in the n-th coordinate and 0 elsewhere. If LAST_SEQ then
 * equals APPLIED, weights and ledger are of the same instant.
 */
#include <stdio.h>
#include <string.h>
#include "common/opt.h"
#include "server/config/options.h"
#include "server/durability/startup.h"

static long applied(const float *w, size_t n)
{
	size_t k = 0;

	while (k < n && w[k] == -1.0f)
		k++;
	for (size_t i = k; i < n; i++)
		if (w[i] != 0.0f)
			return -1;
	return (long)k;
}

static void print_start(const struct options *o)
{
	struct startup r;
	struct worker_view worker;
	struct err e;
	int rc = startup(&r, o, &e);

	if (rc) {
		printf("%d 0 0 0 0 %s\n", rc, e.text);
		return;
	}
	const struct core_config *cfg = core_config(r.core);
	core_worker(r.core, 0, &worker);
	printf("0 %d %llu %llu %ld\n", r.resumed, (unsigned long long)cfg->term,
		(unsigned long long)worker.last_seq, applied(core_weights(r.core), cfg->n_params));
	startup_release(&r);
}

int main(int argc, char **argv)
{
	struct options o;
	char dir[4096];

	if (options_parse(&o, argc, argv) != OPT_RUN)
		return 2;
	log_set_level(LOG_ERROR);
	while (fgets(dir, sizeof(dir), stdin)) {
		dir[strcspn(dir, "\n")] = '\0';
		o.checkpoint_dir = dir;
		print_start(&o);
	}
	return 0;
}
