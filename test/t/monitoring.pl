# What a server tells of its indexes: queries that they were really asked, counters of
# scans, gpuvec_doctor() on installations with something wrong, and the queries for
# postgres_exporter.  (sql/doctor.sql: of statements.)

use strict;
use warnings;
use File::Basename;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDamage;

need_gpuvecd();
my $node = new_node('main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'off'\nmax_parallel_workers_per_gather = 0\n");

# Statements as a role, in a session of its own: what they gave, and errors.
sub as
{
	my ($role, $sql) = @_;
	my (undef, $out, $err) = $node->psql('postgres', "SET ROLE $role; $sql");

	return $err =~ s/.*?(ERROR|NOTICE|WARNING):/$1:/r . $out;
}

# -- Queries are kept where a superuser wants that, read by the owner alone, measured and
# calibrated with; and no scan fails for them.
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE ROLE holder;
	CREATE ROLE guest;
	GRANT ALL ON SCHEMA public TO holder;
	CREATE TABLE items (id int, e real[]);
	INSERT INTO items SELECT g, point(g, 8) FROM generate_series(1, 3000) AS g;
	CREATE INDEX items_e ON items USING gpuivfpq (e) WITH (lists = 30);
	ALTER TABLE items OWNER TO holder;
	GRANT SELECT ON items TO guest;
	-- queries first .. last, each by a scan of the index, for so many rows; how many came
	CREATE FUNCTION ask(first int, last int, tab text DEFAULT 'items', k int DEFAULT 3, dims int DEFAULT 8) RETURNS int
	LANGUAGE plpgsql SET enable_seqscan = off AS $$
	DECLARE
		n int = 0;
	BEGIN
		FOR q IN first .. last LOOP
			EXECUTE format('SELECT count(*) + %s FROM (SELECT id FROM %I ORDER BY e <-> %L LIMIT %s) AS x',
				n, tab, point(q, dims), k) INTO n;
		END LOOP;
		RETURN n;
	END $$;
	-- which queries are kept, the last one first
	CREATE FUNCTION kept(index regclass) RETURNS text LANGUAGE sql AS $$
		SELECT count(*) || ': ' || coalesce(left(string_agg(g::text, ' ' ORDER BY place), 20), '')
		FROM gpuvec_live_queries(index) WITH ORDINALITY AS q (asked, query, place)
			LEFT JOIN generate_series(1, 3000) AS g ON query = point(g, 8)
		WHERE asked > now() - interval '1 hour' $$});

# off
is(as('guest', 'SELECT ask(1, 3)'), '9', 'scans go on without');
like(as('holder', q{SELECT count(*) FROM gpuvec_live_queries('items_e')}),
	qr/NOTICE: +no queries of index "items_e" are kept\n.*superuser.*0$/s, 'off by default');
like(as('guest', 'SET gpuvec.keep_queries = on'), qr/permission denied to set parameter/, 'only superusers turn it on');

# on
$node->safe_psql('postgres', 'ALTER SYSTEM SET gpuvec.keep_queries = on');
$node->reload;
wait_until($node, q{SELECT setting = 'on' FROM pg_settings WHERE name = 'gpuvec.keep_queries'});
is(as('guest', 'SELECT ask(1, 3)'), '9', 'asked by one who may');
is(as('holder', q{SELECT kept('items_e')}), '3: 3 2 1', 'its owner sees what');
for my $function (qw(gpuvec_live_queries gpuvec_forget_queries))
{
	like(as($_, "SELECT $function('items_e')"), qr/permission denied for index "items_e"/, "$function is the owner's, not for $_")
	  for 'guest', 'pg_monitor';
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

# an index comes and goes, or becomes another
$node->safe_psql('postgres', 'REINDEX INDEX items_e');
like(as('holder', q{SELECT kept('items_e')}), qr/^1000: 8 7 22 21/, 'REINDEX keeps them');
is(as('holder', q{SELECT gpuvec_forget_queries('items_e'), gpuvec_forget_queries('items_e'), kept('items_e')}),
	't|f|0: ', 'forgotten');
is(as('guest', 'SELECT ask(5, 6)'), '6', 'asked again');
is(as('holder', q{SELECT kept('items_e')}), '2: 6 5', '... a new ring');
$node->safe_psql('postgres', q{
	CREATE TABLE wide (id int, e real[]);
	INSERT INTO wide SELECT g, point(g, 8) FROM generate_series(1, 5) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 1);
	SELECT ask(1, 2, 'wide');
	TRUNCATE wide;
	INSERT INTO wide SELECT g, point(g, 12) FROM generate_series(1, 5) AS g;
	REINDEX INDEX wide_e;
	SET enable_seqscan = off;
	SELECT id FROM wide ORDER BY e <-> point(1, 12) LIMIT 1});
gives($node, q{SELECT string_agg(cardinality(query)::text, ' ') FROM gpuvec_live_queries('wide_e')}, '12', 'other dimensions');

# as many rings as there is room for
$node->safe_psql('postgres', 'DROP TABLE wide');
my @small = map { "small$_" } 1 .. 65;
$node->safe_psql('postgres', 'SET client_min_messages = warning;' . join '',
	map { "CREATE TABLE $_ AS TABLE items LIMIT 5; CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e) WITH (lists = 1);" } @small);
$node->safe_psql('postgres', "SELECT ask(1, 1, '$_')") for @small[0, 1];
$node->safe_psql('postgres', join '', map { "SELECT ask(1, 1, '$_');" } @small[2 .. 64]);
gives($node, 'SELECT ' . join(', ', map { "kept('${_}_e')" } @small[0, 1, 64]), '0: |1: 1|1: 1', 'the ring that was idle longest gives way');
$node->safe_psql('postgres', join '', map { "DROP TABLE $_;" } @small);
gives($node, q{SELECT ask(1, 1), kept('items_e')}, '3|1: 1', 'rings of dropped indexes, too');
$node->restart;
gives($node, q{SELECT kept('items_e')}, '0: ', 'a restart forgets');

# no memory for a ring: the scan does not care
$node->append_conf('postgresql.conf', 'dynamic_shared_memory_type = mmap');
$node->restart;
my $folder = $node->data_dir . '/pg_dynshmem';
my $offset = -s $node->logfile;
chmod 0500, $folder or die "$folder: $!";
gives($node, 'SELECT ask(1, 3); SELECT ask(1, 3)', "9\n9", 'scans without memory for a ring');
is(scalar(() = slurp_file($node->logfile, $offset) =~ /LOG: .*could not keep queries of index "items_e": could not/g),
	1, '... which is said once');
is(as('guest', 'BEGIN; SELECT ask(1, 1); SELECT ask(1, 1); COMMIT; SELECT ask(1, 1)'), "3\n3\n3", '... in a transaction');
chmod 0700, $folder or die "$folder: $!";
is(as('guest', 'SELECT ask(1, 1)') . as('holder', q{SELECT kept('items_e')}), '31: 1', '... until there is some');

# sessions that ask nothing more keep no rings that gave way
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
gives($node, 'SELECT ' . join(', ', map { "(SELECT count(*) FROM gpuvec_live_queries('${_}_e'))" } @huge[1, 5]),
	'0|1', '... by the last ones asked');
$_->quit for @idle;
$node->safe_psql('postgres', join '', map { "DROP TABLE $_;" } @huge);

# numbers of scans of all indexes
$node->restart;
my $stat = 'SELECT scans, full_passes FROM gpuvec_stat';
gives($node, "SELECT ask(1, 4); $stat", "12\n4|0", 'scans are counted');
gives($node, "SET enable_seqscan = off; SELECT count(*) FROM (SELECT id FROM items ORDER BY e <-> point(1, 8)) AS x; $stat",
	"3000\n5|1", '... and passes');
gives($node, q{
	SET enable_seqscan = off; SET gpuvec.probes = 1; SET gpuvec.candidates = 2; SET gpuvec.recall = 0.5; SET gpuvec.max_probes = 30;
	SELECT count(*) < 3000 FROM (SELECT id FROM items ORDER BY e <-> point(1, 8)) AS x;
	SELECT out_of_order > 0 AND out_of_order = (SELECT out_of_order FROM gpuvec_last_scan()) FROM gpuvec_stat},
	"t\nt", '... and rows out of order');
$node->safe_psql('postgres', 'DROP TABLE items; ALTER SYSTEM RESET gpuvec.keep_queries');
$node->append_conf('postgresql.conf',
	"dynamic_shared_memory_type = posix\ngpuvec.server = 'cpu'\ngpuvec.gpu_memory = '1MB'\n");
$node->restart;

my $pgvector = $node->safe_psql('postgres',
	q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE t (id int, e real[]);
	INSERT INTO t SELECT g, point(g, 16) FROM generate_series(1, 5000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 50);
	CREATE TABLE u AS SELECT * FROM t WHERE id <= 2000;
	CREATE INDEX u_e ON u USING gpuivfpq (e) WITH (lists = 20);
	CREATE TABLE wide AS SELECT g AS id, point(g, 128) AS e FROM generate_series(1, 6000) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e) WITH (lists = 60, refine = sq8)});

# Test: the doctor has a finding like this, of a subject.
sub finds
{
	my ($subject, $pattern, $what, $settings) = @_;

	return like(
		$node->safe_psql('postgres', ($settings // '')
			  . qq{SELECT state || ' => ' || coalesce(advice, '-') FROM gpuvec_doctor() WHERE subject = '$subject'}),
		$pattern, $what);
}

sub counts
{
	my ($index, $columns) = @_;

	return $node->safe_psql('postgres', "SELECT $columns FROM gpuvec_stat_indexes WHERE indexrelname = '$index'");
}

# -- counters, of all sessions
is(counts('t_e', 'scans, since IS NULL'), '0|t', 'no scan yet');
$node->safe_psql('postgres', q{SELECT ask(1, 3, 't', 10, 16)}) for 1 .. 2;
is(counts('t_e', 'relname, scans, batches, returned, full_passes, lists > 0, reranked >= returned, since IS NULL'),
	't|6|6|60|0|t|t|f', 'scans of two sessions are counted');
is(counts('u_e', 'scans'), '0', '... by index');
my $seen = q{SELECT scans, num_nulls(batches, lists, postings, matched, reranked, returned, out_of_order, full_passes)
	FROM gpuvec_stat_indexes WHERE indexrelname = 't_e'};
gives($node, "SET ROLE guest; $seen", '6|8', 'everyone sees how many scans there were, and no more');
gives($node, "SET ROLE pg_monitor; $seen", '6|0', 'members of pg_monitor see all');
gives($node, "GRANT SELECT ON t TO guest; SET ROLE guest; $seen", '6|0', '... and who may read the table');
gives($node, "ALTER TABLE t ENABLE ROW LEVEL SECURITY; SET ROLE guest; $seen", '6|8', '... but under a policy');
$node->safe_psql('postgres', 'ALTER TABLE t DISABLE ROW LEVEL SECURITY; REVOKE SELECT ON t FROM guest');
like(as('guest', 'SELECT gpuvec_stat_reset()'), qr/permission denied/, 'not everyone sets them back');
$node->safe_psql('postgres', q{SELECT ask(1, 1, 'u', 10, 16); SELECT gpuvec_stat_reset('t_e')});
is(counts('t_e', 'scans') . counts('u_e', 'scans'), '01', 'one is set back');
$node->safe_psql('postgres', 'SELECT gpuvec_stat_reset()');
is(counts('u_e', 'scans'), '0', 'all are set back');
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION gpuvec');
$node->safe_psql('other', 'SELECT gpuvec_stat_reset()');
is($node->safe_psql('other', 'SELECT count(*) FROM gpuvec_stat_indexes'), '0', 'each database has its own');

# -- a set of slots is full, and the index searched longest ago gives way

# murmurhash32 of PostgreSQL, and with it the set of an index, as in scanstats.c
sub murmurhash
{
	my ($h) = @_;

	$h = ($h ^ ($h >> 16)) * 0x85ebca6b & 0xffffffff;
	$h = ($h ^ ($h >> 13)) * 0xc2b2ae35 & 0xffffffff;
	return $h ^ ($h >> 16);
}

my $database = $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'postgres'});

sub set_of { return murmurhash($_[0] ^ murmurhash($database)) % 512; }

# Numbers of one set that come next; large objects take those in between.
my $next = $node->safe_psql('postgres',
	join(';', map { "CREATE TABLE full_$_ (e real[])" } 1 .. 9) . '; SELECT lo_create(0)') + 100;
my %taken = map { set_of($_) => 1 } split /\n/, $node->safe_psql('postgres', 'SELECT indexrelid FROM gpuvec_stat_indexes');
$next++ while $taken{ set_of($next) };
my @numbers = grep { set_of($_) == set_of($next) } $next .. $next + 20000;
$node->safe_psql('postgres', sprintf q{
	SET client_min_messages = warning;
	DO $$ BEGIN
		FOR i IN 1 .. 9 LOOP
			WHILE lo_create(0)::bigint < ('{%s}'::bigint[])[i] - 1 LOOP END LOOP;
			EXECUTE format('CREATE INDEX full_%%s_e ON full_%%s USING gpuivfpq (e) WITH (dims = 1)', i, i);
		END LOOP;
	END $$}, join(',', @numbers[0 .. 8]));
my @indexes = split /\n/, $node->safe_psql('postgres', q{SELECT indexrelid FROM gpuvec_stat_indexes WHERE relname LIKE 'full%'});
is(scalar(grep { set_of($_) == set_of($next) } @indexes), 9, 'nine indexes of one set of eight');
$node->safe_psql('postgres', join ';', 'SET enable_seqscan = off',
	map { "SELECT e FROM full_$_ ORDER BY e <-> '{1}' LIMIT 1" } 1 .. 8, 1, 3 .. 8, 9);
gives($node, q{SELECT string_agg(scans::text, ' ' ORDER BY relname) FROM gpuvec_stat_indexes WHERE relname LIKE 'full%'},
	'2 0 2 2 2 2 2 2 1', 'the one that was searched longest ago gives way to the ninth');
$node->safe_psql('postgres', join ';', map { "DROP TABLE full_$_" } 1 .. 9);

# -- 1: gpuvecd runs, and a mirror does not fit
comes($node, q{SELECT state = 'up' FROM gpuvec_stat}, 'gpuvecd is up');
# the gauge of what is to be done is 0 where nothing is, also beside new indexes
gives($node, q{
	SET client_min_messages = warning;
	CREATE TABLE young (e real[]);
	CREATE INDEX ON young USING gpuivfpq (e) WITH (dims = 16);
	INSERT INTO young SELECT e FROM t LIMIT 1500;
	CREATE TEMP TABLE brief AS SELECT * FROM t LIMIT 500;
	CREATE INDEX ON brief USING gpuivfpq (e);
	SELECT string_agg(concat_ws(' ', subject, state, advice), '; ') FROM gpuvec_doctor() WHERE advice IS NOT NULL;
	DROP TABLE young}, '', 'nothing is advised where all is well');
finds('preloading', qr/^gpuvec is preloaded/, 'preloaded');
finds('gpuvecd', qr/^state is up, process \d+ on cpu/, 'gpuvecd is up');
finds('t_e', qr/^gpuvecd has no mirror of the index => Search the index, or run SELECT gpuvec_prewarm\('t_e'\)\.$/m,
	'no mirror yet', 'SET gpuvec.engine = gpu;');
$node->safe_psql('postgres', q{SELECT gpuvec_prewarm('t_e')});
finds('t_e', qr/^mirror is ready => -$/m, 'a mirror', 'SET gpuvec.engine = gpu;');
finds('mirrors', qr/^1, which take \d MB of 1 MB/, 'what mirrors take');
$node->psql('postgres', q{SELECT gpuvec_prewarm('wide_e')});
finds('wide_e', qr/^could not load the index into gpuvecd: .* => Increase gpuvec\.gpu_memory/m,
	'a mirror that does not fit', 'SET gpuvec.engine = gpu;');
finds('settings', qr/^gpuvec\.auto_mirror is off, .* => Set gpuvec\.auto_mirror = on/m,
	'no mirrors by themselves', 'SET gpuvec.engine = gpu; SET gpuvec.auto_mirror = off;');

# -- 2: scans go through the whole table
$node->safe_psql('postgres', q{SELECT ask(1, 120, 'u', 2000, 16)});
finds('u_e', qr/^\d+ of \d+ scans ended in a full pass over the table => Create an index/m, 'passes');
# -- 3: an index has outgrown its training
$node->safe_psql('postgres', q{INSERT INTO u SELECT g, point(g, 16) FROM generate_series(3000, 10000) AS g});
finds('u_e', qr/rows, .* => The index was trained on 2000 rows and now has 9001, .*  Run VACUUM/, 'an index that has grown');
# -- 4: it is locked
my $lock = background($node, q{BEGIN; LOCK TABLE u; SELECT pg_sleep(600)});
comes($node, q{SELECT count(*) > 0 FROM pg_locks WHERE relation = 'u'::regclass AND mode = 'AccessExclusiveLock'}, 'a table is locked');
finds('u_e', qr/^not inspected: its table is locked/, 'it does not wait for locks');
$node->safe_psql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_locks
	WHERE relation = 'u'::regclass AND mode = 'AccessExclusiveLock'});
end_of($lock);
# -- 5: SQL of an older version
SKIP:
{
	skip 'no pgvector', 1 unless $pgvector;
	$node->safe_psql('postgres',
		q{SET client_min_messages = warning; CREATE EXTENSION gpuvec_pgvector CASCADE;
		UPDATE pg_extension SET extversion = '1.0.0-before' WHERE extname = 'gpuvec_pgvector'});
	finds('gpuvec_pgvector', qr/^version 1\.0\.0-before, but the library has version .* => Run ALTER EXTENSION gpuvec_pgvector UPDATE\.$/,
		'an extension that was not updated');
	$node->safe_psql('postgres', q{UPDATE pg_extension SET extversion = default_version
		FROM pg_available_extensions WHERE extname = 'gpuvec_pgvector' AND name = extname});
}

# -- the queries for postgres_exporter give what they say
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE asked_often AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 3000) AS g;
	CREATE INDEX asked_often_e ON asked_often USING gpuivfpq (e)});
$node->append_conf('postgresql.conf', "gpuvec.auto_calibrate = on\ngpuvec.fault_load = 0\n");
$node->reload;
wait_until($node, q{SELECT setting = 'on' FROM pg_settings WHERE name = 'gpuvec.auto_calibrate'});
$node->safe_psql('postgres', q{SELECT ask(4001, 4300, 'asked_often')});
comes($node, q{SELECT recall_measured > 0 FROM gpuvec_index_info('asked_often_e')}, 'an index has a measured recall');
my $yaml = slurp_file(dirname(dirname($FindBin::RealBin)) . '/test/packaging/postgres_exporter.yaml');
my @blocks = split /^(?=\w+:$)/m, $yaml =~ s/^#.*\n//mgr;
for my $block (grep { /^\w+:$/m } @blocks)
{
	my ($name) = $block =~ /^(\w+):$/m;
	my ($query) = $block =~ /^  query: "(.*)"$/m;
	my %usage = $block =~ /^    - (\w+):\n        usage: "(LABEL|GAUGE|COUNTER)"\n        description: "[^"]+"$/mg;
	my %type = map { split /\|/ } split /\n/, $node->safe_psql('postgres', qq{
		SET client_min_messages = warning;
		CREATE TEMP VIEW asked AS $query;
		SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'asked'::regclass AND attnum > 0});

	is(join(' ', sort keys %usage), join(' ', sort keys %type), "$name: each column has its metric");
	is(join(' ', grep { $usage{$_} ne 'LABEL' && $type{$_} !~ /^(integer|bigint|double precision)$/ } sort keys %usage),
		'', "$name: what are no labels are numbers");
	isnt($node->safe_psql('postgres', "SET ROLE pg_monitor; $query"), '', "$name: a member of pg_monitor has rows");
	unlike($node->safe_psql('postgres', "SELECT x IS NOT NULL FROM ($query) AS x"), qr/f/, "$name: no value is NULL");
}

# -- 6: a damaged index ends nothing
my $file = $node->data_dir . '/' . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t_e')});
# An index that may have rows of other dimensions is to be asked for them.
my $early = $node->data_dir . '/' . $node->safe_psql('postgres', q{
	CREATE FUNCTION tell(v real[]) RETURNS real[] IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RAISE WARNING $$called$$; RETURN v; END';
	CREATE TABLE early (e real[]);
	CREATE INDEX early_e ON early USING gpuivfpq (tell(e)) WITH (dims = 2);
	INSERT INTO early VALUES ('{1,2}'), ('{3,4}');
	SELECT pg_relation_filepath('early_e')});
$node->stop;
# from 18 on checksums, which see damage before we do, are the default
system_or_bail('pg_checksums', '--disable', '--no-sync', '-D', $node->data_dir)
  if $node->pg_version >= 18;
(my $bytes = slurp_bytes($file)) =~ s/\A(.{100})..../$1\xff\xff\xff\xff/s;
substr($bytes, 24, 4) = "\0\0\0\0";
write_bytes($file, $bytes);
$bytes = slurp_bytes($early);
# the metapage's dims_flags
substr($bytes, 24 + 68, 4) = "\0\0\0\0";
write_bytes($early, $bytes);
# -- 7: settings of a gpuvecd that there is not, and too few processes
$node->append_conf('postgresql.conf', "gpuvec.server = 'off'\ngpuvec.engine = 'gpu'\nmax_worker_processes = 3\n");
$node->start;
is(counts('u_e', 'scans'), '0', 'counters begin anew with the server');
finds('t_e', qr/index "t_e" is damaged at block 0/, 'a damaged index');
finds('u_e', qr/^format \d/, '... and the next one');
# How looking into it ends by role, and whether functions of the index were called.
sub looked
{
	my ($role) = @_;
	my ($status, undef, $err) = $node->psql('postgres', "SET ROLE $role; SELECT gpuvec_index_info('early_e'); SELECT gpuvec_doctor()");

	return "$status, " . ($err =~ /called/ ? 'called' : 'not called');
}

is(looked('none'), '0, called', 'rows of an index that may have others are computed');
is(looked('pg_monitor'), '0, not called', '... but not for those who could change what its functions do');
finds('gpuvecd', qr/^state is off/, 'no gpuvecd');
finds('settings', qr/^gpuvec\.engine is gpu and the state of gpuvecd is off, so sessions search indexes themselves => /m,
	'an engine that is off');
finds('settings', qr/^gpuvec\.on_gpu_error is error and the state of gpuvecd is off, so searches of mirrored indexes fail => /m,
	'errors that nobody needs', q{SET gpuvec.on_gpu_error = error;});
finds('workers', qr/^max_worker_processes is 3; gpuvec uses up to 4: .* => Increase max_worker_processes to at least 4/,
	'too few processes');
# -- 8: not preloaded
$node->append_conf('postgresql.conf',
	"shared_preload_libraries = ''\ngpuvec.server = 'cpu'\ngpuvec.keep_queries = on\n");
$node->restart;
finds('preloading', qr/^gpuvec is not preloaded, .* => Set shared_preload_libraries = 'gpuvec'/, 'not preloaded');
finds('settings', qr/^gpuvec\.server, .* have no effect because gpuvec is not preloaded => /m, 'settings without effect');
finds('settings', qr/^gpuvec\.keep_queries has no effect/m, '... and another');
like(as('none', q{SELECT * FROM gpuvec_live_queries('u_e')}),
	qr/ERROR: +live queries are not available\n.*shared_preload_libraries/s, '... which the function says, too');

# Before 17 there is no shared memory without preloading.
my $counts = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;
$node->safe_psql('postgres', q{SELECT ask(1, 2, 'u', 10, 16)}) for 1 .. 2;
is(counts('u_e', 'scans'), $counts ? '4' : '', 'counters without preloading');
gives($node, 'SELECT gpuvec_stat_reset()', '', '... are set back');
is(counts('u_e', 'scans'), $counts ? '0' : '', '... or are not there');
is(scalar(() = slurp_file($node->logfile) =~ /could not count scans/g), 0, 'nothing went wrong with them');

# -- 9: checksums see damage before gpuvec does
my $data = $node->data_dir . '/';
my @damaged = map { $data . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$_')") } qw(u_e wide);
$node->stop;
system_or_bail('pg_checksums', '--enable', '--no-sync', '-D', $node->data_dir);
for my $file (@damaged)
{
	$bytes = slurp_bytes($file);
	substr($bytes, $_ * 8192 + 8000, 4) ^= "\xff\xff\xff\xff" for 0 .. length($bytes) / 8192 - 1;
	write_bytes($file, $bytes);
}
unlink $early or die $!;
$node->start;
finds('early_e', qr/^could not open file .* => Run REINDEX INDEX early_e, which reads only the table/, 'a file that is missing');
finds('u_e', qr/^invalid page in block 0 of .* => Run REINDEX INDEX u_e, which reads only the table/,
	'a page of an index with a wrong checksum');
finds('wide_e', qr/^invalid page in block \d+ of .* => Restore table wide from a backup/, '... and of a table');
$node->safe_psql('postgres', 'REINDEX INDEX u_e');
finds('u_e', qr/^format \d/, '... of the index REINDEX does away with it');

done_testing();
