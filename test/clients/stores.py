#!/usr/bin/env python3
"""Runs the examples of LlamaIndex, Haystack and mem0 in sql/docs/recipes.md as
printed.

usage: stores.py                   (in test/cluster.sh, or by run.sh)

Each store makes its table and gets rows, then the printed statement makes our
index, and a search has to find the nearest rows by it.  Prints 'ok' or 'not ok'
and what was tried, a line each; status 2: PyPI cannot be reached, 1: something
is not ok.
"""
import os
import tempfile
import uuid

from common import (DIMS, NEAREST, ROWS, USE_INDEX, check, end, enter_venv,
                    examples, index_scans, new_database, psql, vector)

QUERY = [1.0] * DIMS


def right(store, found):
    """Whether the nearest come first, by an index of ours."""
    check(set(map(int, found[:3])) == NEAREST and len(found) == 10, store, found)
    scans = index_scans(store)
    check(sum(scans) > 0, store, "scans by the index", scans)


def try_llamaindex(block, statement):
    from llama_index.core.schema import TextNode
    from llama_index.core.vector_stores.types import (
        MetadataFilter, MetadataFilters, VectorStoreQuery)
    where = "%(PGUSER)s@/llamaindex?host=%(PGHOST)s&port=%(PGPORT)s" \
        % os.environ
    names = {}
    exec(block, names)
    new_database("llamaindex", settings=USE_INDEX)
    store = names["open_store"]("postgresql+psycopg2://" + where,
                                "postgresql+asyncpg://" + where, DIMS)
    store.add([TextNode(id_=str(i), text="note %d" % i, embedding=vector(i),
                        metadata={"lang": "de"}) for i in range(1, ROWS + 1)])
    psql(statement, database="llamaindex")
    for filters in None, MetadataFilters(filters=[
            MetadataFilter(key="lang", value="de")]):
        found = store.query(VectorStoreQuery(
            query_embedding=QUERY, similarity_top_k=10, filters=filters)).ids
        check(set(map(int, found[:3])) == NEAREST, "llamaindex", bool(filters), found)
    store.client.dispose()
    right("llamaindex", found)


def try_haystack(block, statement):
    from haystack.dataclasses import Document
    from haystack_integrations.components.retrievers.pgvector import (
        PgvectorEmbeddingRetriever)
    names = {}
    exec(block, names)
    new_database("haystack", settings=USE_INDEX)
    store = names["open_store"]("dbname=haystack", DIMS)
    store.write_documents([
        Document(id=str(i), content="page %d" % i, embedding=vector(i),
                 meta={"lang": "de"}) for i in range(1, ROWS + 1)])
    psql(statement, database="haystack")
    retriever = PgvectorEmbeddingRetriever(document_store=store)
    for filters in None, {"field": "meta.lang", "operator": "==",
                          "value": "de"}:
        found = [d.id for d in retriever.run(
            query_embedding=QUERY, top_k=10, filters=filters)["documents"]]
        check(set(map(int, found[:3])) == NEAREST, "haystack", bool(filters), found)
    store._connection.close()
    right("haystack", found)


def try_mem0(block, statement):
    # it keeps a file in a folder of its own, and calls home
    os.environ["MEM0_DIR"] = tempfile.mkdtemp()
    os.environ["MEM0_TELEMETRY"] = "False"
    from mem0.configs.vector_stores.pgvector import PGVectorConfig
    from mem0.vector_stores.pgvector import PGVector
    names = {}
    exec(block, names)
    new_database("mem0", settings=USE_INDEX)
    config = names["config"]["vector_store"]
    check(config["provider"] == "pgvector", "mem0", config)
    store = PGVector(**PGVectorConfig(**config["config"]).model_dump())
    store.insert([vector(i) for i in range(1, ROWS + 1)],
                 payloads=[{"user_id": "alice", "n": str(i)}
                           for i in range(1, ROWS + 1)],
                 ids=[str(uuid.uuid4()) for _ in range(ROWS)])
    psql(statement, database="mem0")
    found = [m.payload["n"] for m in store.search(
        "", QUERY, top_k=10, filters={"user_id": "alice"})]
    store.connection_pool.close()
    right("mem0", found)


def main():
    enter_venv(__file__, "requirements-stores.txt")
    blocks, statements = examples("python"), examples("sql")
    for name, program in (("LlamaIndex", try_llamaindex),
                          ("Haystack", try_haystack), ("mem0", try_mem0)):
        (block,), (statement,) = blocks[name], statements[name]
        program(block, statement)
    end()


if __name__ == "__main__":
    main()
