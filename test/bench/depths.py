#!/usr/bin/env python3
"""Is the recall promised at every depth, whoever knows how many?

usage: depths.py DATA [--rows N] [--queries N] [--clients N] [--limits N,...]
                 [--index "(KEY OPCLASS, ...) [WITH (...)]"]... [--recall R]

A cell is a condition (shares of the rows, independent of the distance, with it
or against it), a way to want rows (LIMIT as a constant, in a generic plan, by
a cursor, with a semi join above the scan) and a number of rows.  The queries
are those held-out ones that are nearest to one of them, the anchor: the column
`near` is the rows' rank by distance to it, somewhat shaken, f is random.

The truth is exact, of the rows that a condition has, and judged by distance,
so that of equal rows any will do.  The promise of each cell: mean recall no
less than gpuvec.recall - .02; nine of ten queries no less than gpuvec.recall
- .1; rows returned no fewer than gpuvec.recall - .02 of those wanted that
there are, and as many as wanted while more match.  Rows that do not match, the
same row twice and rows out of order are faults whatever the recall.

Runs in the cluster that libpq's environment variables name; test/bench/run.sh
makes one.  Cells are spread over --clients sessions, those of few rows first;
each has --budget seconds, but asks no fewer than --least queries.  Each cell's
plan is looked at: where the planner does not take the index by itself, sorts
and other scans are switched off for the cell, which is marked 'forced'.  A run
that is ended by a signal says what it has seen.
"""
import argparse
import collections
import multiprocessing
import signal
import sys
import time

import data
import dataset
import server
import systems

TABLE, INDEX, KEEP = "t_depths", "t_depths_v", "t_depths_keep"
SEED = 51                       # of the columns
SHAKEN = .02                    # of the rows that rank one changes places with
FETCH = 100                     # rows of a cursor at a time
SLACK = 1e-6                    # relative, of squared distances
WAYS = ["limit", "generic", "cursor", "join"]
FORCED = ["seqscan", "sort", "bitmapscan", "hashjoin", "mergejoin"]
# name: (condition, mask of the rows that match)
CONDITIONS = {"none": ("true", lambda f, near: f >= 0),
              "1": ("f >= 0", lambda f, near: f >= 0)}


def add_conditions(share):
    """Three conditions that `share` of the rows fulfill."""
    CONDITIONS["%g" % share] = (
        "f < %g" % share, lambda f, near: f < share)
    CONDITIONS["%g with" % share] = (
        "near < %g" % share, lambda f, near: near < share)
    CONDITIONS["%g against" % share] = (
        "near >= %g" % (1 - share),
        lambda f, near: near >= round(1 - share, 9))


for part in .5, .1, .01:
    add_conditions(part)

Cell = collections.namedtuple("Cell", "condition way limit")
# what the sessions share, which are forked: args, query, distances [nq][n], f,
# near; and each one's connection
shared = argparse.Namespace()


def parse_arguments():
    parser = server.parser(__doc__, queries=200, maintenance_work_mem="1GB")
    parser.add_argument("data", help="as data.py names it")
    parser.add_argument("--rows", type=int, help="the set's first ones")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--limits", default="10,100,300,1000,3000,all")
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--index", action="append", metavar="KEYS",
                        help="(v OPCLASS); f and near may be further keys")
    parser.add_argument("--recall", type=float, default=.95)
    parser.add_argument("--metric", choices=systems.METRICS, default="l2")
    parser.add_argument("--type", choices=["vector", "real[]"],
                        help="vector, if pgvector is there")
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--least", type=int, default=20, metavar="QUERIES")
    parser.add_argument("--reuse", action="store_true",
                        help="tables that an earlier run has left")
    return parser.parse_args()


# ----------------------------------------------------------------------- load

def distances(base, query):
    """float64 [nq][n], squared."""
    import numpy as np
    base, query = base.astype(np.float64), query.astype(np.float64)
    found = query @ base.T
    found *= -2
    found += np.einsum("ij,ij->i", base, base)
    found += np.einsum("ij,ij->i", query, query)[:, None]
    return np.maximum(found, 0, out=found)


def rank(x):
    """From 0 to 1."""
    import numpy as np
    return (np.argsort(np.argsort(x, kind="stable")) + .5) / len(x)


def choose(args, found):
    """Fills `shared`."""
    import numpy as np
    base, query = found.base[:args.rows], found.query
    if args.metric == "cosine":
        base, query = dataset.unit(base), dataset.unit(query)
    near = np.argsort(distances(query, query[:1])[0], kind="stable")
    near = near[:args.queries]
    rng = np.random.default_rng(SEED)
    shared.args, shared.query = args, found.query[near]
    shared.distances = distances(base, query[near])
    shared.f = rng.random(len(base))
    shared.near = rank(rank(distances(base, query[:1])[0])
                       + SHAKEN * rng.random(len(base)))


def load(conn, args, base):
    """The table, and one of the columns alone, by key."""
    conn.execute("DROP TABLE IF EXISTS loaded, %s, %s" % (TABLE, KEEP))
    server.load_labeled(conn, [TABLE], base[:args.rows], args.type,
                        {"f": shared.f, "near": shared.near}, KEEP)
    for table in TABLE, KEEP:
        conn.execute("VACUUM ANALYZE " + table)


def build(conn, args, keys):
    conn.execute("DROP INDEX IF EXISTS " + INDEX)
    conn.execute("SET maintenance_work_mem = '%s'" % args.maintenance_work_mem)
    took, _, _ = server.build(conn, "CREATE INDEX %s ON %s USING gpuivfpq %s"
                              % (INDEX, TABLE, keys))
    conn.execute("VACUUM ANALYZE " + TABLE)
    data.say("%s: built in %.1f s" % (keys, took))


# ---------------------------------------------------------------------- cells

def vector(i):
    """Query i as a constant."""
    values = ",".join(map(repr, shared.query[i].tolist()))
    return "'%s'::%s" % (
        ("{%s}" if shared.args.type == "real[]" else "[%s]") % values,
        shared.args.type)


def ordered(cell, query):
    """The statement without its LIMIT."""
    condition = CONDITIONS[cell.condition][0]
    if cell.way == "join":
        condition = "EXISTS (SELECT FROM %s AS k WHERE k.id = t.id AND %s)" % (
            KEEP, condition if condition == "true" else "k." + condition)
    return "SELECT t.id FROM %s AS t%s ORDER BY t.v %s %s" % (
        TABLE, "" if condition == "true" else " WHERE " + condition,
        systems.METRICS[shared.args.metric][0], query)


def begin(conn, cell, wanted):
    """Settings and what is prepared; returns what to say of the plan."""
    conn.execute("SET plan_cache_mode = %s" % (
        "force_generic_plan" if cell.way == "generic" else "auto"))
    for switch, said in ("on", ""), ("off", "forced"):
        for name in FORCED:
            conn.execute("SET enable_%s = %s" % (name, switch))
        conn.execute("DEALLOCATE ALL")
        if cell.way == "generic":
            conn.execute("PREPARE p (%s, bigint) AS %s LIMIT $2" % (
                shared.args.type, ordered(cell, "$1")))
        if is_ours(conn, cell, wanted):
            return said
    return "other plan"


def is_ours(conn, cell, wanted):
    """Does the plan take the rows in the index's order?"""
    plan = [line for line, in conn.execute(
        "EXPLAIN (COSTS off) " + statement(cell, 0, wanted)).fetchall()]
    return not any("Sort" in line for line in plan) and any(
        INDEX in line for line in plan)


def statement(cell, i, wanted):
    """For query i."""
    if cell.way == "generic":
        return "EXECUTE p (%s, %d)" % (vector(i), wanted)
    if cell.way == "cursor":
        return "DECLARE c NO SCROLL CURSOR FOR " + ordered(cell, vector(i))
    return "%s LIMIT %d" % (ordered(cell, vector(i)), wanted)


def ask(conn, cell, i, wanted):
    """The ids that query i gets."""
    text = statement(cell, i, wanted)
    cursor = conn.cursor(binary=True)
    if cell.way != "cursor":
        return cursor.execute(text).fetchall()
    rows = []
    with conn.transaction():
        cursor.execute(text)
        while len(rows) < wanted:
            asked = min(FETCH, wanted - len(rows))
            some = cursor.execute("FETCH %d FROM c" % asked).fetchall()
            rows += some
            if len(some) < asked:
                break
        cursor.execute("CLOSE c")
    return rows


class Measured:
    """What a cell's queries gave."""

    def __init__(self, cell, plan):
        self.cell, self.plan = cell, plan
        self.recalls, self.returned, self.times = [], [], []
        self.short = self.faults = 0

    def judge(self, ids, dist, matching, wanted, target):
        """Of a query's ids in order; `matching`: distances of all rows that
        match, `dist`: of the ids, infinite where one does not."""
        import numpy as np
        k = min(wanted, len(matching))
        reach = np.partition(matching, k - 1)[k - 1] * (1 + SLACK)
        self.faults += (len(set(ids)) < len(ids) or len(ids) > wanted
                        or bool((dist[1:] < dist[:-1] * (1 - SLACK)).any())
                        or bool(np.isinf(dist).any()))
        self.recalls.append(min(k, int((dist <= reach).sum())) / k)
        self.returned.append(len(ids) / k)
        self.short += (wanted <= (target - .02) * len(matching)
                       and len(ids) < wanted)

    def finish(self, target):
        import numpy as np
        recalls = np.sort(self.recalls)
        self.mean = recalls.mean()
        self.worst = recalls[:max(1, len(recalls) // 10)].mean()
        self.tenth = np.percentile(recalls, 10)
        self.rows = np.mean(self.returned)
        self.ms = np.median(self.times) * 1e3
        self.kept = (self.mean >= target - .02 and self.tenth >= target - .1
                     and self.rows >= target - .02 and self.short == 0
                     and self.faults == 0 and self.plan != "other plan")
        return self

    HEAD = ("%-13s %-8s %6s %7s %7s %6s %6s %8s %6s %6s %9s" % (
        "condition", "way", "limit", "queries", "recall", "worst", "10th",
        "returned", "short", "faults", "ms"))

    LINE = "%-13s %-8s %6s %7d %7.4f %6.3f %6.3f %8.4f %6d %6d %9.2f %s"

    def line(self):
        return self.LINE % (
            *self.cell, len(self.recalls), self.mean, self.worst, self.tenth,
            self.rows, self.short, self.faults, self.ms, " ".join(
                filter(None, ["" if self.kept else "BELOW", self.plan])))


def connect():
    """A session of its own for each process, which the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    shared.conn = server.connect()
    shared.conn.prepare_threshold = None    # each statement's text differs
    server.set_all(shared.conn, {"gpuvec.recall": shared.args.recall,
                                 "jit": "off"})


def measure(cell):
    import numpy as np
    args, conn = shared.args, shared.conn
    wanted = len(shared.f) if cell.limit == "all" else int(cell.limit)
    mask = CONDITIONS[cell.condition][1](shared.f, shared.near)
    found = Measured(cell, begin(conn, cell, wanted))
    end = time.monotonic() + args.budget
    for i in range(len(shared.query)):
        if i >= args.least and time.monotonic() > end:
            break
        start = time.monotonic()
        rows = ask(conn, cell, i, wanted)
        found.times.append(time.monotonic() - start)
        ids = [row for row, in rows]
        dist = np.where(mask[ids], shared.distances[i, ids], np.inf) \
            if ids else np.empty(0)
        found.judge(ids, dist, shared.distances[i, mask], wanted, args.recall)
    return found.finish(args.recall)


def cells(args):
    """Those of few rows first, so that a run that is cut short has seen all
    conditions."""
    return [Cell(condition, way, limit) for limit in args.limits.split(",")
            for condition in args.conditions.split(",")
            for way in args.ways.split(",")]


def measure_all(args, keys):
    """Prints a line for each cell, as they come, and those that are below."""
    print("\n%s\n%s" % (keys, Measured.HEAD), flush=True)
    found, asked = [], cells(args)
    with multiprocessing.get_context("fork").Pool(
            min(args.clients, len(asked)), connect) as pool:
        try:
            for one in pool.imap_unordered(measure, asked):
                print(one.line(), flush=True)
                found.append(one)
        except KeyboardInterrupt:
            print("cut short: of %d cells" % len(asked))
    below = [one for one in found if not one.kept]
    print("%s: %d cells, %d below the promise of %g" % (
        keys, len(found), len(below), args.recall))
    for one in sorted(below, key=lambda one: asked.index(one.cell)):
        print(one.line())
    sys.stdout.flush()
    return len(found) == len(asked), len(below)


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    dataset.prepare(args.data)
    if args.prepare:
        return 0
    found = dataset.load(args.data)
    choose(args, found)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server.connect() as conn:
        conn.execute("SET client_min_messages = warning")
        has_pgvector = server.one(
            conn, "SELECT count(*) FROM pg_available_extensions "
            "WHERE name = 'gpuvec_pgvector'") and server.one(
                conn, "SELECT count(*) FROM pg_available_extensions "
                "WHERE name = 'vector'")
        args.type = args.type or ("vector" if has_pgvector else "real[]")
        conn.execute("CREATE EXTENSION IF NOT EXISTS %s CASCADE" % (
            "gpuvec" if args.type == "real[]" else "gpuvec_pgvector"))
        if not args.reuse:
            load(conn, args, found.base)
        print("%s, %d x %d, %d queries, %s; %s, gpuvec %s" % (
            args.data, len(shared.f), found.dims, len(shared.query),
            args.metric, server.machine(), server.extension(conn, "gpuvec")))
        whole, below = True, 0
        for keys in args.index or ["(v %s_%s)" % (
                args.type.rstrip("[]"), systems.METRICS[args.metric][1])]:
            if whole:
                build(conn, args, keys)
                whole, count = measure_all(args, keys)
                below += count
    return below > 0 or not whole


if __name__ == "__main__":
    sys.exit(main())
