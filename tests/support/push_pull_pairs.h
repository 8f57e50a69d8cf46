/*
 * push_pull_pairs.h - measures pairs of one push and one pull: the loop of one worker, and one row
 * of results for all workers. The two programs of the comparison use this file: transport.c
 * (cnn-ps) and pslite_bench.cc (ps-lite).
 */
#ifndef TESTS_SUPPORT_PUSH_PULL_PAIRS_H
#define TESTS_SUPPORT_PUSH_PULL_PAIRS_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORKERS 16
#define MAX_PAIRS   (1 << 20) /* the maximum number of latencies that are stored for each worker */
#define WARM_UP     20 /* each worker makes at most this number of pairs before the clock starts */
/* The warm-up also ends after this time, because a pair can take long on a slow network. A worker
 * makes at least two pairs in any case. */
#define WARM_UP_SECONDS 5
#define PAIRS_HEAD      "mode,bytes,workers,pairs_per_s,gb_per_s,p50_us,p99_us,cpu_s_per_gb"

#ifdef __cplusplus
extern "C" {
#endif

struct pairs_worker {
	/* numbers of pairs; warm_up: before the start of the clock; pairs: after the start */
	uint64_t warm_up, pairs;
	double seconds, cpu;
	float us[MAX_PAIRS];
};

/* Memory that the processes of a measurement share. Each worker writes only its own part. */
struct pairs {
	int ready[MAX_WORKERS]; /* 1: the worker is connected and has warmed up */
	/* 1: the clock has started, so the workers begin to make measured pairs */
	int go;
	struct pairs_worker worker[MAX_WORKERS];
};

/* Allocate memory that this process shares with its children. Returns NULL if there is no
 * memory. */
void *pairs_share(size_t bytes);

/* Makes one push and one pull. If the function returns a value other than 0, the pair has failed,
 * and the process ends. */
typedef int pair_fn(void *arg);
/* Make pairs in worker `index` for `seconds`, after the warm-up and the start of the clock, and
 * store the measurements in *s. */
void pairs_measure(struct pairs *s, size_t index, double seconds, pair_fn *pair, void *arg);
/* Wait until all workers have warmed up, and start the clock. If a child process ends before the
 * clock starts, this process ends with status 1. */
void pairs_start_clock(struct pairs *s, size_t workers);
void pairs_print(
	const char *mode, const struct pairs *s, size_t bytes, size_t workers, double server_cpu);

#ifdef __cplusplus
}
#endif

#endif
