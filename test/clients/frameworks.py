#!/usr/bin/env python3
"""Runs the examples of drivers and frameworks in sql/docs/recipes.md as printed.

usage: frameworks.py               (in test/cluster.sh, or by run.sh)

psycopg, asyncpg and pg8000, SQLAlchemy by each of its drivers, a migration of
Alembic, and Django with its migrations, whose class is part of django_index.py.
The index must be made and used, the rows be the nearest.
Prints 'ok' or 'not ok' and what was tried, a line each; status 2: PyPI cannot
be reached, 1: something is not ok.
"""
import asyncio
import io
import os
import re
import sys
import tempfile

from common import (DIMS, HERE, NEAREST, ROWS, USE_INDEX, check, end,
                    enter_venv, examples, new_database, psql, vector)

QUERY = [1] * DIMS
SCANS = ("SELECT reranked > 0 AND full_pass IS NOT NULL "
         "FROM gpuvec_last_scan()")
SETTINGS = """
import os
SECRET_KEY = "none"
INSTALLED_APPS = ["django.contrib.postgres", "shop"]
DATABASES = {"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "django",
    "USER": os.environ["PGUSER"], "HOST": os.environ["PGHOST"],
    "PORT": os.environ["PGPORT"]}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""


def socket():
    return "%(PGHOST)s/.s.PGSQL.%(PGPORT)s" % os.environ


# --------------------------------------------------------------------- drivers

def empty_items(table):
    new_database("drivers", settings=USE_INDEX)
    # but for the extension, which is there
    psql(table.partition("\n")[2], database="drivers")


def right(name, rows, scanned):
    check({r[0] for r in rows[:3]} == NEAREST and len(rows) == 10 and
          all(0 <= r[1] < 2 for r in rows), name, rows)
    check(scanned, name, "index", scanned)


def try_psycopg(block):
    import numpy
    names = {}
    exec(block, names)
    with names["connect"]("dbname=drivers") as connection:
        for i in range(1, ROWS + 1):
            names["add"](connection, vector(i))
        # more often than it takes until psycopg prepares
        for query in [QUERY] * 8 + [numpy.array(QUERY, numpy.float32)]:
            rows = names["nearest"](connection, query, recall=0.99)
        right("psycopg", rows, connection.execute(SCANS).fetchone()[0])
        recall = connection.execute("SHOW gpuvec.recall").fetchone()[0]
        check(recall == "0.95", "psycopg", "recall after it", recall)


async def try_asyncpg(block):
    import asyncpg
    names = {}
    exec(block, names)
    connection = await asyncpg.connect(database="drivers")
    for i in range(1, ROWS + 1):
        await names["add"](connection, vector(i))
    for _ in range(8):
        rows = await names["nearest"](connection, QUERY)
    right("asyncpg", rows, await connection.fetchval(SCANS))
    await connection.close()


def try_pg8000(block):
    import pg8000.native
    names = {}
    exec(block, names)
    connection = pg8000.native.Connection(
        os.environ["PGUSER"], database="drivers", unix_sock=socket())
    for i in range(1, ROWS + 1):
        names["add"](connection, vector(i))
    right("pg8000", names["nearest"](connection, QUERY),
          connection.run(SCANS)[0][0])
    connection.close()


# ------------------------------------------------------------------ frameworks

def try_sqlalchemy(block, driver):
    from sqlalchemy import URL, create_engine, text
    from sqlalchemy.orm import Session
    names = {}
    new_database("sqlalchemy")
    exec(block, names)
    where = {"host": os.environ["PGHOST"], "port": os.environ["PGPORT"]}
    if driver == "pg8000":
        where = {"unix_sock": socket()}
    engine = create_engine(URL.create(
        "postgresql+" + driver, username=os.environ["PGUSER"],
        database="sqlalchemy", query=where))
    names["Base"].metadata.create_all(engine)
    with Session(engine) as session:
        for i in range(1, ROWS + 1):
            session.add(names["Item"](id=i, embedding=vector(i)))
        session.commit()
        session.execute(text("SET enable_seqscan = off"))
        statement = names["nearest"](QUERY)
        rows = session.execute(statement).all()
        check({r[0].id for r in rows[:3]} == NEAREST and
              all(0 <= r[1] < 2 for r in rows), "SQLAlchemy", driver,
              [(r[0].id, r[1]) for r in rows])
        plan = session.execute(text("EXPLAIN " + str(statement.compile(
            engine, compile_kwargs={"literal_binds": True})))).scalars().all()
        check(any("Index Scan using items_embedding_idx" in line
                  for line in plan), "SQLAlchemy", driver, "index", *plan)
    engine.dispose()


def try_alembic(block):
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from sqlalchemy import URL, create_engine
    names = {}
    new_database("alembic", "CREATE TABLE items (id bigserial PRIMARY KEY, "
                 "embedding vector(%d))" % DIMS)
    exec(block, names)
    engine = create_engine(URL.create(
        "postgresql+psycopg", username=os.environ["PGUSER"],
        database="alembic", query={"host": os.environ["PGHOST"],
                                   "port": os.environ["PGPORT"]}))
    for step, wanted in ("upgrade", "USING gpuivfpq"), ("downgrade", ""):
        with engine.connect() as connection:
            context = MigrationContext.configure(connection)
            with context.begin_transaction(), Operations.context(context):
                names[step]()
        index = psql("SELECT indexdef FROM pg_indexes "
                     "WHERE indexname = 'items_embedding_idx'",
                     database="alembic")
        check(wanted in index and (wanted != "") == (index != ""), "Alembic",
              step, index)
    engine.dispose()


def migrate(shop, model, number):
    """makemigrations and migrate with this text of models.py, as new commands
    do; returns the SQL of the migration that the former made."""
    import importlib
    from django.apps import apps
    from django.core.management import call_command
    with open(os.path.join(shop, "models.py"), "w") as f:
        f.write(model)
    importlib.invalidate_caches()
    if "shop.models" in sys.modules:
        del apps.all_models["shop"]["item"]
        apps.clear_cache()
        importlib.reload(sys.modules["shop.models"])
        apps.get_app_config("shop").import_models()
    call_command("makemigrations", "shop", name="step%d" % number,
                 verbosity=0)
    out = io.StringIO()
    call_command("sqlmigrate", "shop", "%04d" % number, stdout=out)
    call_command("migrate", verbosity=0)
    return out.getvalue()


def index_now():
    return psql("SELECT oid || ' ' || relfilenode FROM pg_class "
                "WHERE relname = 'item_embedding_idx'", database="django"), \
        psql("SELECT coalesce(array_to_string(reloptions, ', '), '') "
             "FROM pg_class WHERE relname = 'item_embedding_idx'",
             database="django").strip()


def try_options(shop, model):
    """Which changes alter the index, and which build it."""
    from django.core.management import call_command
    number = 2
    for before, after, stays in (
            ('{"probes": 60}', '{"probes": 90}', True),
            ('{"probes": 90}', '{"candidates": 70, "train_rows": 5000}', True),
            ('{"candidates": 70, "train_rows": 5000}', '{}', True),
            ('{}', '{"refine": "sq8"}', False),
            ('{"refine": "sq8"}', '{"probes": 8, "refine": "sq8"}', True)):
        was, _ = index_now()
        number += 1
        model = model.replace("options=" + before, "options=" + after)
        statements = migrate(shop, model, number)
        now, options = index_now()
        wanted = ", ".join("%s=%s" % pair for pair in eval(after).items())
        check((was == now) == stays and sorted(options.split(", ")) ==
              sorted(wanted.split(", ")), "Django", before, after, options,
              was, now)
        check(("ALTER INDEX" in statements) == stays and
              ("CREATE INDEX" in statements) != stays and
              ("DROP INDEX" in statements) != stays, "Django", after,
              "sqlmigrate", statements)
    was, _ = index_now()
    call_command("migrate", "shop", "0006", verbosity=0)
    now, options = index_now()
    check(was == now and options == "refine=sq8", "Django", "back", options)
    call_command("migrate", "shop", "0002", verbosity=0)
    _, options = index_now()
    check(options == "probes=60", "Django", "all the way back", options)
    model = re.sub(r"\n    class Meta:.*?\n\n", "\n\n", model, flags=re.DOTALL)
    call_command("migrate", verbosity=0)
    statements = migrate(shop, model, number + 1)
    check("DROP INDEX" in statements and index_now()[0] == "", "Django",
          "index removed", statements, index_now())


def try_django(folder, migration, printed, model):
    with open(os.path.join(HERE, "django_index.py")) as f:
        indexes = f.read()
    check(printed in indexes, "Django", "the class printed is part of "
          "django_index.py")
    psql("DROP DATABASE IF EXISTS django", "CREATE DATABASE django",
         *(s % "django" for s in USE_INDEX))
    shop = os.path.join(folder, "shop")
    os.makedirs(os.path.join(shop, "migrations"))
    for name, text in {
            "settings.py": SETTINGS, "shop/__init__.py": "",
            "shop/migrations/__init__.py": "",
            "shop/migrations/0001_extensions.py": migration,
            "shop/indexes.py": indexes, "shop/models.py": model}.items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    import django
    django.setup()
    migrate(shop, model, 2)
    from shop import models
    for i in range(1, ROWS + 1):
        models.Item.objects.create(embedding=vector(i))
    definition = psql("SELECT indexdef FROM pg_indexes "
                      "WHERE indexname = 'item_embedding_idx'",
                      database="django")
    check("USING gpuivfpq" in definition and
          re.search("probes='?60", definition), "Django", definition)
    found = models.nearest(QUERY)
    check({r.id for r in found[:3]} == NEAREST, "Django",
          [r.id for r in found])
    plan = found.explain()
    check("Index Scan using item_embedding_idx" in plan, "Django", plan)
    try_options(shop, model)


def main():
    enter_venv(__file__)
    blocks = examples("python")
    empty_items(examples("sql")["Clients and frameworks"][0])
    for name in "psycopg", "asyncpg", "pg8000":
        psql("TRUNCATE items RESTART IDENTITY", database="drivers")
        block, = blocks[name]
        if name == "psycopg":
            try_psycopg(block)
        elif name == "asyncpg":
            asyncio.run(try_asyncpg(block))
        else:
            try_pg8000(block)
    model, migration = blocks["SQLAlchemy and Alembic"]
    for driver in "psycopg", "psycopg2", "pg8000":
        try_sqlalchemy(model, driver)
    try_alembic(migration)
    with tempfile.TemporaryDirectory() as folder:
        try_django(folder, *blocks["Django"])
    end()


if __name__ == "__main__":
    main()
