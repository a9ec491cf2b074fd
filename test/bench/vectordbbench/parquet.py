"""A set of data.py's as the folder of parquet files that VectorDBBench reads.

	train.parquet				id, emb: the rows, id is the row's number
	scalar_labels.parquet		id, labels: one label a row
	test.parquet				id, emb: the queries
	neighbors*.parquet			id, neighbors_id: the rows nearest to each query, 100
								where there are as many, among

		neighbors.parquet				all rows
		neighbors_int_Np.parquet		those with id >= N % of the rows
		neighbors_labels_label_Np.parquet	N % of the rows, drawn at random, that
								have the label label_Np
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                ".."))
import data                                             # noqa: E402
import dataset                                          # noqa: E402

WIDTH = 100
SEED = 20240607
NO_LABEL = "none"


def write(folder, name, columns):
    import pyarrow
    import pyarrow.parquet as parquet
    parquet.write_table(pyarrow.table(columns),
                        os.path.join(folder, name), row_group_size=10000)


def lists(x):
    """A column of lists, one a row of x."""
    import numpy as np
    import pyarrow
    offsets = np.arange(len(x) + 1, dtype=np.int32) * x.shape[1]
    return pyarrow.ListArray.from_arrays(offsets, x.ravel())


def labels_of(nrows, labels):
    """{label: ascending rows}; labels is {label: share of the rows}."""
    import numpy as np
    order = np.random.default_rng(SEED).permutation(nrows)
    ends = np.cumsum([round(nrows * share) for share in labels.values()])
    return {label: np.sort(rows)
            for label, rows in zip(labels, np.split(order, ends))}


def make(found, metric, folder, ints, labels):
    """ints is {file's name: least id}, labels {(label, file's name): share}."""
    import numpy as np
    os.makedirs(folder, exist_ok=True)
    base, query = found.base, found.query
    if metric == "cosine":
        base, query = dataset.unit(base), dataset.unit(query)
    ids, query_ids = np.arange(len(base)), np.arange(len(query))

    def write_truth(name, rows):
        near = rows[data.exact_neighbors(base[rows], query, WIDTH)]
        write(folder, name, {"id": query_ids, "neighbors_id": lists(near)})

    data.say("writing %s" % folder)
    write(folder, "train.parquet", {"id": ids, "emb": lists(found.base)})
    write(folder, "test.parquet", {"id": query_ids,
                                   "emb": lists(found.query)})
    write_truth("neighbors.parquet", ids)
    for name, least in ints.items():
        write_truth(name, ids[least:])
    names = {label: name for label, name in labels}
    shares = {label: share for (label, _), share in labels.items()}
    of_row = np.full(len(base), NO_LABEL, object)
    for label, rows in labels_of(len(base), shares).items():
        of_row[rows] = label
        write_truth(names[label], rows)
    write(folder, "scalar_labels.parquet", {"id": ids, "labels": of_row})
