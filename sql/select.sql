-- selection from arrays
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

SELECT * FROM gpuvec_select('{5,3,9,1,3}', 3);
SELECT * FROM gpuvec_select('{5,3,9,1,3}', 3, 'warp');
SELECT * FROM gpuvec_select('{5,3,9,1,3}', 3, 'sample');
SELECT * FROM gpuvec_select('{5,3,9,1,3}', 3, method => 'multi');

-- NaN last, zeros of both signs alike, more than there are: all
SELECT * FROM gpuvec_select('{NaN,0,Infinity,-0,-Infinity,NaN,1e-45,-1e-45,0}',
	100);

-- a position is a subscript
SELECT pos, val, ('[-1:2]={4,2,3,1}'::real[])[pos] AS same
FROM gpuvec_select('[-1:2]={4,2,3,1}', 4);

-- nothing in, nothing out
SELECT * FROM gpuvec_select('{}', 3);
SELECT * FROM gpuvec_select(NULL, 3);
SELECT * FROM gpuvec_select('{1}', NULL);
SELECT * FROM gpuvec_select('{1}', 1, NULL);

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
SELECT name, count(*), bool_and(s.positions = t.positions[:k]) AS positions,
	bool_and(s.vals = t.vals[:k]) AS vals
FROM selectable AS t,
	(VALUES (1), (10), (2048), (5000), (50000)) AS k (k),
	unnest('{auto,warp,sample,multi}'::text[]) AS m (method),
	LATERAL (SELECT array_agg(pos) AS positions, array_agg(val) AS vals
		FROM gpuvec_select(v, k, method)) AS s
WHERE method <> 'warp' OR k <= 2048
GROUP BY name ORDER BY name;

-- quantiles: exact, in the order of ranks
SELECT * FROM gpuvec_quantiles('{5,3,9,1,3}', '{5,1,3,3}');
SELECT * FROM gpuvec_quantiles('{NaN,-0,-Infinity}', '{1,2,3}');
SELECT * FROM gpuvec_quantiles('{5,3,9,1,3}', '{2,4}', true);
SELECT * FROM gpuvec_quantiles('{}', '{1}');
SELECT * FROM gpuvec_quantiles('{1}', '{}');
SELECT * FROM gpuvec_quantiles(NULL, '{1}');
SELECT * FROM gpuvec_quantiles('{1}', NULL);
SELECT name, count(*), bool_and(val = vals[rank] AND rank_error = 0) AS same
FROM selectable,
	gpuvec_quantiles(v, '{1,2,1000,25000,49999,50000}')
GROUP BY name ORDER BY name;

-- approximate ones say how far they are off
SELECT name, count(*), bool_and(val = vals[rank + rank_error]) AS same,
	max(abs(rank_error)) < 50000 / 64 AS near
FROM selectable,
	gpuvec_quantiles(v, '{1,1000,25000,49999,50000}', true)
GROUP BY name ORDER BY name;
DROP TABLE selectable;

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
WHERE proname IN ('gpuvec_select', 'gpuvec_quantiles')
ORDER BY p.oid::regprocedure::text COLLATE "C";

-- what cannot be
SELECT * FROM gpuvec_select('{1,2}', 0);
SELECT * FROM gpuvec_select('{1,2}', -1);
SELECT * FROM gpuvec_select('{}', 0);
SELECT * FROM gpuvec_select('{1,2}', 1, 'bitonic');
SELECT * FROM gpuvec_select('{1,2}', 1, '');
SELECT * FROM gpuvec_select('{1,2}', 2049, 'warp');
SELECT * FROM gpuvec_select('{1,NULL}', 1);
SELECT * FROM gpuvec_select('{{1,2},{3,4}}', 1);
SELECT * FROM gpuvec_quantiles('{1,2}', '{0}');
SELECT * FROM gpuvec_quantiles('{1,2}', '{1,3}', true);
SELECT * FROM gpuvec_quantiles('{1,2}', '{-9223372036854775808}');
SELECT * FROM gpuvec_quantiles('{1,2}', '{1,NULL}');
SELECT * FROM gpuvec_quantiles('{1,2}', '{{1},{2}}');
SELECT * FROM gpuvec_quantiles('{NULL}', '{1}');
SELECT * FROM gpuvec_quantiles('{{1,2}}', '{1}');
SELECT gpuvec_select('{2,1}', 2), gpuvec_quantiles('{2,1}', '{2}');
