/* warnings.c - see warnings.h. */
#include "server/monitor/warnings.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "common/log.h"
#include "server/config/options.h"
#include "server/monitor/epoch_metrics.h"
#include "server/monitor/progress.h"

double warning_chance(size_t classes, uint32_t n_test)
{
	double share = WARNING_CLASS_SHARE / (double)classes;

	return share + WARNING_ERRORS * sqrt(share * (1 - share) / n_test);
}

static int rate_text(
	const char *option, double rate, double usual, enum optim_kind kind, char out[WARNING_TEXT])
{
	const char *name = OPTIM_NAMES;

	for (int i = (int)kind; i > 0; i--)
		name += strcspn(name, "|") + 1;
	if (rate < WARNING_RATE_FACTOR * usual)
		return 0;
	snprintf(out, WARNING_TEXT,
		"%s %g is %.0f times the usual rate of %.*s (%g): training may diverge", option,
		rate, rate / usual, (int)strcspn(name, "|"), name, usual);
	return 1;
}

/* Warns if the learning rate is far above the usual rate of the optimizer. Does nothing if the
 * model has no classes, because programs then compute their own gradients, for which no usual rate
 * is known. */
static int rate(const struct warnings *w, const struct core_config *cfg, char out[WARNING_TEXT])
{
	if (w->classes == 0 || cfg->training.mode == MODE_EASGD || cfg->optim.kind == OPTIM_LBFGS)
		return 0;
	return rate_text("--lr", cfg->rate.lr, w->usual_rate, cfg->optim.kind, out);
}

static int local_rate(
	const struct warnings *w, const struct core_config *cfg, char out[WARNING_TEXT])
{
	int used = cfg->training.mode == MODE_EASGD || cfg->push.n_fetch > 1;

	return w->classes > 0 && used &&
	       rate_text("--local-lr", cfg->push.local_lr, w->usual_local_rate, OPTIM_SGD, out);
}

static int larger(const char *option, uint64_t images, const struct core *c, char out[WARNING_TEXT])
{
	uint32_t n = core_train_images(c);

	if (n == 0 || images <= n)
		return 0;
	snprintf(out, WARNING_TEXT,
		"%s %llu is larger than the data set: all %u images make one %s", option,
		(unsigned long long)images, n,
		strcmp(option, "--batch-size") == 0 ? "batch" : "step");
	return 1;
}

static int chance(const struct warnings *w, const struct core *c, char out[WARNING_TEXT])
{
	const struct epoch_record *last = progress_evaluated(c);

	if (w->classes < 2 || !last)
		return 0;
	const char *images = core_config(c)->training.validate > 0 ? "held-back" : "test";
	double accuracy = epoch_accuracy(c, last);
	double max = warning_chance(w->classes, last->eval_done);
	/* an accuracy on so few images says nothing */
	if (max >= 1 || !(accuracy <= max))
		return 0;
	snprintf(out, WARNING_TEXT,
		"the final accuracy of %.2f %% is no better than chance (up to %.2f %% with %zu "
		"classes and %u %s images): nothing was learned; try a smaller rate, and check "
		"the labels",
		100 * accuracy, 100 * max, w->classes, last->eval_done, images);
	return 1;
}

/* Warns if workers were excluded and no push was accepted. The run then continues, because perhaps
 * only the machines of the excluded workers are broken. */
static int none_sound(const struct core_stats *t, char out[WARNING_TEXT])
{
	if (t->excluded == 0 || t->accepted > 0)
		return 0;
	snprintf(out, WARNING_TEXT,
		"%llu workers were excluded, and no gradient was accepted yet: check their devices "
		"and "
		"data, and the rate and the weights that the run began with",
		(unsigned long long)t->excluded);
	return 1;
}

int warning_text(const struct warnings *w, enum warning kind, const struct core *c, int over,
	char out[WARNING_TEXT])
{
	const struct core_config *cfg = core_config(c);

	switch (kind) {
	case WARNING_RATE:
		return rate(w, cfg, out);
	case WARNING_LOCAL_RATE:
		return local_rate(w, cfg, out);
	case WARNING_BATCH:
		return larger("--batch-size", cfg->training.batch_size, c, out);
	case WARNING_STEP:
		return cfg->training.mode == MODE_SANDBLASTER &&
		       larger("--step-images", cfg->sandblaster.step_images, c, out);
	case WARNING_EXCLUDED:
		return none_sound(core_stats(c), out);
	case WARNING_CHANCE:
		return over && chance(w, c, out);
	}
	return 0;
}

void warnings_check(struct warnings *w, const struct core *c, int over)
{
	char text[WARNING_TEXT];

	for (int i = 0; i < WARNINGS; i++) {
		if (w->logged[i] || !warning_text(w, (enum warning)i, c, over, text))
			continue;
		log_warn("run", "warning", "reason=\"%s\"", text);
		w->logged[i] = 1;
	}
}
