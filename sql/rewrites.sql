-- Advice of gpuvec_doctor(query) gives the same rows: each condition that it
-- rewrites, and each statement, is asked as it was and as it is advised.
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
SET enable_seqscan = on;
SET timezone = 'UTC';
CREATE TYPE mood AS ENUM ('bad', 'good', 'it''s', '5');
CREATE TABLE adv (id int PRIMARY KEY, tenant int, small int2, big bigint, number oid, flag bool, uid uuid, feeling mood,
	tag text, at timestamp, atz timestamptz, day date, meta jsonb, tags text[], bigs bigint[], shorts int2[], e real[]);
-- documents of all forms, and texts and numbers that look alike
CREATE TABLE docs (n serial, meta jsonb);
INSERT INTO docs (meta) SELECT x::jsonb FROM unnest(ARRAY[
	'{"lang": "de"}', '{"lang": "de", "n": 5}', '{"lang": ["de"]}', '{"lang": {"de": 1}}', '["lang", "de"]', '"lang"', '"de"',
	'{"lang": "DE"}', '{"lang": null}', '{}', '[]', '5', 'null', '{"n": 5}', '{"n": "5"}', '{"n": 5.0}', '{"n": "5.0"}', '{"n": -5}',
	'{"n": "-5"}', '{"n": "05"}', '{"n": [5]}', '{"n": 5e0}', '{"n": 1e3}', '{"n": "1e3"}', '{"b": true}', '{"b": "true"}', '{"b": [true]}', '{"b": "null"}',
	'{"b": null}', '{"a": {"b": "x"}}', '{"a": {"b": "x", "c": 1}}', '{"a": [{"b": "x"}]}', '{"a": "{\"b\": \"x\"}"}', '{"a": {"b": ["x"]}}',
	'{"a": {"1": "x"}}', '{"a": ["y", "x"]}', '{"lang": ""}', '{"": "de"}', '{"lang": "[1]"}', '{"lang": [1]}', '{"lang": [1, 2]}', '{"lang": {"de": 1, "en": 2}}',
	'[{"lang": "de"}]', '{"lang": "a\"b\\c"}', '{"n": 5.00}', '{"n": "."}', '{"n": "-"}', '{"n": "1-2"}', '{"b": "false"}', '{"b": false}'])
	AS x;
INSERT INTO docs (meta) VALUES (NULL);
-- ... and every column has NULLs, extremes, and what lies beside what is asked
INSERT INTO adv SELECT g, nullif(g % 13 - 4, 5), (ARRAY[-32768, 32767, 0, 2, NULL])[g % 6 + 1],
	(ARRAY[9007199254740991, 9007199254740992, 9007199254740993, 9007199254740994, 2, -2, 9223372036854775807, 16777216, 16777217])[g % 10 + 1],
	(ARRAY[0, 2, 4294967295, 2147483648])[g % 5 + 1]::oid, (ARRAY[true, false])[g % 3 + 1],
	('00000000-0000-0000-0000-0000000000' || lpad((g % 20)::text, 2, '0'))::uuid, (enum_range(NULL::mood))[g % 5 + 1], (ARRAY['de', 'DE', 'd''e', '2', ''])[g % 6 + 1],
	CASE WHEN g % 50 = 0 THEN 'infinity' WHEN g % 50 = 1 THEN '-infinity' WHEN g % 50 > 2
		THEN timestamp '2026-01-04' + (g % 97) * interval '30 minutes' - (g % 4) * interval '1 microsecond' END,
	CASE WHEN g % 50 = 0 THEN 'infinity' WHEN g % 50 = 1 THEN '-infinity' WHEN g % 50 > 2
		THEN timestamptz '2026-01-04' + (g % 97) * interval '30 minutes' - (g % 4) * interval '1 microsecond' END,
	date '2026-01-04' + g % 3, (SELECT meta FROM docs WHERE n = g % 60 + 1),
	(ARRAY['{de}', '{de,en}', '{}', '{NULL}', '{NULL,de}', '{{de,en},{fr,it}}', '{"de en"}', '{DE}', NULL])[g % 9 + 1]::text[],
	(ARRAY['{5}', '{5,6}', '{}', '{NULL}', '{NULL,5}', '{9007199254740993}', NULL])[g % 7 + 1]::bigint[],
	(ARRAY['{5}', '{32767}', '{}', NULL])[g % 4 + 1]::int2[],
	CASE WHEN g % 11 > 0 THEN pg_temp.point(g, 8) END
FROM generate_series(1, 3000) AS g;
CREATE INDEX adv_1 ON adv USING gpuivfpq (e, tenant, small, big, number, flag, uid, tag);
CREATE INDEX adv_2 ON adv USING gpuivfpq (e, feeling, at, atz, meta, tags, bigs, shorts);
ANALYZE adv;

-- what the doctor says of a condition that is a filter for an index, as a
-- condition to be asked in its place; NULL: nothing
CREATE FUNCTION pg_temp.advised(condition text, index text) RETURNS TABLE (state text, advice text, better text)
LANGUAGE sql AS $$
	SELECT substr(d.state, strpos(d.state, 'condition: ') + 11), d.advice, CASE WHEN d.advice LIKE 'Write %' THEN substring(d.advice FROM 'Write (.*) instead\.')
		WHEN d.advice LIKE 'Add %' THEN format('(%s) AND %s', condition, substring(d.advice FROM 'Add the condition (.*)\.$')) END
	FROM gpuvec_doctor(format('SELECT id FROM adv WHERE %s ORDER BY e <-> $1 LIMIT 10', condition)) AS d
	WHERE d.subject = index AND d.state ~ 'is a filter'
$$;
-- rows of the better condition that are not the first one's, or the other way;
-- and is it one of the index?
CREATE FUNCTION pg_temp.compare(condition text, index text DEFAULT 'adv_1') RETURNS TABLE (state text, advice text, rows bigint, other_rows bigint, same_nearest bool, answered bool)
LANGUAGE plpgsql SET gpuvec.recall = 1 SET enable_sort = off AS $$
DECLARE
	better text;
	nearest text := 'SELECT array_agg(id) FROM (SELECT id FROM adv WHERE %s ORDER BY e <-> ''{1,2,3,4,5,6,7,8}'' LIMIT 20) AS q';
	first int[];
	second int[];
BEGIN
	FOR state, advice, better IN SELECT * FROM pg_temp.advised(condition, index) LOOP
		rows := NULL; other_rows := NULL; same_nearest := NULL; answered := NULL;
		IF better IS NOT NULL THEN
			EXECUTE format('SELECT count(*) FILTER (WHERE a), count(*) FILTER (WHERE a IS TRUE <> b IS TRUE) FROM (SELECT (%s) AS a, (%s) AS b FROM adv) AS x',
				condition, better) INTO rows, other_rows;
			EXECUTE format(nearest, condition) INTO first;
			EXECUTE format(nearest, better) INTO second;
			same_nearest := first IS NOT DISTINCT FROM second;
			answered := advice LIKE 'Add %' OR NOT EXISTS (SELECT FROM pg_temp.advised(better, index));
		END IF;
		RETURN NEXT;
	END LOOP;
END
$$;
\pset format unaligned
\pset fieldsep '\n    '
\t on

-- keys of another type
SELECT * FROM pg_temp.compare('tenant = 2::numeric');
SELECT * FROM pg_temp.compare('2.0 = tenant');
SELECT * FROM pg_temp.compare('tenant < 2.0');
SELECT * FROM pg_temp.compare('tenant >= 2::real');
SELECT * FROM pg_temp.compare('-2.00::numeric < tenant');
SELECT * FROM pg_temp.compare('tenant = 2.5');
SELECT * FROM pg_temp.compare('tenant = ''NaN''::float8');
SELECT * FROM pg_temp.compare('tenant IN (1.0, 2, 3, NULL)');
SELECT * FROM pg_temp.compare('tenant IN (1.0, 2.5)');
SELECT * FROM pg_temp.compare('tenant IN (1.0, 9999999999.0)');
SELECT * FROM pg_temp.compare('tenant = $2::numeric');
SELECT * FROM pg_temp.compare('small = 32767.0');
SELECT * FROM pg_temp.compare('small > 40000::float8');
SELECT * FROM pg_temp.compare('big = 2::float8');
SELECT * FROM pg_temp.compare('big = 9007199254740991::float8');
SELECT * FROM pg_temp.compare('big = 9007199254740992::float8');
SELECT * FROM pg_temp.compare('big = 9007199254740993::numeric');
SELECT * FROM pg_temp.compare('big <= 16777216::real');
SELECT * FROM pg_temp.compare('big = 99999999999999999999::numeric');
-- ... as text
SELECT * FROM pg_temp.compare('tenant::text = ''2''');
SELECT * FROM pg_temp.compare('tenant::text = ''-2''');
SELECT * FROM pg_temp.compare('tenant::text = ''02''');
SELECT * FROM pg_temp.compare('tenant::text = '' 2''');
SELECT * FROM pg_temp.compare('tenant::text = ''-0''');
SELECT * FROM pg_temp.compare('tenant::text < ''2''');
SELECT * FROM pg_temp.compare('tenant::text IN (''2'', ''3'')');
SELECT * FROM pg_temp.compare('tenant::text IN (''2'', ''x'')');
SELECT * FROM pg_temp.compare('tenant::text = $2');
SELECT * FROM pg_temp.compare('small::text = ''40000''');
SELECT * FROM pg_temp.compare('big::text = ''9223372036854775808''');
SELECT * FROM pg_temp.compare('number::text = ''4294967295''');
SELECT * FROM pg_temp.compare('number::text = ''4294967296''');
SELECT * FROM pg_temp.compare('flag::text = ''true''');
SELECT * FROM pg_temp.compare('flag::text = ''t''');
SELECT * FROM pg_temp.compare('uid::text = ''00000000-0000-0000-0000-000000000007''');
SELECT * FROM pg_temp.compare('uid::text = ''00000000000000000000000000000007''');
SELECT * FROM pg_temp.compare('feeling::text = ''it''''s''', 'adv_2');
SELECT * FROM pg_temp.compare('feeling::text = ''none''', 'adv_2');
SELECT * FROM pg_temp.compare('tag = ''de''::name');
SELECT * FROM pg_temp.compare('lower(tag) = ''de''');
-- sub-selects
SELECT state, advice FROM unnest('{tenant NOT IN (SELECT 2),tenant::text = (SELECT ''2''),tenant <> (SELECT a.id - tenant),NOT EXISTS (SELECT FROM docs WHERE n = tenant OR n < 0)}'::text[]) AS x,
	gpuvec_doctor(format('SELECT id FROM adv AS a WHERE %s ORDER BY e <-> $1 LIMIT 10', x)) WHERE subject = 'adv_1' AND state ~ 'filter';
-- alternatives
-- (from 18 on the planner itself makes an array of them)
SELECT x FROM unnest(ARRAY['tenant = 2 OR tenant = 3 OR 4 = tenant', 'tag = ''de'' OR tag = ''d''''e''']) AS x, pg_temp.compare(x)
WHERE other_rows > 0 OR NOT same_nearest OR NOT answered;
SELECT * FROM pg_temp.compare('tenant = 2 OR tag = ''de''');
SELECT * FROM pg_temp.compare('tenant = 2 OR tenant > 3');
SELECT * FROM pg_temp.compare('tenant = 2 OR tenant IS NULL');
-- elements
SELECT * FROM pg_temp.compare('''de'' = ANY (tags)', 'adv_2');
SELECT * FROM pg_temp.compare('5 = ANY (bigs)', 'adv_2');
SELECT * FROM pg_temp.compare('5 = ANY (shorts)', 'adv_2');
SELECT * FROM pg_temp.compare('40000 = ANY (shorts)', 'adv_2');
SELECT * FROM pg_temp.compare('5.0 = ANY (bigs)', 'adv_2');
SELECT * FROM pg_temp.compare('''de'' = ALL (tags)', 'adv_2');
SELECT * FROM pg_temp.compare('''de'' < ANY (tags)', 'adv_2');
SELECT * FROM pg_temp.compare('''de'' COLLATE "C" = ANY (tags)', 'adv_2');
SELECT advice FROM pg_temp.advised('$2 = ANY (tags)', 'adv_2');
-- documents
SELECT * FROM pg_temp.compare('meta ->> ''lang'' = ''de''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' IN (''de'', ''DE'')', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' IN (''de'', ''[1]'')', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' = ''''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> '''' = ''de''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' = ''[1]''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' = ''{"de": 1}''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' = E''a"b\\c''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''n'' = ''5''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''n'' = ''5.0''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''n'' = ''-5''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''n'' = ''05''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''n'' = ''1e3''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''n'' = ''1000''', 'adv_2');
SELECT other_rows FROM unnest('{.,-,1-2,5.}'::text[]) AS n, pg_temp.compare(format('meta ->> ''n'' = %L', n), 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''b'' = ''true''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''b'' = ''null''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' = $2', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> ''lang'' > ''de''', 'adv_2');
SELECT * FROM pg_temp.compare('meta ->> 1 = ''de''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''lang'' = ''"de"''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''lang'' = ''null''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''n'' = ''5''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''lang'' = ''{"de": 1}''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''lang'' = ''[1]''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''a'' ->> ''b'' = ''x''', 'adv_2');
SELECT * FROM pg_temp.compare('meta #>> ''{a,b}'' = ''x''', 'adv_2');
SELECT * FROM pg_temp.compare('meta #>> ''{a,1}'' = ''x''', 'adv_2');
SELECT * FROM pg_temp.compare('meta -> ''a'' #> ''{b}'' = ''"x"''', 'adv_2');
-- days
SELECT * FROM pg_temp.compare('at::date = ''2026-01-05''', 'adv_2');
SELECT * FROM pg_temp.compare('''2026-01-05'' < at::date', 'adv_2');
SELECT other_rows, answered FROM unnest('{<,<=,>=,>}'::text[]) AS o, pg_temp.compare(format('at::date %s ''2026-01-05''', o), 'adv_2');
SELECT advice FROM pg_temp.compare('at::date BETWEEN ''2026-01-04'' AND ''2026-01-05''', 'adv_2');
SELECT * FROM pg_temp.compare('at::date = ''infinity''', 'adv_2');
SELECT * FROM pg_temp.compare('date(at) = ''5874897-12-31''', 'adv_2');
SELECT * FROM pg_temp.compare('at::date = current_date', 'adv_2');
SELECT * FROM pg_temp.compare('at::date = now()', 'adv_2');
SELECT * FROM pg_temp.compare('atz::date = ''2026-01-05''', 'adv_2');
SELECT other_rows, answered FROM unnest('{<,<=,>=,>}'::text[]) AS o, pg_temp.compare(format('atz::date %s ''2026-01-05''', o), 'adv_2');
SELECT * FROM pg_temp.compare('atz::date = current_date', 'adv_2');
SELECT advice FROM pg_temp.advised('atz::date = $2', 'adv_2');
SELECT * FROM pg_temp.compare('date_trunc(''day'', at) = ''2026-01-05''', 'adv_2');
-- ... of parameters, whatever these are
CREATE FUNCTION pg_temp.days(day date) RETURNS TABLE (o text, other_rows bigint) LANGUAGE plpgsql AS $$
DECLARE
	col text;
	better text;
BEGIN
	FOR col, o IN SELECT * FROM unnest('{at,atz}'::text[]) AS c, unnest('{<,<=,=,>=,>}'::text[]) AS p LOOP
		SELECT replace(a.better, '$2', '$1') INTO better FROM pg_temp.advised(format('%s::date %s $2::date', col, o), 'adv_2') AS a;
		EXECUTE format('SELECT count(*) FROM adv WHERE (%s::date %s $1) IS TRUE <> (%s) IS TRUE', col, o, better) INTO other_rows USING day;
		RETURN NEXT;
	END LOOP;
END
$$;
SELECT count(*), sum(other_rows) FROM unnest('{2026-01-05,infinity,-infinity,NULL}'::date[]) AS d, pg_temp.days(d);
-- ... in time zones that change their clocks about midnight, or leave out a day
CREATE TABLE moments AS SELECT i AS id, d + i * interval '10 minutes' - (i % 3) * interval '1 microsecond' AS atz, pg_temp.point(i, 8) AS e
FROM unnest('{2026-11-01,2026-03-08,2026-03-29,2010-11-07,2010-03-14,2011-12-30,2018-11-04,2018-02-18}'::timestamptz[]) AS d,
	generate_series(-300, 300) AS i;
CREATE INDEX moments_e ON moments USING gpuivfpq (e, atz);
CREATE FUNCTION pg_temp.zoned(zone text) RETURNS TABLE (asked bigint, ranges bigint, other_rows bigint) LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
	condition text;
	advice text;
BEGIN
	PERFORM set_config('timezone', zone, false);
	asked := 0; ranges := 0; other_rows := 0;
	FOR condition IN SELECT DISTINCT format('atz::date %s %L', o, atz::date) FROM moments, unnest('{<,=,>}'::text[]) AS o LOOP
		SELECT d.advice INTO advice FROM gpuvec_doctor(format('SELECT id FROM moments WHERE %s ORDER BY e <-> $1 LIMIT 10', condition)) AS d WHERE state ~ 'is a filter';
		EXECUTE format('SELECT count(*) FROM moments WHERE (%s) <> (%s)', condition, CASE WHEN advice LIKE 'Write %'
			THEN substring(advice FROM 'Write (.*) instead\.') ELSE format('(%s) AND %s', condition, substring(advice FROM 'Add the condition (.*)\.$')) END) INTO n;
		asked := asked + 1;
		ranges := ranges + (advice LIKE 'Write %')::int;
		other_rows := other_rows + n;
	END LOOP;
	RETURN NEXT;
END
$$;
SELECT zone, ranges > asked / 2 AS mostly_ranges, other_rows
FROM unnest('{UTC,Europe/Berlin,America/Havana,America/St_Johns,America/Sao_Paulo,Asia/Beirut,Pacific/Apia}'::text[]) AS zone, pg_temp.zoned(zone);
RESET timezone;

-- whole statements
CREATE TABLE members (tenant bigint, member int, note text);
INSERT INTO members SELECT g % 7, g % 5, 'n' || g FROM generate_series(1, 40) AS g;
INSERT INTO members VALUES (NULL, 1, NULL);
ANALYZE members;
CREATE FUNCTION pg_temp.statement(query text, better text, OUT advice text, OUT rows int, OUT same bool) RETURNS SETOF record
LANGUAGE plpgsql SET gpuvec.recall = 1 AS $$
DECLARE
	first text[];
	second text[];
BEGIN
	EXECUTE format('SELECT array_agg(q::text) FROM (%s) AS q', query) INTO first;
	EXECUTE format('SELECT array_agg(q::text) FROM (%s) AS q', better) INTO second;
	rows := cardinality(first);
	same := first IS NOT DISTINCT FROM second;
	FOR advice IN SELECT d.advice FROM gpuvec_doctor(query) AS d WHERE subject = 'adv_1' AND d.advice IS NOT NULL LOOP
		RETURN NEXT;
	END LOOP;
END
$$;
SELECT * FROM pg_temp.statement($$SELECT id FROM adv WHERE tenant IN (SELECT tenant FROM members WHERE member = 3) ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$,
	$$SELECT id FROM adv WHERE tenant = ANY (ARRAY(SELECT tenant FROM members WHERE member = 3)) ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$);
SELECT * FROM pg_temp.statement($$SELECT id FROM adv AS a WHERE EXISTS (SELECT FROM members AS m WHERE m.tenant = a.tenant AND m.member = 3) ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$,
	$$SELECT id FROM adv WHERE tenant = ANY (ARRAY(SELECT tenant FROM members WHERE member = 3)) ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$);
-- these are more than a condition on a key
SELECT advice FROM gpuvec_doctor('SELECT id FROM adv AS a WHERE EXISTS (SELECT FROM members AS m WHERE m.tenant = a.tenant AND m.member < a.id) ORDER BY e <-> $1 LIMIT 10') WHERE advice ~ 'ARRAY';
SELECT advice FROM gpuvec_doctor('SELECT id FROM adv AS a WHERE tenant NOT IN (SELECT tenant FROM members) ORDER BY e <-> $1 LIMIT 10') WHERE advice ~ 'ARRAY';
SELECT advice FROM gpuvec_doctor('SELECT a.id, m.note FROM adv AS a JOIN members AS m USING (tenant) WHERE member = 3 ORDER BY e <-> $1 LIMIT 10') WHERE advice ~ 'subquery|ARRAY';
-- ORDER BY around the distance, and NULLS FIRST
SELECT * FROM pg_temp.statement($$SELECT id, -3 * ((e <-> '{1,2,3,4,5,6,7,8}') + 1) AS s FROM adv WHERE e IS NOT NULL ORDER BY s DESC, id LIMIT 10$$,
	$$SELECT id, -3 * ((e <-> '{1,2,3,4,5,6,7,8}') + 1) AS s FROM adv WHERE e IS NOT NULL ORDER BY e <-> '{1,2,3,4,5,6,7,8}', id LIMIT 10$$);
SELECT * FROM pg_temp.statement($$SELECT id FROM adv WHERE e IS NOT NULL ORDER BY e <-> '{1,2,3,4,5,6,7,8}' NULLS FIRST LIMIT 10$$,
	$$SELECT id FROM adv WHERE e IS NOT NULL ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$);
-- ... a constraint that is not valid (there are such from 18 on) promises nothing
DO $$ BEGIN EXECUTE 'ALTER TABLE adv ADD CONSTRAINT given NOT NULL e NOT VALID'; EXCEPTION WHEN syntax_error THEN NULL; END $$;
SELECT advice FROM gpuvec_doctor('SELECT id FROM adv ORDER BY e <-> $1 NULLS FIRST LIMIT 10') WHERE advice ~ 'Remove NULLS FIRST';
SELECT state, advice FROM unnest('{-(e <-> $1),(e <-> $1) * tenant,.7 * (e <-> $1) + id,1 / (e <-> $1),abs((e <-> $1) - 3),(e <=> $1) + 1}'::text[]) AS x,
	gpuvec_doctor(format('SELECT id FROM adv ORDER BY %s LIMIT 10', x)) WHERE subject = 'adv_1';
-- a query for each row
SELECT * FROM pg_temp.statement($$SELECT a.id, b.id AS b FROM adv AS a JOIN adv AS b ON b.id IN (7, 9) AND a.tenant > b.tenant ORDER BY a.e <-> b.e, a.id LIMIT 15$$,
	$$SELECT a.id, b.id AS b FROM adv AS b CROSS JOIN LATERAL (SELECT * FROM adv AS a WHERE a.tenant > b.tenant ORDER BY a.e <-> b.e, a.id LIMIT 15) AS a WHERE b.id IN (7, 9)
		ORDER BY a.e <-> b.e, a.id LIMIT 15$$);
SELECT advice FROM gpuvec_doctor('SELECT a.id FROM adv AS a LEFT JOIN adv AS b ON b.id = a.id + 1 ORDER BY a.e <-> b.e LIMIT 10') WHERE advice ~ 'LATERAL';
-- WITH
SELECT * FROM pg_temp.statement($$WITH w AS MATERIALIZED (SELECT * FROM adv WHERE tenant < 3) SELECT id FROM w ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$,
	$$WITH w AS NOT MATERIALIZED (SELECT * FROM adv WHERE tenant < 3) SELECT id FROM w ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$);
SELECT DISTINCT advice FROM gpuvec_doctor('WITH w AS MATERIALIZED (SELECT *, random() FROM adv) SELECT id FROM w ORDER BY e <-> $1 LIMIT 10') WHERE advice ~ 'MATERIALIZED';
-- left joins
CREATE TABLE tenants (tenant int PRIMARY KEY, note text);
INSERT INTO tenants SELECT g, 'n' || g FROM generate_series(-4, 3) AS g;
DROP INDEX adv_2;
ALTER INDEX adv_1 SET (probes = 30, candidates = 100000);
SELECT * FROM pg_temp.statement($$SELECT a.id, note FROM adv AS a LEFT JOIN tenants USING (tenant) WHERE a.id > 7 ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$,
	$$SELECT a.id, note FROM (SELECT * FROM adv WHERE id > 7 ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10) AS a LEFT JOIN tenants USING (tenant)
		ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 10$$);
DROP TABLE adv, docs, members, tenants, moments;
DROP TYPE mood;
