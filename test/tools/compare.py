#!/usr/bin/env python3
"""Do two trees compile to the same?  For steps that move, merge, rename or
comment, and change nothing.

usage: compare.py BEFORE AFTER [--names FILE] [--show N]

BEFORE and AFTER are trees of gpuvec, say worktrees of two commits.  Both are
built without optimization, lines and names of files (objects.py); then each
function and each variable of one is looked for in the other, wherever it is
defined: its instructions, and what they name, have to be the same.  FILE has
lines 'old<TAB>new' of symbols that were renamed; strings, among them those that
__func__ gives, are compared after the same renaming.  Functions that only one
tree has are listed: what is called by nobody else any more, or inlined by hand,
is for the reader to judge.  CUDA's objects are not built.

Prints what differs, --show instructions of each at most, and ends with 'N the
same, N differ, N gone, N new'; status 0 if none differs.
"""
import collections
import difflib
import re
import sys
import tempfile

import objects

WORD = re.compile(r"[A-Za-z_]\w*")


def read(tree, folder, names):
    """{(kind, name): Counter of texts}"""
    found = collections.defaultdict(collections.Counter)

    def renamed(text):
        return WORD.sub(lambda m: names.get(m.group(0), m.group(0)), text)

    for path in objects.build(tree, folder):
        for kind, take in (("function", objects.functions),
                           ("variable", objects.variables)):
            for name, text in take(path):
                found[kind, names.get(name, name)][renamed(text)] += 1
    return found


def show(before, after, most):
    lines = difflib.unified_diff(
        "\n".join(before).split("\n"), "\n".join(after).split("\n"),
        lineterm="", n=1)
    for line in list(lines)[2:2 + most]:
        print("    " + line[:160])


def main():
    parser = objects.parser(__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--names")
    parser.add_argument("--show", type=int, default=12)
    args = parser.parse_args()
    names = {}
    if args.names:
        with open(args.names) as lines:
            names = dict(line.rstrip("\n").split("\t")[:2]
                         for line in lines if "\t" in line)
    with tempfile.TemporaryDirectory(prefix="gpuvec.objects.") as folder:
        before = read(args.before, folder + "/before", names)
        after = read(args.after, folder + "/after", {})
    counts = collections.Counter()
    for key in sorted(set(before) | set(after)):
        if key not in after:
            counts["gone"] += 1
            print("%s %s: gone" % key)
        elif key not in before:
            counts["new"] += 1
            print("%s %s: new" % key)
        elif before[key] == after[key]:
            counts["same"] += 1
        else:
            counts["differ"] += 1
            print("%s %s: differs" % key)
            show(sorted((before[key] - after[key]).elements()),
                 sorted((after[key] - before[key]).elements()), args.show)
    print("%d the same, %d differ, %d gone, %d new" % tuple(
        counts[what] for what in ("same", "differ", "gone", "new")))
    sys.exit(counts["differ"] != 0)


if __name__ == "__main__":
    main()
