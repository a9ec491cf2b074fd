# Statements that order by distance under conditions give what a sort gives:
# random ones, in all forms and over all kinds of tables (GpuvecStatements,
# GpuvecTables), with the custom scan and without, with indexes on other columns
# and without, each time by a plan that is seen to be of that kind.
#
# A statement that fails is printed with what to run, and has a number:
# GPUVEC_TEST_STATEMENTS="NUMBER NUMBER ..." runs just these, and
# GPUVEC_TEST_SEED=N others of the same numbers.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecConditions;
use GpuvecRemote;
use GpuvecTables;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{GPUVEC_TEST_SEED} // 1;
my @numbers = split ' ', $ENV{GPUVEC_TEST_STATEMENTS} // '';
@numbers = (1 .. (long_test() ? 10_000 : 300)) if !@numbers;

my $pgvector = $ENV{GPUVEC_PGVECTOR} ? 1 : 0;
my $node = new_node('main', conf => remote_conf() . "max_prepared_transactions = 4\n");
my $version = int $node->safe_psql('postgres', 'SHOW server_version_num') / 10_000;

# A session of its own, messages where they come.
sub ask
{
	my ($input) = @_;
	my $output;

	IPC::Run::run([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', \$input, '>&', \$output);
	return $output;
}

$node->safe_psql('postgres', 'CREATE EXTENSION gpuvec_pgvector CASCADE') if $pgvector;
$node->safe_psql('postgres', tables_sql(1500, $pgvector));
note("seed $seed");

my %counts;
my $told = 0;
while (my @some = splice @numbers, 0, 100)
{
	my @faults = ask_statements(
		\&ask,
		seed => $seed,
		version => $version,
		pgvector => $pgvector,
		numbers => \@some,
		counts => \%counts);

	is(scalar @faults, 0, "seed $seed, statements $some[0] to $some[-1]");
	# one fault may be all statements'
	diag($_) for grep { $told++ < 20 } @faults;
}
if (!defined $ENV{GPUVEC_TEST_STATEMENTS})
{
	cmp_ok($counts{$_} // 0, '>=', 5, "scans that ended by $_") for 'index', 'table', 'bitmap';
	# .9 is asked
	cmp_ok($counts{$_}->{found}, '>=', 0.9 * $counts{$_}->{wanted}, "$_: found of $counts{$_}->{wanted}")
	  for map { ("$_ on", "$_ on_indexed") } 'approximate', 'radius';
	cmp_ok(served($node), '>', 10, 'gpuvecd was asked, too');
}

done_testing();
