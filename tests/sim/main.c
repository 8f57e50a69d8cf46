/*
 * main.c - the command line of the simulator: it runs seeds and prints verdicts (README.md in this
 * folder).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/clock.h"
#include "common/mem.h"
#include "common/opt.h"
#include "tests/sim/jobs.h"
#include "tests/sim/shrink.h"

#define EVERYTHING ((struct sim_limits){.faults = UINT32_MAX, .strikes_to = UINT64_MAX})

struct arguments {
	const char *seeds, *faults, *strikes;
	int64_t seed, workers, steps, jobs;
	int mode, calm, hostile, older, trace, shrink;
};

/* ---- texts ----------------------------------------------------------------------------------- */

static int parse_range(const char *text, uint64_t *from, uint64_t *to)
{
	char *end;

	*from = strtoull(text, &end, 10);
	if (end == text || strncmp(end, "..", 2) != 0)
		return 0;
	text = end + 2;
	*to = strtoull(text, &end, 10);
	return end != text && *end == '\0' && *from <= *to;
}

/* Parses a list of fault numbers: "all", "none", or numbers separated by commas. */
static int parse_faults(const char *text, uint32_t *faults)
{
	char *end;

	*faults = strcmp(text, "all") == 0 ? UINT32_MAX : 0;
	if (*faults || strcmp(text, "none") == 0)
		return 1;
	for (;; text = end + 1) {
		unsigned long i = strtoul(text, &end, 10);

		if (end == text || i >= SIM_FAULTS || (*end && *end != ','))
			return 0;
		*faults |= 1u << i;
		if (!*end)
			return 1;
	}
}

static void print_faults(const struct sim *s, uint32_t faults)
{
	const char *before = " --faults ";

	for (uint32_t i = 0; i < s->n_faults; i++) {
		if (!(faults >> i & 1))
			continue;
		printf("%s%u", before, i);
		before = ",";
	}
	if (*before == ' ')
		printf(" --faults none");
}

static const char *mode_name(int mode)
{
	static char name[16];
	const char *at = SIM_MODE_NAMES;

	while (mode-- > 0)
		at = strchr(at, '|') + 1;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, "|"), at);
	return name;
}

/* ---- reports --------------------------------------------------------------------------------- */

static void print_command(
	const struct sim *s, const char *program, uint64_t seed, const struct sim_limits *l)
{
	printf("replay: %s --seed %llu --mode %s", program, (unsigned long long)seed,
		mode_name(l->mode));
	if (l->workers)
		printf(" --workers %u", l->workers);
	if (l->steps)
		printf(" --steps %u", l->steps);
	if (l->faults != UINT32_MAX)
		print_faults(s, l->faults);
	if (l->strikes_to != UINT64_MAX)
		printf(" --strikes %llu..%llu", (unsigned long long)l->strikes_from,
			(unsigned long long)l->strikes_to);
	printf("%s%s%s --trace\n", l->calm ? " --calm" : "", l->hostile ? " --hostile" : "",
		l->older ? " --older" : "");
}

/* Prints the seed and its violation. If `shrinks` is 1, also prints the shrunk case and its
 * faults. */
static int failed(const char *program, uint64_t seed, const struct sim_limits *limits, int shrinks)
{
	static struct sim s;
	struct sim_limits l = *limits;
	char text[128];

	sim_init(&s);
	(void)sim_run(&s, seed, &l, 0);
	l.mode = s.mode;
	printf("FAIL seed=%llu mode=%s: %s\n", (unsigned long long)seed, mode_name(s.mode),
		s.violation);
	print_command(&s, program, seed, &l);
	if (shrinks) {
		l = shrink(&s, seed, &l);
		printf("shrunk: %s\n", s.violation);
		for (uint32_t i = 0; i < s.n_faults; i++)
			if (s.fault[i].at_ms != UINT64_MAX)
				printf("  fault %u at %llu ms: %s\n", i,
					(unsigned long long)s.fault[i].at_ms,
					faults_text(&s.fault[i], text, sizeof(text)));
		print_command(&s, program, seed, &l);
	}
	sim_release(&s);
	return 1;
}

static void print_totals(const struct totals *t, double seconds, int64_t jobs)
{
	printf("sim: %llu seeds clean in %.1f s, %.0f seeds/s (%lld jobs)\n",
		(unsigned long long)t->seeds, seconds, (double)t->seeds / seconds, (long long)jobs);
	for (int mode = 1; mode < SIM_MODES; mode++)
		printf("  %s %llu", mode_name(mode), (unsigned long long)t->mode[mode]);
	printf("\n  compared with the run without faults, bit for bit: %llu; with a write-ahead "
	       "log: "
	       "%llu; "
	       "on "
	       "a disk that lied: %llu\n",
		(unsigned long long)t->exact, (unsigned long long)t->wal,
		(unsigned long long)t->broken);
	printf("  servers killed %llu (with power cut %llu), drained %llu; workers killed %llu, "
	       "started twice %llu, hung %llu; partitions %llu; clock leaps %llu\n",
		(unsigned long long)t->crashes, (unsigned long long)t->power_cuts,
		(unsigned long long)t->drains, (unsigned long long)t->worker_crashes,
		(unsigned long long)t->twins, (unsigned long long)t->hangs,
		(unsigned long long)t->cuts, (unsigned long long)t->leaps);
	printf("  workers excluded %llu, quarantined %llu, released %llu; runs that ended as "
	       "diverged %llu\n",
		(unsigned long long)t->excluded, (unsigned long long)t->quarantines,
		(unsigned long long)t->releases, (unsigned long long)t->diverged);
	printf("  false evaluations outvoted %llu, disputed %llu\n",
		(unsigned long long)t->outvoted, (unsigned long long)t->disputes);
	printf("  pushes in shared memory %llu, torn %llu\n", (unsigned long long)t->lane_pushes,
		(unsigned long long)t->torn_pushes);
	if (t->hostile_messages)
		printf("  messages of hostile workers %llu; pushes of theirs accepted %llu\n",
			(unsigned long long)t->hostile_messages,
			(unsigned long long)t->hostile_accepted);
	printf("  messages %llu; disk operations %llu, %llu without space\n",
		(unsigned long long)t->messages, (unsigned long long)t->disk_ops,
		(unsigned long long)t->full);
	printf("  events %llu, %.0f/s; digest %016llx\n", (unsigned long long)t->events,
		(double)t->events / seconds, (unsigned long long)t->digest);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int run_one(const char *program, uint64_t seed, const struct sim_limits *l, int shrinks)
{
	static struct sim s;

	sim_init(&s);
	int rc = sim_run(&s, seed, l, 1);
	sim_release(&s);
	if (rc)
		return failed(program, seed, l, shrinks);
	printf("seed %llu: clean, events %llu, digest %016llx\n", (unsigned long long)seed,
		(unsigned long long)s.events, (unsigned long long)s.digest);
	return 0;
}

static int run_all_seeds(const char *program, uint64_t from, uint64_t to,
	const struct sim_limits *l, const struct arguments *a)
{
	struct jobs_result r;
	double start = clock_seconds();

	jobs_run(&r, from, to, l, (uint32_t)a->jobs);
	if (r.died) {
		printf("FAIL seed=%llu: the simulator died of signal %d (9: it was "
		       "ended, that seed took too long)\nreplay: %s --seed %llu "
		       "--mode %s%s --trace\n",
			(unsigned long long)r.seed, r.died, program, (unsigned long long)r.seed,
			mode_name(l->mode), l->hostile ? " --hostile" : "");
		return 1;
	}
	if (r.failed)
		return failed(program, r.seed, l, a->shrink);
	print_totals(&r.totals, clock_seconds() - start, a->jobs);
	return 0;
}

static int parse_limits(const struct arguments *a, struct sim_limits *l)
{
	*l = EVERYTHING;
	l->mode = a->mode;
	l->workers = (uint32_t)a->workers;
	l->steps = (uint32_t)a->steps;
	l->calm = a->calm;
	l->hostile = a->hostile;
	l->older = a->older;
	return parse_faults(a->faults, &l->faults) &&
	       (strcmp(a->strikes, "all") == 0 ||
		       parse_range(a->strikes, &l->strikes_from, &l->strikes_to));
}

static int run_program(const char *program, const struct arguments *a)
{
	struct sim_limits l;
	uint64_t from, to;

	if (!parse_range(a->seeds, &from, &to) || !parse_limits(a, &l)) {
		fprintf(stderr,
			"sim: --seeds and --strikes are FROM..TO, as in 1..1000; --faults is "
			"all, none or numbers as in 0,3\n");
		return err_exit_code(PS_EUSAGE);
	}
	if (a->seed >= 0)
		from = to = (uint64_t)a->seed;
	if (a->trace)
		return run_one(program, from, &l, a->shrink);
	return run_all_seeds(program, from, to, &l, a);
}

int main(int argc, char **argv)
{
	struct arguments a = {.seed = -1};
	const char *args[2];
	int n_args = 0;
	/* clang-format off */
	const struct opt opts[] = {
		{.name = "seeds", .type = OPT_TEXT, .dest = &a.seeds, .def = "1..1000", .min = 4, .max = 41,
		 .arg = "FROM..TO", .help = "run these seeds"},
		{.name = "seed", .type = OPT_INT, .dest = &a.seed, .min = 0, .max = 9e18, .arg = "N",
		 .help = "run one seed"},
		{.name = "mode", .type = OPT_ENUM, .dest = &a.mode, .def = "any", .values = SIM_MODE_NAMES,
		 .arg = "MODE", .help = "only runs of this mode; any: all of them, by turns"},
		{.name = "jobs", .type = OPT_INT, .dest = &a.jobs, .def = "1", .min = 1, .max = 256,
		 .arg = "N", .help = "processes that share the seeds"},
		{.name = "trace", .type = OPT_FLAG, .dest = &a.trace, .def = "0",
		 .help = "print all that happens in one seed"},
		{.name = "shrink", .type = OPT_FLAG, .dest = &a.shrink, .def = "1",
		 .help = "search for the smallest case that still fails"},
		{.name = "workers", .type = OPT_INT, .dest = &a.workers, .def = "0", .min = 0,
		 .max = SIM_WORKERS, .arg = "N", .help = "workers at most; 0: as the seed says"},
		{.name = "steps", .type = OPT_INT, .dest = &a.steps, .def = "0", .min = 0, .max = 1000,
		 .arg = "N", .help = "pushes or batches at most; 0: as the seed says"},
		{.name = "faults", .type = OPT_TEXT, .dest = &a.faults, .def = "all", .min = 1, .max = 200,
		 .arg = "LIST", .help = "which of the seed's faults happen: all, none or numbers"},
		{.name = "strikes", .type = OPT_TEXT, .dest = &a.strikes, .def = "all", .min = 3, .max = 41,
		 .arg = "FROM..TO", .help = "which losses and doublings of messages happen: all or a range"},
		{.name = "calm", .type = OPT_FLAG, .dest = &a.calm, .def = "0",
		 .help = "messages keep their order and take equal time"},
		{.name = "hostile", .type = OPT_FLAG, .dest = &a.hostile, .def = "0",
		 .help = "workers have keys, and one or two more workers are hostile"},
		{.name = "older", .type = OPT_FLAG, .dest = &a.older, .def = "0",
		 .help = "every second worker has protocol version 6 and sends no codes"},
		{0},
	};
	/* clang-format on */
	const struct opt_program program = {.name = "sim",
		.usage = "[OPTION...]",
		.about = "Whole runs of the server and its workers under seeded faults, in virtual "
			 "time.",
		.opts = opts};

	int rc = opt_parse(&program, argc, argv, args, &n_args);
	if (rc != OPT_RUN)
		return rc == OPT_EXIT ? 0 : err_exit_code(rc);
	mem_keep();
	return run_program(argv[0], &a);
}
