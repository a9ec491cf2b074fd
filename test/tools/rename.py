#!/usr/bin/env python3
"""Renames symbols of C where they are meant, not where the same word means
something else.

usage: rename.py FILE [--texts GLOB]... [--dry]

FILE has lines 'old<TAB>new[<TAB>scope]': scope is a regular expression that the
symbol's USR (clang's name of a declaration) has to contain, any where left out:
    copies	postings	@FI@            a field of any struct
    copies	postings	IvfpqScanReport@FI@     of this one
    late	out_of_order	c:depth.c@      in this file, local variables too
    IvfpqCopy	IvfpqPosting            whatever it is
Macros have the scope 'macro'.  All C files of src and test/unit are parsed by
libclang as the Makefile's gcc sees them; every declaration and use of the symbols
is replaced.  --texts: in these files, too, the old words as whole words (the table
of planted faults, READMEs), where no scope is given.  In the end the places that
still have an old word are listed: code that this machine does not compile, text,
and other meanings.  --dry changes nothing.  Run it in the tree, which has to be
committed, and prove it by compare.py --names FILE.
"""
import argparse
import collections
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "test", "bench"))
sys.dont_write_bytecode = True

import data

if __name__ == "__main__":
    data.PIP_PACKAGES["rename"] = ["libclang"]
    data.MODULES["libclang"] = "clang"
    data.enter_venv("rename", __file__)

from clang import cindex


def read_wanted(path):
    """{old: [(scope, new)]}"""
    wanted = collections.defaultdict(list)
    with open(path) as lines:
        for line in lines:
            words = line.rstrip("\n").split("\t")
            if len(words) >= 2 and not line.startswith("#"):
                wanted[words[0]].append((words[2] if len(words) > 2 else "",
                                         words[1]))
    return wanted


def arguments():
    """What clang is to know: PostgreSQL's headers, and clang's own."""
    config = os.environ.get("PG_CONFIG", "pg_config")
    server = subprocess.run([config, "--includedir-server"], text=True,
                            stdout=subprocess.PIPE, check=True).stdout.strip()
    own = sorted(glob.glob("/usr/lib/llvm-*/lib/clang/*/include"))
    if not own:
        sys.exit("rename.py: no clang, whose headers are needed")
    return ["-std=gnu99", "-Isrc", "-I.", "-Itest/unit", "-I" + server,
            "-isystem", own[-1], "-DGV_TEST_BUILD", "-D_GNU_SOURCE",
            "-DGPUVEC_RELEASE=\"\"", "-mavx512f", "-mavx512bw", "-mf16c", "-mfma",
            "-Wno-everything"]


def spelled_at(cursor):
    """(file, offset) of the token, of an argument of a macro where it stands."""
    name, line, column, offset = (
        cindex.c_object_p(), cindex.c_uint(), cindex.c_uint(), cindex.c_uint())
    cindex.conf.lib.clang_getSpellingLocation(
        cursor.location, cindex.byref(name), cindex.byref(line),
        cindex.byref(column), cindex.byref(offset))
    return (os.path.normpath(cindex.File(name).name) if name else None,
            offset.value)


def new_name(wanted, name, usr):
    for scope, new in wanted.get(name, ()):
        if re.search(scope, usr):
            return new
    return None


def ours(unit):
    """The cursors of a translation unit, without those of others' headers."""
    for top in unit.cursor.get_children():
        if top.location.file and not os.path.isabs(top.location.file.name):
            yield from top.walk_preorder()


def note_places(unit, wanted, found):
    """Notes each place of a translation unit where a symbol is named."""
    for cursor in ours(unit):
        if cursor.kind in (cindex.CursorKind.MACRO_DEFINITION,
                           cindex.CursorKind.MACRO_INSTANTIATION):
            name, usr = cursor.spelling, "macro"
        else:
            meant = cursor.referenced or cursor
            name, usr = meant.spelling, meant.get_usr()
        if name not in wanted:
            continue
        new = new_name(wanted, name, usr)
        path, offset = spelled_at(cursor)
        if new and path and not os.path.isabs(path):
            found[path].add((offset, name, new))


def replace(path, spots, dry):
    """Replaces the words at these offsets; a spot that has another word, as what a
    macro made, is left."""
    with open(path, "rb") as file:
        text = file.read()
    done = 0
    for offset, old, new in sorted(spots, reverse=True):
        end = offset + len(old)
        if text[offset:end] == old.encode() and \
                not re.match(rb"\w", text[end:end + 1]):
            text = text[:offset] + new.encode() + text[end:]
            done += 1
    if not dry:
        with open(path, "wb") as file:
            file.write(text)
    return done


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file")
    parser.add_argument("--texts", action="append", default=[])
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    wanted = read_wanted(args.file)
    os.chdir(ROOT)
    units = subprocess.run(["git", "ls-files", "src/*.c", "test/oracle/*.c",
                            "test/unit/*.c"],
                           text=True, stdout=subprocess.PIPE,
                           check=True).stdout.split()
    index = cindex.Index.create()
    found = collections.defaultdict(set)
    for path in units:
        unit = index.parse(path, arguments(), options=cindex.TranslationUnit
                           .PARSE_DETAILED_PROCESSING_RECORD)
        errors = [problem.spelling for problem in unit.diagnostics
                  if problem.severity >= cindex.Diagnostic.Error]
        if errors:
            print("%s: %s (and %d more): uses in it may be missed"
                  % (path, errors[0], len(errors) - 1), file=sys.stderr)
        note_places(unit, wanted, found)
    done = sum(replace(path, spots, args.dry) for path, spots in found.items())
    print("%d places of %d files" % (done, len(found)))
    for path in sorted({path for pattern in args.texts
                        for path in glob.glob(pattern, recursive=True)}):
        with open(path) as file:
            text = file.read()
        for old, rules in wanted.items():
            for scope, new in rules:
                if not scope:
                    text = re.sub(r"\b%s\b" % re.escape(old), new, text)
        if not args.dry:
            with open(path, "w") as file:
                file.write(text)
    print("left:", flush=True)
    subprocess.run(["git", "grep", "-nwE", "|".join(wanted)])


if __name__ == "__main__":
    main()
