#!/usr/bin/env python3
"""How many functions a statement runs, in how many files, how deep they nest.

usage: paths.py [TREE] [--list PATH]

Builds TREE (this one) with -O0 -finstrument-functions, so that inline functions
count, too, and with paths.c in it, installs it into a private server
(test/cluster.sh), and runs each of PATHS, warm: once before it is counted.
Where gpuvecd answers, the session's part and gpuvecd's are counted apart; this
path has the test build, whose gpuvecd needs no card, and gdb to look into it.
Prints a table; --list prints the functions of one path, each
with its file.
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile

import objects

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
FLAGS = "-O0 -g -finstrument-functions -Wl,-Bsymbolic -Wl,%s"
SETTINGS = """
shared_preload_libraries = gpuvec
gpuvec.server = %s
autovacuum = off
jit = off
max_parallel_maintenance_workers = 0
gpuvec.engine = cpu
"""
MADE = """
SET client_min_messages = error;
SELECT setseed(.5);
CREATE TABLE made AS SELECT i AS id, i % 10 AS share, i % 50 AS tenant,
  (SELECT array_agg((random() + (i + d) % 97 / 20.0)::real)
   FROM generate_series(1, 24) AS d) AS v FROM generate_series(1, 20000) AS i;
CREATE TABLE keyed AS SELECT * FROM made;
CREATE INDEX made_v ON made USING gpuivfpq (v);
CREATE INDEX keyed_v ON keyed USING gpuivfpq (v, tenant);
CREATE TABLE asked AS SELECT v FROM made WHERE id <= 100;
VACUUM ANALYZE made, keyed;
CREATE FUNCTION paths_begin() RETURNS void AS '$libdir/gpuvec' LANGUAGE c;
CREATE FUNCTION paths_end() RETURNS cstring AS '$libdir/gpuvec' LANGUAGE c;
"""
BEGIN = """
SET client_min_messages = error;
SET enable_seqscan = off;
PREPARE plain(real[]) AS SELECT id FROM made ORDER BY v <-> $1 LIMIT 10;
PREPARE filtered(real[]) AS
  SELECT id FROM made WHERE share = 3 ORDER BY v <-> $1 LIMIT 10;
PREPARE keyed(real[]) AS
  SELECT id FROM keyed WHERE tenant = 7 ORDER BY v <-> $1 LIMIT 10;
SET plan_cache_mode = force_generic_plan;
"""
QUERY = "(SELECT v FROM asked LIMIT 1)"
SCAN = "EXECUTE %%s('{%s}')" % ",".join(str(2 + i / 24) for i in range(24))
BY_GPUVECD = "warm scan by gpuvecd"
SLOTS = 65536   # of paths.c
# name: statements, of which the last is counted
PATHS = {
    "warm scan": [SCAN % "plain"],
    "warm scan, a filter": [SCAN % "filtered"],
    "warm scan, a key": [SCAN % "keyed"],
    "plan of a scan": ["EXPLAIN SELECT id FROM made ORDER BY v <-> %s "
                       "LIMIT 10" % QUERY],
    "gpuvec_search": ["SELECT count(*) FROM gpuvec_search('made_v', "
                      "(SELECT array_agg(v) FROM asked), 10)"],
    "insert": ["INSERT INTO made SELECT 0, 3, 7, v FROM asked LIMIT 1"],
    "VACUUM": ["DELETE FROM made WHERE id % 7 = 0",
               "VACUUM (INDEX_CLEANUP on) made"],
    "build": ["DROP INDEX made_v", "CREATE INDEX made_v ON made USING "
              "gpuivfpq (v)"],
    BY_GPUVECD: ["SET gpuvec.engine = gpu", "SELECT gpuvec_prewarm('made_v')",
                 SCAN % "plain"],
}


def psql(statements):
    """What psql prints of the statements, which one session runs."""
    done = subprocess.run(["psql", "-XqAt", "-v", "ON_ERROR_STOP=1",
                           "-d", "postgres"], input=";\n".join(statements),
                          text=True, stdout=subprocess.PIPE, check=True)
    return done.stdout.splitlines()


def named(library, offsets):
    """{function: file} of offsets in the library."""
    lines = subprocess.run(
        ["addr2line", "-f", "-e", library], input="\n".join(offsets),
        text=True, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    return {name: os.path.relpath(path.rsplit(":", 1)[0], os.getcwd())
            if "/" in path else path
            for name, path in zip(lines[::2], lines[1::2])}


def within_gpuvecd(statements):
    """{function: file} of what gpuvecd runs for the last statement."""
    pid = psql(["SELECT pid FROM gpuvec_stat"])[0]
    program = os.readlink("/proc/%s/exe" % pid)
    with open("/proc/%s/maps" % pid) as maps:
        base = int(next(line for line in maps if program in line).split("-")[0], 16)
    with tempfile.TemporaryDirectory() as folder:
        def gdb(command):
            return "\\! gdb -p %s -batch -ex 'set max-value-size unlimited' -ex '%s' >>%s/gdb 2>&1" % (pid, command, folder)

        script = ";\n".join([*BEGIN.strip("; \n").split(";\n"), *statements, ""])
        script += "%s\n%s;\n%s\n%s\n" % (
            gdb("set variable traces = 1"), statements[-1],
            gdb("set variable traces = 0"),
            gdb("dump binary value %s/seen seen" % folder))
        subprocess.run(["psql", "-XqAt", "-d", "postgres"], input=script, text=True,
                       stdout=subprocess.DEVNULL, check=True)
        with open(folder + "/seen", "rb") as dump:
            seen = struct.unpack("%dQ" % SLOTS, dump.read())
    return named(program, ["%x" % (place - base) for place in seen if place])


def count(listed, served):
    """Within test/cluster.sh: runs the paths, and prints.

    served: those with gpuvecd, else all others."""
    library = subprocess.run([os.environ["PG_CONFIG"], "--pkglibdir"],
                             text=True, stdout=subprocess.PIPE,
                             check=True).stdout.strip() + "/gpuvec.so"
    psql(MADE.strip("; \n").split(";\n"))
    if not served:
        print("| path | functions | files | deepest |\n|---|---|---|---|")
    for name, statements in PATHS.items():
        if (name == BY_GPUVECD) != served:
            continue
        warm = [] if name in ("build", "VACUUM") else statements
        told = psql([*BEGIN.strip("; \n").split(";\n"), *warm,
                     *statements[:-1], "SELECT paths_begin()", statements[-1],
                     "SELECT 'paths ' || paths_end()::text"])
        words = next(line for line in told if line.startswith("paths ")).split()
        parts = {name: (named(library, words[2:]), words[1])}
        if served:
            parts[name + ", in gpuvecd"] = (within_gpuvecd(statements), "")
        for part, (found, deepest) in parts.items():
            print("| %s | %d | %d | %s |" % (part, len(found), len(set(found.values())),
                                             deepest))
            if part == listed:
                for function, path in sorted(found.items(), key=lambda f: f[::-1]):
                    print("    %-44s %s" % (function, path))
        sys.stdout.flush()


def main():
    parser = objects.parser(__doc__)
    parser.add_argument("tree", nargs="?", default=ROOT)
    parser.add_argument("--list")
    parser.add_argument("--here", choices=["auto", "cpu"],
                        help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        count(args.list, args.here == "cpu")
        return
    config = os.environ.get("PG_CONFIG", "pg_config")
    include = subprocess.run([config, "--includedir-server"], text=True,
                             stdout=subprocess.PIPE, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="gpuvec.paths.") as folder:
        os.chmod(folder, 0o755)
        subprocess.run(["gcc", "-c", "-fPIC", "-O2", "-g", "-D_GNU_SOURCE", "-I", include, "-o",
                        folder + "/paths.o",
                        os.path.join(ROOT, "test/tools/paths.c")], check=True)
        # COPT comes twice in a command that links: of an archive that is no harm
        subprocess.run(["ar", "rc", folder + "/paths.a", folder + "/paths.o"],
                       check=True)
        for engine, kind in ("auto", ""), ("cpu", "1"):
            status = subprocess.run(
                [os.path.join(args.tree, "test/cluster.sh"), sys.executable,
                 os.path.abspath(__file__), "--here", engine,
                 *(["--list", args.list] if args.list else [])],
                env={**os.environ, "NVCC": "", "TEST_BUILD": kind,
                     "COPT": FLAGS % (folder + "/paths.a"),
                     "SETTINGS": SETTINGS % engine}).returncode
            if status != 0:
                sys.exit(status)


if __name__ == "__main__":
    main()
