/* device.c - what all devices share: softmax loss and dropout. See device.h. */
#include "kernels/device/device.h"
#include <math.h>
#include "common/rng.h"

void widen(double *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = from[i];
}

double softmax_loss(const double *logit, size_t n, size_t label, double *probability)
{
	double max = logit[0], sum = 0, target = logit[label];

	for (size_t i = 1; i < n; i++)
		max = logit[i] > max ? logit[i] : max;
	for (size_t i = 0; i < n; i++) {
		double power = exp(logit[i] - max);

		if (probability)
			probability[i] = power;
		sum += power;
	}
	for (size_t i = 0; probability && i < n; i++)
		probability[i] /= sum;
	return log(sum) - (target - max);
}

uint32_t dropout_threshold(float p)
{
	return (uint32_t)ceil((double)p * 0x1p24);
}

int dropout_drops(uint64_t seed, size_t layer, size_t i, uint32_t threshold)
{
	uint64_t draw = rng_mix(seed ^ rng_mix((uint64_t)layer << 40 | (uint64_t)i)) >> 40;

	return draw < threshold;
}
