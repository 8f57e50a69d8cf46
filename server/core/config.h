/*
 * config.h - everything that a run is made of: struct core_config, divided by the module that an
 * option belongs to, and config_rows, which describes each option.
 *
 * The options themselves are the rows of options.def.
 */
#ifndef SERVER_CORE_CONFIG_H
#define SERVER_CORE_CONFIG_H
#include <stddef.h>
#include <stdint.h>
#include "proto/msg.h"

/* What a gradient that is tau versions old does to the rate (algorithms: Zhang 2016, arXiv
 * 1511.05950). */
enum staleness_scaling {
	STALE_CONSTANT, /* eta */
	STALE_RELATIVE, /* eta / max(1, tau / live workers): only gradients staler than their share
			   shrink */
	STALE_INVERSE,  /* eta / max(1, tau) */
};
#define STALENESS_SCALING_NAMES "constant|relative|inverse"

/* When an idle worker gets a copy of work that another one has. */
enum backup_copies {
	BACKUP_LATE,      /* when the other one is late, see pace.h */
	BACKUP_IMMEDIATE, /* at once (Dean 2012, Sandblaster) */
	BACKUP_NONE,
};
#define BACKUP_NAMES "late|immediate|none"

#define MODE_NAMES "downpour|ssp|sync|sandblaster|easgd"

enum optim_kind {
	OPTIM_SGD,
	OPTIM_ADAGRAD,
	OPTIM_MOMENTUM,
	OPTIM_NESTEROV,
	OPTIM_RMSPROP,
	OPTIM_ADAM,
	OPTIM_LBFGS, /* lbfgs.h; mode sandblaster only */
	OPTIM_KINDS
};
#define OPTIM_NAMES "sgd|adagrad|momentum|nesterov|rmsprop|adam|lbfgs"

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_COSINE, SCHEDULE_ONECYCLE };
#define SCHEDULE_NAMES "constant|step|cosine|onecycle"

enum lr_scaling {
	LR_SCALING_AUTO,   /* none for the core: the options resolve it */
	LR_SCALING_NONE,   /* 1 */
	LR_SCALING_SQRT,   /* the square root of the ratio */
	LR_SCALING_LINEAR, /* the ratio */
};
#define LR_SCALING_NAMES "auto|none|sqrt|linear"

enum push_kind { PUSH_MEAN, PUSH_SUM };
#define PUSH_NAMES "mean|sum"

/* Zheng 2017: lambda, or lambda / sqrt(mean square of the gradient). */
enum delay_compensation { DC_NONE, DC_CONSTANT, DC_ADAPTIVE };
#define DC_NAMES "none|constant|adaptive"

enum durability { DURABILITY_REPLAY, DURABILITY_ALWAYS };
#define DURABILITY_NAMES "replay|always"

/* clang-format off */
#define GROUP(member, tag, title) struct tag {
#define END(member) };
#define U32(member, field, ...) uint32_t field;
#define U64(member, field, ...) uint64_t field;
#define REAL(member, field, ...) double field;
#define ENUM(member, field, name, def, tag, ...) enum tag field;
#define FLAG(member, field, ...) int field;
#include "server/core/options.def"
/* clang-format on */

struct core_config {
	struct run_id run;
	uint64_t term;       /* of the server: >= 1, one more at every start */
	uint64_t generation; /* newest snapshot there is: the core's first one is generation + 1 */
	int durable; /* snapshots go to a disk; 0: there is none and ACK says durable at once */
	char model[WIRE_MAX_MODEL + 1];
	uint64_t model_fingerprint;
	size_t n_params;
	uint64_t data_id; /* fingerprint that a worker's data set must have, if data_id_given */
	int data_id_given;
#define GROUP(member, tag, title) struct tag member;
#include "server/core/options.def"
};

/* ---- one option ------------------------------------------------------------------------------ */

enum config_type { CONFIG_GROUP, CONFIG_U32, CONFIG_U64, CONFIG_REAL, CONFIG_ENUM, CONFIG_FLAG };

/* Which value may continue a run that was begun with another one. */
enum config_resume {
	RESUME_ANY,
	RESUME_SAME,
	RESUME_SAME_0, /* both 0, or neither */
	RESUME_SAME_1, /* both at most 1, or neither */
};

struct config_row {
	enum config_type type;
	size_t offset; /* of the field in struct core_config */
	const char *name, *def;
	uint32_t name_bytes; /* of the name, without its end */
	double min, max;     /* inclusive; CONFIG_ENUM: the values of the first and last name */
	const char *values;  /* CONFIG_ENUM: "a|b" */
	const char *arg;
	enum config_resume resume;
	const char *help; /* CONFIG_GROUP: the title of the rows that follow */
	const char *was, *needs;
	const char *mismatch; /* a sentence: this option keeps a run from being continued */
};

/* In the order of options.def. */
extern const struct config_row config_rows[];
extern const size_t config_n_rows;

/* The value of `row` in `c`. Whole numbers of options are exact in a double. */
double config_value(const struct core_config *c, const struct config_row *row);
/* 1: this option keeps a run of `then` from being continued by `now`. */
int config_row_differs(const struct config_row *row, const struct core_config *then,
	const struct core_config *now);
/* The first such option; NULL: none. */
const struct config_row *config_differs(
	const struct core_config *then, const struct core_config *now);

struct cursor;
/* Write or read all options, each by its name. An option that is missing when it is read stays as
 * `c` has it; one that is unknown, given twice or out of its range is refused. */
void config_put(struct cursor *k, struct core_config *c);

#endif
