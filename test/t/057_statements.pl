# Statements lose no row, and crash nothing: random ones (GpuvecQueries), in which
# the order by a distance meets joins, groups, windows, sets, partitions, workers
# and cursors, give what they give on tables without our indexes (GpuvecTwins):
# at recall 1 all of them, but that where a level orders by the distance and wants
# few rows, rows without a place in the index are left out; and as users run them
# those in which no level does so.
#
# A statement that fails is printed with its plan and the rows that differ:
# SEED=N STATEMENTS="NUMBER ..." runs just these, COUNT=N as many from the first on.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecCompare;
use GpuvecTwins;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{SEED} // 1;
my @numbers = split ' ', $ENV{STATEMENTS} // '';
@numbers = (1 .. ($ENV{COUNT} // (long_test() ? 10_000 : 200))) if !@numbers;
my $asked = @numbers;
my $whole = !grep { defined $ENV{$_} } qw(SEED STATEMENTS COUNT);
# one fault may be all statements'
my $MOST = 40;

my $pgvector = $ENV{GPUVEC_PGVECTOR} ? 1 : 0;
my $node = new_node('main', conf => "max_worker_processes = 12\nlog_min_messages = error\nlog_statement = none\nrestart_after_crash = on\n");
my $version = int $node->safe_psql('postgres', 'SHOW server_version_num') / 10_000;
my $file = PostgreSQL::Test::Utils::tempdir() . '/statements.sql';

# A session of its own, messages where they come.
sub ask
{
	my ($input) = @_;
	my $output;

	# no pipe: it breaks where the server does
	unlink $file;
	append_to_file($file, $input);
	IPC::Run::run([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', $file, '>&', \$output);
	return $output;
}

$node->safe_psql('postgres', 'CREATE EXTENSION gpuvec_pgvector CASCADE') if $pgvector;
$node->safe_psql('postgres', twins_sql(2500, $pgvector));
my %ours = map { $_ => 1 } split /\n/,
  $node->safe_psql('postgres', q{SELECT c.relname FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam WHERE a.amname = 'gpuivfpq'});

my (%counts, @faults);
while (@numbers && @faults < $MOST)
{
	my @some = splice @numbers, 0, 100;

	my @new = compare_statements(
		\&ask,
		seed => $seed,
		version => $version,
		pgvector => $pgvector,
		numbers => \@some,
		ours => \%ours,
		counts => \%counts);

	is(scalar @new, 0, "seed $seed, statements $some[0] to $some[-1]");
	push @faults, @new;
	last if grep { /^CRASH/ } @new;
}
splice @faults, $MOST if @faults > $MOST;
diag($_) for @faults;
note("$_: $counts{$_}") for sort keys %counts;
is(join('', grep { /TRAP: |was terminated by signal|PANIC: / } split /^/, slurp_file($node->logfile)), '', 'nothing has crashed');
if ($whole && !@faults)
{
	cmp_ok($counts{"$_: too slow"} // 0, '<', 0.02 * $counts{"$_: all"}, "$_: in time") for 'exact', 'usual';
	cmp_ok($counts{$_} // 0, '>=', $asked / 15, $_) for map { "$_: uses the index" } 'exact', 'usual';
	cmp_ok($counts{"approximate: rows $_"}, '>=', 0.93 * $counts{'approximate: rows wanted'}, "rows $_, as users ask")
	  for 'given', 'that are right';
	cmp_ok($counts{"usual: ... $_"} // 0, '>=', 3, "usual: $_ with it") for 'GpuvecScan', 'Merge Append', 'Incremental Sort', 'Nested Loop';
}

done_testing();
