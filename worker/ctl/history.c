/* history.c - see ctl.h: prints the history of a run, and describes checkpoints. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/checkpoint.h"
#include "common/file.h"
#include "common/generation.h"
#include "common/mem.h"
#include "common/plain.h"
#include "common/run_head.h"
#include "worker/ctl/ctl.h"

#define HISTORY_FILE "history.jsonl"
#define MAX_HISTORY  ((size_t)64 << 20)

/* The columns of the CSV. If a line of the history lacks a field, its cell is empty. */
static const char *const plain_columns[] = {"t", "kind", "term", "epoch", "images", "updates",
	"images_per_s", "learning_rate", "loss", "accuracy", "test_loss", "live", "pushes",
	"duplicates", "rejected", "refusals", "generation", "checkpoint_s", "degraded", "worker",
	"change", "name", "host", "device", "status", "resumed", "model", "options"};

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
	int rc = is_dir ? file_check_dir(dir, CTL_RUN_DIR, e)
			: file_check_readable(dir, CTL_RUN_DIR, e);
	if (!rc && is_dir && access(path, F_OK) != 0)
		rc = err_set(e, PS_EDATA, "%.200s: has no " HISTORY_FILE "; " CTL_RUN_DIR, dir);
	if (!rc)
		rc = file_read(path, MAX_HISTORY, &data, &size, e);
	if (rc)
		return rc;
	json_t *list = json_array();
	const char *at = data, *end = at + size;
	while (at < end) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		json_t *o = json_loadb(at, (size_t)((stop ? stop : end) - at), 0, NULL);

		/* skip an incomplete line; the server repairs it at its next start */
		if (json_is_object(o) && json_is_string(json_object_get(o, "kind")))
			json_array_append(list, o);
		json_decref(o);
		at = stop ? stop + 1 : end;
	}
	free(data);
	*lines = list;
	if (json_array_size(list) == 0) {
		json_decref(list);
		*lines = NULL;
		return err_set(e, PS_EDATA, "%s: has no line of a history; " CTL_RUN_DIR, path);
	}
	return PS_OK;
}

/* Returns the number of training images that the run holds back (--validate) and evaluates, or 0 if
 * the run evaluates the test images, or if the history does not say. */
static json_int_t held_back_of(const json_t *lines)
{
	for (size_t i = 0; i < json_array_size(lines); i++) {
		const json_t *o = json_array_get(lines, i),
			     *options = json_object_get(o, "options");

		/* a line that replaces the lost line of a start has no options */
		if (strcmp(json_string_value(json_object_get(o, "kind")), "start") == 0 &&
			json_is_object(options))
			return json_integer_value(json_object_get(options, "validate"));
	}
	return 0;
}

/* ---- history --------------------------------------------------------------------------------- */

/* A worker chooses its name, so the text of a cell must not control a terminal. */
static void print_text_cell(const char *cell)
{
	char text[8192];

	snprintf(text, sizeof(text), "%s", cell);
	plain_text(text, 1);
	if (!strpbrk(text, ",\"\n\r")) {
		fputs(text, stdout);
		return;
	}
	putchar('"');
	for (const char *p = text; *p; p++)
		printf(*p == '"' ? "\"\"" : "%c", *p);
	putchar('"');
}

/* Prints the options of a start as one cell, such as "mode=sync; lr=0.05". */
static void print_options(json_t *options)
{
	char cell[8192] = "";
	const char *name;
	json_t *v;
	size_t at = 0;

	json_object_foreach(options, name, v)
	{
		char *value = json_is_string(v)
				      ? strdup(json_string_value(v))
				      : json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));

		if (value && at < sizeof(cell))
			at += (size_t)snprintf(cell + at, sizeof(cell) - at, "%s%s=%s",
				at ? "; " : "", name, value);
		free(value);
	}
	print_text_cell(cell);
}

static void print_cell(json_t *v)
{
	if (json_is_object(v))
		print_options(v);
	else if (json_is_boolean(v))
		fputs(json_is_true(v) ? "true" : "false", stdout);
	else if (json_is_string(v))
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

/* Returns an object that has the name of each metric of the lines as a key, in the order of their
 * first lines. */
static json_t *metric_names_of(const json_t *lines)
{
	json_t *names = json_object(), *o, *v;
	const char *name;
	size_t i;

	json_array_foreach(lines, i, o) json_object_foreach(json_object_get(o, "metrics"), name, v)(
		void) json_object_set_new(names, name, json_null());
	return names;
}

static void print_heads(json_t *metrics)
{
	const char *name;
	json_t *v;

	for (size_t c = 0; c < N(plain_columns); c++)
		printf("%s%s", c ? "," : "", plain_columns[c]);
	for (size_t c = 0; c < N(server_parts); c++)
		printf(",server_%s_s", server_parts[c]);
	fputs(",staleness", stdout);
	for (size_t c = 0; c < N(worker_parts); c++)
		printf(",%s_percent", worker_parts[c]);
	json_object_foreach(metrics, name, v)
	{
		char head[1024];

		snprintf(head, sizeof(head), "metric_%s", name);
		putchar(',');
		print_text_cell(head);
	}
	putchar('\n');
}

static void print_csv(const json_t *lines)
{
	json_t *metrics = metric_names_of(lines), *v;
	const char *name;

	print_heads(metrics);
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
		json_object_foreach(metrics, name, v)
		{
			putchar(',');
			print_cell(json_object_get(json_object_get(o, "metrics"), name));
		}
		putchar('\n');
	}
	json_decref(metrics);
}

static void print_lines(const json_t *lines)
{
	json_dumpf(lines, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII);
	putchar('\n');
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
		print_lines(lines);
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

/* Prints the results of the line `o` of an epoch, such as "accuracy 97.90 %, test loss 0.1000". */
static void print_evaluation(const json_t *o, int is_validated)
{
	const json_t *accuracy = json_object_get(o, "accuracy");
	const char *name;
	json_t *v;

	if (json_is_number(accuracy))
		printf("accuracy %.2f %%, ", 100 * json_number_value(accuracy));
	json_object_foreach(json_object_get(o, "metrics"), name, v)
	{
		print_text_cell(name);
		if (json_is_number(v))
			printf(" %.6g, ", json_number_value(v));
		else
			fputs(" -, ", stdout);
	}
	printf("%s loss ", is_validated ? "validation" : "test");
	if (json_is_number(json_object_get(o, "test_loss")))
		printf("%.4f", json_number_value(json_object_get(o, "test_loss")));
	else
		putchar('-');
}

/* Prints the last evaluated epoch of the history, if there is one. */
static void show_last_epoch(const char *dir)
{
	const json_t *last = NULL;
	json_int_t held_back;
	json_t *lines;
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
		held_back = held_back_of(lines);
		print_evaluation(last, held_back > 0);
		if (held_back)
			printf(" (%lld held-back images)", (long long)held_back);
		putchar('\n');
	}
	json_decref(lines);
}

/* Returns 1 for the names of the files that --keep writes. */
static int is_kept(const struct dirent *entry)
{
	const char *name = entry->d_name, *number = name + strlen("epoch-");

	if (!strcmp(name, "best.safetensors"))
		return 1;
	return !strncmp(name, "epoch-", strlen("epoch-")) && strspn(number, "0123456789") >= 6 &&
	       !strcmp(number + strspn(number, "0123456789"), ".safetensors");
}

/* Returns 1 if the epoch of line `o` is better than that of `best`, which may be NULL: its accuracy
 * is higher or, without an accuracy, its test loss is lower. */
static int is_better(const json_t *o, const json_t *best)
{
	const char *key = json_is_number(json_object_get(o, "accuracy")) ? "accuracy" : "test_loss";
	const json_t *value = json_object_get(o, key), *before = json_object_get(best, key);

	if (!json_is_number(value) || !json_is_number(before))
		return json_is_number(value) && !best;
	return !strcmp(key, "accuracy") ? json_number_value(value) > json_number_value(before)
					: json_number_value(value) < json_number_value(before);
}

/* Returns the line of the epoch whose weights the file `name` of --keep has: the epoch in the name,
 * or the first one of the best epochs. NULL: the history has no such line. */
static const json_t *line_of_kept(const json_t *lines, const char *name)
{
	json_int_t number = !strncmp(name, "epoch-", strlen("epoch-"))
				    ? strtoll(name + strlen("epoch-"), NULL, 10)
				    : 0;
	const json_t *found = NULL, *o;
	size_t i;

	json_array_foreach(lines, i, o)
	{
		if (strcmp(json_string_value(json_object_get(o, "kind")), "epoch") != 0)
			continue;
		if (number ? json_integer_value(json_object_get(o, "epoch")) == number
			   : is_better(o, found))
			found = o;
	}
	return found;
}

static void show_kept_file(const char *dir, const char *name, const json_t *lines)
{
	const json_t *o = line_of_kept(lines, name);
	char path[4400], written[32] = "-";
	struct stat st = {0};
	struct tm tm;

	snprintf(path, sizeof(path), "%.4000s/%s", dir, name);
	if (stat(path, &st) == 0 && gmtime_r(&st.st_mtime, &tm))
		strftime(written, sizeof(written), "%Y-%m-%d %H:%M:%S", &tm);
	printf("%-26s %-20s %12lld  ", name, written, (long long)st.st_size);
	if (!o) {
		puts("-");
		return;
	}
	printf("epoch %lld, ", (long long)json_integer_value(json_object_get(o, "epoch")));
	print_evaluation(o, held_back_of(lines) > 0);
	putchar('\n');
}

/* Prints the files of --keep, if there are any. */
static void show_kept(const char *dir)
{
	struct dirent **list;
	json_t *lines = NULL;
	struct err e;
	int n = scandir(dir, &list, is_kept, alphasort);

	if (n > 0) {
		printf("\n%-26s %-20s %12s  %s\n", "kept weights", "written (UTC)", "bytes",
			"evaluation");
		if (ctl_history_read(dir, &lines, &e))
			lines = NULL;
	}
	for (int i = 0; i < n; i++) {
		show_kept_file(dir, list[i]->d_name, lines);
		free(list[i]);
	}
	if (n >= 0)
		free(list);
	json_decref(lines);
}

int ctl_show(const struct ctl *ctl, struct err *e)
{
	const char *dir = ctl->args[0];
	uint64_t generation;
	int is_first = 1, rc = file_check_dir(dir, CTL_RUN_DIR, e);

	if (rc)
		return rc;
	DIR *d = opendir(dir);
	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	generation = generation_highest(d, "ckpt", UINT64_MAX);
	if (!generation) {
		closedir(d);
		return err_set(e, PS_ECHECKPOINT, "%s: holds no checkpoint; " CTL_RUN_DIR, dir);
	}
	while (generation) {
		show_one(dir, generation, &is_first);
		generation = generation > 1 ? generation_highest(d, "ckpt", generation - 1) : 0;
	}
	closedir(d);
	show_kept(dir);
	show_last_epoch(dir);
	return PS_OK;
}
