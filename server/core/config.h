/*
 * config.h - the configuration of a run: struct core_config, with a group of fields for each
 * module, and config_rows, which describes each option. The file options.def has a row for each
 * option.
 */
#ifndef SERVER_CORE_CONFIG_H
#define SERVER_CORE_CONFIG_H
#include <stddef.h>
#include <stdint.h>
#include "common/engine.h"
#include "common/param_device.h"
#include "proto/msg.h"

/* Says how the learning rate of a gradient depends on tau, the number of versions that the gradient
 * is old (Zhang 2016, arXiv 1511.05950). eta is the learning rate of a gradient with tau 0. */
enum staleness_scaling {
	STALE_CONSTANT, /* the rate is always eta */
	/* the rate is eta / max(1, tau / live workers): it is lower than eta only for a gradient
	 * whose tau exceeds the number of live workers */
	STALE_RELATIVE,
	STALE_INVERSE, /* the rate is eta / max(1, tau) */
};
#define STALENESS_SCALING_NAMES "constant|relative|inverse"

/* Says when an idle worker gets a copy of work that another worker holds. */
enum backup_copies {
	BACKUP_LATE, /* when the other worker is late (pace.h) */
	/* at once, even if the other worker is not late (Dean 2012, Sandblaster) */
	BACKUP_IMMEDIATE,
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
	OPTIM_LBFGS, /* see lbfgs.h; only in mode sandblaster */
	OPTIM_KINDS
};
#define OPTIM_NAMES "sgd|adagrad|momentum|nesterov|rmsprop|adam|lbfgs"

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_COSINE, SCHEDULE_ONECYCLE };
#define SCHEDULE_NAMES "constant|step|cosine|onecycle"

enum lr_scaling {
	LR_SCALING_AUTO, /* the options module replaces this value before the core reads it */
	LR_SCALING_NONE, /* the rate does not change */
	/* the rate is multiplied by the square root of the ratio that optim.h defines */
	LR_SCALING_SQRT,
	LR_SCALING_LINEAR, /* the rate is multiplied by this ratio */
};
#define LR_SCALING_NAMES "auto|none|sqrt|linear"

/* the rules of aggregate.h */
enum aggregate_rule { AGGREGATE_MEAN, AGGREGATE_MEDIAN, AGGREGATE_TRIMMED, AGGREGATE_KRUM };
#define AGGREGATE_NAMES "mean|median|trimmed[:F]|krum[:F]"

enum push_kind { PUSH_MEAN, PUSH_SUM };
#define PUSH_NAMES "mean|sum"

/* Delay compensation (Zheng 2017) adds factor * g * g * (w - w_old) to each value g of a gradient
 * that was computed with the weight w_old; w is the current weight. The factor is lambda with
 * `constant`, and lambda / sqrt(moving mean of g * g) with `adaptive`. */
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

/* This struct describes the images that the model expects. If all fields are zero, the model says
 * nothing about images, so it fits the images of any worker. */
struct images {
	uint32_t channels, rows, cols, classes;
	/* 1: the canonical text of the model begins with words about the images (common/model.h) */
	int in_text;
};

#define MAX_BATCHNORMS 256

/* This struct describes the running statistics of `n` batchnorms. A batchnorm has `channels` means
 * and then as many variances. The first mean is number `first`, counted from 0, of all running
 * statistics. A model vector:N has such a layout only if the run has a list of its tensors
 * (tensors.h). */
struct running_layout {
	uint32_t n;
	struct {
		uint32_t first, channels;
	} norm[MAX_BATCHNORMS];
};

struct core_config {
	struct run_id run;
	/* number of this start of the server: at least 1, and 1 more than at the start before */
	uint64_t term;
	/* generation of the newest snapshot on disk; the core's first snapshot is generation + 1 */
	uint64_t generation;
	/* 1: snapshots are written to disk; 0: no snapshot is ever written, and each ACK reports
	 * its push as durable at once */
	int durable;
	char model[WIRE_MAX_MODEL + 1];
	uint64_t model_fingerprint;
	size_t n_params;
	/* The last n_running parameters are running statistics (common/model.h), which no optimizer
	 * changes. No snapshot contains n_running, because the server computes it from the
	 * model. */
	size_t n_running;
	/* no snapshot contains the layout, which the server computes from the model */
	struct running_layout running;
	struct images images;
	/* if data_id_given is 1: the fingerprint, and the numbers of training and test images, that
	 * the data set of every worker must have; if data_train or data_test is 0, any number of
	 * these images is permitted */
	uint64_t data_id;
	int data_id_given;
	uint32_t data_train, data_test;
	/* names of the metrics that every worker must evaluate, in the form that
	 * common/metric_names.h describes */
	char metrics[METRICS_TEXT];
	/* the engine that runs the vector operations; NULL: the calling thread runs them. This
	 * member is no option, and no snapshot contains it */
	const struct engine *engine;
	/* the device that keeps the weights and the optimizer's state; NULL: the core keeps them.
	 * This member is no option of the core, and no snapshot contains it. It must be NULL with
	 * --optimizer lbfgs */
	const struct param_device *device;
	/* secret of the run: the key of the codes in rights.h; 0: none */
	uint64_t proof_key[2];
#define GROUP(member, tag, title) struct tag member;
#include "server/core/options.def"
};

/* ---- one option ------------------------------------------------------------------------------ */

enum config_type { CONFIG_GROUP, CONFIG_U32, CONFIG_U64, CONFIG_REAL, CONFIG_ENUM, CONFIG_FLAG };

/* Says which values of an option are allowed at a restart of a run that was begun with another
 * value of this option. */
enum config_resume {
	RESUME_ANY,
	RESUME_SAME,
	RESUME_SAME_0, /* the old and the new value are both 0, or both above 0 */
	RESUME_SAME_1, /* the old and the new value are both at most 1, or both above 1 */
};

struct config_row {
	enum config_type type;
	size_t offset; /* offset of the option's field in struct core_config */
	const char *name, *def;
	uint32_t name_bytes; /* length of the name, without the NUL */
	/* the range, inclusive; CONFIG_ENUM: both members are the number of the first name in
	 * `values` */
	double min, max;
	const char *values; /* CONFIG_ENUM: the names of the values, such as "a|b[:F]" */
	/* 1: a user types this value after the name of a value of the row before: F in "b[:F]". A
	 * snapshot stores it under a name of its own, like the value of an option */
	int is_suffix;
	const char *arg;
	enum config_resume resume;
	const char *help; /* CONFIG_GROUP: the title of the group of rows that follows */
	const char *was, *needs;
	/* the message for a run that cannot be continued with another value of this option */
	const char *mismatch;
};

/* This table has a row for each option, in the order of options.def. */
extern const struct config_row config_rows[];
extern const size_t config_n_rows;

/* Returns the value in `c` of the option that `row` describes. The value is exact, because a double
 * represents each integer that an option can have. */
double config_value(const struct core_config *c, const struct config_row *row);
/* Returns the name of value `v` of a CONFIG_ENUM row, and sets *n to the length of the name. */
const char *config_name(const struct config_row *row, double v, size_t *n);
/* Returns 1 if a run that was begun with `then` cannot be continued with `now` because of this
 * option. */
int config_row_differs(const struct config_row *row, const struct core_config *then,
	const struct core_config *now);
/* Returns the first option for which config_row_differs returns 1, or NULL if there is none. */
const struct config_row *config_differs(
	const struct core_config *then, const struct core_config *now);

struct cursor;
/* Writes or reads all options. Each option is stored with its name. If the input lacks an option,
 * the value of this option in `c` does not change. An option that is unknown, given twice or out of
 * its range sets the error of the cursor. */
void config_put(struct cursor *k, struct core_config *c);

#endif
