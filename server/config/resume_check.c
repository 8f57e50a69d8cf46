/* resume_check.c - see resume_check.h. */
#include "server/config/resume_check.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "server/config/mode_options.h"

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

static void add_number(struct list *l, const char *option, uint64_t then, uint64_t now)
{
	char a[VALUE], b[VALUE];

	snprintf(a, sizeof(a), "%" PRIu64, then);
	snprintf(b, sizeof(b), "%" PRIu64, now);
	add(l, option, a, b);
}

/* The i-th of an option's names, "a|b|c". */
static const char *nth(const char *names, int i, char value[VALUE])
{
	for (; i > 0 && strchr(names, '|'); i--)
		names = strchr(names, '|') + 1;
	snprintf(value, VALUE, "%.*s", (int)strcspn(names, "|"), names);
	return value;
}

static void add_name(struct list *l, const char *option, const char *names, int then, int now)
{
	char a[VALUE], b[VALUE];

	add(l, option, nth(names, then, a), nth(names, now, b));
}

static int delay_of(const struct core_config *c)
{
	return c->dc.lambda > 0 ? 1 + (c->dc.adaptive != 0) : 0;
}

static void add_mode(struct list *l, const struct core_config *then, const struct core_config *now)
{
	if (then->training.mode != now->training.mode) {
		add_name(l, "--mode", MODE_NAMES, (int)then->training.mode - 1,
			(int)now->training.mode - 1);
		return;
	}
	add_name(l, "--optimizer", OPTIM_NAMES, (int)then->optim.kind, (int)now->optim.kind);
	add_name(l, "--push", PUSH_NAMES, then->push.sum, now->push.sum);
	add_number(l, "--step-images", then->sandblaster.step_images, now->sandblaster.step_images);
	add_number(l, "--lbfgs-history", then->lbfgs.history, now->lbfgs.history);
	if ((then->push.buffer_size > 1) != (now->push.buffer_size > 1))
		add_number(l, "--buffer-size", then->push.buffer_size, now->push.buffer_size);
	add_name(l, "--delay-compensation", DELAY_NAMES, delay_of(then), delay_of(now));
}

static void add_data(struct list *l, const struct data_id *then, const struct core_config *now)
{
	char a[VALUE], b[VALUE];

	snprintf(a, sizeof(a), "%016" PRIx64 " (%" PRIu32 " training and %" PRIu32 " test images)",
		then->xxh3, then->n_train, then->n_test);
	snprintf(b, sizeof(b), "%016" PRIx64, now->data_id);
	add(l, "--data-id", a, b);
}

int resume_differences(const struct core_config *then, const struct data_id *data,
	const struct core_config *now, const char *why, char *out, size_t size)
{
	struct list l = {.out = out, .size = size};

	out[0] = '\0';
	add_number(&l, "--seed", then->training.seed, now->training.seed);
	add_number(&l, "--batch-size", then->training.batch_size, now->training.batch_size);
	add_mode(&l, then, now);
	if (strstr(why, "--epochs"))
		add_number(&l, "--epochs", then->training.epochs, now->training.epochs);
	if (strstr(why, "--max-workers"))
		add_number(
			&l, "--max-workers", then->sessions.max_workers, now->sessions.max_workers);
	if (strstr(why, "--data-id"))
		add_data(&l, data, now);
	return l.options;
}
