"""This module has the networks and modes that tests/bench/science compares, and the learning rates
that the script tries for each mode."""
from collections import namedtuple

# A mode. style: the line style of docs/figures.gp; the modes of one panel have different styles.
# options: the options of cnn-ps for this mode. rates: the values of rate_option that --grid tries
# for each number of workers. workers: the numbers of workers with which the mode runs. cost: the
# duration of a run relative to other modes.
Mode = namedtuple("Mode", "name style options rate_option rates workers cost")
# A network. options: the options of cnn-ps for this network. cost: the cost model, as options of
# the program science. title: the text in the figures that names the network and the clock.
Network = namedtuple("Network", "options cost title modes")

COUNTS = (1, 2, 4, 8, 16)
MANY = COUNTS[1:]
SGD = "--optimizer sgd --lr-scaling none --staleness-scaling constant --warm-start-updates 0"
RMSPROP = (0.003, 0.006, 0.009, 0.012, 0.024)
ADAGRAD = "--optimizer adagrad --lr-scaling none"


def mode(name, style, options, rates, workers=COUNTS, rate_option="--lr", cost=1):
    return Mode(name, style, options, rate_option, rates, workers, cost)


MODES = {
    "sgd": mode("Downpour, SGD", 8, SGD, (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)),
    "inverse": mode("Downpour, SGD, rate / staleness", 2,
                    SGD.replace("constant", "inverse"), (0.1, 0.2, 0.4, 0.8, 1.6), MANY),
    "dc": mode("Downpour, SGD, DC-ASGD adaptive", 1,
               SGD + " --delay-compensation adaptive", (0.025, 0.05, 0.1, 0.2, 0.4), MANY),
    "adagrad": mode("Downpour, Adagrad", 5, ADAGRAD + " --warm-start-updates 0",
                    (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)),
    "warm": mode("Downpour, Adagrad, warm start", 4, ADAGRAD + " --warm-start-updates 200",
                 (0.005, 0.01, 0.02, 0.04, 0.08, 0.16), MANY),
    "downpour": mode("Downpour, RMSprop", 1, "", RMSPROP),
    "prefetch": mode("Downpour, prefetch", 7, "--prefetch", RMSPROP),
    "buffer": mode("Downpour, buffer of 4", 6, "--buffer-size 4", RMSPROP, MANY),
    "push8": mode("Downpour, n_push = n_fetch = 8", 2, "--n-push 8 --n-fetch 8",
                  RMSPROP),
    "ssp": mode("SSP, bound 4", 6, "--mode ssp", RMSPROP),
    "sync": mode("sync", 3, "--mode sync", (0.15, 0.3, 0.6, 1.2)),
    "backup": mode("sync, one backup worker", 3, "--mode sync --backup-workers 1",
                   (0.15, 0.3, 0.6, 1.2), MANY),
    "easgd": mode("EASGD", 4, "--mode easgd", (0.07, 0.13, 0.26, 0.52),
                  rate_option="--local-lr"),
    "easgd8": mode("EASGD, n_push = 8", 5, "--mode easgd --n-push 8",
                   (0.07, 0.13, 0.26, 0.52), rate_option="--local-lr"),
    "lbfgs": mode("Sandblaster L-BFGS", 2, "--mode sandblaster", (None,),
                  workers=(1, 4, 16), cost=9),
}

# the modes that --defaults runs with their default rate and no option except --mode
DEFAULTS = ("downpour", "ssp", "sync", "easgd")

CLOCK = "50 us and {} Gbit/s at the server's link; 0.1 ms an image per worker, lognormal 10 %"
NETWORKS = {
    "seed32": Network((), (), "seed:32 (54,410 parameters) on MNIST, virtual time: "
                      + CLOCK.format(10), tuple(m for m in MODES if m not in ("push8", "easgd8"))),
    "mlp": Network(("--model", "fc:256 relu fc:10"), ("--gbit", 0.5),
                   "fc:256 relu fc:10 (203,530 parameters) on MNIST, virtual time: "
                   + CLOCK.format(0.5),
                   ("downpour", "prefetch", "push8", "sync", "easgd", "easgd8")),
}
