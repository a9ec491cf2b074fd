# Memory: rescans, queries and inserts without end do not grow a backend, and
# a build stays within maintenance_work_mem, or says that it cannot.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;

plan skip_all => 'needs /proc' if !-r '/proc/self/status';

my $rescans = long_test() ? 100_000 : 10_000;
my $rows = long_test() ? 200_000 : 20_000;

# shared buffers count as the backend's memory, so few of them
my $node = new_node('main', conf => "shared_buffers = 2MB\nwork_mem = 1MB\n");
$node->safe_psql('postgres', q{
	CREATE FUNCTION memory_kb(what text) RETURNS int LANGUAGE sql VOLATILE AS $$
		SELECT (regexp_match(pg_read_file('/proc/self/status'), what || ':\s*(\d+) kB'))[1]::int
	$$;
	SET client_min_messages = warning;
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 8) FROM generate_series(1, 2000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20, probes = 2);
	CREATE TABLE p (id int, e real[]);
	INSERT INTO p SELECT g, point(g, 8) FROM generate_series(1, 30) AS g;
	CREATE INDEX p_e ON p USING gpuivfpq (e);
	CREATE INDEX t_expression ON t USING gpuivfpq ((e[1:4]) real_cosine_ops) WITH (lists = 20)});

# Test: between a tenth and all of its rescans a query's backend does not grow.
sub test_rescans
{
	my ($what, $subquery, $n) = @_;
	my $from = $n / 10;
	my $grown = $node->safe_psql('postgres', qq{
		SET enable_seqscan = off;
		SET enable_memoize = off;
		SELECT max(kb) - min(kb) FROM (
			SELECT CASE WHEN g IN ($from, $n) THEN memory_kb('VmRSS') END AS kb
			FROM generate_series(1, $n) AS g, LATERAL ($subquery) AS q) AS x});

	cmp_ok($grown, '<=', 512, "$what: $n rescans, grown by $grown kB");
	return;
}

# lists, and queries of each type that an operator of an index takes
my %columns = ('real[]' => 'e');
if ($ENV{GPUVEC_PGVECTOR})
{
	$node->safe_psql('postgres', q{
		CREATE EXTENSION gpuvec_pgvector CASCADE;
		CREATE TABLE v AS SELECT id, e::vector(8) AS v, e::vector::halfvec(8) AS h FROM t;
		CREATE INDEX v_v ON v USING gpuivfpq (v) WITH (lists = 20, probes = 2);
		CREATE INDEX v_h ON v USING gpuivfpq (h) WITH (lists = 20, probes = 2)});
	$columns{vector} = 'v';
	$columns{halfvec} = 'h';
}
for (
	split /\n/,
	$node->safe_psql('postgres', q{
		SELECT amoplefttype::regtype, amoprighttype::regtype FROM pg_amop, pg_am AS a
		WHERE amopmethod = a.oid AND amname = 'gpuivfpq' AND amopopr::regoper::text ~ '<->$' ORDER BY 1, 2}))
{
	my ($left, $right) = split /\|/;
	my ($column, $table) = ($columns{$left}, $left eq 'real[]' ? 't' : 'v');
	my $cast = $right =~ /\[/ ? $right : "real[]::$right";

	test_rescans("$left and $right",
		"SELECT id FROM $table ORDER BY $column <-> ARRAY[g, g, g, g, g, g, g, 1]::$cast LIMIT 1", $rescans);
}
test_rescans('pending rows', "SELECT id FROM p ORDER BY e <-> ARRAY[g, g, g, g, g, g, g, 1]::real[] LIMIT 1",
	$rescans);
test_rescans('an expression', "SELECT id FROM t ORDER BY e[1:4] <=> ARRAY[g, 5, 1, 1]::real[] LIMIT 1", $rescans);
test_rescans('NULL', "SELECT id FROM p ORDER BY e <-> CASE WHEN g % 2 = 0 THEN e END LIMIT 1", $rescans);
test_rescans('whole index',
	"SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> ARRAY[g, g, g, g, g, g, g, 1]::real[]) AS y", $rescans / 50);

# A scan that is asked for ever more rows holds no more than a hash table may,
# whatever settings name, and then finishes with a pass.  Address space is
# counted: what is resident has the shared buffers and the pages of programs that
# the session comes to, which no two runs have alike, too.
$node->safe_psql('postgres', q{
	CREATE TABLE deep (id int, e real[]);
	INSERT INTO deep SELECT g, point(g, 8) FROM generate_series(1, 30000) AS g;
	ANALYZE deep});
for my $options ('refine = none', 'refine = sq8')
{
	$node->safe_psql('postgres',
		"DROP INDEX IF EXISTS deep_e; CREATE INDEX deep_e ON deep USING gpuivfpq (e) WITH ($options)");
	for my $setting (
		'gpuvec.probes = 0',
		'gpuvec.max_probes = 290',
		'gpuvec.max_probes = 290; SET gpuvec.scan_order = relaxed',
		'gpuvec.probes = 1; SET gpuvec.max_probes = 100',
		'gpuvec.probes = 1; SET gpuvec.candidates = 1',
		'gpuvec.candidates = 1000000',
		'gpuvec.candidates = 1000000; SET gpuvec.probes = 16777216',
		'gpuvec.recall = 1')
	{
		my ($used, $returned) = split /\|/, $node->safe_psql('postgres', qq{
			SET enable_seqscan = off;
			SET work_mem = '1MB';
			SET hash_mem_multiplier = 1;
			SELECT count(e) FROM deep \\g /dev/null
			SELECT id FROM deep ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 100 \\g /dev/null
			SELECT memory_kb('VmPeak') AS before \\gset
			SET $setting;
			SELECT id FROM deep WHERE id < 0 ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 5;
			SELECT memory_kb('VmPeak') - :before, returned FROM gpuvec_last_scan()});

		# 1 MB: what else a statement needs
		cmp_ok($used, '<=', 2048, "$options; $setting: $used kB for $returned rows");
	}
}

# very many queries at once: what maintenance_work_mem allows, the rows of the
# answer (work_mem, then a file), and the array
$node->safe_psql('postgres', q{CREATE TABLE crowd AS
	SELECT array_agg(ARRAY[g % 1009, g % 31, 3, 4, 5, 6, 7, 8]::real[]) AS queries FROM generate_series(1, 100000) AS g});
for my $options (long_test() ? 'refine = none' : (), 'refine = sq8')
{
	$node->safe_psql('postgres',
		"DROP INDEX IF EXISTS t_e; CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 20, probes = 2, $options)");
	my ($used, $rows) = split /\|/, $node->safe_psql('postgres', q{
		SET maintenance_work_mem = '8MB';
		SELECT sum(cardinality(queries)) FROM crowd \g /dev/null
		SELECT count(*) FROM gpuvec_search('t_e', '{1,2,3,4,5,6,7,8}', 10) \g /dev/null
		SELECT memory_kb('VmHWM') AS before \gset
		SELECT memory_kb('VmHWM') - :before, rows FROM (SELECT count(*) AS rows
			FROM crowd, gpuvec_search('t_e', queries, 10) OFFSET 0) AS n});

	# the array and its copy are 6 MB, 4 MB what else a statement needs
	cmp_ok($used, '<=', (8 + 6 + 4) * 1024, "100,000 queries at once, $options: $used kB");
	is($rows, 1_000_000, '... all rows');
}

# the same for statements: contexts of the session, before and after
my $statement = q{SELECT id FROM t ORDER BY e <-> '{1,2,3,4,5,6,7,8}' LIMIT 1 \g /dev/null
	INSERT INTO t VALUES (0, '{1,2,3,4,5,6,7,8}');
	SELECT id FROM t ORDER BY e <-> '{1,2,3}' LIMIT 1;
	INSERT INTO t VALUES (0, '{1,2}');
};
my $bytes = 'SELECT sum(total_bytes) FROM pg_backend_memory_contexts;';
my (undef, $out) = $node->psql('postgres',
	"SET enable_seqscan = off; $statement $statement $bytes" . $statement x 500 . $bytes,
	on_error_stop => 0);
my ($first, $last) = split /\n/, $out;
cmp_ok($last, '<=', $first + 131072, "statements, failed ones too: $first bytes, then $last");

# many rows inserted by one statement
my $grown = $node->safe_psql('postgres', q{
	INSERT INTO t SELECT g, ARRAY[g, g, g, g, g, g, g, 1] FROM generate_series(1, 3000) AS g;
	SELECT memory_kb('VmRSS') AS before \gset
	INSERT INTO t SELECT g, ARRAY[g, g, g, g, g, g, g, 1] FROM generate_series(1, 20000) AS g;
	SELECT memory_kb('VmRSS') - :before});
cmp_ok($grown, '<=', 2048, "inserts: grown by $grown kB");

# -- builds
$node->safe_psql('postgres', qq{
	CREATE TABLE big (id int, e real[]);
	INSERT INTO big SELECT g, p || p || p || p || p || p || p || p FROM generate_series(1, $rows) AS g,
		LATERAL (VALUES (point(g, 16))) AS v (p)});
for my $mb (4, long_test() ? 16 : (), 64)
{
	my $plain = $node->safe_psql('postgres',
		"CREATE INDEX big_plain ON big (id); SELECT memory_kb('VmHWM'); DROP INDEX big_plain");
	my ($peak, $lists) = split /\|/, $node->safe_psql('postgres', qq{
		SET maintenance_work_mem = '${mb}MB';
		CREATE INDEX big_e ON big USING gpuivfpq (e);
		SELECT memory_kb('VmHWM'), lists FROM gpuvec_index_info('big_e')});
	my $used = $peak - $plain;

	# 7 MB: shared buffers that the build came to are counted, and code that it
	# ran; 5.5 to 6.2 of them are used where $mb is 4
	cmp_ok($used, '<=', 1.25 * $mb * 1024 + 7168, "build in $mb MB: $used kB more than a btree's");
	cmp_ok($lists, '>', 1, "... it has $lists lists");
	gives($node, "SELECT count(*) > 0 FROM gpuvec_calibration('big_e')", 't', '... calibrated');
	is_sound($node, 'big_e', "built in $mb MB");
	$node->safe_psql('postgres', 'DROP INDEX big_e');
}
says($node, "SET maintenance_work_mem = '2MB'; CREATE INDEX ON big USING gpuivfpq (e) WITH (lists = 15000)",
	qr/ERROR:  "maintenance_work_mem" is too low to train 15000 lists
DETAIL:  \d+ MB are required for 128 dimensions\.
HINT:  Increase "maintenance_work_mem", or use fewer lists/,
	'too many lists for 2 MB: what is needed, and what to do');

done_testing();
