-- EXPLAIN of a plain index scan says what that of the custom scan does, from
-- PostgreSQL 18 on
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE TABLE shown (id int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO shown SELECT g, pg_temp.point(g, 8) FROM generate_series(1, 2000) AS g;
CREATE INDEX shown_e ON shown USING gpuivfpq (e) WITH (lists = 20);
CREATE INDEX shown_id ON shown (id);
ANALYZE shown;

-- what of ours a plan says, with how often
CREATE FUNCTION pg_temp.said(options text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	line text;
	said text[] = '{}';
BEGIN
	FOR line IN EXECUTE format('EXPLAIN (%s) SELECT id FROM shown ', options) || statement LOOP
		said = said || substring(line, '(Recall|Probes|Candidates|Engine|Rows From: [a-z]+|Batches: 1|Lists Read|Postings Read|Rows Reranked|Rows Out of Order)');
	END LOOP;
	RETURN array_to_string(array_remove(said, NULL), ', ');
END
$$;
\set near 'ORDER BY e <-> ''{1,2,3,4,5,6,7,8}'' LIMIT 10'
\set filtered 'WHERE id % 2 = 0 ORDER BY e <-> ''{1,2,3,4,5,6,7,8}'' LIMIT 10'
SELECT pg_temp.said('COSTS', :'filtered');
SELECT pg_temp.said('ANALYZE, COSTS OFF, TIMING OFF', :'filtered');
SELECT current_setting('server_version_num')::int >= 180000 AS has_hook \gset
SELECT pg_temp.said('COSTS', :'near') = CASE WHEN :'has_hook' THEN 'Recall, Probes, Candidates' ELSE '' END AS said;
SELECT pg_temp.said('ANALYZE', :'near') = CASE WHEN :'has_hook' THEN
	'Recall, Probes, Candidates, Engine, Rows From: index, Batches: 1, Lists Read, Postings Read, Rows Reranked, Rows Out of Order' ELSE '' END AS said;
-- everything is read
SET gpuvec.recall = 1;
SELECT pg_temp.said('ANALYZE, COSTS OFF', :'near') = CASE WHEN :'has_hook' THEN
	'Recall, Engine, Rows From: table, Lists Read, Postings Read, Rows Reranked, Rows Out of Order' ELSE '' END AS said;
RESET gpuvec.recall;
-- plans look the same on all versions where costs are left out; other scans
SELECT pg_temp.said('COSTS OFF', :'near');
SELECT pg_temp.said('ANALYZE', 'WHERE id = 7');
SELECT pg_temp.said('ANALYZE', 'WHERE id = 7 ORDER BY id');
-- counts are for those who see all rows
CREATE ROLE regress_guest;
GRANT SELECT ON shown TO regress_guest;
ALTER TABLE shown ENABLE ROW LEVEL SECURITY;
CREATE POLICY every ON shown TO regress_guest USING (true);
SET ROLE regress_guest;
SELECT pg_temp.said('ANALYZE', :'near') = CASE WHEN :'has_hook' THEN 'Recall, Probes, Candidates, Engine' ELSE '' END AS said;
RESET ROLE;
DROP TABLE shown;
DROP ROLE regress_guest;
