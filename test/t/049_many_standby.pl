# gpuvec_search on a standby: the primary's rows, by the session and by gpuvecd,
# while it replays inserts, VACUUM and rewrites; a conflict with replay ends it;
# and it goes on after promotion.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $primary = new_remote_node('primary', allows_streaming => 1,
	conf => "fsync = off\nwal_keep_size = '1GB'\n");
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "hot_standby_feedback = off\nmax_standby_streaming_delay = '100ms'\n");
$standby->start;

my %lists = (plain => 'lists = 20', refined => 'lists = 20, refine = sq8', waiting => 'train_rows = 1000000');
$primary->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE asked AS SELECT g, point(7 * g, 8) AS v FROM generate_series(1, 200) AS g;
	CREATE UNLOGGED TABLE unlogged AS SELECT point(g, 8) AS e FROM generate_series(1, 1500) AS g;
	CREATE INDEX unlogged_e ON unlogged USING gpuivfpq (e) WITH (lists = 10);} . join '', map {
		"CREATE TABLE $_ AS SELECT g AS id, point(g, 8) AS e FROM generate_series(1, 1500) AS g;
		CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e) WITH ($lists{$_});" } sort keys %lists);

sub many
{
	my ($name, $set) = @_;

	return "SET gpuvec.probes = 1000; $set SELECT string_agg(n::text, ' ') FROM
		gpuvec_search('${name}_e', (SELECT array_agg(v ORDER BY g) FROM asked), 10) AS n";
}

# Both servers have the same rows, however they are found.
sub test_same
{
	my ($what) = @_;

	$primary->wait_for_catchup($standby);
	for my $name (sort keys %lists)
	{
		my $expected = $primary->safe_psql('postgres', many($name, 'SET gpuvec.engine = cpu;'));

		like($expected, qr/^(\S+ ){1999}\S+$/, "$what: $name: there are rows");
		for my $set ('gpuvec.engine = cpu', 'gpuvec.engine = gpu', 'gpuvec.engine = cpu; SET gpuvec.recall = 1')
		{
			my $found = $standby->safe_psql('postgres', many($name, "SET $set;"));

			$expected = $primary->safe_psql('postgres', many($name, "SET $set;")) if $set =~ /recall/;
			ok($found eq $expected, "$what: $name: the same on the standby, $set");
		}
	}
	return;
}

ok(wait_until($standby, "SELECT state = 'up' FROM gpuvec_stat"), 'the standby has a gpuvecd');
test_same('built');
is_mirrored($standby, "${_}_e", "SELECT FROM $_ ORDER BY e <-> point(1, 8) LIMIT 1", 'standby')
  for 'plain', 'refined';
my $before = served($standby);
test_same('mirrored');
cmp_ok(served($standby), '>', $before, 'gpuvecd of the standby has answered');
for my $cycle (1, 2)
{
	$primary->safe_psql('postgres', join '', map {
			"INSERT INTO $_ SELECT g, point(g, 8) FROM generate_series($cycle * 10000, $cycle * 10000 + 300) AS g;
			DELETE FROM $_ WHERE id % 5 = $cycle; " } sort keys %lists);
	test_same("cycle $cycle: written");
	$primary->safe_psql('postgres', "VACUUM $_") for sort keys %lists;
	test_same("cycle $cycle: vacuumed");
}
{
	my ($rc, undef, $err) = $standby->psql('postgres', "SELECT FROM gpuvec_search('unlogged_e', '{1,2,3,4,5,6,7,8}', 1)");

	isnt($rc, 0, 'an unlogged table on a standby');
	like($err, qr/ERROR:  index "unlogged_e" is unlogged and empty on a standby/, '... is an error');
}

# -- a conflict: rows that a statement may still see are to be removed
my $long = q{SET gpuvec.recall = 1; SELECT count(*) FROM gpuvec_search('plain_e',
	(SELECT array_agg(v) FROM asked, generate_series(1, 3000)), 100)};
my $took;
# the best of three tries counts
for my $rest (3 .. 5)
{
	my $job = background($standby, $long);
	ok(wait_until($standby, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND backend_xmin IS NOT NULL
		AND query LIKE '%gpuvec_search%' AND pid <> pg_backend_pid()}), 'a long search on the standby');
	my $begun = time;
	$primary->safe_psql('postgres', "DELETE FROM plain WHERE id % 7 = $rest; VACUUM plain");
	isnt(end_of($job), 0, 'it was ended');
	like(slurp_file($job->{output} =~ s/out$/err/r), qr/canceling statement due to conflict with recovery/, '... by the conflict');
	$took = time - $begun;
	last if $took < 20;
}
cmp_ok($took, '<', 20, '... soon');
test_same('after a conflict');

$standby->promote;
$standby->safe_psql('postgres', 'INSERT INTO plain SELECT g, point(g, 8) FROM generate_series(1, 200) AS g; VACUUM plain');
my $own = $standby->safe_psql('postgres', many('plain', 'SET gpuvec.engine = cpu;'));
is($standby->safe_psql('postgres', many('plain', 'SET gpuvec.engine = gpu;')), $own, 'promoted');

$standby->stop;
$primary->stop;
done_testing();
