-- Searches under conditions that the keys of an index answer: which plans, which
-- rows, and what becomes of what the keys do not answer.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE TABLE items (id int PRIMARY KEY, tenant int, size bigint, active boolean,
	name text, free int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO items
SELECT g, g % 50, g, g % 3 = 0, 'name ' || g % 20, g / 8 % 10,
	ARRAY(SELECT hashint4(g * 8 + d) % 1000 FROM generate_series(1, 8) AS d)
FROM generate_series(1, 2000) AS g;
UPDATE items SET tenant = NULL WHERE id % 100 = 0;
UPDATE items SET v = NULL WHERE id % 1000 = 7;
CREATE INDEX items_v ON items
	USING gpuivfpq (v, tenant, size, active, name) WITH (lists = 40);
VACUUM ANALYZE items;
SET enable_sort = off;
SET enable_bitmapscan = off;

-- plans: the same on every version
CREATE FUNCTION plan(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
		CONTINUE WHEN line ~ 'Order By|Limit|Recall';
		RETURN NEXT regexp_replace(line, '''\{[0-9,]{12,}\}''', '''{..}''');
	END LOOP;
END $$;
CREATE FUNCTION plan_of(condition text) RETURNS SETOF text LANGUAGE sql AS $$
SELECT plan('SELECT id FROM items WHERE ' || condition ||
	' ORDER BY v <-> ''{1,2,3,4,5,6,7,8}'' LIMIT 5')
$$;
SELECT plan_of('tenant = 7');
SELECT plan_of('7 < tenant AND tenant <= 9');
SELECT plan_of('tenant IN (7, 8)');
SELECT plan_of('active');
SELECT plan_of('NOT active');
SELECT plan_of('active IS TRUE AND tenant = ANY (''{1,2}'')');
SELECT plan_of('tenant = 7::bigint AND size < 3000::smallint');
SELECT plan_of('tenant IS NULL');
SELECT plan_of('tenant IS NOT NULL AND v IS NOT NULL');
SELECT plan_of('tenant = 7 AND free = 3 AND name = ''name 7''');
SELECT plan_of('tenant = 7 OR size = 9');
SELECT plan_of('tenant = 7 AND v <-> ''{1,2,3,4,5,6,7,8}'' < 900');
SELECT plan('SELECT id FROM items WHERE tenant IN (7, 8) ORDER BY
	v <-> ''{1,2,3,4,5,6,7,8}'', id LIMIT 5');

-- an index without keys is cheaper by the conditions that core finds
CREATE INDEX items_plain ON items USING gpuivfpq (v) WITH (lists = 40);
SET gpuvec.enable_custom_scan = off;
SELECT plan_of('tenant IN (7, 8)');
SELECT plan_of('active');
SELECT plan_of('free = 3');
RESET gpuvec.enable_custom_scan;
DROP INDEX items_plain;

-- parameters, of another width, too; rows of others in a join
SET plan_cache_mode = force_generic_plan;
PREPARE by_tenant(bigint, real[]) AS
	SELECT id FROM items WHERE tenant = $1 ORDER BY v <-> $2 LIMIT 3;
EXPLAIN (COSTS OFF) EXECUTE by_tenant(7, '{1,2,3,4,5,6,7,8}');
PREPARE by_tenants(int[], real[]) AS
	SELECT id FROM items WHERE tenant = ANY ($1) ORDER BY v <-> $2 LIMIT 3;
EXPLAIN (COSTS OFF) EXECUTE by_tenants('{7}', '{1,2,3,4,5,6,7,8}');
EXPLAIN (COSTS OFF)
SELECT a.id, b.id FROM (VALUES (1, 7), (2, 8)) AS a (id, tenant), LATERAL (
	SELECT id FROM items WHERE tenant = a.tenant
	ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 2) AS b;

-- not without ORDER BY, nor for rows that the index has not, nor inside of a
-- join, which would want all rows that match
SET enable_seqscan = on;
SET enable_sort = on;
SELECT plan('SELECT id FROM items WHERE tenant = 7');
SELECT plan_of('v IS NULL');
SELECT plan('SELECT a.id FROM items a JOIN items b ON b.tenant = a.id
	WHERE a.id = 7 ORDER BY b.v <-> ''{1,2,3,4,5,6,7,8}''');
SET enable_seqscan = off;
SET enable_sort = off;

-- rows: those of a sort, at recall 1
CREATE FUNCTION asked(condition text, n int, shown text DEFAULT '')
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	wrong int = 0;
	nrows int = 0;
	query text;
	found text;
	sorted text;
	statement text = 'SELECT string_agg(id || '' '' || d, '','' ORDER BY d, id)
		FROM (SELECT id, v <-> %L AS d FROM items WHERE %s
			ORDER BY v <-> %L LIMIT %s) AS s';
BEGIN
	FOR i IN 1..2 LOOP
		SELECT v::text INTO query FROM items WHERE id = i * 731;
		EXECUTE format(statement, query, condition, query, n) INTO found;
		SET LOCAL enable_indexscan = off;
		EXECUTE format(statement, query, condition, query, n) INTO sorted;
		SET LOCAL enable_indexscan = on;
		wrong = wrong + (found IS DISTINCT FROM sorted)::int;
		nrows = nrows + coalesce(cardinality(string_to_array(sorted, ',')), 0);
	END LOOP;
	RETURN format('%s wrong, %s rows', wrong, nrows);
END $$;
CREATE TABLE conditions (number int, condition text);
INSERT INTO conditions VALUES
	(1, 'tenant = 7'), (2, 'tenant IN (7, 8, NULL, 99)'), (3, 'active'),
	(4, 'tenant IS NULL'), (5, 'tenant IS NULL AND NOT active'),
	(6, 'size < 500 AND tenant > 10'), (7, 'size BETWEEN 50 AND 60'),
	(8, 'tenant = 7 AND free = 3'), (9, 'name = ''name 7'' AND tenant = 7'),
	(10, 'size > 9223372036854775806'), (11, 'tenant = 7 AND tenant = 8'),
	(12, 'tenant < NULL'), (13, 'tenant > 40 AND free = 3 AND random() >= 0'),
	(14, 'tenant = 7 AND v <-> ''{1,2,3,4,5,6,7,8}'' < 1500'),
	(15, 'v IS NOT NULL AND tenant IS NOT NULL AND size <= 900');
SET gpuvec.recall = 1;
SELECT number, condition, asked(condition, 10), asked(condition, 100000)
FROM conditions ORDER BY number;
RESET gpuvec.recall;

-- all lists are read: nothing is missing
SET gpuvec.probes = 40;
SET gpuvec.scan_order = relaxed;
SELECT number, asked(condition, 100000) FROM conditions ORDER BY number;
RESET gpuvec.probes;

-- the searches that few rows fulfill end in one pass over the lists, by the
-- session's engine (gpuvecd reads lists again)
SET gpuvec.engine = cpu;
SELECT count(*) FROM (SELECT id FROM items WHERE size BETWEEN 50 AND 52
	ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10) AS s;
SELECT batches, lists, postings > 2000 AS all_postings, reranked, returned, full_pass
FROM gpuvec_last_scan();
-- none fulfills: nothing is read
SELECT count(*) FROM (SELECT id FROM items WHERE size < 9 AND size > 10
	ORDER BY v <-> '{1,2,3,4,5,6,7,8}' LIMIT 10) AS s;
SELECT batches, lists, postings, reranked FROM gpuvec_last_scan();
RESET gpuvec.scan_order;

-- no more lists than may be
SET gpuvec.max_probes = 10;
SELECT count(*) < 38 AS few FROM (SELECT id FROM items WHERE tenant = 7
	ORDER BY v <-> '{1,2,3,4,5,6,7,8}') AS s;
SELECT lists <= 10 * batches AS few FROM gpuvec_last_scan();
SELECT count(*) < 116 AS few, bool_and(free = 3 AND tenant > 20) AS right FROM (
	SELECT free, tenant FROM items WHERE tenant > 20 AND free = 3
	ORDER BY v <-> '{1,2,3,4,5,6,7,8}') AS s;
SELECT lists <= 10 * batches AS few FROM gpuvec_last_scan();
RESET gpuvec.max_probes;
RESET gpuvec.engine;

-- a NULL query, and one of rows that were changed, moved and deleted
SET gpuvec.recall = 1;
SELECT count(*), bool_and(tenant = 7) FROM (SELECT tenant FROM items
	WHERE tenant = 7 ORDER BY v <-> NULL::real[]) AS s;
SELECT count(*), bool_and(tenant = 7 AND free = 3) FROM (SELECT tenant, free
	FROM items WHERE tenant = 7 AND free = 3 ORDER BY v <-> NULL::real[]) AS s;
UPDATE items SET tenant = 7 WHERE tenant = 8;
UPDATE items SET tenant = 9 WHERE id % 300 = 57;
UPDATE items SET free = free + 1 WHERE id % 2 = 0;
DELETE FROM items WHERE id % 7 = 0;
SELECT number, asked(condition, 100000) FROM conditions ORDER BY number;
VACUUM items;
SELECT number, asked(condition, 100000) FROM conditions ORDER BY number;

-- with refine records, which name rows
DROP INDEX items_v;
CREATE INDEX items_v ON items
	USING gpuivfpq (v, tenant, size, active, name)
	WITH (lists = 40, refine = sq8);
SELECT number, asked(condition, 10), asked(condition, 100000)
FROM conditions ORDER BY number;
SET gpuvec.recall = .95;
SET gpuvec.probes = 40;
SELECT number, asked(condition, 20) FROM conditions
WHERE number IN (1, 4, 8, 9, 14) ORDER BY number;
RESET gpuvec.probes;
SET gpuvec.recall = 1;

-- not trained: all rows are pending, and have no images
DROP INDEX items_v;
CREATE TEMP TABLE kept AS SELECT * FROM items;
TRUNCATE items;
CREATE INDEX items_v ON items USING gpuivfpq (v, tenant, size, active, name)
	WITH (dims = 8);
INSERT INTO items SELECT * FROM kept;
SELECT lists, pending FROM gpuvec_index_info('items_v');
ANALYZE items;
SELECT number, asked(condition, 100000) FROM conditions ORDER BY number;

-- an expression as a key, and an index of some rows
DROP INDEX items_v;
CREATE INDEX items_v ON items USING gpuivfpq (v, (tenant % 10), upper(name))
	WITH (lists = 40) WHERE active;
ANALYZE items;
SELECT plan_of('active AND tenant % 10 = 3 AND upper(name) = ''NAME 3''');
SELECT asked('active AND tenant % 10 = 3', 10),
	asked('active AND upper(name) = ''NAME 3''', 100000),
	asked('active AND tenant % 10 = 3 AND free = 3', 100000);

DROP TABLE items, conditions;
DROP FUNCTION plan_of(text), plan(text), asked(text, int, text);

-- a dead row among the best, of keys that are rechecked, takes no batch more
CREATE TABLE named (id int, name text, e real[]) WITH (autovacuum_enabled = off);
RESET gpuvec.recall;
INSERT INTO named SELECT g, 'name ' || g % 2, pg_temp.point(g, 8) FROM generate_series(1, 4000) AS g;
CREATE INDEX named_e ON named USING gpuivfpq (e, name);
CREATE FUNCTION pg_temp.nearest(OUT ids int[], OUT batches int) LANGUAGE plpgsql AS $$
BEGIN
	ids = ARRAY(SELECT id FROM named WHERE name = 'name 1' ORDER BY e <-> pg_temp.point(1, 8) LIMIT 10);
	SELECT s.batches FROM gpuvec_last_scan() AS s INTO batches;
END
$$;
SELECT ids[4] AS fourth FROM pg_temp.nearest() \gset
DELETE FROM named WHERE id = :fourth;
SELECT cardinality(ids) AS found, :fourth = ANY (ids) AS dead, batches FROM pg_temp.nearest();
DROP TABLE named;
