-- The fixture's tables, whose keys follow from the number of a row.  Numbers
-- that floats hold exactly, so that rows are the same on every machine; PLAIN,
-- so that they lie in line, uncompressed.  Images of an enum are the OIDs of
-- its members: these are given, the last member with an odd one, as members
-- have that are added.
CREATE FUNCTION fixture(g int, dims int) RETURNS real[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT array_agg(((g % 20 * 131 + i * 17) % 97 - 48
		+ ((g * 7919 + i * 10477 + g * i * 31) % 257) / 64.0)::real ORDER BY i)
	FROM generate_series(1, dims) AS i
$$;
CREATE TYPE mood AS ENUM ('bad', 'fair', 'good');
SET allow_system_table_mods = on;
UPDATE pg_enum SET oid = 900000 + 2 * enumsortorder::int + (enumlabel = 'good')::int
WHERE enumtypid = 'mood'::regtype;
RESET allow_system_table_mods;
CREATE TABLE ordered (id int, e real[],
	flag bool GENERATED ALWAYS AS (nullif(id % 5, 4) < 2) STORED,
	small smallint GENERATED ALWAYS AS ((id % 300 - 150)::smallint) STORED,
	tenant int GENERATED ALWAYS AS (nullif(id * 7 % 12, 11)) STORED,
	big bigint GENERATED ALWAYS AS (id::bigint * 3000000000) STORED,
	score float8 GENERATED ALWAYS AS (CASE WHEN id % 50 = 7 THEN 'NaN' ELSE (id % 97)::float8 / 8 END) STORED,
	price numeric GENERATED ALWAYS AS (nullif(id % 113, 5) / 7.0) STORED,
	created timestamptz GENERATED ALWAYS AS (to_timestamp((id * 86400)::float8)) STORED);
CREATE TABLE hashed (id int, e real[],
	day date GENERATED ALWAYS AS ('2000-01-01'::date + id % 100) STORED,
	owner oid GENERATED ALWAYS AS (((id + 2000) % 30)::oid) STORED,
	feeling mood GENERATED ALWAYS AS (CASE id % 4 WHEN 0 THEN 'bad'::mood WHEN 1 THEN 'fair'::mood WHEN 2 THEN 'good'::mood END) STORED,
	key uuid GENERATED ALWAYS AS (md5((id % 40)::text)::uuid) STORED,
	name text GENERATED ALWAYS AS ('n' || nullif(id % 25, 3)::text) STORED,
	bytes bytea GENERATED ALWAYS AS (decode(md5((id % 15)::text), 'hex')) STORED,
	host inet GENERATED ALWAYS AS ('10.0.0.0'::inet + (id + 2000) % 60) STORED);
CREATE TABLE sets (id int, e real[],
	tags int[] GENERATED ALWAYS AS (ARRAY[id % 10, id % 7 + 100]) STORED,
	words text[] GENERATED ALWAYS AS (CASE WHEN id % 9 > 0 THEN ARRAY['w' || (id % 9)::text, NULL] END) STORED,
	doc jsonb GENERATED ALWAYS AS (('{"a": ' || (id % 5)::text || ', "b": {"c": [' || (id % 11)::text || ']}}')::jsonb) STORED,
	code char(4) GENERATED ALWAYS AS ((id % 20)::text::char(4)) STORED,
	label varchar(10) GENERATED ALWAYS AS (('v' || (id % 6)::text)::varchar(10)) STORED,
	weight real GENERATED ALWAYS AS ((id % 64)::real / 4) STORED,
	at timestamp GENERATED ALWAYS AS ('2000-01-01'::timestamp + id * '1 hour'::interval) STORED);
CREATE TABLE wide (id int, e real[],
	tenant int GENERATED ALWAYS AS (nullif(id % 4, 3)) STORED);
CREATE TABLE untrained (id int, e real[],
	tenant int GENERATED ALWAYS AS (nullif(id % 4, 3)) STORED);
CREATE TABLE inplace (id int, e real[],
	tenant int GENERATED ALWAYS AS (nullif(id % 4, 3)) STORED);
ALTER TABLE ordered ALTER e SET STORAGE PLAIN;
ALTER TABLE hashed ALTER e SET STORAGE PLAIN;
ALTER TABLE sets ALTER e SET STORAGE PLAIN;
ALTER TABLE wide ALTER e SET STORAGE PLAIN;
ALTER TABLE untrained ALTER e SET STORAGE PLAIN;
ALTER TABLE inplace ALTER e SET STORAGE PLAIN;
