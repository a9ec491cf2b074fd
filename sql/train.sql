--
-- gpuvec_train: an index made on an empty table is trained while it is in use
--

\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SET gpuvec.scan_order = relaxed;

-- An index on an empty table gets n rows made by an expression of i, some are
-- deleted, it is trained, more come: what gpuvec_train returned, what the
-- index says of itself, what is wrong with it, and whether it finds each row
-- once and answers as a sort does.
CREATE FUNCTION try(expr text, n int, opclass text, operator text, options text,
	OUT moved bigint, OUT lists int, OUT rows bigint, OUT pending bigint,
	OUT problem text, OUT complete bool, OUT exact bool)
LANGUAGE plpgsql SET gpuvec.scan_order = relaxed SET gpuvec.candidates = 100000
SET gpuvec.probes = 100000 AS $$
DECLARE
	query real[];
BEGIN
	CREATE TABLE tried (i int, e real[]) WITH (autovacuum_enabled = off);
	EXECUTE format('CREATE INDEX tried_e ON tried USING gpuivfpq (e %s) WITH (%s)', opclass, options);
	EXECUTE format('INSERT INTO tried SELECT i, %s FROM generate_series(1, %s) AS i', expr, n);
	DELETE FROM tried WHERE i % 5 = 0;
	moved = gpuvec_train('tried_e');
	EXECUTE format('INSERT INTO tried SELECT %s + i, %s FROM generate_series(1, 100) AS i', n, expr);
	SELECT x.lists, x.rows, x.pending INTO lists, rows, pending FROM gpuvec_index_info('tried_e') AS x;
	SELECT string_agg(v.problem, '; ') INTO problem FROM gpuvec_verify_index('tried_e') AS v;
	EXECUTE format('SELECT %s FROM generate_series(7, 7) AS i', expr) INTO query;
	EXECUTE format('SELECT count(*) = n AND count(DISTINCT i) = n
		FROM (SELECT i FROM tried ORDER BY e %s %L) AS q, (SELECT count(*) AS n FROM tried) AS t GROUP BY n',
		operator, query) INTO complete;
	EXECUTE format('SELECT (SELECT array_agg(d) FROM (SELECT e %1$s %2$L AS d FROM tried ORDER BY e %1$s %2$L LIMIT 20) AS x)
		= (SELECT array_agg(d) FROM (SELECT (e %1$s %2$L) + 0 AS d FROM tried ORDER BY 1 LIMIT 20) AS y)',
		operator, query) INTO exact;
	DROP TABLE tried;
END $$;

SELECT * FROM try('pg_temp.point(i, 8)', 1500, '', '<->', 'dims = 8');
SELECT * FROM try('pg_temp.point(i, 8)', 1500, 'real_ip_ops', '<#>', 'spill = 0');
SELECT * FROM try('pg_temp.point(i, 8)', 1500, 'real_cosine_ops', '<=>', 'lists = 60');
-- all rows equal
SELECT * FROM try('''{1,2,3}''::real[]', 1500, '', '<->', 'dims = 3');
SELECT * FROM try('''{1,2,3}''::real[]', 1500, 'real_cosine_ops', '<=>', 'lists = 20');
-- two distinct rows
SELECT * FROM try('ARRAY[i % 2, 1, 0]::real[]', 1500, '', '<->', 'lists = 20');
SELECT * FROM try('ARRAY[i % 2, 1, 0]::real[]', 1500, 'real_ip_ops', '<#>', 'lists = 20');
-- one giant cluster, and few rows far away
SELECT * FROM try('ARRAY[CASE WHEN i % 100 = 1 THEN 1e6 * i ELSE sin(i) END, cos(i)]::real[]',
	1500, '', '<->', 'dims = 2');
-- dimension 1
SELECT * FROM try('ARRAY[i]::real[]', 1500, '', '<->', 'dims = 1');
SELECT * FROM try('ARRAY[i % 3]::real[]', 1500, 'real_ip_ops', '<#>', 'dims = 1');
-- many duplicates of few rows
SELECT * FROM try('pg_temp.point(i % 30, 6)', 3000, '', '<->', 'dims = 6');
-- blocks of two parts
SELECT * FROM try('pg_temp.point(i, 4) || array_fill((i % 13)::real, ARRAY[1396])', 200, '', '<->',
	'lists = 5, pq_dim = 900');
-- extremes
SELECT * FROM try('ARRAY[3e38 * sin(i), 1e-40 * i, 0]::real[]', 1500, 'real_cosine_ops', '<=>', 'dims = 3');

-- train_rows: for CREATE INDEX, and later
CREATE TABLE few (i int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO few SELECT i, pg_temp.point(i, 4) FROM generate_series(1, 300) AS i;
RESET client_min_messages;
CREATE INDEX few_e ON few USING gpuivfpq (e);
SELECT gpuvec_train('few_e');
SELECT advice FROM gpuvec_index_info('few_e');
ALTER INDEX few_e SET (train_rows = 301);
SELECT advice FROM gpuvec_index_info('few_e');
SELECT gpuvec_train('few_e');
ALTER INDEX few_e SET (train_rows = 300);
SELECT advice FROM gpuvec_index_info('few_e');
SELECT gpuvec_train('few_e');
SELECT lists, rows, pending, rows_at_training, advice FROM gpuvec_index_info('few_e');
SELECT gpuvec_train('few_e');
CREATE INDEX few_at_once ON few USING gpuivfpq (e) WITH (train_rows = 300);
SELECT lists, pending FROM gpuvec_index_info('few_at_once');
CREATE INDEX bad ON few USING gpuivfpq (e) WITH (train_rows = 0);
-- it outgrows its training
INSERT INTO few SELECT i, pg_temp.point(i, 4) FROM generate_series(301, 1201) AS i;
SELECT rows, advice FROM gpuvec_index_info('few_e');
SELECT gpuvec_train('few_e', true);
SELECT lists, pending, rows_at_training, advice FROM gpuvec_index_info('few_e');
SELECT * FROM gpuvec_verify_index('few_e');
DROP INDEX few_e, few_at_once;

-- lengths: fixed by the first row
CREATE INDEX few_e ON few USING gpuivfpq (e) WITH (train_rows = 2000);
TRUNCATE few;
INSERT INTO few SELECT i, pg_temp.point(i, 4) FROM generate_series(1, 1200) AS i;
INSERT INTO few VALUES (0, '{1,2,3}');
SELECT gpuvec_train('few_e');
SELECT lists, dims, pending FROM gpuvec_index_info('few_e');
INSERT INTO few VALUES (0, '{1,2,3}');
SELECT * FROM gpuvec_verify_index('few_e');
VACUUM few;
SELECT lists, rows, pending FROM gpuvec_index_info('few_e');

-- a transaction that trains with rows of its own, and is rolled back
TRUNCATE few;
INSERT INTO few SELECT i, pg_temp.point(i, 4) FROM generate_series(1, 100) AS i;
BEGIN;
INSERT INTO few SELECT i, pg_temp.point(i, 4) FROM generate_series(101, 1500) AS i;
DECLARE c CURSOR FOR SELECT i FROM few ORDER BY e <-> pg_temp.point(1, 4);
FETCH 1 FROM c;
SELECT gpuvec_train('few_e');
SELECT count(*) FROM (SELECT i FROM few ORDER BY e <-> pg_temp.point(1, 4)) AS q;
MOVE FORWARD ALL IN c;
ROLLBACK;
SELECT lists, rows, pending FROM gpuvec_index_info('few_e');
SELECT count(*) FROM (SELECT i FROM few ORDER BY e <-> pg_temp.point(1, 4)) AS q;
SELECT * FROM gpuvec_verify_index('few_e');
VACUUM few;
SELECT lists, rows, pending, dead FROM gpuvec_index_info('few_e');
SELECT * FROM gpuvec_verify_index('few_e');

-- partial, expression, unlogged and temporary indexes; NULLs and zeros
SET client_min_messages = warning;
CREATE UNLOGGED TABLE other (i int, e real[]) WITH (autovacuum_enabled = off);
CREATE INDEX other_part ON other USING gpuivfpq (e real_cosine_ops) WHERE i % 2 = 0;
CREATE INDEX other_expr ON other USING gpuivfpq ((e || e));
CREATE TEMPORARY TABLE temporary (i int, e real[]);
CREATE INDEX temporary_e ON temporary USING gpuivfpq (e) WITH (dims = 4);
RESET client_min_messages;
INSERT INTO other SELECT i, pg_temp.point(i, 4) FROM generate_series(1, 3000) AS i;
INSERT INTO other SELECT i, NULL FROM generate_series(1, 10) AS i;
INSERT INTO other SELECT 2 * i, '{0,0,0,0}' FROM generate_series(1, 10) AS i;
INSERT INTO temporary SELECT * FROM other;
SELECT gpuvec_train('other_part'), gpuvec_train('other_expr'), gpuvec_train('temporary_e');
SELECT * FROM gpuvec_verify_index('other_part');
SELECT * FROM gpuvec_verify_index('other_expr');
SELECT * FROM gpuvec_verify_index('temporary_e');
SELECT count(*), count(DISTINCT i)
FROM (SELECT i FROM other WHERE i % 2 = 0 ORDER BY e <=> pg_temp.point(1, 4)) AS q;
SELECT count(*), count(DISTINCT i)
FROM (SELECT i FROM temporary ORDER BY e <-> pg_temp.point(1, 4)) AS q;
VACUUM temporary;

-- who may, and what
CREATE ROLE regress_gpuvec_trainer;
GRANT SELECT ON few TO regress_gpuvec_trainer;
SET ROLE regress_gpuvec_trainer;
SELECT gpuvec_train('few_e');
RESET ROLE;
ALTER TABLE few OWNER TO regress_gpuvec_trainer;
SET ROLE regress_gpuvec_trainer;
SELECT gpuvec_train('few_e');
RESET ROLE;
SELECT gpuvec_train('few');
SELECT gpuvec_train(0);
SELECT gpuvec_train(NULL) IS NULL AS is_null;
DROP TABLE few, other, temporary;
DROP ROLE regress_gpuvec_trainer;
DROP FUNCTION try;

-- functions of an index must neither train nor read it while it is trained or built
CREATE TABLE nested (e real[]) WITH (autovacuum_enabled = off);
CREATE FUNCTION calls(e real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
	n int := coalesce(nullif(current_setting('test.calls', true), ''), '0');
BEGIN
	PERFORM set_config('test.calls', (n - 1)::text, false);
	IF n = 1 THEN
		EXECUTE current_setting('test.statement');
	END IF;
	RETURN e;
END $$;
SET test.statement = $$SELECT public.gpuvec_train('public.nested_e')$$;
CREATE INDEX nested_e ON nested USING gpuivfpq (calls(e)) WITH (dims = 4);
INSERT INTO nested SELECT pg_temp.point(i, 4) FROM generate_series(1, 1500) AS i;
\set VERBOSITY terse
-- while rows are sampled, and while they are assigned
SET test.calls = 1;
SELECT gpuvec_train('nested_e');
SET test.calls = 1600;
SELECT gpuvec_train('nested_e');
SELECT * FROM gpuvec_verify_index('nested_e');
SET test.calls = 0;
SELECT gpuvec_train('nested_e');
SELECT * FROM gpuvec_verify_index('nested_e');
SET test.calls = 1;
REINDEX INDEX nested_e;
SET test.statement = $$SELECT public.gpuvec_search('public.nested_new', '{1,2,3,4}', 1)$$;
SET test.calls = 2;
CREATE INDEX nested_new ON nested USING gpuivfpq (calls(e));
\set VERBOSITY default
DROP TABLE nested;
DROP FUNCTION calls;
