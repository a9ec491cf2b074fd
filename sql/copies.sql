-- Rows that equal others: recall is kept of what differs, and nothing is
-- learned from placeholders.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SELECT setseed(0.4);
CREATE FUNCTION pg_temp.random(g int, dims int) RETURNS real[] LANGUAGE sql VOLATILE AS
$$ SELECT array_agg((random() + g % 50 * .04 * (i % 3))::real) FROM generate_series(1, dims) AS i $$;
CREATE TABLE asked AS SELECT g AS id, pg_temp.random(g * 13, 24) AS e FROM generate_series(1, 40) AS g;

-- how many of the ten nearest rows of a condition the index finds, ties being as
-- good, and a target's .02 below
CREATE FUNCTION pg_temp.found(tab text, condition text DEFAULT 'true') RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	share float8;
BEGIN
	EXECUTE format('SELECT avg((SELECT count(*) FROM (SELECT e <-> q.e AS d FROM %1$s WHERE %2$s ORDER BY e <-> q.e LIMIT 10) AS s
			WHERE d <= x.most)) / 10
		FROM asked AS q, LATERAL (SELECT max(d) AS most FROM
			(SELECT e <-> q.e AS d FROM %1$s WHERE %2$s ORDER BY (e <-> q.e) + 0 LIMIT 10) AS z) AS x',
		tab, condition) INTO share;
	RETURN share;
END
$$;

-- twenty of each: a manual of twenty tenants
CREATE TABLE manual (id int, tenant int, e real[]) WITH (autovacuum_enabled = off);
INSERT INTO manual SELECT row_number() OVER (ORDER BY hashint4(g * 31 + t)), t, e
FROM (SELECT g, pg_temp.random(g, 24) AS e FROM generate_series(1, 1000) AS g OFFSET 0) AS p, generate_series(1, 20) AS t;
CREATE INDEX manual_e ON manual USING gpuivfpq (e, tenant);
ANALYZE manual;
SELECT pg_temp.found('manual') >= 0.93 AS reached;
SELECT pg_temp.found('manual', 'tenant = 7') >= 0.93 AS reached;
-- ... and one list is not enough for a row's neighbors, however many copies it has
SET gpuvec.probes = 1;
SELECT recall < 0.98 AS told FROM gpuvec_recall('manual_e', samples => 1000);
-- ... but of queries that are given their equals are what is asked for
SELECT recall FROM gpuvec_recall('manual_e', queries => ARRAY(SELECT DISTINCT e FROM manual WHERE id % 100 = 0));
RESET gpuvec.probes;
SELECT recall >= 0.93 AS reached FROM gpuvec_recall('manual_e');
SELECT min(probes) AS made FROM gpuvec_calibration('manual_e') WHERE k = 10 AND recall = 0.95 \gset
SELECT min(probes) BETWEEN :made / 2 AND :made * 2 AS again FROM gpuvec_calibrate('manual_e') WHERE k = 10 AND recall = 0.95;
SELECT advice FROM gpuvec_index_info('manual_e');
SELECT * FROM gpuvec_verify_index('manual_e');
DROP TABLE manual;

-- more of each than calibration looks for: they count, and not all is read
CREATE TABLE many AS SELECT g AS id, e FROM
	(SELECT g AS p, pg_temp.random(g, 24) AS e FROM generate_series(1, 30) AS g OFFSET 0) AS p,
	generate_series(1, 600) AS g;
CREATE INDEX many_e ON many USING gpuivfpq (e);
SELECT count(probes) AS reached FROM gpuvec_calibration('many_e') WHERE k = 10 AND recall <= 0.99;
-- ... few vectors make few lists, which is no matter of memory
SELECT lists <= 30 AS few, advice FROM gpuvec_index_info('many_e');
SELECT regexp_replace(state, '^index has \d+', 'index has N') AS state, advice FROM gpuvec_doctor()
WHERE subject = 'many_e' AND state ~ 'lists' AND state !~ '^format';
-- ... nor is it when others have come since: then there can be more lists
CREATE TABLE once (id int, e real[]);
INSERT INTO once SELECT i, ARRAY[i % 2, 1, 3] FROM generate_series(1, 3000) AS i;
CREATE INDEX once_e ON once USING gpuivfpq (e);
INSERT INTO once SELECT i, ARRAY[i * .37 % 2, i * .61 % 2, 3] FROM generate_series(1, 27000) AS i;
SELECT state, advice FROM gpuvec_doctor() WHERE subject = 'once_e' AND state ~ 'lists' AND state !~ '^format';
DROP TABLE once;
DROP TABLE many;

-- 39 of 40 rows are one vector: the others are found
CREATE TABLE mostly AS SELECT g AS id, CASE WHEN g % 40 = 0 THEN pg_temp.random(g / 40, 24) ELSE array_fill(0.5::real, ARRAY[24]) END AS e
FROM generate_series(1, 12000) AS g;
CREATE INDEX mostly_e ON mostly USING gpuivfpq (e);
ANALYZE mostly;
SELECT pg_temp.found('mostly') >= 0.93 AS reached, pg_temp.found('mostly', 'e <> array_fill(0.5::real, ARRAY[24])') >= 0.93 AS others;
SELECT lists > 1 AS lists, advice FROM gpuvec_index_info('mostly_e');
SELECT * FROM gpuvec_verify_index('mostly_e');
DROP TABLE mostly;

-- three of five are one vector, and lie as far from the others as these do from
-- each other: which of them are found tells nothing, and no target is told
CREATE FUNCTION pg_temp.around(g int, dims int) RETURNS real[] LANGUAGE sql VOLATILE AS
$$ SELECT array_agg((.5 + x / n)::real) FROM (SELECT x, sqrt(sum(x * x) OVER ()) AS n FROM
	(SELECT random() + random() + random() + random() - 2 + 0 * g AS x FROM generate_series(1, dims) OFFSET 0) AS r) AS s $$;
CREATE TABLE most AS SELECT g AS id, CASE WHEN g % 5 < 3 THEN array_fill(0.5::real, ARRAY[40]) ELSE pg_temp.around(g, 40) END AS e
FROM generate_series(1, 12000) AS g;
CREATE INDEX most_e ON most USING gpuivfpq (e);
SELECT k, probes > 0 AS told FROM gpuvec_calibration('most_e') WHERE recall = 0.95 AND k <= 100 ORDER BY k;
DROP TABLE most;

-- a placeholder, the vectors to come: nothing is learned from it
CREATE TABLE late (id int, e real[] DEFAULT array_fill(0::real, ARRAY[24])) WITH (autovacuum_enabled = off);
INSERT INTO late SELECT generate_series(1, 12000);
RESET client_min_messages;
CREATE INDEX late_e ON late USING gpuivfpq (e);
SELECT gpuvec_train('late_e');
-- ... with a few of them
UPDATE late SET e = pg_temp.random(id, 24) WHERE id % 150 = 0;
REINDEX INDEX late_e;
SET client_min_messages = warning;
SELECT lists, advice FROM gpuvec_index_info('late_e');
-- ... with more it is trained, and with all made anew
UPDATE late SET e = pg_temp.random(id, 24) WHERE id % 60 = 0;
SELECT gpuvec_train('late_e') > 0 AS trained;
SELECT lists > 0 AS lists, advice FROM gpuvec_index_info('late_e');
UPDATE late SET e = pg_temp.random(id, 24);
SELECT pg_temp.found('late') >= 0.93 AS reached;
REINDEX INDEX late_e;
SELECT lists > 100 AS lists, advice FROM gpuvec_index_info('late_e');
SELECT pg_temp.found('late') >= 0.93 AS reached;
DROP TABLE late, asked;
