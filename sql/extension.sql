-- the extension as a whole: what it holds, moving, dropping, coming back
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
DROP EXTENSION gpuvec CASCADE;
CREATE SCHEMA elsewhere;
CREATE EXTENSION gpuvec SCHEMA elsewhere;
RESET client_min_messages;

SELECT extname, extversion, extrelocatable, extnamespace::regnamespace
FROM pg_extension WHERE extname = 'gpuvec';
-- both extensions have one version
SELECT DISTINCT default_version FROM pg_available_extensions WHERE name LIKE 'gpuvec%';

-- every object a user meets has a comment; the row types of views, which
-- later servers count as the extension's, are not met
SELECT d.classid::regclass, count(*),
	count(*) FILTER (WHERE obj_description(d.objid, d.classid::regclass::text)
		IS NULL) AS uncommented
FROM pg_depend AS d
WHERE d.deptype = 'e'
	AND d.classid NOT IN ('pg_opfamily'::regclass, 'pg_type'::regclass)
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
GROUP BY 1 ORDER BY d.classid::regclass::text;

-- and so has every column of its views
SELECT objid::regclass AS view, count(*), count(*) FILTER (WHERE col_description(objid, attnum) IS NULL) AS uncommented
FROM pg_depend AS d JOIN pg_attribute AS a ON attrelid = objid AND attnum > 0
WHERE d.deptype = 'e' AND d.classid = 'pg_class'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
GROUP BY objid ORDER BY objid::regclass::text;

-- what planner and parallel plans may do with its functions
SELECT CASE provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END AS volatility,
	CASE proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END AS parallel,
	string_agg(DISTINCT proname, ', ' ORDER BY proname) AS functions
FROM pg_depend AS d JOIN pg_proc AS p ON p.oid = d.objid
WHERE d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
GROUP BY 1, 2 ORDER BY 1, 2;

-- it works by qualified names, without its schema on the path
CREATE TABLE ext (id int, e real[]);
SELECT '{1,2}'::real[] OPERATOR(elsewhere.<->) '{1,3}'::real[];
\set VERBOSITY terse
SELECT '{1,2}'::real[] <-> '{1,3}'::real[];
\set VERBOSITY default
SET client_min_messages = warning;
CREATE INDEX ext_e ON ext USING gpuivfpq (e) WITH (dims = 2);
CREATE INDEX ext_ip ON ext USING gpuivfpq (e elsewhere.real_ip_ops)
	WITH (dims = 2);
SELECT indexrelid::regclass, opcname, opcnamespace::regnamespace
FROM pg_index JOIN pg_opclass AS c ON c.oid = indclass[0]
WHERE indrelid = 'ext'::regclass ORDER BY 1;

-- it can be moved
ALTER EXTENSION gpuvec SET SCHEMA public;
SELECT '{1,2}'::real[] <-> '{1,3}'::real[];
INSERT INTO ext VALUES (1, '{1,2}'), (2, '{5,5}');
SELECT id FROM ext ORDER BY e <-> '{5,4}' LIMIT 1;

-- indexes hold it
RESET client_min_messages;
\set VERBOSITY terse
DROP EXTENSION gpuvec;
\set VERBOSITY default
SET client_min_messages = warning;
DROP EXTENSION gpuvec CASCADE;
SELECT count(*) FROM pg_index WHERE indrelid = 'ext'::regclass;
SELECT count(*) FROM ext;
SELECT count(*) FROM pg_am WHERE amname = 'gpuivfpq';
CREATE INDEX ON ext USING gpuivfpq (e);

-- nothing is left in the way of a second start
CREATE EXTENSION gpuvec;
CREATE INDEX ON ext USING gpuivfpq (e) WITH (dims = 2);
DROP TABLE ext;
DROP SCHEMA elsewhere;
