/* resume_check.c - see resume_check.h. */
#include "server/config/resume_check.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define VALUE 80

struct list {
	char *out;
	size_t size, n;
	int options;
};

static void add(struct list *l, const char *option, const char *then, const char *now)
{
	if (strcmp(then, now) == 0 || l->n >= l->size)
		return;
	int n = snprintf(l->out + l->n, l->size - l->n, "%s%s %s, not %s", l->options ? "; " : "",
		option, then, now);

	l->n += n > 0 ? (size_t)n : 0;
	l->options++;
}

/* Writes the value of an option as a user types it. */
static void typed_value(const struct config_row *row, double v, char out[VALUE])
{
	size_t n;

	if (row->type != CONFIG_ENUM) {
		snprintf(out, VALUE, "%.15g", v);
		return;
	}
	const char *name = config_name(row, v, &n);
	snprintf(out, VALUE, "%.*s", (int)n, name);
}

static void add_option(struct list *l, const struct config_row *row, const struct core_config *then,
	const struct core_config *now)
{
	char option[VALUE], a[VALUE], b[VALUE];

	snprintf(option, sizeof(option), "--%s", row->name);
	typed_value(row, config_value(then, row), a);
	typed_value(row, config_value(now, row), b);
	add(l, option, a, b);
}

/* Returns the value of --metrics as a user types it. In the configuration, "" means "accuracy". */
static const char *typed_metrics(const struct core_config *c)
{
	return c->metrics[0] ? c->metrics : "accuracy";
}

static void add_data(struct list *l, const struct data_id *then, const struct core_config *now)
{
	char a[VALUE], b[VALUE];

	snprintf(a, sizeof(a), "%016" PRIx64 " (%" PRIu32 " training and %" PRIu32 " test images)",
		then->xxh3, then->n_train, then->n_test);
	snprintf(b, sizeof(b), "%016" PRIx64, now->data_id);
	if (now->data_train)
		snprintf(b, sizeof(b), "%016" PRIx64 ":%" PRIu32 ":%" PRIu32, now->data_id,
			now->data_train, now->data_test);
	add(l, "--data-id", a, b);
}

int resume_differences(const struct core_config *then, const struct data_id *data,
	const struct core_config *now, const char *why, char *out, size_t size)
{
	struct list l = {.out = out, .size = size};

	out[0] = '\0';
	for (size_t i = 0; i < config_n_rows; i++) {
		const struct config_row *row = &config_rows[i];
		char option[VALUE];

		if (!row->name)
			continue;
		snprintf(option, sizeof(option), "--%s", row->name);
		/* if --mode differs, do not list options whose defaults depend on --mode */
		int follows = then->training.mode != now->training.mode && strchr(row->def, '=');
		if ((config_row_differs(row, then, now) && !follows) || strstr(why, option))
			add_option(&l, row, then, now);
	}
	add(&l, "--metrics", typed_metrics(then), typed_metrics(now));
	if (strstr(why, "--data-id"))
		add_data(&l, data, now);
	return l.options;
}
