-- whose code runs as whom, and who sees what
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql

CREATE ROLE regress_gpuvec_guest;
CREATE ROLE regress_gpuvec_monitor;
GRANT pg_monitor TO regress_gpuvec_monitor;
CREATE SCHEMA mal;
GRANT USAGE, CREATE ON SCHEMA mal TO regress_gpuvec_guest;
GRANT USAGE ON SCHEMA mal TO regress_gpuvec_monitor;

-- index expressions and predicates whose functions trust in search_path
CREATE FUNCTION scale_vec(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RETURN v; END $$;
CREATE FUNCTION norm_vec(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN RETURN scale_vec(v); END $$;
-- the planner puts its body in its place
CREATE FUNCTION norm_sql(v real[]) RETURNS real[] LANGUAGE sql IMMUTABLE
AS 'SELECT public.scale_vec(v)';
CREATE FUNCTION wanted(v real[]) RETURNS boolean LANGUAGE sql IMMUTABLE
AS 'SELECT public.scale_vec(v) IS NOT NULL';
CREATE FUNCTION norm_named(v real[]) RETURNS real[] LANGUAGE sql IMMUTABLE
AS 'SELECT public.scale_vec(v)';
CREATE FUNCTION norm_set(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
SET search_path = public AS $$ BEGIN RETURN scale_vec(v); END $$;
-- compiled by whoever calls it first in a session
CREATE DOMAIN vec_t AS real[];
CREATE FUNCTION norm_typed(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
AS $$ DECLARE r vec_t := v; BEGIN RETURN r; END $$;
SELECT norm_typed('{1,1}');

CREATE TABLE sec (id int, v real[]);
GRANT SELECT ON sec TO regress_gpuvec_guest;
CREATE INDEX sec_call ON sec USING gpuivfpq (norm_vec(v));
CREATE INDEX sec_sql ON sec USING gpuivfpq (norm_sql(v));
CREATE INDEX sec_partial ON sec USING gpuivfpq (v) WHERE wanted(v);
CREATE INDEX sec_named ON sec USING gpuivfpq (norm_named(v));
CREATE INDEX sec_set ON sec USING gpuivfpq (norm_set(v));
CREATE INDEX sec_typed ON sec USING gpuivfpq (norm_typed(v));
CREATE INDEX sec_c ON sec USING gpuivfpq ((v || '{1}')) WHERE v[1] > 0;
CREATE INDEX sec_key ON sec USING gpuivfpq (v, cardinality(norm_vec(v)));
-- PostgreSQL 17 computes these for an empty table, too, when an index is made
CREATE OR REPLACE FUNCTION norm_sql(v real[]) RETURNS real[] LANGUAGE sql IMMUTABLE
AS 'SELECT scale_vec(v)';
CREATE OR REPLACE FUNCTION wanted(v real[]) RETURNS boolean LANGUAGE sql IMMUTABLE
AS 'SELECT scale_vec(v) IS NOT NULL';
INSERT INTO sec SELECT g, ARRAY[g, 1] FROM generate_series(1, 3) AS g;

-- a guest's function of the same name: it must never run as another
\c -
SET ROLE regress_gpuvec_guest;
CREATE FUNCTION mal.scale_vec(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN
	IF current_user NOT LIKE 'regress\_gpuvec\_%' THEN
		RAISE WARNING 'escaped, superuser: %',
			(SELECT rolsuper FROM pg_roles WHERE rolname = current_user);
	END IF;
	RETURN v;
END $$;
CREATE FUNCTION mal.tell(v real[]) RETURNS boolean LANGUAGE sql
AS 'SELECT mal.scale_vec(v) IS NOT NULL';
CREATE DOMAIN mal.vec_t AS real[] CHECK (mal.tell(VALUE));
SET search_path = mal, public;
SELECT norm_typed('{1,1}');
\set VERBOSITY sqlstate
SELECT recall FROM gpuvec_recall('sec_call', 1, 1);
SELECT recall FROM gpuvec_recall('sec_sql', 1, 1);
SELECT recall FROM gpuvec_recall('sec_partial', 1, 1);
SELECT recall FROM gpuvec_recall('sec_named', 1, 1);
SELECT recall FROM gpuvec_recall('sec_set', 1, 1);
SELECT recall FROM gpuvec_recall('sec_typed', 1, 1);
SELECT recall FROM gpuvec_recall('sec_c', 1, 1);
SELECT recall FROM gpuvec_recall('sec_key', 1, 1);
-- what the session's planner made of the index before must not be used
SET enable_seqscan = off;
SELECT id FROM sec WHERE wanted(v) ORDER BY norm_sql(v) <-> '{1,1}' LIMIT 1;
SELECT recall FROM gpuvec_recall('sec_sql', 1, 1);
SELECT recall FROM gpuvec_recall('sec_partial', 1, 1);
SELECT recall FROM gpuvec_recall('sec_named', 1, 1);

-- pg_monitor alone, with no right to the table
\c -
SET search_path = mal, public;
SET ROLE regress_gpuvec_monitor;
SELECT norm_typed('{1,1}');
\set VERBOSITY sqlstate
SELECT * FROM gpuvec_verify_index('sec_call');
SELECT * FROM gpuvec_verify_index('sec_sql');
SELECT * FROM gpuvec_verify_index('sec_partial');
SELECT * FROM gpuvec_verify_index('sec_named');
SELECT * FROM gpuvec_verify_index('sec_set');
SELECT * FROM gpuvec_verify_index('sec_typed');
SELECT * FROM gpuvec_verify_index('sec_c');
SELECT * FROM gpuvec_verify_index('sec_key');
\set VERBOSITY default
SELECT * FROM gpuvec_verify_index('sec_named');
SELECT current_user, current_setting('search_path');

-- the owner: identity and path are back after an error, which says what to do
\c -
SET client_min_messages = warning;
SET search_path = mal, public;
\set VERBOSITY sqlstate
SELECT * FROM gpuvec_verify_index('sec_named');
SELECT recall FROM gpuvec_recall('sec_set', 1, 1);
DO $$
DECLARE
	hint text;
BEGIN
	PERFORM * FROM gpuvec_verify_index('sec_call');
EXCEPTION WHEN undefined_function THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	PERFORM set_config('test.seen', concat_ws('; ', current_user = session_user, current_setting('search_path'), hint), false);
END $$;
SELECT current_setting('test.seen');

-- to rebuild an index, to train and to calibrate it is no way in either
SET ROLE regress_gpuvec_guest;
SELECT count(*) FROM (SELECT id FROM sec WHERE wanted(v) ORDER BY norm_sql(v) <-> '{1,1}') AS q;
RESET ROLE;
SET client_min_messages = warning;
REINDEX INDEX sec_call;
REINDEX INDEX sec_sql;
REINDEX INDEX sec_partial;
REINDEX INDEX sec_named;
REINDEX INDEX sec_key;
REINDEX INDEX sec_set;
CREATE INDEX sec_no ON sec USING gpuivfpq (norm_vec(v));
SET search_path = public;
INSERT INTO sec SELECT g, ARRAY[g, g % 7] FROM generate_series(4, 1500) AS g;
SET search_path = mal, public;
SELECT gpuvec_train('sec_call');
SELECT gpuvec_train('sec_sql');
SELECT gpuvec_train('sec_partial');
SELECT gpuvec_train('sec_named');
SELECT gpuvec_train('sec_set');
SELECT count(*) > 0 AS calibrated FROM gpuvec_calibrate('sec_named');
\set VERBOSITY default
DROP INDEX sec_call, sec_sql, sec_partial, sec_typed, sec_key;
SET search_path = public;

-- parallel workers and the one that VACUUM asks for act as the leader does
CREATE FUNCTION confined(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$ BEGIN
	IF current_setting('search_path') <> 'pg_catalog, pg_temp' THEN
		RAISE EXCEPTION 'search_path is %', current_setting('search_path');
	END IF;
	RETURN v;
END $$;
CREATE TABLE shared (v real[]) WITH (autovacuum_enabled = off, parallel_workers = 2);
INSERT INTO shared SELECT ARRAY[g, g % 7] FROM generate_series(1, 2000) AS g;
CREATE INDEX shared_v ON shared USING gpuivfpq (confined(v)) WITH (lists = 10);
DROP INDEX shared_v;
TRUNCATE shared;
CREATE INDEX shared_v ON shared USING gpuivfpq (confined(v)) WITH (dims = 2, train_rows = 1000);
ALTER FUNCTION confined SET search_path = pg_catalog, pg_temp;
INSERT INTO shared SELECT ARRAY[g, g % 7] FROM generate_series(1, 2000) AS g;
ALTER FUNCTION confined RESET search_path;
VACUUM shared;
DO $$
BEGIN
	FOR i IN 1..600 LOOP
		EXIT WHEN (SELECT lists > 0 AND pending = 0 FROM gpuvec_index_info('shared_v'));
		PERFORM pg_sleep(0.1);
	END LOOP;
END $$;
SELECT lists > 0 AS trained, pending FROM gpuvec_index_info('shared_v');
DROP TABLE shared;

-- it runs code of one owner, and another worker that of the next
CREATE TABLE runs (who name, pid int);
GRANT INSERT ON runs TO PUBLIC;
CREATE FUNCTION note() RETURNS void LANGUAGE sql
BEGIN ATOMIC
	INSERT INTO runs VALUES (current_user, pg_backend_pid());
END;
CREATE FUNCTION noted(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN PERFORM public.note(); RETURN v; END $$;
CREATE TABLE one (v real[]) WITH (autovacuum_enabled = off);
CREATE TABLE two (v real[]) WITH (autovacuum_enabled = off);
CREATE INDEX one_v ON one USING gpuivfpq (noted(v)) WITH (dims = 2, train_rows = 1000);
CREATE INDEX two_v ON two USING gpuivfpq (noted(v)) WITH (dims = 2, train_rows = 1000);
ALTER TABLE two OWNER TO regress_gpuvec_guest;
INSERT INTO one SELECT ARRAY[g, g % 7] FROM generate_series(1, 1000) AS g;
INSERT INTO two SELECT ARRAY[g, g % 7] FROM generate_series(1, 1000) AS g;
VACUUM two;
DO $$
BEGIN
	FOR i IN 1..600 LOOP
		-- lists are seen before what the workers' transactions have written
		EXIT WHEN (SELECT count(DISTINCT who) = 2 FROM runs WHERE pid <> pg_backend_pid());
		PERFORM pg_sleep(0.1);
	END LOOP;
END $$;
SELECT count(DISTINCT who) AS owners, count(DISTINCT pid) AS workers FROM runs WHERE pid <> pg_backend_pid();
DROP TABLE one, two;
DROP FUNCTION note;
DROP TABLE runs;

-- counts of rows are for those whom the table shows all of its rows
\i :srcdir/sql/include/plan_of.sql
CREATE TABLE hidden (id int, mine boolean, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO hidden SELECT g, g > 950, ARRAY[sin(g), cos(g * 7), sin(g * 13), cos(g * 3), sin(g * 5), cos(g)]
FROM generate_series(1, 1000) AS g;
CREATE INDEX hidden_v ON hidden USING gpuivfpq (v) WITH (lists = 10, pq_dim = 1, probes = 1, candidates = 10);
CREATE FUNCTION seen() RETURNS text LANGUAGE sql AS
	'SELECT concat_ws('', '', recall, probes + candidates > 0, engine IS NOT NULL, ''counts '' ||
		num_nonnulls(batches, lists, postings, refined, reranked, returned, out_of_order, full_pass, stale_lists, tail_postings),
		returned > 1) FROM gpuvec_last_scan()';
CREATE VIEW own WITH (security_barrier) AS SELECT id, v FROM hidden WHERE mine;
CREATE FUNCTION nearest() RETURNS bigint LANGUAGE sql SECURITY DEFINER
SET enable_seqscan = off
AS 'SELECT count(*) FROM (SELECT id FROM hidden WHERE mine ORDER BY v <-> ''{1,1,1,1,1,1}'' LIMIT 1) AS q';
GRANT SELECT ON own TO regress_gpuvec_guest;
SET enable_seqscan = off;
SET enable_sort = off;
SELECT nearest();
SELECT seen();
-- no right to the table: by a view, and by a function
SET ROLE regress_gpuvec_guest;
SELECT count(*) FROM (SELECT id FROM own ORDER BY v <-> '{1,1,1,1,1,1}' LIMIT 1) AS q;
SELECT seen();
SELECT nearest();
SELECT seen();
RESET ROLE;
-- a right to the vectors, but not to all that conditions are on
GRANT SELECT (id, v) ON hidden TO regress_gpuvec_guest;
SET ROLE regress_gpuvec_guest;
SELECT nearest();
SELECT seen();
RESET ROLE;
-- a right to all columns
GRANT SELECT (mine) ON hidden TO regress_gpuvec_guest;
SET ROLE regress_gpuvec_guest;
SELECT count(*) FROM (SELECT id FROM hidden WHERE mine ORDER BY v <-> '{1,1,1,1,1,1}' LIMIT 1) AS q;
SELECT seen();
RESET ROLE;
-- under a policy, and nothing beside the result says more
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE POLICY mine ON hidden USING (mine);
SET ROLE regress_gpuvec_guest;
SET client_min_messages = debug1;
SELECT count(*) FROM (SELECT id FROM hidden ORDER BY v <-> '{1,1,1,1,1,1}' LIMIT 1) AS q;
SELECT seen();
SET row_security = off;
SELECT seen();
RESET row_security;
SET client_min_messages = warning;
RESET ROLE;
SELECT seen();
DROP INDEX hidden_v;
SELECT seen();
-- nor does an expression that the scan computes before the policy, where the
-- session can say what it calls
CREATE FUNCTION look_at(v real[]) RETURNS real[] LANGUAGE sql IMMUTABLE AS 'SELECT v';
CREATE FUNCTION norm_far(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
SET search_path = public AS $$ BEGIN RETURN look_at(v); END $$;
UPDATE hidden SET v = ARRAY[id, 1];
CREATE INDEX hidden_far ON hidden USING gpuivfpq (norm_far(v)) WITH (lists = 10);
CREATE INDEX hidden_c ON hidden USING gpuivfpq ((v || '{1}')) WITH (lists = 10);
ALTER FUNCTION norm_far RESET search_path;
CREATE FUNCTION is_far(v real[]) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT v[1] > 900';
CREATE INDEX hidden_some ON hidden USING gpuivfpq (v) WHERE is_far(v);
SET ROLE regress_gpuvec_guest;
CREATE FUNCTION mal.look_at(v real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN
	IF v[1] <= 950 THEN
		RAISE WARNING 'a hidden row';
	END IF;
	RETURN v;
END $$;
SET search_path = mal, public;
SET enable_sort = on;
SELECT id FROM hidden ORDER BY norm_far(v) <-> '{951,1}' LIMIT 1;
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM hidden ORDER BY norm_far(v) <-> '{951,1}' LIMIT 1$q$);
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM hidden ORDER BY (v || '{1}') <-> '{951,1,1}'::real[] LIMIT 1$q$);
-- nor a predicate, which the end of a filtered scan asks
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM hidden WHERE is_far(v) AND id % 2 = 0 ORDER BY v <-> '{951,1}' LIMIT 1$q$);
RESET search_path;
RESET ROLE;
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM hidden ORDER BY norm_far(v) <-> '{951,1}' LIMIT 1$q$);
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM hidden WHERE is_far(v) AND id % 2 = 0 ORDER BY v <-> '{951,1}' LIMIT 1$q$);
-- a predicate that proves the policy is asked before what would tell of hidden rows
CREATE INDEX hidden_mine ON hidden USING gpuivfpq (v) WHERE mine;
SET ROLE regress_gpuvec_guest;
CREATE FUNCTION mal.look_at(mine bool) RETURNS bool LANGUAGE plpgsql IMMUTABLE
AS $$ BEGIN
	IF NOT mine THEN
		RAISE WARNING 'a hidden row';
	END IF;
	RETURN false;
END $$;
SELECT * FROM pg_temp.plan_of($q$SELECT id FROM hidden WHERE mal.look_at(mine) ORDER BY v <-> '{951,1}' LIMIT 1$q$);
SELECT id FROM hidden WHERE mal.look_at(mine) ORDER BY v <-> '{951,1}' LIMIT 1;
RESET ROLE;
DROP INDEX hidden_mine;
-- nor an insert, which asks whether rows before it are still there
CREATE TABLE shared (tenant name DEFAULT current_user, v real[]);
CREATE INDEX shared_v ON shared USING gpuivfpq (norm_far(v));
INSERT INTO shared (v) VALUES ('{1,2,3}');
ALTER TABLE shared ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON shared USING (tenant = current_user);
GRANT INSERT ON shared TO regress_gpuvec_guest;
SET ROLE regress_gpuvec_guest;
SET search_path = mal, public;
INSERT INTO shared (v) VALUES ('{2000,2}');
RESET search_path;
RESET ROLE;
-- an index that is made of no column tells of rows, too
CREATE TABLE blind (v real[]);
CREATE INDEX blind_c ON blind USING gpuivfpq ((ARRAY[1, 2]::real[]));
INSERT INTO blind VALUES ('{1}'), ('{2}');
SET ROLE regress_gpuvec_guest;
SELECT count(*) FROM gpuvec_search('blind_c', '{1,2}', 10);
SELECT recall FROM gpuvec_recall('blind_c');
RESET ROLE;
GRANT SELECT (v) ON blind TO regress_gpuvec_guest;
SET ROLE regress_gpuvec_guest;
SELECT count(*) FROM gpuvec_search('blind_c', '{1,2}', 10);
RESET ROLE;
DROP VIEW own;
DROP TABLE sec, hidden, shared, blind;
DROP SCHEMA mal CASCADE;
DROP FUNCTION scale_vec, norm_vec, norm_sql, wanted, norm_named, norm_set, norm_typed, norm_far, is_far, look_at, noted, confined, seen, nearest;
DROP DOMAIN vec_t;
DROP ROLE regress_gpuvec_guest;
DROP ROLE regress_gpuvec_monitor;
