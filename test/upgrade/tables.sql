-- Tables with indexes of all kinds without keys, and what is asked of
-- them.  Every table has id and e; whatever else it has follows from these.

-- what is asked: rows by distance of `vector` from a point, under a condition
CREATE TABLE asked (tab text, operator text, dims int, condition text DEFAULT 'true', vector text DEFAULT 'e');

CREATE FUNCTION point(g int, dims int) RETURNS real[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT array_agg(((g % 20 * 131 + i * 17) % 97 - 48 + ((g * 7919 + i * 10477 + g * i * 31) % 4093) / 1024.0)::real ORDER BY i)
	FROM generate_series(1, dims) AS i
$$;
CREATE FUNCTION doubled(e real[]) RETURNS real[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
	RETURN (SELECT array_agg(x * 2 ORDER BY n) FROM unnest(e) WITH ORDINALITY AS u (x, n));
END $$;

-- Statements about the n-th query of what is asked: by the index, by a sort.
CREATE FUNCTION statement(a asked, n int, sorted bool) RETURNS text LANGUAGE sql STABLE AS $$
	SELECT format('SELECT %s FROM %s WHERE (%s)%s AND %s IS NOT NULL ORDER BY (%s %s %L::real[])%s LIMIT 10',
		'id', a.tab, a.condition, CASE WHEN sorted THEN ' IS TRUE' END, a.vector, a.vector, a.operator,
		point(n * 7919, a.dims), CASE WHEN sorted THEN ' + 0' END)
$$;
CREATE FUNCTION ids(a asked, n int, sorted bool) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SELECT string_agg(id::text, '' '') FROM (%s) AS q', statement(a, n, sorted)) INTO result;
	RETURN coalesce(result, 'none');
END $$;
-- Is it the index that answers?
CREATE FUNCTION by_index(a asked) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	line text;
	condition_too bool := a.condition = 'true';
	scan bool := false;
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement(a, 1, false) LOOP
		scan := scan OR line LIKE '%Order By: %';
		condition_too := condition_too OR line LIKE '%Index Cond: %';
	END LOOP;
	RETURN scan AND condition_too;
END $$;

-- Refine records; cosine; blocks of two pages, inner product; untrained; a
-- dropped column; an expression and a predicate; names that need quotes.
CREATE TABLE refined (id int, e real[]);
CREATE TABLE cosine (gone text, id int, e real[]);
ALTER TABLE cosine DROP gone;
CREATE TABLE wide (id int, e real[]);
CREATE TABLE untrained (id int, e real[]);
CREATE TABLE expression (id int, e real[]);
CREATE SCHEMA "Odd ""schema""";
CREATE TABLE "Odd ""schema"""."a table" (id int, e real[]);
-- pgvector's types; unlogged; partitions, one of them unlogged
CREATE TABLE vectors (id int, e vector(16));
CREATE TABLE halves (id int, e halfvec(16));
CREATE UNLOGGED TABLE unlogged (id int, e real[]);
CREATE TABLE parts (id int, e vector(16)) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (1000);
CREATE UNLOGGED TABLE parts_high PARTITION OF parts FOR VALUES FROM (1000) TO (MAXVALUE);

INSERT INTO refined SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO cosine SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO wide SELECT g, point(g, 1100) FROM generate_series(1, 200) AS g;
INSERT INTO untrained SELECT g, point(g, 16) FROM generate_series(1, 500) AS g;
INSERT INTO expression SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO "Odd ""schema"""."a table" SELECT g, point(g, 16) FROM generate_series(1, 1500) AS g;
INSERT INTO vectors SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO halves SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO unlogged SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO parts SELECT g, point(g, 16) FROM generate_series(1, 2500) AS g;
CREATE MATERIALIZED VIEW seen AS SELECT id, e FROM refined WHERE id % 4 <> 1;

SET client_min_messages = error;
CREATE INDEX ON refined USING gpuivfpq (e) WITH (lists = 25, refine = sq8);
CREATE INDEX ON cosine USING gpuivfpq (e real_cosine_ops);
CREATE INDEX ON wide USING gpuivfpq (e real_ip_ops) WITH (lists = 4, pq_dim = 900, spill = 0, dims = 1100);
CREATE INDEX ON untrained USING gpuivfpq (e);
CREATE INDEX ON expression USING gpuivfpq (doubled(e)) WHERE id % 3 > 0;
CREATE INDEX "an index" ON "Odd ""schema"""."a table" USING gpuivfpq (e);
CREATE INDEX ON vectors USING gpuivfpq (e vector_cosine_ops);
CREATE INDEX ON halves USING gpuivfpq (e);
CREATE INDEX ON unlogged USING gpuivfpq (e);
CREATE INDEX ON parts USING gpuivfpq (e vector_ip_ops);
CREATE INDEX ON seen USING gpuivfpq (e);

INSERT INTO asked VALUES ('refined', '<->', 16), ('cosine', '<=>', 16), ('wide', '<#>', 1100),
	('untrained', '<->', 16), ('"Odd ""schema"""."a table"', '<->', 16), ('vectors', '<=>', 16),
	('halves', '<->', 16), ('unlogged', '<->', 16), ('parts', '<#>', 16), ('seen', '<->', 16);
INSERT INTO asked (tab, operator, dims, vector) VALUES ('(SELECT * FROM expression WHERE id % 3 > 0) AS x', '<->', 16, 'doubled(e)');
