-- exact search in tables without an index
\getenv srcdir PG_ABS_SRCDIR
\i :srcdir/sql/include/prologue.sql
RESET client_min_messages;

-- rows of twelve small integers, so that many distances are equal; some rows
-- without a vector, some gone, some changed
CREATE TABLE searched (id int, v real[]) WITH (autovacuum_enabled = off);
INSERT INTO searched
SELECT i, CASE WHEN i % 50 <> 0 THEN pg_temp.numbers(i, 12) END
FROM generate_series(1, 2000) AS i;
DELETE FROM searched WHERE id % 7 = 0;
UPDATE searched SET v = pg_temp.numbers(id + 5000, 12) WHERE id % 11 = 0 AND v IS NOT NULL;

SELECT id, query, distance FROM gpuvec_exact_search('searched', 'v',
	'{{1,2,3,4,5,6,7,0,1,2,3,4},{0,0,0,0,0,0,0,0,0,0,0,0}}', 3) AS n
	JOIN searched AS s ON s.ctid = n.tid
ORDER BY query, distance, tid;

-- against sorts: the same rows, the same distances to the last bit
SET client_min_messages = warning;
CREATE TABLE asked AS
SELECT q AS query, pg_temp.numbers(-q, 12) AS v FROM generate_series(1, 20) AS q;
CREATE TABLE sorted AS
SELECT metric, query, sorted.*
FROM (VALUES ('l2'), ('ip'), ('cosine')) AS m (metric), asked AS a,
	LATERAL (SELECT array_agg(ctid) AS tids, array_agg(d) AS distances
		FROM (SELECT ctid, CASE metric WHEN 'l2' THEN s.v <-> a.v
				WHEN 'ip' THEN s.v <#> a.v ELSE s.v <=> a.v END AS d
			FROM searched AS s WHERE s.v IS NOT NULL ORDER BY d, ctid) AS s) AS sorted;
SELECT k, m.metric, count(*), bool_and(found.tids = sorted.tids[:k]) AS tids,
	bool_and(found.distances = sorted.distances[:k]) AS distances
FROM (VALUES (1), (10), (100), (1680), (5000)) AS k (k),
	(VALUES ('l2'), ('ip'), ('cosine')) AS m (metric),
	LATERAL (SELECT query, array_agg(tid ORDER BY o) AS tids,
			array_agg(distance ORDER BY o) AS distances
		FROM gpuvec_exact_search('searched', 'v',
			(SELECT array_agg(v ORDER BY query) FROM asked), k, m.metric)
			WITH ORDINALITY AS n (query, tid, distance, o)
		GROUP BY query) AS found,
	sorted
WHERE sorted.query = found.query AND sorted.metric = m.metric
GROUP BY k, m.metric ORDER BY k, m.metric;

-- correlation
SELECT count(*) AS n, max(abs(distance - (1 - r))) < 1e-12 AS near,
	bool_and(distance >= before) AS ascends
FROM (SELECT n.*, lag(distance, 1, 0) OVER (PARTITION BY query ORDER BY o) AS before,
		(SELECT corr(x, y) FROM unnest(s.v, a.v) AS u (x, y)) AS r
	FROM gpuvec_exact_search('searched', 'v',
			(SELECT array_agg(v ORDER BY query) FROM asked), 50, 'pearson')
			WITH ORDINALITY AS n (query, tid, distance, o)
		JOIN searched AS s ON s.ctid = n.tid JOIN asked AS a USING (query)) AS p;
SELECT count(*) AS queries, bool_and(farthest <= kth + 1e-12) AS nearest
FROM (SELECT v FROM asked WHERE query <= 10) AS a,
	LATERAL (SELECT max(distance) AS farthest
		FROM gpuvec_exact_search('searched', 'v', a.v, 50, 'pearson')) AS n,
	LATERAL (SELECT max(d) AS kth
		FROM (SELECT 1 - (SELECT corr(x, y) FROM unnest(s.v, a.v) AS u (x, y)) AS d
			FROM searched AS s WHERE s.v IS NOT NULL ORDER BY d LIMIT 50) AS c) AS c;

-- little memory, more readings of the table, the same answer
SET maintenance_work_mem = '1MB';
CREATE TABLE crowd AS SELECT array_agg(pg_temp.numbers(-q, 12) ORDER BY q) AS queries
FROM generate_series(1, 3000) AS q;
CREATE TABLE narrow AS SELECT n.*
FROM crowd, gpuvec_exact_search('searched', 'v', queries, 30) AS n;
SET maintenance_work_mem = '64MB';
CREATE TABLE wide AS SELECT n.*
FROM crowd, gpuvec_exact_search('searched', 'v', queries, 30) AS n;
SELECT count(*) FROM narrow;
SELECT count(*) FROM (
	(TABLE narrow EXCEPT ALL TABLE wide) UNION ALL (TABLE wide EXCEPT ALL TABLE narrow)) AS different;
RESET maintenance_work_mem;
RESET client_min_messages;

-- one vector is one query; zeros have no direction, equal numbers no
-- correlation: these come last
CREATE TABLE few (id int, v real[]);
INSERT INTO few VALUES (1, '{0,0}'), (2, '{1,1}'), (3, '{2,1}'), (4, NULL), (5, '{1,2}');
SELECT query, tid, distance FROM gpuvec_exact_search('few', 'v', '{1,1}', 10);
SELECT query, tid, round(distance::numeric, 6) AS distance
FROM gpuvec_exact_search('few', 'v', '{1,1}', 10, 'cosine');
SELECT query, tid, distance FROM gpuvec_exact_search('few', 'v', '{5,4}', 10, 'pearson');
SELECT query, tid, distance FROM gpuvec_exact_search('few', 'v', '{{1,1},{2,2}}', 1, metric => 'ip');
SELECT tid FROM gpuvec_exact_search('few', 'v', '[3:4]={1,1}', 1);

-- nothing in, nothing out
SELECT * FROM gpuvec_exact_search('few', 'v', '{}', 3);
SELECT * FROM gpuvec_exact_search('few', 'v', NULL, 3);
SELECT * FROM gpuvec_exact_search(NULL, 'v', '{1,1}', 3);
SELECT * FROM gpuvec_exact_search('few', 'v', '{1,1}', NULL);
CREATE TABLE nobody (v real[]);
SELECT * FROM gpuvec_exact_search('nobody', 'v', '{1,1}', 3);
INSERT INTO nobody VALUES (NULL);
SELECT * FROM gpuvec_exact_search('nobody', 'v', '{1,1}', 3);
DROP TABLE nobody;

-- what the statement's snapshot sees
BEGIN;
DECLARE before CURSOR FOR SELECT tid FROM gpuvec_exact_search('few', 'v', '{9,9}', 1);
INSERT INTO few VALUES (6, '{9,9}');
FETCH before;
SELECT id FROM gpuvec_exact_search('few', 'v', '{9,9}', 1) AS n JOIN few ON few.ctid = n.tid;
ROLLBACK;

-- materialized views, domains, long vectors
CREATE DOMAIN coordinates AS real[] CHECK (array_length(VALUE, 1) = 2);
CREATE MATERIALIZED VIEW seen AS SELECT id, v::coordinates AS v FROM few WHERE v IS NOT NULL;
SELECT id, distance FROM gpuvec_exact_search('seen', 'v', '{2,2}', 2) AS n
	JOIN seen ON seen.ctid = n.tid ORDER BY distance, id;
CREATE TABLE long (id int, v real[]);
ALTER TABLE long ALTER v SET STORAGE EXTERNAL;
INSERT INTO long SELECT i, array_fill(i::real, ARRAY[3000]) FROM generate_series(1, 40) AS i;
SELECT id, distance FROM gpuvec_exact_search('long', 'v', array_fill(20.4::real, ARRAY[3000]), 3) AS n
	JOIN long ON long.ctid = n.tid ORDER BY distance, id;
DROP TABLE long;

-- in a function, in a prepared statement, more than once in a query
PREPARE nearest (real[]) AS SELECT tid FROM gpuvec_exact_search('few', 'v', $1, 1);
EXECUTE nearest ('{2,1}');
EXECUTE nearest ('{1,2}');
SELECT a.tid, b.tid FROM gpuvec_exact_search('few', 'v', '{2,1}', 1) AS a,
	gpuvec_exact_search('few', 'v', '{1,2}', 1) AS b;

-- who may: SELECT on the column is enough
CREATE ROLE gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_exact_search('few', 'v', '{1,1}', 3);
RESET ROLE;
GRANT SELECT (id) ON few TO gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_exact_search('few', 'v', '{1,1}', 3);
RESET ROLE;
GRANT SELECT (v) ON few TO gpuvec_reader;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_exact_search('few', 'v', '{1,1}', 3);
SELECT count(*) FROM gpuvec_exact_search('seen', 'v', '{1,1}', 3);
RESET ROLE;
-- policies: not for those from whom they hide rows
ALTER TABLE few ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd ON few USING (id % 2 = 1);
SELECT count(*) FROM gpuvec_exact_search('few', 'v', '{1,1}', 3);
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_exact_search('few', 'v', '{1,1}', 3);
RESET ROLE;
-- (and by FORCE from the owner, too)
ALTER TABLE few OWNER TO gpuvec_reader;
ALTER TABLE few FORCE ROW LEVEL SECURITY;
SET ROLE gpuvec_reader;
SELECT count(*) FROM gpuvec_exact_search('few', 'v', '{1,1}', 3);
RESET ROLE;
ALTER TABLE few OWNER TO CURRENT_USER;
ALTER TABLE few DISABLE ROW LEVEL SECURITY;

-- what cannot be read
CREATE VIEW looking AS SELECT * FROM few;
SELECT * FROM gpuvec_exact_search('looking', 'v', '{1,1}', 3);
CREATE TABLE parted (id int, v real[]) PARTITION BY RANGE (id);
SELECT * FROM gpuvec_exact_search('parted', 'v', '{1,1}', 3);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);
INSERT INTO parted VALUES (1, '{1,1}');
SELECT * FROM gpuvec_exact_search('part', 'v', '{1,1}', 3);
CREATE SEQUENCE counting;
SELECT * FROM gpuvec_exact_search('counting', 'last_value', '{1,1}', 3);
CREATE INDEX few_id ON few (id);
SELECT * FROM gpuvec_exact_search('few_id', 'id', '{1,1}', 3);
CREATE FOREIGN DATA WRAPPER gpuvec_nothing;
CREATE SERVER gpuvec_nowhere FOREIGN DATA WRAPPER gpuvec_nothing;
CREATE FOREIGN TABLE far (v real[]) SERVER gpuvec_nowhere;
SELECT * FROM gpuvec_exact_search('far', 'v', '{1,1}', 3);
CREATE MATERIALIZED VIEW unseen AS SELECT * FROM few WITH NO DATA;
SELECT * FROM gpuvec_exact_search('unseen', 'v', '{1,1}', 3);
\set VERBOSITY sqlstate
SELECT * FROM gpuvec_exact_search(4294967295::oid::regclass, 'v', '{1,1}', 3);
\set VERBOSITY default
SELECT * FROM gpuvec_exact_search('few', 'w', '{1,1}', 3);
SELECT * FROM gpuvec_exact_search('few', 'id', '{1,1}', 3);
SELECT * FROM gpuvec_exact_search('few', 'ctid', '{1,1}', 3);
CREATE TABLE others (t text, d double precision[], i integer[], r real[]);
INSERT INTO others VALUES ('x', '{1}', '{1}', '{1,1}'), ('y', '{2}', '{2}', '{1,1,1}');
SELECT * FROM gpuvec_exact_search('others', 't', '{1,1}', 3);
SELECT * FROM gpuvec_exact_search('others', 'd', '{1,1}', 3);
SELECT * FROM gpuvec_exact_search('others', 'i', '{1,1}', 3);
-- a type of one's own with a cast is no vector
CREATE TYPE made AS (x real);
CREATE FUNCTION made_to_real(made, integer, boolean) RETURNS real[]
LANGUAGE sql IMMUTABLE AS 'SELECT ARRAY[$1.x]';
CREATE CAST (made AS real[]) WITH FUNCTION made_to_real(made, integer, boolean);
CREATE TABLE makings (v made);
SELECT * FROM gpuvec_exact_search('makings', 'v', '{1,1}', 3);
-- rows of several lengths, bad elements
SELECT * FROM gpuvec_exact_search('others', 'r', '{1,1}', 3);
SELECT * FROM gpuvec_exact_search('few', 'v', '{1,1,1}', 3);
UPDATE others SET r = CASE t WHEN 'x' THEN '{1,1}' ELSE '{1,NULL}' END::real[];
SELECT * FROM gpuvec_exact_search('others', 'r', '{1,1}', 3);
UPDATE others SET r = CASE t WHEN 'x' THEN '{1,1}' ELSE '{1,NaN}' END::real[];
SELECT * FROM gpuvec_exact_search('others', 'r', '{1,1}', 3);
UPDATE others SET r = '{{1,1}}';
SELECT * FROM gpuvec_exact_search('others', 'r', '{1,1}', 3);

-- arguments
SELECT * FROM gpuvec_exact_search('few', 'v', '{1,1}', 0);
SELECT * FROM gpuvec_exact_search('few', 'v', '{1,1}', -1);
SELECT * FROM gpuvec_exact_search('few', 'v', '{1,1}', 2000000);
SELECT * FROM gpuvec_exact_search('few', 'v', '{1,1}', 3, 'L2');
SELECT * FROM gpuvec_exact_search('few', 'v', '{{{1,1}}}', 3);
SELECT * FROM gpuvec_exact_search('few', 'v', '{{1,1},{1,NULL}}', 3);
SELECT * FROM gpuvec_exact_search('few', 'v', '{{1,1},{1,Infinity}}', 3);
SELECT * FROM gpuvec_exact_search('few', 'v', array_fill(0::real, ARRAY[16001]), 3);
SELECT gpuvec_exact_search('few', 'v', '{1,1}', 1);

-- nothing runs: nothing is shown
SELECT * FROM gpuvec_progress;

SET client_min_messages = warning;
DROP TABLE searched, asked, sorted, crowd, narrow, wide, others, makings, parted CASCADE;
DROP TABLE few CASCADE;
DROP SEQUENCE counting;
DROP FOREIGN DATA WRAPPER gpuvec_nothing CASCADE;
DROP TYPE made CASCADE;
DROP DOMAIN coordinates;
DROP ROLE gpuvec_reader;
