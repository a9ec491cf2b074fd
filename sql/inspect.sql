-- What gpuvec_index_info and gpuvec_list_stats say, and to whom.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE VIEW info AS SELECT i.lists, i.dims, i.pq_dim, i.rows, i.pending,
	i.dead, i.bytes = pg_relation_size(c.oid) AS bytes_right,
	i.rows_at_training AS trained_on, i.advice, c.relname
FROM pg_class c, gpuvec_index_info(c.oid) i
WHERE c.relam = (SELECT oid FROM pg_am WHERE amname = 'gpuivfpq');

-- an empty table, then a small one, then a larger one
CREATE TABLE untrained (id int, v real[]) WITH (autovacuum_enabled = off);
CREATE INDEX "Untrained v" ON untrained USING gpuivfpq (v);
SELECT * FROM info WHERE relname = 'Untrained v' \gx
INSERT INTO untrained SELECT i, pg_temp.wave(i, 8) FROM generate_series(1, 999) i;
SELECT rows, pending, bytes_right, advice FROM info \gx
INSERT INTO untrained VALUES (0, NULL), (1000, pg_temp.wave(1000, 8));
SELECT rows, pending, bytes_right, advice FROM info \gx
SELECT * FROM gpuvec_list_stats('"Untrained v"');
DROP TABLE untrained;
RESET client_min_messages;

-- a trained index, its growth, and a list that grows too long
CREATE TABLE trained (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO trained SELECT i, pg_temp.wave(i, 9) FROM generate_series(1, 1000) i;
CREATE INDEX trained_v ON trained USING gpuivfpq (v)
	WITH (lists = 10, pq_dim = 5);
SELECT * FROM info \gx
SELECT count(*), min(list), max(list), sum(rows), sum(dead),
	bool_and(blocks = (rows + dead + 31) / 32), max(generation)
FROM gpuvec_list_stats('trained_v');
INSERT INTO trained SELECT i, pg_temp.wave(i, 9) FROM generate_series(1001, 4001) i;
SELECT rows, trained_on, advice FROM info;
DROP INDEX trained_v;
CREATE INDEX trained_v ON trained USING gpuivfpq (v) WITH (lists = 40);
SELECT rows, trained_on, advice FROM info;
INSERT INTO trained SELECT i, pg_temp.wave(1, 9) FROM generate_series(1, 10000) i;
SELECT rows, regexp_replace(advice, '[0-9]+', 'N', 'g') AS advice FROM info;

-- a build of few rows did not calibrate, and now there are enough
CREATE TABLE few (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO few SELECT i, pg_temp.wave(i, 8) FROM generate_series(1, 200) i;
CREATE INDEX few_v ON few USING gpuivfpq (v) WITH (lists = 5);
INSERT INTO few SELECT i, pg_temp.wave(i, 8) FROM generate_series(201, 399) i;
SELECT rows, trained_on, advice FROM info WHERE relname = 'few_v';
INSERT INTO few SELECT i, pg_temp.wave(i, 8) FROM generate_series(400, 410) i;
SELECT rows, trained_on, advice FROM info WHERE relname = 'few_v';
SELECT count(*) > 0 AS calibrated FROM gpuvec_calibrate('few_v');
SELECT rows, trained_on, advice FROM info WHERE relname = 'few_v';
DROP TABLE few;

-- dead rows, and what VACUUM does with them
CREATE TEMP TABLE gone (id int, v real[]);
INSERT INTO gone SELECT i, pg_temp.wave(i, 4) FROM generate_series(1, 2000) i;
CREATE INDEX gone_v ON gone USING gpuivfpq (v) WITH (lists = 1);
SELECT rows, dead FROM gpuvec_index_info('gone_v');
DELETE FROM gone WHERE id <= 32;
VACUUM gone;
SELECT rows, dead FROM gpuvec_index_info('gone_v');
SELECT * FROM gpuvec_list_stats('gone_v');
DELETE FROM gone WHERE id <= 1000;
VACUUM gone;
SELECT rows, dead FROM gpuvec_index_info('gone_v');
SELECT * FROM gpuvec_list_stats('gone_v');

-- what is not an index of ours
CREATE INDEX trained_id ON trained (id);
CREATE TABLE parts (v real[]) PARTITION BY HASH (v);
CREATE INDEX parts_v ON parts USING gpuivfpq (v);
-- signatures of keys that are full: documents of many values, arrays of many elements
CREATE TABLE full_keys AS SELECT i AS id, pg_temp.wave(i, 8) AS v,
	(SELECT jsonb_object_agg('k' || j, (i * j)::text) FROM generate_series(1, 120) AS j) AS many,
	jsonb_build_object('lang', i % 7, 'tags', i % 11) AS few,
	(SELECT array_agg(i + 7 * j) FROM generate_series(1, 150) AS j) AS tags
FROM generate_series(1, 1000) AS i;
CREATE INDEX full_many ON full_keys USING gpuivfpq (v, few, many);
CREATE INDEX full_tags ON full_keys USING gpuivfpq (v, tags);
CREATE INDEX full_few ON full_keys USING gpuivfpq (v, few);
CREATE INDEX full_value ON full_keys USING gpuivfpq (v, (many ->> 'k3'));
SELECT relname, regexp_replace(advice, ' \d\d of the', ' N of the') AS advice FROM info WHERE relname LIKE 'full\_%' ORDER BY 1;
-- ... of rows with none of them nothing is said
UPDATE full_keys SET many = NULL, tags = '{}';
REINDEX TABLE full_keys;
SELECT relname, advice FROM info WHERE relname LIKE 'full\_%' ORDER BY 1;
DROP TABLE full_keys;
SELECT * FROM gpuvec_index_info('trained');
SELECT * FROM gpuvec_index_info('trained_id');
SELECT * FROM gpuvec_index_info('parts_v');
SELECT * FROM gpuvec_index_info(1);
SELECT * FROM gpuvec_index_info(NULL);
SELECT * FROM gpuvec_list_stats('trained');
SELECT * FROM gpuvec_list_stats('trained_id');
SELECT * FROM gpuvec_list_stats(NULL);

-- for the owner and pg_monitor
CREATE ROLE regress_gpuvec_owner;
CREATE ROLE regress_gpuvec_monitor IN ROLE pg_monitor;
CREATE ROLE regress_gpuvec_other;
ALTER TABLE trained OWNER TO regress_gpuvec_owner;
GRANT SELECT ON trained TO regress_gpuvec_other;
SET ROLE regress_gpuvec_owner;
SELECT dims FROM gpuvec_index_info('trained_v');
SELECT count(*) FROM gpuvec_list_stats('trained_v');
SET ROLE regress_gpuvec_monitor;
SELECT dims FROM gpuvec_index_info('trained_v');
SELECT count(*) FROM gpuvec_list_stats('trained_v');
SET ROLE regress_gpuvec_other;
SELECT dims FROM gpuvec_index_info('trained_v');
SELECT count(*) FROM gpuvec_list_stats('trained_v');
RESET ROLE;

DROP TABLE trained, parts, gone;
DROP VIEW info;
DROP ROLE regress_gpuvec_owner, regress_gpuvec_monitor, regress_gpuvec_other;
