/* epoch_metrics.c - see epoch_metrics.h. */
#include "server/monitor/epoch_metrics.h"
#include <math.h>
#include <stdio.h>
#include "common/assert.h"
#include "common/metric_names.h"

static struct metric_names names_of(const struct core *c)
{
	struct metric_names names;

	PS_ASSERT(metric_names_parse(&names, core_config(c)->metrics));
	return names;
}

static double mean(double sum, uint32_t n)
{
	return n ? sum / n : (double)NAN;
}

double epoch_accuracy(const struct core *c, const struct epoch_record *r)
{
	return names_of(c).accuracy ? mean(r->eval_correct, r->eval_done) : (double)NAN;
}

static json_t *number_or_null(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

json_t *epoch_accuracy_json(const struct core *c, const struct epoch_record *r)
{
	return number_or_null(epoch_accuracy(c, r));
}

json_t *epoch_metrics(const struct core *c, const struct epoch_record *r)
{
	const struct metric_names names = names_of(c);
	json_t *o = json_object();

	for (size_t i = 0; i < names.n; i++)
		json_object_set_new(
			o, names.name[i], number_or_null(mean(r->metric_sum[i], r->eval_done)));
	return o;
}

char *epoch_results_text(const struct core *c, uint32_t epoch)
{
	const struct epoch_record *r = core_epoch(c, epoch);
	json_t *o = json_pack("{s:I, s:o, s:o, s:o, s:I}", "epoch", (json_int_t)epoch + 1,
		"accuracy", epoch_accuracy_json(c, r), "test_loss",
		number_or_null(mean(r->eval_loss_sum, r->eval_done)), "metrics",
		epoch_metrics(c, r), "validate", (json_int_t)core_config(c)->training.validate);
	char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;

	json_decref(o);
	return text;
}

void epoch_metrics_text(
	const struct core *c, const struct epoch_record *r, char text[EPOCH_METRICS_TEXT])
{
	const struct metric_names names = names_of(c);
	size_t at = 0;

	snprintf(text, EPOCH_METRICS_TEXT, "none");
	if (names.accuracy)
		at += (size_t)snprintf(
			text, EPOCH_METRICS_TEXT, "accuracy=%.4f", epoch_accuracy(c, r));
	for (size_t i = 0; i < names.n; i++)
		at += (size_t)snprintf(text + at, EPOCH_METRICS_TEXT - at, "%s%s=%.6g",
			at ? " " : "", names.name[i], mean(r->metric_sum[i], r->eval_done));
}

void epoch_metrics_bar(
	const struct core *c, const struct epoch_record *r, char text[EPOCH_METRICS_TEXT])
{
	const struct metric_names names = names_of(c);
	size_t at = 0;

	text[0] = '\0';
	for (size_t i = 0; i < names.n; i++)
		at += (size_t)snprintf(text + at, EPOCH_METRICS_TEXT - at, "  %s %.6g",
			names.name[i], mean(r->metric_sum[i], r->eval_done));
}
