-- CREATE INDEX with parallel workers: the same index whatever their number
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;
SET min_parallel_table_scan_size = 0;
SET maintenance_work_mem = '512MB';

CREATE TABLE par (id int, e real[]);
INSERT INTO par SELECT g, pg_temp.point(g, 16) FROM generate_series(1, 2500) AS g;
INSERT INTO par SELECT g, NULL FROM generate_series(2501, 2540) AS g;
DELETE FROM par WHERE id % 37 = 0;

-- what an index says of itself, and which rows a few of its copies lead to
CREATE FUNCTION pg_temp.fingerprint(index regclass) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_sort = off
SET gpuvec.probes = 3 SET gpuvec.candidates = 12 AS $$
DECLARE
	ids int[];
	found text = '';
BEGIN
	FOR g IN 1..40 LOOP
		EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM par ORDER BY e <-> %L LIMIT 12) AS q',
			pg_temp.point(100000 + g, 16)) INTO ids;
		found = found || ids::text;
	END LOOP;
	RETURN md5((SELECT string_agg(s::text, ' ' ORDER BY list) FROM gpuvec_list_stats(index) AS s) ||
		coalesce((SELECT string_agg(c::text, ' ' ORDER BY k, recall) FROM gpuvec_calibration(index) AS c), '') ||
		(SELECT i.rows::text FROM gpuvec_index_info(index) AS i) || found);
END
$$;

-- Build with so many workers; the index's fingerprint, if it is sound.
CREATE FUNCTION pg_temp.built(workers int, options text, kind text = 'real_l2_ops') RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	problems bigint;
	result text;
BEGIN
	PERFORM set_config('max_parallel_maintenance_workers', workers::text, true);
	EXECUTE format('CREATE INDEX par_e ON par USING gpuivfpq (e %s) WITH (%s)', kind, options);
	SELECT count(*) INTO problems FROM gpuvec_verify_index('par_e');
	result = CASE problems WHEN 0 THEN pg_temp.fingerprint('par_e') ELSE problems || ' problems' END;
	DROP INDEX par_e;
	RETURN result;
END
$$;

SELECT options, count(DISTINCT built), min(length(built))
FROM (VALUES ('lists = 30'), ('lists = 30, spill = 0'), ('lists = 1'), ('lists = 200, pq_dim = 3'),
		('lists = 30, refine = sq8')) AS o (options),
	(VALUES (0), (1), (8)) AS w (workers), LATERAL pg_temp.built(workers, options) AS built
GROUP BY options ORDER BY options;

-- a table may say how many
ALTER TABLE par SET (parallel_workers = 0);
SELECT count(DISTINCT built) FROM (VALUES (0), (3)) AS w (workers),
	LATERAL pg_temp.built(workers, 'lists = 25') AS built;
ALTER TABLE par SET (parallel_workers = 3);
SELECT count(DISTINCT built) FROM (VALUES (0), (3)) AS w (workers),
	LATERAL pg_temp.built(workers, 'lists = 25') AS built;
ALTER TABLE par RESET (parallel_workers);

-- as many as memory allows; REINDEX, with and without locks
SET max_parallel_maintenance_workers = 1;
SET maintenance_work_mem = '64MB';
CREATE INDEX par_e ON par USING gpuivfpq (e) WITH (lists = 30);
SELECT * FROM gpuvec_verify_index('par_e');
SELECT rows FROM gpuvec_index_info('par_e');
REINDEX INDEX par_e;
SELECT * FROM gpuvec_verify_index('par_e');
REINDEX INDEX CONCURRENTLY par_e;
SELECT * FROM gpuvec_verify_index('par_e');
SELECT rows FROM gpuvec_index_info('par_e');
DROP INDEX par_e;
SET maintenance_work_mem = '512MB';
SET max_parallel_maintenance_workers = 4;

-- expressions and predicates, in workers if they may be computed there
CREATE FUNCTION safely(e real[]) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT e[1:8]';
CREATE FUNCTION alone(e real[]) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL UNSAFE AS 'SELECT e[1:8]';
CREATE INDEX par_safe ON par USING gpuivfpq (safely(e)) WITH (lists = 20) WHERE id % 3 > 0;
CREATE INDEX par_alone ON par USING gpuivfpq (alone(e)) WITH (lists = 20) WHERE id % 3 > 0;
SELECT * FROM gpuvec_verify_index('par_safe');
SELECT (SELECT rows FROM gpuvec_index_info('par_safe')) =
	(SELECT rows FROM gpuvec_index_info('par_alone')) AS same;
DROP INDEX par_safe, par_alone;

-- an error wherever it comes up
CREATE FUNCTION choosy(id int, e real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
	IF id = 2499 THEN
		RAISE EXCEPTION 'not this one';
	END IF;
	RETURN e;
END
$$;
DO $$
BEGIN
	CREATE INDEX par_choosy ON par USING gpuivfpq (choosy(id, e)) WITH (lists = 20);
EXCEPTION WHEN raise_exception THEN
	RAISE NOTICE '%', SQLERRM;
END
$$;

-- rows of another dimension that only older snapshots see
BEGIN;
DELETE FROM par WHERE id = 5;
INSERT INTO par VALUES (5, '{1,2,3}');
DELETE FROM par WHERE id = 5;
CREATE INDEX par_e ON par USING gpuivfpq (e) WITH (lists = 20);
COMMIT;
SELECT * FROM gpuvec_verify_index('par_e');

-- unlogged tables, temporary ones
ALTER TABLE par SET UNLOGGED;
SELECT * FROM gpuvec_verify_index('par_e');
CREATE TEMPORARY TABLE par_temp AS SELECT * FROM par;
CREATE INDEX ON par_temp USING gpuivfpq (e) WITH (lists = 20);
SELECT * FROM gpuvec_verify_index('par_temp_e_idx');
DROP TABLE par, par_temp;
DROP FUNCTION safely, alone, choosy;
