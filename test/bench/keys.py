#!/usr/bin/env python3
"""Recall and time of searches under conditions that the index's keys answer.

gpuivfpq with three int keys at gpuvec.recall .95 and .99, beside the same
search without a condition, the same condition as a filter of an index without
keys, and pgvector's hnsw with iterative scans, in one run, from one connection,
in the cluster that libpq's environment variables name; test/bench/run.sh makes
that cluster.

Conditions: ranges of a random key (share in %); the query's own cluster of
k-means' (near) and the farthest one (far), whose keys go with the vectors and
against them; two keys; a key and a column that is none.

The truth, times and ratios are where.py's, which see.  A bound is met when the
condition's time is no more than so many times the unconditioned search's at
the same recall, and recall no lower than asked, less .005; near and far .01.
"""
import cases as conditions
import data
import report
import server
import systems as compared
import where
from where import TARGETS

KEYS, PLAIN, HNSW = "t_keys", "t_plain", where.HNSW
WIDEST = 1000                   # values of the random key
# share in %: times the unconditioned search's time that it may take
BOUNDS = {50: 1.5, 10: 1.5, 3: 2, 1: 3, .3: 6, .1: 6}
CLUSTERED = {10: 10, 1: 100}
SLACK, CLUSTERED_SLACK = .005, .01


def parse_arguments():
    parser = where.parser(__doc__)
    parser.add_argument("--reuse", action="store_true",
                        help="tables that an earlier run has left")
    parser.add_argument("--alone", action="store_true",
                        help="without hnsw and the index without keys")
    return parser.parse_args()


# ---------------------------------------------------------------------- cases

def in_range(share, columns, rng, nqueries):
    width = max(1, round(share * WIDEST / 100))
    low = rng.integers(0, WIDEST - width + 1, nqueries)
    return conditions.Case(
        "%g %%" % share, "keys", share,
        "r >= %%(c)s AND r < %%(c)s + %d" % width, low.tolist(),
        lambda c: (columns["r"] >= c).nonzero()[0][
            columns["r"][columns["r"] >= c] < c + width])


def make(base, query):
    """(columns of the table, cases)"""
    import numpy as np
    rng = np.random.default_rng(conditions.SEED)    # of columns
    asked = np.random.default_rng(conditions.SEED + 1)
    columns = {"r": rng.integers(0, WIDEST, len(base), dtype=np.int32),
               "o": rng.integers(0, 10, len(base), dtype=np.int32)}
    found = [in_range(s, columns, asked, len(query)) for s in BOUNDS]
    found += conditions.clustered(CLUSTERED, base, query, columns, rng,
                                  "clustered", "clustered")
    for word, column in ("two keys", "k10"), ("a filter, too", "o"):
        found.append(conditions.Case(
            word + ", 1 %", "combined", 1,
            "r < 100 AND %s = %%(c)s" % column,
            asked.integers(0, 10, len(query)).tolist(),
            lambda c, column=column: np.flatnonzero(
                (columns["r"] < 100) & (columns[column] == c))))
    found.append(conditions.Case("none", "none", 100))
    return columns, found


# --------------------------------------------------------------------- tables

def prepare_tables(conn, args, found, columns):
    conn.execute("SET maintenance_work_mem = '%s'" % args.maintenance_work_mem)
    data.say("loading %d x %d" % found.base.shape)
    where.load(conn, found.base, columns, [KEYS, PLAIN, HNSW])
    took = {KEYS: where.build(conn, args, KEYS, "gpuivfpq", ", r, k10, k100"),
            PLAIN: where.build(conn, args, PLAIN, "gpuivfpq")}
    if not args.alone:
        took[HNSW] = where.build(conn, args, HNSW, "hnsw")
    return took


# --------------------------------------------------------------------- points

def points_of(case, operator, alone):
    """All that a case compares; the search without a condition is in each, so
    that it is measured in the same minutes."""
    free = conditions.Case("none", "none", 100)
    free.reach, free.wanted = NONE.reach, NONE.wanted
    found = []
    for target in TARGETS:
        settings = {**where.FORCED, "gpuvec.recall": target}
        label = "%g" % target
        if case.kind != "none":
            found.append(where.Point("keys", label, KEYS, case, operator,
                                     settings))
        found.append(where.Point("no condition", label, KEYS, free, operator,
                                 settings))
        found.append(where.Point("no keys", label, PLAIN, free, operator,
                                 settings))
        if case.kind != "none" and not alone:
            found.append(where.Point("filter", label, PLAIN, case, operator,
                                     settings))
    if not alone and case.kind != "none":
        found += where.hnsw_points(case, operator)
    return found


NONE = conditions.Case("none", "none", 100)


def multiples(point, other):
    """Times another point's time, by the client's clock and the server's."""
    return {"p50": point.p50 / other.p50, "cpu": point.cpu / other.cpu}


def row(case, points, target):
    """A line of the table."""
    label = "%g" % target
    keys = where.first(points, "keys", label)
    times = multiples(keys, where.first(points, "no condition", label))
    slack = CLUSTERED_SLACK if case.kind == "clustered" else SLACK
    ratio = times[where.Point.by]
    allowed = BOUNDS.get(case.share) if case.kind == "keys" else None
    hnsw, less = where.hnsw_ms(points, keys.recall)
    plain = where.first(points, "filter", label)
    return [case.name, label, "%.4f" % keys.recall, "%.4f" % keys.error,
            "yes" if keys.recall >= target - slack else
            "no (%.4f)" % (keys.recall - target),
            "%.3f" % keys.p50, "%.3f" % keys.cpu, "%.2f" % times["p50"],
            "%.2f" % times["cpu"],
            "" if allowed is None else
            "%s %g" % ("<=" if ratio <= allowed else ">", allowed),
            "%.2f" % (plain.time / keys.time) if plain else "",
            "%s%.0f" % (less, hnsw / keys.time) if hnsw else "", keys.plan]


def free_row(points, target):
    """The search without a condition, beside that of an index without keys."""
    label = "%g" % target
    free = where.first(points, "no condition", label)
    times = multiples(free, where.first(points, "no keys", label))
    return ["none, x no keys", label, "%.4f" % free.recall,
            "%.4f" % free.error, "", "%.3f" % free.p50, "%.3f" % free.cpu,
            "%.2f" % times["p50"], "%.2f" % times["cpu"], "", "", "",
            free.plan]


HEAD = ["condition", "asked", "recall", "+-", "met", "p50 ms", "cpu ms",
        "x p50", "x cpu", "allowed", "filter / keys", "hnsw / keys", "plan"]


def table(measured):
    lines = [HEAD]
    for case, points in measured:
        for target in TARGETS:
            lines.append(free_row(points, target) if case.kind == "none" else
                         row(case, points, target))
    return report.table(lines, "l" + "r" * (len(HEAD) - 2) + "l")


# ----------------------------------------------------------------------- main

def bytes_of(conn):
    return {t: server.one(conn, "SELECT pg_relation_size('%s_v')" % t)
            for t in (KEYS, PLAIN)}


def measure(conn, args, found):
    operator = compared.METRICS[args.metric][0]
    columns, cases = make(found.base, found.query)
    built = {} if args.reuse else prepare_tables(conn, args, found, columns)
    server.prewarm(conn, [KEYS, PLAIN] + [HNSW] * (not args.alone))
    truth = conditions.Truth(found.base, found.query, args.metric)
    chosen = [c for c in cases if where.wanted(c.name, args)]
    truth.learn([NONE, *chosen])
    run = where.Run(conn, args, truth, found.query)
    measured = []
    for case in chosen:
        measured.append((case, run.measure(
            case.name, points_of(case, operator, args.alone))))
        data.say("\n".join(table(measured)))
    return built, measured


def main():
    args = parse_arguments()
    found, load_before = compared.begin(args)
    found.query = found.query[:args.queries]
    with where.connect(args) as conn:
        built, measured = measure(conn, args, found)
        told = where.facts(conn, args, found, built, load_before)
        told["bytes"] = ", ".join("%s %d" % b for b in bytes_of(conn).items())
        server.write("keys-%s-%s" % (args.data, args.metric), told,
                     table(measured), where.as_json(measured))


if __name__ == "__main__":
    main()
