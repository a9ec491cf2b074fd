# A gpuvecd with a card that is down: what a join costs is not what it costs with the
# card.  It is one without, whose greeting is told as that of one with a card, on
# its way through a process of ours.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use IO::Select;
use IO::Socket::UNIX;
use POSIX qw(_exit);
use PostgreSQL::Test::Utils;
use Test::More;

need_gpuvecd();
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $greeted = 8 + 16;	# a message's head, and what is before the engine's name
my @started;

# A process of ours.
sub begin
{
	my ($work) = @_;
	my $pid = fork // die;

	if ($pid == 0)
	{
		$work->();
		# the node is not ours to stop
		_exit(1);
	}
	push @started, $pid;
	return;
}

sub end_all
{
	kill 'KILL', @started;
	waitpid $_, 0 for @started;
	@started = ();
	return;
}

END
{
	my $status = $?;

	end_all();
	$? = $status;
}

# Carry what one client and gpuvecd say to each other.
sub carry
{
	my ($client) = @_;
	my $server = IO::Socket::UNIX->new(Peer => "$folder/real/pgsql_tmp.gpuvec.sock") or return;
	my $select = IO::Select->new($client, $server);
	my $is_greeting = 1;

	while (1)
	{
		for my $from ($select->can_read)
		{
			sysread($from, my $said, 65536) or return;
			if ($from == $server && $is_greeting)
			{
				substr($said, $greeted, 4) = 'cuda' if length $said > $greeted + 4;
				$is_greeting = 0;
			}
			syswrite($from == $server ? $client : $server, $said);
		}
	}
	return;
}

mkdir "$folder/$_" or die for ('real', 'told');
chmod 0700, "$folder/$_" for ('real', 'told');
begin(
	sub {
		open STDIN, '<', '/dev/null' or die;
		exec 'gpuvecd', '--engine', 'cpu', '--socket', "$folder/real";
	});
my $listener = IO::Socket::UNIX->new(Local => "$folder/told/pgsql_tmp.gpuvec.sock", Listen => 20) or die;
begin(
	sub {
		$SIG{PIPE} = 'IGNORE';
		$SIG{CHLD} = 'IGNORE';
		setpgrp;
		while (my $client = $listener->accept)
		{
			begin(sub { carry($client); });
		}
	});
close $listener;

my $node = new_node(
	'main',
	conf => "shared_preload_libraries = 'gpuvec'\ngpuvec.server = 'external'\n"
	  . "gpuvec.server_directory = '$folder/told'\ngpuvec.auto_mirror = off\n");
$node->safe_psql(
	'postgres', q{
	SET gpuvec.engine = cpu;
	CREATE FUNCTION vec(i int) RETURNS real[] LANGUAGE sql AS
		'SELECT array_agg(sin(i % 100 * 131 + j * 17) + (hashint4(i * 128 + j) & 1023) / 1024.0 ORDER BY j)
		FROM generate_series(1, 128) AS j';
	CREATE TABLE t AS SELECT i AS id, vec(i) AS e FROM generate_series(1, 6000) AS i;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 100);
	CREATE TABLE asked AS SELECT * FROM t WHERE id % 6 = 0});
ok(wait_until($node, q{SELECT state = 'up' AND engine = 'cuda' FROM gpuvec_stat}), 'there seems to be a card')
  or diag($node->safe_psql('postgres', '\x \\\\ SELECT * FROM gpuvec_stat'));

# The notice that each row was searched for, from a join.
sub notice
{
	my ($engine) = @_;
	my ($rc, $out, $err) = $node->psql(
		'postgres', qq{
		SET gpuvec.engine = $engine; SET gpuvec.candidates = 10; SET gpuvec.recall = 0.5;
		SELECT count(*) FROM gpuvec_knn_join('asked', 'id', 'e', 't', 'id', 'e', 5, 'l2', 'index')});

	is($rc, 0, "$engine: joined");
	return $err;
}

my $searched = qr/each row of table "asked" was searched for/;
kill 'KILL', -$started[1];
end_all();
ok(wait_until($node, q{SELECT state = 'down' FROM gpuvec_stat}), 'it is down');
like(notice('cpu'), $searched, 'the session alone searches for each row');
like(notice('auto'), $searched, 'and so it does where the card is gone');
$node->stop;

done_testing();
