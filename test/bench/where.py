#!/usr/bin/env python3
"""Recall and time of searches under a condition: WHERE ... ORDER BY v <=> q.

gpuivfpq at gpuvec.recall .95 and .99, beside pgvector's hnsw with iterative
scans, a sequential scan and, where the condition's column has one, a btree, in
one run, from one connection, in the cluster that libpq's environment variables
name; test/bench/run.sh makes that cluster.

With --keys the conditions are those that keys of an index answer: ranges of a
random key (share in %); the query's own cluster and the farthest one, whose keys
go with the vectors and against them; two keys; a key and a column that is none.

Else: shares of the rows without regard to vectors; one cluster of k-means'
(near: the query's own, far: the farthest one); a share that the planner cannot
guess (mod); no row at all; a radius with 0 to 1,000 rows in it; and none.

How the index gets used:
  forced      the table's only index; sequential scans and sorts are off
  own choice  the same table, what the planner takes
  beside      a table with btrees on the conditions' columns, too, what the
              planner takes
  keys        forced, an index with three int keys, and the same index with no
              condition; without keys: filter, and no keys

The truth is computed in numpy; of equally far rows any will do.  Each
statement is prepared, its vector a parameter.  p50 is the median time of a
query as the client sees it, cpu that of the processor time that the server's
process took for it; a machine that others use, too, lengthens the first, and
of long queries more, so ratios are of the second (--by), and so is p90.  In
every round each system in turn gets a part of the queries, and stops when its
time (--budget) is over, so slow ones answer fewer.  hnsw's time at a recall is
between its settings', on a logarithmic scale, of relaxed and strict order the
better.
"""
import contextlib
import re
import statistics
import time

import cases as conditions
import data
import report
import server
import systems as compared

TARGETS = [.95, .99]
# what recall may be less than asked
BELOW = {"independent": .005, "near": .01, "far": .01,
         "keys": .005, "combined": .005, "clustered": .01}
FORCED = {"enable_seqscan": "off", "enable_sort": "off"}
PLAIN = {"gpuvec.enable_custom_scan": "off"}
BY_TABLE = {"enable_indexscan": "off", "enable_bitmapscan": "off"}
BY_BTREE = {"enable_indexscan": "off", "enable_seqscan": "off"}
OURS, BOTH, HNSW, KEYED = "t_ours", "t_both", "t_hnsw", "t_keyed"
KEYS = ", r, k10, k100"
WARM_UP, WARM_UP_SECONDS = 6, .5        # plans may be generic from then on
LEAST = 4                       # queries of a point in a round
WATCHED = 10                    # every so many queries it is asked what it did


def parse_arguments():
    made = compared.parser(__doc__, "cosine", queries=1000, rounds=5)
    made.set_defaults(data="sentences:200000")
    made.add_argument("--cases", default="", metavar="WORD,...",
                      help="only those whose names begin so")
    made.add_argument("--budget", type=float, default=3, metavar="SECONDS",
                      help="of a setting and condition")
    made.add_argument("--own-budget", type=float, default=8,
                      metavar="SECONDS", help="of gpuivfpq's")
    made.add_argument("--by", choices=["cpu", "p50"], default="cpu",
                      help="of which time ratios are")
    made.add_argument("--keys", action="store_true",
                      help="conditions that keys of the index answer")
    return made.parse_args()


# ---------------------------------------------------------------------- tables

def build(conn, args, table, method, keys=""):
    data.say("building %s%s on %s" % (method, keys, table))
    took, _, _ = server.build(
        conn, server.index_statement(table, "v vector_%s%s" % (
            compared.METRICS[args.metric][1], keys), method=method))
    conn.execute("VACUUM ANALYZE " + table)
    return took


def prepare_tables(conn, args, found, columns):
    conn.execute("SET maintenance_work_mem = '%s'" % args.maintenance_work_mem)
    data.say("loading %d x %d" % found.base.shape)
    other, keys = (KEYED, KEYS) if args.keys else (BOTH, "")
    server.load_labeled(conn, [OURS, other, HNSW], found.base, "vector", columns,
                        "labels")
    if not args.keys:
        for name in columns:
            conn.execute("CREATE INDEX ON %s (%s)" % (BOTH, name))
    took = {OURS: build(conn, args, OURS, report.OURS),
            other: build(conn, args, other, report.OURS, keys),
            HNSW: build(conn, args, HNSW, "hnsw")}
    server.prewarm(conn, [OURS, other, HNSW])
    return took


def send_vectors(conn):
    """Vectors as bytes, so that no time goes into reading numbers."""
    import numpy as np
    from psycopg.adapt import Dumper
    from psycopg.pq import Format

    class VectorDumper(Dumper):
        format = Format.BINARY
        oid = server.one(conn, "SELECT 'vector'::regtype::oid")

        def dump(self, obj):
            return (len(obj).to_bytes(2, "big") + b"\0\0"
                    + obj.astype(">f4").tobytes())

    conn.adapters.register_dumper(np.ndarray, VectorDumper)


# ---------------------------------------------------------------------- points

class Point(compared.Point):
    """A statement under some settings, and what it took."""
    made, by = 0, "cpu"

    def __init__(self, system, label, table, case, operator, settings):
        super().__init__(label, settings)
        self.system, self.case = system, case
        self.ours = table != HNSW and "sequential" not in system and \
            "btree" not in system
        Point.made += 1         # or points would share a plan
        self.statement = "/* %d */ SELECT id FROM %s %s ORDER BY v %s " \
            "%%(q)s LIMIT %d" % (
                Point.made, table, case.condition and "WHERE "
                + case.condition, operator, case.limit)
        self.ms, self.cpu_ms, self.recalls, self.counts = [], [], [], []
        self.plan = self.watched = None

    def finish(self):
        import numpy as np
        self.p50 = statistics.median(self.ms)
        self.cpu = statistics.median(self.cpu_ms)
        self.time = getattr(self, Point.by)
        self.p90 = float(np.quantile(
            self.cpu_ms if Point.by == "cpu" else self.ms, .9))
        self.recall = float(np.mean(self.recalls))
        self.error = float(1.96 * np.std(self.recalls)
                           / len(self.recalls) ** .5)
        self.rates = {1: [1000 / self.time]}


def hnsw_points(case, operator):
    """Settings of iterative scans; for small shares more than hnsw reads by
    default."""
    for order in "relaxed", "strict":
        for ef, most in [(40, 20000), (100, 20000)] + \
                [(200, 20000), (400, 20000)] * (order == "relaxed") + \
                [(100, 10 ** 6)] * (case.share < 2):
            yield Point("hnsw " + order, "ef_search %d%s" % (
                ef, ", all rows" if most > 20000 else ""), HNSW, case,
                operator, {**FORCED, "hnsw.ef_search": ef,
                           "hnsw.iterative_scan": order + "_order",
                           "hnsw.max_scan_tuples": most,
                           "hnsw.scan_mem_multiplier":
                               20 if most > 20000 else 1})


def points_of(case, operator):
    """All that a case compares."""
    found = []

    def add(system, label, table, asked, settings):
        found.append(Point(system, label, table, asked, operator, settings))

    for target in TARGETS:
        recall, label = {"gpuvec.recall": target}, "%g" % target
        add("forced", label, OURS, case, {**FORCED, **recall})
        add("own choice", label, OURS, case, recall)
        if case.column:
            add("beside", label, BOTH, case, recall)
        if case.kind == "radius":
            add("no radius", label, OURS, case.free, {**FORCED, **recall})
    found += hnsw_points(case, operator)
    add("sequential scan", "", OURS, case, {**BY_TABLE, **PLAIN})
    if case.column:
        add("btree and sort", "", BOTH, case, {**BY_BTREE, **PLAIN})
    return found


def keyed_points(case, operator):
    """The same of conditions on keys; the search without a condition is in each,
    so that it is measured in the same minutes."""
    found = [Point(system, "%g" % target, table, asked, operator,
                   {**FORCED, "gpuvec.recall": target})
             for target in TARGETS for system, table, asked in (
                 ("keys", KEYED, case), ("filter", OURS, case),
                 ("no condition", KEYED, case.free),
                 ("no keys", OURS, case.free)) if asked]
    return found + list(hnsw_points(case, operator))


# ------------------------------------------------------------------- measuring

SHORT = {"Index Scan": "index", "Seq Scan": "seq", "Sort": "sort",
         "Bitmap Heap Scan": "heap", "Bitmap Index Scan": "bitmap",
         "Incremental Sort": "sort", "Custom Scan": "custom"}


def plan_words(node):
    """'sort heap bitmap', from the top; an index scan names its column."""
    name = SHORT.get(node["Node Type"])
    words = [] if name is None else [name]
    if name == "index" and not node["Index Name"].endswith("_v"):
        words = ["btree"]
    return words + [w for child in node.get("Plans", [])
                    if child["Parent Relationship"] != "InitPlan"
                    for w in plan_words(child)]


class Run:
    """A connection, the queries, and what is true."""

    def __init__(self, conn, args, truth, query):
        self.conn, self.args, self.truth = conn, args, truth
        self.query = list(query)
        self.pid = conn.info.backend_pid

    def ask(self, point, i):
        return self.conn.execute(point.statement, self.parameters(point, i),
                                 prepare=True)

    def parameters(self, point, i):
        values = point.case.values
        return {"q": self.query[i], "c": values and values[i]}

    def begin(self, point):
        """Fills caches, notes the plan."""
        server.set_all(self.conn, point.settings)
        start = time.perf_counter()
        for i in range(WARM_UP):
            self.ask(point, i % len(self.query)).fetchall()
            if time.perf_counter() - start > WARM_UP_SECONDS:
                break
        plan, = self.explain(point).fetchone()
        point.plan = " ".join(plan_words(plan[0]["Plan"]))
        point.watched = point.ours and point.plan.split()[0] in (
            "index", "custom")
        self.conn.execute("RESET ALL")

    def explain(self, point):
        """The plan that is in use, which may be the generic one."""
        name = self.conn.execute(
            "SELECT name FROM pg_prepared_statements WHERE statement LIKE %s",
            [point.statement.split("SELECT")[0] + "%"]).fetchone()
        values = self.parameters(point, 0)
        literals = {"q": "'[%s]'" % ",".join(map(str, values["q"].tolist())),
                    "c": str(values["c"])}
        # numbered as they first come up
        order = dict.fromkeys(re.findall(r"%\(([qc])\)s", point.statement))
        return self.conn.execute("EXPLAIN (FORMAT JSON) EXECUTE %s (%s)" % (
            name[0], ", ".join(literals[p] for p in order)))

    def measure_part(self, point, turn):
        """One round's part of the queries."""
        budget = (self.args.own_budget if point.ours else self.args.budget) \
            / self.args.rounds
        server.set_all(self.conn, point.settings)
        start = time.perf_counter()
        for done, i in enumerate(range(turn, len(self.query),
                                       self.args.rounds)):
            if done >= LEAST and time.perf_counter() - start > budget:
                break
            before = server.processor_s(self.pid)
            begin = time.perf_counter()
            rows = self.ask(point, i).fetchall()
            point.ms.append(1000 * (time.perf_counter() - begin))
            point.cpu_ms.append(1e3 * (server.processor_s(self.pid) - before))
            point.recalls.append(self.truth.recall(point.case, i,
                                                   [r for r, in rows]))
            if point.watched and done % WATCHED == 0:
                point.counts.append(self.conn.execute(
                    server.LAST_SCAN, prepare=True).fetchone()[1:])
        self.conn.execute("RESET ALL")

    def measure(self, name, points):
        data.say("%s: %d settings" % (name, len(points)))
        for point in points:
            self.begin(point)
        for turn in range(self.args.rounds):
            for point in points:
                self.measure_part(point, turn)
        for point in points:
            point.finish()
        return points


# ---------------------------------------------------------------------- output

def first(points, system, label=""):
    return next((p for p in points if (p.system, p.label) == (system, label)),
                None)


def hnsw_ms(points, recall):
    """(ms at this recall, '' or '<' where hnsw finds less)"""
    system = compared.System("hnsw", None)
    system.points = [p for p in points if p.system.startswith("hnsw ")]
    if not system.points:
        return None, ""
    rate, _ = report.rate_at(system, recall, 1)
    if rate:
        return 1000 / rate, ""
    return 1000 / report.frontier(system, 1)[-1][1], "<"


def verdict(case, point):
    """Is the recall met?  With a question mark where the sample's error may be
    why it is not."""
    least = float(point.label) - BELOW.get(case.kind, 0)
    return "yes" if point.recall >= least else \
        "no?" if point.recall + point.error >= least else "no"


def own_table(measured):
    """A line for each point of ours: what it took, how many times as long as
    without a condition, and what others took."""
    rows = [["case", "asked", "how", "plan", "queries", "recall", "+-", "met",
             "p50", "cpu", "p90", "x none", "hnsw", "seq", "btree", "reranked",
             "out of order"]]
    for case, points in measured:
        for p in points:
            if not p.ours:
                continue
            hnsw, less = hnsw_ms(points, p.recall) if p.case is case else \
                (None, "")
            free = first(points, "no condition", p.label)
            others = [first(points, s) for s in ("sequential scan",
                                                 "btree and sort")]
            counts = dict(zip(server.COUNTS, map(statistics.mean,
                                                 zip(*p.counts))))
            rows.append([
                case.name, p.label, p.system, p.plan, "%d" % len(p.ms),
                "%.4f" % p.recall, "%.4f" % p.error, verdict(case, p),
                "%.2f" % p.p50, "%.2f" % p.cpu, "%.2f" % p.p90,
                "%.2f" % (p.time / free.time) if free else "-",
                less + "%.2f" % hnsw if hnsw else "-",
                *["%.2f" % o.time if o else "-" for o in others],
                *["%.0f" % counts[c] if counts else "-"
                  for c in ("reranked", "out_of_order")]])
    return report.table(rows, "llllrrrlrrrrrrrrr")


def other_table(measured):
    rows = [["case", "system", "setting", "plan", "queries", "recall", "p50",
             "cpu"]]
    for case, points in measured:
        rows += [[case.name, p.system, p.label, p.plan, "%d" % len(p.ms),
                  "%.4f" % p.recall, "%.2f" % p.p50, "%.2f" % p.cpu]
                 for p in points if not p.ours]
    return report.table(rows, "llllrrrr")


def facts(conn, args, found, built, load_before):
    trips, _ = server.timed(lambda: [
        conn.execute("SELECT 1", prepare=True).fetchone()
        for _ in range(1000)])
    return {
        **server.facts(conn, load_before, args, found, ["shared_buffers"]),
        "build s": ", ".join("%s %.0f" % b for b in built.items()),
        "rounds": "%d, %g s of a setting and condition (gpuivfpq %g) in all"
                  % (args.rounds, args.budget, args.own_budget),
        "ms of SELECT 1, the way there and back":
            "%.3f" % trips,
    }


@contextlib.contextmanager
def connect(args):
    """The session that is measured."""
    Point.by = args.by
    with server.connect() as conn:
        conn.prepared_max = 1000
        server.extensions(conn, "gpuvec_pgvector")
        server.need_last_scan(conn)
        send_vectors(conn)
        yield conn


def wanted(name, args):
    return not args.cases or any(name.startswith(w)
                                 for w in args.cases.split(","))


def measure_cases(conn, args, found):
    operator = compared.METRICS[args.metric][0]
    columns, cases = conditions.make_keyed(found.base, found.query) \
        if args.keys else conditions.make(found.base, found.query, operator)
    built = prepare_tables(conn, args, found, columns)
    truth = conditions.Truth(found.base, found.query, args.metric)
    chosen = [c for c in cases if wanted(c.name, args)]
    truth.learn({c.name: c for c in [*chosen, *(
        c.free for c in chosen if c.free)]}.values())
    run = Run(conn, args, truth, found.query)
    points = keyed_points if args.keys else points_of
    measured = []
    for case in chosen:
        measured.append((case, run.measure(case.name, points(case, operator))))
        data.say("\n".join(own_table(measured[-1:])))
    return built, measured


def main():
    args = parse_arguments()
    found, load_before = compared.begin(args)
    with connect(args) as conn:
        built, measured = measure_cases(conn, args, found)
        server.write(
            "%s-%s-%s" % ("keys" if args.keys else "where", args.data,
                          args.metric),
            facts(conn, args, found, built, load_before),
            ["ms; hnsw: at that recall (<: its best, which is less), it, seq "
             "and btree by " + args.by, *own_table(measured), "",
             *other_table(measured)])


if __name__ == "__main__":
    main()
