-- recall targets: calibration, gpuvec.recall, gpuvec_last_scan
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

SELECT * FROM gpuvec_last_scan();

-- too few rows
CREATE TABLE aimed (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO aimed SELECT g, pg_temp.point(g, 16, 200, 2) FROM generate_series(1, 300) AS g;
CREATE INDEX aimed_e ON aimed USING gpuivfpq (e) WITH (lists = 10);
SELECT * FROM gpuvec_calibration('aimed_e');
SET client_min_messages = notice;
SELECT * FROM gpuvec_calibrate('aimed_e');
SET client_min_messages = warning;
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(1, 16, 200, 2) LIMIT 20) AS q;
SELECT index, recall, batches > 0 AS batches, returned, full_pass FROM gpuvec_last_scan();
-- ... to know what more than .99 takes: all of them are read
SET gpuvec.recall = 0.995;
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(1, 16, 200, 2) LIMIT 20) AS q;
SELECT recall, full_pass FROM gpuvec_last_scan();
RESET gpuvec.recall;
DROP INDEX aimed_e;

-- calibrated by the build
INSERT INTO aimed SELECT g, pg_temp.point(g, 16, 200, 2) FROM generate_series(301, 6000) AS g;
CREATE INDEX aimed_e ON aimed USING gpuivfpq (e) WITH (lists = 150, pq_dim = 8);
SELECT k, count(*) FILTER (WHERE recall <= 0.99), max(recall) > 0.99 AS beyond, min(probes) > 0 AS probes,
	min(candidates) >= 40 AS candidates
FROM gpuvec_calibration('aimed_e') GROUP BY k ORDER BY k;
-- a higher recall takes no less
SELECT count(*) FROM gpuvec_calibration('aimed_e') AS a, gpuvec_calibration('aimed_e') AS b
WHERE a.k = b.k AND a.recall < b.recall AND a.probes > b.probes AND a.candidates > b.candidates;
SELECT count(*) FROM gpuvec_calibration('aimed_e') AS a, gpuvec_calibration('aimed_e') AS b
WHERE a.k < b.k AND a.recall = b.recall AND a.probes > b.probes;

-- what a scan takes: the smallest target not below the one asked for
CREATE FUNCTION pg_temp.effort(rows int, OUT recall float8, OUT of float8, OUT candidates bool, OUT full_pass bool)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT %s) AS q', rows);
	SELECT s.recall, min(c.recall), min(c.candidates) FILTER (WHERE c.recall >= s.recall) = s.candidates, s.full_pass
	FROM gpuvec_last_scan() AS s LEFT JOIN gpuvec_calibration('aimed_e') AS c
		ON c.k = 10 AND c.probes = s.probes AND c.recall >= s.recall
	GROUP BY s.recall, s.candidates, s.full_pass INTO recall, of, candidates, full_pass;
END
$$;
SELECT * FROM pg_temp.effort(5);
SET gpuvec.recall = 0.1;
SELECT * FROM pg_temp.effort(5);
SET gpuvec.recall = 0.9;
SELECT * FROM pg_temp.effort(5);
SET gpuvec.recall = 0.91;
SELECT * FROM pg_temp.effort(5);
SET gpuvec.recall = 0.99;
SELECT * FROM pg_temp.effort(5);
-- ... beyond the last one more than that takes, in proportion; one of both may
-- be less
CREATE FUNCTION pg_temp.beyond(target float8, OUT probes int, OUT candidates int, OUT full_pass bool, OUT cost float8)
LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	PERFORM set_config('gpuvec.recall', target::text, true);
	PERFORM id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 5;
	SELECT s.probes, s.candidates, s.full_pass FROM gpuvec_last_scan() AS s
	INTO probes, candidates, full_pass;
	EXECUTE 'EXPLAIN (FORMAT JSON) SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 5' INTO plan;
	cost := plan #>> '{0,Plan,Total Cost}';
END
$$;
CREATE TEMP TABLE beyond AS
SELECT r, b.* FROM unnest(ARRAY[0.99, 0.991, 0.995, 0.998, 0.999, 0.9999]) AS r, pg_temp.beyond(r) AS b;
SELECT r, full_pass, probes >= lag(probes) OVER w OR candidates >= lag(candidates) OVER w AS no_less
FROM beyond WINDOW w AS (ORDER BY r) ORDER BY r;
SELECT a.probes < b.probes OR a.candidates < b.candidates AS more, a.cost < b.cost AS cost, b.probes < 150 AS lists
FROM beyond AS a, beyond AS b WHERE a.r = 0.99 AND b.r = 0.999;
SET gpuvec.recall = 0.995;
SELECT recall >= 0.99 AS reached FROM gpuvec_recall('aimed_e', 10, 200);
SELECT full_pass FROM gpuvec_last_scan();
-- ... and only 1 reads everything
SET gpuvec.recall = 1;
SELECT * FROM pg_temp.effort(5);
SELECT lists, postings, reranked, returned, out_of_order FROM gpuvec_last_scan();
SELECT recall FROM gpuvec_recall('aimed_e', 10, 50);
RESET gpuvec.recall;
-- the first batch is for as many rows as LIMIT asks for, at a depth that
-- calibration knows
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 10) AS q;
SELECT batches, returned FROM gpuvec_last_scan();
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 100) AS q;
SELECT batches, returned FROM gpuvec_last_scan();
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 300) AS q;
SELECT batches, returned, full_pass, reranked < 6000 AS few FROM gpuvec_last_scan();
-- ... there are too few rows for more than the 300 that are known of
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 301) AS q;
SELECT batches, returned, full_pass FROM gpuvec_last_scan();
-- ... so it is where only the executor knows, and where other nodes stand between
CREATE FUNCTION pg_temp.batches(statement text, OUT batches int, OUT returned bigint) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT count(*) FROM (' || statement || ') AS s';
	SELECT s.batches, s.returned FROM gpuvec_last_scan() AS s INTO batches, returned;
END
$$;
SELECT ask, b.* FROM (VALUES ('LIMIT (SELECT 100)'), ('LIMIT 100 FOR UPDATE'), ('LIMIT 3 * 40 - 10'), ('OFFSET (SELECT 0) LIMIT (SELECT 299 + 1)'),
	('FETCH FIRST 100 ROWS WITH TIES')) AS a (ask),
	pg_temp.batches('SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) ' || ask) AS b;
SET plan_cache_mode = force_generic_plan;
PREPARE asked (bigint, bigint) AS SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) OFFSET $2 LIMIT $1;
EXECUTE asked (300, 0) \g /dev/null
SELECT batches, returned FROM gpuvec_last_scan();
EXECUTE asked (NULL, NULL) \g /dev/null
SELECT batches > 1 AS several, returned > 5900 AS most FROM gpuvec_last_scan();
RESET plan_cache_mode;
SELECT b.* FROM pg_temp.batches('SELECT f.id FROM (VALUES (1)) AS one, LATERAL
	(SELECT id, random() AS x FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2)) AS f LIMIT (SELECT 100)') AS b;
SELECT b.* FROM pg_temp.batches('(SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2)) UNION ALL SELECT 1 LIMIT (SELECT 100)') AS b;
SELECT b.* FROM pg_temp.batches('SELECT id, row_number() OVER (ORDER BY e <-> pg_temp.point(7, 16, 200, 2)) FROM aimed LIMIT (SELECT 100)') AS b;
-- ... anew in each scan of a statement
SELECT b.* FROM pg_temp.batches('SELECT n, f.id FROM (VALUES (10), (100), (300)) AS v (n), LATERAL
	(SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT n) AS f') AS b;
-- ... pages go through the depths before them: they are parts of one order
SELECT page, b.* FROM (VALUES (0), (10), (90), (100), (290)) AS p (page),
	pg_temp.batches('SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 10 OFFSET ' || page) AS b;
-- a cursor does not say how many
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2);
MOVE 101 FROM c;
CLOSE c;
SELECT batches, returned FROM gpuvec_last_scan();
COMMIT;

-- an option comes before the target, a setting before the option
ALTER INDEX aimed_e SET (probes = 3, candidates = 77);
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 5) AS q;
SELECT probes, candidates, lists, greatest(refined, reranked) AS reranked FROM gpuvec_last_scan();
SET gpuvec.probes = 4;
SET gpuvec.candidates = 55;
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 5) AS q;
SELECT probes, candidates, lists, greatest(refined, reranked) AS reranked FROM gpuvec_last_scan();
-- ... also where the target is to read everything
SET gpuvec.recall = 1;
SELECT count(*) FROM (SELECT id FROM aimed ORDER BY e <-> pg_temp.point(7, 16, 200, 2) LIMIT 5) AS q;
SELECT probes, candidates, full_pass FROM gpuvec_last_scan();
RESET gpuvec.recall;
RESET gpuvec.probes;
RESET gpuvec.candidates;
ALTER INDEX aimed_e RESET (probes, candidates);

-- the targets are reached, for the first rows and for many
CREATE FUNCTION pg_temp.reached(index regclass, k int, queries int) RETURNS TABLE (target float8, reached bool)
LANGUAGE plpgsql AS $$
BEGIN
	FOREACH target IN ARRAY ARRAY[0.80, 0.90, 0.95, 0.98, 0.99] LOOP
		PERFORM set_config('gpuvec.recall', target::text, true);
		SELECT recall >= target - 0.03 INTO reached FROM gpuvec_recall(index, k, queries);
		RETURN NEXT;
	END LOOP;
	PERFORM set_config('gpuvec.recall', '0.95', true);
END
$$;
SELECT * FROM pg_temp.reached('aimed_e', 10, 100);
SELECT * FROM pg_temp.reached('aimed_e', 100, 40);

-- once more, as the rows are now; by the owner alone
INSERT INTO aimed SELECT g, pg_temp.point(g, 16, 200, 2) FROM generate_series(6001, 9000) AS g;
SELECT k, count(*) FILTER (WHERE recall <= 0.99), min(probes) > 0 AS probes FROM gpuvec_calibrate('aimed_e') GROUP BY k ORDER BY k;
SELECT count(*) FROM gpuvec_calibrate('aimed_e') AS a FULL JOIN gpuvec_calibration('aimed_e') AS b
	USING (k, recall, probes, candidates) WHERE a.k IS NULL OR b.k IS NULL;
SELECT * FROM pg_temp.reached('aimed_e', 10, 100);
SELECT * FROM gpuvec_verify_index('aimed_e');
CREATE ROLE regress_gpuvec_stranger;
GRANT ALL ON aimed TO regress_gpuvec_stranger;
SET ROLE regress_gpuvec_stranger;
SELECT * FROM gpuvec_calibrate('aimed_e');
SELECT * FROM gpuvec_calibration('aimed_e');
RESET ROLE;
REVOKE ALL ON aimed FROM regress_gpuvec_stranger;
DROP ROLE regress_gpuvec_stranger;
SELECT * FROM gpuvec_calibrate('aimed');

-- with queries that are given: targets are for these
CREATE TABLE asked AS SELECT g AS id, (SELECT array_agg((x + 3)::real ORDER BY n) FROM unnest(pg_temp.point(g, 16, 200, 2)) WITH ORDINALITY AS u (x, n)) AS e
FROM generate_series(9001, 9600) AS g;
SELECT calibrated_for, count(*) > 10 AS known FROM gpuvec_calibration('aimed_e') GROUP BY calibrated_for;
SELECT calibrated_for, count(*) > 10 AS known
FROM gpuvec_calibrate('aimed_e', queries_table => 'asked', queries_column => 'e') GROUP BY calibrated_for;
SELECT recall >= 0.93 AS reached FROM gpuvec_recall('aimed_e', queries => ARRAY(SELECT e FROM asked WHERE id % 3 = 0));
SELECT max(probes) AS theirs FROM gpuvec_calibration('aimed_e') WHERE k = 10 AND recall = 0.95 \gset
SELECT reloptions FROM pg_class WHERE relname = 'aimed_e';
SELECT advice FROM gpuvec_index_info('aimed_e');
SELECT * FROM gpuvec_verify_index('aimed_e');
-- ... a build knows none of them, and its targets are for rows
REINDEX INDEX aimed_e;
SELECT calibrated_for, count(*) > 10 AS known FROM gpuvec_calibration('aimed_e') GROUP BY calibrated_for;
SELECT max(probes) < :theirs AS other FROM gpuvec_calibration('aimed_e') WHERE k = 10 AND recall = 0.95;
SELECT advice FROM gpuvec_index_info('aimed_e');
REINDEX INDEX CONCURRENTLY aimed_e;
SELECT advice FROM gpuvec_index_info('aimed_e');
-- ... without queries it is what is wanted
SELECT DISTINCT calibrated_for FROM gpuvec_calibrate('aimed_e');
SELECT reloptions FROM pg_class WHERE relname = 'aimed_e';
SELECT advice FROM gpuvec_index_info('aimed_e');
-- ... few queries, and too few
SET client_min_messages = notice;
SELECT DISTINCT calibrated_for FROM gpuvec_calibrate('aimed_e', ARRAY(SELECT e FROM asked LIMIT 100));
-- the option calibrated_for is part of a dump
BEGIN READ ONLY;
SELECT count(*) > 0 AS done FROM gpuvec_calibrate('aimed_e', ARRAY(SELECT e FROM asked LIMIT 100));
SELECT * FROM gpuvec_calibrate('aimed_e');
ROLLBACK;
SELECT * FROM gpuvec_calibrate('aimed_e', ARRAY(SELECT e FROM asked LIMIT 99));
SELECT * FROM gpuvec_calibrate('aimed_e', ARRAY(SELECT e[1:9] FROM asked));
SELECT * FROM gpuvec_calibrate('aimed_e', '{}');
SELECT * FROM gpuvec_calibrate('aimed_e', queries_table => 'asked', queries_column => 'id');
SELECT * FROM gpuvec_calibrate(NULL);
SET client_min_messages = warning;
-- ... within a command that event triggers watch
CREATE FUNCTION pg_temp.told() RETURNS event_trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE WARNING '%', (SELECT string_agg(command_tag, ', ') FROM pg_event_trigger_ddl_commands()); END $$;
CREATE EVENT TRIGGER regress_gpuvec_told ON ddl_command_end EXECUTE FUNCTION pg_temp.told();
CREATE TABLE told AS SELECT * FROM gpuvec_calibrate('aimed_e');
CREATE TABLE told_more AS SELECT * FROM gpuvec_calibrate('aimed_e', ARRAY(SELECT e FROM asked));
DROP EVENT TRIGGER regress_gpuvec_told;
DROP TABLE told, told_more, asked;

-- inner product and cosine
CREATE INDEX aimed_ip ON aimed USING gpuivfpq (e real_ip_ops) WITH (lists = 60);
CREATE INDEX aimed_cosine ON aimed USING gpuivfpq (e real_cosine_ops) WITH (lists = 60, spill = 0);
SELECT recall >= 0.92 AS reached FROM gpuvec_recall('aimed_ip', 10, 200);
SELECT recall >= 0.92 AS reached FROM gpuvec_recall('aimed_cosine', 10, 200);
SELECT count(*) > 15 AS known, bool_and(probes > 0) AS probes FROM gpuvec_calibration('aimed_cosine');
DROP TABLE aimed;

-- rows that are all equal, or two of a kind
CREATE TABLE equal (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO equal SELECT g, '{1,2,3,4}' FROM generate_series(1, 3000) AS g;
CREATE INDEX equal_e ON equal USING gpuivfpq (e);
SELECT recall FROM gpuvec_recall('equal_e', 10, 50);
UPDATE equal SET e = '{4,3,2,1}' WHERE id % 2 = 0;
REINDEX INDEX equal_e;
SELECT recall FROM gpuvec_recall('equal_e', 10, 50);
SELECT bool_and(probes <= 2) AS few FROM gpuvec_calibration('equal_e');
DROP TABLE equal;

-- an easy table with many lists: a tenth of the usual ones would be enough for
-- each target, and they are told apart below that
CREATE TABLE easy AS SELECT g AS id, ARRAY[g, 0]::real[] AS e FROM generate_series(1, 20000) AS g;
CREATE INDEX easy_e ON easy USING gpuivfpq (e) WITH (lists = 2000);
SELECT min(probes) < 5 AS fewer, count(DISTINCT probes) > 1 AS apart FROM gpuvec_calibration('easy_e') WHERE k = 10;
SELECT * FROM pg_temp.reached('easy_e', 10, 100);
DROP TABLE easy;

-- codes that tell little: not even 20,000 candidates reach all targets
CREATE TABLE blurred (id int, e real[]) WITH (autovacuum_enabled = off);
ALTER TABLE blurred ALTER e SET STATISTICS 0;
SELECT setseed(0.3);
INSERT INTO blurred SELECT g, (SELECT array_agg(random()::real) FROM generate_series(1, 64) WHERE g = g)
FROM generate_series(1, 24000) AS g;
CREATE INDEX blurred_e ON blurred USING gpuivfpq (e) WITH (lists = 1, pq_dim = 1, spill = 0);
ANALYZE blurred;
SELECT recall FROM gpuvec_calibration('blurred_e') WHERE k = 10 AND candidates IS NULL;
CREATE FUNCTION pg_temp.blurred(targets float8[])
RETURNS TABLE (target float8, k int, returned bigint, probes int, candidates int, most bool, full_pass bool)
LANGUAGE plpgsql AS $$
BEGIN
	FOREACH target IN ARRAY targets LOOP
		PERFORM set_config('gpuvec.recall', target::text, true);
		FOREACH k IN ARRAY ARRAY[10, 100] LOOP
			PERFORM id FROM blurred ORDER BY e <-> array_fill(0.5::real, ARRAY[64]) LIMIT k;
			SELECT s.returned, s.probes, s.candidates, s.full_pass FROM gpuvec_last_scan() AS s
			INTO returned, probes, candidates, full_pass;
			most := candidates = (SELECT max(c.candidates) FROM gpuvec_calibration('blurred_e') AS c
				WHERE c.k = blurred.k AND c.recall <= target);
			RETURN NEXT;
		END LOOP;
	END LOOP;
END
$$;
-- everything is read
SELECT target, k, returned, full_pass FROM pg_temp.blurred(ARRAY[0.98, 0.99]);
SET gpuvec.candidates = 77;
SELECT target, k, returned, full_pass FROM pg_temp.blurred(ARRAY[0.98, 0.99]);
-- ... unless one names the lists: with the candidates that reach most
RESET gpuvec.candidates;
SET gpuvec.probes = 1;
SELECT target, k, returned, probes, most, full_pass FROM pg_temp.blurred(ARRAY[0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1]);
SET gpuvec.candidates = 77;
SELECT target, k, returned, probes, candidates, full_pass FROM pg_temp.blurred(ARRAY[0.8, 0.95, 0.99, 1]);
RESET gpuvec.candidates;
RESET gpuvec.probes;
ALTER INDEX blurred_e SET (probes = 1);
SELECT target, k, returned, probes, most, full_pass FROM pg_temp.blurred(ARRAY[0.8, 0.95, 0.99, 1]);
ALTER INDEX blurred_e SET (candidates = 77);
SELECT target, k, returned, probes, candidates, full_pass FROM pg_temp.blurred(ARRAY[0.8, 0.95, 0.99, 1]);
ALTER INDEX blurred_e RESET (probes, candidates);
DROP TABLE blurred;

-- queries unlike the rows, here between clusters, get nearly what is asked for
CREATE TABLE apart (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO apart SELECT g, pg_temp.point(g, 48, 300, 0.4) FROM generate_series(1, 6000) AS g;
CREATE INDEX apart_e ON apart USING gpuivfpq (e) WITH (lists = 100);
CREATE TABLE between_them AS SELECT (SELECT array_agg(((x + y) / 2)::real ORDER BY n)
	FROM unnest(pg_temp.point(g, 48, 300, 0.4), pg_temp.point(g * 7 + 3, 48, 300, 0.4)) WITH ORDINALITY AS u (x, y, n)) AS e
FROM generate_series(9001, 9600) AS g;
SELECT recall >= 0.92 AS built FROM gpuvec_recall('apart_e', queries => ARRAY(SELECT e FROM between_them));
SELECT count(*) > 10 AS known FROM gpuvec_calibrate('apart_e');
SELECT recall >= 0.92 AS calibrated FROM gpuvec_recall('apart_e', queries => ARRAY(SELECT e FROM between_them));
-- ... of rows calibration would know less
SELECT count(*) > 10 AS known FROM gpuvec_calibrate('apart_e', queries => ARRAY(SELECT e FROM apart WHERE id <= 600));
SELECT recall < 0.92 AS poor FROM gpuvec_recall('apart_e', queries => ARRAY(SELECT e FROM between_them));
DROP TABLE apart, between_them;

-- more lists than the sample has rows: it makes their parents, and they come from
-- rows that are read again
CREATE TABLE wide (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO wide SELECT g, p || p || p || p FROM generate_series(1, 6000) AS g, pg_temp.point(g, 32, 200, 2) AS p;
SET gpuvec.engine = cpu;
SET maintenance_work_mem = '1MB';
CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 450);
RESET maintenance_work_mem;
RESET gpuvec.engine;
SELECT k, count(*) FILTER (WHERE recall <= 0.99), min(probes) > 0 AS probes
FROM gpuvec_calibration('wide_e') GROUP BY k ORDER BY k;
SELECT advice FROM gpuvec_index_info('wide_e');
SELECT recall >= 0.92 AS reached FROM gpuvec_recall('wide_e', 10, 200);
SET gpuvec.recall = 0.8;
SELECT recall BETWEEN 0.77 AND 0.98 AS reached FROM gpuvec_recall('wide_e', 10, 200);
SET gpuvec.recall = 0.99;
SELECT recall >= 0.97 AS reached FROM gpuvec_recall('wide_e', 10, 200);
RESET gpuvec.recall;
DROP TABLE wide;

-- a depth out of reach: behind the 150 nearest rows 30,000 as near as each other,
-- whose order no code tells
CREATE TABLE ring AS SELECT g AS id, ARRAY(SELECT x / n FROM unnest(r) AS x)::real[] AS e
FROM (SELECT g, r, |/ (SELECT sum(x * x) FROM unnest(r) AS x) * CASE WHEN g <= 150 THEN 1000 ELSE 1 END AS n
	FROM (SELECT g, ARRAY(SELECT random() + random() + random() + random() - 2
			FROM generate_series(1, 16) WHERE g = g) AS r
		FROM generate_series(1, 30000) AS g) AS made) AS measured;
CREATE TABLE inside AS SELECT ARRAY(SELECT 0.003 * (random() - 0.5) FROM generate_series(1, 16) WHERE g = g)::real[] AS q
FROM generate_series(1, 120) AS g;
CREATE INDEX ring_e ON ring USING gpuivfpq (e) WITH (lists = 60);
VACUUM ANALYZE ring;
SELECT k, count(probes) > 0 AS reached FROM gpuvec_calibrate('ring_e', queries => ARRAY(SELECT q FROM inside))
WHERE recall = 0.95 GROUP BY k ORDER BY k;
-- ... is read to the end, as gpuvec_calibration says; what is less deep is not
RESET gpuvec.recall;
RESET gpuvec.scan_order;
SELECT recall > 0.98 AS nearly_all FROM gpuvec_recall('ring_e', 300, queries => ARRAY(SELECT q FROM inside LIMIT 20));
SELECT full_pass FROM gpuvec_last_scan();
SELECT recall > 0.95 AS reached FROM gpuvec_recall('ring_e', 100, queries => ARRAY(SELECT q FROM inside LIMIT 20));
SELECT full_pass FROM gpuvec_last_scan();
SELECT count(*) FROM gpuvec_search('ring_e', ARRAY(SELECT q FROM inside LIMIT 2), 300);
SELECT full_pass FROM gpuvec_last_scan();
-- ... with a condition what one batch can do, or the table, whatever costs less
CREATE FUNCTION pg_temp.condition(target float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	query real[];
	same int;
	total int = 0;
BEGIN
	PERFORM set_config('gpuvec.recall', target::text, true);
	FOR query IN SELECT q FROM inside LIMIT 10 LOOP
		WITH indexed AS MATERIALIZED (SELECT id FROM ring WHERE id % 10 = 0 ORDER BY e <-> query LIMIT 40),
			sorted AS MATERIALIZED (SELECT id FROM ring WHERE id % 10 = 0 ORDER BY (e <-> query) + 0 LIMIT 40)
		SELECT count(*) FROM indexed JOIN sorted USING (id) INTO same;
		total = total + same;
	END LOOP;
	RETURN total / 400.0;
END
$$;
SELECT pg_temp.condition(0.9) >= 0.9 AS lower, pg_temp.condition(0.95) >= 0.95 AS higher;
-- the depth of a hundred: the doctor tells, though ten are within reach
DELETE FROM ring WHERE id BETWEEN 31 AND 150;
SELECT k, count(probes) > 0 AS reached FROM gpuvec_calibrate('ring_e', queries => ARRAY(SELECT q FROM inside))
WHERE recall = 0.95 AND k <= 100 GROUP BY k ORDER BY k;
SELECT state, advice FROM gpuvec_doctor() WHERE subject = 'ring_e' AND state ~ 'exceeds';
DROP TABLE ring, inside;

-- nine rows in each of 700 clusters: of ten rows the last lies in another one,
-- and a target holds for the last rows, too
SELECT setseed(0.4);
CREATE TABLE nines AS SELECT (g - 1) * 9 + i AS id, (SELECT array_agg((x + .001 * random())::real) FROM unnest(p.e) AS x WHERE i > 0) AS e
FROM (SELECT g, (SELECT array_agg((x / n)::real) FROM (SELECT x, sqrt(sum(x * x) OVER ()) AS n FROM
		(SELECT random() + random() + random() + random() - 2 + 0 * g AS x FROM generate_series(1, 16) OFFSET 0) AS r) AS s) AS e
	FROM generate_series(1, 700) AS g OFFSET 0) AS p, generate_series(1, 9) AS i;
CREATE INDEX nines_e ON nines USING gpuivfpq (e);
SELECT probes >= 4 AS enough FROM gpuvec_calibration('nines_e') WHERE k = 10 AND recall = 0.9;
DROP TABLE nines;

-- codes of one dimension a sub-quantizer rank rows nearly as their distances do: a row takes one rank, though it has two
-- postings, and at more than 100 rows each row that a level looks at stands for ten
CREATE TABLE ranked (e real[]) WITH (autovacuum_enabled = off);
INSERT INTO ranked SELECT pg_temp.point(g, 8, 20, 1) FROM generate_series(1, 4000) AS g;
CREATE INDEX ranked_e ON ranked USING gpuivfpq (e) WITH (lists = 40, pq_dim = 8);
SELECT k, min(candidates) > k AS no_fewer, max(candidates) < 1.5 * k AS few
FROM gpuvec_calibration('ranked_e') WHERE k >= 100 AND recall <= 0.95 GROUP BY k ORDER BY k;
DROP TABLE ranked;
