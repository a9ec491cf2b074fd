#!/usr/bin/env python3
"""Haystack's own tests of its store for pgvector, with one word of it changed.

usage: haystack_store.py           (in test/cluster.sh, or by run.sh)

They come with its source at PyPI.  They run twice: as they are, and with
gpuivfpq in place of hnsw in the statement that creates the index; what passes the
first time has to pass the second.  Tests of hnsw's options m and ef_construction
are left out.  Prints 'ok' or 'not ok' and what was tried, a line each; status 2:
PyPI cannot be reached, 1: something is not ok.
"""
import os
import shutil
import tempfile

from common import check, end, enter_venv
from suites import compare, fetch, make_database, run_pytest

DATABASE = "haystack_test"
THEIRS = "postgresql://postgres:postgres@localhost:5432/postgres"
# what pytest selects: a test of hnsw's options that fails would leave its schema
# to the next test
SELECTED = "not hnsw_index_recreation and not (hnsw and kwargs)"


def run_tests(source, ours):
    make_database(DATABASE, ours)
    url = "postgresql://%s@/%s?host=%s&port=%s" % (
        os.environ["PGUSER"], DATABASE, os.environ["PGHOST"],
        os.environ["PGPORT"])
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        src = os.path.join(folder, "src")
        for name in "src", "tests":
            shutil.copytree(os.path.join(source, name),
                            os.path.join(folder, name))
        for where, _, names in os.walk(folder):
            for name in names:
                if not name.endswith(".py"):
                    continue
                path = os.path.join(where, name)
                with open(path) as f:
                    text = f.read().replace(THEIRS, url)
                if ours and where.startswith(src):
                    changed += text.count("USING hnsw")
                    text = text.replace("USING hnsw", "USING gpuivfpq")
                with open(path, "w") as f:
                    f.write(text)
        check(changed == (1 if ours else 0), "Haystack", changed,
              "words changed")
        return run_pytest(
            folder, "asyncio_mode = auto\nmarkers = integration\n"
            "addopts = -k '%s'" % SELECTED,
            PYTHONPATH=src, HAYSTACK_TELEMETRY_ENABLED="False")


def main():
    enter_venv(__file__, "requirements-stores.txt")
    source = fetch("pgvector-haystack")
    compare("Haystack", lambda ours: run_tests(source, ours), 200)
    end()


if __name__ == "__main__":
    main()
