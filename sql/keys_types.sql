-- keys: every type, operator and pair of types, extremes, and what is asked of rows
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
-- all lists, and no pass at the end: images decide, and rows are asked only what these leave open
SET gpuvec.probes = 16777216;
SET gpuvec.candidates = 1000000;
SET gpuvec.max_probes = 16777216;
SET timezone = 'Europe/Berlin';
SET datestyle = 'ISO, YMD';

CREATE TYPE mood AS ENUM ('ok', 'good');
ALTER TYPE mood ADD VALUE 'bad' BEFORE 'ok';
ALTER TYPE mood ADD VALUE 'fair' BEFORE 'good';
ALTER TYPE mood ADD VALUE 'best';

-- values of each type: limits, what has two forms, what other types round to
CREATE TABLE sample (type text PRIMARY KEY, vals text[]);
INSERT INTO sample VALUES
	('bool', '{t,f}'),
	('int2', '{-32768,-1,0,1,5,32767}'),
	('int4', '{-2147483648,-32769,-32768,-1,0,1,5,32767,32768,2147483647}'),
	('int8', '{-9223372036854775808,-2147483649,-2147483648,-32769,-1,0,1,5,32768,2147483647,2147483648,9223372036854775807}'),
	('oid', '{0,1,5,2147483647,2147483648,4294967295}'),
	('float4', '{-Infinity,-3.4028235e38,-1,-1e-45,-0,0,1e-45,0.1,1,16777216,3.4028235e38,Infinity,NaN}'),
	('float8', '{-Infinity,-1.7976931348623157e308,-3.5e38,-1,-1e-50,-0,0,5e-324,1.401298464324817e-45,0.1,0.10000000149011612,1,16777216,16777217,3.4028234663852886e38,3.4028235e38,1.7976931348623157e308,Infinity,NaN}'),
	('numeric', '{-Infinity,-1e400,-1.00000000000000000001,-1,0,0.000,1e-400,0.1,0.10000000000000000001,1,1.0,1.00000000000000000001,9007199254740992,9007199254740993,1e309,1e400,Infinity,NaN}'),
	('date', '{-infinity,4714-11-24 BC,0044-03-15 BC,1999-12-31,2000-01-01,2026-11-24,2026-11-25,294276-12-31,294277-01-01,5874897-12-31,infinity}'),
	('timestamp', '{-infinity,4714-11-24 00:00:00 BC,0044-03-15 12:00:00 BC,1999-12-31 23:59:59.999999,2000-01-01 00:00:00,2026-10-25 02:30:00,2026-11-24 00:00:00,2026-11-24 00:00:00.000001,2026-11-25 12:00:00,294276-12-31 23:59:59.999999,infinity}'),
	('timestamptz', '{-infinity,4714-11-24 00:00:00+00 BC,0044-03-15 12:00:00+00 BC,1999-12-31 23:00:00+00,2000-01-01 00:00:00+00,2026-10-25 00:30:00+00,2026-10-25 01:30:00+00,2026-11-23 23:00:00+00,2026-11-24 00:00:00+14,2026-11-25 12:00:00-12,294276-12-31 23:59:59.999999+00,infinity}'),
	('mood', '{bad,ok,fair,good,best}'),
	('text', '{"",a,b,ab,"a ",A,ä}'),
	('varchar', '{"",a,b,ab,"a ",A,ä}'),
	('bpchar', '{"",a,b,ab,"a ",A,ä}'),
	('uuid', '{00000000-0000-0000-0000-000000000000,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,ffffffff-ffff-ffff-ffff-ffffffffffff}'),
	('bytea', '{"\\x","\\x00","\\x0000","\\x61"}'),
	('inet', '{10.0.0.1,10.0.0.1/24,10.0.0.0/8,::1,::/0}'),
	('_int2', '{"{}","{NULL}","{1}","{1,2}","{3,NULL,-32768}","{{1,4},{5,6}}"}'),
	('_int4', '{"{}","{NULL}","{1}","{1,2}","{3,NULL,-2147483648}","{{1,4},{5,6}}"}'),
	('_int8', '{"{}","{NULL}","{1}","{1,2}","{3,NULL,-9223372036854775808}","{{1,4},{5,6}}"}'),
	('_text', '{"{}","{NULL}","{a}","{a,b}","{\"\",NULL,a}","{{a,c},{d,e}}"}'),
	('jsonb', '{"{}","[]","null","1","\"a\"","[\"a\"]","[1.0, [\"a\"], true]","{\"a\": 1}","{\"a\": 1.0, \"b\": {\"c\": [1, {\"d\": null}]}}","{\"b\": {\"c\": [{}]}}"}');

-- a column for each, three rows without a key, and the same rows without an index
SELECT format('CREATE TABLE keyed (id int, v real[], %s) WITH (autovacuum_enabled = off)',
	string_agg(format('%I %s', type, type), ', ' ORDER BY type))
FROM sample \gexec
SELECT format('INSERT INTO keyed SELECT g, pg_temp.point(g, 4), %s FROM generate_series(1, 250) AS g',
	string_agg(format('(%L::text[])[g %% %s]::%s', vals, cardinality(vals) + 1, type), ', ' ORDER BY type))
FROM sample \gexec
CREATE TABLE keyed_plain AS SELECT * FROM keyed;
ANALYZE keyed;

-- what is wrong with rows that an index finds; NULL: nothing
CREATE FUNCTION pg_temp.wrong(tab regclass, condition text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	statement text := format('SELECT id FROM %s WHERE %s ORDER BY v <-> ''{0,0,0,0}''', tab, condition);
	line text;
	lines text := '';
	found int[];
	truth int[];
BEGIN
	FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || statement LOOP
		lines := lines || line;
	END LOOP;
	IF lines NOT LIKE '%Index Cond%' OR lines LIKE '%Filter%' THEN
		RETURN format('%s: %s', condition, lines);
	END IF;
	EXECUTE format('SELECT array_agg(id ORDER BY id) FROM (%s) AS q', statement) INTO found;
	EXECUTE format('SELECT array_agg(id ORDER BY id) FROM %s_plain WHERE %s', tab, condition) INTO truth;
	IF found IS DISTINCT FROM truth THEN
		RETURN format('%s: %s rows, not %s', condition, coalesce(cardinality(found), 0), coalesce(cardinality(truth), 0));
	END IF;
	RETURN NULL;
END
$$;

-- An index on six of the columns, all operators of their families with all
-- values of the type on the right, alone and in arrays; NULLs.
CREATE FUNCTION pg_temp.check_columns(columns text[])
RETURNS TABLE (col text, "right" text, operators text, conditions bigint, wrong text)
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE INDEX keyed_keys ON keyed USING gpuivfpq (v, %s) WITH (lists = 5)',
		(SELECT string_agg(quote_ident(c), ', ') FROM unnest(columns) AS c));
	RETURN QUERY
	WITH members AS (
		SELECT a.attname::text AS col, r.typname::text AS right_type, o.oprname::text AS operator, s.vals
		FROM pg_index AS i
			JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND a.attname <> 'v'
			JOIN pg_opclass AS c ON c.oid = i.indclass[array_position(i.indkey::int[], a.attnum::int)]
			JOIN pg_amop AS m ON m.amopfamily = c.opcfamily AND m.amoplefttype IN (c.opcintype, 'anyarray'::regtype)
			JOIN pg_operator AS o ON o.oid = m.amopopr
			JOIN pg_type AS r ON r.oid = CASE WHEN m.amoprighttype IN (c.opcintype, 'anyarray'::regtype)
				THEN a.atttypid ELSE m.amoprighttype END
			JOIN sample AS s ON s.type = r.typname
		WHERE i.indexrelid = 'keyed_keys'::regclass),
	conditions AS (
		SELECT m.col, right_type, operator, format('%I %s %L::%s', m.col, operator, val, right_type) AS condition
		FROM members AS m, unnest(vals) AS val
		UNION ALL
		SELECT m.col, right_type, operator, format('%I %s ANY (%L::%s[])', m.col, operator, vals[n : n + 1] || NULL, right_type)
		FROM members AS m, generate_subscripts(vals, 1) AS n WHERE right_type NOT LIKE '\_%'
		UNION ALL
		SELECT m.col, right_type, operator, format('%I %s %s', m.col, operator, argument)
		FROM members AS m, unnest(ARRAY[format('(SELECT NULL::%s)', right_type), format('ANY ((SELECT NULL::%s[])::%1$s[])', right_type),
			format('ANY (''{}''::%s[])', right_type), format('ANY (%L::%s[])', vals, right_type)]) AS argument
		WHERE right_type NOT LIKE '\_%'
		UNION ALL
		SELECT c, '', test, format('%I %s', c, test) FROM unnest(columns) AS c, unnest('{IS NULL,IS NOT NULL}'::text[]) AS test)
	SELECT q.col, right_type, string_agg(DISTINCT operator, ' ' ORDER BY operator),
		count(*), string_agg(q.wrong, E'\n' ORDER BY n) FILTER (WHERE n <= 3)
	FROM (SELECT c.col, right_type, operator, w AS wrong,
			row_number() OVER (PARTITION BY c.col, right_type ORDER BY w) AS n
		FROM conditions AS c, pg_temp.wrong('keyed', condition) AS w) AS q
	GROUP BY 1, 2 ORDER BY 1, 2;
	DROP INDEX keyed_keys;
END
$$;

-- a plan with such an index is the only one without a condition outside of it
SET gpuvec.enable_custom_scan = off;
SELECT c.*
FROM (SELECT array_agg(type ORDER BY type) AS types
	FROM (SELECT type, (row_number() OVER (ORDER BY type) - 1) / 6 AS n FROM sample) AS s GROUP BY n ORDER BY n) AS t,
	pg_temp.check_columns(types) AS c;

-- several conditions on a key, some that contradict, and more than fit
CREATE INDEX keyed_keys ON keyed USING gpuivfpq (v, int4, text, float8, mood, _int4) WITH (lists = 5);
-- lists were read, and nothing but them: what follows is answered by images
SELECT pg_temp.wrong('keyed', 'int4 < 5');
SELECT batches, lists FROM gpuvec_last_scan();
SELECT condition, pg_temp.wrong('keyed', condition)
FROM unnest(ARRAY[
	'int4 > -5 AND int4 <= 5',
	'int4 > 5 AND int4 < 5',
	'int4 >= 5 AND int4 <= 1',
	'int4 IS NULL AND int4 > 0',
	'int4 IS NULL AND int4 IS NOT NULL',
	'int4 IS NOT NULL AND text IS NULL',
	'int4 = ANY (''{5,1}'') AND int4 = ANY (''{5,0}'') AND int4 > 0',
	'int4 = ANY (''{{5,1},{NULL,0}}'')',
	'int4 = ANY (ARRAY[5000000000, -5000000000, 5])',
	'int4 = ANY (ARRAY[5000000000, -5000000000])',
	'int4 < 5000000000 AND int4 > -5000000000',
	'text = ''a'' AND text = ANY (''{b,ab}'')',
	'text = ''a'' AND text = ANY (''{a,b}'')',
	'text = ''a'' AND mood > ''ok'' AND float8 < 1',
	'mood > ''ok'' AND mood < ''best''',
	'mood > ANY (''{good,best}'')',
	'_int4 && ''{1,3}'' AND _int4 @> ''{2}''',
	'_int4 @> ''{}'' AND int4 >= 0',
	'_int4 @> ''{NULL}''',
	'v IS NOT NULL AND int4 = 1']) AS condition;
WITH many AS (
	SELECT string_agg(format('text = ANY (''{a,b,%s}'')', n), ' AND ') AS condition FROM generate_series(1, 40) AS n)
SELECT pg_temp.wrong('keyed', condition) FROM many;
WITH many AS (
	SELECT format('int4 = ANY (%L::int[])', array_agg(n)) AS condition FROM generate_series(0, 70000) AS n)
SELECT pg_temp.wrong('keyed', condition) FROM many;
WITH many AS (
	SELECT format('text = ANY (%L::text[])', array_agg(n::text) || 'a'::text || 'b'::text) AS condition FROM generate_series(0, 70000) AS n)
SELECT pg_temp.wrong('keyed', condition) FROM many;

-- values that change from scan to scan
SELECT s.vals[n], k.ids, k.ids = p.ids AS same
FROM sample AS s, generate_series(6, 9) AS n,
	LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM keyed WHERE int4 = s.vals[n]::bigint ORDER BY v <-> '{0,0,0,0}' LIMIT 3) AS q) AS k,
	LATERAL (SELECT array_agg(id) AS ids FROM (SELECT id FROM keyed_plain WHERE int4 = s.vals[n]::bigint ORDER BY v <-> '{0,0,0,0}' LIMIT 3) AS q) AS p
WHERE type = 'int4' ORDER BY n;

-- time zones as far off as can be set
DROP INDEX keyed_keys;
CREATE INDEX keyed_keys ON keyed USING gpuivfpq (v, date, timestamp, timestamptz, int4) WITH (lists = 5);
CREATE FUNCTION pg_temp.wrong_in(zone text, condition text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('timezone', zone, true);
	RETURN pg_temp.wrong('keyed', condition);
END
$$;
SELECT count(*), string_agg(wrong, E'\n') AS wrong
FROM unnest('{FAR-167:59,FAR167:59,Pacific/Kiritimati}'::text[]) AS zone, unnest('{<,<=,=,>=,>}'::text[]) AS operator,
	unnest(ARRAY['timestamptz %s date ''2026-11-24''', 'timestamptz %s timestamp ''2026-10-25 02:30''',
		'timestamp %s timestamptz ''2026-11-23 23:00+00''', 'date %s timestamptz ''2026-11-24 00:00+14''']) AS condition,
	pg_temp.wrong_in(zone, format(condition, operator)) AS wrong;

-- an index that is not trained asks rows
DROP INDEX keyed_keys;
CREATE INDEX keyed_keys ON keyed USING gpuivfpq (v, int4, text, numeric, mood, jsonb) WITH (dims = 4);
SELECT lists, pending, keys FROM gpuvec_index_info('keyed_keys');
SELECT condition, pg_temp.wrong('keyed', condition)
FROM unnest(ARRAY['int4 > 0 AND text = ''a''', 'int4 = 5000000000', 'int4 IS NULL', 'numeric < .1 AND mood >= ''ok''',
	'text = ANY (''{a,NULL,b}'')', 'int4 = (SELECT NULL::int)', 'jsonb @> ''{"a": 1}''']) AS condition;
DROP INDEX keyed_keys;

-- expressions, domains, types that are coerced, a predicate
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN label AS varchar(10);
CREATE TABLE odd (id int, v real[], name label, payload jsonb, n positive, code char(3), net cidr, rel regclass) WITH (autovacuum_enabled = off);
INSERT INTO odd SELECT g, pg_temp.point(g, 4), 'Ab' || g % 7, jsonb_build_object('x', g % 9), 1 + g % 5, chr(97 + g % 3),
	format('10.%s.0.0/16', g % 4)::cidr, (ARRAY['pg_class', 'pg_type', NULL])[1 + g % 3]::regclass
FROM generate_series(1, 200) AS g;
INSERT INTO odd (id, v) VALUES (201, '{1,2,3,4}');
CREATE TABLE odd_plain AS SELECT * FROM odd;
CREATE INDEX odd_keys ON odd USING gpuivfpq (v, lower(name), ((payload ->> 'x')::int), n, code, net, rel) WITH (lists = 5);
SELECT keys FROM gpuvec_index_info('odd_keys');
ANALYZE odd;
SELECT condition, pg_temp.wrong('odd', condition)
FROM unnest(ARRAY['lower(name) = ''ab3''', 'lower(name) = ANY (''{ab1,ab2,x}'')', 'lower(name) IS NULL', '(payload ->> ''x'')::int >= 7',
	'n = 3::bigint', 'n IN (1, 5)', 'code = ''a''', 'code = ''b  ''', 'net = ''10.2.0.0/16''', 'rel = ''pg_type''::regclass',
	'rel = ''pg_type''::regclass AND n > 2 AND lower(name) = ''ab1''']) AS condition;
DROP INDEX odd_keys;
CREATE INDEX odd_keys ON odd USING gpuivfpq (v, n, name) WITH (lists = 5) WHERE code = 'a';
SELECT condition, pg_temp.wrong('odd', condition)
FROM unnest(ARRAY['code = ''a'' AND n < 3', 'code = ''a'' AND name = ''Ab1''', 'code = ''a'' AND name = ''Ab1''::label']) AS condition;
DROP TABLE odd, odd_plain;

-- a type of one's own by a hash that says nothing, and arrays of a type without a class
CREATE FUNCTION always_7(text) RETURNS int LANGUAGE sql IMMUTABLE STRICT RETURN 7;
CREATE OPERATOR CLASS collide_ops FOR TYPE text USING gpuivfpq AS
	OPERATOR 3 =,
	FUNCTION 2 always_7(text);
CREATE OPERATOR CLASS uuid_array_ops DEFAULT FOR TYPE uuid[] USING gpuivfpq AS
	OPERATOR 6 && (anyarray, anyarray),
	OPERATOR 7 @> (anyarray, anyarray),
	FUNCTION 3 gpuvec_signature(anyarray);
ALTER TABLE keyed ADD ids uuid[];
UPDATE keyed SET ids = ARRAY[uuid, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'] WHERE id % 3 = 0;
DROP TABLE keyed_plain;
CREATE TABLE keyed_plain AS SELECT * FROM keyed;
CREATE INDEX keyed_keys ON keyed USING gpuivfpq (v, text collide_ops, ids) WITH (lists = 5);
SELECT condition, pg_temp.wrong('keyed', condition)
FROM unnest(ARRAY['text = ''a''', 'text = ANY (''{a,b}'')', 'text = ''nowhere''', 'text IS NULL',
	'ids && ''{ffffffff-ffff-ffff-ffff-ffffffffffff}''',
	'ids @> ''{ffffffff-ffff-ffff-ffff-ffffffffffff,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}''']) AS condition;
DROP INDEX keyed_keys;

-- what is no key
CREATE INDEX ON keyed USING gpuivfpq (int4, v);
CREATE INDEX ON keyed USING gpuivfpq (v, int4, v);
CREATE INDEX ON keyed USING gpuivfpq (v, v real_ip_ops);
CREATE INDEX ON keyed USING gpuivfpq (v, int2, int4, int8, oid, bool, date, text, uuid);
CREATE INDEX ON keyed USING gpuivfpq (v, (text::json));
CREATE UNIQUE INDEX ON keyed USING gpuivfpq (v, int4);
CREATE INDEX ON keyed USING gpuivfpq (v) INCLUDE (int4);
CREATE OPERATOR CLASS time_ops FOR TYPE time USING gpuivfpq AS
	OPERATOR 1 <,
	OPERATOR 3 =;
CREATE INDEX ON keyed USING gpuivfpq (v, (timestamp::time) time_ops);
CREATE UNLOGGED TABLE unlogged (v real[], i int);
CREATE INDEX ON unlogged USING gpuivfpq (i, v);
CREATE INDEX ON unlogged USING gpuivfpq (v, i) WITH (dims = 4);
-- text that is equal to other text; a server may be built without ICU
DO $$
BEGIN
	CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
	CREATE INDEX any_case_key ON keyed USING gpuivfpq (v, text COLLATE any_case);
EXCEPTION WHEN feature_not_supported THEN
	RAISE WARNING 'refused';
END
$$;

-- signatures
SELECT b, a @> b AS contains, NOT a @> b OR gpuvec_signature(a) & gpuvec_signature(b) = gpuvec_signature(b) AS sound
FROM (VALUES ('{"a": {"b": [1, "x"]}, "c": null}'::jsonb)) AS l (a),
	unnest(ARRAY['{}', '{"a": {}}', '{"a": {"b": [1.0]}}', '{"c": null}', '{"c": false}', '{"b": [1]}', '[1]', '1']::jsonb[]) AS b;
SELECT gpuvec_signature('{}'::int[]), gpuvec_signature('{NULL}'::text[]), gpuvec_signature('{1,2}'::int[]) = gpuvec_signature('{{2},{1}}'::bigint[]) AS same,
	gpuvec_signature(NULL::jsonb);
SELECT gpuvec_signature('{}'::point[]);
DROP TABLE keyed, keyed_plain, sample, unlogged;
DROP FUNCTION always_7 CASCADE;
DROP OPERATOR FAMILY uuid_array_ops USING gpuivfpq;
DROP OPERATOR FAMILY time_ops USING gpuivfpq;
DROP OPERATOR FAMILY collide_ops USING gpuivfpq;
DROP DOMAIN positive, label;
DROP TYPE mood;
