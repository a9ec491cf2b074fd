#!/usr/bin/env python3
"""Statements of each kind by a card, in one table that can be repeated.

usage: cardsql.py DATA [--quick] [--hnsw] [--parts NAME,...] [OPTION...]

Uses the cluster that libpq's environment variables name; test/gpu/run.sh
cardsql makes it.  DATA is a set of data.py whose rows are in no order, such as
sentences.  A line is printed as soon as it is measured.  The parts:

  plain   LIMIT 10, 100 and 1,000 by an index without options
  search  gpuvec_search by it, all queries at once, in 1, 4 and 16 sessions,
          whose array of queries the statement makes, or a table has
  cpu     LIMIT 10 and 100 by it without the card
  off     as plain, with gpuvec.mirror_rows = off, by an index made anew
  tenant  LIMIT 10 of one tenant's rows, with a key: 10, 1 and .1 % of all; then
          gpuvec_search with it
  sq8     as plain, with refine = sq8, which leaves mirror_rows without effect
  rotate  only a build, with rotate
  hnsw    pgvector's, at some hnsw.ef_search; left out unless asked for

Recall is of queries in turn, which are not in the table, against the set's
exact truth: of LIMIT 1,000 the share of the true 100 that it finds, and in the
column `all` its recall of 1,000, by 30 sequential scans.  Queries/s, by number
of clients, are pgbench's, prepared, of queries taken at random.  Then means of
gpuvec_last_scan over the queries in turn.  `fell back` counts the clients'
searches that gpuvecd was to answer and did not.
"""
import argparse
import os
import sys

import card
import data
import dataset
import report
import server

# limit, gpuvec.recall
STATEMENTS = [(10, .95), (10, .99), (100, .95), (100, .99), (1000, .95)]
HNSW = [(10, 40), (10, 100), (10, 200), (100, 200), (100, 400), (1000, 1000)]
PARTS = ["plain", "search", "cpu", "off", "tenant", "sq8", "rotate"]
SESSIONS = [1, 4, 16]           # that call gpuvec_search side by side
CALLS = 10                      # of each of them
SCANS = 30                      # sequential ones, for LIMIT 1,000
# a tenant's name is its share of the rows in a thousandth: [from, to) of
# id % 1000; the others have 1 each
TENANTS = {100: (0, 100), 10: (100, 110), 1: (110, 111)}
TENANT = "tenant int GENERATED ALWAYS AS (CASE %s ELSE id %% 1000 END)" \
    " STORED" % " ".join("WHEN id %% 1000 < %d THEN %d" % (end, name)
                         for name, (_, end) in TENANTS.items())
ALONE = "engine_us trip_us probes candidates batches refined reranked".split()


def parse_arguments():
    parser = server.options(data.parser(__doc__), queries=1000, seconds=3,
                            clients=card.CLIENTS)
    parser.add_argument("data")
    parser.add_argument("--quick", action="store_true", help="--seconds 2")
    parser.add_argument("--hnsw", action="store_true")
    parser.add_argument("--parts", type=server.numbers(str), default=PARTS)
    parser.add_argument("--workers", type=int, help="of a parallel build",
                        default=min(15, len(os.sched_getaffinity(0)) - 1))
    args = parser.parse_args()
    args.seconds = 2 if args.quick else args.seconds
    args.parts += ["hnsw"] * args.hnsw
    return args


class Table:
    """What is asked, in which session, and the lines that come of it."""

    def __init__(self, args, conn, found):
        self.args, self.conn, self.found = args, conn, found
        self.truth = found.asked(args.queries).truth("l2", data.TRUTH_K)
        self.deep = None        # once LIMIT 1,000 was asked for
        self.widths = [8, 28, 6, 6] + [7] * len(args.clients) + [
            max(6, len(name)) for name in ALONE] + [9]

    def line(self, *cells):
        data.say("  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, self.widths))))

    def scans(self, limit):
        """[SCANS][limit] the nearest rows, by sequential scans."""
        import numpy as np
        if self.deep is None:
            server.set_all(self.conn, {
                "enable_indexscan": "off", "gpuvec.use_index": "never",
                "max_parallel_workers_per_gather": self.args.workers})
            self.deep = np.array([self.conn.execute(statement(i, limit))
                                  .fetchall() for i in range(SCANS)])[:, :, 0]
            self.conn.execute("RESET ALL")
        return self.deep

    def measure(self, index, label, limit, settings, where="", truth=None,
                clients=None):
        """A line for a statement; truth: of other rows than all."""
        conn, ours = self.conn, index != "hnsw"
        settings = dict(settings, enable_seqscan="off")
        asked = statement("%(i)s", limit, where)
        server.set_all(conn, settings)
        card.check_plan(conn, statement(0, limit, where))
        recall, alone = card.measure_recall(
            conn, settings, self.truth[:, :limit] if truth is None else truth,
            asked, ALONE if ours else ())
        whole = "" if limit <= data.TRUTH_K else "%.4f" % card.measure_recall(
            conn, settings, self.scans(limit), asked)[0]
        speed = card.measure_speed(
            conn, argparse.Namespace(clients=clients or self.args.clients,
                                     seconds=self.args.seconds),
            "\\set i random(0, %d)\n%s;\n" % (
                len(self.found.query) - 1, statement(":i", limit, where)),
            settings, ours)
        rates = {told["clients"]: "%.0f" % told["queries_per_s"]
                 for told in speed}
        self.line(index, "LIMIT %d %s" % (limit, label), "%.4f" % recall,
                  whole, *(rates.get(n, "") for n in self.args.clients),
                  *("%.1f" % alone[name] if alone else "" for name in ALONE),
                  "%d" % sum(told["fallbacks"] for told in speed)
                  if ours else "")

    def measure_all(self, index, statements=STATEMENTS, engine="gpu", **kinds):
        for limit, recall in statements:
            self.measure(index, "at %g" % recall, limit, {
                "gpuvec.engine": engine, "gpuvec.recall": recall}, **kinds)

    def build(self, name, options="", keys=()):
        """Makes the index anew, and its mirror; says what that took."""
        conn, ours = self.conn, name != "hnsw"
        conn.execute("DROP INDEX IF EXISTS %s_v" % card.TABLE)
        server.set_all(conn, {"gpuvec.engine": "gpu"})
        told = card.create_index(conn, report.OURS if ours else name,
                                 self.args.workers, options, keys)
        told.update(card.mirror(conn) if ours else {})
        conn.execute("RESET ALL")
        data.say("%s: %.2f s, %d %% of it calibrating, %d workers, %.0f MB" % (
            name, told["build_s"], 100 / told["build_s"] * sum(
                seconds for phase, seconds in told["phases"].items()
                if "calibrating" in phase), told["workers"], told["MB"])
            + (", %(lists)d lists, pq_dim %(pq_dim)d; mirror %(mirror_s).2f s,"
               " %(mirror_MB).0f MB, rows %(rows)s" % told if ours else ""))
        return told


def statement(query_id, limit, where=""):
    return "SELECT id FROM %s %s ORDER BY v <-> (SELECT v FROM %s WHERE " \
        "id = %s) LIMIT %d" % (card.TABLE, where, card.QUERIES, query_id,
                               limit)


def set_mirror_rows(conn, value):
    """In the configuration file, and until sessions have it."""
    conn.execute("ALTER SYSTEM SET gpuvec.mirror_rows = %s" % value)
    while server.one(conn, "SHOW gpuvec.mirror_rows") != value:
        conn.execute("SELECT pg_reload_conf(), pg_sleep(.1)")


def part_plain(table):
    table.build("plain")
    table.measure_all("plain")


MADE = "(SELECT array_agg(v::real[]) FROM (SELECT v FROM %s ORDER BY id) AS x)" \
    % card.QUERIES
STORED = "(SELECT v FROM asked)"
AT_95 = {"gpuvec.engine": "gpu", "gpuvec.recall": .95}


def searched(array, keys=""):
    return "gpuvec_search('%s_v', %s, %d%s)" % (
        card.TABLE, array, card.K, keys)


def measure_searches(table, label, called):
    """gpuvec_search's queries/s, by number of sessions."""
    data.say("gpuvec_search at 0.95, %s: %s" % (label, ", ".join(
        "%.0f" % (len(table.found.query) * server.pgbench(
            AT_95, "SELECT count(*) FROM %s;\n" % called, sessions, "-t",
            str(CALLS))) for sessions in SESSIONS)))


def part_search(table):
    """gpuvec_search's queries/s and recall, by the index of part_plain."""
    conn = table.conn
    conn.execute("DROP TABLE IF EXISTS asked; CREATE TABLE asked (v real[])")
    conn.execute("ALTER TABLE asked ALTER v SET STORAGE EXTERNAL")
    conn.execute("INSERT INTO asked VALUES (%s)" % MADE)
    server.set_all(conn, AT_95)
    truth = table.found.truth("l2", card.K)
    hits = sum(row in truth[query - 1] for query, row in conn.execute(
        "SELECT query, id FROM %s AS s JOIN %s AS t ON t.ctid = s.tid"
        % (searched(STORED), card.TABLE)))
    engine = server.one(conn, "SELECT engine FROM gpuvec_last_scan()")
    conn.execute("RESET ALL")
    data.say("gpuvec_search at 0.95, %d queries, k %d: recall %.4f by %s; then "
             "queries/s in %s sessions" % (
                 len(truth), card.K, hits / truth.size, engine, SESSIONS))
    for label, array in ("made", MADE), ("stored", STORED):
        measure_searches(table, label, searched(array))


def part_cpu(table):
    table.measure_all("cpu", [(10, .95), (100, .95)], "cpu",
                      clients=[n for n in table.args.clients if n <= 16])


def part_off(table):
    set_mirror_rows(table.conn, "off")
    if table.build("off")["rows"]:
        sys.exit("cardsql: the mirror has rows")
    table.measure_all("off")
    set_mirror_rows(table.conn, "auto")


def part_tenant(table):
    import numpy as np
    table.build("tenant", keys=["tenant"])
    number = np.arange(table.found.rows) % 1000
    for name, (begin, end) in TENANTS.items():
        rows = np.flatnonzero((begin <= number) & (number < end))
        near = data.exact_neighbors(
            table.found.base[rows], table.found.query[:len(table.truth)],
            card.K)
        table.measure("tenant", "at 0.95, %g %%" % (name / 10), card.K,
                      {"gpuvec.engine": "gpu", "gpuvec.recall": .95},
                      "WHERE tenant = %d" % name, rows[near])
        measure_searches(table, "%g %%" % (name / 10),
                         searched(MADE, ", %d" % name))


def part_sq8(table):
    table.build("sq8", "refine = sq8")
    table.measure_all("sq8")


def part_rotate(table):
    table.build("rotate", "rotate = on")


def part_hnsw(table):
    table.build("hnsw")
    for limit, ef in HNSW:
        table.measure("hnsw", "ef %d" % ef, limit, {"hnsw.ef_search": ef})


def main():
    args, load_before = parse_arguments(), os.getloadavg()[0]
    data.enter_venv("bench", __file__)
    found = dataset.load(args.data)
    with server.connect() as conn:
        took = card.load(conn, found, [TENANT])
        set_mirror_rows(conn, "auto")
        server.need_last_scan(conn)
        told = server.facts(conn, load_before)
        told.update({
            "command": "test/gpu/run.sh cardsql -- " + " ".join(sys.argv[1:]),
            "gpuvecd": server.one(conn, "SELECT engine || ', ' || device "
                                  "FROM gpuvec_stat"),
            "data": "%s, %d x %d, loaded in %.1f s" % (
                args.data, found.rows, found.dims, took)})
        data.say("\n".join("%s: %s" % fact for fact in told.items()))
        table = Table(args, conn, found)
        table.line("index", "statement", "recall", "all", *(
            "%d" % n for n in args.clients), *ALONE, "fell back")
        for part in args.parts:
            globals()["part_" + part](table)


if __name__ == "__main__":
    main()
