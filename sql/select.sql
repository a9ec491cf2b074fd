-- selection from arrays
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS gpuvec;
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
SELECT name, array_agg(x ORDER BY i) AS v
FROM generate_series(1, 100000) AS i,
	LATERAL (VALUES ('random', hashint4(i)::real), ('ascending', i::real),
		('descending', -i::real), ('equal', 7), ('few', i % 7),
		('nan', CASE WHEN i % 3 = 0 THEN 'NaN' ELSE i % 11 END)) AS x (name, x)
GROUP BY name;
SELECT name, k, method, count(*),
	bool_and(s.val = t.val AND s.pos = t.pos) AS same
FROM selectable,
	(VALUES (1), (10), (2048), (5000), (100000)) AS k (k),
	unnest('{auto,warp,sample,multi}'::text[]) AS m (method),
	LATERAL (SELECT row_number() OVER () AS nth, pos, val
		FROM gpuvec_select(v, k, CASE WHEN k > 2048 AND method = 'warp'
			THEN 'auto' ELSE method END)) AS s
	JOIN LATERAL (SELECT row_number() OVER (ORDER BY u.val, u.pos) AS nth,
		u.pos, u.val
		FROM unnest(v) WITH ORDINALITY AS u (val, pos)) AS t USING (nth)
WHERE name IN ('random', 'nan') OR k = 5000
GROUP BY name, k, method
HAVING NOT bool_and(s.val = t.val AND s.pos = t.pos) OR count(*) <> k
	OR (name = 'nan' AND k = 5000)
ORDER BY name, k, method;

-- quantiles: exact, in the order of ranks
SELECT * FROM gpuvec_quantiles('{5,3,9,1,3}', '{5,1,3,3}');
SELECT * FROM gpuvec_quantiles('{NaN,-0,-Infinity}', '{1,2,3}');
SELECT * FROM gpuvec_quantiles('{5,3,9,1,3}', '{2,4}', true);
SELECT * FROM gpuvec_quantiles('{}', '{1}');
SELECT * FROM gpuvec_quantiles('{1}', '{}');
SELECT * FROM gpuvec_quantiles(NULL, '{1}');
SELECT * FROM gpuvec_quantiles('{1}', NULL);
SELECT name, count(*), bool_and(q.val = t.val AND rank_error = 0) AS same
FROM selectable,
	LATERAL gpuvec_quantiles(v, '{1,2,1000,50000,99999,100000}') AS q
	JOIN LATERAL (SELECT row_number() OVER (ORDER BY val) AS rank, val
		FROM unnest(v) AS val) AS t USING (rank)
GROUP BY name ORDER BY name;

-- approximate ones say how far they are off
SELECT name, count(*), bool_and(q.val = t.val) AS same,
	max(abs(rank_error)) < 100000 / 64 AS near
FROM selectable,
	LATERAL gpuvec_quantiles(v, '{1,1000,50000,99999,100000}', true) AS q
	JOIN LATERAL (SELECT row_number() OVER (ORDER BY val) AS rank, val
		FROM unnest(v) AS val) AS t ON t.rank = q.rank + rank_error
GROUP BY name ORDER BY name;
DROP TABLE selectable;

-- a statement that is cancelled ends soon
SET statement_timeout = '150ms';
DO $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	PERFORM count(*)
	FROM gpuvec_select(array_fill(1::real, ARRAY[10000000]), 10000000, 'multi');
	RAISE NOTICE 'not cancelled';
EXCEPTION WHEN query_canceled THEN
	RAISE NOTICE 'cancelled, %', CASE
		WHEN clock_timestamp() - began < interval '650 ms' THEN 'soon'
		ELSE 'late: ' || (clock_timestamp() - began) END;
END $$;
RESET statement_timeout;

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
