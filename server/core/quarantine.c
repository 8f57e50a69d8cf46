/* quarantine.c - see quarantine.h. */
#include "server/core/quarantine.h"
#include <string.h>
#include "common/assert.h"
#include "server/core/core_state.h"

/* Returns 1 if entry `e` is that of the worker with key `owner` and this name. The keys are
 * compared or, if neither the entry nor the worker has a key, the names. */
static int is_of(const struct quarantine_entry *e, const char *owner, const char *name)
{
	if (owner[0] || e->owner[0])
		return strncmp(e->owner, owner, sizeof(e->owner)) == 0;
	return name[0] && strncmp(e->name, name, sizeof(e->name)) == 0;
}

static uint32_t find_entry(const struct quarantine *q, const char *owner, const char *name)
{
	uint32_t i = 0;

	while (i < q->n && !is_of(&q->entry[i], owner, name))
		i++;
	return i;
}

int quarantine_entry_is_valid(const struct quarantine *q, uint32_t i)
{
	const struct quarantine_entry *e = &q->entry[i];

	for (uint32_t j = 0; j < q->n; j++)
		if (j != i && is_of(&q->entry[j], e->owner, e->name))
			return 0;
	return e->exclusions > 0;
}

static void remove_entry(struct quarantine *q, uint32_t i)
{
	q->n--;
	memmove(&q->entry[i], &q->entry[i + 1], (q->n - i) * sizeof(q->entry[0]));
}

/* Appends an empty entry to the list and returns it. If the list is full, first removes the oldest
 * of the entries with the fewest exclusions. */
static struct quarantine_entry *add_entry(struct quarantine *q)
{
	uint32_t fewest = 0;

	for (uint32_t i = 1; i < q->n; i++)
		if (q->entry[i].exclusions < q->entry[fewest].exclusions)
			fewest = i;
	if (q->n == MAX_QUARANTINE)
		remove_entry(q, fewest);
	q->entry[q->n] = (struct quarantine_entry){.exclusions = 0};
	return &q->entry[q->n++];
}

uint32_t quarantine_count(struct quarantine *q, const char *owner, const char *name)
{
	struct quarantine_entry *e;
	uint32_t i;

	if (!owner[0] && !name[0])
		return 0;
	i = find_entry(q, owner, name);
	e = i < q->n ? &q->entry[i] : add_entry(q);
	memcpy(e->owner, owner, strnlen(owner, sizeof(e->owner) - 1));
	memset(e->name, 0, sizeof(e->name));
	memcpy(e->name, name, strnlen(name, sizeof(e->name) - 1));
	if (e->exclusions < UINT32_MAX)
		e->exclusions++;
	PS_ASSERT(quarantine_entry_is_valid(q, (uint32_t)(e - q->entry))); /* invariant 1 */
	return e->exclusions;
}

int quarantine_has(const struct quarantine *q, const char *owner, const char *name)
{
	uint32_t i = find_entry(q, owner, name);

	return i < q->n && q->entry[i].exclusions >= QUARANTINE_AFTER;
}

static int has_name(const struct quarantine_entry *e, const char *worker)
{
	size_t n = strlen(worker);

	return strcmp(e->name, worker) == 0 ||
	       (n >= QUARANTINE_KEY && n < sizeof(e->owner) && strncmp(e->owner, worker, n) == 0);
}

uint32_t quarantine_release(struct quarantine *q, const char *worker)
{
	uint32_t before = q->n;

	for (uint32_t i = q->n; i-- > 0 && worker[0];)
		if (q->entry[i].exclusions >= QUARANTINE_AFTER && has_name(&q->entry[i], worker))
			remove_entry(q, i);
	return before - q->n;
}

int core_quarantine(const struct core *c, uint32_t i, struct quarantine_view *v)
{
	const struct quarantine *q = &c->quarantine;

	for (uint32_t k = 0; k < q->n; k++) {
		const struct quarantine_entry *e = &q->entry[k];

		if (e->exclusions < QUARANTINE_AFTER || i-- > 0)
			continue;
		*v = (struct quarantine_view){
			.owner = e->owner, .name = e->name, .exclusions = e->exclusions};
		return 1;
	}
	return 0;
}
