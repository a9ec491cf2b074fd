#!/usr/bin/env python3
"""How good are the indexes of your own table?

usage: table.py DSN TABLE COLUMN [QUERIES] [OPTION...]
       make bench BENCH="table DSN TABLE COLUMN [QUERIES] [OPTION...]"

Recall against queries/s of the gpuivfpq, hnsw and ivfflat indexes that a
column of real[], vector or halfvec has, beside a sequential scan, in a
database of yours; a table, a JSON file and a plot in build/bench/.

DSN      what psql takes: a name, 'host=... dbname=...' or a URI
TABLE    as in SQL: docs, shop.docs, '"Shop"."My docs"'
QUERIES  where the queries are: a column, as shop.asked.embedding; a .npy file
         [queries][dimensions]; or a text file, one vector a line.  When left
         out, rows of the table, which are left out of their own answers

It needs SELECT on the column and changes nothing: all is done in one
transaction, READ ONLY, so that PostgreSQL refuses what would change something,
and REPEATABLE READ, so that all see the same rows; settings are SET LOCAL, and
at the end it is rolled back.  Sequential scans, one for each query, tell which
rows are the nearest; of equally far ones any will do.  Each setting of each
index gets all queries in turn, as prepared statements: first one by one, whose
median time, the way to the server and back included, is printed as ms; then,
in several rounds, one behind the other without waiting for answers, whose rate
is queries/s.  If an ANALYZE, autovacuum's say, has PostgreSQL plan statements
again meanwhile, the measurement is repeated.  Partial indexes, those on expressions and those of another
distance are named and left out.
"""
import contextlib
import datetime
import os
import re
import statistics
import sys
import time

import data
import report
import server
import systems as compared

TYPES = {"_float4": "{%s}", "vector": "[%s]", "halfvec": "[%s]"}
RECALLS = [.8, .9, .95, .98, .99, .995, .999]
SWEEPS = {"gpuivfpq": ("gpuvec.recall", RECALLS),
          "hnsw": ("hnsw.ef_search", compared.EF_SEARCH),
          "ivfflat": ("ivfflat.probes", compared.IVFFLAT_PROBES)}
# what makes the planner think that an index of a method is cheap, or dear
CHEAP = {"gpuivfpq": {"gpuvec.recall": .5, "gpuvec.probes": 1,
                      "gpuvec.candidates": 1},
         "hnsw": {"hnsw.ef_search": 1}, "ivfflat": {"ivfflat.probes": 1}}
DEAR = {"gpuivfpq": {"gpuvec.recall": 1, "gpuvec.probes": 0,
                     "gpuvec.candidates": 0},
        "hnsw": {"hnsw.ef_search": 1000}, "ivfflat": {"ivfflat.probes": 32768}}
BY_INDEX = {"enable_seqscan": "off", "enable_sort": "off"}
BY_TABLE = {"enable_indexscan": "off"}
NO_LIMITS = ["statement_timeout", "idle_in_transaction_session_timeout",
             "transaction_timeout"]
SEED = .5                       # of the rows that are drawn as queries
TRIES = 20                      # measurements while statements are planned again
AT_RECALL = [.9, .95, .98, .99]


def parse_arguments():
    parser = server.options(data.parser(__doc__), queries=200, k=10, rounds=3)
    parser.add_argument("dsn")
    parser.add_argument("table")
    parser.add_argument("column")
    parser.add_argument("source", nargs="?", metavar="queries")
    parser.add_argument("--operator", choices=["<->", "<=>", "<#>"],
                        help="where the column's indexes are for several")
    parser.add_argument("--seconds", type=float, default=2,
                        help="a setting and round")
    return parser.parse_args()


# ------------------------------------------------------------------ the table

def connect(dsn):
    """A connection whose first statement begins the transaction."""
    import psycopg
    if "=" not in dsn and "://" not in dsn:
        dsn = psycopg.conninfo.make_conninfo(dbname=dsn)
    conn = psycopg.connect(dsn, application_name="gpuvec bench")
    conn.read_only = True
    conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    for name in NO_LIMITS:
        conn.execute("SELECT set_config(name, '0', true) FROM pg_settings "
                     "WHERE name = %s", [name])
    return conn


class Column:
    """A table's column of vectors: its names, ready for SQL, and type."""

    def __init__(self, conn, table, column):
        self.table = server.one(
            conn, "SELECT to_regclass(%s)::oid::regclass::text", table)
        if self.table is None:
            sys.exit("bench: there is no table %s; name its schema, and put "
                     "names with capitals in double quotes" % table)
        names = [column[1:-1].replace('""', '"')] if column[:1] == '"' else \
            [column, column.lower()]
        found = conn.execute(
            "SELECT quote_ident(attname), attnum, attrelid,"
            "  format_type(b.oid, NULL), b.typname"
            " FROM pg_attribute JOIN pg_type t ON t.oid = atttypid"
            "  JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd'"
            "   THEN t.typbasetype ELSE t.oid END"
            " WHERE attrelid = %s::regclass AND attname = ANY (%s)"
            "  AND attnum > 0 AND NOT attisdropped"
            " ORDER BY attname = %s DESC", [self.table, names, names[0]])
        row = found.fetchone()
        if row is None:
            sys.exit("bench: table %s has no column %s" % (self.table, column))
        self.name, self.number, self.relation, self.type, kind = row
        if kind not in TYPES:
            sys.exit("bench: column %s of %s is %s, not real[], vector or "
                     "halfvec" % (self.name, self.table, self.type))
        self.literal = TYPES[kind]

    def values(self, conn, count):
        """Some values that are no NULL, as text."""
        conn.execute("SELECT setseed(%s)", [SEED])
        return [text for text, in conn.execute(
            "SELECT v::text FROM (SELECT %s AS v FROM %s WHERE %s IS NOT NULL "
            "ORDER BY random() LIMIT %d) AS drawn"
            % (self.name, self.table, self.name, count)).fetchall()]

    def nearest(self, operator, k):
        """The statement that is measured; its answer is distances."""
        distance = "%s %s %%(q)s::%s" % (
            self.name.replace("%", "%%"), operator, self.type)
        return "SELECT %s FROM %s ORDER BY %s LIMIT %d" % (
            distance, self.table.replace("%", "%%"), distance, k)


# ----------------------------------------------------------------- its indexes

INDEXES = """
SELECT c.oid::regclass::text, am.amname, oprname,
	format('OPERATOR(%%I.%%s)', n.nspname, oprname),
	CASE WHEN NOT (indisvalid AND indisready) THEN 'not valid'
		WHEN indpred IS NOT NULL THEN 'a partial index'
		WHEN indkey[0] = 0 THEN 'on an expression' END,
	sum(pg_relation_size(part.oid)), array_agg(part.oid)
FROM pg_index JOIN pg_class AS c ON c.oid = indexrelid
	JOIN pg_am AS am ON am.oid = c.relam
	JOIN pg_opclass AS o ON o.oid = indclass[0]
	JOIN pg_amop ON amopfamily = opcfamily AND amoppurpose = 'o'
		AND amoplefttype = opcintype AND amoprighttype = opcintype
	JOIN pg_operator AS d ON d.oid = amopopr
	JOIN pg_namespace AS n ON n.oid = oprnamespace
	JOIN pg_class AS part ON part.oid = c.oid
		OR part.oid IN (SELECT relid FROM pg_partition_tree(c.oid))
WHERE indrelid = %s AND indkey[0] IN (0, %s) AND am.amname = ANY (%s)
GROUP BY c.oid, 1, 2, 3, 4, 5 ORDER BY am.amname <> 'gpuivfpq', c.oid"""


class Index(compared.System):
    """One that the column has; oids: of itself and its partitions."""

    def __init__(self, row):
        name, method, self.sign, self.operator, self.why_not, size, \
            self.oids = row
        super().__init__("%s %s" % (method, name), None, method)
        self.index, self.bytes = name, int(size)


def find_indexes(conn, column, sign):
    """The indexes to measure, all of one operator."""
    found = [Index(row) for row in conn.execute(
        INDEXES, [column.relation, column.number, list(SWEEPS)]).fetchall()]
    good = [i for i in found if not i.why_not]
    if sign is None and good:
        sign = good[0].sign
    for index in good:
        if index.sign != sign:
            index.why_not = "for %s, not %s (--operator)" % (index.sign, sign)
    for index in found:
        if index.why_not:
            data.say("left out: %s, %s" % (index.name, index.why_not))
    good = [i for i in good if not i.why_not]
    if not good:
        sys.exit("bench: column %s of %s has no gpuivfpq, hnsw or ivfflat "
                 "index%s that could be measured"
                 % (column.name, column.table,
                    " for " + sign if sign else ""))
    return good


# ----------------------------------------------------------------- its queries

def split_vector(text):
    return re.split(r"[,\s]+", text.strip().strip("[]{}()").strip())


def read_file(path, count):
    """Vectors of a file, each a list of words."""
    if path.endswith(".npy"):
        import numpy as np
        return [[repr(float(x)) for x in row]
                for row in np.load(path, mmap_mode="r")[:count]]
    with open(path) as f:
        return [split_vector(line) for line in f if line.strip()][:count]


def read_column(conn, name, count):
    parts = server.one(conn, "SELECT parse_ident(%s)", name)
    if len(parts) < 2:
        sys.exit("bench: queries are a file, or table.column, not " + name)
    quoted = [server.one(conn, "SELECT quote_ident(%s)", p) for p in parts]
    return [split_vector(text) for text in Column(
        conn, ".".join(quoted[:-1]), quoted[-1]).values(conn, count)]


def find_queries(conn, column, args):
    """Texts of queries, of the column's type."""
    if args.source is None:
        found = [split_vector(v) for v in column.values(conn, args.queries)]
    elif os.path.exists(args.source):
        found = read_file(args.source, args.queries)
    else:
        found = read_column(conn, args.source, args.queries)
    try:
        # under cosine zeros have no direction: all distances would be NaN
        found = [v for v in found if any(float(x) for x in v)]
    except ValueError as e:
        sys.exit("bench: %s has something else than vectors: %s"
                 % (args.source, e))
    if not found:
        sys.exit("bench: there are no vectors to ask for in %s"
                 % (args.source or column.table))
    return [column.literal % ",".join(v) for v in found]


# ------------------------------------------------------------------- measuring

class Judge:
    """Says which distances are among the true k nearest of each query; of rows
    that are queries themselves, k others."""

    def __init__(self, conn, column, operator, queries, own, k):
        self.own, self.k = None, k
        if own:
            self.own = [server.one(
                conn, "SELECT %%s::%s %s %%s::%s"
                % (column.type, operator, column.type), q, q)
                for q in queries]

    def learn(self, answers):
        """Takes all true answers."""
        self.truth = [self.others(i, a) for i, a in enumerate(answers)]

    def others(self, i, distances):
        """Query i's answer without the query."""
        found = [d for d in distances if d is not None and d == d]
        if self.own and self.own[i] in found:
            found.remove(self.own[i])
        return found[:self.k]

    def recall(self, i, distances):
        truth = self.truth[i]
        if not truth:
            return 1
        reach = truth[-1] + 1e-12 * abs(truth[-1])
        return min(sum(d <= reach for d in self.others(i, distances)),
                   len(truth)) / len(truth)


@contextlib.contextmanager
def under(conn, settings):
    """Settings that hold in here.  After a rollback to a savepoint psycopg
    would forget what it has prepared."""
    before = {name: server.one(conn, "SELECT current_setting(%s)", name)
              for name in settings}
    set_local(conn, settings)
    yield
    set_local(conn, before)


def set_local(conn, settings):
    for name, value in settings.items():
        conn.execute("SELECT set_config(%s, %s, true)", [name, str(value)])


def plan_nodes(node):
    yield node
    for child in node.get("Plans", []):
        yield from plan_nodes(child)


class Bench:
    """A connection, the statement that is measured, its number, and the
    queries that it gets."""

    def __init__(self, conn, column, operator, queries, args):
        self.conn, self.queries, self.args = conn, queries, args
        self.number = 0
        own = args.source is None
        self.statement = column.nearest(operator, args.k + own)
        self.judge = Judge(conn, column, operator, queries, own, args.k)
        conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")

    def choice(self):
        """What the planner takes; loads the libraries of all indexes."""
        plan, = self.conn.execute("EXPLAIN (FORMAT JSON) " + self.statement,
                                  {"q": self.queries[0]}).fetchone()
        return sorted({node.get("Index Name", node["Node Type"])
                       for node in plan_nodes(plan[0]["Plan"])
                       if "Index Name" in node
                       or node["Node Type"].endswith("Seq Scan")})

    def plan(self, system):
        """Has a new statement planned for a system.  Returns whether the
        planner takes it."""
        self.number += 1
        before = self.scans(system.oids)
        with under(self.conn, system.planned):
            self.ask(0)
        return self.scans(system.oids) > before

    def by(self, system, settings, ask):
        """What `ask` returns under settings: a result, and how many queries
        it asked, all of which the system's scans have answered."""
        for _ in range(TRIES):
            self.plan(system)
            before = self.scans(system.oids)
            with under(self.conn, settings):
                result, asked = ask()
            if self.scans(system.oids) >= before + asked:
                return result
        sys.exit("bench: the planner no longer takes %s" % system.name)

    def ask(self, i):
        return self.conn.execute(
            "/* %d */ %s" % (self.number, self.statement),
            {"q": self.queries[i % len(self.queries)]}, prepare=True)

    def scans(self, oids):
        """Scans of relations in this transaction."""
        return server.one(self.conn, "SELECT sum(pg_stat_get_xact_numscans(r))"
                          " FROM unnest(%s::oid[]) AS r", oids)

    def ask_each(self):
        """(distances of each query, median ms)"""
        answers, times = [], []
        for i in range(len(self.queries)):
            begin = time.perf_counter()
            rows = self.ask(i).fetchall()
            times.append(1000 * (time.perf_counter() - begin))
            answers.append([d for d, in rows])
        return (answers, statistics.median(times)), len(times)

    def learn(self, exact, point):
        """The sequential scan says what is true."""
        begin = time.perf_counter()
        self.plan(exact)
        data.say("true neighbors of %d queries by sequential scans: %.0f s "
                 "or so" % (len(self.queries), len(self.queries) * (
                     time.perf_counter() - begin)))
        answers, point.ms = self.by(exact, {}, self.ask_each)
        self.judge.learn(answers)
        point.recall = 1.

    def measure(self, system, point):
        answers, point.ms = self.by(system, point.settings, self.ask_each)
        point.recall = statistics.mean(
            self.judge.recall(i, a) for i, a in enumerate(answers))

    def ask_fast(self, at_once):
        """Queries/s, none waiting for the answer to another."""
        done, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < self.args.seconds:
            with self.conn.pipeline():
                for i in range(done, done + at_once):
                    self.ask(i)
            done += at_once
        return done / (time.perf_counter() - begin), done

    def measure_rate(self, system, point):
        at_once = max(1, min(1000, int(self.args.seconds * 250 / point.ms)))
        point.rates.setdefault(1, []).append(self.by(
            system, point.settings, lambda: self.ask_fast(at_once)))


def choose_points(index, k):
    name, values = SWEEPS[index.method]
    return [compared.Point("as it is set", {}, True)] + [
        compared.Point("%s %s" % (name.split(".")[1], v), {name: v})
        for v in values if name != "hnsw.ef_search" or v >= k]


def plan_all(bench, indexes):
    """Settings for each index with which the planner finds that one cheap and
    the others dear.  Returns the indexes that it takes."""
    taken = []
    for index in indexes:
        index.planned = dict(BY_INDEX)
        for other in indexes:
            index.planned.update(DEAR[other.method])
        index.planned.update(CHEAP[index.method])
        if bench.plan(index):
            index.points = choose_points(index, bench.args.k)
            taken.append(index)
        else:
            data.say("left out: %s, the planner takes another" % index.name)
    return taken


def measure(bench, exact, indexes):
    bench.learn(exact, exact.points[0])
    for index in plan_all(bench, indexes):
        data.say("recall of " + index.name)
        bench.by(index, {}, bench.ask_each)     # so that it is in memory
        for point in index.points:
            bench.measure(index, point)
    measured = [i for i in indexes if i.points] + [exact]
    for i in range(bench.args.rounds):
        data.say("round %d of %d" % (i + 1, bench.args.rounds))
        for system in measured:
            for point in system.points:
                bench.measure_rate(system, point)
    return measured


# --------------------------------------------------------------------- output

def facts(bench, column, sign, args, planner):
    conn = bench.conn
    extensions = conn.execute(
        "SELECT string_agg(extname || ' ' || extversion, ', '"
        " ORDER BY extname)"
        " FROM pg_extension WHERE extname IN ('gpuvec', 'vector')").fetchone()
    unwritten = server.one(
        conn, "SELECT current_setting('transaction_read_only') = 'on'"
        " AND pg_current_xact_id_if_assigned() IS NULL")
    return {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "database": "%s, PostgreSQL %s, %s" % (
            conn.info.dbname, server.one(conn, "SHOW server_version"),
            extensions[0]),
        "client": server.machine(),
        "data": "%s.%s, %s" % (column.table, column.name, column.type),
        "rows": "%.0f" % server.one(
            conn, "SELECT greatest(0, sum(reltuples)) FROM pg_class"
            " WHERE relkind <> 'p' AND (oid = %s OR oid IN"
            "  (SELECT relid FROM pg_partition_tree(%s)))",
            column.relation, column.relation),
        "dimensions": bench.queries[0].count(",") + 1,
        "metric": sign,
        "queries": "%d, %s, LIMIT %d" % (
            len(bench.queries), args.source or
            "rows of the table, left out of their own answers", args.k),
        "by itself the planner takes": planner,
        "rounds": "%d, interleaved, %g s each, medians"
                  % (args.rounds, args.seconds),
        "transaction": "read only, took no transaction id" if unwritten
                       else "it may have written",
    }


def points_table(systems, k):
    rows = [["index", "MB", "setting", "recall@%d" % k, "ms", "queries/s",
             "rounds"]]
    for s in systems:
        for p in s.points:
            rows.append([s.name, "%.1f" % (s.bytes / 1e6) if s.bytes else "-",
                         p.label + (" *" if p.default else ""),
                         "%.4f" % p.recall, "%.2f" % p.ms,
                         "%.0f" % report.rate(p, 1),
                         " ".join("%.0f" % r for r in p.rates[1])])
    return report.table(rows, "lrlrrrl")


def rates_table(systems):
    """Queries/s at a recall, between settings."""
    rows = [["index"] + ["at %g" % r for r in AT_RECALL]]
    for s in systems:
        found = [report.rate_at(s, r, 1)[0] for r in AT_RECALL]
        rows.append([s.name] + ["%.0f" % f if f else "never" for f in found])
    return report.table(rows, "l" + "r" * len(AT_RECALL))


def write(told, systems, k):
    path = server.write(
        "table-" + re.sub(r"[^\w.]+", "-", told["data"].split(", ")[0]), told,
        ["* = as the database, the role and the index have it set",
         *points_table(systems, k), "", "queries/s at a recall",
         *rates_table(systems)], report.as_json(systems))
    report.plot({**told, "machine": told["database"]}, systems, 1,
                path + ".png", k)


def run(conn, args):
    column = Column(conn, args.table, args.column)
    indexes = find_indexes(conn, column, args.operator)
    sign, operator = indexes[0].sign, indexes[0].operator
    queries = find_queries(conn, column, args)
    bench = Bench(conn, column, operator, queries, args)
    planner = ", ".join(bench.choice())
    exact = compared.exact()
    exact.name = "sequential scan"
    exact.points = [compared.Point("all rows", {})]
    exact.planned, exact.oids = BY_TABLE, server.one(
        conn, "SELECT array_agg(relid::oid) FROM pg_partition_tree(%s)",
        column.relation) or [column.relation]
    measured = measure(bench, exact, indexes)
    write(facts(bench, column, sign, args, planner), measured, args.k)


def main():
    args = parse_arguments()
    data.enter_venv("plot", __file__)
    import psycopg
    try:
        with connect(args.dsn) as conn:
            try:
                run(conn, args)
            finally:
                conn.rollback()
    except psycopg.errors.InsufficientPrivilege as e:
        sys.exit("bench: %s; it takes SELECT on the column, and USAGE of its "
                 "schema" % e.diag.message_primary)
    except psycopg.Error as e:
        sys.exit("bench: %s" % str(e).strip())


if __name__ == "__main__":
    main()
