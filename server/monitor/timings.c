/* timings.c - see timings.h. */
#include "server/monitor/timings.h"
#include <inttypes.h>

/* Returns the upper bound of bucket `i`. */
static double bound_of(int i)
{
	return 1e-6 * (double)(UINT64_C(1) << (2 * i));
}

void timings_add(struct timings *t, enum timing what, double seconds)
{
	int i = 0;

	while (i < TIMING_BUCKETS - 1 && seconds > bound_of(i))
		i++;
	t->of[what].bucket[i]++;
	t->of[what].sum += seconds;
}

void timings_print(const struct timings *t, FILE *f)
{
	static const struct {
		const char *name, *help;
	} row[] = {[TIMING_PULL] = {"pull_seconds",
			   "Work of the server on a PULL, without pulls inside a PUSH."},
		[TIMING_PUSH] = {"push_seconds",
			"Work of the server on a PUSH, with its update and its pull."},
		[TIMING_APPLY] = {"apply_seconds",
			"Decision of the core on an event, with the update of the weights."},
		[TIMING_CHECKPOINT] = {"checkpoint_write_seconds",
			"Time to write a checkpoint, with fsync."},
		[TIMING_WAL] = {"wal_write_seconds",
			"Time to write a group of the write-ahead log, with fsync."}};

	for (int k = 0; k < TIMINGS; k++) {
		uint64_t below = 0;

		fprintf(f, "# HELP cnnps_%s %s\n# TYPE cnnps_%s histogram\n", row[k].name,
			row[k].help, row[k].name);
		for (int i = 0; i < TIMING_BUCKETS; i++) {
			below += t->of[k].bucket[i];
			if (i < TIMING_BUCKETS - 1)
				fprintf(f, "cnnps_%s_bucket{le=\"%.9g\"} %" PRIu64 "\n",
					row[k].name, bound_of(i), below);
		}
		fprintf(f,
			"cnnps_%s_bucket{le=\"+Inf\"} %" PRIu64
			"\ncnnps_%s_sum %.9g\ncnnps_%s_count %" PRIu64 "\n",
			row[k].name, below, row[k].name, t->of[k].sum, row[k].name, below);
	}
}
