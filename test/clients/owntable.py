#!/usr/bin/env python3
"""The bench of a table of one's own (test/bench/table.py) on tables of ours.

usage: owntable.py                 (in test/cluster.sh, or by test/run.sh)

By a role that may SELECT one column: every index of it is measured, and no
transaction id is taken, so nothing is changed.  Names in quotes, all types,
queries from everywhere; what is missing is named.  Prints 'ok' or 'not ok' and
what was tried, a line each; status 2: PyPI cannot be reached, 1: something is
not ok.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from common import BENCH, check, data, end, need_pypi

DATABASE = "owntable"
QUICK = ["--queries", "10", "--rounds", "1", "--seconds", ".02"]
ROWS = """
SELECT i AS id, ARRAY[sin(i), cos(i * 1.3), sin(i * 1.7), cos(i * 2.3),
	sin(i * 3.1), cos(i * 3.7), sin(i * 4.1), cos(i * 5.3)]::real[] AS e
FROM generate_series(1, 2000) AS i"""
SETUP = """
ALTER SYSTEM SET autovacuum = off;
SELECT pg_reload_conf();
SET client_min_messages = warning;
CREATE EXTENSION gpuvec_pgvector CASCADE;
DROP ROLE IF EXISTS owntable;
CREATE ROLE owntable LOGIN;
CREATE TABLE docs AS SELECT id, e::vector(8) AS v FROM (%(rows)s) AS r;
CREATE INDEX docs_g ON docs USING gpuivfpq (v vector_cosine_ops);
CREATE INDEX docs_h ON docs USING hnsw (v vector_cosine_ops)
	WITH (m = 2, ef_construction = 4);
CREATE INDEX docs_i ON docs USING ivfflat (v vector_cosine_ops)
	WITH (lists = 20);
CREATE INDEX docs_l2 ON docs USING gpuivfpq (v vector_l2_ops);
CREATE INDEX docs_part ON docs USING hnsw (v vector_cosine_ops) WHERE id < 9;
GRANT SELECT (v) ON docs TO owntable;
CREATE SCHEMA "Shop";
CREATE TABLE "Shop"."My docs" AS
	SELECT id, e AS "Emb %%ed", e::halfvec(8) AS h FROM (%(rows)s) AS r;
CREATE INDEX ON "Shop"."My docs" USING gpuivfpq ("Emb %%ed" real_l2_ops);
CREATE INDEX ON "Shop"."My docs" USING gpuivfpq (h halfvec_ip_ops);
GRANT USAGE ON SCHEMA "Shop" TO owntable;
GRANT SELECT ON "Shop"."My docs" TO owntable;
CREATE TABLE parts (id int, v vector(8)) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1001);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1001) TO (2001);
INSERT INTO parts SELECT id, v FROM docs;
CREATE INDEX ON parts USING gpuivfpq (v vector_l2_ops);
GRANT SELECT ON parts TO owntable;
CREATE TABLE plain (v vector(8), t text);
GRANT SELECT ON plain TO owntable;
CREATE TABLE hidden AS SELECT v FROM docs LIMIT 9;
CREATE INDEX ON hidden USING hnsw (v vector_l2_ops);
ANALYZE;
""" % {"rows": ROWS}

def bench(*arguments):
    """(what it printed, what it wrote as JSON or None)"""
    done = subprocess.run(
        [sys.executable, os.path.join(BENCH, "table.py"),
         "dbname=%s user=owntable" % DATABASE, *arguments, *QUICK],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    written = re.search(r"^written: (.*)\.txt", done.stdout, re.M)
    if done.returncode or not written:
        return done.stdout, None
    with open(written.group(1) + ".json") as f:
        return done.stdout, json.load(f)


def next_transaction(conn):
    return conn.execute(
        "SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()[0]


def try_indexes():
    """Three indexes on one column, which only their settings tell apart."""
    out, found = bench("docs", "v")
    names = [s["name"] for s in found["systems"]] if found else []
    check(names == ["gpuivfpq docs_g", "hnsw docs_h", "ivfflat docs_i",
                    "sequential scan"], "all indexes", names or out)
    if not found:
        return
    recalls = {s["name"]: [p["recall"] for p in s["points"]]
               for s in found["systems"]}
    check(recalls["sequential scan"] == [1], "a sequential scan is right")
    check(max(recalls["gpuivfpq docs_g"]) > .95, "gpuivfpq", recalls)
    check(min(recalls["hnsw docs_h"]) < .9 < max(recalls["ivfflat docs_i"]),
          "poor and good settings differ", recalls)
    check(found["facts"]["transaction"] ==
          "read only, took no transaction id", found["facts"]["transaction"])
    for text in "docs_l2, for <->, not <=>", "docs_part, a partial index":
        check(text in out, text)
    path = re.search(r"^written: (.*)\.txt", out, re.M).group(1) + ".png"
    check(os.path.getsize(path) > 10000, "a plot", path)


def try_names_and_queries(folder):
    import numpy as np
    vectors = np.sin(np.arange(80, dtype=np.float32)).reshape(10, 8)
    array, text = (os.path.join(folder, n) for n in ("q.npy", "q.txt"))
    np.save(array, vectors)
    with open(text, "w") as f:
        f.writelines("[%s]\n" % ", ".join(map(str, v)) for v in vectors)
    mine = '"Shop"."My docs"'
    for arguments in ((mine, '"Emb %ed"', array), (mine, "Emb %ed", "docs.v"),
                      (mine, "H", text), ("parts", "V", text)):
        out, found = bench(*arguments)
        check(found and len(found["systems"]) == 2 and
              found["systems"][0]["points"][-1]["recall"] > .95,
              *arguments[:2], os.path.basename(arguments[2]),
              "" if found else out)


def try_replanned(owner):
    """What statements answer that PostgreSQL has planned again, as after an
    ANALYZE, is not measured."""
    import table
    with table.connect("dbname=%s user=owntable" % DATABASE) as conn:
        column = table.Column(conn, "docs", "v")
        indexes = table.find_indexes(conn, column, "<=>")
        bench = table.Bench(
            conn, column, indexes[0].operator, column.values(conn, 10),
            argparse.Namespace(source=None, k=10))
        hnsw = table.plan_all(bench, indexes)[1]
        counts = []

        def ask():
            if not counts:
                owner.execute("ALTER TABLE docs SET (fillfactor = 100)")
                conn.execute("SELECT FROM pg_language")  # learns of it
            before = bench.scans(hnsw.oids)
            found = bench.ask_each()
            counts.append(bench.scans(hnsw.oids) - before)
            return found
        bench.by(hnsw, {}, ask)
        conn.rollback()
    check(counts == [0, 10], "planned again, measured again", counts)


def try_failures():
    for message, *arguments in (
            ("there is no table nowhere", "nowhere", "v"),
            ("docs has no column w", "docs", "w"),
            ("plain is text, not", "plain", "t"),
            ("plain has no gpuivfpq, hnsw or ivfflat index", "plain", "v"),
            ("permission denied for table hidden; it takes", "hidden", "v"),
            ("queries are a file, or table.column", "docs", "v", "nofile"),
            ("no vectors to ask for in plain.v", "docs", "v", "plain.v"),
            ("something else than vectors", "docs", "v", __file__)):
        out, found = bench(*arguments)
        check(not found and message in out and "Traceback" not in out,
              message, out)


def try_judge():
    """A query that is a row is left out once; equals of it are answers."""
    import table
    judge = table.Judge.__new__(table.Judge)
    judge.own, judge.k = [0.], 2
    judge.learn([[0., 0., .5]])
    check(judge.truth == [[0., .5]], "own row left out", judge.truth)
    check(judge.recall(0, [0., 0., .5]) == 1, "all found")
    check(judge.recall(0, [0., .5, .5]) == 1, "one of two equals found")
    check(judge.recall(0, [0., .5, .7]) == .5, "half found")
    check(judge.recall(0, [.7]) == 0, "none found")


def main():
    with need_pypi():
        data.enter_venv("plot", __file__)
    import psycopg
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS " + DATABASE)
        conn.execute("CREATE DATABASE " + DATABASE)
    with psycopg.connect(dbname=DATABASE, autocommit=True) as conn, \
            tempfile.TemporaryDirectory() as folder:
        for statement in SETUP.split(";\n"):
            conn.execute(statement)
        before = next_transaction(conn)
        try_indexes()
        try_names_and_queries(folder)
        try_failures()
        try_judge()
        check(next_transaction(conn) == before, "nothing was written")
        try_replanned(conn)
        conn.execute("ALTER SYSTEM RESET autovacuum")
    end()


if __name__ == "__main__":
    main()
