/*
 * schedule.c - the rate over a run; see optim.h.
 */
#include "server/core/optim.h"
#include <math.h>

#define ONECYCLE_FIRST (1.0 / 25) /* where the rise begins; OneCycleLR's div_factor */

/* (1 + cos(pi x)) / 2 for x in 0..1: from 1 down to 0. As cos^2(pi x / 2) by its series, which is
 * exact to the last bits there and gives the same ones on every CPU, as libm does not promise. */
static double half_wave(double x)
{
	double y = x * 1.57079632679489661923, term = 1, cosine = 1;

	for (int k = 2; k <= 22; k += 2) {
		term *= -y * y / (k * (k - 1));
		cosine += term;
	}
	return cosine * cosine;
}

static double fall_to(double floor, double x)
{
	return floor + (1 - floor) * half_wave(x);
}

static uint64_t epochs_done(uint64_t done, uint64_t total, uint32_t epochs)
{
	return done / (epochs && total >= epochs ? total / epochs : total);
}

double schedule_factor(const struct schedule *s, uint64_t done, uint64_t total, uint32_t epochs)
{
	double x, rise, rest;

	if (total == 0)
		return 1;
	x = done < total ? (double)done / (double)total : 1;
	rise = x < s->warmup ? x / s->warmup : 1;
	rest = x > s->warmup ? (x - s->warmup) / (1 - s->warmup) : 0;
	switch (s->kind) {
	case SCHEDULE_STEP:
		return rise *
		       optim_power(s->gamma, epochs_done(done, total, epochs) / s->every_epochs);
	case SCHEDULE_COSINE:
		return rise * fall_to(s->floor, rest);
	case SCHEDULE_ONECYCLE:
		return rise < 1 ? fall_to(ONECYCLE_FIRST, 1 - rise) : fall_to(s->floor, rest);
	case SCHEDULE_CONSTANT:
		break;
	}
	return rise;
}

double lr_scaling_factor(enum lr_scaling how, double ratio, uint64_t done, uint32_t warmup)
{
	double factor = how == LR_SCALING_LINEAR ? ratio : how == LR_SCALING_SQRT ? sqrt(ratio) : 1;

	if (factor <= 1 || done >= warmup)
		return factor;
	return 1 + (factor - 1) * (double)done / warmup;
}
