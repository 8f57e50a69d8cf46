#!/usr/bin/python3
"""Measure push + pull pairs with one, two and four connections, over a link with a round-trip time.

    tests/bench/connections.py [--rtt-ms MS]... [--loss SHARE]... [--bytes N]... [--seconds S]
                               [--keys]

Server and worker are in two network namespaces, between which tests/fault/lossy_link delays and
loses packets. The script prints the rows of tests/bench/transport with the round-trip time and the
loss in front. The script needs root rights and the programs that `make tests` builds. With --keys,
the connections are encrypted. The link is a program that moves each packet itself, so on a small
machine it can be slower than a network card.
"""
import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "fault")]

from namespaces import NetPrograms  # noqa: E402
from support.build import command  # noqa: E402

MODES = ("cnn-ps", "cnn-ps-2", "cnn-ps-4")


def measure(net, options, size, keys):
    server = net.server("--model", f"vector:{size // 4}", "--optimizer", "sgd", "--lr", 0.001,
                        "--warm-start-updates", 0, "--max-staleness", 1000000000, "--lane", "tcp",
                        "--max-workers", 2, "--connections", 4,
                        *(["--key", keys / "server.key"] if keys else []),
                        directory=None)
    for mode in MODES:
        argv = command("tests/bench/transport", "--endpoint", server.endpoint, "--workers", 1,
                       "--bytes", size, "--seconds", options.seconds, "--mode", mode,
                       *(["--key", keys / "worker.key"] if keys else []))
        with net.hosts[1]:
            out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        yield out.splitlines()
    server.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rtt-ms", type=float, action="append")
    parser.add_argument("--loss", type=float, action="append")
    parser.add_argument("--bytes", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--keys", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        net = NetPrograms(Path(directory), None, 1, 2)
        keys = net.keygen("worker") if options.keys else None
        head = None
        try:
            for rtt_ms in options.rtt_ms or (20,):
                for loss in options.loss or (0,):
                    net.rule("*", "*", delay=rtt_ms / 2000, loss=loss)
                    for size in options.bytes or (16000000,):
                        for head_row, row in measure(net, options, size, keys):
                            if not head:
                                head = print(f"rtt_ms,loss,{head_row}") or head_row
                            print(f"{rtt_ms:g},{loss:g},{row}", flush=True)
        finally:
            net.close()


if __name__ == "__main__":
    main()
