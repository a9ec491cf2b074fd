-- a clear error, with a hint, and no damage
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TABLE bad (id int, e real[]);

-- rows that no index can hold, met while it is built
INSERT INTO bad VALUES (1, '{1,2,3}'), (2, '{1,2}');
CREATE INDEX ON bad USING gpuivfpq (e);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (lists = 1);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (dims = 2);
UPDATE bad SET e = '{1,NaN,3}' WHERE id = 2;
CREATE INDEX ON bad USING gpuivfpq (e);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (lists = 1);
UPDATE bad SET e = '{1,-Infinity,3}' WHERE id = 2;
CREATE INDEX ON bad USING gpuivfpq (e);
UPDATE bad SET e = '{1,NULL,3}' WHERE id = 2;
CREATE INDEX ON bad USING gpuivfpq (e);
UPDATE bad SET e = '{{1,2,3}}' WHERE id = 2;
CREATE INDEX ON bad USING gpuivfpq (e);
UPDATE bad SET e = '{}' WHERE id = 2;
CREATE INDEX ON bad USING gpuivfpq (e);
UPDATE bad SET e = array_fill(1::real, ARRAY[16001]) WHERE id = 2;
CREATE INDEX ON bad USING gpuivfpq (e);
UPDATE bad SET e = '[5:7]={1,2,3}' WHERE id = 2;
CREATE INDEX bad_e ON bad USING gpuivfpq (e) WITH (lists = 2);
SELECT count(*) FROM (SELECT id FROM bad ORDER BY e <-> '{1,2,3}') AS q;

-- rows that only older snapshots see may have other lengths
DROP INDEX bad_e;
BEGIN;
INSERT INTO bad VALUES (3, '{1,2,3,4}');
DELETE FROM bad WHERE id = 3;
CREATE INDEX bad_e ON bad USING gpuivfpq (e) WITH (lists = 2);
SELECT count(*) FROM (SELECT id FROM bad ORDER BY e <-> '{1,2,3}') AS q;
COMMIT;
SELECT * FROM gpuvec_verify_index('bad_e');

-- queries
SELECT id FROM bad ORDER BY e <-> '{1,2}' LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{1,2,3,4}'::float8[] LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{1,NaN,3}' LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{1,Infinity,3}'::float8[] LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{1,1e39,3}'::float8[] LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{1,NULL,3}' LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{{1,2,3}}' LIMIT 1;
SELECT id FROM bad ORDER BY e <-> '{}' LIMIT 1;
SELECT id FROM bad ORDER BY e <-> 'abc' LIMIT 1;
SELECT count(*) FROM (SELECT id FROM bad ORDER BY e <-> '{1,2,3}') AS q;

-- inserts and updates
INSERT INTO bad VALUES (4, '{1,2}');
INSERT INTO bad VALUES (4, '{1,NaN,3}');
UPDATE bad SET e = '{1,2,3,4}';
SELECT count(*) FROM (SELECT id FROM bad ORDER BY e <-> '{1,2,3}') AS q;
SELECT * FROM gpuvec_verify_index('bad_e');
DROP INDEX bad_e;

-- columns and options that cannot be
CREATE INDEX ON bad USING gpuivfpq (e) WITH (pq_dim = 4);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (pq_dim = 4, dims = 3);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (dims = 4);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (lists = -1);
CREATE INDEX ON bad USING gpuivfpq (e) WITH (nlist = 10);
CREATE INDEX ON bad USING gpuivfpq ((e::float8[]));
\set VERBOSITY sqlstate
CREATE INDEX ON bad USING gpuivfpq ((ARRAY[random()::real]));
\set VERBOSITY default
CREATE INDEX ON bad USING gpuivfpq ((ARRAY[1 / (id - 1)]::real[]));
CREATE MATERIALIZED VIEW bad_view AS SELECT * FROM bad;
CREATE INDEX ON bad_view USING gpuivfpq (e) WITH (lists = 2);
REFRESH MATERIALIZED VIEW bad_view;
SELECT count(*) FROM (SELECT id FROM bad_view ORDER BY e <-> '{1,2,3}') AS q;
DROP MATERIALIZED VIEW bad_view;

-- too little memory for what was asked
TRUNCATE bad;
INSERT INTO bad SELECT g, array_fill(g::real, ARRAY[500]) FROM generate_series(1, 1000) AS g;
SET maintenance_work_mem = '1MB';
\set VERBOSITY sqlstate
CREATE INDEX ON bad USING gpuivfpq (e) WITH (lists = 900);
\set VERBOSITY default
CREATE INDEX bad_e ON bad USING gpuivfpq (e);
SELECT lists BETWEEN 1 AND 10 AS trained, rows FROM gpuvec_index_info('bad_e');
SELECT id FROM bad ORDER BY e <-> array_fill(500.1::real, ARRAY[500]) LIMIT 1;
RESET maintenance_work_mem;
SELECT * FROM gpuvec_verify_index('bad_e');

-- functions on what is no index of ours
CREATE INDEX bad_id ON bad (id);
SELECT * FROM gpuvec_index_info('bad_id');
SELECT * FROM gpuvec_list_stats('bad');
SELECT * FROM gpuvec_verify_index('bad_id');
SELECT * FROM gpuvec_recall('bad_id');
SELECT * FROM gpuvec_verify_index(0);
SELECT * FROM gpuvec_recall('bad_e', 0);
SELECT * FROM gpuvec_recall('bad_e', 10, 0);
DROP TABLE bad;
