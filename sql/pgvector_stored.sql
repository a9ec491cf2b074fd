-- values of pgvector's types that are read without their cast, and functions
-- that only have its name
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector CASCADE;

-- stored in every way: short, long, compressed, out of line; signs of zeros, the
-- smallest and largest numbers
CREATE TABLE kinds (kind text, n int);
INSERT INTO kinds VALUES ('1', 1), ('31', 31), ('96', 96), ('500', 500), ('2000', 2000);
CREATE TABLE sums (kind text, storage text, r text, v text, h text);
DO $$
DECLARE
	kind record;
	storage text;
BEGIN
	FOR kind IN SELECT * FROM kinds LOOP
		FOREACH storage IN ARRAY '{plain,external,extended,main}'::text[] LOOP
			CONTINUE WHEN storage = 'plain' AND kind.n > 1000;
			CREATE TABLE t (id int, r real[], v vector, h halfvec);
			EXECUTE format('ALTER TABLE t ALTER v SET STORAGE %1$s, ALTER h SET STORAGE %1$s', storage);
			INSERT INTO t
			SELECT i, a, a::vector, a::halfvec
			FROM generate_series(1, 20) AS i,
				LATERAL (SELECT array_agg(CASE WHEN j > 40 AND i % 2 = 0 THEN i
						ELSE ('{0,-0,65504,-65504,6e-8,-6.1035e-5,1,0.333251953125}'::real[])[1 + (hashint4(i * 5000 + j) & 7)] END ORDER BY j)
					::halfvec::real[] AS a FROM generate_series(1, kind.n) AS j) AS s;
			EXECUTE format($q$ INSERT INTO sums SELECT %L, %L, %s $q$, kind.kind, storage, (
				SELECT string_agg(format($q$ (SELECT md5(string_agg(query || ' ' || n || ' ' || distance, ','))
					FROM (SELECT query, row_number() OVER () AS n, distance
						FROM gpuvec_exact_search('t', %L, (SELECT array_agg(r) FROM t WHERE id < 9), 20, 'l2')) AS d) $q$, c), ',')
				FROM unnest('{r,v,h}'::text[]) AS c));
			DROP TABLE t;
		END LOOP;
	END LOOP;
END
$$;
SELECT kind, count(*), count(DISTINCT r) AS of_one_kind, bool_and(r = v) AS vector, bool_and(r = h) AS halfvec
FROM sums GROUP BY kind ORDER BY length(kind), kind;

-- functions of the casts' names in the extension, which say something else: what
-- they say counts
CREATE SCHEMA odd;
CREATE FUNCTION odd.vector_to_float4(vector, integer, boolean) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT AS $$ SELECT array_agg((x * n)::real ORDER BY n)
	FROM unnest(public.vector_to_float4($1, $2, $3)) WITH ORDINALITY AS u (x, n) $$;
CREATE FUNCTION odd.vector_to_float4(halfvec, integer, boolean) RETURNS real[]
LANGUAGE sql IMMUTABLE STRICT AS $$ SELECT public.halfvec_to_float4($1, $2, $3) $$;
ALTER EXTENSION vector ADD FUNCTION odd.vector_to_float4(vector, integer, boolean);
ALTER EXTENSION vector ADD FUNCTION odd.vector_to_float4(halfvec, integer, boolean);
CREATE OPERATOR CLASS odd.vector_stretched FOR TYPE vector USING gpuivfpq AS
	OPERATOR 1 <-> (vector, vector) FOR ORDER BY float_ops,
	FUNCTION 1 odd.vector_to_float4(vector, integer, boolean);
CREATE OPERATOR CLASS odd.halfvec_as_vector FOR TYPE halfvec USING gpuivfpq AS
	OPERATOR 1 <-> (halfvec, halfvec) FOR ORDER BY float_ops,
	FUNCTION 1 odd.vector_to_float4(halfvec, integer, boolean);
CREATE TABLE same AS
SELECT i AS id, v AS r, (SELECT array_agg((x * n)::real ORDER BY n) FROM unnest(v) WITH ORDINALITY AS u (x, n)) AS stretched,
	v::vector(12) AS v, v::halfvec(12) AS h
FROM generate_series(1, 500) AS i, LATERAL (SELECT pg_temp.numbers(i, 12, 63)) AS n (v);
CREATE INDEX same_r ON same USING gpuivfpq (r) WITH (dims = 12, lists = 9);
CREATE INDEX same_stretched ON same USING gpuivfpq (stretched) WITH (dims = 12, lists = 9);
CREATE INDEX same_v ON same USING gpuivfpq (v) WITH (lists = 9);
CREATE INDEX same_odd ON same USING gpuivfpq (v odd.vector_stretched) WITH (lists = 9);
CREATE INDEX same_h ON same USING gpuivfpq (h odd.halfvec_as_vector) WITH (lists = 9);
CREATE FUNCTION lists_of(index regclass) RETURNS text LANGUAGE sql AS
$$ SELECT md5(string_agg(s::text, ',' ORDER BY s::text)) FROM gpuvec_list_stats(index) AS s $$;
SELECT lists_of('same_r') = lists_of('same_v') AS vector, lists_of('same_r') = lists_of('same_h') AS named_so,
	lists_of('same_stretched') = lists_of('same_odd') AS stretched, lists_of('same_r') = lists_of('same_odd') AS as_cast;
ALTER EXTENSION vector DROP FUNCTION odd.vector_to_float4(vector, integer, boolean);
ALTER EXTENSION vector DROP FUNCTION odd.vector_to_float4(halfvec, integer, boolean);

DROP TABLE kinds, sums, same;
DROP FUNCTION lists_of;
DROP SCHEMA odd CASCADE;
