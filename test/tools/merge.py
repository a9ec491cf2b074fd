#!/usr/bin/env python3
"""Merges files of C into chapters, and makes static what only one file uses then.

usage: merge.py FILE [--commit] [--dry]

FILE has lines
    = TITLE                         a section; with --commit each is a commit
    TARGET <- SOURCE [SOURCE...]    paths of .c or of .h files; TARGET may be one of
                                    the sources, or new; one SOURCE is a move
    FUNCTION -> TARGET              the function goes to that file, at its end,
                                    before files are merged
    OLD => NEW FILE                 a static name of FILE that another source has,
                                    too, is another one before

Bodies follow each other in the order of the sources, the heads of all but the first
above them, for the reader to edit; includes are united and sorted.
Paths and names of files are replaced in all other files, and in
test/faults/table, whose rows are sorted again.  Then exported functions of TARGET
that no other file mentions become static: their declarations go, and their names
lose the prefix (IvfpqFooBar: foo_bar).

A name that two sources define, or a new name that is taken, ends it before
anything is written.  Prove the result by compare.py --names build/merged.names,
where the renamed functions are listed, and read it: what static functions are for
is a comment's, what order they have is the reader's.
"""
import argparse
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
TABLE = "test/faults/table"
NAMES = "build/merged.names"
WORD = r"(?<![A-Za-z0-9_]){}(?![A-Za-z0-9_])"
INCLUDE = re.compile(r'#include\s+(<[^>]+>|"[^"]+")')
DEFINED = re.compile(
    r"^(?:#define (\w+)|(\w+)\((?=.*[,)]\s*$|.*[^;]$)|\} (\w+);"
    r"|(?:static|const|typedef)\b[^(=;\n]*?\b(\w+)(?:\[[^;=]*\])*\s*[=;])", re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def tracked():
    """Text files of the tree."""
    names = subprocess.run(["git", "ls-files", "-z"], check=True, text=True,
                           stdout=subprocess.PIPE).stdout.split("\0")[:-1]
    return [name for name in names if os.path.isfile(name) and
            name != "test/tools/merge.py" and
            not name.startswith(("test/fuzz/corpus/", "test/formats/"))]


def split(text):
    """Head comment's sentences, includes, body (without a header's guard)"""
    found = re.match(r"(?:/\*\n(.*?)\n \*/\n)?(.*)", text, re.S)
    head, rest = found.group(1) or " *", found.group(2)
    guard = re.match(r"#ifndef (\w+)\n#define \1\n", rest)
    if guard:
        rest = rest[guard.end():]
        rest = re.sub(r"\n#endif\b[^\n]*\n*\Z", "\n", rest)
    lines = rest.split("\n")
    end = 0
    while end < len(lines) and (not lines[end] or
                                lines[end].startswith("#include")):
        end += 1
    includes = INCLUDE.findall("\n".join(lines[:end]))
    head = head.split("\n", 1)[-1]          # without the file's name
    return head, includes, "\n".join(lines[end:]).strip("\n") + "\n"


def is_ours(name):
    path = name.strip('"')
    return name[0] == '"' and (os.path.exists("src/" + path) or
                               os.path.exists(path))


def sorted_includes(includes):
    """In their groups: postgres.h, the system's, the server's, ours."""
    groups = [[], [], [], []]
    for name in sorted(set(includes), key=lambda n: n.strip('"<>').lower()):
        groups[0 if name == '"postgres.h"' else 1 if name[0] == "<" else
               3 if is_ours(name) else 2].append("#include " + name)
    return "\n\n".join("\n".join(group) for group in groups if group)


def functions(body):
    """{name: (start, end)} of function definitions, comments before included"""
    found = {}
    for match in re.finditer(
            r"(?:^/\*(?:(?!\*/).)*\*/\n)?^[A-Za-z][^\n;{}#]*\n(\w+)\((?:[^;{}]*)\)\n\{\n.*?^\}\n",
            body, re.M | re.S):
        found[match.group(1)] = (match.start(), match.end())
    return found


def declaration(text, name):
    """The match of a function's declaration in a header."""
    return re.search(r"^extern [^;]*?\b%s\([^;]*;\n" % name, text, re.M)


def snake(name):
    name = re.sub(r"^(Ivfpq|gv_gpu_|gv_)", "", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_",
                  name).lower()


def replace_everywhere(names, before=r"(?<!\w)"):
    """Replaces words, {old: new}, in all files"""
    for path in tracked():
        try:
            text = read(path)
        except UnicodeDecodeError:
            continue
        here = [name for name in names if name in text]
        if here:
            pattern = re.compile("%s(%s)(?!\\w)" % (before, "|".join(
                re.escape(name) for name in
                sorted(here, key=len, reverse=True))))
            new = pattern.sub(lambda match: names[match.group(1)], text)
            if new != text:
                write(path, tidy(path, new))


def tidy(path, text):
    """After paths were replaced: no include twice, each group in its order."""
    if not path.endswith((".c", ".h", ".cu", ".cuh")):
        return text

    def group(match):
        lines = sorted(set(match.group(0).strip("\n").split("\n")),
                       key=lambda line: line.strip('">').lower())
        own = path.split("/", 1)[1] if path.startswith("src/") else path
        return "\n".join(line for line in lines
                         if '"%s"' % own not in line) + "\n"
    return re.sub(r'(?:^#include "(?:am|client|cpu|engine|page|planner|inspect'
                  r'|protocol|server|set)/[^\n]*\n)+', group, text,
                  flags=re.M)


def sort_table():
    text = read(TABLE)
    head, rows = text.split("\n\n", 1)
    rows = [row.strip("\n") for row in re.split(r"\n\n+(?=\S+ \()", rows)]
    rows.sort(key=lambda row: (re.search(r"^(\S+): ?", row.split("\n")[1])
                               .group(1), row))
    write(TABLE, head + "\n\n" + "\n\n".join(rows) + "\n")


def move_function(name, target):
    for path in tracked():
        if not path.endswith(".c") or not path.startswith("src/"):
            continue
        text = read(path)
        place = functions(text).get(name)
        if place:
            write(path, (text[:place[0]].rstrip("\n") + "\n\n" +
                         text[place[1]:].lstrip("\n")).rstrip("\n") + "\n")
            write(target, read(target).rstrip("\n") + "\n\n" +
                  text[place[0]:place[1]])
            table = read(TABLE)
            write(TABLE, table.replace("%s: %s\n" % (path, name),
                                       "%s: %s\n" % (target, name)))
            return
    sys.exit("merge.py: no file defines %s" % name)


def rename_static(old, new, path):
    for place in (path, TABLE):
        text = read(place)
        if place == TABLE:
            rows = re.split(r"(?m)^(?=\S+: |\S+ \()", text)
            text = "".join(re.sub(WORD.format(old), new, row)
                           if row.startswith(path + ":") else row
                           for row in rows)
        else:
            text = re.sub(WORD.format(old), new, text)
        write(place, text)


def renamed_text(path, renames):
    text = read(path)
    for old, new, where in renames:
        if where == path:
            text = re.sub(WORD.format(old), new, text)
    return text


def check_names(target, bodies):
    seen = {}
    bad = []
    for source, body in bodies:
        names = {next(filter(None, groups))
                 for groups in DEFINED.findall(body) if any(groups)}
        for name in names - {"PG_FUNCTION_INFO_V1", "StaticAssertDecl"}:
            if seen.setdefault(name, source) != source:
                bad.append("%s: %s and %s define %s" % (
                    target, seen[name], source, name))
    return bad


def merge(target, sources):
    """Writes one file from several; the pairs of paths that changed"""
    parts = [(source,) + split(read(source)) for source in sources]
    name = os.path.basename(target)
    includes = [i for part in parts for i in part[2]]
    gone = {'"%s"' % re.sub(r"^src/", "", source) for source in sources}
    includes = [i for i in includes if i not in gone]
    text = "/*\n * %s\n%s\n */\n" % (name, parts[0][1])
    if target.endswith(".h"):
        guard = re.search(r"#ifndef (\w+)", read(sources[0])).group(1)
        guard = guard.split("_")[0] + "_" + re.sub(
            r"\W", "_", name[:-2]).upper() + "_H"
        text += "#ifndef %s\n#define %s\n\n" % (guard, guard)
    block = sorted_includes(includes)
    text += block + "\n\n" if block else ""
    text += parts[0][3] + "".join(
        "\n/* ----\n%s\n */\n\n%s" % (
            re.sub(r"(?m)^ \*\t\t", " * ", part[1]), part[3])
        for part in parts[1:])
    if target.endswith(".h"):
        text += "\n#endif\t\t\t\t\t\t\t/* %s */\n" % guard
    for source in sources:
        os.remove(source)
    write(target, text)
    subprocess.run(["git", "add", "-N", target], check=True)
    return [(source, target) for source in sources if source != target]


def rename_paths(pairs):
    """Paths and names of files, in all files."""
    paths = {}
    names = {}
    left = {os.path.basename(path) for path in tracked()}
    for old, new in pairs:
        for prefix in ("src/", ""):
            if old.startswith(prefix):
                paths[old[len(prefix):]] = new[len(prefix):]
        if old.endswith(".c"):              # objects are named, too
            paths[old[:-1] + "o"] = new[:-1] + "o"
        name = os.path.basename(old)
        if name not in left and name != os.path.basename(new):
            names[name] = os.path.basename(new)
    replace_everywhere(paths)
    replace_everywhere(names, r"(?<![\w/.])")


def make_static(target):
    """The renamed functions of a merged file"""
    text = read(target)
    words = {}                  # of each file that may name a function
    for path in tracked():
        if path != target and path.endswith(
                (".c", ".h", ".cu", ".cuh", ".cpp", ".sql", ".pl", ".pm",
                 ".py", ".sh")):
            words[path] = set(re.findall(r"\w+", read(path)))
    own = set(re.findall(r"\w+", text))
    renamed = {}
    prototypes = []
    for name, (start, _) in functions(text).items():
        used = [path for path in words if name in words[path]]
        if not re.match("Ivfpq|gv_", name) or len(used) != 1 or \
                not used[0].endswith(".h"):
            continue
        header = read(used[0])
        declared = declaration(header, name)
        if not declared or len(re.findall(WORD.format(name), header)) != 1:
            continue
        new = snake(name)
        if new in own or new in renamed.values():
            print("%s: %s stays exported: %s is taken" % (target, name, new))
            continue
        renamed[name] = new
        write(used[0], header.replace(declared.group(0), ""))
        if re.search(WORD.format(name), text).start() < start:
            prototypes.append(re.sub("^extern", "static", declared.group(0)))
    for name in renamed:
        text = re.sub(r"^(?!static )([A-Za-z][^\n;{}#]*\n%s\()" % name,
                      r"static \1", text, count=1, flags=re.M)
    if prototypes:
        at = text.index(split(text)[2])
        text = text[:at] + "".join(prototypes) + "\n" + text[at:]
    write(target, text)
    replace_everywhere(renamed)
    return renamed


def read_plan(path):
    sections = []
    for line in read(path).split("\n"):
        if line.startswith("= "):
            sections.append((line[2:].strip(), [], [], []))
        elif " <- " in line and not line.startswith("#"):
            target, sources = line.split(" <- ")
            sections[-1][1].append((target.strip(), sources.split()))
        elif " -> " in line and not line.startswith("#"):
            sections[-1][2].append(tuple(line.split(" -> ")))
        elif " => " in line and not line.startswith("#"):
            sections[-1][3].append(tuple(line.replace(" => ", " ").split()))
    return sections


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("plan")
    parser.add_argument("--commit", action="store_true")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    plan = os.path.abspath(args.plan)
    os.chdir(ROOT)
    sections = read_plan(plan)
    bad = [problem for _, merges, _, renames in sections
           for target, sources in merges
           for problem in check_names(target, [
               (source, split(renamed_text(source, renames))[2])
               for source in sources if os.path.exists(source)])]
    if bad or args.dry:
        sys.exit("\n".join(bad) or None)
    os.makedirs("build", exist_ok=True)
    for title, merges, moves, renames in sections:
        for old, new, path in renames:
            rename_static(old, new, path)
        for name, target in moves:
            move_function(name.strip(), target.strip())
        pairs = [pair for target, sources in merges
                 for pair in merge(target, sources)]
        rename_paths(pairs)
        renamed = {}
        for target, _ in merges:
            if target.endswith((".c", ".cu")):
                renamed.update(make_static(target))
        sort_table()
        with open(NAMES, "a", encoding="utf-8") as names:
            names.writelines("%s\t%s\n" % pair for pair in renamed.items())
        print("%s: %d files less, %d functions static" % (
            title, len(pairs), len(renamed)))
        if args.commit:
            subprocess.run(["git", "add", "-A"], check=True)
            subprocess.run(["git", "commit", "-q", "-m", title], check=True)


if __name__ == "__main__":
    main()
