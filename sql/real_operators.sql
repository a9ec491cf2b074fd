-- functions and operators of real[]
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

-- values
SELECT '{0,0}'::real[] <-> '{3,4}'::real[];
SELECT '{1,2}'::real[] <#> '{3,4}'::real[];
SELECT '{1,1}'::real[] <=> '{2,2}'::real[];
SELECT '{1,1}'::real[] <=> '{-1,-1}'::real[];
SELECT '{1,0}'::real[] <=> '{0,1}'::real[];
SELECT '{0,0}'::real[] <=> '{1,2}'::real[];
SELECT '{0,0}'::real[] <-> '{0,0}'::real[];
SELECT gpuvec_l2_distance('{1,2}'::real[], '{4,6}'::real[]),
	gpuvec_negative_inner_product('{1,2}'::real[], '{4,6}'::real[]),
	gpuvec_cosine_distance('{3,4}'::real[], '{4,3}'::real[]);

-- big and small numbers neither overflow nor vanish
SELECT '{3e38}'::real[] <-> '{-3e38}'::real[];
SELECT '{3e38,3e38}'::real[] <#> '{3e38,3e38}'::real[];
SELECT '{3e38,3e38}'::real[] <=> '{3e38,3e38}'::real[];
SELECT '{1e-37,2e-37}'::real[] <=> '{1e-37,2e-37}'::real[] AS same;

-- the other types on the right
CREATE TABLE reals (id int, e real[]);
INSERT INTO reals VALUES (1, '{1,2,3}'), (2, '{4,5,6}'), (3, NULL),
	(4, '{0.1,0.2,0.3}');
SELECT id, e <-> ARRAY[1,2,4] AS i, e <-> ARRAY[1,2,4]::float8[] AS f8,
	e <-> ARRAY[1,2,4]::numeric[] AS n, e <-> ARRAY[1,2,4]::real[] AS f4,
	e <-> '{1,2,4}' AS unknown
FROM reals ORDER BY id;
SELECT id, e <-> ARRAY[1,2,4]::smallint[] AS l2, e <#> ARRAY[1,2,4]::smallint[] AS ip,
	e <=> ARRAY[1,2,4]::smallint[] AS cosine, e <-> ARRAY[1,2,4]::bigint[] AS l2_8,
	e <#> ARRAY[1,2,4]::bigint[] AS ip_8, e <=> ARRAY[1,2,4]::bigint[] AS cosine_8
FROM reals ORDER BY id;
SELECT id, e <#> ARRAY[1,2,4] AS i, e <#> ARRAY[1,2,4]::float8[] AS f8,
	e <#> ARRAY[1,2,4]::numeric[] AS n, e <#> ARRAY[1,2,4]::real[] AS f4,
	e <#> '{1,2,4}' AS unknown
FROM reals WHERE id = 1;
SELECT id, e <=> ARRAY[1,2,4] AS i, e <=> ARRAY[1,2,4]::float8[] AS f8,
	e <=> ARRAY[1,2,4]::numeric[] AS n, e <=> ARRAY[1,2,4]::real[] AS f4,
	e <=> '{1,2,4}' AS unknown
FROM reals WHERE id = 2;

-- ... are rounded to real first
SELECT bool_and(e <-> q = e <-> q::real[]) AS f8,
	bool_and(e <-> q::numeric[] = e <-> q::numeric[]::real[]) AS n,
	bool_and(e <=> q = e <=> q::real[]) AS cosine,
	bool_and(e <#> q = e <#> q::real[]) AS ip
FROM reals, (VALUES ('{0.1,0.2,0.7}'::float8[]), ('{1e-20,0.5,16777217}')) AS v (q);
SELECT id, e <-> '{0.1,0.2,0.3}'::float8[] AS f8, e <-> ARRAY[0.1,0.2,0.3] AS n
FROM reals WHERE id = 4;
SELECT '{0}'::real[] <-> '{16777217}'::int[], '{0}'::real[] <-> '{1e-300}'::float8[];
SELECT bool_and('{0}'::real[] <-> ARRAY[n] = '{0}'::real[] <-> ARRAY[n::real]) AS bigints
FROM unnest('{9223372036854775807,-9007199791611905,36028799166447617}'::bigint[]) AS n;

-- number arrays on the left become real[] where PostgreSQL casts implicitly
SELECT ARRAY[1,2] <-> '{1,3}'::real[], ARRAY[1.0,2.0] <-> '{1,3}'::real[];
\set VERBOSITY terse
SELECT ARRAY[1,2]::float8[] <-> '{1,3}'::real[];
\set VERBOSITY default
SELECT ARRAY[1,2]::smallint[] <-> '{1,3}'::real[], ARRAY[1,2]::bigint[] <-> '{1,3}'::real[];

-- a numeric[] that changes from row to row is not mistaken for the last one
SELECT g, '{0}'::real[] <-> ARRAY[g / 2 + 0.5] AS d
FROM generate_series(0, 5) AS g;

-- arrays that are stored short, compressed, out of line, with other bounds
CREATE TABLE stored (id int, e real[], n numeric[]);
INSERT INTO stored
SELECT d, array_agg((i % 7)::real), array_agg((i % 7)::numeric)
FROM (VALUES (1), (3), (1000), (16000)) AS s (d), generate_series(1, d) AS i
GROUP BY d;
INSERT INTO stored VALUES (0, '[5:7]={3,4,0}', '[-1:1]={0,0,0}');
ALTER TABLE stored ALTER e SET STORAGE EXTERNAL;
INSERT INTO stored SELECT id + 1, e, n FROM stored WHERE id >= 1000;
SELECT id, e <-> e AS zero, e <-> n AS rounded, e <=> n AS cosine
FROM stored WHERE id > 0 ORDER BY id;
SELECT id, e <-> n FROM stored WHERE id = 0;
DROP TABLE stored;

-- strict
SELECT '{1}'::real[] <-> NULL::real[], NULL::real[] <=> '{1}'::float8[],
	'{1}'::real[] <#> NULL::numeric[];

-- how operators commute
SELECT o.oprname, o.oprright::regtype, c.oid::regoperator
FROM pg_operator AS o LEFT JOIN pg_operator AS c ON c.oid = o.oprcom
WHERE o.oprleft = 'real[]'::regtype
	AND o.oprcode::text LIKE '%gpuvec\_%'
	AND o.oprright IN ('real[]'::regtype, 'float8[]'::regtype,
		'int[]'::regtype, 'numeric[]'::regtype, 'smallint[]'::regtype,
		'bigint[]'::regtype)
ORDER BY 1, 2;
SELECT p.oid::regprocedure, provolatile, proisstrict, proparallel
FROM pg_proc AS p JOIN pg_depend AS d ON d.objid = p.oid
WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	AND p.prorettype = 'float8'::regtype
	AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'gpuvec')
ORDER BY p.oid::regprocedure::text COLLATE "C";

-- what is no vector
SELECT '{}'::real[] <-> '{1}'::real[];
SELECT '{1}'::real[] <-> '{}'::real[];
SELECT '{{1,2},{3,4}}'::real[] <-> '{1,2}'::real[];
SELECT '{1,2}'::real[] <-> '{{1,2},{3,4}}'::float8[];
SELECT '{1,NULL}'::real[] <-> '{1,2}'::real[];
SELECT '{1,2}'::real[] <=> '{1,NULL}'::float8[];
SELECT '{1,2}'::real[] <#> '{NULL,2}'::numeric[];
SELECT '{1,2}'::real[] <#> '{NULL,2}'::int[];
SELECT '{1,2}'::real[] <#> '{NULL,2}'::smallint[];
SELECT '{1,2}'::real[] <-> '{1,2,3}'::bigint[];
SELECT '{1,NaN}'::real[] <-> '{1,2}'::real[];
SELECT '{1,2}'::real[] <-> '{NaN,2}'::float8[];
SELECT '{1,2}'::real[] <-> '{1,NaN}'::numeric[];
SELECT '{Infinity,2}'::real[] <=> '{1,2}'::real[];
SELECT '{1,2}'::real[] <=> '{1,-Infinity}'::float8[];
SELECT '{1,2}'::real[] <=> '{1,Infinity}'::numeric[];
SELECT '{1,2}'::real[] <-> '{1,1e39}'::float8[];
SELECT '{1,2}'::real[] <-> ARRAY[1, 1e39];
SELECT '{1,2,3}'::real[] <-> '{1,2,3,4}'::real[];
SELECT '{1,2,3}'::real[] <#> '{1,2}'::float8[];
SELECT '{1,2,3}'::real[] <=> ARRAY[1,2];
SELECT array_fill(1::real, ARRAY[16000]) <-> array_fill(2::float8, ARRAY[16000]);
SELECT array_fill(1::real, ARRAY[16001]) <-> array_fill(1::real, ARRAY[16001]);
\set VERBOSITY terse
SELECT '{1}'::real[] <-> ARRAY['a'];
\set VERBOSITY default

-- a bitmap without a NULL in it is fine
SELECT array_replace('{1,NULL}'::real[], NULL, 2) <-> '{1,2}'::real[];

DROP TABLE reals;
