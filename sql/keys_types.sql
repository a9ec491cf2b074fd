-- keys: every type, operator and pair of types, extremes, and what is asked of rows
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SET gpuvec.recall = 1;
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
CREATE TABLE plain AS SELECT * FROM keyed;
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
	EXECUTE format('SELECT array_agg(id ORDER BY id) FROM plain WHERE %s', condition) INTO truth;
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
