-- settings and index options
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
LOAD 'gpuvec';

-- settings
SELECT name, boot_val, min_val, max_val, enumvals
FROM pg_settings WHERE name LIKE 'gpuvec.%' AND context = 'user' ORDER BY name;

SET gpuvec.probes = 10;
SHOW gpuvec.probes;
SET gpuvec.probes = -1;
SET gpuvec.probes = 16777217;
SET gpuvec.probes = 16777216;
SHOW gpuvec.probes;
SET gpuvec.probes = 'many';
RESET gpuvec.probes;

SET gpuvec.candidates = 1000000;
SHOW gpuvec.candidates;
SET gpuvec.candidates = -1;
SET gpuvec.candidates = 1000001;
RESET gpuvec.candidates;

-- ORDER is a reserved word
SET gpuvec.scan_order = relaxed;
SHOW gpuvec.scan_order;
SET gpuvec.scan_order = 'strict';
SET gpuvec.scan_order = 'loose';
SELECT set_config('gpuvec.scan_order', 'relaxed', false);
RESET gpuvec.scan_order;

SET gpuvec.max_probes = 100;
SHOW gpuvec.max_probes;
SET gpuvec.max_probes = -1;
SET gpuvec.max_probes = 16777217;
RESET gpuvec.max_probes;

-- what is computed does not depend on the instructions it is computed by
SET gpuvec.simd = portable;
SHOW gpuvec.simd;
SET gpuvec.simd = 'sse2';
RESET gpuvec.simd;

-- the prefix is reserved
SET gpuvec.prob = 1;

-- index options
CREATE TABLE opts (id int, e real[]);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (lists = -1);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (lists = 16777217);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (pq_dim = -1);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (pq_dim = 16001);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (probes = -1);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (probes = 16777217);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (candidates = -1);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (candidates = 1000001);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (dims = -1);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (dims = 16001);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (dims = 'three');
CREATE INDEX ON opts USING gpuivfpq (e) WITH (dims = 3, pq_dim = 4);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (fillfactor = 50);
CREATE INDEX ON opts USING gpuivfpq (e) WITH (m = 16);

-- what the access method does not do
CREATE UNIQUE INDEX ON opts USING gpuivfpq (e);
CREATE INDEX ON opts USING gpuivfpq (e, e);
CREATE INDEX ON opts USING gpuivfpq (e) INCLUDE (id);
\set VERBOSITY sqlstate
CREATE INDEX ON opts USING gpuivfpq (e DESC);
\set VERBOSITY default
CREATE INDEX ON opts USING gpuivfpq (id);
ALTER TABLE opts ADD EXCLUDE USING gpuivfpq (e WITH =);

-- options of a standing index
CREATE INDEX opts_e ON opts USING gpuivfpq (e)
	WITH (lists = 0, pq_dim = 0, probes = 0, candidates = 0, dims = 0);
ALTER INDEX opts_e SET (probes = 20, candidates = 200);
ALTER INDEX opts_e SET (probes = -5);
ALTER INDEX opts_e SET (dims = 8, pq_dim = 9);
ALTER INDEX opts_e RESET (lists, pq_dim, dims);
SELECT reloptions FROM pg_class WHERE relname = 'opts_e';
CLUSTER opts USING opts_e;

SELECT p.name, pg_index_has_property('opts_e', p.name) AS index,
	pg_index_column_has_property('opts_e', 1, p.name) AS column
FROM unnest(ARRAY['clusterable', 'index_scan', 'bitmap_scan', 'backward_scan',
	'distance_orderable', 'orderable', 'returnable', 'search_array',
	'search_nulls']) AS p (name)
ORDER BY 1;
SELECT pg_get_indexdef('opts_e'::regclass);

DROP TABLE opts;

-- options that wait for REINDEX say so; others, and those of an untrained index,
-- do not
CREATE TABLE waits AS SELECT i AS id, pg_temp.wave(i, 8) AS e FROM generate_series(1, 2000) AS i;
CREATE INDEX waits_e ON waits USING gpuivfpq (e) WITH (lists = 4);
CREATE TABLE early (e real[]);
CREATE INDEX early_e ON early USING gpuivfpq (e) WITH (dims = 8);
RESET client_min_messages;
ALTER INDEX waits_e SET (refine = sq8);
SELECT advice FROM gpuvec_index_info('waits_e');
ALTER INDEX waits_e SET (probes = 3, train_rows = 500);
ALTER INDEX waits_e RENAME TO "waits's";
ALTER INDEX "waits's" SET (refine = half, candidates = 70);
SELECT advice FROM gpuvec_index_info('"waits''s"');
ALTER INDEX "waits's" RESET (refine);
ALTER INDEX "waits's" SET (rotate);
ALTER INDEX "waits's" SET (rotate = off, pq_dim = 3);
SELECT advice FROM gpuvec_index_info('"waits''s"');
ALTER INDEX "waits's" RESET (pq_dim);
-- REINDEX would end a calibration for queries
ALTER INDEX "waits's" SET (spill = 0, calibrated_for = queries);
SELECT advice FROM gpuvec_index_info('"waits''s"');
ALTER INDEX "waits's" SET (spill = 1, calibrated_for = rows);
ALTER INDEX "waits's" SET (lists = 5);
ALTER INDEX "waits's" SET (lists = 4);
ALTER INDEX "waits's" RESET (lists);
-- dims that no build could give
ALTER INDEX "waits's" SET (dims = 9);
ALTER INDEX "waits's" SET (dims = 8);
ALTER INDEX "waits's" RESET (dims);
ALTER INDEX early_e SET (refine = sq8, lists = 7, rotate);
-- REINDEX ends the waiting
ALTER INDEX "waits's" SET (refine = sq8);
REINDEX INDEX "waits's";
SELECT advice FROM gpuvec_index_info('"waits''s"');
ALTER INDEX "waits's" SET (refine = sq8);
DROP TABLE waits, early;
