-- VACUUM: what is deleted goes, its space comes back
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TABLE vacuumed (id int, e real[], note text) WITH (autovacuum_enabled = off);
INSERT INTO vacuumed SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 6000) AS g;
CREATE INDEX vacuumed_e ON vacuumed USING gpuivfpq (e) WITH (lists = 20);
SELECT pg_relation_size('vacuumed_e') AS bytes \gset

-- nothing to do
VACUUM vacuumed;
SELECT relpages > 0 AS pages, reltuples FROM pg_class WHERE relname = 'vacuumed_e';
SELECT rows, dead FROM gpuvec_index_info('vacuumed_e');

-- a few dead: marked, not worth rewriting
DELETE FROM vacuumed WHERE id % 50 = 0;
VACUUM vacuumed;
SELECT rows, dead > 0 AS dead FROM gpuvec_index_info('vacuumed_e');
SELECT reltuples FROM pg_class WHERE relname = 'vacuumed_e';
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT * FROM gpuvec_verify_index('vacuumed_e');

-- half dead: rewritten
DELETE FROM vacuumed WHERE id % 2 = 0;
VACUUM vacuumed;
SELECT rows, dead < rows / 10 AS hardly_dead FROM gpuvec_index_info('vacuumed_e');
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT count(*) FILTER (WHERE b.id = a.id) AS found
FROM vacuumed AS a, LATERAL (SELECT id FROM vacuumed ORDER BY e <-> a.e LIMIT 1) AS b
WHERE a.id < 200;
SELECT * FROM gpuvec_verify_index('vacuumed_e');

-- a dead row's TID, taken by another row, does not bring that row twice
INSERT INTO vacuumed SELECT g, pg_temp.point(g + 7, 8) FROM generate_series(10001, 13000) AS g;
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT * FROM gpuvec_verify_index('vacuumed_e');
SELECT pg_relation_size('vacuumed_e') <= 1.1 * :bytes + 3 * 8192 AS as_large_as_before;

-- all of it, again and again, the same rows and others; no other transaction,
-- such as autovacuum's of other tables, shall keep dead rows alive
CREATE PROCEDURE pg_temp.wait_for_others() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM pg_stat_clear_snapshot();
		EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid());
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
CREATE PROCEDURE pg_temp.refill(first int) LANGUAGE sql AS $$
	INSERT INTO vacuumed SELECT g, pg_temp.point(g, 8)
	FROM generate_series(first, first + 5999) AS g
$$;
DELETE FROM vacuumed;
CALL pg_temp.wait_for_others();
VACUUM vacuumed;
SELECT rows, pending, dead FROM gpuvec_index_info('vacuumed_e');
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT id FROM vacuumed ORDER BY e <-> '{1,1,1,1,1,1,1,1}' LIMIT 3;
CALL pg_temp.refill(1);
SELECT pg_relation_size('vacuumed_e') <= 1.1 * :bytes + 3 * 8192 AS as_large_as_before;
SELECT * FROM pg_temp.reached('vacuumed', 8);
DELETE FROM vacuumed;
CALL pg_temp.wait_for_others();
VACUUM vacuumed;
CALL pg_temp.refill(7001);
DELETE FROM vacuumed WHERE id % 3 > 0;
CALL pg_temp.wait_for_others();
VACUUM vacuumed;
INSERT INTO vacuumed SELECT g, pg_temp.point(g * 3, 8) FROM generate_series(20001, 24000) AS g;
DELETE FROM vacuumed WHERE id % 3 > 0;
CALL pg_temp.wait_for_others();
VACUUM vacuumed;
INSERT INTO vacuumed SELECT g, pg_temp.point(g * 7, 8) FROM generate_series(30001, 34000) AS g;
DELETE FROM vacuumed;
CALL pg_temp.wait_for_others();
VACUUM vacuumed;
CALL pg_temp.refill(9001);
SELECT pg_relation_size('vacuumed_e') <= 1.1 * :bytes + 3 * 8192 AS as_large_as_before;
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT * FROM gpuvec_verify_index('vacuumed_e');

-- updates that keep the vector in place (HOT), and such that move it
SELECT rows, dead FROM gpuvec_index_info('vacuumed_e');
UPDATE vacuumed SET note = 'x' WHERE id = 9001;
UPDATE vacuumed SET note = 'y' WHERE id = 9001;
SELECT rows FROM gpuvec_index_info('vacuumed_e');
VACUUM vacuumed;
SELECT a.id, b.id, b.note FROM vacuumed AS a,
	LATERAL (SELECT id, note FROM vacuumed ORDER BY e <-> a.e LIMIT 1) AS b WHERE a.id = 9001;
UPDATE vacuumed SET e = '{99,99,99,99,99,99,99,99}' WHERE id = 9001;
SELECT id FROM vacuumed ORDER BY e <-> '{99,99,99,99,99,99,99,99}' LIMIT 1;
VACUUM vacuumed;
SELECT id FROM vacuumed ORDER BY e <-> '{99,99,99,99,99,99,99,99}' LIMIT 1;
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT * FROM gpuvec_verify_index('vacuumed_e');

-- without index cleanup the dead entries stay, and do no harm
DELETE FROM vacuumed WHERE id % 2 = 0;
VACUUM (INDEX_CLEANUP off) vacuumed;
SELECT * FROM pg_temp.reached('vacuumed', 8);
VACUUM (INDEX_CLEANUP on) vacuumed;
SELECT * FROM pg_temp.reached('vacuumed', 8);
SELECT * FROM gpuvec_verify_index('vacuumed_e');
VACUUM (ANALYZE) vacuumed;
ANALYZE vacuumed;
DROP TABLE vacuumed;

-- pending rows
CREATE TABLE waiting (id int, e real[]) WITH (autovacuum_enabled = off);
CREATE INDEX waiting_e ON waiting USING gpuivfpq (e);
INSERT INTO waiting SELECT g, pg_temp.point(g, 2) FROM generate_series(1, 6000) AS g;
SELECT pg_relation_size('waiting_e') AS bytes \gset
DELETE FROM waiting WHERE id % 5 > 0;
VACUUM waiting;
SELECT rows, pending FROM gpuvec_index_info('waiting_e');
SELECT * FROM pg_temp.reached('waiting', 2);
DELETE FROM waiting;
VACUUM waiting;
SELECT rows, pending FROM gpuvec_index_info('waiting_e');
SELECT * FROM pg_temp.reached('waiting', 2);
INSERT INTO waiting SELECT g, pg_temp.point(g, 2) FROM generate_series(1, 6000) AS g;
DELETE FROM waiting WHERE id <= 4000;
VACUUM waiting;
INSERT INTO waiting SELECT g, pg_temp.point(g, 2) FROM generate_series(1, 4000) AS g;
SELECT pg_relation_size('waiting_e') <= 1.1 * :bytes + 3 * 8192 AS as_large_as_before;
SELECT * FROM pg_temp.reached('waiting', 2);
SELECT * FROM gpuvec_verify_index('waiting_e');
DROP TABLE waiting;

-- blocks of two and of three pages
CREATE FUNCTION pg_temp.wide_rows(first int, last int) RETURNS TABLE (id int, e real[])
LANGUAGE sql AS $$
	SELECT g, pg_temp.point(g, 8) || array_fill(g::real, ARRAY[1392])
	FROM generate_series(first, last) AS g
$$;
CREATE TABLE wide (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO wide SELECT * FROM pg_temp.wide_rows(1, 600);
CREATE INDEX wide_2 ON wide USING gpuivfpq (e) WITH (lists = 12, pq_dim = 600);
CREATE INDEX wide_3 ON wide USING gpuivfpq (e real_ip_ops) WITH (lists = 12, pq_dim = 900);
SELECT pg_relation_size('wide_2') AS bytes2, pg_relation_size('wide_3') AS bytes3 \gset
DELETE FROM wide WHERE id % 3 > 0;
VACUUM wide;
SELECT * FROM pg_temp.reached('wide', 1400);
SELECT pg_relation_size('wide_2') <= 1.1 * :bytes2 + 32768 AS small2,
	pg_relation_size('wide_3') <= 1.1 * :bytes3 + 32768 AS small3;
INSERT INTO wide SELECT * FROM pg_temp.wide_rows(1001, 1400);
DELETE FROM wide;
VACUUM wide;
INSERT INTO wide SELECT * FROM pg_temp.wide_rows(1, 600);
DELETE FROM wide WHERE id % 3 > 0;
VACUUM wide;
INSERT INTO wide SELECT * FROM pg_temp.wide_rows(1001, 1400);
SELECT * FROM pg_temp.reached('wide', 1400);
SELECT pg_relation_size('wide_2') <= 1.1 * :bytes2 + 32768 AS small2,
	pg_relation_size('wide_3') <= 1.1 * :bytes3 + 32768 AS small3;
SELECT * FROM gpuvec_verify_index('wide_2');
SELECT * FROM gpuvec_verify_index('wide_3');
DROP TABLE wide;

-- few rows left: these are spread over many more of those that calibration knew,
-- and searches look for them there
CREATE TABLE thinned (id int, e real[]) WITH (autovacuum_enabled = off);
SELECT setseed(0.5);
INSERT INTO thinned SELECT g, ARRAY(SELECT sin(g % 97 * 131 + i * 17) + 1.5 * random()
	FROM generate_series(1, 24) AS i WHERE g = g)
FROM generate_series(1, 20000) AS g;
CREATE INDEX thinned_e ON thinned USING gpuivfpq (e);
DELETE FROM thinned WHERE id % 40 > 0;
VACUUM thinned;
SELECT recall > 0.94 AS reached FROM gpuvec_recall('thinned_e', 10, 200);
SELECT full_pass, lists < 200 AS few_lists FROM gpuvec_last_scan();
SELECT advice FROM gpuvec_index_info('thinned_e');
SELECT count(*) > 0 AS calibrated FROM gpuvec_calibrate('thinned_e');
SELECT recall > 0.94 AS reached FROM gpuvec_recall('thinned_e', 10, 200);
SELECT advice FROM gpuvec_index_info('thinned_e');
-- ... statistics older than all that change nothing
UPDATE pg_class SET reltuples = 7 WHERE oid = 'thinned_e'::regclass;
SELECT probes AS before FROM gpuvec_last_scan() \gset
SELECT count(*) FROM (SELECT id FROM thinned ORDER BY e <-> array_fill(1::real, ARRAY[24]) LIMIT 10) AS q;
SELECT probes = :before AS the_same FROM gpuvec_last_scan();
-- ... and so few that they cannot be calibrated
DELETE FROM thinned WHERE id > 8000;
VACUUM thinned;
SELECT recall > 0.94 AS reached FROM gpuvec_recall('thinned_e', 10, 100);
SELECT advice FROM gpuvec_index_info('thinned_e');
DELETE FROM thinned;
VACUUM thinned;
SELECT count(*) FROM (SELECT id FROM thinned ORDER BY e <-> array_fill(1::real, ARRAY[24]) LIMIT 10) AS q;
SELECT advice FROM gpuvec_index_info('thinned_e');
DROP TABLE thinned;
