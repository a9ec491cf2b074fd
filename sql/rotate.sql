-- option rotate: vectors are rotated before they are encoded
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- 24 dimensions that follow from 6, but for a little
CREATE TABLE mixed (id serial, e real[]);
CREATE FUNCTION mixed(i int) RETURNS real[] LANGUAGE sql IMMUTABLE AS $$
	SELECT array_agg((sin(i * 1.7 * (d % 6 + 1)) * (1 + d % 3) + cos(i * .37 * (d % 6 + 2)) +
		.1 * sin(i * (d + 7.3)) + 2)::real ORDER BY d)
	FROM generate_series(1, 24) AS d $$;
INSERT INTO mixed (e) SELECT mixed(i) FROM generate_series(1, 3000) AS i;

-- rows in the index's order, with all lists, are those of a sort
CREATE FUNCTION wrong_rows(tab regclass, operator text, queries int) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_sort = off
SET gpuvec.probes = 1000 SET gpuvec.candidates = 400 AS $$
DECLARE
	same bool;
	wrong bigint = 0;
BEGIN
	FOR i IN 1 .. queries LOOP
		EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e %1$s $1 AS d FROM %2$s ORDER BY e %1$s $1 LIMIT 20) AS x)
			IS NOT DISTINCT FROM (SELECT array_agg(d) FROM (SELECT (e %1$s $1) + 0 AS d FROM %2$s ORDER BY 1 LIMIT 20) AS y)',
			operator, tab) INTO same USING mixed(i * 7919);
		wrong = wrong + (NOT same)::int;
	END LOOP;
	RETURN wrong;
END $$;

-- by every metric, with records and without
CREATE INDEX mixed_l2 ON mixed USING gpuivfpq (e) WITH (lists = 20, pq_dim = 6, rotate);
SELECT wrong_rows('mixed', '<->', 30);
SELECT * FROM gpuvec_verify_index('mixed_l2');
SELECT lists, dims, pq_dim, rows, advice FROM gpuvec_index_info('mixed_l2');

-- rows that come later, and go
INSERT INTO mixed (e) SELECT mixed(i) FROM generate_series(3001, 3300) AS i;
DELETE FROM mixed WHERE id % 7 = 0;
SELECT wrong_rows('mixed', '<->', 30);
VACUUM mixed;
SELECT wrong_rows('mixed', '<->', 30);
SELECT * FROM gpuvec_verify_index('mixed_l2');
REINDEX INDEX mixed_l2;
SELECT wrong_rows('mixed', '<->', 30);
SELECT count(*) > 5 AS calibrated FROM gpuvec_calibrate('mixed_l2');
SELECT wrong_rows('mixed', '<->', 10);
DROP INDEX mixed_l2;
CREATE INDEX mixed_sq8 ON mixed USING gpuivfpq (e) WITH (lists = 20, pq_dim = 6, rotate, refine = sq8);
SELECT wrong_rows('mixed', '<->', 30);
SELECT * FROM gpuvec_verify_index('mixed_sq8');
DROP INDEX mixed_sq8;
CREATE INDEX mixed_half ON mixed USING gpuivfpq (e) WITH (lists = 20, pq_dim = 6, rotate, refine = half);
INSERT INTO mixed (e) SELECT mixed(i) FROM generate_series(3301, 3400) AS i;
SELECT wrong_rows('mixed', '<->', 30);
SELECT * FROM gpuvec_verify_index('mixed_half');
DROP INDEX mixed_half;
CREATE INDEX mixed_ip ON mixed USING gpuivfpq (e real_ip_ops) WITH (lists = 20, pq_dim = 6, rotate, refine = half);
INSERT INTO mixed (e) SELECT mixed(i) FROM generate_series(3401, 3500) AS i;
SELECT wrong_rows('mixed', '<#>', 30);
SELECT * FROM gpuvec_verify_index('mixed_ip');
DROP INDEX mixed_ip;
CREATE INDEX mixed_cosine ON mixed USING gpuivfpq (e real_cosine_ops) WITH (lists = 20, pq_dim = 6, rotate, refine = half);
INSERT INTO mixed (e) SELECT mixed(i) FROM generate_series(3501, 3600) AS i;
SELECT wrong_rows('mixed', '<=>', 30);
SELECT * FROM gpuvec_verify_index('mixed_cosine');
DROP INDEX mixed_cosine;

-- codes lose less: of 10 candidates more of the ten nearest are found
CREATE FUNCTION found(queries int) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_sort = off SET gpuvec.probes = 1000 SET gpuvec.candidates = 10 AS $$
DECLARE
	n bigint;
	total bigint = 0;
BEGIN
	FOR i IN 1 .. queries LOOP
		SELECT count(*) INTO n FROM (SELECT id FROM mixed ORDER BY e <-> mixed(i * 7919) LIMIT 10) AS x
			WHERE id IN (SELECT id FROM mixed ORDER BY (e <-> mixed(i * 7919)) + 0 LIMIT 10);
		total = total + n;
	END LOOP;
	RETURN total;
END $$;
-- lists of graphs are those of centroids as rows are, not as they are rotated
CREATE FUNCTION neighbors() RETURNS bigint LANGUAGE sql SET gpuvec.probes = 1 AS $$
	SELECT count(*) FROM gpuvec_knn_graph('mixed', 'id', 'e', 5, 'l2', 'index') AS a
	JOIN gpuvec_knn_graph('mixed', 'id', 'e', 5) AS b USING (key, neighbor) $$;
CREATE INDEX mixed_e ON mixed USING gpuivfpq (e) WITH (lists = 20, pq_dim = 6);
SELECT found(50) AS plain, neighbors() AS plain_neighbors \gset
ALTER INDEX mixed_e SET (rotate = on);
SELECT found(50) = :plain AS unchanged, advice FROM gpuvec_index_info('mixed_e');
REINDEX INDEX mixed_e;
SELECT found(50) > 1.1 * :plain AS better, advice FROM gpuvec_index_info('mixed_e');
SELECT neighbors() > .9 * :plain_neighbors AS near;
ALTER INDEX mixed_e RESET (rotate);
SELECT advice FROM gpuvec_index_info('mixed_e');

DROP INDEX mixed_e;

-- trained in place
CREATE TABLE later (id int, e real[]);
CREATE INDEX later_e ON later USING gpuivfpq (e) WITH (lists = 10, pq_dim = 6, rotate, refine = half);
INSERT INTO later SELECT i, mixed(i) FROM generate_series(1, 1500) AS i;
SELECT gpuvec_train('later_e');
INSERT INTO later SELECT i, mixed(i) FROM generate_series(1501, 1600) AS i;
SELECT wrong_rows('later', '<->', 20);
SELECT * FROM gpuvec_verify_index('later_e');
DROP TABLE later;

-- what cannot be rotated
CREATE TABLE wide (e real[]);
INSERT INTO wide SELECT array_fill(i::real, '{2001}') FROM generate_series(1, 4) AS i;
CREATE INDEX ON wide USING gpuivfpq (e) WITH (lists = 2, rotate);
DROP TABLE wide;

-- nothing to learn from: all rows equal, or one dimension
CREATE TABLE equal AS SELECT i AS id, '{1,2,3,4}'::real[] AS e FROM generate_series(1, 100) AS i;
CREATE INDEX equal_e ON equal USING gpuivfpq (e) WITH (lists = 2, rotate);
SELECT count(*) FROM (SELECT id FROM equal ORDER BY e <-> '{0,0,0,0}' LIMIT 100) AS x;
SELECT * FROM gpuvec_verify_index('equal_e');
DROP TABLE equal;
CREATE TABLE single AS SELECT i AS id, ARRAY[i::real] AS e FROM generate_series(1, 100) AS i;
CREATE INDEX single_e ON single USING gpuivfpq (e) WITH (lists = 2, rotate);
SELECT array_agg(id) FROM (SELECT id FROM single ORDER BY e <-> '{50.2}' LIMIT 5) AS x;
DROP TABLE single;
-- ... or all of them enormous
CREATE TABLE enormous AS SELECT i AS id,
	ARRAY(SELECT (CASE WHEN i * j % 7 < 3 THEN 3e38 ELSE -3e38 END)::real FROM generate_series(1, 64) AS j) AS e
	FROM generate_series(1, 200) AS i;
CREATE INDEX enormous_e ON enormous USING gpuivfpq (e) WITH (lists = 2, rotate);
SELECT count(*) FROM (SELECT id FROM enormous ORDER BY e <-> array_fill(0::real, '{64}') LIMIT 200) AS x;
SELECT * FROM gpuvec_verify_index('enormous_e');
DROP TABLE enormous;

DROP TABLE mixed;
DROP FUNCTION wrong_rows, found, neighbors, mixed;
