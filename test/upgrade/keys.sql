-- Indexes with keys: images of every width and kind; unlogged, partitioned,
-- untrained; an expression.
SET client_min_messages = error;
CREATE TYPE mood AS ENUM ('fair', 'good');
-- a member whose OID does not sort
ALTER TYPE mood ADD VALUE 'bad' BEFORE 'fair';
CREATE TABLE ordered (id int, e vector(16),
	flag bool GENERATED ALWAYS AS (nullif(id % 5, 4) < 2) STORED,
	small smallint GENERATED ALWAYS AS ((id % 300 - 150)::smallint) STORED,
	tenant int GENERATED ALWAYS AS (nullif(id * 7 % 12, 11)) STORED,
	big bigint GENERATED ALWAYS AS (id::bigint * 3000000000) STORED,
	feeling mood GENERATED ALWAYS AS
		(CASE id % 4 WHEN 0 THEN 'bad'::mood WHEN 1 THEN 'fair'::mood WHEN 2 THEN 'good'::mood END) STORED,
	price numeric GENERATED ALWAYS AS (nullif(id % 113, 5) / 7.0) STORED,
	created timestamptz GENERATED ALWAYS AS (to_timestamp((id * 86400)::float8)) STORED);
CREATE UNLOGGED TABLE hashed (id int, e real[],
	day date GENERATED ALWAYS AS ('2000-01-01'::date + id % 100) STORED,
	key uuid GENERATED ALWAYS AS (md5((id % 40)::text)::uuid) STORED,
	name text GENERATED ALWAYS AS ('N' || nullif(id % 25, 3)::text) STORED,
	bytes bytea GENERATED ALWAYS AS (decode(md5((id % 15)::text), 'hex')) STORED,
	tags int[] GENERATED ALWAYS AS (ARRAY[id % 10, id % 7 + 100]) STORED,
	doc jsonb GENERATED ALWAYS AS (('{"a": ' || (id % 5)::text || ', "b": {"c": [' || (id % 11)::text || ']}}')::jsonb) STORED);
CREATE TABLE keyed_parts (id int, e real[], tenant int GENERATED ALWAYS AS (id % 9) STORED) PARTITION BY RANGE (id);
CREATE TABLE keyed_parts_low PARTITION OF keyed_parts FOR VALUES FROM (MINVALUE) TO (1000);
CREATE TABLE keyed_parts_high PARTITION OF keyed_parts FOR VALUES FROM (1000) TO (MAXVALUE);
CREATE TABLE keyed_untrained (id int, e real[], tenant int GENERATED ALWAYS AS (id % 9) STORED);
INSERT INTO ordered SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO hashed SELECT g, point(g, 16) FROM generate_series(1, 2000) AS g;
INSERT INTO keyed_parts SELECT g, point(g, 16) FROM generate_series(1, 2500) AS g;
INSERT INTO keyed_untrained SELECT g, point(g, 16) FROM generate_series(1, 500) AS g;
CREATE INDEX ON ordered USING gpuivfpq (e, flag, small, tenant, big, feeling, price, created) WITH (refine = sq8);
CREATE INDEX ON hashed USING gpuivfpq (e real_cosine_ops, day, key, lower(name), bytes, tags, doc);
CREATE INDEX ON keyed_parts USING gpuivfpq (e, tenant);
CREATE INDEX ON keyed_untrained USING gpuivfpq (e, tenant);
INSERT INTO asked SELECT 'ordered', '<->', 16, unnest(ARRAY['flag', 'small BETWEEN -20 AND 30::int8',
	'tenant IN (3, 5, 90)', 'tenant IS NULL', 'big > 2147483648000', $$feeling = 'bad'$$, $$feeling >= 'fair'$$,
	'price <= 8', $$created >= '1972-01-01Z' AND created < '1972-02-01Z'$$, 'NOT flag AND tenant > 8']);
INSERT INTO asked SELECT 'hashed', '<=>', 16, unnest(ARRAY[$$day < '2000-01-05'$$, $$key = md5('17')::uuid$$,
	$$lower(name) = ANY ('{n5,n6,none}')$$, 'lower(name) IS NULL', $$bytes = decode(md5('3'), 'hex')$$,
	$$tags && '{4,104}'$$, $$doc @> '{"b": {"c": [7]}}'$$]);
INSERT INTO asked VALUES ('keyed_parts', '<->', 16, 'tenant = 4'), ('keyed_untrained', '<->', 16, 'tenant IN (4, 5)');
