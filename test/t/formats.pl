# Indexes of every on-disk format from 7 on, without keys and with them: gpuvec
# reads, searches, verifies, inserts, vacuums, trains, recovers and rebuilds them.
# Those of other formats it refuses until they are rebuilt.
#
# The tables are made by the statements that made the fixture's (see
# test/formats/README), with indexes that take no part in it; then the fixture's
# files take the place of the indexes' own.

use strict;
use warnings;
use Config;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDamage qw(slurp_bytes write_bytes);

plan skip_all => 'the fixtures are of little-endian machines'
  if substr($Config{byteorder}, 0, 4) ne '1234';

my $formats = "$FindBin::RealBin/../formats";

# A fixture's indexes, which are called like its tables: table, operator, dimensions.
# (The untrained one of the first has rows of other dimensions: test_untrained.)
my %tables = (
	'7' => [ [ 'refined', '<->', 16 ], [ 'cosine', '<=>', 16 ], [ 'wide', '<#>', 1100 ], [ 'inplace', '<->', 8 ] ],
	'7-keys' => [ [ 'ordered', '<->', 16 ], [ 'hashed', '<->', 16 ], [ 'sets', '<=>', 16 ], [ 'wide', '<#>', 1100 ],
		[ 'inplace', '<->', 8 ], [ 'untrained', '<->', 4 ] ],
	'7-rotated' => [ [ 'refined', '<->', 16 ], [ 'cosine', '<=>', 16 ], [ 'product', '<#>', 24 ], [ 'inplace', '<->', 8 ],
		[ 'untrained', '<->', 4 ] ]);

# Conditions on keys: one on each, and some on several.
my %conditions = (
	ordered => [
		'flag', 'small BETWEEN -20 AND 30::int8', 'tenant IN (3, 5, 90)', 'tenant IS NULL',
		'big > 2147483648000', q{score = 'NaN'}, 'score < 2.5::float4', 'price <= 8',
		'price IS NULL', q{created >= '1972-01-01Z' AND created < '1972-02-01Z'},
		q{NOT flag AND tenant > 8 AND small < 0} ],
	hashed => [
		q{day < '2000-01-05'}, 'owner = 7', q{feeling = 'good'}, q{feeling < 'good'}, 'feeling IS NULL',
		q{key = md5('17')::uuid}, q{name = ANY ('{n5,n6,none}')}, 'name IS NULL',
		q{bytes = decode(md5('3'), 'hex')}, q{host = '10.0.0.33'}, q{name = 'n7' AND feeling <> 'bad' AND day > '2000-01-20'} ],
	sets => [
		q{tags && '{4,104}'}, q{tags @> '{4,104}'}, q{words @> '{w3}'}, 'words IS NULL',
		q{doc @> '{"a": 2}'}, q{doc @> '{"b": {"c": [7]}}'}, q{code = '12'}, q{label = 'v4'}, 'weight > 14.5',
		q{at < '2000-01-03'}, q{label IN ('v1', 'v2') AND tags && '{1,2,3}'} ],
	wide => [ 'tenant = 2', 'tenant IS NULL' ],
	inplace => [ 'tenant = 2', 'tenant IS NULL' ],
	untrained => [ 'tenant = 2', 'tenant IS NULL' ]);

# Run some of a fixture's statements.
sub run_parts
{
	my ($node, $fixture, @parts) = @_;

	$node->safe_psql('postgres',
		join "\n", 'SET client_min_messages = warning;',
		map { slurp_file("$formats/$fixture/$_.sql") } @parts);
	return;
}

# The names of a fixture's indexes.
sub indexes_of
{
	my ($fixture) = @_;
	my %names = map { ("$_->[0]_e" => 1) } @{ $tables{$fixture} }, ['untrained'];

	return sort keys %names;
}

# Let the indexes take part in what happens to their tables, or not; a VACUUM
# that sees no index says that there is none.
sub set_ready
{
	my ($node, $ready) = @_;

	$node->safe_psql('postgres',
		"UPDATE pg_index SET indisready = $ready WHERE indexrelid::regclass::text ~ '_e\$';
		UPDATE pg_class SET relhasindex = true WHERE oid IN
			(SELECT indrelid FROM pg_index WHERE indexrelid::regclass::text ~ '_e\$')");
	return;
}

# A server whose indexes are the fixture's.  With the option odd two rows of an
# untrained index have five dimensions, the others four: they lie in the same
# places, and have as many bytes behind alignment.
sub open_format
{
	my ($fixture, %options) = @_;
	my $node = PostgreSQL::Test::Cluster->new("format$fixture");
	my $files = PostgreSQL::Test::Utils::tempdir();

	# the fixture's pages have no checksums, which are the default from 18 on
	$node->init($node->pg_version >= 18 ? (extra => ['--no-data-checksums']) : ());
	# no worker trains what is to stay untrained
	$node->append_conf('postgresql.conf',
		"autovacuum = off\njit = off\nmax_worker_processes = 0\n"
		  . "max_logical_replication_workers = 0\ntimezone = 'UTC'\n");
	$node->start;
	load_gpuvec($node);
	run_parts($node, $fixture, 'tables', 'indexes');
	set_ready($node, 'false');
	$node->safe_psql('postgres', q{
		CREATE FUNCTION lengthen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.e = fixture(NEW.id, 5); RETURN NEW; END';
		CREATE TRIGGER lengthen BEFORE INSERT ON untrained FOR EACH ROW
			WHEN (NEW.id IN (1700, 3100)) EXECUTE FUNCTION lengthen()}) if $options{odd};
	run_parts($node, $fixture, 'rows', 'changes', 'deletes');
	$node->safe_psql('postgres', 'DROP TRIGGER lengthen ON untrained') if $options{odd};
	set_ready($node, 'true');

	my %path = map { $_ => $node->data_dir . '/'
		  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$_')") } indexes_of($fixture);
	$node->stop;
	system_or_bail('sh', '-c', "xz -dc '$formats/$fixture/files.tar.xz' | tar -C '$files' -xf -");
	for my $index (keys %path)
	{
		unlink glob "$path{$index}_*";
		for my $fork ('', '_fsm')
		{
			next unless -e "$files/$index$fork";
			write_bytes("$path{$index}$fork", slurp_bytes("$files/$index$fork"));
		}
	}
	$node->start;
	return $node;
}

# Write bytes into an index's metapage, while nobody has it: [offset, bytes] ...
sub patch_meta
{
	my ($node, $index, @patches) = @_;
	my $path = $node->data_dir . '/'
	  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$index')");

	$node->stop;
	my $bytes = slurp_bytes($path);
	substr($bytes, 24 + $_->[0], length $_->[1]) = $_->[1] for @patches;
	write_bytes($path, $bytes);
	$node->start;
	return;
}

# The version that an index's metapage names.
sub version_of
{
	my ($node, $index) = @_;

	return $node->safe_psql('postgres',
		"CHECKPOINT; SELECT get_byte(pg_read_binary_file(pg_relation_filepath('$index'), 28, 1), 0)");
}

# Test: the fixture's indexes are whole, under conditions on their keys, too.
sub test_whole
{
	my ($node, $fixture, $what, @names) = @_;
	my @asked = grep { my $table = $_->[0]; !@names || grep { $_ eq $table } @names } @{ $tables{$fixture} };

	are_whole($node, $what, [ map { [ "$_->[0]_e", @$_, $fixture eq '7-keys' ? $conditions{ $_->[0] } : () ] } @asked ]);
	return;
}

# Rows of other dimensions: two of them are in an untrained index whose other
# rows have four.
sub test_odd
{
	my ($node, $what) = @_;
	my $rows = $node->safe_psql('postgres', 'SELECT count(*) - 2 FROM untrained');
	my ($first) = $node->safe_psql('postgres',
		q{SELECT min(ctid) FROM untrained WHERE cardinality(e) <> 4}) =~ /^\((.*)\)$/;
	my ($rc, $out, $err) = $node->psql('postgres', q{SELECT complete('untrained', '<->', 4)});

	is($out, "$rows rows, $rows distinct", "$what: rows of the right length are found");
	my $count = () = $err =~ /WARNING/g;
	is($count, 1, "$what: ... with one warning");
	like($err, qr/skipping row \($first\) of table "untrained"\nDETAIL:  It has \d dimensions, but index "untrained_e" has 4\./,
		"$what: ... that names a row");
	says($node, q{SELECT complete('untrained', '<->', 3)}, qr/expected 4 dimensions, not 3/, "$what: a query of another length");
	is($node->safe_psql('postgres', q{SELECT string_agg(severity || ' ' || problem, E'\n' ORDER BY problem)
			FROM gpuvec_verify_index('untrained_e')}),
		$node->safe_psql('postgres', q{SELECT string_agg(format('warning row %s of table "untrained" has %s dimensions, but the index has 4',
			ctid, cardinality(e)), E'\n' ORDER BY ctid) FROM untrained WHERE cardinality(e) <> 4}),
		"$what: verify names both");
	like($node->safe_psql('postgres', q{SELECT advice FROM gpuvec_index_info('untrained_e')}),
		qr/^2 rows, of which the first is \($first\) with \d dimensions, do not have 4 dimensions/,
		"$what: so does the advice");
	gives($node, q{SELECT recall FROM gpuvec_recall('untrained_e', 5, 20)}, '1', "$what: recall can be measured");
	return;
}

# An untrained index with such rows answers, takes rows, is vacuumed, trained by
# a worker that says what stays pending, and mended.
sub test_untrained
{
	my ($node, $what) = @_;
	my $stays = qr/LOG:  2 rows of index "public.untrained_e" remain pending/;
	my $idle = q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'gpuvec training'};

	# dims and dims_flags: nothing is known of them
	patch_meta($node, 'untrained_e', [ 16, pack('l<', 0) ], [ 68, pack('l<', 0) ]);
	test_odd($node, $what);
	says($node, q{INSERT INTO untrained VALUES (1700, '{1,2,3,4,5}')}, qr/expected 4 dimensions, not 5/, "$what: a row of another length");
	$node->safe_psql('postgres', q{INSERT INTO untrained SELECT g, fixture(g, 4) FROM generate_series(5001, 5100) AS g});
	gives($node, q{SELECT dims FROM gpuvec_index_info('untrained_e')}, '4', "$what: the index knows its dimensions now");
	$node->stop('immediate');
	$node->start;
	$node->safe_psql('postgres', 'DELETE FROM untrained WHERE id % 10 = 4; VACUUM (INDEX_CLEANUP ON) untrained');
	test_odd($node, "$what, vacuumed");

	$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
	$node->restart;
	my $from = -s $node->logfile;
	$node->safe_psql('postgres', 'ALTER INDEX untrained_e SET (train_rows = 1500); VACUUM untrained');
	comes($node, q{SELECT lists > 0 FROM gpuvec_index_info('untrained_e')}, "$what: trained");
	comes($node, $idle, "$what: the worker is gone");
	like(slurp_file($node->logfile, $from), $stays, "$what: the log says what stays pending");
	test_odd($node, "$what, trained");
	gives($node, q{SELECT pending FROM gpuvec_index_info('untrained_e')}, '2', "$what: two are pending");
	gives($node, q{SELECT count(*) > 0 FROM gpuvec_calibrate('untrained_e')}, 't', "$what: calibrated");
	$from = -s $node->logfile;
	$node->safe_psql('postgres', 'VACUUM untrained') for 1 .. 2;
	settle($node, $what);
	unlike(slurp_file($node->logfile, $from), $stays, "$what: that is said once");

	$node->safe_psql('postgres', q{UPDATE untrained SET e = fixture(id, 4) WHERE cardinality(e) <> 4;
		VACUUM (INDEX_CLEANUP ON) untrained});
	is_whole($node, "$what, mended", 'untrained', '<->', 4);
	gives($node, q{SELECT pending, advice FROM gpuvec_index_info('untrained_e')}, '0|', "$what: none is pending any more");
	return;
}

# Rows come and go in all tables.
sub change
{
	my ($node, $fixture) = @_;

	for (@{ $tables{$fixture} })
	{
		my ($table, undef, $dims) = @$_;

		$node->safe_psql('postgres', qq{
			INSERT INTO $table SELECT g, fixture(g, $dims) FROM generate_series(10001, 10200) AS g;
			DELETE FROM $table WHERE id % 3 = 1;
			VACUUM (INDEX_CLEANUP ON) $table;
			INSERT INTO $table SELECT g, fixture(g, $dims) FROM generate_series(10201, 10300) AS g;
		});
	}
	return;
}

# The errors on the index "ordered_e" while its metapage names another format:
# $version is in all of them, $hint says what to do.
sub test_refused
{
	my ($node, $what, $version, $hint) = @_;
	my $query = 'SELECT id FROM ordered ORDER BY e <-> fixture(7919, 16) LIMIT 5';
	my %refused = (
		'a scan' => $query,
		'a filtered scan' => $query =~ s/ORDER/WHERE tenant = 3 ORDER/r,
		'gpuvec_search' => q{SELECT * FROM gpuvec_search('ordered_e', ARRAY[fixture(7919, 16)], 5)},
		'INSERT' => 'INSERT INTO ordered SELECT 1, fixture(1, 16)',
		'UPDATE' => 'UPDATE ordered SET e = fixture(1, 16) WHERE id = 1502',
		'gpuvec_index_info' => q{SELECT * FROM gpuvec_index_info('ordered_e')},
		'gpuvec_list_stats' => q{SELECT * FROM gpuvec_list_stats('ordered_e')},
		'gpuvec_recall' => q{SELECT * FROM gpuvec_recall('ordered_e', 5)},
		'gpuvec_calibration' => q{SELECT * FROM gpuvec_calibration('ordered_e')},
		'gpuvec_calibrate' => q{SELECT * FROM gpuvec_calibrate('ordered_e')},
		'gpuvec_train' => q{SELECT * FROM gpuvec_train('ordered_e')},
		'gpuvec_prewarm' => q{SELECT gpuvec_prewarm('ordered_e')});

	for my $name (sort keys %refused)
	{
		my ($rc, undef, $err) = $node->psql('postgres', "SET enable_seqscan = off; $refused{$name}");

		is($rc, 3, "$what: $name is refused");
		like($err, qr/ERROR:  index "ordered_e" has $version\nHINT:  $hint/, "$what: $name says why");
	}
	gives($node, q{SELECT block, severity, problem FROM gpuvec_verify_index('ordered_e')}, "0|error|$version", "$what: verify");
	like($node->safe_psql('postgres', q{SELECT state, advice FROM gpuvec_doctor() WHERE subject LIKE '%ordered_e'}),
		qr/^index "ordered_e" has $version\|$hint/, "$what: the doctor");
	# what asks nothing of the index
	gives($node, 'SELECT count(*) > 0 FROM ordered WHERE tenant = 3 AND small > 0', 't', "$what: the table can be read");
	$node->safe_psql('postgres', q{ALTER INDEX ordered_e SET (probes = 3); ALTER INDEX ordered_e RESET (probes); ANALYZE ordered});
	return;
}

# Older formats are refused, but VACUUM goes on, and so does the worker with other
# indexes; REINDEX and DROP INDEX help.  Newer formats stop VACUUM, too: they may
# be read again.
sub test_other_formats
{
	my ($node, $what) = @_;
	my ($from, $rc, $err);

	patch_meta($node, 'ordered_e', [ 4, pack('S<', 8) ]);
	test_refused($node, "$what, of a newer one", 'format version 8, but this version of gpuvec supports only 7',
		'Install a newer version of gpuvec, or rebuild the index with REINDEX INDEX ordered_e.');
	$node->safe_psql('postgres', 'DELETE FROM ordered WHERE id % 19 = 2');
	says($node, 'VACUUM (INDEX_CLEANUP ON) ordered', qr/ERROR:  index "ordered_e" has format version 8/,
		"$what, of a newer one: VACUUM is refused");

	patch_meta($node, 'ordered_e', [ 4, pack('S<', 6) ]);
	$what .= ', of an older one';
	test_refused($node, $what, 'format version 6, but this version of gpuvec supports only 7',
		'Rebuild the index with REINDEX INDEX ordered_e.');
	($rc, undef, $err) = $node->psql('postgres', 'VACUUM (INDEX_CLEANUP ON, FREEZE) ordered');
	is($rc, 0, "$what: VACUUM goes on");
	is($err, "psql:<stdin>:1: WARNING:  skipping vacuum of index \"ordered_e\" because it has the format of an older version of gpuvec\n"
		  . 'HINT:  Rebuild the index with REINDEX INDEX ordered_e.', "$what: ... and says so once");
	gives($node, q{SELECT reltuples > 0 FROM pg_class WHERE relname = 'ordered_e'}, 't', "$what: ... its rows stay as they were counted");

	$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
	$node->restart;
	$from = -s $node->logfile;
	$node->safe_psql('postgres', q{CREATE TABLE other (id int, e real[]); CREATE INDEX other_e ON other USING gpuivfpq (e);
		ALTER INDEX other_e SET (train_rows = 1000);
		INSERT INTO other SELECT g, fixture(g, 8) FROM generate_series(1, 1200) AS g; VACUUM other});
	comes($node, q{SELECT lists > 0 FROM gpuvec_index_info('other_e')}, "$what: the worker trains another index");
	comes($node, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'gpuvec training'}, "$what: ... and ends");
	is(scalar(() = slurp_file($node->logfile, $from) =~ /ERROR:  index "ordered_e" has format version 6/g), 1,
		"$what: ... having looked at this one once");

	$node->safe_psql('postgres', 'REINDEX INDEX ordered_e');
	test_whole($node, '7-keys', "$what, rebuilt", 'ordered');
	patch_meta($node, 'ordered_e', [ 4, pack('S<', 6) ]);
	gives($node, 'DROP INDEX ordered_e; INSERT INTO ordered SELECT 1, fixture(1, 16) RETURNING id', '1', "$what: DROP INDEX");
	return;
}

for my $fixture (map { /([^\/]+)$/ } sort glob "$formats/[0-9]*")
{
	my ($format) = $fixture =~ /^(\d+)/;
	my $node = open_format($fixture, odd => $fixture eq '7');
	my $what = "format $fixture";

	is(version_of($node, $_), $format, "$what: $_ is of it") for indexes_of($fixture);
	test_whole($node, $fixture, $what);
	for (grep { $_ ne 'untrained_e' } indexes_of($fixture))
	{
		gives($node, "SELECT recall > 0.85 FROM gpuvec_recall('$_', 10, 50)", 't', "$what: recall of $_");
	}
	change($node, $fixture);
	test_whole($node, $fixture, "$what, changed");
	$node->stop('immediate');
	$node->start;
	like($node->safe_psql('postgres', q{SELECT gpuvec_train('untrained_e'); SELECT lists, pending FROM gpuvec_index_info('untrained_e')}),
		qr/\n[1-9]\d*\|0$/, "$what: untrained_e is trained") if $fixture ne '7';
	test_whole($node, $fixture, "$what, after a crash");
	is(version_of($node, $_), $format, "$what: $_ still is of it") for indexes_of($fixture);

	$node->safe_psql('postgres', "SET client_min_messages = error; REINDEX INDEX $_->[0]_e")
	  for @{ $tables{$fixture} };
	test_whole($node, $fixture, "$what, rebuilt");
	test_untrained($node, $what) if $fixture eq '7';
	test_other_formats($node, $what) if $fixture eq '7-keys';
	$node->stop;
}

done_testing();
