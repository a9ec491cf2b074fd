# Indexes of every on-disk format that gpuvec ever wrote: it reads, searches,
# inserts, vacuums, trains and recovers them.
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
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'the fixtures are of little-endian machines'
  if substr($Config{byteorder}, 0, 4) ne '1234';

my $formats = "$FindBin::RealBin/../formats";

# Trained indexes: table, operator, dimensions.
my @trained = (
	[ 'refined', '<->', 16 ],
	[ 'cosine', '<=>', 16 ],
	[ 'wide', '<#>', 1100 ],
	[ 'inplace', '<->', 8 ]);
my @indexes = map { "$_->[0]_e" } @trained, ['untrained'];

# Run some of a format's statements.
sub run_parts
{
	my ($node, $format, @parts) = @_;

	$node->safe_psql('postgres',
		join "\n", 'SET client_min_messages = warning;',
		map { slurp_file("$formats/$format/$_.sql") } @parts);
	return;
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

# A server whose indexes are the fixture's.
sub open_format
{
	my ($format) = @_;
	my $node = PostgreSQL::Test::Cluster->new("format$format");
	my $files = PostgreSQL::Test::Utils::tempdir();

	# the fixture's pages have no checksums, which are the default from 18 on
	$node->init(extra => $node->pg_version >= 18 ? ['--no-data-checksums'] : []);
	# no worker trains what is to stay untrained
	$node->append_conf('postgresql.conf',
		"autovacuum = off\njit = off\nmax_worker_processes = 0\n"
		  . "max_logical_replication_workers = 0\n");
	$node->start;
	load_gpuvec($node);
	run_parts($node, $format, 'tables', 'indexes');
	set_ready($node, 'false');
	run_parts($node, $format, 'rows', 'changes', 'deletes');
	set_ready($node, 'true');

	my %path = map { $_ => $node->data_dir . '/'
		  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$_')") } @indexes;
	$node->stop;
	system_or_bail('sh', '-c', "xz -dc '$formats/$format/files.tar.xz' | tar -C '$files' -xf -");
	for my $index (@indexes)
	{
		unlink glob "$path{$index}_*";
		for my $fork ('', '_fsm')
		{
			next unless -e "$files/$index$fork";
			open my $out, '>:raw', "$path{$index}$fork" or die "$index: $!";
			print $out slurp_file("$files/$index$fork");
			close $out or die "$index: $!";
		}
	}
	$node->start;
	return $node;
}

# The version that an index's metapage names.
sub version_of
{
	my ($node, $index) = @_;

	return $node->safe_psql('postgres',
		"CHECKPOINT; SELECT get_byte(pg_read_binary_file(pg_relation_filepath('$index'), 28, 1), 0)");
}

sub test_trained
{
	my ($node, $what) = @_;

	for (@trained)
	{
		my ($table, $operator, $dims) = @$_;

		is_sound($node, "${table}_e", $what);
		is_complete($node, $table, $operator, $dims, $what);
		is_exact($node, $table, $operator, $dims, $what);
	}
	return;
}

for my $format (map { /(\d+)$/ } sort glob "$formats/[0-9]*")
{
	my $node = open_format($format);
	my $what = "format $format";

	is(version_of($node, $_), $format, "$what: $_ is of it") for @indexes;
	test_trained($node, $what);

	for (@trained)
	{
		my ($table, $operator, $dims) = @$_;

		like( $node->safe_psql('postgres', "SELECT recall > 0.85 FROM gpuvec_recall('${table}_e', 10, 50)"),
			qr/^t$/, "$what: recall of ${table}_e");
		$node->safe_psql(
			'postgres', qq{
			INSERT INTO $table SELECT g, fixture(g, $dims) FROM generate_series(10001, 10200) AS g;
			DELETE FROM $table WHERE id % 3 = 1;
			VACUUM (INDEX_CLEANUP ON) $table;
			INSERT INTO $table SELECT g, fixture(g, $dims) FROM generate_series(10201, 10300) AS g;
		});
	}
	test_trained($node, "$what, changed");
	$node->stop('immediate');
	$node->start;
	test_trained($node, "$what, after a crash");
	is(version_of($node, $_), $format, "$what: $_ still is of it") for @indexes;

	$node->safe_psql('postgres', "SET client_min_messages = error; REINDEX INDEX $_->[0]_e")
	  for @trained;
	test_trained($node, "$what, rebuilt");
	$node->stop;
}

done_testing();
