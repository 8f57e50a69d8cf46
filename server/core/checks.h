/*
 * checks.h - cross-checks of evaluation results. A worker could report any result for a portion of
 * the test set. Therefore a second worker computes a sample of the portions of each evaluation
 * again (--eval-checks). If the two results differ, a third worker decides: the worker that
 * disagrees with the two others is outvoted, which counts like an exclusion (quarantine.h), and the
 * epoch's record gets the result of the others. Because the same worker may have computed portions
 * outside the sample, leases.c then repeats the evaluation with another sample. With fewer than
 * three workers, the core reports the disagreement and accuses nobody.
 *
 * Two results differ if their numbers of correct images differ by more than 2 and by more than
 * 0.5 % of the portion's images, because the correct results of different devices and precisions
 * differ a little. They also differ if their sums of the loss or of a metric differ by more than a
 * limit. The limit is 5 % of the greater sum, plus the larger of 2 and 0.5 % of the portion's
 * number of images (a_liar_about_the_loss_is_outvoted,
 * losses_of_other_devices_and_precisions_agree).
 *
 * The sample depends on the seed and the secret of the run, so a worker cannot predict which of its
 * results another worker checks. The checks begin when every portion of the evaluation has its
 * first result. Before that, the core grants no check and uses no second result of a portion. If
 * the core granted checks earlier, a worker could see from the grants, from their times or from the
 * status that its portion is not in the sample, and could then report a false result for it
 * (no_event_shows_the_sample_before_all_results_are_in).
 *
 * Invariants:
 * (1) the votes (struct vote) on a portion come from different worker slots
 *     (a_worker_does_not_check_itself) and, if the server has keys, from different keys (asserted
 *     by checks_on_result for each vote, and by close_check; a_key_has_one_vote);
 * (2) an evaluation waits for its checks at most CHECK_TICKS ticks (asserted by checks_settle;
 *     a_check_delays_an_evaluation_for_a_bounded_time), and not at all if no worker is left that
 *     could vote (a_lone_worker_waits_for_nobody). A tick does not count while a worker that is not
 *     late (pace.h) computes a check (slow_workers_check_all_the_same). Nor does it count while
 *     such a worker computes work that it got before the checks began, because the worker asks for
 *     a check when this work is done. A tick counts, however, while a worker computes a check for
 *     the second time without a vote (a_check_of_a_broken_worker_delays_an_evaluation_briefly);
 * (3) no check is open while nothing is under evaluation (asserted by checks_open;
 *     a_lone_worker_waits_for_nobody).
 */
#ifndef SERVER_CORE_CHECKS_H
#define SERVER_CORE_CHECKS_H
#include "server/core/core.h"

struct worker;

#define MAX_CHECKS  8u   /* maximum number of checked portions in an evaluation */
#define MAX_REPEATS 32u  /* maximum number of repeated evaluations in a run */
#define CHECK_TICKS 200u /* these ticks take about 10 s: the shell sends one every 50 ms */

/* This struct has the result that one worker computed for a checked portion. */
struct vote {
	uint32_t worker, incarnation;
	char owner[WIRE_MAX_OWNER + 1]; /* key and name of the worker, which may have left */
	char name[WIRE_MAX_NAME + 1];
	uint32_t correct;
	double loss_sum;
	double metric_sum[MAX_METRICS];
};

struct check {
	uint32_t portion;
	uint32_t n; /* number of votes */
	struct vote vote[CHECK_VOTES];
};

/* The state of the checks of an evaluation. A snapshot contains this struct. */
struct checks {
	uint32_t n; /* number of open checks */
	struct check check[MAX_CHECKS];
	/* number of ticks for which the evaluation has waited for its checks, at most CHECK_TICKS
	 * (invariant 2) */
	uint32_t ticks;
	struct check_stats stats;
};

/* Chooses the portions to check. Called when an evaluation begins. */
void checks_open(struct core *c);
/* Drops the open checks and chooses other portions to check. Called when an evaluation is
 * repeated. */
void checks_open_again(struct core *c);
/* Returns 1 if each portion of the evaluation has its first result. */
int checks_have_begun(const struct core *c);
/* Returns 1 if the check of portion `i` has not ended. The epoch's record gets the result of such a
 * portion when the check ends, so that a result that is outvoted leaves no trace in the sums. */
int checks_hold(const struct core *c, uint32_t i);
/* Takes the valid result `r` of `w` for portion `i`. Returns 1 if it is a vote on a portion that is
 * already done. A second result is no vote before the checks have begun. */
int checks_on_result(struct core *c, struct worker *w, uint32_t i, const struct msg_result *r);
/* Finds a portion for `w` to compute, as a check of another worker's result. Returns 0 if there is
 * none, or if the checks have not begun. */
int checks_find(const struct core *c, const struct worker *w, uint32_t *i);
/* Called when all portions are done: ends the checks on which no worker can vote, or all checks
 * after CHECK_TICKS ticks. Returns 1 if no check is open any more. */
int checks_settle(struct core *c);
/* Called at each tick: counts the ticks for which the evaluation waits for its checks. */
void checks_tick(struct core *c);
/* Called when a snapshot is decoded: returns 0 if the checks in the snapshot are impossible, for
 * example if a check is of a portion that the evaluation does not have. */
int checks_fit(const struct core *c);

#endif
