#!/usr/bin/env python3
"""Renames symbols of C and CUDA where they are meant, not where the same word
means something else.

usage: rename.py FILE [--texts GLOB]... [--commit] [--dry]
       rename.py --list

FILE has lines 'old<TAB>new[<TAB>scope]': scope is a regular expression that the
symbol's USR (clang's name of a declaration) has to contain, any where left out:
    copies	postings	@FI@            a field of any struct
    copies	postings	IvfpqScanReport@FI@     of this one
    late	out_of_order	c:depth.c@      in this file, local variables too
    IvfpqCopy	IvfpqPosting            whatever it is
Macros have the scope 'macro'.  All C and CUDA files are parsed by libclang, as a
release and as a test build, with assertions; every declaration and use of the
symbols is replaced.  A name with '_' or of mixed case that has one new name in a
file is replaced in the file's comments, too, and in the rows of test/faults/table
that change the file.  --texts: in these files, too, such names that have no scope.
In the end the places that still have an old word are listed: code that this
machine does not compile, text, and other meanings.

A line '= TITLE' begins a section; with --commit each section is a commit with that
title.  The scopes of all sections are those of the tree before the first.
--list prints every symbol: name, USR, number of places, first place.  --dry changes
nothing.  Run it in the tree, which has to be committed, and prove it by
compare.py --names FILE.
"""
import argparse
import collections
import ctypes
import glob
import multiprocessing
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
    # of the version whose headers are there
    LLVM = re.findall(r"llvm-(\d+)", " ".join(glob.glob("/usr/lib/llvm-*")))
    PACKAGE = "libclang==%s.*" % max(LLVM, key=int, default="14")
    data.PIP_PACKAGES["rename"] = [PACKAGE]
    data.MODULES[PACKAGE] = "clang"
    data.enter_venv("rename", __file__)

from clang import cindex

PARSED = ["*.c", "*.cu", "test/unit/*.cpp", ":!test/tools"]
TABLE = "test/faults/table"


def read_sections(path):
    """[(title, {old: [(scope, new)]})]"""
    sections = [("Rename symbols", collections.defaultdict(list))]
    with open(path) as lines:
        for line in lines:
            words = line.rstrip("\n").split("\t")
            if line.startswith("= "):
                sections.append((line[2:].strip(),
                                 collections.defaultdict(list)))
            elif len(words) >= 2 and not line.startswith("#"):
                sections[-1][1][words[0]].append(
                    (words[2] if len(words) > 2 else "", words[1]))
    return [section for section in sections if section[1]]


def arguments(path, test_build):
    """What clang is to know: PostgreSQL's headers, and clang's own."""
    config = os.environ.get("PG_CONFIG", "pg_config")
    server = subprocess.run([config, "--includedir-server"], text=True,
                            stdout=subprocess.PIPE, check=True).stdout.strip()
    own = sorted(glob.glob("/usr/lib/llvm-*/lib/clang/*/include"))
    if not own:
        sys.exit("rename.py: no clang, whose headers are needed")
    if path.endswith((".cu", ".cpp")):
        language = ["-x", "c++", "-std=c++17", "-Itest/unit/gpu/emulate"]
    elif path.endswith("/neon.c"):
        language = ["-target", "aarch64-linux-gnu", "-std=gnu99"] + [
            "-I" + where for where in glob.glob("/usr/include/*-linux-gnu")]
    else:
        language = ["-std=gnu99", "-I" + server, "-mavx512f", "-mavx512bw",
                    "-mavx512vbmi", "-mf16c", "-mfma"]
    return (language + ["-Isrc", "-I.", "-Itest/unit", "-Itest/fuzz",
                        "-Itest/unit/engine", "-isystem", own[-1], "-D_GNU_SOURCE",
                        "-DGPUVEC_RELEASE=\"\"", "-DUSE_ASSERT_CHECKING",
                        "-Wno-everything"] +
            (["-DGV_TEST_BUILD"] if test_build else []))


def spelled_at(cursor):
    """(file, offset) of the token, of an argument of a macro where it stands."""
    name, line, column, offset = (
        cindex.c_object_p(), ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint())
    cindex.conf.lib.clang_getSpellingLocation(
        cursor.location, ctypes.byref(name), ctypes.byref(line),
        ctypes.byref(column), ctypes.byref(offset))
    return (os.path.normpath(cindex.File(name).name) if name else None,
            offset.value)


def ours(unit):
    """The cursors of a translation unit, without those of others' headers."""
    for top in unit.cursor.get_children():
        if top.location.file and not os.path.isabs(top.location.file.name):
            yield from top.walk_preorder()


def places(path, test_build):
    """{(file, offset, name, USR)} of a translation unit, and its errors"""
    unit = cindex.Index.create().parse(
        path, arguments(path, test_build), options=cindex.TranslationUnit
        .PARSE_DETAILED_PROCESSING_RECORD)
    errors = ["%s: %s: uses in it may be missed" % (path, problem.spelling)
              for problem in unit.diagnostics
              if problem.severity >= cindex.Diagnostic.Error and test_build]
    found = set()
    for cursor in ours(unit):
        if cursor.kind in (cindex.CursorKind.MACRO_DEFINITION,
                           cindex.CursorKind.MACRO_INSTANTIATION):
            name, usr = cursor.spelling, "macro"
        else:
            meant = cursor.referenced or cursor
            name, usr = meant.spelling, meant.get_usr()
        file, offset = spelled_at(cursor)
        if name and file and not os.path.isabs(file):
            found.add((file, offset, name, usr))
    return found, errors[:1]


def differs(path):
    """Has a file code that only a release or a test build has?"""
    with open(path, encoding="latin-1") as file:
        return re.search("GV_TEST_|GV_TUNABLE|stoppoint", file.read())


def index_tree():
    """{file: {offset: (name, {USR})}}: where each symbol is named"""
    units = subprocess.run(["git", "ls-files"] + PARSED, text=True,
                           stdout=subprocess.PIPE, check=True).stdout.split()
    tree, texts = collections.defaultdict(dict), {}
    with multiprocessing.Pool() as pool:
        for found, errors in pool.starmap(
                places, [(unit, True) for unit in units] +
                [(unit, False) for unit in units if differs(unit)]):
            print(*errors, sep="", end="\n" if errors else "", file=sys.stderr)
            for path, offset, name, usr in found:
                if path not in texts:
                    with open(path, "rb") as file:
                        texts[path] = file.read()
                # a call through a field begins with another word, what a macro
                # made stands where another word is
                if re.match(rb"%s\b" % re.escape(name.encode()),
                            texts[path][offset:]):
                    tree[path].setdefault(offset, (name, set()))[1].add(usr)
    return tree


def new_name(wanted, name, usrs):
    for scope, new in wanted.get(name, ()):
        if any(re.search(scope, usr) for usr in usrs):
            return new
    return None


def is_distinct(name):
    """Is this no word of English?"""
    return "_" in name.strip("_") or re.search(r"[a-z][A-Z]", name)


def replaced(text, words):
    """Replaces the word at each offset: {offset: (old, new)}; the new text, and
    {offset now: offset before}"""
    pieces, now, end, size = [], {}, 0, 0
    for offset, (old, new) in sorted(words.items()):
        if offset < end:
            continue
        pieces += [text[end:offset], new]
        size += offset - end
        now[size] = offset
        size += len(new)
        end = offset + len(old)
    return b"".join(pieces + [text[end:]]), now


def rename_file(path, spots, wanted, everywhere):
    """The text with the symbols renamed and, where no symbol and no file is, in
    comments, strings and macros, names that cannot be other words; where its
    symbols are now; and the names that have one new name in it."""
    with open(path, "rb") as file:
        text = file.read()
    words, news = {}, collections.defaultdict(set)
    for offset, (name, usrs) in spots.items():
        new = new_name(wanted, name, usrs) or name
        news[name].add(new)
        words[offset] = name.encode(), new.encode()
    names = {name: min(new) for name, new in news.items()
             if len(new) == 1 and {name} != new}
    told = {old.encode(): new.encode()
            for old, new in dict(everywhere, **names).items()
            if is_distinct(old)}
    if told:
        for match in re.finditer(rb"\b(%s)\b(?!\.(?:c|h|cu|cuh)\b)" %
                                 b"|".join(map(re.escape, told)), text):
            words.setdefault(match.start(), (match[1], told[match[1]]))
    text, now = replaced(text, words)
    return text, {offset: (words[before][1].decode(), spots[before][1])
                  for offset, before in now.items() if before in spots}, names


def carry_table(text, names, everywhere):
    """The planted faults with the names of the files that they change."""
    lines, own = [], {}
    everywhere = {old: new for old, new in everywhere.items()
                  if is_distinct(old)}
    for line in text.split("\n"):
        head = re.match(r"(\S+):(?: (\w+))?$", line)
        if head:
            own = dict(everywhere, **names.get(head[1], {}))
            if head[2]:
                line = "%s: %s" % (head[1], own.get(head[2], head[2]))
        elif re.match(r"[-+ ]", line) and own:
            line = re.sub(r"\w+", lambda word: own.get(word[0], word[0]), line)
        lines.append(line)
    return "\n".join(lines)


def write(path, text, dry):
    if not dry:
        with open(path, "wb" if isinstance(text, bytes) else "w") as file:
            file.write(text)


def apply_section(tree, wanted, texts, dry):
    """Renames what a section names; returns the number of places."""
    done, names = 0, {}
    everywhere = {old: new for old, rules in wanted.items()
                  for scope, new in rules if not scope}
    for path, spots in tree.items():
        count = sum(new_name(wanted, *place) is not None
                    for place in spots.values())
        text, tree[path], names[path] = rename_file(
            path, spots, wanted, everywhere)
        write(path, text, dry)
        done += count
    with open(TABLE) as file:
        write(TABLE, carry_table(file.read(), names, everywhere), dry)
    word = re.compile(r"\b(%s)\b" % "|".join(map(re.escape, everywhere)))
    for path in sorted({path for pattern in texts
                        for path in glob.glob(pattern, recursive=True)
                        if os.path.isfile(path) and path != TABLE and
                        path not in tree} if everywhere else ()):
        with open(path, encoding="latin-1") as file:
            text = file.read()
        new = word.sub(lambda match: everywhere[match[1]]
                       if is_distinct(match[1]) else match[1], text)
        if new != text and not dry:
            with open(path, "w", encoding="latin-1") as file:
                file.write(new)
    print("%d places of %d files" % (done, sum(map(bool, names.values()))))
    return done


def show_symbols(tree):
    """Prints each symbol once."""
    symbols = collections.defaultdict(list)
    for path, spots in tree.items():
        for offset, (name, usrs) in spots.items():
            symbols[name, min(usrs)].append((path, offset))
    for (name, usr), where in sorted(symbols.items()):
        path, offset = min(where)
        with open(path, "rb") as file:
            line = file.read()[:offset].count(b"\n") + 1
        print("%s\t%s\t%d\t%s:%d" % (name, usr, len(where), path, line))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--texts", action="append", default=[])
    parser.add_argument("--commit", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    sections = read_sections(args.file) if args.file else []
    os.chdir(ROOT)
    tree = index_tree()
    if args.list:
        show_symbols(tree)
    for title, wanted in sections:
        print(title, flush=True)
        if not apply_section(tree, wanted, args.texts, args.dry):
            print("nothing has a name of it")
        elif args.commit and not args.dry:
            subprocess.run(["git", "commit", "-qam", title], check=True)
        print("left:", flush=True)
        subprocess.run(["git", "grep", "-nwE", "|".join(wanted)])


if __name__ == "__main__":
    main()
