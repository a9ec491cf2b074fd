#!/usr/bin/env python3
"""Where the time of a query goes: in one tree of gpuvec, or in two side by side.

usage: budget.py TREE [TREE] [--data DATA] [--queries N] [--rounds N]
                 [--recall R] [--functions N]

TREE is a folder, say a worktree of a commit; each is built and installed into a
private copy of PostgreSQL with a cluster of its own (test/cluster.sh), and gets
the same rows of DATA (sentences:100000 when left out) with a default index.
In a round each tree's session in turn runs held-out queries for ten rows in a
loop of PL/pgSQL: the time is that of the session's processor, which other work
on the machine disturbs less.  Then `perf record -g` samples such a loop, and
what it tells of the shares is printed in microseconds.  It has to be allowed to
(root, or kernel.perf_event_paranoid), and PostgreSQL be built with frame
pointers, as Debian's is.
"""
import argparse
import collections
import signal
import statistics
import subprocess
import tempfile
import time

import data
import dataset

if __name__ == "__main__":
    data.enter_venv("commits", __file__)

import commits
import server

# A sample belongs to the first part of which a function calls it: one that the
# name begins with.
PARTS = (
    ("nearest lists", ("IvfpqNearestLists",)),
    ("look-up table", ("IvfpqQueryTable",)),
    ("scoring copies", ("gv_scan",)),
    ("reading lists", ("IvfpqSearchLists",)),
    ("rows of the table", ("IvfpqScanMeasure", "IvfpqMeasure")),
    ("the index, all else", ("ivfpq", "Ivfpq")),
    ("executor, PL/pgSQL", ("",)),
)
LOOP = """DO $$ DECLARE q real[]; BEGIN
FOR q IN SELECT v FROM asked ORDER BY id LOOP
PERFORM id FROM t ORDER BY v <-> q LIMIT 10;
END LOOP; END $$"""
SAMPLES = 20000                 # about, of each tree
PER_SECOND = 4000


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("trees", nargs="+")
    parser.add_argument("--data", default="sentences:100000")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--recall", type=float, default=.95)
    parser.add_argument("--functions", type=int, default=0,
                        help="print so many functions that take most, too")
    return parser.parse_args()


def prepare(tree, found, args):
    tree.load(found.base)
    server.load(tree.conn, "asked", found.query[:args.queries], "real[]")
    tree.build(0)
    tree.run("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
    server.prewarm(tree.conn, ["t"])
    tree.run(f"SET gpuvec.recall = {args.recall}")
    tree.run("SET enable_seqscan = off")
    tree.run("SET gpuvec.engine = cpu")
    tree.nqueries = server.one(tree.conn, "SELECT count(*) FROM asked")
    tree.pid = tree.conn.info.backend_pid
    tree.us = []


def processor_seconds(tree):
    with open(f"/proc/{tree.pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def loop(tree):
    """Microseconds of the session's processor that a query takes."""
    before = processor_seconds(tree)
    tree.run(LOOP)
    return (processor_seconds(tree) - before) * 1e6 / tree.nqueries


def sampled(tree):
    """The call chains of samples, each from the innermost function out."""
    with tempfile.NamedTemporaryFile(suffix=".perf") as file:
        perf = subprocess.Popen(
            ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(PER_SECOND),
             "-g", "-p", str(tree.pid), "-o", file.name])
        time.sleep(.5)
        seconds = 0
        while perf.poll() is None and seconds < SAMPLES / PER_SECOND:
            seconds += loop(tree) * tree.nqueries / 1e6
        perf.send_signal(signal.SIGINT)
        perf.wait()
        lines = subprocess.run(
            ["perf", "script", "-i", file.name, "-F", "ip,sym"], check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True).stdout
    chain = []
    for line in lines.split("\n"):
        if line.strip():
            chain.append((line.split(None, 1) + ["?"])[1])
        elif chain:
            yield chain
            chain = []


def part_of(chain):
    for what, names in PARTS:
        if any(function.startswith(names) for function in chain):
            return what
    return None


def budget(tree):
    """Shares of parts, and of functions."""
    parts, functions = collections.Counter(), collections.Counter()
    for chain in sampled(tree):
        parts[part_of(chain)] += 1
        functions[chain[0]] += 1
    if not parts:
        raise SystemExit("budget: perf has no samples")
    return [{name: n / sum(count.values()) for name, n in count.items()}
            for count in (parts, functions)]


def print_shares(trees, names, shares):
    for name in names:
        print(f"{name:28}" + "".join(
            f"{share.get(name, 0) * statistics.median(tree.us):10.1f}"
            for tree, share in zip(trees, shares)))


def main():
    args = parse_arguments()
    found = dataset.load(args.data)
    trees = [commits.Tree(folder) for folder in args.trees]
    for tree in trees:
        prepare(tree, found, args)
        loop(tree)
    for turn in range(args.rounds):
        for tree in trees[::1 if turn % 2 == 0 else -1]:
            tree.us.append(loop(tree))
    parts, functions = zip(*map(budget, trees))
    print(f"{args.data}, {found.rows} x {found.dims}, recall {args.recall}: "
          f"microseconds of a query; {server.machine()}")
    print_shares(trees, [what for what, _ in PARTS], parts)
    print(f"{'a query':28}" + "".join(
        f"{statistics.median(tree.us):10.1f}" for tree in trees))
    for tree in trees[1:]:
        ratios = [b / a for a, b in zip(trees[0].us, tree.us)]
        print(f"beside the first: {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f})")
    if args.functions:
        most = sorted(functions[-1], key=functions[-1].get, reverse=True)
        print_shares(trees, most[:args.functions], functions)
    for tree in trees:
        tree.end()


if __name__ == "__main__":
    main()
