-- gpuvec_verify_index finds nothing in a sound index, whatever happened to it.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- trained: insert, delete, update in place and elsewhere, roll back, vacuum
CREATE TABLE items (id int, v real[], note text)
	WITH (fillfactor = 60, autovacuum_enabled = off);
INSERT INTO items SELECT i, pg_temp.wave(i, 9) FROM generate_series(1, 3000) i;
CREATE INDEX items_v ON items USING gpuivfpq (v)
	WITH (lists = 30, pq_dim = 5);
SELECT * FROM gpuvec_verify_index('items_v');
INSERT INTO items VALUES (0, NULL);
INSERT INTO items SELECT i, pg_temp.wave(i, 9) FROM generate_series(3001, 4000) i;
DELETE FROM items WHERE id % 3 = 0;
UPDATE items SET note = 'in place' WHERE id % 5 = 0;
UPDATE items SET note = 'again' WHERE id % 10 = 0;
UPDATE items SET v = pg_temp.wave(id + 1, 9) WHERE id % 7 = 0;
SELECT * FROM gpuvec_verify_index('items_v');
BEGIN;
INSERT INTO items SELECT i, pg_temp.wave(i, 9) FROM generate_series(4001, 5000) i;
SELECT * FROM gpuvec_verify_index('items_v');
ROLLBACK;
SELECT * FROM gpuvec_verify_index('items_v');
VACUUM items;
SELECT * FROM gpuvec_verify_index('items_v');
INSERT INTO items SELECT i, pg_temp.wave(i, 9) FROM generate_series(5001, 8000) i;
SELECT * FROM gpuvec_verify_index('items_v');
DELETE FROM items;
VACUUM items;
SELECT * FROM gpuvec_verify_index('items_v');
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO items SELECT i, pg_temp.wave(i, 9) FROM generate_series(1, 100) i;
REINDEX INDEX items_v;
SELECT * FROM gpuvec_verify_index('items_v');
COMMIT;

-- untrained, with more pending rows than a page holds
CREATE TABLE pending (id int, v real[]) WITH (autovacuum_enabled = off);
CREATE INDEX pending_v ON pending USING gpuivfpq (v real_cosine_ops);
SELECT * FROM gpuvec_verify_index('pending_v');
INSERT INTO pending SELECT i, pg_temp.wave(i, 4) FROM generate_series(1, 5000) i;
INSERT INTO pending VALUES (0, NULL), (0, '{0,0,0,0}');
SELECT * FROM gpuvec_verify_index('pending_v');
DELETE FROM pending WHERE id BETWEEN 1 AND 2000 OR id = 4000;
VACUUM pending;
SELECT * FROM gpuvec_verify_index('pending_v');
INSERT INTO pending SELECT i, pg_temp.wave(i, 4) FROM generate_series(5001, 7000) i;
SELECT * FROM gpuvec_verify_index('pending_v');

-- NULLs, and zero vectors under cosine, have no place in a trained index
REINDEX INDEX pending_v;
INSERT INTO pending VALUES (0, NULL), (0, '{0,0,0,0}');
SELECT rows, (SELECT count(*) FROM pending) AS in_table
FROM gpuvec_index_info('pending_v');
SELECT * FROM gpuvec_verify_index('pending_v');

-- partial and expression indexes
CREATE INDEX pending_even ON pending USING gpuivfpq (v) WHERE id % 2 = 0;
CREATE INDEX pending_slice ON pending USING gpuivfpq ((v[2:3]));
UPDATE pending SET id = id + 1 WHERE id % 3 = 0;
SELECT * FROM gpuvec_verify_index('pending_even');
SELECT * FROM gpuvec_verify_index('pending_slice');

-- codes that span pages; unlogged and temporary tables
CREATE UNLOGGED TABLE wide (id int, v real[]);
INSERT INTO wide SELECT i, pg_temp.wave(i, 1100) FROM generate_series(1, 120) i;
CREATE INDEX wide_2 ON wide USING gpuivfpq (v) WITH (lists = 2, pq_dim = 701);
CREATE INDEX wide_3 ON wide USING gpuivfpq (v) WITH (lists = 2, pq_dim = 899);
INSERT INTO wide SELECT i, pg_temp.wave(i, 1100) FROM generate_series(121, 200) i;
SELECT * FROM gpuvec_verify_index('wide_2');
SELECT * FROM gpuvec_verify_index('wide_3');
CREATE TEMP TABLE mine AS SELECT pg_temp.wave(i, 3) AS v FROM generate_series(1, 50) i;
CREATE INDEX mine_v ON mine USING gpuivfpq (v);
SELECT * FROM gpuvec_verify_index('mine_v');

-- an index that is not valid
CREATE TABLE ragged AS SELECT * FROM mine;
INSERT INTO ragged VALUES ('{1,2}');
CREATE INDEX CONCURRENTLY ragged_v ON ragged USING gpuivfpq (v)
	WITH (dims = 3);
SELECT * FROM gpuvec_verify_index('ragged_v');

SELECT * FROM gpuvec_index_info('ragged_v');
SELECT * FROM gpuvec_list_stats('ragged_v');
SELECT * FROM gpuvec_calibration('ragged_v');
SELECT * FROM gpuvec_calibrate('ragged_v');

-- what cannot be verified
SELECT * FROM gpuvec_verify_index('items');
SELECT * FROM gpuvec_verify_index(NULL);

-- for the owner and pg_monitor; the owner's code runs as the owner, confined
CREATE ROLE regress_gpuvec_owner;
CREATE ROLE regress_gpuvec_monitor IN ROLE pg_monitor;
CREATE ROLE regress_gpuvec_other;
CREATE FUNCTION whoami(v real[]) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN v; END $$;
CREATE TABLE owned AS SELECT pg_temp.wave(1, 3) AS v;
CREATE INDEX owned_v ON owned USING gpuivfpq (whoami(v));
ALTER TABLE owned OWNER TO regress_gpuvec_owner;
CREATE OR REPLACE FUNCTION whoami(v real[]) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN RAISE WARNING 'I am %', current_user; RETURN v; END $$;
SELECT * FROM gpuvec_verify_index('owned_v');
SELECT current_user = session_user AS myself_again;
SET ROLE regress_gpuvec_monitor;
SELECT * FROM gpuvec_verify_index('owned_v');
SET ROLE regress_gpuvec_other;
SELECT * FROM gpuvec_verify_index('owned_v');
RESET ROLE;
CREATE OR REPLACE FUNCTION whoami(v real[]) RETURNS real[]
LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN PERFORM set_config('role', 'none', false); RETURN v; END $$;
\set VERBOSITY terse
SELECT * FROM gpuvec_verify_index('owned_v');
\set VERBOSITY default
SELECT current_user = session_user AS myself_again;

DROP TABLE items, pending, wide, mine, ragged, owned;
DROP FUNCTION whoami;
DROP ROLE regress_gpuvec_owner, regress_gpuvec_monitor, regress_gpuvec_other;
