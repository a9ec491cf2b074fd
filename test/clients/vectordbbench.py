#!/usr/bin/env python3
"""VectorDBBench's filter cases (test/bench/vectordbbench) on a tiny set.

usage: vectordbbench.py            (in test/cluster.sh, or by test/run.sh)

Prints 'ok' or 'not ok' and what was tried, a line each; status 2: PyPI cannot be
reached, 1: something is not ok.
"""
import json
import os
import subprocess
import sys
import tempfile

from common import BENCH, check, end

PROGRAM = os.path.join(BENCH, "vectordbbench", "vectordbbench.py")
DATA = "synthetic:2000:16:1"
TINY = ["--queries", "20", "--k", "10", "--ints", ".5", "--labels", ".05",
        "--recall", "1", "--ef-search", "100", "--clients", "1", "--seconds",
        "1", "--maintenance-work-mem", "64MB", "--set", "enable_seqscan=off",
        "--set", "enable_sort=off", "--set", "enable_bitmapscan=off"]

def check_result(r):
    name = "%s, %s" % (r["case"], r["system"])
    check(r["qps"] and min(r["qps"]) > 0, name + ": searched by a client")
    if r["system"] == "gpuivfpq":
        check(r["plan"] == "Index Scan using pgvector_index, Index Cond",
              name + ": the key answers (%s)" % r["plan"])
        check(r["recall"] == 1, name + ": exact at recall 1 (%g)"
              % r["recall"])
    else:
        check(r["plan"] == "Index Scan using pgvector_index",
              name + ": by the index (%s)" % r["plan"])
        check(r["recall"] > .8, name + ": recall (%g)" % r["recall"])


def main():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        env = dict(os.environ, GPUVEC_DATA=folder)
        ready = subprocess.run([sys.executable, PROGRAM, DATA, "--prepare"],
                               env=env, stderr=subprocess.PIPE, text=True)
        # anything else that fails does so again below
        if "'pip', 'install'" in ready.stderr or sys.version_info < (3, 11):
            print(ready.stderr)
            sys.exit(2)
        ran = subprocess.run(
            [sys.executable, PROGRAM, DATA, *TINY, "--json", out,
             "--folder", os.path.join(folder, "set")], env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        check(ran.returncode == 0, "the bench runs")
        if ran.returncode == 0:
            with open(out, encoding="utf-8") as file:
                results = json.load(file)
            check(len(results) == 4, "two cases of two systems")
            for r in results:
                check_result(r)
        else:
            print(ran.stdout)
    end()


if __name__ == "__main__":
    main()
