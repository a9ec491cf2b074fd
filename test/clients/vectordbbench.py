#!/usr/bin/env python3
"""VectorDBBench's filter cases (test/bench/vectordbbench) on a tiny set.

usage: vectordbbench.py            (in test/cluster.sh, or by test/run.sh)

Prints 'ok' or 'not ok' and what was tried, a line each, and at the end 'N
passed, N failed'; status 2: PyPI cannot be reached, 1: something is not ok.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BENCH = os.path.join(HERE, "..", "bench")
PROGRAM = os.path.join(BENCH, "vectordbbench", "vectordbbench.py")
DATA = "synthetic:2000:16:1"
TINY = ["--queries", "20", "--k", "10", "--ints", ".5", "--labels", ".05",
        "--recall", "1", "--ef-search", "100", "--clients", "1", "--seconds",
        "1", "--maintenance-work-mem", "64MB", "--set", "enable_seqscan=off",
        "--set", "enable_sort=off", "--set", "enable_bitmapscan=off"]

passed = failed = 0


def check(is_right, what):
    global passed, failed
    print("%s - %s" % ("ok" if is_right else "not ok", what), flush=True)
    passed, failed = passed + bool(is_right), failed + (not is_right)


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
    if subprocess.run([os.path.join(BENCH, "vectordbbench",
                                    "setup.sh")]).returncode != 0:
        print("VectorDBBench cannot be installed")
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        ran = subprocess.run(
            [sys.executable, PROGRAM, DATA, *TINY, "--json", out,
             "--folder", os.path.join(folder, "set")],
            env=dict(os.environ, GPUVEC_DATA=folder),
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
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
