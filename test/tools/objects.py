"""What objects are made of: functions, variables and what they name, as objdump
tells it.  Used by compare.py and exports.py; parser is test/bench's.

Objects are built without optimization, each function and variable in a section
of its own, and with neither lines nor names of files, so that what a function
compiles to depends on nothing but its text and what it names."""
import collections
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..",
                             "bench"))
from data import parser                                 # noqa: E402,F401

FLAGS = ("-O0 -g0 -ffunction-sections -fdata-sections -fno-common "
         "-Wno-builtin-macro-redefined -D__LINE__=0 -D__FILE__='\"file\"'")
SYMBOL = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSN = re.compile(r"^ *([0-9a-f]+):\t(.*)$")
RELOC = re.compile(r"^\s+([0-9a-f]+): (R_\S+)\s+(\S+?)([-+]0x[0-9a-f]+)?$")
WITHIN = re.compile(r"\b[0-9a-f]+ <[^>+]*(\+0x[0-9a-f]+)?>")
OWN_SECTION = re.compile(r"^\.(text|data|bss|rodata|data\.rel\.ro(\.local)?|"
                         r"data\.rel(\.local)?|tbss|tdata)\.(.+)$")


def run(*command, **kwargs):
    return subprocess.run(command, check=True, text=True, errors="replace",
                          stdout=subprocess.PIPE, **kwargs).stdout


def build(tree, folder, extra=""):
    """Builds a copy of a tree's sources in `folder`, without CUDA, and returns
    the objects of the extension and of gpuvecd."""
    os.makedirs(folder, exist_ok=True)
    listed = run("git", "-C", tree, "ls-files", "-co", "--exclude-standard")
    present = [name for name in listed.splitlines()
               if os.path.isfile(os.path.join(tree, name))]
    packed = subprocess.run(["tar", "-C", tree, "-cf", "-", "-T", "-"],
                            input="\n".join(present).encode(), check=True,
                            stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-C", folder, "-xf", "-"], input=packed, check=True)
    config = os.environ.get("PG_CONFIG", "pg_config")
    made = subprocess.run(
        ["make", "-s", "-C", folder, "-j%d" % os.cpu_count(), "CC=gcc",
         "PG_CONFIG=" + config, "NVCC=", "with_llvm=no",
         "COPT=%s %s" % (FLAGS, extra), "all"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        sys.exit(made.stdout[-4000:])
    return sorted(os.path.join(path, name)
                  for path, _, names in os.walk(folder) for name in names
                  if name.endswith(".o"))


def bare(symbol):
    """A symbol without what the compiler numbers it with, or its section."""
    section = OWN_SECTION.match(symbol)
    if section:
        symbol = section.group(4)
    return re.sub(r"\.(\d+|constprop|isra|part|cold)\b.*$", "", symbol)


def read_sections(path):
    """{name: bytes} of the sections that have contents."""
    contents = collections.defaultdict(bytearray)
    name = None
    for line in run("objdump", "-s", path).splitlines():
        if line.startswith("Contents of section "):
            name = line[len("Contents of section "):-1]
        elif name and line.startswith(" "):
            contents[name] += bytes.fromhex(
                line[1:].split("  ")[0].split(" ", 1)[1].replace(" ", ""))
    return contents


def literal(contents, section, offset, insn):
    """What a section without a name of its own has there: the constant that the
    instruction reads, or the string whose address it takes."""
    there = bytes(contents.get(section, b"")[max(offset, 0):])
    if insn is None or insn.startswith(("lea", "mov    $", "push")):
        there = there.split(b"\0", 1)[0]
    else:
        opcode = insn.split()[0]
        there = there[:16 if re.search("[ap][sd]$|dqa|pxor|pand", opcode) else
                      4 if opcode.endswith(("ss", "ss2sd", "l")) else 8]
    return "constant %r" % there


def target(contents, symbol, addend, insn=None):
    """What a relocation names."""
    if symbol.startswith(".") and not OWN_SECTION.match(symbol) or \
            ".str" in symbol or re.match(r"^\.rodata\.cst", symbol):
        return literal(contents, symbol, addend, insn)
    where = "" if addend == 0 else "%+d" % addend
    return bare(symbol) + where


def functions(path):
    """[(name, text)] of an object's functions: their instructions, each with what
    it names in place of an address."""
    contents = read_sections(path)
    found = []
    lines = run("objdump", "-dr", "--no-show-raw-insn", path).splitlines()
    addresses = [INSN.match(line) for line in lines]
    following = [None] * len(lines)
    after = None
    for i in range(len(lines) - 1, -1, -1):
        following[i] = after
        if addresses[i]:
            after = int(addresses[i].group(1), 16)
        elif SYMBOL.match(lines[i]):
            after = None
    text = None
    for i, line in enumerate(lines):
        symbol, insn, reloc = SYMBOL.match(line), addresses[i], RELOC.match(line)
        if symbol:
            text = []
            found.append((bare(symbol.group(1)), text))
        elif insn and text is not None:
            text.append(WITHIN.sub(lambda m: "<%s>" % (m.group(1) or "+0"),
                                   re.sub(r"\s*#.*$", "", insn.group(2))))
        elif reloc and text:
            addend = int(reloc.group(4) or "0", 16)
            if "PC32" in reloc.group(2) or "PLT32" in reloc.group(2) or \
                    "PCREL" in reloc.group(2):
                end = following[i]
                addend += (end - int(reloc.group(1), 16)) if end else 4
            text[-1] += " ; " + target(contents, reloc.group(3), addend,
                                        text[-1])
    return [(name, "\n".join(text)) for name, text in found]


def variables(path):
    """[(name, text)] of an object's variables with initial values."""
    contents = read_sections(path)
    relocs = collections.defaultdict(list)
    section = None
    for line in run("objdump", "-r", path).splitlines():
        named = re.match(r"RELOCATION RECORDS FOR \[(.*)\]:", line)
        fields = line.split()
        if named:
            section = named.group(1)
        elif section and len(fields) == 3 and fields[1].startswith("R_"):
            part = re.match(r"(.+?)([-+]0x[0-9a-f]+)?$", fields[2])
            relocs[section].append("%s: %s" % (fields[0].lstrip("0"), target(
                contents, part.group(1), int(part.group(2) or "0", 16))))
    found = []
    for name, there in contents.items():
        own = OWN_SECTION.match(name)
        if own and not name.startswith(".text") and ".str" not in name and \
                not own.group(4).startswith(("cst", "__func__")):
            found.append((bare(name), "\n".join([there.hex(), *relocs[name]])))
    return found
