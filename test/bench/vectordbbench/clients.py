"""VectorDBBench's classes for gpuivfpq, and its pgvector client as it is.

Tables, rows, statements and what is timed are its PgVector's; other are the
statement CREATE INDEX, whose key is the column that the case filters by, and
the session's setting.
"""
import offline                                          # noqa: F401
from psycopg import sql
from vectordb_bench.backend.clients.pgvector.config import (
    PgVectorConfig, PgVectorHNSWConfig)
from vectordb_bench.backend.clients.pgvector.pgvector import PgVector
from vectordb_bench.backend.task_runner import CaseRunner


class GpuvecConfig(PgVectorHNSWConfig):
    """A configuration of an index is the recall that its sessions ask for."""

    m: int | None = None
    ef_construction: int | None = None
    recall: float = .95

    def index_param(self):
        return {**super().index_param(), "index_type": "gpuivfpq"}

    def session_param(self):
        return {"session_options": self._optionally_build_set_options(
            {"gpuvec.recall": self.recall})}


class Analyzed(PgVector):
    """VectorDBBench's client; the planner knows the columns, as it would when
    autovacuum had come by."""

    def optimize(self, data_size=None):
        super().optimize(data_size)
        self.conn.autocommit = True
        self.cursor.execute(sql.SQL("VACUUM ANALYZE {}").format(
            sql.Identifier(self.table_name)))
        self.conn.autocommit = False


class Gpuvec(Analyzed):
    def _create_index(self):
        self._set_parallel_index_build_param()
        key = self._scalar_label_field if self.with_scalar_labels else \
            self._primary_field
        self.cursor.execute(sql.SQL(
            "CREATE INDEX {} ON {} USING gpuivfpq ({} {}, {})").format(
                *map(sql.Identifier, (
                    self._index_name, self.table_name, self._vector_field,
                    self.case_config.index_param()["metric"], key))))
        self.conn.commit()


class Runner(CaseRunner):
    """VectorDBBench's runner of a case, for clients that it does not know."""

    def init_db(self, drop_old=True):
        config = self.config.db_case_config
        client = Gpuvec if isinstance(config, GpuvecConfig) else Analyzed
        self.db = client(
            dim=self.ca.dataset.data.dim,
            db_config=self.config.db_config.to_dict(), db_case_config=config,
            drop_old=drop_old, with_scalar_labels=self.ca.with_scalar_labels)


def address(host, port, user, database):
    """A folder, where the server's socket is; a password must be there and is not
    asked for."""
    return PgVectorConfig(host=host, port=port, user_name=user, password="none",
                          db_name=database)
