"""What the tests of clients share: a venv with pinned packages, the examples
of sql/docs/recipes.md, and counting."""
import contextlib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BENCH = os.path.join(ROOT, "test", "bench")
sys.path.insert(1, BENCH)
import data                                             # noqa: E402

DIMS = 384                      # of the page's examples
ROWS = 30                       # vector(1) to vector(30)
NEAREST = {9, 10, 11}           # those nearest to ones
# an index is used from the first row on
USE_INDEX = ("ALTER DATABASE %s SET enable_seqscan = off",
             "ALTER DATABASE %s SET enable_sort = off")
PAGE = os.path.join(ROOT, "sql", "docs", "recipes.md")

failed = 0


def check(good, *what):
    """A line 'ok' or 'not ok', the latter with all that is known."""
    global failed
    text = ", ".join(map(str, what))
    print("ok - " + text[:120].replace("\n", " ") if good else "not ok - " + text, flush=True)
    failed += not good
    return good


def end():
    sys.exit(failed != 0)


def enter_venv(program, requirements="requirements.txt"):
    """Goes on in build/clients/NAME, which is made from the requirements, and
    again when these have changed.  Status 2 if PyPI cannot be reached."""
    path = os.path.join(HERE, requirements)
    with open(path) as f:
        wanted = f.read()
    with need_pypi():
        data.go_on_in(os.path.join(data.BUILD, "clients",
                                   requirements[:-len(".txt")]),
                      program, "have.txt", wanted, ["-r", path])


@contextlib.contextmanager
def need_pypi():
    """Where a command fails, PyPI cannot be reached: status 2."""
    try:
        yield
    except subprocess.CalledProcessError as error:
        print(error)
        sys.exit(2)


def examples(language):
    """The blocks in this language of the page, by the heading above them."""
    blocks, heading = {}, None
    with open(PAGE) as f:
        for title, marked, text in re.findall(
                r"^#+ ([^\n]*)\n|^```(\w+)\n(.*?)^```", f.read(),
                re.MULTILINE | re.DOTALL):
            if title:
                heading = title
            elif marked == language:
                blocks.setdefault(heading, []).append(text)
    return blocks


def psql(*commands, database="postgres"):
    """Runs them, and returns what the last one prints."""
    out = ""
    for command in commands:
        out = subprocess.run(
            ["psql", "-XqAt", "-d", database, "-v", "ON_ERROR_STOP=1", "-c",
             command], check=True, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"}
        ).stdout
    return out


def new_database(name, *commands, extension="gpuvec_pgvector", settings=()):
    """Empty, with gpuvec and pgvector in it."""
    psql("DROP DATABASE IF EXISTS %s WITH (FORCE)" % name,
         "CREATE DATABASE %s" % name, *(s % name for s in settings))
    psql("CREATE EXTENSION %s CASCADE" % extension, *commands, database=name)


def vector(i):
    return [float(i)] * (DIMS - 1) + [10.0]


def index_scans(name):
    """Scans of the indexes of ours in a database."""
    return [int(line) for line in psql(
        "SELECT idx_scan FROM pg_stat_user_indexes JOIN pg_class"
        " ON oid = indexrelid JOIN pg_am AS a ON a.oid = relam"
        " WHERE amname = 'gpuivfpq'", database=name).split()]
