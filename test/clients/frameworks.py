#!/usr/bin/env python3
"""Runs README.md's examples for SQLAlchemy and Django as they are printed.

usage: frameworks.py               (in test/cluster.sh, or by test/run.sh)

With SQLAlchemy by each of its drivers.  The index must be made and used, and
the rows be the nearest.  Prints 'ok' or 'not ok' and what was tried, a line
each; status 2: PyPI cannot be reached, 1: something is not ok.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import data                                             # noqa: E402

DIMS = 384
ROWS = 30
QUERY = [1] * DIMS
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

failed = 0


def check(good, *what):
    global failed
    text = ", ".join(map(str, what))
    print("ok - " + text[:120] if good else "not ok - " + text, flush=True)
    failed += not good


def examples():
    """The blocks of Python in README.md."""
    with open(os.path.join(HERE, "..", "..", "README.md")) as readme:
        return re.findall(r"^```python\n(.*?)^```", readme.read(),
                          re.MULTILINE | re.DOTALL)


def vector(i):
    return [float(i)] * (DIMS - 1) + [10.0]


def psql(*commands, database="postgres"):
    for command in commands:
        subprocess.run(["psql", "-XqAt", "-d", database, "-v",
                        "ON_ERROR_STOP=1", "-c", command], check=True)


def try_sqlalchemy(block, driver):
    from sqlalchemy import URL, create_engine, text
    from sqlalchemy.orm import Session
    names = {}
    psql("DROP TABLE IF EXISTS items")
    exec(block, names)
    socket = {"host": os.environ["PGHOST"], "port": os.environ["PGPORT"]}
    if driver == "pg8000":
        socket = {"unix_sock": "%(host)s/.s.PGSQL.%(port)s" % socket}
    engine = create_engine(URL.create(
        "postgresql+" + driver, username=os.environ["PGUSER"],
        database="postgres", query=socket))
    names["Base"].metadata.create_all(engine)
    with Session(engine) as session:
        for i in range(1, ROWS + 1):
            session.add(names["Item"](id=i, embedding=vector(i)))
        session.commit()
        session.execute(text("SET enable_seqscan = off"))
        statement = names["nearest"](QUERY)
        rows = session.execute(statement).all()
        check({r[0].id for r in rows[:3]} == {9, 10, 11} and
              all(0 <= r[1] < 2 for r in rows), "SQLAlchemy", driver,
              [(r[0].id, r[1]) for r in rows])
        plan = session.execute(text("EXPLAIN " + str(statement.compile(
            engine, compile_kwargs={"literal_binds": True})))).scalars().all()
        check(any("Index Scan using items_embedding_idx" in line
                  for line in plan), "SQLAlchemy", driver, "index", *plan)
    engine.dispose()


def try_django(folder, migration, model):
    psql("DROP DATABASE IF EXISTS django", "CREATE DATABASE django")
    migrations = os.path.join(folder, "shop", "migrations")
    os.makedirs(migrations)
    for name, text in {
            "settings.py": SETTINGS, "shop/__init__.py": "",
            "shop/migrations/__init__.py": "",
            "shop/migrations/0001_extensions.py": migration,
            "shop/models.py": model}.items():
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    sys.path.insert(0, folder)
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    import django
    from django.core.management import call_command
    from django.db import connection
    django.setup()
    call_command("makemigrations", "shop", verbosity=0)
    call_command("migrate", verbosity=0)
    from shop import models
    for i in range(1, ROWS + 1):
        models.Item.objects.create(embedding=vector(i))
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SELECT indexdef FROM pg_indexes "
                       "WHERE indexname = 'item_embedding_idx'")
        definition = cursor.fetchall()
    check("USING gpuivfpq" in str(definition) and
          re.search("probes='?60", str(definition)), "Django", definition)
    found = models.nearest(QUERY)
    check({r.id for r in found[:3]} == {9, 10, 11}, "Django",
          [r.id for r in found])
    plan = found.explain()
    check("Index Scan using item_embedding_idx" in plan, "Django", plan)


def main():
    try:
        data.enter_venv("clients", __file__)
    except subprocess.CalledProcessError as error:
        print(error)
        sys.exit(2)
    sqlalchemy, migration, model = examples()
    psql("SET client_min_messages = warning; "
         "CREATE EXTENSION IF NOT EXISTS gpuvec")
    for driver in "psycopg", "psycopg2", "pg8000":
        try_sqlalchemy(sqlalchemy, driver)
    with tempfile.TemporaryDirectory() as folder:
        try_django(folder, migration, model)
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
