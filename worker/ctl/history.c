/* history.c - see ctl.h: prints the history of a run, and describes checkpoints. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include "common/checkpoint.h"
#include "common/file.h"
#include "common/generation.h"
#include "common/mem.h"
#include "common/run_head.h"
#include "worker/ctl/ctl.h"

#define HISTORY_FILE "history.jsonl"
#define MAX_HISTORY  ((size_t)64 << 20)

/* The columns of the CSV. If a line of the history lacks a field, its cell is empty. */
static const char *const plain_columns[] = {"t", "kind", "term", "epoch", "images", "updates",
	"images_per_s", "learning_rate", "loss", "accuracy", "test_loss", "live", "pushes",
	"duplicates", "rejected", "refusals", "generation", "checkpoint_s", "degraded", "worker",
	"change", "name", "host", "device", "status"};

/* Columns from samples: the seconds of the server's main thread, and the percentages of the
 * workers' time. */
static const char *const server_parts[] = {"apply", "verify", "idle", "total"};
static const char *const worker_parts[] = {"compute", "weights", "push", "lease", "copy"};

#define N(array)        (sizeof(array) / sizeof((array)[0]))
#define STALENESS_FIELD 3 /* index of the staleness in the list of a worker in a sample */
#define PARTS_FIELD     5

int ctl_history_read(const char *dir, json_t **lines, struct err *e)
{
	char path[4096];
	struct stat st;
	void *data;
	size_t size;

	*lines = NULL;
	int is_dir = stat(dir, &st) == 0 && S_ISDIR(st.st_mode);
	snprintf(path, sizeof(path), is_dir ? "%.4000s/" HISTORY_FILE : "%.4000s", dir);
	int rc = file_read(path, MAX_HISTORY, &data, &size, e);
	if (rc)
		return rc;
	json_t *list = json_array();
	const char *at = data, *end = at + size;
	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		json_t *o = json_loadb(at, (size_t)((stop ? stop : end) - at), 0, NULL);

		if (json_is_object(o) && json_is_string(json_object_get(o, "kind")))
			/* an incomplete line is skipped; the server repairs it at its next start */
			json_array_append(list, o);
		json_decref(o);
		at = stop ? stop + 1 : end;
	}
	free(data);
	*lines = list;
	if (json_array_size(list) == 0) {
		json_decref(list);
		*lines = NULL;
		return err_set(e, PS_EDATA, "%s: has no line of a history", path);
	}
	return PS_OK;
}

/* Returns the number of training images that the run holds back (--validate) and evaluates, or 0 if
 * the run evaluates the test images, or if the history does not say. */
static json_int_t held_back_of(const json_t *lines)
{
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *o = json_array_get(lines, i);

		if (strcmp(json_string_value(json_object_get(o, "kind")), "start") == 0)
			return json_integer_value(
				json_object_get(json_object_get(o, "options"), "validate"));
	}
	return 0;
}

/* ---- history --------------------------------------------------------------------------------- */

static void print_text_cell(const char *text)
{
	if (!strpbrk(text, ",\"\n\r")) {
		fputs(text, stdout);
		return;
	}
	putchar('"');
	for (; *text; text++)
		printf(*text == '"' ? "\"\"" : "%c", *text);
	putchar('"');
}

static void print_cell(const json_t *v)
{
	if (json_is_string(v))
		print_text_cell(json_string_value(v));
	else if (json_is_integer(v))
		printf("%lld", (long long)json_integer_value(v));
	else if (json_is_real(v))
		printf("%.9g", json_real_value(v));
}

/* Prints the mean of a field over the workers of a sample that have this field. If the field is an
 * array, `part` is the index in this array. */
static void print_mean(const json_t *workers, size_t field, size_t part)
{
	double sum = 0;
	size_t n = 0;

	for (size_t i = 0; i < json_array_size(workers); i++) {
		const json_t *v = json_array_get(json_array_get(workers, i), field);

		if (json_is_array(v))
			v = json_array_get(v, part);
		if (json_is_number(v)) {
			sum += json_number_value(v);
			n++;
		}
	}
	if (n)
		printf("%.4g", sum / (double)n);
}

static void print_heads(void)
{
	for (size_t c = 0; c < N(plain_columns); c++)
		printf("%s%s", c ? "," : "", plain_columns[c]);
	for (size_t c = 0; c < N(server_parts); c++)
		printf(",server_%s_s", server_parts[c]);
	fputs(",staleness", stdout);
	for (size_t c = 0; c < N(worker_parts); c++)
		printf(",%s_percent", worker_parts[c]);
	putchar('\n');
}

static void print_csv(const json_t *lines)
{
	print_heads();
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *o = json_array_get(lines, i), *time = json_object_get(o, "time"),
			     *workers = json_object_get(o, "workers");

		for (size_t c = 0; c < N(plain_columns); c++) {
			if (c)
				putchar(',');
			print_cell(json_object_get(o, plain_columns[c]));
		}
		for (size_t c = 0; c < N(server_parts); c++) {
			putchar(',');
			print_cell(json_object_get(time, server_parts[c]));
		}
		putchar(',');
		print_mean(workers, STALENESS_FIELD, 0);
		for (size_t c = 0; c < N(worker_parts); c++) {
			putchar(',');
			print_mean(workers, PARTS_FIELD, c);
		}
		putchar('\n');
	}
}

int ctl_history(const struct ctl *ctl, struct err *e)
{
	json_t *lines;
	int rc = ctl_history_read(ctl->args[0], &lines, e);

	if (rc)
		return rc;
	if (ctl->tensorboard)
		rc = ctl_write_events(ctl->tensorboard, lines, held_back_of(lines) > 0, e);
	else if (ctl->format == CTL_JSON)
		json_dumpf(lines, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
	else
		print_csv(lines);
	json_decref(lines);
	return rc;
}

/* ---- show ------------------------------------------------------------------------------------ */

static void print_head(const struct run_head *h)
{
	printf("run %016llx%016llx, model \"%s\"\n\n", (unsigned long long)h->run_hi,
		(unsigned long long)h->run_lo, h->model);
	printf("%-18s %-20s %12s %6s %12s  %s\n", "checkpoint", "written (UTC)", "bytes", "term",
		"version", "state");
}

static void show_one(const char *dir, uint64_t generation, int *is_first)
{
	char name[GENERATION_NAME], path[4200], written[32] = "-";
	struct run_head head = {.model = "?"};
	struct checkpoint c;
	struct stat st;
	struct tm tm;
	struct err e;

	generation_name("ckpt", generation, name);
	snprintf(path, sizeof(path), "%.4000s/%s", dir, name);
	int rc = checkpoint_read(path, &c, &e);
	const struct checkpoint_section *s = rc ? NULL : checkpoint_find(&c, RUN_HEAD_SECTION);
	if (!rc && (!s || run_head_read(s->data, s->size, &head)))
		rc = err_set(&e, PS_ECHECKPOINT, "no run");
	if (stat(path, &st) == 0 && gmtime_r(&st.st_mtime, &tm))
		strftime(written, sizeof(written), "%Y-%m-%d %H:%M:%S", &tm);
	if (*is_first && !rc) {
		print_head(&head);
		*is_first = 0;
	}
	printf("%-18llu %-20s %12lld %6llu %12llu  %s\n", (unsigned long long)generation, written,
		(long long)st.st_size, (unsigned long long)head.term,
		(unsigned long long)head.version, rc ? e.text : "good");
	checkpoint_release(&c);
}

/* Prints the last evaluated epoch of the history, if there is one. */
static void show_accuracy(const char *dir)
{
	const json_t *last = NULL;
	const char *name;
	json_t *lines, *v;
	json_int_t held_back;
	struct err e;

	if (ctl_history_read(dir, &lines, &e))
		return;
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *o = json_array_get(lines, i);

		if (strcmp(json_string_value(json_object_get(o, "kind")), "epoch") == 0)
			last = o;
	}
	if (last) {
		printf("\nepoch %lld: ",
			(long long)json_integer_value(json_object_get(last, "epoch")));
		if (json_is_number(json_object_get(last, "accuracy")))
			printf("accuracy %.2f %%, ",
				100 * json_number_value(json_object_get(last, "accuracy")));
		json_object_foreach(json_object_get(last, "metrics"), name, v)
			printf("%s %.6g, ", name, json_number_value(v));
		held_back = held_back_of(lines);
		printf("%s loss %.4f", held_back ? "validation" : "test",
			json_number_value(json_object_get(last, "test_loss")));
		if (held_back)
			printf(" (%lld held-back images)", (long long)held_back);
		putchar('\n');
	}
	json_decref(lines);
}

int ctl_show(const struct ctl *ctl, struct err *e)
{
	const char *dir = ctl->args[0];
	DIR *d = opendir(dir);
	uint64_t generation;
	int is_first = 1;

	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	generation = generation_highest(d, "ckpt", UINT64_MAX);
	if (!generation) {
		closedir(d);
		return err_set(e, PS_ECHECKPOINT, "%s: holds no checkpoint", dir);
	}
	while (generation) {
		show_one(dir, generation, &is_first);
		generation = generation > 1 ? generation_highest(d, "ckpt", generation - 1) : 0;
	}
	closedir(d);
	show_accuracy(dir);
	return PS_OK;
}
