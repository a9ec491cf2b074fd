-- conditions that few rows pass: what was not given out is not lost
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SET enable_sort = off;
-- the scan does not know them: the executor filters what it gives out
SET gpuvec.enable_custom_scan = off;

CREATE TABLE many (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO many SELECT g, pg_temp.point(g, 16, spread => 0) FROM generate_series(1, 20000) AS g;
CREATE INDEX many_e ON many USING gpuivfpq (e);
CREATE TABLE rare AS SELECT * FROM many WHERE id % 2000 = 7;

-- For n queries, each for ten rows of the ten that pass: rows that are missing,
-- queries whose first row is wrong or whose rows are not in order, rows that
-- were late and all that the scans saw, scans that ended with a pass.
CREATE FUNCTION pg_temp.find(n int, OUT missing bigint, OUT first bigint, OUT unordered bigint,
	OUT out_of_order bigint, OUT total bigint, OUT full_pass bigint)
LANGUAGE plpgsql AS $$
DECLARE
	query real[];
	found int[];
	truth int[];
	scan record;
BEGIN
	missing = 0; first = 0; unordered = 0; out_of_order = 0; total = 0; full_pass = 0;
	FOR q IN 1..n LOOP
		query = pg_temp.point(50000 + q, 16, spread => 0);
		EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM many WHERE id %% 2000 = 7
			ORDER BY e <-> %L LIMIT 10) AS x', query) INTO found;
		SELECT * FROM gpuvec_last_scan() INTO scan;
		SELECT array_agg(id ORDER BY (e <-> query)) FROM rare INTO truth;
		missing = missing + 10 - coalesce(cardinality(found), 0);
		first = first + (found[1] IS DISTINCT FROM truth[1])::int;
		unordered = unordered + (found IS DISTINCT FROM ARRAY(SELECT t FROM unnest(truth) WITH ORDINALITY AS u (t, i)
			WHERE t = ANY (found) ORDER BY i))::int;
		out_of_order = out_of_order + scan.out_of_order;
		total = total + scan.out_of_order + scan.returned;
		full_pass = full_pass + scan.full_pass::int;
	END LOOP;
END
$$;
EXPLAIN (COSTS OFF) SELECT id FROM many WHERE id % 2000 = 7 ORDER BY e <-> pg_temp.point(1, 16, spread => 0) LIMIT 10;

-- strict: rows come in order, and the pass begins before many are late
SELECT missing < 3 AS missing, first < 3 AS first, unordered, out_of_order BETWEEN 1 AND total / 500 AS out_of_order, full_pass
FROM pg_temp.find(20);
SET gpuvec.recall = 0.99;
SELECT missing, first, unordered, out_of_order < total / 1000 AS out_of_order, full_pass FROM pg_temp.find(10);
-- all of them: none is ever late
SET gpuvec.recall = 1;
SELECT missing, first, unordered, out_of_order, total, full_pass FROM pg_temp.find(10);
RESET gpuvec.recall;

-- relaxed: every row comes
SET gpuvec.scan_order = relaxed;
SELECT missing, out_of_order, full_pass > 5 AS full_pass FROM pg_temp.find(10);
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM many ORDER BY e <-> pg_temp.point(1, 16, spread => 0)) AS x;
RESET gpuvec.scan_order;

-- a bound on lists: the last batch takes all of them, before many rows are late
SET gpuvec.max_probes = 150;
SET gpuvec.mirror_rows = off; -- they take memory
SELECT count(*) FROM (SELECT id FROM many WHERE id < 0 ORDER BY e <-> pg_temp.point(1, 16, spread => 0) LIMIT 5) AS x;
SELECT full_pass, returned > 14000 AS most, out_of_order < returned / 100 AS few_out_of_order, lists < 600 AS few_lists
FROM gpuvec_last_scan();
RESET gpuvec.mirror_rows;
RESET gpuvec.max_probes;

-- whatever is named, a search has no more candidates than there are copies
SET gpuvec.probes = 1;
SET gpuvec.max_probes = 20;
SELECT count(*) FROM (SELECT id FROM many WHERE id < 0 ORDER BY e <-> pg_temp.point(1, 16, spread => 0) LIMIT 5) AS x;
SELECT full_pass, reranked < 4000 AS few FROM gpuvec_last_scan();
SET gpuvec.candidates = 1000000;
SELECT count(*) FROM (SELECT id FROM many ORDER BY e <-> pg_temp.point(1, 16, spread => 0) LIMIT 5) AS x;
SELECT full_pass, reranked < 1000 AS few FROM gpuvec_last_scan();
RESET gpuvec.candidates;
RESET gpuvec.max_probes;
RESET gpuvec.probes;

-- without a condition nothing is read for the many rows that nobody wants
SELECT count(*) FROM (SELECT id FROM many ORDER BY e <-> pg_temp.point(1, 16, spread => 0) LIMIT 400) AS x;
SELECT full_pass, reranked < 4000 AS few FROM gpuvec_last_scan();

-- candidates that are deleted make a batch good for fewer rows: those behind
-- would come before nearer ones
CREATE TABLE narrow WITH (autovacuum_enabled = off) AS SELECT id, e[1:8] AS e FROM many;
CREATE INDEX narrow_e ON narrow USING gpuivfpq (e);
DELETE FROM narrow WHERE id % 5 = 0;
CREATE FUNCTION pg_temp.share_found(n int, k int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	query real[];
	found int[];
	hits bigint = 0;
BEGIN
	FOR q IN 1..n LOOP
		query = (pg_temp.point(50000 + q, 16, spread => 0))[1:8];
		EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM narrow ORDER BY e <-> %L LIMIT %s) AS x', query, k) INTO found;
		hits = hits + (SELECT count(*) FROM (SELECT id FROM narrow ORDER BY (e <-> query) + 0 LIMIT k) AS x
			WHERE id = ANY (found));
	END LOOP;
	RETURN hits::numeric / n / k;
END
$$;
SET enable_sort = on;
SELECT k, pg_temp.share_found(10, k) > 0.9 AS found FROM unnest(ARRAY[10, 100, 400]) AS k;
DROP TABLE many, rare, narrow;
