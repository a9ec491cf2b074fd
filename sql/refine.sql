-- refine records: rows are fetched only when their bound comes up
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- options and limits
CREATE TABLE refined (id int, e real[], note text) WITH (autovacuum_enabled = off);
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (refine = sq4);
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (refine = 1);
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (dims = 8135, refine = sq8);
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (dims = 8134, refine = sq8);
ALTER INDEX refined_e SET (refine = none);
ALTER INDEX refined_e SET (refine = 'sq16');
SELECT reloptions FROM pg_class WHERE relname = 'refined_e';
DROP INDEX refined_e;

-- an untrained index has no records yet; where rows tell the dimensions, they
-- are checked
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (refine = sq8);
INSERT INTO refined SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 20) AS g;
SELECT id FROM refined ORDER BY e <-> pg_temp.point(7, 8) LIMIT 1;
SELECT rows, pending FROM gpuvec_index_info('refined_e');
SELECT * FROM gpuvec_verify_index('refined_e');
DROP INDEX refined_e;
TRUNCATE refined;
INSERT INTO refined SELECT g, array_fill(g::real, ARRAY[9000]) FROM generate_series(1, 3) AS g;
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (refine = sq8);
TRUNCATE refined;

-- queries whose k nearest rows, from all lists, are not those of a sort
CREATE FUNCTION pg_temp.inexact(tab regclass, operator text, dims int, k int, n int)
RETURNS int
LANGUAGE plpgsql SET gpuvec.probes = 16777216 SET gpuvec.candidates = 5000 AS $$
DECLARE
	wrong int = 0;
	same bool;
BEGIN
	FOR q IN 1..n LOOP
		EXECUTE format('SELECT (SELECT array_agg(id) FROM (SELECT id
				FROM %3$s ORDER BY e %1$s %2$L LIMIT %4$s) AS x)
			IS NOT DISTINCT FROM (SELECT array_agg(id) FROM (SELECT id, (e %1$s %2$L) + 0 AS d
				FROM %3$s ORDER BY 2, ctid LIMIT %4$s) AS y)',
			operator, pg_temp.point(q * 7919, dims), tab, k) INTO same;
		wrong = wrong + (NOT same)::int;
	END LOOP;
	RETURN wrong;
END
$$;

-- built, with two copies of rows and with one, all metrics
INSERT INTO refined SELECT g, pg_temp.point(g, 24) FROM generate_series(1, 3000) AS g;
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 20, refine = sq8);
SELECT pg_temp.inexact('refined', '<->', 24, 50, 10);
SELECT * FROM pg_temp.reached('refined', 24);
SELECT * FROM gpuvec_verify_index('refined_e');
SELECT rows, pending, dead FROM gpuvec_index_info('refined_e');
SELECT recall > 0.9 AS recall FROM gpuvec_recall('refined_e', 10, 50);
DROP INDEX refined_e;
CREATE INDEX refined_e ON refined USING gpuivfpq (e real_ip_ops) WITH (lists = 20, refine = sq8, spill = 0);
SELECT pg_temp.inexact('refined', '<#>', 24, 50, 10);
SELECT * FROM gpuvec_verify_index('refined_e');
DROP INDEX refined_e;
CREATE INDEX refined_e ON refined USING gpuivfpq (e real_cosine_ops) WITH (lists = 20, refine = sq8);
SELECT pg_temp.inexact('refined', '<=>', 24, 50, 10);
SELECT * FROM gpuvec_verify_index('refined_e');
DROP INDEX refined_e;
CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 20, refine = sq8);
SELECT pg_relation_size('refined_e') AS bytes \gset

-- queries of other types, and NULL
SELECT (SELECT array_agg(id) FROM (SELECT id FROM refined ORDER BY e <-> pg_temp.point(5, 24)::float8[] LIMIT 5) AS a) =
	(SELECT array_agg(id) FROM (SELECT id FROM refined ORDER BY e <-> pg_temp.point(5, 24) LIMIT 5) AS b) AS same;
SELECT count(*) FROM (SELECT id FROM refined ORDER BY e <-> (SELECT NULL::real[]) LIMIT 7) AS q;
-- order over batches and through the final pass, strict and relaxed
SELECT count(*), bool_and(d >= before) AS in_order
FROM (SELECT d, lag(d, 1, 0::float8) OVER () AS before
	FROM (SELECT e <-> pg_temp.point(5, 24) AS d FROM refined ORDER BY e <-> pg_temp.point(5, 24) LIMIT 700) AS q) AS r;
SET gpuvec.probes = 20;
SELECT count(*) > 2900 AS most, count(*) = count(DISTINCT id) AS once, bool_and(d >= before) AS in_order
FROM (SELECT id, d, lag(d, 1, 0::float8) OVER () AS before
	FROM (SELECT id, e <-> pg_temp.point(5, 24) AS d FROM refined ORDER BY e <-> pg_temp.point(5, 24)) AS q) AS r;
RESET gpuvec.probes;
-- what waits by its bound when the final pass begins is measured there
SET work_mem = '64kB';
SET gpuvec.candidates = 900;
SELECT * FROM pg_temp.reached('refined', 24);
SELECT full_pass FROM gpuvec_last_scan();
RESET gpuvec.candidates;
RESET work_mem;

-- insert, update, delete, VACUUM; slots are used again
INSERT INTO refined SELECT g, pg_temp.point(g, 24) FROM generate_series(3001, 3500) AS g;
INSERT INTO refined VALUES (0, NULL);
SELECT id FROM refined ORDER BY e <-> pg_temp.point(3333, 24) LIMIT 1;
SELECT * FROM gpuvec_verify_index('refined_e');
UPDATE refined SET note = 'x' WHERE id % 10 = 0;
UPDATE refined SET e = pg_temp.point(id + 5000, 24) WHERE id % 10 = 1;
SELECT pg_temp.inexact('refined', '<->', 24, 50, 10);
BEGIN;
INSERT INTO refined SELECT g, pg_temp.point(g, 24) FROM generate_series(3501, 3700) AS g;
ROLLBACK;
DELETE FROM refined WHERE id % 3 = 0;
SELECT pg_temp.inexact('refined', '<->', 24, 50, 10);
VACUUM refined;
SELECT pg_temp.inexact('refined', '<->', 24, 50, 10);
SELECT count(*) FROM refined;
SELECT * FROM pg_temp.reached('refined', 24);
SELECT * FROM gpuvec_verify_index('refined_e');
DELETE FROM refined;
VACUUM refined;
SELECT rows, pending, dead FROM gpuvec_index_info('refined_e');
SELECT id FROM refined ORDER BY e <-> pg_temp.point(5, 24) LIMIT 1;
SELECT * FROM gpuvec_verify_index('refined_e');
INSERT INTO refined SELECT g, pg_temp.point(g * 3, 24) FROM generate_series(1, 3000) AS g;
DELETE FROM refined WHERE id % 2 = 0;
VACUUM refined;
INSERT INTO refined SELECT g, pg_temp.point(g * 7, 24) FROM generate_series(4001, 5500) AS g;
SELECT pg_temp.inexact('refined', '<->', 24, 50, 10);
SELECT * FROM pg_temp.reached('refined', 24);
SELECT * FROM gpuvec_verify_index('refined_e');
SELECT pg_relation_size('refined_e') < 1.6 * :bytes AS space_used_again;

-- REINDEX takes a changed option
ALTER INDEX refined_e SET (refine = none);
SELECT pg_temp.inexact('refined', '<->', 24, 50, 3);
REINDEX INDEX refined_e;
SELECT pg_temp.inexact('refined', '<->', 24, 50, 3);
ALTER INDEX refined_e SET (refine = sq8);
INSERT INTO refined VALUES (9001, pg_temp.point(9001, 24));
REINDEX INDEX CONCURRENTLY refined_e;
SELECT pg_temp.inexact('refined', '<->', 24, 50, 3);
SELECT * FROM gpuvec_verify_index('refined_e');
DROP INDEX refined_e;

-- a query that scaling makes 0, which long rows multiply: none is bounded
CREATE TABLE longest (id int, e real[]);
INSERT INTO longest SELECT g, ARRAY[100 + g % 900, g % 700, g % 500, g % 300] FROM generate_series(1, 3000) AS g;
CREATE INDEX longest_e ON longest USING gpuivfpq (e real_ip_ops) WITH (lists = 20, refine = sq8, spill = 0);
INSERT INTO longest VALUES (4001, '{1e14,0,0,0}');
INSERT INTO longest SELECT g + 5000, e FROM generate_series(1, 1000) AS g JOIN longest ON id = g;
INSERT INTO longest VALUES (4002, '{1e15,0,0,0}');
SET gpuvec.probes = 1000;
SET gpuvec.candidates = 5000;
SELECT id FROM longest ORDER BY e <#> '{1.4e-45,0,0,0}' LIMIT 2;
SELECT r.id FROM gpuvec_search('longest_e', '{{1.4e-45,0,0,0}}', 2) AS s JOIN longest AS r ON r.ctid = s.tid
ORDER BY s.distance;
RESET gpuvec.probes;
RESET gpuvec.candidates;
DROP TABLE longest;

-- values that quantize badly: bounds say little, answers stay exact
TRUNCATE refined;
INSERT INTO refined SELECT g, pg_temp.point(g, 24) FROM generate_series(1, 1200) AS g;
INSERT INTO refined SELECT 2000 + g, array_fill(g::real, ARRAY[24]) FROM generate_series(1, 20) AS g;
INSERT INTO refined SELECT 3000 + g, array_fill(1e-30::real * g, ARRAY[24]) FROM generate_series(1, 20) AS g;
INSERT INTO refined SELECT 4000 + g, array_fill(1e30::real * g, ARRAY[23]) || -g::real FROM generate_series(1, 20) AS g;
INSERT INTO refined SELECT 5000 + g, array_fill(1::real, ARRAY[24]) FROM generate_series(1, 20) AS g;
CREATE INDEX refined_l2 ON refined USING gpuivfpq (e) WITH (lists = 10, refine = sq8);
CREATE INDEX refined_ip ON refined USING gpuivfpq (e real_ip_ops) WITH (lists = 10, refine = sq8);
CREATE INDEX refined_cosine ON refined USING gpuivfpq (e real_cosine_ops) WITH (lists = 10, refine = sq8);
CREATE FUNCTION pg_temp.same(operator text, query real[]) RETURNS bool
LANGUAGE plpgsql SET gpuvec.probes = 10 SET gpuvec.candidates = 5000 AS $$
DECLARE
	same bool;
BEGIN
	EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e %1$s %2$L AS d
			FROM refined ORDER BY e %1$s %2$L LIMIT 1280) AS x)
		IS NOT DISTINCT FROM (SELECT array_agg(d) FROM (SELECT (e %1$s %2$L) + 0 AS d
			FROM refined ORDER BY 1) AS y)', operator, query) INTO same;
	RETURN same;
END
$$;
SELECT o, q, pg_temp.same(o, e) FROM unnest(ARRAY['<->', '<#>', '<=>']) AS o,
	(VALUES ('point', pg_temp.point(3, 24)), ('constant', array_fill(5::real, ARRAY[24])),
		('tiny', array_fill(3e-30::real, ARRAY[24])), ('huge', array_fill(2e30::real, ARRAY[24])),
		('largest', array_fill(3e38::real, ARRAY[24]))) AS v (q, e);
SELECT relname, v.* FROM pg_class, gpuvec_verify_index(oid) AS v WHERE relname LIKE 'refined\_%';
DROP TABLE refined;

-- few rows are fetched, whatever the number of candidates: 1,035 dimensions
-- out of line take many pages a row
CREATE TABLE far (id int, e real[]) WITH (autovacuum_enabled = off);
ALTER TABLE far ALTER e SET STORAGE EXTERNAL;
INSERT INTO far SELECT g, pg_temp.point(g, 24) || array_fill(g::real / 800, ARRAY[1011])
FROM generate_series(1, 800) AS g;
CREATE FUNCTION pg_temp.buffers(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF, FORMAT JSON) ' || query INTO plan;
	RETURN (plan->0->'Plan'->>'Shared Hit Blocks')::bigint + (plan->0->'Plan'->>'Shared Read Blocks')::bigint;
END
$$;
SELECT e AS q FROM far WHERE id = 777 \gset
SET gpuvec.candidates = 400;
CREATE INDEX far_e ON far USING gpuivfpq (e) WITH (lists = 15, probes = 15, refine = none);
SELECT id FROM far ORDER BY e <-> :'q' LIMIT 3;
SELECT pg_temp.buffers(format('SELECT id FROM far ORDER BY e <-> %L LIMIT 10', :'q')) AS without \gset
DROP INDEX far_e;
CREATE INDEX far_e ON far USING gpuivfpq (e) WITH (lists = 15, probes = 15, refine = sq8);
SELECT id FROM far ORDER BY e <-> :'q' LIMIT 3;
SELECT pg_temp.buffers(format('SELECT id FROM far ORDER BY e <-> %L LIMIT 10', :'q')) AS with \gset
SELECT 2 * :with < :without AS fewer_pages;
SELECT id FROM far ORDER BY e <-> :'q' LIMIT 10 \g /dev/null
SELECT candidates, refined, reranked < 20 AS few, returned FROM gpuvec_last_scan();
SELECT * FROM gpuvec_verify_index('far_e');
-- and the planner knows
CREATE INDEX far_dear ON far USING gpuivfpq (e) WITH (lists = 15, probes = 15, refine = none);
VACUUM ANALYZE far;
CREATE FUNCTION pg_temp.plan(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
	RETURN plan->0->'Plan'->'Plans'->0->>'Index Name';
END
$$;
SELECT pg_temp.plan(format('SELECT id FROM far ORDER BY e <-> %L LIMIT 10', :'q'));
SET gpuvec.candidates = 12;
SELECT pg_temp.plan(format('SELECT id FROM far ORDER BY e <-> %L LIMIT 10', :'q'));
RESET gpuvec.candidates;
DROP TABLE far;

-- blocks of two pages; one record a page
CREATE TABLE wide (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO wide SELECT g, pg_temp.point(g, 8) || array_fill(g::real, ARRAY[5992])
FROM generate_series(1, 100) AS g;
CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 4, pq_dim = 984, refine = sq8);
SELECT pg_relation_size('wide_e') AS bytes \gset
DELETE FROM wide WHERE id % 2 = 0;
VACUUM wide;
INSERT INTO wide SELECT g, pg_temp.point(g, 8) || array_fill(g::real, ARRAY[5992])
FROM generate_series(101, 150) AS g;
SELECT id FROM wide ORDER BY e <-> (SELECT e FROM wide WHERE id = 111) LIMIT 3;
SELECT * FROM pg_temp.reached('wide', 6000);
SELECT * FROM gpuvec_verify_index('wide_e');
SELECT pg_relation_size('wide_e') < 1.2 * :bytes AS space_used_again;
DROP TABLE wide;

-- temporary and unlogged tables
CREATE TEMP TABLE gone (id int, e real[]);
CREATE INDEX gone_e ON gone USING gpuivfpq (e) WITH (lists = 3, refine = sq8);
INSERT INTO gone SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 500) AS g;
REINDEX INDEX gone_e;
INSERT INTO gone SELECT g, pg_temp.point(g, 8) FROM generate_series(501, 1000) AS g;
DELETE FROM gone WHERE id % 2 = 0;
VACUUM gone;
INSERT INTO gone SELECT g, pg_temp.point(g, 8) FROM generate_series(1001, 1500) AS g;
SELECT pg_temp.inexact('gone', '<->', 8, 50, 5);
SELECT * FROM gpuvec_verify_index('gone_e');
DROP TABLE gone;
CREATE UNLOGGED TABLE gone (id int, e real[]);
CREATE INDEX gone_e ON gone USING gpuivfpq (e) WITH (lists = 3, refine = sq8);
INSERT INTO gone SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 100) AS g;
SELECT * FROM gpuvec_verify_index('gone_e');
DROP TABLE gone;
