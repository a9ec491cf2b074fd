#!/usr/bin/env python3
"""Functions that a file exports, and the files that call them.

usage: exports.py TREE [--one]

Builds TREE (objects.py; without CUDA) and prints for each function that another
file could call how many others name it, its own file, and these; --one: those of
one file only, which might be part of it.  Those that PostgreSQL finds by name
(gpuvec_..., ivfpq..., _PG_init and their pg_finfo_...) are named by nobody, and
left out where nobody does.  Ends with the number of files, of exported functions
and of those with one calling file.
"""
import collections
import os
import re
import tempfile

import objects

BY_NAME = re.compile(r"^(_PG_init|Pg_magic_func|pg_finfo_.*|gpuvec_.*|main)$")


def main():
    parser = objects.parser(__doc__)
    parser.add_argument("tree")
    parser.add_argument("--one", action="store_true")
    args = parser.parse_args()
    defined = {}
    callers = collections.defaultdict(set)
    with tempfile.TemporaryDirectory(prefix="gpuvec.objects.") as folder:
        paths = objects.build(args.tree, folder)
        for path in paths:
            name = os.path.relpath(path, folder)[:-2]
            for line in objects.run("nm", path).splitlines():
                kind, symbol = line.split()[-2:]
                if kind == "T":
                    defined[symbol] = name
                elif kind == "U":
                    callers[symbol].add(name)
    rows = [(len(callers[symbol]), name, symbol)
            for symbol, name in defined.items()
            if callers[symbol] or not BY_NAME.match(symbol)]
    for n, name, symbol in sorted(rows, key=lambda row: row[1:]):
        if not args.one or n == 1:
            print("%d  %-40s %s: %s" % (n, symbol, name,
                                        " ".join(sorted(callers[symbol]))))
    print("%d files, %d exported functions, %d of them called by one file" % (
        len(paths), len(rows), sum(n == 1 for n, _, _ in rows)))


if __name__ == "__main__":
    main()
