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
#include "common/number_text.h"
#include "common/plain.h"
#include "common/run_head.h"
#include "common/safetensors.h"
#include "worker/ctl/ctl.h"

#define HISTORY_FILE "history.jsonl"
#define MAX_HISTORY  ((size_t)64 << 20)

/* The columns of the CSV. If a line of the history lacks a field, its cell is empty. */
static const char *const plain_columns[] = {"t", "kind", "term", "epoch", "images", "updates",
	"images_per_s", "learning_rate", "loss", "accuracy", "test_loss", "live", "pushes",
	"duplicates", "rejected", "refusals", "generation", "checkpoint_s", "degraded", "worker",
	"change", "name", "host", "device", "status", "resumed", "model", "options", "stop_reason"};

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

static int print_lines(const json_t *lines, struct err *e)
{
	if (ctl_print_json(lines, JSON_INDENT(1) | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII, ""))
		return err_set(e, PS_ENOMEM, "no memory for the history");
	putchar('\n');
	return PS_OK;
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
		rc = print_lines(lines, e);
	else
		print_csv(lines);
	json_decref(lines);
	return rc;
}

/* ---- show ------------------------------------------------------------------------------------ */

/* Prints the first columns of a row, up to the column of the state: the name of the file, the time
 * at which it was written, and its size. `path` is the path of the file. */
static void print_file(FILE *out, const char *path, const char *name)
{
	char written[32] = "-";
	struct stat st = {0};
	struct tm tm;

	if (stat(path, &st) == 0 && gmtime_r(&st.st_mtime, &tm))
		strftime(written, sizeof(written), "%Y-%m-%d %H:%M:%S", &tm);
	fprintf(out, "%-24s %-19s %12lld", name, written, (long long)st.st_size);
}

/* Prints why the file cannot be used. The text of the error begins with the path of the file, which
 * this function leaves out. */
static void print_damage(FILE *out, const char *path, const struct err *e)
{
	const size_t n = strlen(path);
	const int has_path = !strncmp(e->text, path, n) && !strncmp(e->text + n, ": ", 2);
	char why[sizeof(e->text)];

	snprintf(why, sizeof(why), "%s", e->text + (has_path ? n + 2 : 0));
	plain_text(why, 0);
	fprintf(out, " %6s %12s  %s: %s\n", "-", "-",
		e->status == PS_EIO || e->status == PS_ENOMEM ? "unreadable" : "damaged", why);
}

/* Prints the row of a checkpoint to `out`. Sets `head` if it is empty and the checkpoint is
 * undamaged. */
static void show_checkpoint(FILE *out, const char *dir, uint64_t generation, struct run_head *head)
{
	char name[GENERATION_NAME], path[4200];
	struct run_head found = {0};
	struct checkpoint c;
	struct err e;

	generation_name("ckpt", generation, name);
	snprintf(path, sizeof(path), "%.4000s/%s", dir, name);
	int rc = checkpoint_read(path, &c, &e);
	const struct checkpoint_section *s = rc ? NULL : checkpoint_find(&c, RUN_HEAD_SECTION);
	if (!rc && (!s || run_head_read(s->data, s->size, &found)))
		rc = err_set(&e, PS_ECHECKPOINT, "it names no run");
	print_file(out, path, name);
	if (rc)
		print_damage(out, path, &e);
	else
		fprintf(out, " %6llu %12llu  %s\n", (unsigned long long)found.term,
			(unsigned long long)found.version, head->model[0] ? "older" : "newest");
	if (!rc && !head->model[0])
		*head = found;
	checkpoint_release(&c);
}

/* Prints the heading, which names the run of the newest undamaged checkpoint, and a row for each
 * checkpoint in `d`. */
static int show_checkpoints(DIR *d, const char *dir, uint64_t generation, struct err *e)
{
	struct run_head head = {.model = ""};
	char *rows = NULL;
	size_t size;
	FILE *out = open_memstream(&rows, &size);

	if (!out)
		return err_set(e, PS_ENOMEM, "no memory for the list of checkpoints");
	while (generation) {
		show_checkpoint(out, dir, generation, &head);
		generation = generation > 1 ? generation_highest(d, "ckpt", generation - 1) : 0;
	}
	if (fclose(out)) {
		free(rows);
		return err_set(e, PS_ENOMEM, "no memory for the list of checkpoints");
	}
	if (head.model[0]) {
		printf("run %016llx%016llx, model \"", (unsigned long long)head.run_hi,
			(unsigned long long)head.run_lo);
		ctl_print_plain(head.model);
		puts("\"\n");
	} else {
		puts("no undamaged checkpoint, so no start continues this run\n");
	}
	printf("%-24s %-19s %12s %6s %12s  %s\n%s", "file", "written (UTC)", "bytes", "term",
		"version", "state", rows);
	free(rows);
	return PS_OK;
}

/* Prints the results of the line `o` of an epoch, such as "accuracy 97.90 %, test loss 0.1000". */
static void print_evaluation(const json_t *o, int is_validated)
{
	const json_t *accuracy = json_object_get(o, "accuracy");
	char text[NUMBER_TEXT];
	const char *name;
	json_t *v;

	if (json_is_number(accuracy))
		printf("accuracy %.2f %%, ", 100 * json_number_value(accuracy));
	json_object_foreach(json_object_get(o, "metrics"), name, v)
	{
		ctl_print_plain(name);
		if (json_is_number(v))
			printf(" %.6g, ", json_number_value(v));
		else
			fputs(" -, ", stdout);
	}
	printf("%s loss ", is_validated ? "validation" : "test");

	const json_t *loss = json_object_get(o, "test_loss");

	fputs(json_is_number(loss) ? number_text_loss(json_number_value(loss), text) : "-", stdout);
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

/* Returns the results of the epoch whose weights the file has: the results in the metadata of the
 * file or, if there are none, the history's line of the epoch that is in the name of the file.
 * NULL: unknown. The caller releases the results. */
static json_t *results_of_kept(const json_t *lines, const char *path, json_int_t number)
{
	char *text = NULL;
	json_t *found, *o;
	struct err e;
	size_t i;

	found = !safetensors_evaluation(path, &text, &e) && text ? json_loads(text, 0, NULL) : NULL;
	free(text);
	if (json_is_object(found))
		return found;
	json_decref(found);
	json_array_foreach(lines, i, o)
	{
		if (strcmp(json_string_value(json_object_get(o, "kind")), "epoch") == 0 &&
			json_integer_value(json_object_get(o, "epoch")) == number)
			return json_incref(o);
	}
	return NULL;
}

/* Returns PS_OK if the file has the weights of a model. */
static int check_kept(const char *path, struct err *e)
{
	const struct ctl ctl = {.weights = path};
	struct ctl_weights *w = mem_must(1, sizeof(*w), "show");
	int rc = ctl_weights_load(&ctl, 0, w, e);

	ctl_weights_release(w);
	free(w);
	return rc;
}

static void show_kept_file(const char *dir, const char *name, const json_t *lines)
{
	const int is_best = !strncmp(name, "best", strlen("best"));
	const json_int_t number = is_best ? 0 : strtoll(name + strlen("epoch-"), NULL, 10);
	char path[4400];
	json_t *o;
	struct err e;

	snprintf(path, sizeof(path), "%.4000s/%s", dir, name);
	print_file(stdout, path, name);
	if (check_kept(path, &e)) {
		print_damage(stdout, path, &e);
		return;
	}
	o = results_of_kept(lines, path, number);
	printf(" %6s %12s  kept%s epoch ", "-", "-", is_best ? " best," : "");
	if (o)
		printf("%lld, ", (long long)json_integer_value(json_object_get(o, "epoch")));
	else if (is_best)
		printf("unknown");
	else
		printf("%lld", (long long)number);
	if (o)
		print_evaluation(o, json_object_get(o, "validate")
					    ? json_integer_value(json_object_get(o, "validate")) > 0
					    : held_back_of(lines) > 0);
	putchar('\n');
	json_decref(o);
}

/* Prints a row for each file of --keep. */
static void show_kept(const char *dir)
{
	struct dirent **list;
	json_t *lines = NULL;
	struct err e;
	int n = scandir(dir, &list, is_kept, alphasort);

	if (n > 0 && ctl_history_read(dir, &lines, &e))
		lines = NULL;
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
	int rc = file_check_dir(dir, CTL_RUN_DIR, e);

	if (rc)
		return rc;
	DIR *d = opendir(dir);
	if (!d)
		return err_set(e, PS_EIO, "%s: open directory: %s", dir, strerror(errno));
	generation = generation_highest(d, "ckpt", UINT64_MAX);
	if (generation)
		rc = show_checkpoints(d, dir, generation, e);
	else
		rc = err_set(e, PS_ECHECKPOINT, "%s: holds no checkpoint; " CTL_RUN_DIR, dir);
	closedir(d);
	if (rc)
		return rc;
	show_kept(dir);
	show_last_epoch(dir);
	return PS_OK;
}
