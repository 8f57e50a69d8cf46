/* upgrade.c - see upgrade.h. */
#include "server/durability/upgrade.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/log.h"
#include "common/mem.h"
#include "server/core/snapshot_v5.h"
#include "server/durability/wal.h"

struct sections {
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
};

static int find_sections(const struct checkpoint *c, struct sections *s)
{
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *found = checkpoint_find(c, snapshot_names[i]);

		if (!found && !SNAPSHOT_MAY_LACK(i))
			return 0;
		s->data[i] = found ? found->data : NULL;
		s->size[i] = found ? found->size : 0;
	}
	return 1;
}

/* Refuses a checkpoint of release 0.1.0 that a write-ahead log follows, unless --accept-rollback is
 * set. This release cannot read the messages in the records of that log. */
static int check_log(const struct options *o, const struct checkpoint *c, const struct sections *s,
	struct err *e)
{
	if (snapshot_v5_is_final(s->data[SNAPSHOT_SESSIONS], s->size[SNAPSHOT_SESSIONS]))
		return PS_OK;
	int rc = wal_follows(o->checkpoint_dir, c, e);
	if (rc != 1)
		return rc;
	if (!o->core.sessions.accept_rollback)
		return err_set(e, PS_ECHECKPOINT,
			"%.150s: cnn-ps 0.1.0 was killed and left a write-ahead log that this "
			"version "
			"cannot read: start cnn-ps 0.1.0 with this directory once more and stop it "
			"with "
			"SIGTERM, so that a checkpoint holds everything; or give --accept-rollback "
			"to "
			"continue without the log",
			o->checkpoint_dir);
	log_warn("wal", "dropped", "generation=%llu reason=\"written by cnn-ps 0.1.0\"",
		(unsigned long long)c->generation);
	return PS_OK;
}

static void replace_sections(
	struct checkpoint *c, unsigned char *memory, const size_t size[SNAPSHOT_SECTIONS])
{
	free(c->memory);
	c->memory = memory;
	c->n_sections = SNAPSHOT_SECTIONS;
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		c->section[i] = (struct checkpoint_section){.data = memory, .size = size[i]};
		snprintf(c->section[i].name, sizeof(c->section[i].name), "%s", snapshot_names[i]);
		memory += size[i];
	}
}

static int malformed(const struct options *o, const struct checkpoint *c, struct err *e)
{
	return err_set(e, PS_EDATA,
		"%.150s: checkpoint %llu cannot be resumed: a section of it is malformed",
		o->checkpoint_dir, (unsigned long long)c->generation);
}

static int rewrite(
	const struct options *o, struct checkpoint *c, const struct sections *s, struct err *e)
{
	size_t size[SNAPSHOT_SECTIONS], bytes = 0;

	if (snapshot_v5_rewrite(s->data, s->size, &o->core, NULL, size))
		return malformed(o, c, e);
	for (int i = 0; i < SNAPSHOT_SECTIONS; i++)
		bytes += size[i];
	unsigned char *memory = mem_try(bytes, 1);
	if (!memory)
		return err_set(e, PS_ENOMEM, "no memory for a snapshot of %zu bytes", bytes);
	if (snapshot_v5_rewrite(s->data, s->size, &o->core, memory, size)) {
		free(memory);
		return malformed(o, c, e);
	}
	replace_sections(c, memory, size);
	return PS_OK;
}

int upgrade_checkpoint(const struct options *o, struct checkpoint *c, struct err *e)
{
	struct sections s;

	if (!find_sections(c, &s) || !snapshot_v5_is(s.data[SNAPSHOT_RUN], s.size[SNAPSHOT_RUN]))
		return 0;
	int rc = check_log(o, c, &s, e);
	rc = rc ? rc : rewrite(o, c, &s, e);
	if (rc)
		return rc;
	log_info("checkpoint", "upgraded", "generation=%llu from=0.1.0",
		(unsigned long long)c->generation);
	return 1;
}
