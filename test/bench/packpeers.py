#!/usr/bin/env python3
"""Packs the libraries that the card's benches are measured beside.

usage: packpeers.py FOLDER [--arch 90] [--part-mb N]

For a host with a card and without network: fetches RAFT, cuVS and Faiss for
CUDA 13 and Python 3.12 from PyPI into FOLDER/wheels, unpacks them to
FOLDER/tree, takes out what is not run (tests, sources, code of other cards
than --arch, which becomes zeros, so that it takes no room when compressed),
compiles test/bench/selectpeer.cu against RAFT's headers where there is nvcc,
and writes FOLDER/peers.tar.xz.aa, .ab, ..., none above --part-mb.
`test/gpu/run.sh peers FOLDER` takes them from there.  Needs pip, tar and xz.
"""
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import zipfile

import data

RAPIDS = "26.6.0"
PACKAGES = {"faiss-gpu-cu13-cuvs": "1.15.0", "libcuvs-cu13": RAPIDS,
            "cuvs-cu13": RAPIDS, "libraft-cu13": RAPIDS,
            "pylibraft-cu13": RAPIDS, "librmm-cu13": RAPIDS,
            "rmm-cu13": RAPIDS, "rapids-logger": "0.2.3"}
GLIBCS = (39, 28, 27, 24, 17)
# headers that select_k does not reach, and what only developers run
UNUSED = ["libcuvs/include", "librmm/include/rapids", "*/tests", "*/test",
          "*/lib64/cmake", "*/include/*/cmake"]
UNUSED_SUFFIXES = {".pyx", ".pxd", ".pyi", ".a"}
FATBIN = struct.pack("<I", 0xBA55ED50)
FATBIN_HEAD = struct.Struct("<IHHQ")    # magic, version, head bytes, bytes
ENTRY_HEAD = struct.Struct("<HHIQ")     # kind, flags, head bytes, bytes
ENTRY_ARCH = 28
MACHINE_CODE = 2


def parse_arguments():
    parser = data.parser(__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--part-mb", type=int, default=56)
    return parser.parse_args()


def fetch(wheels):
    platforms = []
    for minor in GLIBCS:
        platforms += ["--platform", "manylinux_2_%d_x86_64" % minor]
    for name, version in PACKAGES.items():
        if any(wheels.glob("%s-%s-*" % (name.replace("-", "_"), version))):
            continue
        subprocess.run([sys.executable, "-m", "pip", "download", "-q",
                        "--no-deps", "--only-binary=:all:",
                        "--python-version", "3.12", *platforms,
                        "%s==%s" % (name, version), "-d", wheels],
                       check=True)


def unpack(wheels, tree):
    shutil.rmtree(tree, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree)
    for pattern in UNUSED:
        for folder in list(tree.glob(pattern)):
            shutil.rmtree(folder)
    for path in list(tree.rglob("*")):
        if path.suffix in UNUSED_SUFFIXES:
            path.unlink()


def clear_entries(data, begin, end, arch):
    """Zeros in place of the code in data[begin:end], the entries of one fat
    binary, that is not machine code for arch; returns the bytes left."""
    kept = 0
    while begin + 64 <= end:
        kind, _, head, size = ENTRY_HEAD.unpack_from(data, begin)
        if head < 64 or begin + head + size > end:
            break
        made_for, = struct.unpack_from("<I", data, begin + ENTRY_ARCH)
        first = begin + head
        if kind == MACHINE_CODE and made_for == arch:
            kept += size
        else:
            data[first:first + size] = bytes(size)
        begin = first + size
    return kept


def clear_other_cards(path, arch):
    """Sizes and offsets stay, so the library loads as before."""
    data = bytearray(path.read_bytes())
    kept = nbinaries = 0
    at = data.find(FATBIN)
    while at >= 0:
        _, _, head, size = FATBIN_HEAD.unpack_from(data, at)
        if head == FATBIN_HEAD.size and at + head + size <= len(data):
            kept += clear_entries(data, at + head, at + head + size, arch)
            nbinaries += 1
            at += head + size
        else:                   # four bytes that look like one
            at += len(FATBIN)
        at = data.find(FATBIN, at)
    if nbinaries == 0:
        return
    print("%s: %d MB, of which %d MB for cards" % (
        path.name, len(data) >> 20, kept >> 20), flush=True)
    if kept == 0:
        sys.exit("packpeers.py: no code for sm_%d in it" % arch)
    path.write_bytes(data)


def pack(tree, folder, part_mb):
    for path in folder.glob("peers.tar.xz.*"):
        path.unlink()
    archive = folder / "peers.tar.xz"
    with open(archive, "wb") as file:
        tar = subprocess.Popen(["tar", "-C", tree, "-c", "."],
                               stdout=subprocess.PIPE)
        subprocess.run(["xz", "-9e"], stdin=tar.stdout, stdout=file,
                       check=True)
        if tar.wait() != 0:
            sys.exit("packpeers.py: tar failed")
    subprocess.run(["split", "-b", "%dM" % part_mb, archive,
                    str(archive) + "."], check=True)
    archive.unlink()
    for path in sorted(folder.glob("peers.tar.xz.*")):
        print("%s: %.1f MiB" % (path, path.stat().st_size / 2 ** 20))


def main():
    args = parse_arguments()
    wheels, tree = args.folder / "wheels", args.folder / "tree"
    wheels.mkdir(parents=True, exist_ok=True)
    fetch(wheels)
    unpack(wheels, tree)
    for path in sorted(tree.rglob("*.so*")):
        clear_other_cards(path, args.arch)
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc:
        import cardpeers
        cardpeers.compile_select(tree, str(args.arch), nvcc)
    pack(tree, args.folder, args.part_mb)


if __name__ == "__main__":
    main()
