# On a standby a page that redo is making from its image in the WAL is waited
# for: its buffer is valid and all zero before.  The debugger stops redo there,
# for each of the first pages that a row's insert changes.  Long runs only, with gdb.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use IPC::Run qw(start finish);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'needs a long run' if !long_test();
plan skip_all => 'needs gdb' if system('command -v gdb >/dev/null') != 0;

my $primary = new_node('primary', allows_streaming => 1, conf => "autovacuum = off\n");
$primary->safe_psql('postgres', '
	CREATE TABLE t AS SELECT g AS id, ARRAY[g % 7, g % 11, g % 13, g]::real[] AS e FROM generate_series(1, 2000) AS g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 4);');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

my $folder = PostgreSQL::Test::Utils::tempdir;
my $query = "SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> '{1,2,3,400}' LIMIT 10) AS x";

# Wait for a file, which has to have something in it, perhaps.
sub wait_for_file
{
	my ($name, $full) = @_;

	for (1 .. 300)
	{
		last if $full ? -s "$folder/$name" : -e "$folder/$name";
		usleep(100_000);
	}
	return;
}

for my $image (1 .. 4)
{
	$primary->wait_for_catchup($standby);
	# no page is in the standby's buffers, and each is an image when it changes
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$standby->restart;
	my $startup = $standby->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});

	unlink map { "$folder/$_" } qw(ask commands answer attached stopped);
	append_to_file("$folder/ask", "(psql -XAtq -d '" . $standby->connstr('postgres') . "' -c 'SET enable_seqscan = off' -c \"$query\""
		. " >$folder/answer 2>&1 </dev/null &)\nsleep 2\ntouch $folder/stopped\n");
	append_to_file("$folder/commands", "set breakpoint pending on\nhandle SIGUSR1 nostop noprint pass\nbreak RestoreBlockImage\n"
		. 'ignore 1 ' . ($image - 1) . "\ncommands\nsilent\nshell sh $folder/ask\ndelete\ndetach\nquit\nend\n"
		. "shell touch $folder/attached\ncontinue\n");
	my $gdb = start([ 'timeout', 60, 'gdb', '-q', '-batch', '-p', $startup, '-x', "$folder/commands" ],
		'<', \undef, '>', "$folder/log", '2>&1');
	wait_for_file('attached');
	$primary->safe_psql('postgres', "INSERT INTO t VALUES (5000 + $image, '{1,2,3,4}')");
	finish $gdb;
  SKIP:
	{
		skip "gdb did not stop redo at image $image: " . (slurp_file("$folder/log") =~ /([^\n]*)\s*\z/)[0], 1
			if !-e "$folder/stopped";
		$primary->wait_for_catchup($standby);
		wait_for_file('answer', 1);
		is(slurp_file("$folder/answer"), "10\n", "stopped at image $image: the query waited, and has its rows");
	}
}

$standby->stop;
$primary->stop;
done_testing();
