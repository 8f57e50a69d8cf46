#!/bin/sh
# Find old words that standard terms have replaced (docs/glossary.md), in code, documents and file
# names. A row has a pattern, the new word, and the files that may have the old word. The pattern
# must match a whole word, where the parts of a name in snake_case count as words. Some old words
# are also ordinary ones: their patterns match names, or the word in its old sense.
set -u
words='
crews?                                       fleet, cluster or workers
strangers?|intruders?                        unknown key, unauthenticated peer
savers?                                      checkpointer
meddlers?|badwire                            fault proxy, lossy link
plant(s|ed)?                                 mutant, violation
weather                                      faults of links and disks
farewell|last_words?                         session close, tombstone
baton|handoff                                I/O lock, bounded queue
beats?|beat_[a-z]+                           heartbeat   tests/e2e/test_input.py tests/lint/spelling.sh
heirs?|pulse|door                            (gone), heartbeat, accept gate
bring_home|pass_place|look_through           flush, mark, verify
hears?|hearing|winners?|attract(s|ed)?|flying  receive, argmax, elastic_update, in flight
[a-z]+_turn|turn_[a-z]+|turn[[:blank:]]*[=;(,)]|(an?|each|every|last|next|one|per|the|this)[[:blank:]]turn  iteration of the loop, step, interval
gather(s|ed)?|gather_[a-z]+|[a-z]+_gather  gradient accumulator  docs/ladder/phases.csv kernels/ladder/figures.gp kernels/ladder/host.cu kernels/ladder/host.cuh tests/fault/slurm_cluster.py
[a-z]+_hung|hung_[a-z]+|hung[[:blank:]]*[=;)]  what hangs, is stuck or stalled
(chunks?|complete|copy|frames?|load|loader|receive|store|sum|tensor|word)_ahead|frames?[[:blank:]]ahead|struct[[:blank:]]ahead  chunked push, inbox, prefetch, copy_async
image_live|log[[:blank:]]positions?|kx_split|seed_(small|low|resident)  session section, LSN, split-K, cluster kernel and so on
judge[sd]?|spoil(s|ed)?|revive[sd]?|misfits?|heard|beliefs?|believes?  verdict or check, damage, return, received, prediction
core_lend|lend(s|ing)?                        next buffer, parameter buffers
for_spots|spots?_of                          positions
untold|told|quarantine_tell|observers_asked|asked_ms|show_asked  acknowledged or sent, notify, request
science_bars                                 science_accuracy
a_hole[a-z_]*|holes|fates?                   gap, link model or delivery
bursts_[a-z]*|local_bursts                   rounds of pipelined steps
server(_|[[:blank:]])epoch                              term
kx_(rows|outer|first|second|head)|feeders?   conv_fprop and so on, producer warps
keepers?|early_[a-z]+                        epoch export, later epochs
(d_)?scores|score_(images|splits)|errors_kernel  logits, slices, dY
(progress|fake)_look|tell_lost_links|max_kept|put_life|copied_least  read, report, retained, fewest
(clients?|cores?|devices?|kernels?|librar(y|ies)|observers?|peers?|process(es)?|programs?|releases?|servers?|sessions?|versions?|workers?)([[:blank:]](that|which))?([[:blank:]](already|do(es)?[[:blank:]]not|must|must[[:blank:]]not))?[[:blank:]](knows?|wants?|hears?)  has, requests, receives
server_life|from_life|patience_ns  server_process, from_process, timeout
netlab|sbench|core_bench|session_bench       support/: fixtures, programs
[a-z]+_lab                                   a fixture with the name of what it provides
sync-spares|stale-rate|decay-square          --backup-workers, --staleness-scaling, --beta2   tests/e2e/test_input.py tests/unit/test_server_options.c
--elastic                                    --easgd-beta   tests/unit/test_server_options.c
warm-updates                                 --warm-start-updates                             tests/e2e/test_input.py
(hang|patience|connect|forget)-ms            --batch-timeout-ms and so on                     tests/e2e/test_input.py
'
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
	search='git grep --untracked'
	names=$(git ls-files --cached --others --exclude-standard)
else
	search='git grep --no-index'
	names=$(find . -type f | sed 's|^\./||')
fi
bounded() {
	echo "(^|[^[:alpha:]])($1)([^[:alpha:]]|\$)"
}
# Ignore lines with `.was = `, which have the former name of an option, and the phrases "in turn" and
# "hung up".
lines=$($search -nIiE "$(bounded "$(echo "$words" | sed '/^$/d; s/  .*//' | paste -sd '|')")" -- . \
	':!CHANGELOG.md' ':!tests/fuzz/corpus' ':!tests/lint/words.sh' ':!tests/lint/test_lints.py' | grep -v '\.was = ' |
	sed 's/in[_ ]turn//g; s/hung[_ ]up//g')
failed=0
while read -r pattern rest; do
	[ -n "$pattern" ] || continue
	allowed=$(echo "$rest" | grep -oE '(docs|kernels|tests)/[a-z0-9_/.]+' | paste -sd '|')
	found=$(printf '%s\n' "$lines" "$names" | grep -iE "$(bounded "$pattern")" |
		grep -vE "^(${allowed:-none}):")
	[ -z "$found" ] || {
		echo "$found" | sed "s|\$|   <- now: $(echo "$rest" | sed 's/  .*//')|"
		failed=1
	}
done <<END
$words
END
# Only in documents: a program may have a progress bar, and make has a default goal.
found=$($search -nIiE "$(bounded 'goals?|aims?|bars')" -- '*.md' ':!CHANGELOG.md')
[ -z "$found" ] || {
	echo "$found" | sed 's|$|   <- now: what is planned, required or measured|'
	failed=1
}
exit $failed
