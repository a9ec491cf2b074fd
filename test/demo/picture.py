#!/usr/bin/env python3
"""Draws README's picture of a k-NN graph of words.

usage: test/cluster.sh test/demo/picture.py [OUT]

Loads the demo's words into the database that PGHOST and so on name, picks a
few hundred of them, the nearest ones of each SEED by an index, and draws their
graph, clusters and a smoothest path as gpuvec's functions give them; OUT is
words.png beside this file when left out.  All is done from fixed seeds, so
that the same answers make the same picture.
"""
import gzip
import io
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import data                                             # noqa: E402

data.PIP_PACKAGES["picture"] = ["numpy", "psycopg[binary]", "matplotlib"]

SEEDS = ("horse", "fruit", "violin", "paris", "football", "purple", "doctor",
         "storm", "chemistry", "theatre", "garden", "river")
NEAREST = 26                    # of each seed
K = 4                           # of the graph
CLUSTERS = 10
SOURCE, TARGET = "storm", "violin"

WIDTH, HEIGHT = 1800, 1500      # pixels; words stay above a margin
MARGIN = 40
FOOT = 110
FONT = 15                       # points at 100 pixels an inch
STOPS = 14                      # of a step of the path, which no word covers
COLORS = ("#b5541c", "#1f6f8b", "#6a4c93", "#2e7d32", "#a3386c", "#8a6d00",
          "#3d5a98", "#00796b", "#7b4b3a", "#5c6b73")
PATH_COLOR = "#d00000"
PAPER = "#fdfcf9"


# ------------------------------------------------------------------------ SQL

def load(conn):
    conn.execute("CREATE TABLE words (id int PRIMARY KEY, word text NOT NULL,"
                 " embedding real[])")
    with gzip.open(os.path.join(HERE, "glove-50k.copy.gz")) as packed:
        with conn.cursor().copy("COPY words FROM STDIN") as copy:
            while block := packed.read(1 << 20):
                copy.write(block)
    conn.execute("CREATE INDEX ON words USING gpuivfpq"
                 " (embedding real_cosine_ops)")
    conn.execute("CREATE INDEX ON words (word)")
    conn.execute("ANALYZE words")


def pick(conn):
    """The nearest words of each seed, made vectors of length one."""
    conn.execute("""
        CREATE TABLE picked AS
        SELECT id, word, (SELECT array_agg((x / length)::real ORDER BY i)
            FROM unnest(embedding) WITH ORDINALITY AS u (x, i)) AS embedding
        FROM words,
            LATERAL (SELECT sqrt(sum(x * x)) AS length
                FROM unnest(embedding) AS x) AS l
        WHERE id IN (SELECT n.id
            FROM words AS s,
                LATERAL (SELECT w.id, w.word FROM words AS w
                    ORDER BY w.embedding <=> s.embedding LIMIT %d) AS n
            WHERE s.word = ANY ('{%s}') AND n.word ~ '^[a-z]{3,}$')""" % (
        NEAREST, ",".join(SEEDS)))


def ask(conn):
    """(words, cluster of each, edges as pairs of numbers, path as numbers)"""
    conn.execute("""CREATE TABLE word_graph AS SELECT *
        FROM gpuvec_knn_graph('picked', 'id', 'embedding', k => %d,
            metric => 'cosine')""" % K)
    conn.execute("""CREATE TABLE clusters AS SELECT *
        FROM gpuvec_kmeans('picked', 'embedding', %d, iterations => 20,
            seed => 1)""" % CLUSTERS)
    rows = conn.execute("""
        SELECT id, word, (SELECT centroid_id FROM clusters
            ORDER BY centroid <-> embedding, centroid_id LIMIT 1)
        FROM picked ORDER BY id""").fetchall()
    number = {row[0]: i for i, row in enumerate(rows)}
    edges = conn.execute("SELECT DISTINCT least(key, neighbor),"
                         " greatest(key, neighbor) FROM word_graph"
                         " ORDER BY 1, 2").fetchall()
    path = conn.execute("""
        SELECT p.key FROM gpuvec_smoothest_path('word_graph',
            (SELECT id FROM picked WHERE word = %s),
            (SELECT id FROM picked WHERE word = %s)) AS p
        ORDER BY step""", (SOURCE, TARGET)).fetchall()
    names = {c: i for i, c in enumerate(sorted({row[2] for row in rows}))}
    return ([row[1] for row in rows], [names[row[2]] for row in rows],
            [(number[a], number[b]) for a, b in edges],
            [number[key] for key, in path])


# --------------------------------------------------------------------- layout

def hops(n, edges):
    """How many edges lie between any two words; a few more than the most where
    there is no way."""
    import numpy as np
    far = np.full((n, n), np.inf)
    np.fill_diagonal(far, 0)
    for a, b in edges:
        far[a, b] = far[b, a] = 1
    for i in range(n):
        np.minimum(far, far[:, i:i + 1] + far[i:i + 1], out=far)
    far[np.isinf(far)] = 2 + far[np.isfinite(far)].max()
    return far


def place(far):
    """Positions [n][2] whose distances are about those of `far`: stress
    majorization, each distance weighted by its inverse square, from the two
    main axes of classical scaling."""
    import numpy as np
    n = len(far)
    square = far ** 2
    centered = -(square - square.mean(0) - square.mean(1)[:, None]
                + square.mean()) / 2
    values, vectors = np.linalg.eigh(centered)
    at = vectors[:, -2:] * np.sqrt(values[-2:])
    at += np.random.default_rng(1).normal(0, .01, at.shape)
    weight = 1 / np.maximum(far, 1) ** 2
    np.fill_diagonal(weight, 0)
    laplacian = np.diag(weight.sum(1)) - weight
    inverse = np.linalg.inv(laplacian + 1 / n) - 1 / n
    for _ in range(400):
        step = at[:, None] - at[None]
        length = np.maximum(np.sqrt((step ** 2).sum(2)), 1e-6)
        pull = weight * far / length
        at = inverse @ (pull.sum(1)[:, None] * at - pull @ at)
    return at


def off_words(at, need):
    """Where to move words [n][2] that are nearer to each other than `need`
    [n][n][2], each by part of its half."""
    import numpy as np
    step = at[:, None] - at[None]
    over = need - np.abs(step)
    number = np.arange(len(at))
    away = np.where(step == 0, np.sign(number[:, None] - number)[..., None],
                    np.sign(step))
    # along the axis on which less is to do, height counting more
    wide = over[..., 0] < over[..., 1] * 2.5
    over *= (over > 0).all(2)[..., None] & (away != 0).any(2)[..., None]
    return (np.stack([wide, ~wide], 2) * over * away * .3).sum(1)


def off_path(at, sizes, path):
    """The same for words that lie upon the path: to the side on which their
    middle is."""
    import numpy as np
    share = (np.arange(STOPS) + .5)[:, None, None] / STOPS
    begin, end = at[path[:-1]], at[path[1:]]
    stops = (1 - share) * begin + share * end           # [STOPS][steps][2]
    normal = (end - begin)[:, ::-1] * (-1, 1)
    normal /= np.sqrt((normal ** 2).sum(1))[:, None]
    side = np.sign(((at[:, None] - begin) * normal).sum(2))
    over = (sizes[:, None, None] / 2 + 7 - np.abs(
        at[:, None, None] - stops)).min(3).max(1)       # [n][steps]
    over[path] = 0
    return ((np.maximum(over, 0) * side)[..., None] * normal * .3).sum(1)


def spread(at, sizes, path):
    """Move words [n][2] of sizes [n][2] until none is upon another or upon the
    path."""
    import numpy as np
    # half by place, half by rank: room where there are many
    at = (at - at.min(0)) / (at.max(0) - at.min(0)) + (
        at.argsort(0).argsort(0) / len(at))
    corner = np.array([MARGIN, MARGIN + FOOT])
    room = np.array([WIDTH, HEIGHT]) - corner - MARGIN
    at = corner + at / 2 * room
    low, high = corner + sizes / 2, corner + room - sizes / 2
    need = (sizes[:, None] + sizes[None]) / 2
    for _ in range(2000):
        at = np.clip(at, low, high)
        move = off_words(at, need) + off_path(at, sizes, path)
        if not move.any():
            break
        at = at + move
    return at


# -------------------------------------------------------------------- drawing

def measure(pyplot, words, bold):
    """Sizes [n][2] of the words as they will be drawn, in pixels."""
    import numpy as np
    figure = pyplot.figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100)
    renderer = figure.canvas.get_renderer()
    sizes = []
    for i, word in enumerate(words):
        box = figure.text(0, 0, word, fontsize=FONT + 4 * (i in bold),
                          weight="bold" if i in bold else "normal"
                          ).get_window_extent(renderer)
        sizes.append((box.width + 12, FONT * 1.9 + 8 * (i in bold)))
    pyplot.close(figure)
    return np.array(sizes)


def draw(words, clusters, edges, path, out):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import patheffects, pyplot
    from matplotlib.collections import LineCollection
    from PIL import Image
    pyplot.rcParams["font.family"] = "DejaVu Sans"
    at = spread(place(hops(len(words), edges)),
                measure(pyplot, words, set(path)), path)
    figure = pyplot.figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100,
                           facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, HEIGHT)
    axes.axis("off")
    axes.add_collection(LineCollection(
        [at[list(e)] for e in edges], linewidths=1,
        colors=[COLORS[clusters[a]] + "58" if clusters[a] == clusters[b]
                else "#00000030" for a, b in edges]))
    axes.add_collection(LineCollection(
        [at[[a, b]] for a, b in zip(path, path[1:])], linewidths=5,
        colors=PATH_COLOR, capstyle="round"))
    for i, word in enumerate(words):
        axes.text(*at[i], word, ha="center", va="center_baseline",
                  fontsize=FONT + 4 * (i in path),
                  weight="bold" if i in path else "normal",
                  color=PATH_COLOR if i in path else COLORS[clusters[i]],
                  zorder=4 if i in path else 3,
                  path_effects=[patheffects.withStroke(linewidth=4,
                                                       foreground=PAPER)])
    axes.text(MARGIN, FOOT - 40, "%d words and the %d nearest of each:"
              " gpuvec_knn_graph.  Colors: gpuvec_kmeans, %d clusters."
              % (len(words), K, CLUSTERS), fontsize=15, color="#333333")
    axes.text(MARGIN, FOOT - 80, "gpuvec_smoothest_path: %s"
              % " \N{RIGHTWARDS ARROW} ".join(words[i] for i in path),
              fontsize=15, color=PATH_COLOR)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    Image.open(buffer).convert("RGB").quantize(128).save(out, optimize=True)


def main():
    data.enter_venv("picture", __file__)
    import psycopg
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE,
                                                             "words.png")
    with psycopg.connect(autocommit=True) as conn:
        load(conn)
        pick(conn)
        words, clusters, edges, path = ask(conn)
    draw(words, clusters, edges, path, out)
    print("%s: %d words, %d edges, %d bytes, path: %s" % (
        out, len(words), len(edges), os.path.getsize(out),
        " ".join(words[i] for i in path)))


if __name__ == "__main__":
    main()
