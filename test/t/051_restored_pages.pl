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

sub write_file
{
	my ($name, $text) = @_;

	open my $file, '>', "$folder/$name" or die "$folder/$name: $!";
	print $file $text;
	close $file;
	return;
}

for my $image (1 .. 4)
{
	$primary->wait_for_catchup($standby);
	# no page is in the standby's buffers, and each is an image when it changes
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$standby->restart;
	my $startup = $standby->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});

	write_file('ask', "(psql -XAtq -d '" . $standby->connstr('postgres') . "' -c 'SET enable_seqscan = off' -c \"$query\""
		. " >$folder/answer 2>&1 </dev/null &)\nsleep 2\ntouch $folder/stopped\n");
	write_file('commands', "set breakpoint pending on\nhandle SIGUSR1 nostop noprint pass\nbreak RestoreBlockImage\n"
		. 'ignore 1 ' . ($image - 1) . "\ncommands\nsilent\nshell sh $folder/ask\ndelete\ndetach\nquit\nend\n"
		. "shell touch $folder/attached\ncontinue\n");
	unlink map { "$folder/$_" } qw(answer attached stopped);
	my $gdb = start([ 'timeout', 60, 'gdb', '-q', '-batch', '-p', $startup, '-x', "$folder/commands" ],
		'<', \undef, '>', "$folder/log", '2>&1');
	for (1 .. 300) { last if -e "$folder/attached"; select undef, undef, undef, .1; }
	$primary->safe_psql('postgres', "INSERT INTO t VALUES (5000 + $image, '{1,2,3,4}')");
	finish $gdb;
  SKIP:
	{
		skip "gdb did not stop redo at image $image: " . (slurp_file("$folder/log") =~ /([^\n]*)\s*\z/)[0], 1
			if !-e "$folder/stopped";
		$primary->wait_for_catchup($standby);
		for (1 .. 100) { last if -s "$folder/answer"; select undef, undef, undef, .1; }
		is(slurp_file("$folder/answer"), "10\n", "stopped at image $image: the query waited, and has its rows");
	}
}

$standby->stop;
$primary->stop;
done_testing();
