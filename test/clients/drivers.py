#!/usr/bin/env python3
"""Searches by what Python's drivers send for a list of numbers.

usage: drivers.py                  (in test/cluster.sh, or by run.sh)

psycopg 3, psycopg2, asyncpg and pg8000, from PyPI, each send lists (and numpy
arrays, where the driver takes them, by itself or by the package pgvector) as a
parameter of ORDER BY, against columns of real[], vector and halfvec and by all
three distances.  EXPLAIN must show the index, and the rows must be those that a
search without it finds.  Prints 'ok' or 'not ok' and what was tried, a line
each; status 2: PyPI cannot be reached, 1: something is not ok.
"""
import asyncio
import os
from decimal import Decimal

from common import check, end, enter_venv

LISTS = {
    "small integers": [1, 2, 3],
    "integers": [1, 2, 40000],
    "floats": [0.1, 0.2, 0.3],
    "decimals": [Decimal("0.1"), Decimal("0.2"), Decimal("0.3")],
}
# beyond what halfvec holds, and so far away that vector's distances are equal
LARGE = [1, 2, 3000000000]
COLUMNS = {"e": "real[]", "v": "vector", "h": "halfvec"}
OPERATORS = {"<->": "l2", "<#>": "ip", "<=>": "cosine"}
WITH_INDEX = ["SET enable_seqscan = off", "SET enable_sort = off"]
WITHOUT = ["RESET enable_seqscan", "RESET enable_sort",
           "SET enable_indexscan = off"]


def setup(execute):
    """A table of 300 rows, indexes on it for every distance and type."""
    execute("SET client_min_messages = warning")
    execute("CREATE EXTENSION IF NOT EXISTS vector")
    execute("CREATE EXTENSION IF NOT EXISTS gpuvec")
    execute("CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector")
    execute("DROP TABLE IF EXISTS clients")
    execute("CREATE TABLE clients (id int PRIMARY KEY, e real[], v vector(3), "
            "h halfvec(3))")
    execute("INSERT INTO clients SELECT id, e, e, e FROM (SELECT id, "
            "ARRAY[id % 7 + 1, id % 11 * 0.7, id * 0.01]::real[] AS e "
            "FROM generate_series(1, 300) AS id) AS r")
    for column, kind in COLUMNS.items():
        for metric in OPERATORS.values():
            execute("CREATE INDEX clients_%s_%s ON clients USING gpuivfpq "
                    "(%s %s_%s_ops)" % (column, metric, column,
                                        kind.strip("[]"), metric))
    execute("ANALYZE clients")


def compare(driver, name, execute, query, columns="evh", cast="",
            operators=OPERATORS):
    """One query against these columns by every distance.  execute(sql,
    *parameters) returns rows; in sql the parameter is PARAMETER."""
    for column in columns:
        for operator in operators:
            metric = OPERATORS[operator]
            what = (driver, name, COLUMNS[column], operator)
            sql = ("SELECT id FROM clients ORDER BY %s %s PARAMETER%s LIMIT 5"
                   % (column, operator, cast))
            try:
                for setting in WITH_INDEX:
                    execute(setting)
                plan = "\n".join(r[0] for r in execute("EXPLAIN " + sql, query))
                found = [r[0] for r in execute(sql, query)]
                for setting in WITHOUT:
                    execute(setting)
                truth = [r[0] for r in execute(sql, query)]
                execute("RESET enable_indexscan")
            except Exception as error:     # whatever the driver raises
                check(False, *what, repr(error))
                continue
            used = "Index Scan using clients_%s_%s" % (column, metric) in plan
            check(used and found == truth and len(found) == 5, *what,
                  "" if used else plan, found, *([] if found == truth
                                                 else [truth]))


def compare_lists(driver, execute, columns="evh", cast=""):
    """All lists, as the driver sends them."""
    for name, query in LISTS.items():
        compare(driver, name, execute, query, columns, cast)
    compare(driver, "large integers", execute, LARGE,
            [c for c in columns if c != "h"], cast, ["<#>", "<=>"])


def try_psycopg():
    import numpy
    import psycopg
    from pgvector.psycopg import register_vector
    with psycopg.connect("", autocommit=True) as connection:
        def execute(sql, *parameters):
            cursor = connection.execute(sql.replace("PARAMETER", "%s"),
                                        parameters or None)
            return cursor.fetchall() if cursor.description else []
        setup(execute)
        compare_lists("psycopg", execute)
        register_vector(connection)
        compare("psycopg and pgvector", "numpy array", execute,
                numpy.array([1, 2, 3], numpy.float32))
        compare("psycopg and pgvector", "small integers", execute, [1, 2, 3])


def try_psycopg2():
    import numpy
    import psycopg2
    from pgvector.psycopg2 import register_vector
    connection = psycopg2.connect("")
    connection.autocommit = True
    cursor = connection.cursor()

    def execute(sql, *parameters):
        cursor.execute(sql.replace("PARAMETER", "%s"), parameters or None)
        return cursor.fetchall() if cursor.description else []
    compare_lists("psycopg2", execute)
    register_vector(connection)
    # this sends text of no type
    compare("psycopg2 and pgvector", "numpy array", execute,
            numpy.array([1, 2, 3], numpy.float32), "vh")
    connection.close()


def try_pg8000():
    """pg8000 sends lists as text of no type, in braces, which a vector does
    not read."""
    import pg8000.dbapi
    connection = pg8000.dbapi.connect(
        user=os.environ["PGUSER"], database=os.environ["PGDATABASE"],
        unix_sock="%s/.s.PGSQL.%s" % (os.environ["PGHOST"],
                                      os.environ["PGPORT"]))
    connection.autocommit = True
    cursor = connection.cursor()

    def execute(sql, *parameters):
        cursor.execute(sql.replace("PARAMETER", "%s"), parameters)
        return cursor.fetchall() if cursor.description else []
    compare_lists("pg8000", execute, "e")
    compare_lists("pg8000, as real[]", execute, cast="::real[]")
    connection.close()


async def try_asyncpg():
    """asyncpg asks the server for the parameter's type and converts to that:
    to the column's own, or to the one of a cast."""
    import asyncpg
    import numpy
    from pgvector.asyncpg import register_vector
    connection = await asyncpg.connect()
    loop = asyncio.get_running_loop()

    async def fetch(sql, *parameters):
        return await connection.fetch(sql.replace("PARAMETER", "$1"),
                                      *parameters)

    def execute(sql, *parameters):
        return asyncio.run_coroutine_threadsafe(fetch(sql, *parameters),
                                                loop).result()
    await asyncio.to_thread(compare_lists, "asyncpg", execute, "e")
    await asyncio.to_thread(compare_lists, "asyncpg, as real[]", execute,
                            cast="::real[]")
    for kind in "smallint", "integer", "bigint":
        await asyncio.to_thread(compare, "asyncpg, as " + kind, "integers",
                                execute, [1, 2, 3], cast="::%s[]" % kind)
    array = numpy.array([1, 2, 3], numpy.float32)
    await asyncio.to_thread(compare, "asyncpg, as real[]", "numpy array",
                            execute, array, cast="::real[]")
    await register_vector(connection)
    await asyncio.to_thread(compare, "asyncpg and pgvector", "numpy array",
                            execute, array, "vh")
    await connection.close()


def main():
    enter_venv(__file__)
    try_psycopg()
    try_psycopg2()
    try_pg8000()
    asyncio.run(try_asyncpg())
    end()


if __name__ == "__main__":
    main()
