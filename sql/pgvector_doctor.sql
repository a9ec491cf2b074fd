-- gpuvec_doctor(query) beside pgvector's own indexes
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector CASCADE;
SET enable_seqscan = on;
CREATE TABLE shared AS SELECT i AS id, pg_temp.wave(i, 8)::vector(8) AS v FROM generate_series(1, 2000) AS i;
CREATE INDEX shared_hnsw ON shared USING hnsw (v vector_l2_ops);
-- so dear that the other one is taken
CREATE INDEX shared_ivfpq ON shared USING gpuivfpq (v) WITH (probes = 20, candidates = 1000000);
ANALYZE shared;
SELECT subject, regexp_replace(state, '[\d.]+', 'N', 'g') AS state, advice
FROM gpuvec_doctor('SELECT id FROM shared ORDER BY v <-> $1 LIMIT 10') \gx
-- what it advises
SET enable_seqscan = off;
SET gpuvec.use_index = always;
EXPLAIN (COSTS OFF) SELECT id FROM shared ORDER BY v <-> '[1,2,3,4,5,6,7,8]' LIMIT 10;
SELECT state, advice FROM gpuvec_doctor('SELECT id FROM shared ORDER BY v <-> $1 LIMIT 10');
SET gpuvec.use_index = never;
SELECT state, advice FROM gpuvec_doctor('SELECT id FROM shared ORDER BY v <-> $1 LIMIT 10');
RESET gpuvec.use_index;
DROP TABLE shared;
-- with the targets of calibration it costs less than hnsw, whose scans take longer
CREATE TABLE shared AS SELECT i AS id, pg_temp.point(i, 32, 1, 0)::vector(32) AS v FROM generate_series(1, 3000) AS i;
CREATE INDEX shared_hnsw ON shared USING hnsw (v vector_l2_ops) WITH (ef_construction = 32);
CREATE INDEX shared_ivfpq ON shared USING gpuivfpq (v);
ANALYZE shared;
RESET enable_seqscan;
SELECT state, advice FROM gpuvec_doctor('SELECT id FROM shared ORDER BY v <-> $1 LIMIT 10');
DROP TABLE shared;
