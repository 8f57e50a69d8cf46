/*
 * startup.c - see startup.h.
 *
 * The new term is 1 more than the highest term that any start of a server has used with this
 * directory. The server also writes this term to the file TERM, because a bad disk can lose the
 * newest checkpoint and the term that this checkpoint contains.
 */
#include "server/durability/startup.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/checkpoint.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/run_head.h"
#include "common/safetensors.h"
#include "server/core/snapshot.h"
#include "server/durability/upgrade.h"
#include "server/durability/wal.h"
#include "server/config/memory.h"
#include "server/config/resume_check.h"

#define TERM_FILE     "TERM"
#define OLD_TERM_FILE "EPOCH" /* the name of TERM_FILE in release 0.1.0 */
#define MAX_TERM      (UINT64_MAX - 1)
/* The generations of the next checkpoints must not overflow. No run writes this number of
 * checkpoints. */
#define MAX_GENERATION (UINT64_MAX / 2)

/* ---- the term ------------------------------------------------------------------------------- */

static int parse_term(const char *text, size_t n, uint64_t *term)
{
	char digits[32];
	char *end;

	if (n < 2 || n > sizeof(digits) || text[n - 1] != '\n')
		return 0;
	memcpy(digits, text, n - 1);
	digits[n - 1] = '\0';
	if (strspn(digits, "0123456789") != n - 1)
		return 0;
	errno = 0;
	*term = strtoull(digits, &end, 10);
	return errno == 0 && *term < MAX_TERM;
}

/* Reads the term from file `name` of the directory. Sets *term to 0 if there is no such file. */
static int read_term_file(const char *dir, const char *name, uint64_t *term, struct err *e)
{
	char path[4096 + 16];
	void *text;
	size_t n;

	*term = 0;
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (access(path, F_OK) != 0 && errno == ENOENT)
		return PS_OK;
	int rc = file_read(path, 64, &text, &n, e);
	if (rc)
		return rc;
	rc = parse_term(text, n, term) ? PS_OK
				       : err_set(e, PS_ECHECKPOINT,
						 "%s is not one number: remove it only if no "
						 "worker of this run is running",
						 path);
	free(text);
	return rc;
}

/* Reads the highest term of this directory, or 0 if the directory has none. */
static int read_term(const char *dir, uint64_t *term, struct err *e)
{
	uint64_t old;
	int rc = read_term_file(dir, TERM_FILE, term, e);

	rc = rc ? rc : read_term_file(dir, OLD_TERM_FILE, &old, e);
	if (rc == PS_OK && old > *term)
		*term = old;
	return rc;
}

/* Writes the file TERM. If the disk is full, the function removes the oldest generations, but never
 * generation `sound`, from which the run continues. */
static int write_term(const char *dir, uint64_t term, uint64_t sound, struct err *e)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)term), rc;
	const struct file_part part = {text, (size_t)n};
	uint64_t dropped;

	while ((rc = file_replace(dir, TERM_FILE, &part, 1, e)) != 0 && file_no_space(errno)) {
		dropped = checkpoint_make_space(dir, sound, UINT64_MAX);
		if (!dropped)
			return rc;
		log_warn("checkpoint", "dropped",
			"generation=%llu reason=\"no space for the term of this start\"",
			(unsigned long long)dropped);
	}
	return rc;
}

/* ---- a new run --------------------------------------------------------------------------- */

static int new_run_id(struct run_id *run, struct err *e)
{
	do {
		if (getrandom(run, sizeof(*run), 0) != (ssize_t)sizeof(*run))
			return err_set(e, PS_EIO, "getrandom: %s", strerror(errno));
	} while (run->hi == 0 && run->lo == 0);
	return PS_OK;
}

/* Makes the secret of a new run. The secret of a resumed run is in its checkpoint. */
static int new_proof_key(struct core_config *cfg, struct err *e)
{
	do {
		if (getrandom(cfg->proof_key, sizeof(cfg->proof_key), 0) !=
			(ssize_t)sizeof(cfg->proof_key))
			return err_set(e, PS_EIO, "getrandom: %s", strerror(errno));
	} while ((cfg->proof_key[0] | cfg->proof_key[1]) == 0);
	return PS_OK;
}

/* Reads the initial weights, and for vector:N the list of its tensors. */
static int read_init(const struct options *o, float *weights, char **tensors, struct err *e)
{
	return o->model.n_layers ? safetensors_read(o->init, &o->model, weights, e)
				 : safetensors_read_vector(o->init, &o->model, weights, tensors, e);
}

static int begin_core(
	struct startup *out, const struct core_config *cfg, const char *tensors, struct err *e)
{
	const char *why;
	size_t line = 0;

	out->core = core_init(out->memory, cfg, param_buffers_first(out->params));
	why = tensors ? core_name_tensors(out->core, tensors, &line) : NULL;
	return why ? err_set(e, PS_EDATA, "--init: the list of tensors, line %zu: %s", line, why)
		   : PS_OK;
}

static int begin_run(
	struct startup *out, const struct options *o, struct core_config *cfg, struct err *e)
{
	float *weights = param_buffers_first(out->params);
	char *tensors = NULL;
	int rc = new_run_id(&cfg->run, e);

	if (!rc)
		rc = new_proof_key(cfg, e);
	if (!rc && o->init && !o->unknown_images)
		rc = read_init(o, weights, &tensors, e);
	else
		model_init(&o->model, cfg->training.seed, weights);
	if (!rc)
		rc = begin_core(out, cfg, tensors, e);
	free(tensors);
	return rc;
}

/* ---- a run that is resumed ------------------------------------------------------------------- */

static const char *other_model(const struct run_head *head, const struct options *o)
{
	return strcmp(head->model, o->core.model) != 0 ? head->model : NULL;
}

/* This status means that a checkpoint has correct checksums but inconsistent content, so that an
 * older checkpoint may be usable. */
#define REFUSED PS_EDATA

/* Sets the error after snapshot_decode returned `rc`. Returns REFUSED, or PS_ECHECKPOINT if the
 * options of this start do not fit the run. */
static int refuse_resume(
	const struct options *o, const struct checkpoint *c, int rc, const char *why, struct err *e)
{
	const struct checkpoint_section *live =
		checkpoint_find(c, snapshot_names[SNAPSHOT_SESSIONS]);
	const struct checkpoint_section *leases =
		checkpoint_find(c, snapshot_names[SNAPSHOT_LEASES]);
	const struct checkpoint_section *metrics =
		checkpoint_find(c, snapshot_names[SNAPSHOT_METRICS]);
	struct core_config then = o->core;
	struct data_id data;
	char options[256];

	/* "" if the section is missing, because release 0.2.0 had no metrics but accuracy */
	then.metrics[0] = '\0';
	if (rc == PS_EUSAGE && snapshot_config(live->data, live->size, &then) == 0 &&
		snapshot_data_id(leases->data, leases->size, &data) == 0 &&
		(!metrics || snapshot_metrics(metrics->data, metrics->size, then.metrics) == 0) &&
		resume_differences(&then, &data, &o->core, why, options, sizeof(options)) > 0)
		return err_set(e, PS_ECHECKPOINT, "%.150s: its run has %s: " RESUME_REMEDY,
			o->checkpoint_dir, options);
	return err_set(e, rc == PS_EUSAGE ? PS_ECHECKPOINT : REFUSED,
		"%.150s: checkpoint %llu cannot be resumed: %s", o->checkpoint_dir,
		(unsigned long long)c->generation, why);
}

static int resume(struct startup *out, const struct options *o, const struct checkpoint *c,
	const struct core_config *cfg, struct err *e)
{
	const unsigned char *data[SNAPSHOT_SECTIONS];
	size_t size[SNAPSHOT_SECTIONS];
	const char *why;

	for (int i = 0; i < SNAPSHOT_SECTIONS; i++) {
		const struct checkpoint_section *s = checkpoint_find(c, snapshot_names[i]);

		if (!s && !SNAPSHOT_MAY_LACK(i))
			return err_set(e, REFUSED, "%s: checkpoint %llu has no section %s",
				o->checkpoint_dir, (unsigned long long)c->generation,
				snapshot_names[i]);
		data[i] = s ? s->data : NULL;
		size[i] = s ? s->size : 0;
	}
	int rc = snapshot_decode(
		out->memory, param_buffers_first(out->params), cfg, data, size, &out->core, &why);
	if (rc)
		return refuse_resume(o, c, rc, why, e);
	out->resumed = 1;
	return PS_OK;
}

static int read_run_head(
	const struct checkpoint *c, const struct options *o, struct run_head *head, struct err *e)
{
	const struct checkpoint_section *s = checkpoint_find(c, RUN_HEAD_SECTION);

	if (!s || run_head_read(s->data, s->size, head) != 0 || head->term >= MAX_TERM)
		return err_set(e, REFUSED, "%s: checkpoint %llu was not written by a server",
			o->checkpoint_dir, (unsigned long long)c->generation);
	if (other_model(head, o))
		return err_set(e, PS_ECHECKPOINT,
			"%.100s: its run has --model \"%.140s\", not \"%.140s\": " RESUME_REMEDY,
			o->checkpoint_dir, head->model, o->core.model);
	return PS_OK;
}

/* Without --norm-ratio, a run without a data set keeps the ratio with which its checkpoint was
 * written, because releases up to 0.2.0 compared no gradients. With --store cuda:N the ratio would
 * also decide whether gradients go from GPU to GPU, so there the default of this start applies. */
static void keep_norm_ratio(
	struct core_config *cfg, const struct options *o, const struct checkpoint *c)
{
	const struct checkpoint_section *live =
		checkpoint_find(c, snapshot_names[SNAPSHOT_SESSIONS]);
	struct core_config then = o->core;

	if (o->norm_ratio_given || cfg->training.epochs > 0 || o->store_gpu >= 0)
		return;
	then.limits.norm_ratio = 0; /* the value for a release without the option */
	if (live && snapshot_config(live->data, live->size, &then) == PS_OK)
		cfg->limits.norm_ratio = then.limits.norm_ratio;
}

/* ---- the whole start ----------------------------------------------------------------------- */

/* Builds the core from `c`, sets the new term and writes the term to the file TERM. If `c` is
 * empty, begins a new run. */
static int build_run(struct startup *out, const struct options *o, const struct checkpoint *c,
	uint64_t newest_seen, struct err *e)
{
	struct core_config cfg = o->core;
	struct run_head head = {0};
	uint64_t term;
	int rc = read_term(o->checkpoint_dir, &term, e);

	keep_norm_ratio(&cfg, o, c);
	if (!rc && c->generation)
		/* resume() uses this secret if the checkpoint, of release 0.2.0, has none */
		rc = new_proof_key(&cfg, e);
	if (!rc && c->generation)
		rc = read_run_head(c, o, &head, e);
	if (rc)
		return rc;
	cfg.term = 1 + (term > head.term ? term : head.term);
	cfg.generation = newest_seen + 1; /* checkpointer_write writes this generation */
	rc = c->generation ? resume(out, o, c, &cfg, e) : begin_run(out, o, &cfg, e);
	if (!rc)
		rc = write_term(o->checkpoint_dir, cfg.term, c->generation, e);
	if (!rc)
		out->written_term = cfg.term;
	return rc;
}

/* Checks the content of a checkpoint before the replay of the log that follows it. */
static int check_content(
	struct startup *out, const struct options *o, const struct checkpoint *c, struct err *e)
{
	struct run_head head = {0};
	struct core_config cfg = o->core;
	int rc = read_run_head(c, o, &head, e);

	if (rc)
		return rc;
	cfg.term = head.term + 1;
	return resume(out, o, c, &cfg, e);
}

static int resume_from(struct startup *out, const struct options *o, struct checkpoint *c,
	uint64_t newest_seen, struct err *e)
{
	int upgraded = upgrade_checkpoint(o, c, e);
	int has_log = !upgraded && wal_newest_file(o->checkpoint_dir) > 0;
	/* if no log follows the checkpoint, build_run checks the content */
	int rc = upgraded < 0 ? upgraded : has_log ? check_content(out, o, c, e) : PS_OK;

	if (!rc && has_log)
		rc = wal_replay(o->checkpoint_dir, &o->core, c, e);
	return rc ? rc : build_run(out, o, c, newest_seen, e);
}

/* Resumes from `c`, or from the newest older generation with good content. */
static int resume_from_newest(struct startup *out, const struct options *o, struct checkpoint *c,
	uint64_t newest_seen, struct err *e)
{
	int rc, refused = 0;

	while ((rc = resume_from(out, o, c, newest_seen, e)) == REFUSED) {
		uint64_t generation = c->generation;

		log_warn("checkpoint", "refused", "generation=%llu reason=\"%s\"",
			(unsigned long long)generation, e->text);
		refused++;
		checkpoint_release(c);
		rc = checkpoint_read_older(o->checkpoint_dir, generation, c, e);
		if (rc)
			return rc;
		if (!c->generation)
			return err_set(e, PS_ECHECKPOINT,
				"%s: none of its checkpoints can be resumed; the last refusal: "
				"%s",
				o->checkpoint_dir, e->text);
	}
	out->sound = rc ? 0 : c->generation;
	if (!rc && refused)
		log_warn("checkpoint", "fallback", "generation=%llu refused=%d",
			(unsigned long long)c->generation, refused);
	return rc;
}

/* Fails if `newest`, the highest generation in the names of the directory's files, is too high. */
static int check_generation(const char *dir, uint64_t newest, struct err *e)
{
	if (newest <= MAX_GENERATION)
		return PS_OK;
	return err_set(e, PS_ECHECKPOINT,
		"%.150s: a file has generation %016llx in its name, which no run reaches: remove "
		"this file",
		dir, (unsigned long long)newest);
}

static int from_directory(struct startup *out, const struct options *o, struct err *e)
{
	struct checkpoint c = {0};
	uint64_t newest_seen = 0;
	int rc = checkpoint_read_newest(o->checkpoint_dir, 1, &c, &newest_seen, e);

	if (wal_newest_file(o->checkpoint_dir) > newest_seen)
		newest_seen = wal_newest_file(o->checkpoint_dir);
	if (!rc)
		rc = check_generation(o->checkpoint_dir, newest_seen, e);
	/* discard the checkpoint of the old run, which has accepted no push */
	if (!rc && o->new_run)
		checkpoint_release(&c);
	if (!rc)
		rc = c.generation ? resume_from_newest(out, o, &c, newest_seen, e)
				  : build_run(out, o, &c, newest_seen, e);
	checkpoint_release(&c);
	return rc;
}

static int lock(struct startup *out, const struct options *o, struct err *e)
{
	const char *dir = o->checkpoint_dir;
	struct stat st;
	int is_new = dir && (o->made_checkpoint_dir || stat(dir, &st) != 0);
	int rc = dir ? file_make_dir(dir, e) : PS_OK;

	if (!rc && is_new)
		out->made = dir;
	return rc || !dir ? rc : file_lock_dir(dir, &out->lock_fd, e);
}

void startup_undo(const struct startup *r)
{
	char path[4096];

	if (!r->made || r->lock_fd < 0 || strlen(r->made) + sizeof("/LOCK") > sizeof(path))
		return;
	snprintf(path, sizeof(path), "%s/LOCK", r->made);
	(void)unlink(path);
	(void)rmdir(r->made); /* rmdir keeps a directory that has other files */
}

int startup_open(struct startup *out, const struct options *o, struct err *e)
{
	int rc;

	*out = (struct startup){.lock_fd = -1};
	out->memory_bytes = core_bytes(&o->core);
	out->memory = mem_lazy(out->memory_bytes);
	if (!out->memory)
		rc = err_set(e, PS_ENOMEM, "no address space for a core of %zu bytes",
			out->memory_bytes);
	else if (param_buffers_new(&out->params, o->core.n_params, memory_lane_buffers(o)))
		rc = err_set(e, PS_ENOMEM, "no memory for %zu weights", o->core.n_params);
	else
		rc = lock(out, o, e);
	if (rc)
		startup_release(out);
	else
		param_buffers_use_engine(out->params, o->core.engine);
	return rc;
}

int startup_core(struct startup *out, const struct options *o, struct err *e)
{
	struct core_config cfg = o->core;

	cfg.term = 1;
	int rc = o->checkpoint_dir && !o->unknown_images ? from_directory(out, o, e)
							 : begin_run(out, o, &cfg, e);
	if (!rc)
		param_buffers_use_core(out->params, out->core);
	return rc;
}

int startup(struct startup *out, const struct options *o, struct err *e)
{
	int rc = startup_open(out, o, e);

	if (rc)
		return rc;
	rc = startup_core(out, o, e);
	if (rc)
		startup_release(out);
	return rc;
}

void startup_release(struct startup *r)
{
	param_buffers_free(&r->params);
	mem_lazy_free(r->memory, r->memory_bytes);
	if (r->lock_fd >= 0)
		close(r->lock_fd);
	*r = (struct startup){.lock_fd = -1};
}
