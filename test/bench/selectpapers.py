#!/usr/bin/env python3
"""The experiments of two papers on selection (selectpapers.cu), on a processor
or on a card.

	selectpapers.py ranks	Ribizel, Anzt: a rank of up to 2^28 values, with 128
							to 1,024 buckets, exactly and approximately
	selectpapers.py rows	Komarov, Dashti, D'Souza: the first k of rows
	--processor				without a card
	--largest 24			log2 of the most values; 2^28 doubles take 5 GB
"""
import argparse
import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile

import cardbuild

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parents[1]
RANKS = ["type", "log2 n", "distinct", "buckets", "exact ms", "16 ranks",
         "approx ms", "error", "nth_element", "sort", "wrong"]
ROWS = ["columns", "k", "chosen", "warp ms", "multi", "sample", "nth_element",
        "sort", "wrong"]


def build_for_card(folder, bits):
    return cardbuild.build(
        f"selectpapers{bits}", ["selectpapers.cu"], folder,
        cardbuild.card_arch(),
        options=[f"-DTREE_BITS={bits}", "-Xcompiler", "-fopenmp"])


def build_for_processor(folder, bits):
    """With the release's engine, whose src/cpu/select has these bits."""
    out = pathlib.Path(folder) / f"bits{bits}"
    out.mkdir(parents=True, exist_ok=True)
    sources = [path for room in ("engine", "cpu")
               for path in sorted((ROOT / "src" / room).rglob("*.c"))
               if path.parent.name != "mirror" and path.name != "gv_fault.c"]
    define = f"-DGV_BUCKET_BITS={bits}"
    for path in sources:
        target = out / (path.stem + ".o")
        if path.parent.name == "select" or bits == 8:
            cardbuild.run("gcc", "-std=gnu99", "-O3", "-ffp-contract=off",
                          define, "-I", ROOT / "src", "-c", path, "-o", target)
    objects = [(out if path.parent.name == "select" else out.parent / "bits8")
               / (path.stem + ".o") for path in sources]
    cardbuild.run("g++", "-std=c++17", "-O3", "-fopenmp", define,
                  "-I", ROOT / "src", "-x", "c++", BENCH / "selectpapers.cu",
                  "-x", "none", *objects, "-lm", "-o", out / "selectpapers")
    return out / "selectpapers"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ranks", "rows"])
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--largest", type=int, default=28)
    args = parser.parse_args()
    nwrong = 0
    print("  ".join("%11s" % name for name in
                    (RANKS if args.what == "ranks" else ROWS)))
    build = build_for_processor if args.processor else build_for_card
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor() as pool:
        programs = [build(folder, 8)]       # the engine, too
        if args.what == "ranks":
            programs += pool.map(build, [folder] * 3, (7, 9, 10))
        for program in programs:
            with subprocess.Popen(
                    [program, args.what, str(args.largest)], text=True,
                    stdout=subprocess.PIPE) as running:
                for line in running.stdout:
                    cells = line.rstrip("\n").split("\t")
                    if args.what == "ranks":
                        cells[3] = str(1 << int(cells[3]))
                        if cells[2] == "0":
                            cells[2] = "n"
                    nwrong += int(cells[-1])
                    print("  ".join("%11s" % cell for cell in cells),
                          flush=True)
            nwrong += running.returncode != 0
    sys.exit(nwrong > 0)


if __name__ == "__main__":
    main()
