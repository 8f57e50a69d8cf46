/* judge.c - see judge.h. */
#include "server/auth/judge.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "common/handoff.h"
#include "common/mem.h"

#define MOST_WAITING 256 /* handshakes at a time; more wait for their next try */

struct judge {
	struct handoff *asked, *answered;
	struct allow *list;
	const char *path;
	judge_read_fn *read;
	uv_thread_t thread;
	atomic_int ended;
	uv_mutex_t mutex; /* held for a signal only, never while the disk is waited for */
	uv_async_t *wake; /* under the mutex; NULL: given up */
};

void question_free(struct question **q)
{
	if (*q)
		allow_free(&(*q)->list);
	free(*q);
	*q = NULL;
}

/* A list that cannot be read changes nothing. */
static void reload(struct judge *j, struct question *q)
{
	struct allow *list;

	if (j->read(&list, j->path, &q->why))
		return;
	if (allow_copy(&q->list, list)) {
		err_set(&q->why, PS_ENOMEM, "%s: no memory", j->path);
		allow_free(&list);
		return;
	}
	allow_free(&j->list);
	j->list = list;
}

static void signal_loop(struct judge *j)
{
	uv_mutex_lock(&j->mutex);
	if (j->wake)
		uv_async_send(j->wake);
	uv_mutex_unlock(&j->mutex);
}

static void run(void *arg)
{
	struct judge *j = arg;
	void *item;

	while (handoff_take(j->asked, &item, UINT64_MAX) == PS_OK) {
		struct question *q = item;

		if (q->reload)
			reload(j, q);
		else
			q->role = allow_role(j->list, q->key);
		if (handoff_put(j->answered, &item)) /* given up */
			question_free(&q);
		signal_loop(j);
	}
	atomic_store(&j->ended, 1);
}

static void release(struct judge **j)
{
	void *item;

	while ((*j)->answered && handoff_take((*j)->answered, &item, 0) == PS_OK) {
		struct question *q = item;
		question_free(&q);
	}
	handoff_free(&(*j)->asked);
	handoff_free(&(*j)->answered);
	allow_free(&(*j)->list);
	uv_mutex_destroy(&(*j)->mutex);
	free(*j);
	*j = NULL;
}

int judge_start(struct judge **out, const struct allow *list, const char *path, judge_read_fn *read,
	uv_async_t *wake)
{
	struct judge *j = mem_try(1, sizeof *j);

	*out = NULL;
	if (!j || uv_mutex_init(&j->mutex)) {
		free(j);
		return PS_ENOMEM;
	}
	j->path = path;
	j->read = read;
	j->wake = wake;
	if (allow_copy(&j->list, list) || handoff_new(&j->asked, MOST_WAITING) ||
		handoff_new(&j->answered, MOST_WAITING) || uv_thread_create(&j->thread, run, j)) {
		release(&j);
		return PS_ENOMEM;
	}
	*out = j;
	return PS_OK;
}

int judge_ask(struct judge *j, struct question **q)
{
	void *item = *q;
	int rc = handoff_put(j->asked, &item);

	if (!rc)
		*q = NULL;
	return rc;
}

struct question *judge_answer(struct judge *j)
{
	void *item;

	return handoff_take(j->answered, &item, 0) == PS_OK ? item : NULL;
}

static void silence(struct judge *j)
{
	uv_mutex_lock(&j->mutex);
	j->wake = NULL;
	uv_mutex_unlock(&j->mutex);
	handoff_close(j->asked);
	handoff_close(j->answered);
}

size_t judge_give_up(struct judge *j, struct judge *heir)
{
	size_t n = 0;
	void *item;

	silence(j);
	while (handoff_take(j->asked, &item, 0) == PS_OK) {
		struct question *q = item;
		n += judge_ask(heir, &q) == PS_OK;
		question_free(&q);
	}
	return n;
}

int judge_ended(const struct judge *j)
{
	return atomic_load(&j->ended);
}

void judge_stop(struct judge **j)
{
	struct judge *gone = *j;

	*j = NULL;
	if (!gone)
		return;
	int given_up = !gone->wake;
	silence(gone);
	if (given_up && !judge_ended(gone))
		return;
	uv_thread_join(&gone->thread);
	release(&gone);
}
