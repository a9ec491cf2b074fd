# Queries that indexes were really asked: kept where a superuser wants that, read
# by the owner alone, measured and calibrated with; and no scan fails for them.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'off'\nmax_parallel_workers_per_gather = 0\n");
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE ROLE holder;
	CREATE ROLE guest;
	GRANT ALL ON SCHEMA public TO holder;
	CREATE TABLE items (id int, e real[]);
	INSERT INTO items SELECT g, point(g, 8) FROM generate_series(1, 3000) AS g;
	CREATE INDEX items_e ON items USING gpuivfpq (e) WITH (lists = 30);
	ALTER TABLE items OWNER TO holder;
	GRANT SELECT ON items TO guest;
	-- queries first .. last, each by a scan of the index
	CREATE FUNCTION ask(first int, last int, tab text DEFAULT 'items') RETURNS int
	LANGUAGE plpgsql SET enable_seqscan = off AS $$
	DECLARE
		n int = 0;
	BEGIN
		FOR q IN first .. last LOOP
			EXECUTE format('SELECT count(*) + %s FROM (SELECT id FROM %I ORDER BY e <-> %L LIMIT 3) AS x',
				n, tab, point(q, 8)) INTO n;
		END LOOP;
		RETURN n;
	END $$;
	-- which queries are kept, the last one first
	CREATE FUNCTION kept(index regclass) RETURNS text LANGUAGE sql AS $$
		SELECT count(*) || ': ' || coalesce(left(string_agg(g::text, ' ' ORDER BY place), 20), '')
		FROM gpuvec_live_queries(index) WITH ORDINALITY AS q (asked, query, place)
			LEFT JOIN generate_series(1, 3000) AS g ON query = point(g, 8)
		WHERE asked > now() - interval '1 hour' $$;
});

# Statements as a role, in a session of its own: what they gave, and errors.
sub as
{
	my ($role, $sql) = @_;
	my (undef, $out, $err) = $node->psql('postgres', "SET ROLE $role; $sql");

	return $err =~ s/.*?(ERROR|NOTICE|WARNING):/$1:/r . $out;
}

# -- off
is(as('guest', 'SELECT ask(1, 3)'), '9', 'scans go on without');
like(as('holder', q{SELECT count(*) FROM gpuvec_live_queries('items_e')}),
	qr/NOTICE: +queries of index "items_e" are not kept\n.*superuser.*0$/s, 'off by default');
like(as('guest', 'SET gpuvec.keep_queries = on'),
	qr/permission denied to set parameter/, 'only superusers turn it on');

# -- on
$node->safe_psql('postgres', 'ALTER SYSTEM SET gpuvec.keep_queries = on');
$node->reload;
wait_until($node, q{SELECT setting = 'on' FROM pg_settings WHERE name = 'gpuvec.keep_queries'});
is(as('guest', 'SELECT ask(1, 3)'), '9', 'asked by one who may');
is(as('holder', q{SELECT kept('items_e')}), '3: 3 2 1', 'its owner sees what');
for my $function (qw(gpuvec_live_queries gpuvec_forget_queries))
{
	like(as('guest', "SELECT $function('items_e')"),
		qr/permission denied for index "items_e"/, "$function is the owner's");
	like(as('pg_monitor', "SELECT $function('items_e')"),
		qr/permission denied for index "items_e"/, '... not for pg_monitor');
}
is(as('holder', q{SELECT recall FROM gpuvec_recall('items_e', 10, 20)}) > 0.5, 1, 'measured with rows');
is(as('holder', q{SET gpuvec.recall = 1; SELECT recall FROM gpuvec_recall('items_e', k => 3, queries =>
		ARRAY(SELECT query FROM gpuvec_live_queries('items_e')))}),
	'1', 'measured with what was asked');
is(as('holder', q{SELECT kept('items_e')}), '3: 3 2 1', 'measuring does not count as asking');
as('guest', 'SELECT ask(1001, 1999)');
is(as('holder', q{SELECT kept('items_e')}), '1000: 1999 1998 1997 1996 ', 'the last 1,000');
like(as('guest', q{SELECT * FROM gpuvec_search('items_e', '{{1,2}}', 1)}), qr/expected 8 dimensions, not 2/, 'of wrong dimensions');
is(as('holder', q{SELECT kept('items_e')}), '1000: 1999 1998 1997 1996 ', '... it is not kept, and the others are');
is(as('guest', q{SELECT count(*) FROM gpuvec_search('items_e', ARRAY[point(21, 8), point(22, 8)], 1)}), '2', 'many at once');
is(as('holder', q{SELECT kept('items_e')}), '1000: 22 21 1999 1998 1997', '... are kept');
is(as('holder', q{SELECT count(*) FROM gpuvec_live_queries('items_e') WHERE query IN (point(1, 8), point(2, 8))}),
	'0', '... without those before');
is(as('holder', q{SELECT DISTINCT calibrated_for FROM gpuvec_calibrate('items_e', ARRAY(SELECT query FROM gpuvec_live_queries('items_e')))}),
	'queries', 'calibrated with what was asked');
is(as('guest', 'BEGIN; SAVEPOINT s; SELECT ask(7, 7); ROLLBACK TO s; SELECT ask(8, 8); ROLLBACK'),
	"3\n3", 'in transactions that are rolled back');
like(as('holder', q{SELECT kept('items_e')}), qr/^1000: 8 7 22 21/, '... they were asked, too');

# -- an index comes and goes, or becomes another
$node->safe_psql('postgres', 'REINDEX INDEX items_e');
like(as('holder', q{SELECT kept('items_e')}), qr/^1000: 8 7 22 21/, 'REINDEX keeps them');
is(as('holder', q{SELECT gpuvec_forget_queries('items_e'), gpuvec_forget_queries('items_e'), kept('items_e')}),
	't|f|0: ', 'forgotten');
is(as('guest', 'SELECT ask(5, 6)'), '6', 'asked again');
is(as('holder', q{SELECT kept('items_e')}), '2: 6 5', '... a new ring');
$node->safe_psql(
	'postgres', q{
	CREATE TABLE wide (id int, e real[]);
	INSERT INTO wide SELECT g, point(g, 8) FROM generate_series(1, 5) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 1);
	SELECT ask(1, 2, 'wide');
	TRUNCATE wide;
	INSERT INTO wide SELECT g, point(g, 12) FROM generate_series(1, 5) AS g;
	REINDEX INDEX wide_e;
	SET enable_seqscan = off;
	SELECT id FROM wide ORDER BY e <-> point(1, 12) LIMIT 1});
is( $node->safe_psql('postgres', q{SELECT string_agg(cardinality(query)::text, ' ') FROM gpuvec_live_queries('wide_e')}),
	'12', 'other dimensions');

# -- as many rings as there is room for
$node->safe_psql('postgres', 'DROP TABLE wide');
my @small = map { "small$_" } 1 .. 65;
$node->safe_psql('postgres', 'SET client_min_messages = warning;' . join '',
	map { "CREATE TABLE $_ AS TABLE items LIMIT 5; CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e) WITH (lists = 1);" } @small);
$node->safe_psql('postgres', "SELECT ask(1, 1, '$_')") for @small[0, 1];
$node->safe_psql('postgres', join '', map { "SELECT ask(1, 1, '$_');" } @small[2 .. 64]);
is($node->safe_psql('postgres', 'SELECT ' . join ', ', map { "kept('${_}_e')" } @small[0, 1, 64]),
	'0: |1: 1|1: 1', 'the ring that was idle longest gives way');
$node->safe_psql('postgres', join '', map { "DROP TABLE $_;" } @small);
is($node->safe_psql('postgres', q{SELECT ask(1, 1), kept('items_e')}), '3|1: 1', 'rings of dropped indexes, too');
$node->stop;
$node->start;
is($node->safe_psql('postgres', q{SELECT kept('items_e')}), '0: ', 'a restart forgets');

# -- no memory for a ring: the scan does not care
$node->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
$node->restart;
my $folder = $node->data_dir . '/pg_dynshmem';
my $offset = -s $node->logfile;
chmod 0500, $folder or die "$folder: $!";
is($node->safe_psql('postgres', 'SELECT ask(1, 3); SELECT ask(1, 3)'), "9\n9", 'scans without memory for a ring');
is(scalar(() = slurp_file($node->logfile, $offset) =~ /LOG: .*queries of index "items_e" are not kept: could not/g),
	1, '... which is said once');
is(as('guest', 'BEGIN; SELECT ask(1, 1); SELECT ask(1, 1); COMMIT; SELECT ask(1, 1)'), "3\n3\n3", '... in a transaction');
chmod 0700, $folder or die "$folder: $!";
is(as('guest', 'SELECT ask(1, 1)') . as('holder', q{SELECT kept('items_e')}), '31: 1', '... until there is some');

# -- sessions that ask nothing more keep no rings that gave way
my @huge = map { "huge$_" } 1 .. 6;
my @idle;
$node->safe_psql('postgres', 'SET client_min_messages = warning;' . join '',
	map { "CREATE TABLE $_ AS SELECT id, array_fill(id::real, ARRAY[16000]) AS e FROM generate_series(1, 2) AS id;
		CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e) WITH (lists = 1);" } @huge);
my $rings = () = glob "$folder/*";
for (1 .. 3)
{
	my $session = $node->background_psql('postgres');

	$session->query_safe('SET enable_seqscan = off');
	$session->query_safe("SELECT id FROM $_ ORDER BY e <-> array_fill(2::real, ARRAY[16000]) LIMIT 1") for @huge, @huge;
	push @idle, $session;
}
cmp_ok(scalar(() = glob "$folder/*"), '<=', $rings + 4, 'memory of rings that gave way is used again');
is( $node->safe_psql('postgres', 'SELECT ' . join ', ', map { "(SELECT count(*) FROM gpuvec_live_queries('${_}_e'))" } @huge[1, 5]),
	'0|1', '... by the last ones asked');
$_->quit for @idle;
$node->safe_psql('postgres', join '', map { "DROP TABLE $_;" } @huge);

# -- numbers of scans
$node->restart;
my $stat = 'SELECT scans, full_passes FROM gpuvec_stat';
is($node->safe_psql('postgres', "SELECT ask(1, 4); $stat"), "12\n4|0", 'scans are counted');
is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM items ORDER BY e <-> point(1, 8)) AS x; $stat"),
	"3000\n5|1", '... and passes');
is($node->safe_psql('postgres', q{
	SET enable_seqscan = off; SET gpuvec.probes = 1; SET gpuvec.candidates = 2; SET gpuvec.recall = 0.5; SET gpuvec.max_probes = 30;
	SELECT count(*) < 3000 FROM (SELECT id FROM items ORDER BY e <-> point(1, 8)) AS x;
	SELECT out_of_order > 0 AND out_of_order = (SELECT out_of_order FROM gpuvec_last_scan()) FROM gpuvec_stat}),
	"t\nt", '... and rows that came late');

# -- without preloading
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is($node->safe_psql('postgres', 'SELECT ask(1, 3)'), '9', 'not preloaded: scans go on');
like(as('holder', q{SELECT * FROM gpuvec_live_queries('items_e')}),
	qr/ERROR: +queries are not kept\n.*shared_preload_libraries/s, '... and the function says what it takes');

$node->stop;
done_testing();
