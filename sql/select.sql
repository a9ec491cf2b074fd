-- selection from arrays
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

SELECT * FROM gpuvec_select('{5,3,9,1,3}'::real[], 3);
SELECT * FROM gpuvec_select('{5,3,9,1,3}'::real[], 3, 'warp');
SELECT * FROM gpuvec_select('{5,3,9,1,3}'::real[], 3, 'sample');
SELECT * FROM gpuvec_select('{5,3,9,1,3}'::real[], 3, method => 'multi');

-- NaN last, zeros of both signs alike, more than there are: all
SELECT * FROM gpuvec_select('{NaN,0,Infinity,-0,-Infinity,NaN,1e-45,-1e-45,0}'::real[],
	100);
SELECT * FROM gpuvec_select('{NaN,0,Infinity,-0,-Infinity,NaN,5e-324,-5e-324,0}'::double precision[], 100);

-- a position is a subscript
SELECT pos, val, ('[-1:2]={4,2,3,1}'::real[])[pos] AS same
FROM gpuvec_select('[-1:2]={4,2,3,1}'::real[], 4);

-- nothing in, nothing out
SELECT * FROM gpuvec_select('{}'::real[], 3);
SELECT * FROM gpuvec_select(NULL::real[], 3);
SELECT * FROM gpuvec_select('{1}'::real[], NULL);
SELECT * FROM gpuvec_select('{1}'::real[], 1, NULL);

-- for each row of a table
SELECT id, pos, val
FROM (VALUES (1, '{3,1,2}'::real[]), (2, '{}'), (3, '{6,5}')) AS t (id, v),
	gpuvec_select(v, 2) AS s
ORDER BY id, val;

-- against a sort, all methods
CREATE TABLE selectable AS
SELECT name, array_agg(x ORDER BY i) AS v,
	array_agg(x ORDER BY x, i) AS vals, array_agg(i ORDER BY x, i) AS positions
FROM generate_series(1, 50000) AS i,
	LATERAL (VALUES ('random', hashint4(i)::real), ('ascending', i),
		('descending', -i), ('equal', 7), ('few', i % 7),
		('nan', CASE WHEN i % 3 = 0 THEN 'NaN'::real ELSE i % 11 END))
		AS x (name, x)
GROUP BY name;
-- doubles differ from each other where reals do not
CREATE TABLE selectable_double AS
SELECT 'double ' || name AS name, array_agg(x ORDER BY i) AS v,
	array_agg(x ORDER BY x, i) AS vals, array_agg(i::integer ORDER BY x, i) AS positions
FROM selectable, unnest(v) WITH ORDINALITY AS u (value, i),
	LATERAL (SELECT 1 + value * 1e-15::double precision AS x) AS x
GROUP BY name;
SELECT name, count(*), bool_and(s.positions = t.positions[:k]) AS positions,
	bool_and(s.vals = t.vals[:k]) AS vals
FROM selectable AS t,
	(VALUES (1), (10), (2048), (5000), (50000)) AS k (k),
	unnest('{auto,warp,sample,multi}'::text[]) AS m (method),
	LATERAL (SELECT array_agg(pos) AS positions, array_agg(val) AS vals
		FROM gpuvec_select(v, k, method)) AS s
WHERE method <> 'warp' OR k <= 2048
GROUP BY name ORDER BY name;
SELECT name, count(*), bool_and(s.positions = t.positions[:k]) AS positions,
	bool_and(s.vals = t.vals[:k]) AS vals
FROM selectable_double AS t,
	(VALUES (1), (10), (2048), (5000), (50000)) AS k (k),
	unnest('{auto,warp,sample,multi}'::text[]) AS m (method),
	LATERAL (SELECT array_agg(pos) AS positions, array_agg(val) AS vals
		FROM gpuvec_select(v, k, method)) AS s
WHERE method <> 'warp' OR k <= 2048
GROUP BY name ORDER BY name;

-- quantiles: exact, in the order of ranks
SELECT * FROM gpuvec_quantiles('{5,3,9,1,3}'::real[], '{5,1,3,3}');
SELECT * FROM gpuvec_quantiles('{NaN,-0,-Infinity}'::real[], '{1,2,3}');
SELECT * FROM gpuvec_quantiles('{5,3,9,1,3}'::real[], '{2,4}', true);
SELECT * FROM gpuvec_quantiles('{}'::real[], '{1}');
SELECT * FROM gpuvec_quantiles('{1}'::real[], '{}');
SELECT * FROM gpuvec_quantiles(NULL::real[], '{1}');
SELECT * FROM gpuvec_quantiles('{1}'::real[], NULL);
SELECT name, count(*), bool_and(val = vals[rank] AND rank_error = 0) AS same
FROM selectable,
	gpuvec_quantiles(v, '{1,2,1000,25000,49999,50000}')
GROUP BY name ORDER BY name;
SELECT name, count(*), bool_and(val = vals[rank] AND rank_error = 0) AS same
FROM selectable_double,
	gpuvec_quantiles(v, '{1,2,1000,25000,49999,50000}')
GROUP BY name ORDER BY name;

-- approximate ones say how far they are off
SELECT name, count(*), bool_and(val = vals[rank + rank_error]) AS same,
	max(abs(rank_error)) < 50000 / 64 AS near
FROM selectable,
	gpuvec_quantiles(v, '{1,1000,25000,49999,50000}', true)
GROUP BY name ORDER BY name;
SELECT name, count(*), bool_and(val = vals[rank + rank_error]) AS same,
	max(abs(rank_error)) < 50000 / 64 AS near
FROM selectable_double,
	gpuvec_quantiles(v, '{1,1000,25000,49999,50000}', true)
GROUP BY name ORDER BY name;

-- percentiles of a column: those of percentile_disc, NULL left out
CREATE TABLE scores AS
SELECT CASE WHEN i % 10 > 0 THEN sin(i)::real END AS r, CASE WHEN i % 10 > 0 THEN 1 + sin(i) * 1e-6 END AS d,
	i AS n, CASE WHEN i > 70000 THEN 'NaN'::double precision END AS nothing
FROM generate_series(1, 70000) AS i;
SELECT fraction, rank, rank_error, val = percentile_disc(fraction) WITHIN GROUP (ORDER BY r) AS same
FROM scores, gpuvec_percentiles('scores', 'r', '{0,1,.5,.5,1e-6}') AS p
GROUP BY p, fraction, val, rank, rank_error ORDER BY 1;
SELECT fraction, rank, rank_error, val = percentile_disc(fraction) WITHIN GROUP (ORDER BY d) AS same
FROM scores, gpuvec_percentiles('scores', 'd', '{0,1,.5,.123456}') AS p
GROUP BY p, fraction, val, rank, rank_error ORDER BY 1;
SELECT fraction, rank, abs(rank_error) < 63000 / 64 AS near,
	count(*) FILTER (WHERE d < val) + 1 = rank + rank_error AS same
FROM scores, gpuvec_percentiles('scores', 'd', '{.1,.9}', true)
GROUP BY val, fraction, rank, rank_error ORDER BY 1;
SELECT * FROM gpuvec_percentiles('scores', 'nothing', '{.5}');
SELECT * FROM gpuvec_percentiles('scores', 'r', '{}');
SELECT * FROM gpuvec_percentiles('scores', 'r', NULL);
SELECT * FROM gpuvec_percentiles('scores', 'n', '{.5}');
SELECT * FROM gpuvec_percentiles('scores', 'r', '{.5,1.5}');
SELECT * FROM gpuvec_percentiles('scores', 'r', '{NaN}');
SELECT * FROM gpuvec_percentiles('scores', 'r', '{NULL}');
DROP TABLE selectable, selectable_double, scores;

-- a statement that is canceled; what is set for its message alone cancels nothing
-- behind it (how soon it ends: test/t/cancel.pl)
SET LOCAL statement_timeout = '150ms' \;
DO $$
BEGIN
	PERFORM count(*)
	FROM gpuvec_select(array_fill(1::real, ARRAY[10000000]), 10000000, 'multi');
	RAISE NOTICE 'not canceled';
EXCEPTION WHEN query_canceled THEN
	RAISE NOTICE 'canceled';
END $$;

SELECT p.oid::regprocedure, provolatile, proisstrict, proparallel
FROM pg_proc AS p
WHERE proname IN ('gpuvec_select', 'gpuvec_quantiles', 'gpuvec_percentiles')
ORDER BY p.oid::regprocedure::text COLLATE "C";

-- what cannot be
SELECT * FROM gpuvec_select('{1,2}'::integer[], 1);
SELECT * FROM gpuvec_quantiles('{1,2}'::numeric[], '{1}');
SELECT * FROM gpuvec_select('{1,2}'::real[], 0);
SELECT * FROM gpuvec_select('{1,2}'::real[], -1);
SELECT * FROM gpuvec_select('{}'::real[], 0);
SELECT * FROM gpuvec_select('{1,2}'::real[], 1, 'bitonic');
SELECT * FROM gpuvec_select('{1,2}'::real[], 1, '');
SELECT * FROM gpuvec_select('{1,2}'::real[], 2049, 'warp');
SELECT * FROM gpuvec_select('{1,NULL}'::real[], 1);
SELECT * FROM gpuvec_select('{{1,2},{3,4}}'::real[], 1);
SELECT * FROM gpuvec_quantiles('{1,2}'::real[], '{0}');
SELECT * FROM gpuvec_quantiles('{1,2}'::real[], '{1,3}', true);
SELECT * FROM gpuvec_quantiles('{1,2}'::real[], '{-9223372036854775808}');
SELECT * FROM gpuvec_quantiles('{1,2}'::real[], '{1,NULL}');
SELECT * FROM gpuvec_quantiles('{1,2}'::real[], '{{1},{2}}');
SELECT * FROM gpuvec_quantiles('{NULL}'::real[], '{1}');
SELECT * FROM gpuvec_quantiles('{{1,2}}'::real[], '{1}');
SELECT gpuvec_select('{2,1}'::real[], 2), gpuvec_quantiles('{2,1}'::real[], '{2}');
