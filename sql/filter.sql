-- ORDER BY distance under conditions: which plans have the custom scan, what it
-- asks of conditions, and what EXPLAIN tells
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
\i :srcdir/sql/include/plan_of.sql
SET enable_sort = off;
-- a plan's scans and what they ask, in all versions alike
CREATE FUNCTION pg_temp.scans_of(query text) RETURNS SETOF text
LANGUAGE sql AS $$
	-- PostgreSQL 19 says what a Result stands for, and names subplans otherwise
	SELECT regexp_replace(regexp_replace(line, '^ *(-> *)?', ''), 'SubPlan expr_', 'SubPlan ')
	FROM pg_temp.plan_of(query) AS line WHERE line ~ 'Scan|Filter' AND line !~ 'Replaces:'
$$;
-- what EXPLAIN ANALYZE tells, but for how much a batch reads
CREATE FUNCTION pg_temp.told_of(query text) RETURNS SETOF text
LANGUAGE plpgsql SET gpuvec.engine = cpu AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) ' || query LOOP
		IF line NOT LIKE '%Index Searches:%' THEN
			line = regexp_replace(line, 'rows=(\d+)\.\d+', 'rows=\1');
			RETURN NEXT regexp_replace(line, '(Lists Read|Postings Read|Removed by Filter): \d+', '\1: N');
		END IF;
	END LOOP;
END
$$;

CREATE TABLE item (id int, tenant int, kind int, note text, e real[]);
INSERT INTO item SELECT g, g % 50, g % 2, 'note ' || g, pg_temp.point(g, 4)
FROM generate_series(1, 3000) AS g;
CREATE INDEX item_e ON item USING gpuivfpq (e) WITH (lists = 20);
ANALYZE item;

-- a condition: the custom scan; none, or the setting: the index scan
SELECT pg_temp.plan_of($$SELECT id FROM item WHERE tenant = 7 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
SELECT pg_temp.plan_of($$SELECT id FROM item ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
SELECT pg_temp.plan_of($$SELECT id FROM item WHERE 1 = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
SET gpuvec.enable_custom_scan = off;
SELECT pg_temp.plan_of($$SELECT id FROM item WHERE tenant = 7 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
RESET gpuvec.enable_custom_scan;
-- no order: nothing for the index
SET enable_seqscan = on;
SELECT pg_temp.plan_of('SELECT id FROM item WHERE tenant = 7 LIMIT 10');
SET enable_seqscan = off;
-- a condition of a join is none of the relation
CREATE TABLE tenant (id int, name text);
INSERT INTO tenant SELECT g, 'tenant ' || g FROM generate_series(0, 49) AS g;
CREATE INDEX tenant_id ON tenant (id);
SELECT pg_temp.plan_of($$SELECT item.id FROM item JOIN tenant ON tenant.id = item.tenant
	ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
SELECT pg_temp.plan_of($$SELECT item.id FROM item JOIN tenant ON tenant.id = item.tenant
	WHERE kind = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);

-- the index scan below has the condition no more; the distance is a column
EXPLAIN (VERBOSE, COSTS OFF) SELECT id, e <-> '{1,2,3,4}' FROM item WHERE tenant = 7
ORDER BY e <-> '{1,2,3,4}' LIMIT 10;
EXPLAIN (VERBOSE, COSTS OFF) SELECT item, (e <-> '{1,2,3,4}') + 1, ctid FROM item WHERE item IS NOT NULL
ORDER BY e <-> '{1,2,3,4}' LIMIT 10;
EXPLAIN (VERBOSE, COSTS OFF) SELECT 1 FROM item WHERE tenant = 7 ORDER BY e <-> '{1,2,3,4}' LIMIT 10;

-- where rows are locked, and where others are changed
EXPLAIN (VERBOSE, COSTS OFF) SELECT id, e <-> '{1,2,3,4}' FROM item WHERE tenant = 7
ORDER BY e <-> '{1,2,3,4}' LIMIT 10 FOR UPDATE;
SELECT pg_temp.scans_of($$UPDATE item SET note = 'new' FROM (SELECT id, e <-> '{1,2,3,4}' AS d FROM item
	WHERE tenant = 7 ORDER BY e <-> '{1,2,3,4}' LIMIT 2) AS x WHERE x.id = item.id$$);
SELECT pg_temp.scans_of($$DELETE FROM item WHERE ctid = ANY (ARRAY(SELECT ctid FROM item
	WHERE tenant = 7 ORDER BY e <-> '{1,2,3,4}' LIMIT 2))$$);

-- parameters, values that are known when the statement runs, rows beside
PREPARE near(real[], int) AS SELECT id FROM item WHERE tenant = $2 ORDER BY e <-> $1 LIMIT 3;
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE near('{1,2,3,4}', 7);
EXECUTE near('{1,2,3,4}', 7);
EXECUTE near(NULL, -1);
-- a plan that is kept follows the indexes that there are
CREATE INDEX item_tenant ON item (tenant);
SELECT pg_temp.scans_of($$EXECUTE near('{1,2,3,4}', 7)$$);
EXECUTE near('{1,2,3,4}', 7);
DROP INDEX item_tenant;
SELECT pg_temp.scans_of($$EXECUTE near('{1,2,3,4}', 7)$$);
EXECUTE near('{1,2,3,4}', 7);
BEGIN;
DROP INDEX item_e;
EXECUTE near('{1,2,3,4}', 7);
ROLLBACK;
RESET plan_cache_mode;
EXECUTE near('{1,2,3,4}', 7);
SELECT line FROM pg_temp.scans_of($$SELECT id FROM item WHERE tenant = (SELECT min(id) FROM tenant)
	ORDER BY e <-> (SELECT e FROM item WHERE id = 1) LIMIT 10$$) AS line WHERE line ~ 'Scan.* item';
SELECT pg_temp.plan_of($$SELECT * FROM tenant, LATERAL (SELECT item.id FROM item
	WHERE tenant = tenant.id ORDER BY e <-> ARRAY[tenant.id,0,0,0] LIMIT 2) AS x$$);
SELECT line FROM pg_temp.scans_of($$SELECT id FROM item WHERE (SELECT count(*) FROM tenant WHERE tenant.id < kind) > 0
	ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$) AS line WHERE line ~ 'Filter| item';
SELECT pg_temp.scans_of($$SELECT id FROM item WHERE false ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);

-- parts are scanned, the whole is not
CREATE TABLE parts (id int, tenant int, e real[]) PARTITION BY LIST (tenant);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (0, 1);
CREATE TABLE parts2 PARTITION OF parts DEFAULT;
INSERT INTO parts SELECT id, tenant, e FROM item;
CREATE INDEX parts_e ON parts USING gpuivfpq (e) WITH (train_rows = 100000);
ANALYZE parts;
SELECT pg_temp.plan_of($$SELECT id FROM parts WHERE id % 3 = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
SELECT pg_temp.plan_of($$SELECT id FROM parts WHERE tenant = 1 AND id % 3 = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
-- a partition without a condition of its own left
SELECT pg_temp.plan_of($$SELECT id FROM parts WHERE tenant IN (0, 1) ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);

-- volatile conditions run for rows as these come up, and no more of them
CREATE SEQUENCE asked;
SELECT id FROM item WHERE tenant < 25 AND nextval('asked') > 0 ORDER BY e <-> '{1,2,3,4}' LIMIT 5;
SELECT last_value FROM asked;
SELECT setval('asked', 1, false);
SELECT id FROM item WHERE tenant < 25 AND nextval('asked') % 3 = 0 ORDER BY e <-> '{1,2,3,4}' LIMIT 5;
SELECT last_value FROM asked;
SET gpuvec.recall = 1;
SELECT count(*) FROM (SELECT id FROM item WHERE tenant < 25 AND nextval('asked') % 3 = 0 ORDER BY e <-> '{1,2,3,4}') AS x;
SELECT last_value FROM asked;
RESET gpuvec.recall;
-- so do expensive ones
CREATE FUNCTION dear(id int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE COST 10000
AS $$ BEGIN PERFORM nextval('asked'); RETURN id % 2 = 0; END $$;
SELECT setval('asked', 1, false);
SELECT id FROM item WHERE dear(id) AND tenant < 25 ORDER BY e <-> '{1,2,3,4}' LIMIT 5;
SELECT last_value < 20 AS few FROM asked;
-- and sub-selects
CREATE FUNCTION cheap(id int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE COST 1
AS $$ BEGIN PERFORM nextval('asked'); RETURN true; END $$;
SELECT setval('asked', 1, false);
SELECT id FROM item WHERE tenant < 25 AND (SELECT cheap(tenant.id) FROM tenant WHERE tenant.id = item.tenant)
ORDER BY e <-> '{1,2,3,4}' LIMIT 5;
SELECT last_value < 20 AS few FROM asked;
-- a row that is refused makes none late, however far it is
CREATE TABLE tied AS SELECT pg_temp.numbers(g, 4, 3) AS e FROM generate_series(1, 4000) AS g;
CREATE INDEX tied_e ON tied USING gpuivfpq (e) WITH (lists = 1, pq_dim = 1);
ANALYZE tied;
SET gpuvec.candidates = 10;
SELECT count(*) FROM (SELECT FROM tied WHERE round((e <-> '{1,2,3,0}') ^ 2) = 3 ORDER BY e <-> '{1,2,3,0}') AS x;
SELECT batches > 0 AND out_of_order > 0 AS out_of_order FROM gpuvec_last_scan();
RESET gpuvec.candidates;
SELECT count(*) FROM tied WHERE round((e <-> '{1,2,3,0}') ^ 2) = 3;
-- the row that a cursor is at
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM item WHERE tenant = 7 ORDER BY e <-> '{1,2,3,4}';
FETCH 2 FROM c;
UPDATE item SET note = 'here' WHERE CURRENT OF c RETURNING id, note;
ROLLBACK;

-- conditions are asked in the plan's order: one that fails where another has not
-- passed, in front of which there is one that waits
CREATE FUNCTION guards(tenant int) RETURNS boolean LANGUAGE plpgsql VOLATILE COST 1
AS $$ BEGIN RETURN tenant < 25; END $$;
CREATE FUNCTION fails(tenant int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RETURN 1 / (tenant < 25)::int = 1; END $$;
SELECT id FROM item WHERE guards(tenant) AND fails(tenant) ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
SELECT id FROM item WHERE e <-> '{1,2,3,4}' < 13 AND 1 / (e <-> '{1,2,3,4}' < 13)::int = kind
ORDER BY e <-> '{1,2,3,4}' LIMIT 3;

-- a relation without rows, and one whose columns depend on a row beside, have
-- no path of ours for the first of several keys either
SELECT id FROM item WHERE false ORDER BY e <-> '{1,2,3,4}', id LIMIT 3;
SELECT t.id, x.id, x.sum FROM tenant AS t
	LEFT JOIN LATERAL (SELECT id, e, coalesce(kind + t.id, 0) AS sum FROM item WHERE tenant = 7) AS x ON true
WHERE t.id < 3 ORDER BY x.e <-> '{1,2,3,4}', x.id, t.id LIMIT 6;

-- what a policy hides no other condition sees, however cheap
CREATE ROLE regress_gpuvec_filtered;
CREATE FUNCTION tells(tenant int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE COST 0.0001
AS $$ BEGIN RAISE NOTICE 'tenant %', tenant; RETURN true; END $$;
GRANT SELECT ON item, parts TO regress_gpuvec_filtered;
ALTER TABLE item ENABLE ROW LEVEL SECURITY;
ALTER TABLE parts ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON item TO regress_gpuvec_filtered USING (tenant = 7);
CREATE POLICY own ON parts TO regress_gpuvec_filtered USING (tenant = 7);
SET ROLE regress_gpuvec_filtered;
EXPLAIN (COSTS OFF) SELECT id FROM item WHERE tells(tenant) AND kind = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
RESET client_min_messages;
SELECT id FROM item WHERE tells(tenant) AND kind = 1 AND id < 250 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
SELECT id FROM parts WHERE tells(tenant) AND id % 2 = 1 AND id < 250 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
SET gpuvec.recall = 1;
SELECT count(*) FROM (SELECT id FROM item WHERE id < 250 AND tells(tenant) ORDER BY e <-> '{1,2,3,4}') AS x;
RESET gpuvec.recall;
-- nor where the policy is asked late: because it is dear, or on the distance
RESET ROLE;
CREATE FUNCTION even(id int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE COST 10000
AS $$ BEGIN RETURN id % 2 = 0; END $$;
ALTER POLICY own ON item USING (even(tenant));
SET ROLE regress_gpuvec_filtered;
SELECT id FROM item WHERE tells(tenant) AND id < 250 ORDER BY e <-> '{1,2,3,4}' LIMIT 2;
RESET ROLE;
ALTER POLICY own ON item USING (e <-> '{1,2,3,4}' < 11.45);
SET ROLE regress_gpuvec_filtered;
SELECT id FROM item WHERE tells(tenant) AND id < 250 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
RESET ROLE;
ALTER POLICY own ON item USING (tenant = 7);
SET ROLE regress_gpuvec_filtered;
SET client_min_messages = warning;
-- of hidden rows EXPLAIN tells nothing
SELECT pg_temp.told_of($$SELECT id FROM item WHERE kind = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 3$$);
RESET ROLE;
ALTER TABLE item DISABLE ROW LEVEL SECURITY;

-- an index of some rows has nothing to do with the others, where it is asked
-- late whether these match, either
CREATE FUNCTION kind_of(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN $1 % 2; END';
CREATE TABLE mixed AS SELECT id, CASE kind WHEN 1 THEN e ELSE '{1,2}' END AS e FROM item;
CREATE INDEX mixed_e ON mixed USING gpuivfpq (e) WITH (lists = 20) WHERE kind_of(id) = 1;
SELECT pg_temp.scans_of($$SELECT id FROM mixed WHERE kind_of(id) = 1 AND id % 50 < 8 ORDER BY e <-> '{1,2,3,4}'$$);
SET gpuvec.recall = 1;
SELECT id FROM mixed WHERE kind_of(id) = 1 AND id % 50 < 8 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
RESET gpuvec.recall;

-- what EXPLAIN ANALYZE tells of batches, of a pass, of another index
SELECT line FROM pg_temp.told_of($$SELECT id FROM item WHERE kind = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$) AS line
WHERE line NOT LIKE '%Reranked%';
SET gpuvec.recall = 1;
SELECT pg_temp.told_of($$SELECT id FROM item WHERE kind = 1 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
RESET gpuvec.recall;
SELECT pg_temp.told_of($$SELECT id FROM item WHERE note LIKE '%no such%' ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
CREATE INDEX item_tenant ON item (tenant);
SELECT pg_temp.told_of($$SELECT id FROM item WHERE tenant = 49 ORDER BY e <-> '{1,2,3,4}' LIMIT 10$$);
-- the other index is read anew by each run
SELECT n, x.id FROM generate_series(1, 3) AS n,
	LATERAL (SELECT id FROM item WHERE tenant = 49 ORDER BY e <-> ARRAY[n,2,3,4]::real[] LIMIT 2) AS x;

-- a pass over the whole table is told apart from rows that keys or another index named
CREATE FUNCTION pg_temp.ends(condition text, OUT rest text, OUT full_pass bool) LANGUAGE plpgsql AS $$
DECLARE
	line text;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS off, TIMING off) SELECT id FROM rested WHERE ' || condition ||
		' ORDER BY e <-> array_fill(1::real, ARRAY[8]) LIMIT 10'
	LOOP
		rest = coalesce(substring(line FROM 'Rows From: (.*)'), rest);
	END LOOP;
	SELECT s.full_pass FROM gpuvec_last_scan() AS s INTO full_pass;
END
$$;
CREATE TABLE rested AS SELECT g AS id, hashint4(g) & 4095 AS part, hashint4(g) & 1023 AS size,
	ARRAY(SELECT random() FROM generate_series(1, 8) WHERE g = g)::real[] AS e
FROM generate_series(1, 40000) AS g;
CREATE INDEX rested_e ON rested USING gpuivfpq (e);
CREATE INDEX ON rested (part);
VACUUM ANALYZE rested;
SET enable_sort = off;
SELECT * FROM pg_temp.ends('part = 7');
RESET enable_sort;
SELECT * FROM pg_temp.ends('part + 0 = 7');
DROP INDEX rested_e;
CREATE INDEX rested_e ON rested USING gpuivfpq (e, size);
SET gpuvec.recall = 1;
-- ... of a plain index scan EXPLAIN tells from 18 on
SELECT full_pass FROM pg_temp.ends('size = 7');
SELECT * FROM pg_temp.ends('size = 7 AND part % 2 = 1');
SELECT full_pass FROM pg_temp.ends('true');
RESET gpuvec.recall;
DROP TABLE rested;

-- a partial index: its predicate is not asked again, and depths are of its rows
CREATE TABLE split AS SELECT g AS id, g % 3 AS kind, hashint4(g) & 7 AS size, pg_temp.point(g, 8, 20, 0) AS e
FROM generate_series(1, 40000) AS g;
CREATE INDEX split_e ON split USING gpuivfpq (e) WHERE kind = 1;
ANALYZE split;
SELECT pg_temp.scans_of($$SELECT id FROM split WHERE kind = 1 AND size = 1 ORDER BY e <-> '{.5,.5,.5,.5,.5,.5,.5,.5}' LIMIT 10$$);
SELECT pg_temp.scans_of($$SELECT id FROM split WHERE kind = 1 AND size = 1 ORDER BY e <-> '{.5,.5,.5,.5,.5,.5,.5,.5}' LIMIT 10 FOR UPDATE$$);
SELECT count(*) FROM (SELECT id FROM split WHERE kind = 1 AND size = 1
	ORDER BY e <-> '{.5,.5,.5,.5,.5,.5,.5,.5}' LIMIT 10) AS q;
SELECT batches, candidates < 250 AS few, full_pass FROM gpuvec_last_scan();
DROP TABLE split;
-- ... with keys: rows that come by the table, or by another index, are asked both
CREATE TABLE rested AS SELECT g AS id, g % 3 AS kind, hashint4(g) & 7 AS size, hashint4(g + 1) & 255 AS rare,
	pg_temp.point(g, 8, 20, 0) AS e FROM generate_series(1, 8000) AS g;
CREATE INDEX rested_e ON rested USING gpuivfpq (e, size) WHERE kind = 1;
CREATE INDEX ON rested (rare);
ANALYZE rested;
CREATE FUNCTION pg_temp.same(condition text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	query text = 'SELECT array_agg(id) FROM (SELECT id FROM rested WHERE ' || condition ||
		' ORDER BY e <-> array_fill(1::real, ARRAY[8]) LIMIT 20) AS q';
	here int[];
	there int[];
BEGIN
	EXECUTE query INTO here;
	SET LOCAL gpuvec.enable_custom_scan = off;
	EXECUTE query INTO there;
	SET LOCAL gpuvec.enable_custom_scan = on;
	RETURN here = there;
END
$$;
SET gpuvec.recall = 1;
SELECT rest FROM pg_temp.ends('kind = 1 AND size >= 0 AND id % 7 = 3');
SELECT pg_temp.same('kind = 1 AND size >= 0 AND id % 7 = 3');
SET enable_sort = off;
SELECT rest FROM pg_temp.ends('kind = 1 AND size < 7 AND rare = 5');
SELECT pg_temp.same('kind = 1 AND size < 7 AND rare = 5');
RESET enable_sort;
RESET gpuvec.recall;
DROP TABLE rested;

-- a query with a sub-plan
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT pg_temp.scans_of($$SELECT id FROM item WHERE tenant = 7
	ORDER BY e <-> CASE WHEN 1 IN (SELECT id FROM tenant) THEN '{1,2,3,4}'::real[] ELSE '{4,3,2,1}' END LIMIT 5$$);
SELECT array_agg(id) AS ids FROM (SELECT id FROM item WHERE tenant = 7
	ORDER BY e <-> CASE WHEN 1 IN (SELECT id FROM tenant) THEN '{1,2,3,4}'::real[] ELSE '{4,3,2,1}' END LIMIT 5) AS q \gset
SET gpuvec.enable_custom_scan = off;
SELECT array_agg(id) = :'ids' AS same FROM (SELECT id FROM item WHERE tenant = 7
	ORDER BY e <-> CASE WHEN 1 IN (SELECT id FROM tenant) THEN '{1,2,3,4}'::real[] ELSE '{4,3,2,1}' END LIMIT 5) AS q;
RESET gpuvec.enable_custom_scan;
RESET enable_bitmapscan;
RESET enable_seqscan;

-- a worker of a session that has not searched yet
\c -
SELECT set_config(name, 'on', false) FROM pg_settings
WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SET enable_seqscan = off;
SELECT id FROM item WHERE kind = 1 AND id < 250 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
-- ... is told what operators take, also where they cost nothing
SET cpu_operator_cost = 0;
SELECT id FROM item WHERE kind = 1 AND id < 250 ORDER BY e <-> '{1,2,3,4}' LIMIT 3;
RESET cpu_operator_cost;

-- a role is gone when the next run begins
DROP OWNED BY regress_gpuvec_filtered;
DROP ROLE regress_gpuvec_filtered;
DROP TABLE item, tenant, parts, tied, mixed;
DROP FUNCTION kind_of, dear, cheap, tells, even, guards, fails;
DROP SEQUENCE asked;
