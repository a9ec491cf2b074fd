-- records of halves: rows are given out without being measured
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- options and limits
CREATE TABLE halved (id int, e real[], k int, note text,
	tags int[] GENERATED ALWAYS AS (ARRAY[id % 97, id % 89]) STORED) WITH (autovacuum_enabled = off);
CREATE INDEX halved_e ON halved USING gpuivfpq (e) WITH (dims = 4068, refine = half);
CREATE INDEX halved_e ON halved USING gpuivfpq (e) WITH (dims = 4067, refine = half);
DROP INDEX halved_e;

-- queries whose k nearest rows, from all lists, are not those of a sort; the
-- distance is not selected, so nothing but bounds need say where rows belong
CREATE FUNCTION pg_temp.inexact(operator text, dims int, k int, n int, filter text DEFAULT 'true')
RETURNS int
LANGUAGE plpgsql SET gpuvec.probes = 16777216 SET gpuvec.candidates = 5000 AS $$
DECLARE
	wrong int = 0;
	same bool;
BEGIN
	FOR q IN 1..n LOOP
		EXECUTE format('SELECT (SELECT array_agg(id) FROM (SELECT id
				FROM halved WHERE %4$s ORDER BY e %1$s %2$L LIMIT %3$s) AS x)
			IS NOT DISTINCT FROM (SELECT array_agg(id) FROM (SELECT id, (e %1$s %2$L) + 0 AS d
				FROM halved WHERE %4$s ORDER BY 2, ctid LIMIT %3$s) AS y)',
			operator, pg_temp.point(q * 7919, dims), k, filter) INTO same;
		wrong = wrong + (NOT same)::int;
	END LOOP;
	RETURN wrong;
END
$$;

-- What n rows of n_queries queries are, without the distance and with it: how
-- many, each once, in their order, and of the true ones how many.
CREATE FUNCTION pg_temp.looked(dims int, n int, n_queries int, selected bool, spread float8 DEFAULT 10,
	OUT rows bigint, OUT once bool, OUT in_order bool, OUT recall float8)
LANGUAGE plpgsql AS $$
DECLARE
	q real[];
	ids int[];
	found bigint;
	c refcursor;
	one int;
BEGIN
	rows = 0; once = true; in_order = true; recall = 0;
	FOR i IN 1..n_queries LOOP
		q = pg_temp.point(i * 7919, dims, spread => spread);
		IF selected THEN
			EXECUTE format('SELECT array_agg(id) FROM (SELECT id, e <-> %1$L AS d FROM halved
				ORDER BY e <-> %1$L LIMIT %2$s) AS x WHERE d >= 0', q, n) INTO ids;
		ELSE
			-- no LIMIT says how many: so batches are small ones at first
			ids = '{}';
			OPEN c NO SCROLL FOR EXECUTE format('SELECT id FROM halved ORDER BY e <-> %L', q);
			FOR j IN 1..n LOOP
				FETCH c INTO one;
				EXIT WHEN one IS NULL;
				ids = ids || one;
			END LOOP;
			CLOSE c;
		END IF;
		rows = rows + cardinality(ids);
		once = once AND cardinality(ids) = (SELECT count(DISTINCT u) FROM unnest(ids) AS u);
		in_order = in_order AND (SELECT bool_and(d >= before) FROM
			(SELECT d, lag(d, 1, 0::float8) OVER (ORDER BY place) AS before FROM
				(SELECT (e <-> q) + 0 AS d, place FROM unnest(ids) WITH ORDINALITY AS u (id, place)
					JOIN halved USING (id)) AS x) AS y);
		SELECT count(*) INTO found FROM (SELECT id FROM halved ORDER BY (e <-> q) + 0 LIMIT n) AS x
		WHERE id = ANY (ids);
		recall = recall + found::float8 / n / n_queries;
	END LOOP;
END
$$;

-- built, with two copies of rows and with one, all metrics
INSERT INTO halved SELECT g, pg_temp.point(g, 24), g % 5 FROM generate_series(1, 3000) AS g;
CREATE INDEX halved_e ON halved USING gpuivfpq (e real_ip_ops) WITH (lists = 20, refine = half, spill = 0);
SELECT pg_temp.inexact('<#>', 24, 50, 10);
SELECT * FROM gpuvec_verify_index('halved_e');
DROP INDEX halved_e;
CREATE INDEX halved_e ON halved USING gpuivfpq (e real_cosine_ops) WITH (lists = 20, refine = half);
SELECT pg_temp.inexact('<=>', 24, 50, 10);
SELECT * FROM gpuvec_verify_index('halved_e');
DROP INDEX halved_e;
CREATE INDEX halved_e ON halved USING gpuivfpq (e) WITH (lists = 20, refine = half);
SELECT pg_temp.inexact('<->', 24, 50, 10);
SELECT * FROM pg_temp.reached('halved', 24);
SELECT * FROM gpuvec_verify_index('halved_e');
SELECT recall > 0.9 AS recall FROM gpuvec_recall('halved_e', 10, 50);
SELECT pg_relation_size('halved_e') AS bytes \gset

-- hardly a row is measured; one whose distance somebody wants is not either,
-- for the executor computes that
SELECT id FROM halved ORDER BY e <-> pg_temp.point(7919, 24) LIMIT 10 \g /dev/null
SELECT reranked < 5 AS few, returned, refined >= 40 AS refined FROM gpuvec_last_scan();
SELECT id, e <-> pg_temp.point(7919, 24) FROM halved ORDER BY e <-> pg_temp.point(7919, 24) LIMIT 10 \g /dev/null
SELECT reranked < 5 AS few, returned FROM gpuvec_last_scan();
-- queries of other types, and NULL
SELECT (SELECT array_agg(id) FROM (SELECT id FROM halved ORDER BY e <-> pg_temp.point(5, 24)::float8[] LIMIT 5) AS a) =
	(SELECT array_agg(id) FROM (SELECT id FROM halved ORDER BY e <-> pg_temp.point(5, 24) LIMIT 5) AS b) AS same;
SELECT count(*) FROM (SELECT id FROM halved ORDER BY e <-> (SELECT NULL::real[]) LIMIT 7) AS q;
-- a scan for each row of another table
SELECT count(*), count(DISTINCT o.id), bool_and(n.id = o.id) AS itself
FROM (SELECT id, e FROM halved WHERE id <= 50) AS o,
	LATERAL (SELECT id FROM halved ORDER BY e <-> o.e LIMIT 1) AS n;

-- three batches and the final pass, strict and relaxed, by default and with
-- batches that find late rows
SELECT rows, once, in_order, recall > 0.9 AS recall FROM pg_temp.looked(24, 300, 5, false);
SELECT batches FROM gpuvec_last_scan();
SELECT rows, once, in_order, recall > 0.9 AS recall FROM pg_temp.looked(24, 300, 5, true);
SELECT rows > 2 * 2700 AS most, once, in_order FROM pg_temp.looked(24, 3000, 2, false);
SET gpuvec.probes = 1;
SET gpuvec.candidates = 12;
SELECT rows, once, in_order FROM pg_temp.looked(24, 300, 10, false);
SELECT out_of_order > 0 AS out_of_order FROM gpuvec_last_scan();
SELECT rows, once, in_order FROM pg_temp.looked(24, 300, 10, true);
SET gpuvec.scan_order = relaxed;
SELECT rows, once, in_order FROM pg_temp.looked(24, 300, 10, false);
RESET gpuvec.scan_order;
RESET gpuvec.probes;
RESET gpuvec.candidates;
SET gpuvec.recall = 1;
SELECT rows, once, in_order, recall FROM pg_temp.looked(24, 300, 3, false);
RESET gpuvec.recall;

-- conditions: rows are measured as they come up
SELECT pg_temp.inexact('<->', 24, 50, 5, 'k = 3');
SELECT pg_temp.inexact('<->', 24, 50, 5, format('e <-> %L < 12', pg_temp.point(7919, 24)));
CREATE INDEX halved_k ON halved USING gpuivfpq (e, k, tags) WITH (lists = 20, refine = half);
SELECT pg_temp.inexact('<->', 24, 50, 5, 'k = 3');
SET gpuvec.enable_custom_scan = off;
SELECT pg_temp.inexact('<->', 24, 50, 5, 'k = 3');
-- images tell less than the key
SELECT pg_temp.inexact('<->', 24, 20, 5, $$tags @> '{7}'$$);
RESET gpuvec.enable_custom_scan;
DROP INDEX halved_k;

-- a third of the rows is dead, others are there twice; nobody tells the access
-- method which rows the executor has not seen
INSERT INTO halved SELECT id + 10000, e, k FROM halved WHERE id % 4 = 1;
BEGIN;
DELETE FROM halved WHERE id % 3 = 0;
SELECT pg_temp.inexact('<->', 24, 50, 10);
SELECT rows, once, in_order, recall > 0.9 AS recall FROM pg_temp.looked(24, 300, 5, false);
SELECT rows, once, in_order, recall > 0.9 AS recall FROM pg_temp.looked(24, 300, 5, true);
SET LOCAL gpuvec.probes = 1;
SET LOCAL gpuvec.candidates = 12;
SELECT rows, once, in_order FROM pg_temp.looked(24, 300, 10, false);
SET LOCAL gpuvec.scan_order = relaxed;
SELECT rows, once, in_order FROM pg_temp.looked(24, 300, 10, false);
ROLLBACK;
-- ten rows take one batch, whatever is dead among its candidates
DELETE FROM halved WHERE id % 3 = 0;
SELECT id FROM halved ORDER BY e <-> pg_temp.point(7919, 24) LIMIT 10 \g /dev/null
SELECT batches, returned FROM gpuvec_last_scan();
-- a cursor's rows are those of its snapshot
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM halved ORDER BY e <-> pg_temp.point(7919, 24);
MOVE 5 IN c;
DELETE FROM halved WHERE id % 2 = 0;
SELECT count(*) FROM halved;
MOVE 200 IN c;
CLOSE c;
ROLLBACK;
UPDATE halved SET note = 'x' WHERE id % 10 = 1;
UPDATE halved SET e = pg_temp.point(id + 5000, 24) WHERE id % 10 = 2;
SELECT pg_temp.inexact('<->', 24, 50, 10);
VACUUM halved;
SELECT pg_temp.inexact('<->', 24, 50, 10);
SELECT * FROM gpuvec_verify_index('halved_e');
-- slots are used again
INSERT INTO halved SELECT g, pg_temp.point(g, 24), g % 5 FROM generate_series(20001, 21000) AS g;
SELECT pg_temp.inexact('<->', 24, 50, 10);
SELECT * FROM gpuvec_verify_index('halved_e');
SELECT pg_relation_size('halved_e') < 1.5 * :bytes AS space_used_again;
-- what waits by its bounds when the final pass begins is measured there
SET work_mem = '64kB';
SET gpuvec.candidates = 900;
SELECT rows = distinct_rows AS same FROM pg_temp.reached('halved', 24);
SELECT full_pass FROM gpuvec_last_scan();
RESET gpuvec.candidates;
RESET work_mem;

-- rows as near each other as their bounds are wide: of those that are given out
-- unmeasured later batches bring nearer ones
DROP INDEX halved_e;
TRUNCATE halved;
INSERT INTO halved SELECT g, pg_temp.point(g, 24, spread => 0), g % 5 FROM generate_series(1, 1000) AS g;
CREATE INDEX halved_e ON halved USING gpuivfpq (e) WITH (lists = 10, refine = half);
SET gpuvec.max_probes = 10;
SET gpuvec.probes = 1;
SET gpuvec.candidates = 12;
SELECT rows, once, in_order FROM pg_temp.looked(24, 150, 40, false, 0);
SELECT reranked > 50 AS some, reranked < returned + out_of_order AS fewer, out_of_order > 0 AS out_of_order, full_pass FROM gpuvec_last_scan();
BEGIN;
DELETE FROM halved WHERE id % 3 = 0;
SELECT rows, once, in_order FROM pg_temp.looked(24, 120, 40, false, 0);
ROLLBACK;
RESET gpuvec.max_probes;
RESET gpuvec.probes;
RESET gpuvec.candidates;
SELECT pg_temp.inexact('<->', 24, 200, 5);

-- REINDEX takes a changed option
ALTER INDEX halved_e SET (refine = sq8);
REINDEX INDEX halved_e;
SELECT pg_temp.inexact('<->', 24, 50, 3);
ALTER INDEX halved_e SET (refine = half);
INSERT INTO halved VALUES (9001, pg_temp.point(9001, 24));
REINDEX INDEX CONCURRENTLY halved_e;
SELECT pg_temp.inexact('<->', 24, 50, 3);
SELECT * FROM gpuvec_verify_index('halved_e');
DROP INDEX halved_e;

-- trained while it is in use
TRUNCATE halved;
CREATE INDEX halved_e ON halved USING gpuivfpq (e) WITH (lists = 10, refine = half);
INSERT INTO halved SELECT g, pg_temp.point(g, 24), g % 5 FROM generate_series(1, 1200) AS g;
SELECT pg_temp.inexact('<->', 24, 50, 3);
SELECT gpuvec_train('halved_e');
SELECT pg_temp.inexact('<->', 24, 50, 3);
SELECT id FROM halved ORDER BY e <-> pg_temp.point(7919, 24) LIMIT 10 \g /dev/null
SELECT reranked < 5 AS few FROM gpuvec_last_scan();
SELECT * FROM gpuvec_verify_index('halved_e');
DROP INDEX halved_e;

-- values of which halves say little: answers stay exact
INSERT INTO halved SELECT 2000 + g, array_fill(g::real, ARRAY[24]) FROM generate_series(1, 20) AS g;
INSERT INTO halved SELECT 3000 + g, array_fill(1e-30::real * g, ARRAY[24]) FROM generate_series(1, 20) AS g;
INSERT INTO halved SELECT 4000 + g, array_fill(1e30::real * g, ARRAY[23]) || -g::real FROM generate_series(1, 20) AS g;
INSERT INTO halved SELECT 5000 + g, array_fill(1::real, ARRAY[24]) FROM generate_series(1, 20) AS g;
INSERT INTO halved SELECT 6000 + g, array_fill(1e6::real * g, ARRAY[24]) FROM generate_series(1, 20) AS g;
CREATE INDEX halved_l2 ON halved USING gpuivfpq (e) WITH (lists = 10, refine = half);
CREATE INDEX halved_ip ON halved USING gpuivfpq (e real_ip_ops) WITH (lists = 10, refine = half);
CREATE INDEX halved_cosine ON halved USING gpuivfpq (e real_cosine_ops) WITH (lists = 10, refine = half);
CREATE FUNCTION pg_temp.same(operator text, query real[]) RETURNS bool
LANGUAGE plpgsql SET gpuvec.probes = 10 SET gpuvec.candidates = 5000 AS $$
DECLARE
	same bool;
BEGIN
	EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e %1$s %2$L AS d
			FROM halved ORDER BY e %1$s %2$L LIMIT 1300) AS x)
		IS NOT DISTINCT FROM (SELECT array_agg(d) FROM (SELECT (e %1$s %2$L) + 0 AS d
			FROM halved ORDER BY 1) AS y)', operator, query) INTO same;
	RETURN same;
END
$$;
SELECT o, q, pg_temp.same(o, e) FROM unnest(ARRAY['<->', '<#>', '<=>']) AS o,
	(VALUES ('point', pg_temp.point(3, 24)), ('constant', array_fill(5::real, ARRAY[24])),
		('tiny', array_fill(3e-30::real, ARRAY[24])), ('huge', array_fill(2e30::real, ARRAY[24])),
		('large', array_fill(2e6::real, ARRAY[24])), ('largest', array_fill(3e38::real, ARRAY[24]))) AS v (q, e);
SELECT relname, v.* FROM pg_class, gpuvec_verify_index(oid) AS v WHERE relname LIKE 'halved\_%';
DROP TABLE halved;
