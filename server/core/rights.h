/*
 * rights.h - decides which work a worker may deliver, and which decisions on its pushes the server
 * made before a crash. A lease gives a worker the right to deliver its batches.
 *
 * In a run with a data set, a push counts only if its batches lie in one grant to its worker, and a
 * result only if its portion was granted to its worker. A grant that has ended is still a right:
 * its late result may count. The state has the newest grant of each worker. Each GRANT and each ACK
 * also carries a message authentication code under a key of the run, which only the server and its
 * checkpoints have. Workers send the codes back to the server. So a server that has lost its newest
 * state in a crash recognises the grants and decisions that it made. If a replay carries no valid
 * code, the server decides it as if it were a new push.
 *
 * Without a key (proof_key 0) the core accepts every claim. It also does so while it replays a log
 * of release 0.2.0, which had no codes.
 *
 * Invariants:
 * (1) a code of one worker, incarnation or seq is worthless for another one
 *     (tests/unit/test_core_rights.c, a_code_fits_one_push_of_one_incarnation);
 * (2) a worker gets the code of a decision only for the push that was decided
 *     (tests/unit/test_core_rights.c, a_duplicate_with_other_content_proves_nothing).
 */
#ifndef SERVER_CORE_RIGHTS_H
#define SERVER_CORE_RIGHTS_H
#include "server/core/core.h"

struct worker;
struct decision;

/* Returns the code of grant `g` to w. */
uint64_t rights_of_grant(const struct core *c, const struct worker *w, const struct msg_grant *g);
/* Returns the code of decision `d` on push `p` of w. */
uint64_t rights_of_decision(const struct core *c, const struct worker *w, const struct msg_push *p,
	const struct decision *d);
/* Returns 1 if the batches of push `p` were granted to w. */
int rights_to_push(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns 1 if the portion of result `r` was granted to w. */
int rights_to_result(const struct core *c, const struct worker *w, const struct msg_result *r);
/* Returns the verdict on push `p` before a crash; VERDICT_NONE: there was none, or it is not
 * proven. */
enum verdict rights_verdict(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns 1 if push `p` is a replay, and it was accepted before a crash. */
int rights_of_replay(const struct core *c, const struct worker *w, const struct msg_push *p);
/* Returns 1 if all of `work` lies in `own`. */
int rights_cover(const struct work *own, const struct work *work);

#endif
