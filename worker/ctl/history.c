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

/* The columns of the CSV. A line of the history that lacks a field gets an empty cell. */
static const char *const columns[] = {"t", "kind", "term", "epoch", "images", "updates",
	"images_per_s", "loss", "accuracy", "test_loss", "live", "pushes", "duplicates", "rejected",
	"refusals", "generation", "worker", "change", "name", "host", "status"};

#define N_COLUMNS (sizeof(columns) / sizeof(columns[0]))

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
			json_array_append(list, o); /* else incomplete: the server repairs it */
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

static void print_csv(const json_t *lines)
{
	for (size_t c = 0; c < N_COLUMNS; c++)
		printf("%s%s", c ? "," : "", columns[c]);
	putchar('\n');
	for (size_t i = 0; i < json_array_size(lines); i++) {
		for (size_t c = 0; c < N_COLUMNS; c++) {
			const json_t *v = json_object_get(json_array_get(lines, i), columns[c]);

			if (c)
				putchar(',');
			if (json_is_string(v))
				print_text_cell(json_string_value(v));
			else if (json_is_integer(v))
				printf("%lld", (long long)json_integer_value(v));
			else if (json_is_real(v))
				printf("%.9g", json_real_value(v));
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
		rc = ctl_write_events(ctl->tensorboard, lines, e);
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

/* Print the last evaluated epoch of the history, if there is one. */
static void show_accuracy(const char *dir)
{
	const json_t *last = NULL;
	const char *name;
	json_t *lines, *v;
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
		printf("test loss %.4f\n", json_number_value(json_object_get(last, "test_loss")));
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
