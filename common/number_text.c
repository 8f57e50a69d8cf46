/* number_text.c - see number_text.h. */
#include "common/number_text.h"
#include <math.h>
#include <stdio.h>

#define MIN_DECIMAL 0.001 /* a smaller loss has an exponent */
#define MAX_DECIMAL 1e15  /* a larger loss or rate has an exponent */

const char *number_text_loss(double loss, char text[NUMBER_TEXT])
{
	const double size = fabs(loss);
	const int is_small = size > 0 && size < MIN_DECIMAL;

	snprintf(text, NUMBER_TEXT, is_small || size > MAX_DECIMAL ? "%.1e" : "%.4f", loss);
	return text;
}

const char *number_text_rate(double rate, char text[NUMBER_TEXT])
{
	snprintf(text, NUMBER_TEXT, rate < 1 ? "%.1g" : rate < MAX_DECIMAL ? "%.0f" : "%.0e", rate);
	return text;
}

const char *number_text_time(double seconds, char text[NUMBER_TEXT])
{
	if (seconds < 90)
		snprintf(text, NUMBER_TEXT, "%.0f s", ceil(seconds));
	else if (seconds < 5400)
		snprintf(text, NUMBER_TEXT, "%.0f min", round(seconds / 60));
	else
		snprintf(text, NUMBER_TEXT, "%.1f h", seconds / 3600);
	return text;
}
