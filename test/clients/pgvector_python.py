#!/usr/bin/env python3
"""pgvector-python's own tests, with the index turned to gpuivfpq.

usage: pgvector_python.py          (in test/cluster.sh, or by run.sh)

They come with its source at PyPI.  They run twice: as they are, with hnsw and
ivfflat, and with gpuivfpq in their place where it has an operator class; what
passes the first time has to pass the second.  Prints 'ok' or 'not ok' and what
was tried, a line each; status 2: PyPI cannot be reached, 1: something is not
ok.
"""
import os
import re
import shutil
import tempfile

from common import check, end, enter_venv, index_scans
from suites import compare, fetch, make_database, run_pytest

DATABASE = "pgvector_python_test"       # the tests' own name
# Theirs is not in the archive.  A scan of hnsw ends after hnsw.ef_search
# entries, those of dead rows among them.  Tests leave hundreds of these, all
# alike, and unless autovacuum happens to come by, some later ones miss rows, with
# pgvector alone, too.
CONFTEST = """
import subprocess
import numpy
import pytest

before = None

@pytest.fixture(autouse=True)
def without_dead_rows(request):
    global before
    if request.node.originalname != before:
        before = request.node.originalname
        subprocess.run(["psql", "-XqAt", "-d", "%s", "-c",
                        "VACUUM sqlalchemy_orm_item"], check=True)
""" % DATABASE
TURN = """
import pgvector.django
for kind in pgvector.django.HnswIndex, pgvector.django.IvfflatIndex:
    kind.suffix = "gpuivfpq"
    kind.get_with_params = lambda self: []
"""


def by_socket(text):
    """As the tests connect, but to the server of PGHOST and PGPORT."""
    socket = "%(PGHOST)s/.s.PGSQL.%(PGPORT)s" % os.environ
    text = text.replace("{getuser()}@localhost/" + DATABASE,
                        "%s@/%s?unix_sock=%s" % (os.environ["PGUSER"],
                                                 DATABASE, socket))
    text = text.replace("Connection(getuser(), ",
                        "Connection(getuser(), unix_sock=%r, " % socket)
    text = text.replace("://localhost/" + DATABASE, ":///" + DATABASE)
    return text.replace("getuser()", repr(os.environ["PGUSER"]))


def turned(text):
    """With gpuivfpq, but for bits, of which it has no class."""
    blocks = re.split(r"(?m)^(?=\s*\w+ = Index\()", text)
    for i, block in enumerate(blocks):
        head, end, rest = block.partition(".create(")
        if "_using=" in head and "bit_hamming_ops" not in head:
            head = re.sub(r"_using='\w+'", "_using='gpuivfpq'", head)
            head = re.sub(r"(?m)^\s*postgresql_with=.*\n", "", head)
        blocks[i] = head + end + rest
    text = "".join(blocks)
    return text.replace("vector_l2_ops', using='hnsw'",
                        "vector_l2_ops', using='gpuivfpq'")


def run_tests(source, ours):
    make_database(DATABASE, ours)
    with tempfile.TemporaryDirectory() as folder:
        tests = os.path.join(folder, "tests")
        shutil.copytree(os.path.join(source, "tests"), tests)
        with open(os.path.join(tests, "__init__.py"), "w"):
            pass
        for name in os.listdir(tests):
            path = os.path.join(tests, name)
            with open(path) as f:
                text = by_socket(f.read())
            with open(path, "w") as f:
                f.write(turned(text) if ours else text)
        with open(os.path.join(tests, "conftest.py"), "w") as f:
            f.write(CONFTEST + (TURN if ours else ""))
        return run_pytest(folder, "asyncio_mode = auto")


def main():
    enter_venv(__file__)
    source = fetch("pgvector")
    compare("pgvector-python", lambda ours: run_tests(source, ours), 300)
    scans = index_scans(DATABASE)
    searched, there = sum(n > 0 for n in scans), len(scans)
    check(there >= 8 and searched >= 4, "pgvector-python", searched, "of",
          there, "indexes were searched")
    end()


if __name__ == "__main__":
    main()
