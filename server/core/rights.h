/*
 * rights.h - decides which work a worker may deliver, and finds out which decisions on its pushes
 * the server made before a crash. A lease gives a worker the right to deliver its batches.
 *
 * In a run with a data set, a push counts only if its batches lie in one grant to its worker, and a
 * result only if its portion was granted to its worker. A grant that has ended still gives this
 * right, so a late result may count. The server's state contains only the newest grant of each
 * worker. Each GRANT and each ACK also carries a message authentication code under a key of the
 * run, which only the server and its checkpoints have. Workers send the codes back to the server.
 * With these codes, a server that has lost its newest state in a crash can still check which grants
 * and decisions it made. Without a valid code, a push counts only within the newest grant in the
 * server's state, and the server decides a replay as if it were a new push. The same applies to all
 * pushes of workers of protocol version 6, because they send no codes.
 *
 * The code of an accepted push also contains the norm with which its gradient moved the weights.
 * The replay of the push moves the weights by no larger norm, because the server scales it down.
 * Without this limit, a worker could replay any gradient in place of the accepted one.
 *
 * Without a key (proof_key 0) the core accepts every grant and every decision that a worker claims.
 * The core does the same while it replays a log of release 0.2.0, which had no such codes.
 *
 * Promises:
 * (1) a code is valid only for the worker, the incarnation and the seq for which it was made
 *     (tests/unit/test_core_rights.c, a_code_fits_one_push_of_one_incarnation);
 * (2) a worker gets the code of a decision only for the push that was decided
 *     (tests/unit/test_core_rights.c, a_duplicate_with_other_content_proves_nothing);
 * (3) the code of a portion of an evaluation is not valid any more when the results of the
 *     evaluation were dropped (tests/unit/test_core_checks.c,
 *     grants_of_a_dropped_evaluation_prove_nothing);
 * (4) the replay of an accepted push moves the weights at most 2 % further than this push did
 *     (tests/unit/test_core_rights.c, a_replay_moves_no_further_than_the_accepted_push).
 */
#ifndef SERVER_CORE_RIGHTS_H
#define SERVER_CORE_RIGHTS_H
#include "server/core/core.h"

struct worker;
struct decision;

/* Returns the code that the server sends with grant `g` to worker `w`. */
uint64_t rights_of_grant(const struct core *c, const struct worker *w, const struct msg_grant *g);
/* Returns the code that the server sends with decision `d` on push `p` of worker `w`. `norm` is the
 * norm with which the gradient moves the weights, or infinity. */
uint64_t rights_of_decision(const struct core *c, const struct worker *w, const struct msg_push *p,
	const struct decision *d, double norm);
/* Returns 1 if the run has a key. At a replay of a log of release 0.2.0 the run has no key, and
 * rules that came after this release do not apply. */
int rights_have_key(const struct core *c);
/* Returns 1 if the server granted the batches of push `p` to worker `w`. */
int rights_to_push(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns 1 if the server granted the portion of result `r` to worker `w`. */
int rights_to_result(const struct core *c, const struct worker *w, const struct msg_result *r);
/* Returns the verdict that the server gave on push `p` before a crash. Returns VERDICT_NONE if
 * there was none, or if no valid code proves it. */
enum verdict rights_verdict(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns 1 if push `p` is a replay of a push that the server accepted before a crash. */
int rights_of_replay(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns the largest norm with which the gradient of push `p` may move the weights if `p` is a
 * replay of a push that the server accepted before a crash. Otherwise returns infinity. */
double rights_norm(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns how often evaluations of this run were repeated because a worker was outvoted; at most
 * MAX_REPEATS, because after that the core repeats no evaluation. The result is 0 if every portion
 * is in the sample, because the core then repeats none either. The code of a grant of a portion
 * contains this number, so a code from before a repetition is not valid after it. */
uint64_t rights_attempt(const struct core *c);
/* Returns a number that nobody can predict without the secret of the run. The number depends on
 * the seed, on the number of the evaluation and on `draw`. */
uint64_t rights_sample(const struct core *c, uint64_t evaluation, uint64_t draw);
/* Returns 1 if all batches of `work` belong to `own`. */
int rights_cover(const struct work *own, const struct work *work);

#endif
