-- second copies of rows, and lists under parents
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- copies in the lists, rows counted once, rows found once
CREATE FUNCTION pg_temp.state(index regclass)
RETURNS TABLE (rows bigint, copies numeric, reached bigint, distinct_rows bigint)
LANGUAGE plpgsql SET gpuvec.scan_order = relaxed AS $$
BEGIN
	RETURN QUERY SELECT i.rows, (SELECT sum(l.rows) FROM gpuvec_list_stats(index) AS l),
		count(*), count(DISTINCT q.id)
	FROM gpuvec_index_info(index) AS i,
		(SELECT id FROM spilled ORDER BY e <-> array_fill(1::real, ARRAY[8])) AS q
	GROUP BY i.rows;
END
$$;

CREATE TABLE spilled (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO spilled SELECT g, pg_temp.point(g, 8, 97) FROM generate_series(1, 3000) AS g;

-- one copy each, or two; the default is two
CREATE INDEX spilled_e ON spilled USING gpuivfpq (e) WITH (lists = 30, spill = 0);
SELECT * FROM pg_temp.state('spilled_e');
SELECT * FROM gpuvec_verify_index('spilled_e');
DROP INDEX spilled_e;
CREATE INDEX spilled_e ON spilled USING gpuivfpq (e) WITH (lists = 30);
SELECT * FROM pg_temp.state('spilled_e');
SELECT * FROM gpuvec_verify_index('spilled_e');
DROP INDEX spilled_e;
CREATE INDEX spilled_e ON spilled USING gpuivfpq (e) WITH (lists = 30, spill = 2);

-- enough lists for parents over them
CREATE INDEX spilled_e ON spilled USING gpuivfpq (e) WITH (lists = 300, spill = 1);
SELECT lists > 290 AS lists FROM gpuvec_index_info('spilled_e');
SELECT * FROM pg_temp.state('spilled_e');
SELECT recall > 0.95 AS recall FROM gpuvec_recall('spilled_e', 10, 200);

-- a row counts once among the candidates, whichever copies were found
SET gpuvec.probes = 300;
SET gpuvec.candidates = 100;
SELECT count(*) FROM (SELECT id FROM spilled ORDER BY e <-> pg_temp.point(1, 8, 97) LIMIT 10) AS q;
SELECT greatest(refined, reranked) AS reranked FROM gpuvec_last_scan();
RESET gpuvec.probes;
RESET gpuvec.candidates;

-- inserts take both lists, VACUUM both copies, rewrites keep them apart
INSERT INTO spilled SELECT g, pg_temp.point(g, 8, 97) FROM generate_series(3001, 4000) AS g;
SELECT * FROM pg_temp.state('spilled_e');
SELECT * FROM gpuvec_verify_index('spilled_e');
DELETE FROM spilled WHERE id % 2 = 0;
VACUUM spilled;
SELECT * FROM pg_temp.state('spilled_e');
SELECT reltuples FROM pg_class WHERE relname = 'spilled_e';
SELECT * FROM gpuvec_verify_index('spilled_e');
SELECT recall > 0.95 AS recall FROM gpuvec_recall('spilled_e', 10, 200);
DELETE FROM spilled;
VACUUM spilled;
SELECT * FROM pg_temp.state('spilled_e');
INSERT INTO spilled SELECT g, pg_temp.point(g, 8, 97) FROM generate_series(5001, 6000) AS g;
SELECT * FROM pg_temp.state('spilled_e');
SELECT * FROM gpuvec_verify_index('spilled_e');
DROP TABLE spilled;

-- a single list leaves nowhere to spill
CREATE TABLE spilled AS SELECT g AS id, pg_temp.point(g, 8, 97) AS e FROM generate_series(1, 100) AS g;
CREATE INDEX spilled_e ON spilled USING gpuivfpq (e) WITH (lists = 1, spill = 1);
INSERT INTO spilled SELECT g, pg_temp.point(g, 8, 97) FROM generate_series(101, 110) AS g;
SELECT * FROM pg_temp.state('spilled_e');
SELECT * FROM gpuvec_verify_index('spilled_e');
DROP TABLE spilled;
