-- gpuvec_doctor: why a statement does not use an index
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SET enable_seqscan = on;
-- whatever the tests are run with
SET gpuvec.simd = auto;
CREATE TABLE doc (id int PRIMARY KEY, tenant int, tag text, e real[]);
INSERT INTO doc SELECT g, g % 100, 't' || g % 7, pg_temp.point(g, 8) FROM generate_series(1, 20000) AS g;
CREATE INDEX doc_e ON doc USING gpuivfpq (e);
ANALYZE doc;
-- costs differ from server to server
CREATE FUNCTION pg_temp.ask(query text, OUT subject text, OUT state text, OUT advice text)
RETURNS SETOF record LANGUAGE sql AS $$
	SELECT subject, regexp_replace(regexp_replace(state,
			'index, about the same cost as with (.*) \((\d+)\)', 'index and \2 with \1, 1.0 times as much'),
			'cost of \d+ with (.*) and \d+ with (.*), [\d.]+ times', 'cost of N with \1 and N with \2, N times'),
		advice FROM gpuvec_doctor($1)
$$;
\pset format unaligned
\pset fieldsep '\n    '
\t on

-- used
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> ''{1,2,3,4,5,6,7,8}'' LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc WHERE tenant = 3 ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1, id LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT (SELECT id FROM doc ORDER BY e <-> o.e LIMIT 1) FROM doc AS o WHERE id < 3');
-- ... and a sub-select that only brings the query's vector
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> (SELECT e FROM doc WHERE id = 7) LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <=> (SELECT e FROM doc WHERE id = 7) LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc WHERE id < (SELECT count(*) FROM doc WHERE e <-> $1 < 3) ORDER BY id');

-- 1  another operator than the class's
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <=> $1 LIMIT 10');
-- 2  the wrong direction
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1 DESC LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1 NULLS FIRST LIMIT 10');
-- 3  an expression around the distance
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY 1 - (e <-> $1) DESC LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id, (e <-> $1)::real AS d FROM doc ORDER BY d LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY gpuvec_l2_distance(e, $1::real[]) LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY array_length(e, 1) LIMIT 10');
-- 4  no LIMIT, or one that is not known
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1 LIMIT $2');
-- 5  LIMIT asks for most of the table
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1 LIMIT 15000');
-- ... and the sub-select that brings the query's vector costs what it costs
SELECT state !~ '\d{9}' FROM gpuvec_doctor('SELECT id FROM doc ORDER BY e <-> (SELECT e FROM doc WHERE id = 7) LIMIT 15000');
-- 6  a small table
CREATE TABLE small AS SELECT * FROM doc WHERE id <= 1200;
CREATE INDEX small_e ON small USING gpuivfpq (e);
ANALYZE small;
SELECT * FROM pg_temp.ask('SELECT id FROM small ORDER BY e <-> $1 LIMIT 300');
-- 7  the column is cast, or the query is of each row
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e::float8[]::real[] <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> pg_temp.point((random() * 10)::int, 8) LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT a.id FROM doc AS a JOIN doc AS b ON b.id = 7 AND b.tenant < a.id ORDER BY a.e <-> b.e LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> NULL::real[] LIMIT 10');
-- 8  a partial index whose predicate the statement does not repeat
CREATE TABLE partial AS SELECT * FROM doc;
CREATE INDEX partial_e ON partial USING gpuivfpq (e) WHERE tenant < 50;
ANALYZE partial;
SELECT * FROM pg_temp.ask('SELECT id FROM partial ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM partial WHERE tenant < $2 ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM partial WHERE tenant < 50 ORDER BY e <-> $1 LIMIT 10');
-- 9  planner settings
SET enable_indexscan = off;
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1 LIMIT 10');
RESET enable_indexscan;
SET gpuvec.scan_order = relaxed;
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1, id LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT DISTINCT e <-> $1 AS d FROM doc ORDER BY d LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id, rank() OVER (ORDER BY e <-> $1) FROM doc LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY id, e <-> $1 LIMIT 10');
RESET gpuvec.scan_order;
-- 10  an index that is not valid
CREATE TABLE broken (id int, e real[]);
INSERT INTO broken VALUES (1, '{1,2}'), (2, '{1,2,3}');
\set VERBOSITY terse
CREATE INDEX CONCURRENTLY broken_e ON broken USING gpuivfpq (e);
\set VERBOSITY default
SELECT * FROM pg_temp.ask('SELECT id FROM broken ORDER BY e <-> $1 LIMIT 10');
-- 11  no order, or it is elsewhere
SELECT * FROM pg_temp.ask('SELECT id FROM doc WHERE tenant = 3 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc WHERE e <-> $1 < 3');
-- ... a condition on the distance that gpuvec.radius_recall does not serve
SELECT * FROM pg_temp.ask('SELECT id FROM doc WHERE e <-> $1 > 3');
SELECT * FROM pg_temp.ask('SELECT id FROM doc WHERE e <-> $1 < 3 FOR UPDATE');
-- ... or would serve at a higher cost
SET gpuvec.radius_recall = 0.99;
SELECT * FROM pg_temp.ask('SELECT EXISTS (SELECT FROM doc WHERE e <-> $1 < 3)');
RESET gpuvec.radius_recall;
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY id, e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('WITH d AS MATERIALIZED (SELECT * FROM doc) SELECT id FROM d ORDER BY e <-> $1 LIMIT 10');
-- some versions sort what the index gives in order of distance, and say more of cost
SET enable_incremental_sort = off;
SELECT subject, split_part(state, ':', 1)
FROM pg_temp.ask('SELECT DISTINCT id, e <-> $1 AS d FROM doc ORDER BY d LIMIT 10');
RESET enable_incremental_sort;
SELECT state ~ '^used|DISTINCT' FROM gpuvec_doctor('SELECT DISTINCT id, e <-> $1 AS d FROM doc ORDER BY d LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT tenant, min(e <-> $1) AS d FROM doc GROUP BY tenant ORDER BY d LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT tenant, min(e <-> $1) FROM doc GROUP BY tenant');
-- all rows are wanted, by what is selected; the index costs so much that it would
-- not be used anyway
ALTER INDEX doc_e SET (probes = 200, candidates = 1000000);
SELECT state, advice FROM unnest(ARRAY[
	'SELECT id, count(*) OVER () FROM doc ORDER BY e <-> $1 LIMIT 10',
	'SELECT id, rank() OVER (PARTITION BY tenant ORDER BY e <-> $1) FROM doc ORDER BY e <-> $1 LIMIT 10',
	'SELECT id, ntile(4) OVER (ORDER BY e <-> $1) FROM doc ORDER BY e <-> $1 LIMIT 10',
	'SELECT id, last_value(id) OVER (ORDER BY e <-> $1 ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM doc ORDER BY e <-> $1 LIMIT 10',
	'SELECT id, row_number() OVER (ORDER BY e <-> $1) FROM doc ORDER BY e <-> $1 LIMIT 10',
	'SELECT id, unnest(e) FROM doc ORDER BY e <-> $1 LIMIT 10',
	'SELECT min(e <-> $1) FROM doc']) AS query, pg_temp.ask(query);
ALTER INDEX doc_e RESET (probes, candidates);
SELECT * FROM pg_temp.ask('SELECT d.id FROM generate_series(1, 9) AS g LEFT JOIN doc AS d ON d.tenant = g ORDER BY d.e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM doc TABLESAMPLE SYSTEM (10) ORDER BY e <-> $1 LIMIT 10');
-- 12  conditions on keys that are none of the index
CREATE TABLE keyed AS SELECT * FROM doc;
CREATE INDEX keyed_e ON keyed USING gpuivfpq (e, tenant, tag);
ANALYZE keyed;
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tenant = 7 AND tag = ''t3'' ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tenant = 7.0 ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tenant::text = ''7'' AND tag > ''t3'' ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE (tenant = 7 OR tag = ''t1'') AND tenant <> id ORDER BY e <-> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tag LIKE ''t%'' AND tenant <> 3 ORDER BY e <-> $1 LIMIT 10');
-- ... and are named where another plan wins, and where joins take their place
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tenant::text = ''7'' ORDER BY e <-> $1 LIMIT 9000');
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tenant IN (SELECT tenant FROM doc WHERE id < 9) ORDER BY e <-> $1');
-- ... and where the other plan is another index's
CREATE INDEX keyed_less ON keyed USING gpuivfpq (e);
SELECT * FROM pg_temp.ask('SELECT id FROM keyed WHERE tenant::text = ''7'' ORDER BY e <-> $1 LIMIT 10') WHERE state ~ 'filter';
DROP INDEX keyed_less;
-- ... and where it costs about the same
CREATE TABLE twin AS SELECT * FROM doc;
CREATE INDEX twin_a ON twin USING gpuivfpq (e) WITH (probes = 10, candidates = 100);
CREATE INDEX twin_b ON twin USING gpuivfpq (e) WITH (probes = 10, candidates = 100);
ANALYZE twin;
SELECT count(*) FROM gpuvec_doctor('SELECT id FROM twin ORDER BY e <-> $1 LIMIT 10')
WHERE state ~ 'cost of \d+ with this index, about the same cost as with index twin_[ab] \(\d+\)$';
DROP TABLE twin;
-- 13  no index of ours, and what has nothing to do with one
CREATE TABLE bare AS SELECT * FROM doc LIMIT 10;
SELECT * FROM pg_temp.ask('SELECT id FROM bare ORDER BY e <=> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT 1');
-- operators of the same names on types that no class serves
CREATE TABLE spots (p point, e real[]);
SELECT * FROM pg_temp.ask('SELECT * FROM spots ORDER BY p <-> ''(0,0)'' LIMIT 10');
CREATE DOMAIN embedding AS real[];
ALTER TABLE spots ALTER e TYPE embedding;
SELECT * FROM pg_temp.ask('SELECT * FROM spots ORDER BY e <-> $1 LIMIT 10');
-- partitions are asked one by one
CREATE TABLE parts (id int, extra int, e real[]) PARTITION BY RANGE (id);
CREATE TABLE part_1 (e real[], gone int, id int, extra int);
ALTER TABLE part_1 DROP COLUMN gone;
ALTER TABLE parts ATTACH PARTITION part_1 FOR VALUES FROM (0) TO (10000);
CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10000) TO (20001);
INSERT INTO parts SELECT id, tenant, e FROM doc;
CREATE INDEX parts_e ON parts USING gpuivfpq (e real_cosine_ops);
ANALYZE parts;
SELECT * FROM pg_temp.ask('SELECT id FROM parts ORDER BY e <=> $1 LIMIT 10');
SELECT * FROM pg_temp.ask('SELECT id FROM parts ORDER BY e <-> $1 LIMIT 10');
-- a policy, and a function that is not in C
CREATE FUNCTION twice(real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1; END';
CREATE TABLE hidden AS SELECT * FROM doc;
CREATE INDEX hidden_e ON hidden USING gpuivfpq (twice(e)) WITH (dims = 8);
ANALYZE hidden;
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON hidden USING (tenant = 1);
CREATE ROLE regress_doctor;
GRANT SELECT ON hidden TO regress_doctor;
SET ROLE regress_doctor;
SELECT * FROM gpuvec_doctor('SELECT id FROM hidden ORDER BY twice(e) <-> $1 LIMIT 10');
-- with the rights of who asks, and of one SELECT
SELECT * FROM gpuvec_doctor('SELECT id FROM doc ORDER BY e <-> $1 LIMIT 10');
RESET ROLE;
SELECT * FROM gpuvec_doctor('DELETE FROM doc');
SELECT * FROM gpuvec_doctor('SELECT 1; SELECT 2');
SELECT * FROM gpuvec_doctor('WITH d AS (DELETE FROM doc RETURNING id) SELECT * FROM d');
SELECT * FROM gpuvec_doctor('SELECT id INTO away FROM doc');
SELECT * FROM gpuvec_doctor('EXPLAIN SELECT 1');
SELECT * FROM gpuvec_doctor('SELECT nothing FROM doc');
SELECT * FROM gpuvec_doctor(NULL);
-- it runs no statement
CREATE SEQUENCE asked;
SELECT * FROM pg_temp.ask('SELECT nextval(''asked''), id FROM doc ORDER BY e <-> $1 LIMIT 1');
SELECT is_called FROM asked;
-- nor itself
CREATE FUNCTION itself(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
	'BEGIN PERFORM gpuvec_doctor(''SELECT 1''); RETURN $1; END';
SELECT * FROM gpuvec_doctor('SELECT itself(1)');
-- nor does it tell of statements that a function plans meanwhile
CREATE FUNCTION peek(int) RETURNS int IMMUTABLE SECURITY DEFINER LANGUAGE plpgsql AS $$
DECLARE
	word text := 'a secret';
BEGIN
	PERFORM id FROM keyed WHERE tenant::text > word ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 1;
	RETURN $1;
END $$;
SELECT * FROM pg_temp.ask('SELECT peek(1)');
SELECT * FROM pg_temp.ask('SELECT id, peek(1) FROM keyed WHERE tenant = peek(1) ORDER BY e <=> $1 LIMIT 10');
-- and leaves no trace behind an error
SELECT * FROM pg_temp.ask('SELECT id FROM doc ORDER BY e <-> $1 LIMIT 10');

-- the installation: what every server has, and indexes with what is wrong
CREATE FUNCTION pg_temp.found(pattern text) RETURNS TABLE (subject text, state text, advice text)
LANGUAGE sql AS $$ SELECT * FROM gpuvec_doctor() AS d WHERE d.subject ~ pattern $$;
SET gpuvec.engine = cpu;
SELECT DISTINCT subject FROM gpuvec_doctor() WHERE subject !~ '_' AND subject NOT IN ('gpuvecd', 'mirrors', 'vector')
ORDER BY subject;
SELECT subject, advice FROM pg_temp.found('^gpuvec$');
SELECT state, advice FROM pg_temp.found('^formats$');
SELECT regexp_replace(state, ', \d+ scans.*', ''), advice FROM pg_temp.found('^doc_e$') LIMIT 1;
SELECT state, advice FROM pg_temp.found('^broken_e$');
SELECT state, advice FROM pg_temp.found('^settings$');
CREATE TABLE early (e real[]);
CREATE INDEX early_e ON early USING gpuivfpq (e) WITH (dims = 2);
ALTER INDEX small_e SET (probes = 3);
SET gpuvec.probes = 20;
SET gpuvec.candidates = 50;
SET gpuvec.max_probes = 5;
SET gpuvec.recall = 1;
SET enable_indexscan = off;
SET gpuvec.enable_custom_scan = off;
SET gpuvec.use_index = never;
SELECT state, advice FROM pg_temp.found('^settings$');
RESET gpuvec.probes;
RESET gpuvec.candidates;
RESET gpuvec.max_probes;
RESET gpuvec.recall;
RESET enable_indexscan;
RESET gpuvec.enable_custom_scan;
RESET gpuvec.use_index;
SELECT state, advice FROM pg_temp.found('^(early_e|small_e)$') WHERE state !~ ' scans';
-- what it advises can be run
INSERT INTO bare SELECT * FROM doc WHERE id BETWEEN 101 AND 290;
CREATE INDEX "bare's" ON bare USING gpuivfpq (e) WITH (lists = 2);
SELECT advice FROM pg_temp.found('bare''s') WHERE advice ~ 'calibrate';
SET gpuvec.recall = 0.995;
SELECT state, advice FROM pg_temp.found('bare''s') WHERE state ~ 'calibration';
RESET gpuvec.recall;
INSERT INTO bare SELECT * FROM doc WHERE id BETWEEN 301 AND 550;
SELECT advice FROM pg_temp.found('bare''s') WHERE advice ~ 'calibrate';
SET gpuvec.recall = 0.995;
SELECT state, advice FROM pg_temp.found('bare''s') WHERE state ~ 'calibration';
RESET gpuvec.recall;
-- ... and nothing of a temporary table's index that VACUUM would not do
CREATE TEMP TABLE brief (e real[]);
CREATE INDEX brief_e ON brief USING gpuivfpq (e) WITH (dims = 2);
SELECT regexp_replace(advice, 'pg_temp_\d+', 'pg_temp') FROM pg_temp.found('brief_e');
INSERT INTO brief SELECT ARRAY[sin(g), cos(g)] FROM generate_series(1, 12000) AS g;
SELECT regexp_replace(advice, 'pg_temp_\d+', 'pg_temp') FROM pg_temp.found('brief_e');
DROP TABLE brief;
-- others' indexes are named, and no more
SET ROLE regress_doctor;
SELECT state, advice FROM gpuvec_doctor() WHERE subject = 'doc_e';
RESET ROLE;
GRANT pg_monitor TO regress_doctor;
SET ROLE regress_doctor;
SELECT state ~ 'begins with' AS seen FROM gpuvec_doctor() WHERE subject = 'doc_e';
RESET ROLE;
DROP OWNED BY regress_doctor;
DROP ROLE regress_doctor;
DROP TABLE doc, small, early, partial, broken, keyed, bare, spots, parts, hidden;
DROP DOMAIN embedding;
DROP SEQUENCE asked;
DROP FUNCTION twice, itself, peek;
