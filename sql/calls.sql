-- who may call what: all functions and views of the extension, by role
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

-- what is granted, and whose rights functions have: EXECUTE is PUBLIC's but for
-- these, none runs as its owner, and none is said to leak nothing
SELECT p.oid::regprocedure AS not_for_public
FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
	AND NOT has_function_privilege('public', p.oid, 'EXECUTE') ORDER BY 1::text;
SELECT count(*) > 0 AS some, count(*) FILTER (WHERE prosecdef) AS definer, count(*) FILTER (WHERE proleakproof) AS leakproof,
	count(*) FILTER (WHERE prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c')) AS not_c
FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec');
SELECT c.oid::regclass, relkind, a.grantee = 0 AS public, a.privilege_type, a.is_grantable
FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.objid, aclexplode(relacl) AS a
WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass AND a.grantee <> c.relowner
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
ORDER BY c.relname;

CREATE ROLE regress_calls_stranger;
CREATE ROLE regress_calls_id;
CREATE ROLE regress_calls_reader;
CREATE ROLE regress_calls_policed;
CREATE ROLE regress_calls_stats;
CREATE ROLE regress_calls_monitor;
CREATE ROLE regress_calls_owner;
GRANT pg_read_all_stats TO regress_calls_stats;
GRANT pg_monitor TO regress_calls_monitor;
-- two tables and graphs alike, the second with a policy
CREATE TABLE calls (id bigint, e real[]);
INSERT INTO calls SELECT g, pg_temp.point(g, 4) FROM generate_series(1, 1000) AS g;
CREATE TABLE calls_policed AS SELECT * FROM calls;
CREATE INDEX calls_e ON calls USING gpuivfpq (e, id) WITH (lists = 10);
CREATE INDEX calls_policed_e ON calls_policed USING gpuivfpq (e, id) WITH (lists = 10);
CREATE TABLE graph (key bigint, neighbor bigint, distance float8);
INSERT INTO graph VALUES (1, 2, 1), (2, 1, 1);
CREATE TABLE graph_policed AS SELECT * FROM graph;
GRANT SELECT (id) ON calls TO regress_calls_id;
GRANT SELECT (key, neighbor) ON graph TO regress_calls_id;
GRANT SELECT (id, e) ON calls TO regress_calls_reader;
GRANT SELECT ON graph TO regress_calls_reader;
GRANT SELECT ON calls_policed, graph_policed TO regress_calls_policed;
ALTER TABLE calls_policed ENABLE ROW LEVEL SECURITY;
ALTER TABLE graph_policed ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON calls_policed USING (id < 100);
CREATE POLICY few ON graph_policed USING (key = 1);
ALTER TABLE calls OWNER TO regress_calls_owner;
ALTER TABLE graph OWNER TO regress_calls_owner;

-- may a role? no: it lacks the right, or a policy hides rows; whether it works is
-- another question
CREATE FUNCTION pg_temp.may(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	found text := 'yes';
	word text;
	policed boolean := role = 'policed';
BEGIN
	EXECUTE 'SET ROLE regress_calls_' || role;
	BEGIN
		EXECUTE 'SELECT * FROM ' || format(statement, 'calls' || CASE WHEN policed THEN '_policed' ELSE '' END,
			'graph' || CASE WHEN policed THEN '_policed' ELSE '' END);
	EXCEPTION
		WHEN insufficient_privilege THEN found := 'no';
		WHEN object_not_in_prerequisite_state THEN NULL;
		WHEN feature_not_supported THEN
			GET STACKED DIAGNOSTICS word = MESSAGE_TEXT;
			found := CASE WHEN word ~ 'row-level security' THEN 'rls' ELSE word END;
	END;
	RESET ROLE;
	RETURN found;
END
$$;
CREATE TABLE statements (n serial, statement text);
INSERT INTO statements (statement) VALUES
	('gpuvec_index_info(''%1$s_e'')'), ('gpuvec_list_stats(''%1$s_e'')'), ('gpuvec_calibration(''%1$s_e'')'),
	('gpuvec_verify_index(''%1$s_e'')'), ('gpuvec_prewarm(''%1$s_e'')'),
	('gpuvec_train(''%1$s_e'')'), ('gpuvec_calibrate(''%1$s_e'')'),
	('gpuvec_live_queries(''%1$s_e'')'), ('gpuvec_forget_queries(''%1$s_e'')'),
	('gpuvec_recall(''%1$s_e'', 1, 1)'), ('gpuvec_recall(''%1$s_e'', 1, 1, queries_table => ''%1$s'', queries_column => ''e'')'),
	('gpuvec_search(''%1$s_e'', ''{1,2,3,4}'', 1)'),
	('gpuvec_exact_search(''%1$s'', ''e'', ''{1,2,3,4}'', 1)'),
	('gpuvec_knn_graph(''%1$s'', ''id'', ''e'', 1)'), ('gpuvec_knn_graph(''%1$s'', ''id'', ''e'', 1, ''l2'', ''index'')'),
	('gpuvec_knn_graph_arrays(''%1$s'', ''id'', ''e'', 1)'),
	('gpuvec_knn_join(''%1$s'', ''id'', ''e'', ''%1$s'', ''id'', ''e'', 1)'),
	('gpuvec_kmeans(''%1$s'', ''e'', 2)'), ('gpuvec_smoothest_path(''%2$s'', 1, 2)'),
	('gpuvec_doctor(''SELECT id FROM %1$s ORDER BY e <-> $1 LIMIT 1'')'), ('gpuvec_doctor()'),
	('gpuvec_stat_reset(''%1$s_e'')'), ('gpuvec_stat_reset()'),
	('gpuvec_index_counters(''%1$s_e''::regclass)'), ('gpuvec_last_scan()'),
	('gpuvec_select(''{1,2}''::real[], 1)'), ('gpuvec_quantiles(''{1,2}''::real[], ''{1}'')'),
	('gpuvec_percentiles(''%2$s'', ''distance'', ''{.5}'')'),
	('gpuvec_stat()'), ('gpuvec_mirrors()'), ('gpuvec_progress()'),
	('gpuvec_stat_indexes'), ('gpuvec_stat'), ('gpuvec_mirrors'), ('gpuvec_progress');
SELECT statement, stranger, id, reader, policed, stats, monitor, owner FROM statements,
	pg_temp.may('stranger', statement) AS stranger, pg_temp.may('id', statement) AS id,
	pg_temp.may('reader', statement) AS reader, pg_temp.may('policed', statement) AS policed,
	pg_temp.may('stats', statement) AS stats, pg_temp.may('monitor', statement) AS monitor,
	pg_temp.may('owner', statement) AS owner
ORDER BY n;
-- none is missing above but the planner's and operators' own
SELECT proname FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
	AND NOT EXISTS (SELECT FROM statements WHERE statement ~ (proname || '\('))
GROUP BY proname ORDER BY proname;

-- nor do they tell of rows: counts that a scan under a policy adds to, where
-- there are counts (before 17 not without preloading)
CREATE FUNCTION hides(tab text, n int) RETURNS boolean LANGUAGE sql AS $$
	SELECT scans IS NULL OR n = num_nulls(batches, lists, postings, matched, reranked, returned, out_of_order, full_passes)
	FROM gpuvec_stat_indexes WHERE relname = tab
$$;
SET ROLE regress_calls_policed;
SELECT id FROM calls_policed WHERE id > 500 ORDER BY e <-> '{1,2,3,4}' LIMIT 1;
SELECT hides('calls_policed', 8);
SELECT scans IS NULL OR scans = 1 AS scans FROM gpuvec_stat_indexes WHERE relname = 'calls_policed';
SET ROLE regress_calls_stranger;
SELECT hides('calls', 8);
SET ROLE regress_calls_id;
SELECT hides('calls', 8);
SET ROLE regress_calls_reader;
SELECT hides('calls', 0);
SET ROLE regress_calls_stats;
SELECT hides('calls', 0);
SET ROLE regress_calls_owner;
SELECT hides('calls', 0);
RESET ROLE;
DROP FUNCTION hides;
DROP TABLE calls, calls_policed, graph, graph_policed, statements;
DROP ROLE regress_calls_stranger, regress_calls_id, regress_calls_reader, regress_calls_policed,
	regress_calls_stats, regress_calls_monitor, regress_calls_owner;
