# Clients on a primary, on its standby and through postgres_fdw write and search,
# while servers crash, gpuvecd is killed, the table is tended, the standby is
# restarted or promoted; GpuvecHistory then looks whether every answer has the rows
# that were committed, and no others.  Histories that are wrong are found so.
#
# HISTORY_ROUNDS=N, SEED=N and HISTORY_FAULTS="NAME ..." choose what is done.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecHistory;
use GpuvecHistoryClients;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# -- histories that are wrong

# Statements between marks: each [ begins, ends, line, ... ].
sub lines
{
	my ($standby, @statements) = @_;

	return join '', "connect\n", map {
		my ($from, $to, @lines) = @$_;
		join '', map { "$_\n" } "at|$from|0/$from|$standby", @lines, $lines[-1] eq 'lost' ? () : ('done|00000', "at|$to|0/$to|$standby");
	} @statements;
}

sub insert { my ($id, $v, $xid, @e) = @_; return ("write|$id|$v|0|0|" . join(',', @e), "wrote|$id|$v|$xid"); }
my @made = ([ 10, 20, insert(1, 1, 5, 0, 0), insert(2, 1, 5, 3, 4), insert(3, 1, 5, 6, 8) ]);
my @gone = (@made, [ 30, 40, 'write|1|0', 'wrote|1|0|6' ]);
my @moved = (@made, [ 30, 40, 'write|1|2|0|0|9,0', 'wrote|1|2|6' ]);
my @undone = (@made, [ 21, 22, 'begin|rc' ], [ 23, 24, 'savepoint' ], [ 25, 26, insert(4, 1, 7, 1, 0) ],
	[ 27, 28, 'undo' ], [ 29, 30, 'commit' ]);
my @aborted = (@made, [ 21, 22, 'begin|rc' ], [ 25, 26, insert(4, 1, 7, 1, 0) ], [ 29, 30, 'rollback' ]);
my $all = '{1:1:0,2:1:5,3:1:10}';

sub asked { my ($from, $to, $snapshot, $rows, $k, $filter) = @_; return [ $from, $to, 'read|' . ($k // 3) . '|' . ($filter // '') . '|0,0', "got|$snapshot|$rows" ]; }

# [ what, problem or '' for a right one, writer, reader, on a standby, sync ]
my @planted = (
	[ 'all rows', '', \@made, [ asked(50, 60, '9:9:', $all) ] ],
	[ 'a row is missing', 'row 2 is missing', \@made, [ asked(50, 60, '-', '{1:1:0,3:1:10}') ] ],
	[ 'a nearer row is missing', 'row 1 is missing', \@made, [ asked(50, 60, '-', '{2:1:5,3:1:10}', 2) ] ],
	[ 'no row at all', 'row 1 is missing', \@made, [ asked(50, 60, '-', '{}', 1) ] ],
	[ 'a farther row is not asked for', '', \@made, [ asked(50, 60, '-', '{1:1:0,2:1:5}', 2) ] ],
	[ 'a row comes twice', 'row 2 comes twice', \@made, [ asked(50, 60, '-', '{1:1:0,2:1:5,2:1:5,3:1:10}', 4) ] ],
	[ 'rows out of order', 'comes after one at 10', \@made, [ asked(50, 60, '-', '{1:1:0,3:1:10,2:1:5}') ] ],
	[ 'too many rows', '2 rows asked for, 3 come', \@made, [ asked(50, 60, '-', $all, 2) ] ],
	[ 'a distance of another vector', 'row 3 is not at 7', \@made, [ asked(50, 60, '-', '{1:1:0,2:1:5,3:1:7}') ] ],
	[ 'a row that fails the condition', 'row 1 does not fulfill a=1', \@made, [ asked(50, 60, '-', '{1:1:0}', 3, 'a=1') ] ],
	[ 'a deleted row', 'row 1 has version 1, which was not to be seen', \@gone, [ asked(50, 60, '-', $all) ] ],
	[ 'a row deleted meanwhile', '', \@gone, [ asked(35, 60, '-', $all) ] ],
	[ '... though the snapshot says that it is not', 'row 1 is missing', \@gone, [ asked(35, 60, '6:6:', '{2:1:5,3:1:10}') ] ],
	[ '... or is', 'row 1 has version 1', \@gone, [ asked(35, 60, '7:7:', $all) ] ],
	[ '... or that it goes', 'row 1 is missing', \@gone, [ asked(35, 60, '6:8:6', '{2:1:5,3:1:10}') ] ],
	[ 'an old vector', 'row 1 has version 1', \@moved, [ asked(50, 60, '-', $all) ] ],
	[ 'neither the old vector nor the new one', 'row 1 is missing, of version 1 or 2', \@moved, [ asked(35, 60, '-', '{2:1:5,3:1:10}') ] ],
	[ 'what a savepoint took back', 'row 4 has version 1', \@undone, [ asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}') ] ],
	[ 'what was rolled back', 'row 4 has version 1', \@aborted, [ asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}') ] ],
	[ 'what is to come', 'row 1 has version 1', \@made, [ asked(1, 9, '-', '{1:1:0}') ] ],
	[ 'a row that nobody wrote', 'row 9 has version 1', \@made, [ asked(50, 60, '-', '{1:1:0,9:1:1,2:1:5}') ] ],
	[ 'own rows are missing', 'row 4 is missing', [ @made, [ 21, 22, 'begin|rc' ], [ 23, 24, insert(4, 1, 7, 1, 0) ],
			asked(25, 26, '5:5:', $all), [ 27, 28, 'commit' ] ], [] ],
	[ 'rows are there after a crash', '', [ @made, [ 30, 0, 'write|4|1|0|0|1,0', 'lost' ] ], [ asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}') ] ],
	[ '... and gone later', 'row 4 is missing', [ @made, [ 30, 0, 'write|4|1|0|0|1,0', 'lost' ] ],
		[ asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}'), asked(70, 80, '-', $all) ] ],
	[ 'another answer in the same transaction', 'not those of the query before', \@moved, [ [ 31, 32, 'begin|rr' ],
			asked(33, 34, '-', $all), asked(35, 36, '-', '{2:1:5,1:2:9,3:1:10}'), [ 37, 38, 'commit' ] ] ],
	[ 'a later row in an older snapshot', 'row 4 has version 1', [ @made, [ 33, 34, insert(4, 1, 7, 1, 0) ] ],
		[ [ 31, 32, 'begin|rr' ], asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}'), [ 61, 62, 'commit' ] ] ],
	[ 'a cursor ends too early', 'row 3 is missing', \@made, [ [ 50, 51, 'begin|rc' ], [ 52, 53, 'cursor||0,0' ],
			[ 54, 55, 'fetch|5', 'row|1|1|0|-', 'row|2|1|5|-' ], [ 56, 57, 'commit' ] ] ],
	[ 'a cursor passes over a row', 'row 2 is missing', \@made, [ [ 50, 51, 'begin|rc' ], [ 52, 53, 'cursor||0,0' ],
			[ 54, 55, 'fetch|1', 'row|1|1|0|-' ], [ 56, 57, 'fetch|1', 'row|3|1|10|-' ], [ 58, 59, 'commit' ] ] ],
	[ 'a standby that has not replayed it', '', \@gone, [ asked(39, 60, '-', $all) ], 't' ],
	[ 'a standby that has', 'row 1 has version 1', \@gone, [ asked(50, 60, '-', $all) ], 't' ],
	[ 'a standby without rows replayed', 'row 2 is missing', \@made, [ asked(50, 60, '-', '{1:1:0,3:1:10}') ], 't' ]);
for (@planted)
{
	my ($what, $problem, $writer, $reader, $standby) = @$_;
	my ($problems) = violations(0, [ 'writer', lines('f', @$writer) ], [ 'reader', lines($standby // 'f', @$reader) ]);

	like($problems->[0] // '', $problem ? qr/\Q$problem\E/ : qr/^$/, "planted: $what");
}

# -- servers

my $seed = $ENV{SEED} // time % 1e6;
my $rounds = $ENV{HISTORY_ROUNDS} // (long_test() ? 60 : 4);
my @faults = split ' ', $ENV{HISTORY_FAULTS} // (long_test() ? 'gpuvecd backend standby immediate tend promote' : 'gpuvecd backend standby promote');
my $seconds = long_test() ? 2 : 0.5;
my ($servers, $kills) = (0, 0);
my %sums;
note("SEED=$seed");
srand $seed;

my $primary = new_node('server0', allows_streaming => 1, conf => remote_conf()
	  . "restart_after_crash = on\nwal_keep_size = '1GB'\nmax_connections = 40\nlog_statement = none\n");
my $has_fdw = $primary->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'});
my $standby = new_standby();

$primary->safe_psql('postgres', 'CREATE DATABASE far');
$primary->safe_psql('far', q{CREATE EXTENSION gpuvec; CREATE EXTENSION postgres_fdw;
	CREATE SERVER near FOREIGN DATA WRAPPER postgres_fdw OPTIONS (dbname 'postgres', host '', port '', extensions 'gpuvec', fetch_size '10',
		target_session_attrs 'read-write', options '-c gpuvec.recall=1 -c cursor_tuple_fraction=0.001 -c enable_seqscan=off -c enable_sort=off');
	CREATE USER MAPPING FOR CURRENT_USER SERVER near;
	CREATE FOREIGN TABLE h (id int, v int, a int, w int, e real[]) SERVER near}) if $has_fdw;

# A standby of the primary, which commits from now on when it has what is asked of it.
sub new_standby
{
	my $node = PostgreSQL::Test::Cluster->new('server' . ++$servers);

	$primary->backup("for$servers");
	$node->init_from_backup($primary, "for$servers", has_streaming => 1);
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''\nmax_standby_streaming_delay = '100ms'\n"
		  . 'hot_standby_feedback = ' . ($servers % 2 ? 'on' : 'off') . "\n");
	$node->start;
	$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'\n");
	$primary->reload;
	return $node;
}

# Where one of both is that takes such sessions.
sub connstr
{
	my ($database, $attributes) = @_;

	return "dbname=$database host=" . join(',', map { $_->host } $primary, $standby)
	  . ' port=' . join(',', map { $_->port } $primary, $standby) . " target_session_attrs=$attributes";
}

# -- what happens while clients are at work

sub wait_for
{
	my ($node) = @_;

	return ok(wait_until($node, 'SELECT true'), $node->name . ' answers');
}

sub kill_backend
{
	my @pids = split /\n/, $primary->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name = 'psql'});

	return if !@pids;
	$kills++;
	kill 'KILL', $pids[ rand @pids ];
	usleep(100_000);
	return wait_for($primary);
}

sub restart
{
	my ($node, $mode) = @_;

	$kills++ if $mode eq 'immediate';
	$node->stop($mode);
	return $node->start;
}

sub promote
{
	$kills++;
	$primary->stop('immediate');
	$standby->promote;
	return;
}

# Each with what is done once.
my %act = (
	tend => sub { },
	gpuvecd => sub {
		$kills += kill 'KILL', grep { $_ } map { gpuvecd_pid($_) } $primary, $standby;
	},
	backend => \&kill_backend,
	immediate => sub { restart($primary, 'immediate') },
	standby => sub { restart($standby, $_[0] ? 'fast' : 'immediate') },
	promote => \&promote);

# -- rounds

# Searches are made by the index, and on the other server in its order.
sub test_plans
{
	my $search = q{SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.recall = 1;
		EXPLAIN (VERBOSE, COSTS OFF) SELECT ARRAY(SELECT id || ':' || v FROM h %s ORDER BY e <-> %s LIMIT 5)};
	my $q = "'{" . join(',', 1 .. $DIMS) . "}'::real[]";

	for ('', 'WHERE a = 1', 'WHERE w = 1')
	{
		like($primary->safe_psql('postgres', sprintf $search, $_, $q), qr/Index Scan using h_[ek] on/, "the index is used $_");
		like($primary->safe_psql('far', sprintf $search, $_, $q), qr/Remote SQL: .* ORDER BY /, "... and on another server $_")
		  if $has_fdw;
	}
	return;
}

my $tend = q{
	SELECT pg_sleep(0.05 * random());
	VACUUM h;
	SELECT gpuvec_train('h_e') WHERE random() < 0.3;
	REINDEX INDEX CONCURRENTLY h_k;
	SELECT pg_sleep(0.05 * random());
	VACUUM (INDEX_CLEANUP on) h;
	CHECKPOINT;
	REINDEX INDEX CONCURRENTLY h_e;
};

for my $round (1 .. $rounds)
{
	my $fault = $faults[ ($round - 1) % @faults ];
	my $sync = $fault eq 'promote' || rand() < 0.5;
	my $engine = $fault eq 'gpuvecd' || rand() < 0.4 ? 'gpu' : 'cpu';
	# An index of any method that is built concurrently lacks rows that nobody on the
	# primary sees any more, but a standby's older snapshot may.
	my $reindexes = rand() < 0.6;
	my $folder = PostgreSQL::Test::Utils::tempdir('history');
	my $with = (map { "WITH ($_)" } 'lists = 10', 'lists = 10, refine = sq8', 'lists = 4, spill = 0, refine = half', 'train_rows = 200')[ rand 4 ];
	my $what = "round $round, $fault, " . ($sync ? 'remote_apply' : 'local') . ", $engine, $with";
	my ($postgres, $far) = map { connstr($_, 'read-write') } 'postgres', 'far';
	my @of_all = (folder => $folder, engine => $engine, chunks => long_test() ? 40 : 10, many => 1);
	my @clients = map { new_client(@of_all, %$_) } (
		(map { { name => "writer$_", kind => 'writer', center => $_, connstr => $postgres } } 1, 2),
		$has_fdw ? { name => 'far', kind => 'writer', center => 3, connstr => $far, foreign => 1, many => 0 } : (),
		{ name => 'reader', kind => 'reader', center => 0, connstr => $postgres },
		{ name => 'standby', kind => 'reader', center => 0, once => $reindexes, connstr => connstr('postgres', 'standby') });
	my @tending = ({ name => 'tend', connstr => $postgres, script => $reindexes ? $tend : $tend =~ s/REINDEX.*//gr });

	$primary->safe_psql('postgres', 'ALTER DATABASE postgres SET synchronous_commit = ' . ($sync ? 'remote_apply' : 'local') . ';
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS h;
		CREATE TABLE h (id int, v int, a int, w int, e real[]) WITH (fillfactor = 70);
		CREATE INDEX h_id ON h (id); CREATE INDEX h_w ON h (w)');
	my ($host, $port) = map { my $one = $_; join ',', map { $_->$one } $primary, $standby } qw(host port);
	$primary->safe_psql('far', "ALTER SERVER near OPTIONS (SET host '$host', SET port '$port')") if $has_fdw;
	my $indexes = "SET client_min_messages = warning;
		CREATE INDEX h_e ON h USING gpuivfpq (e) $with; CREATE INDEX h_k ON h USING gpuivfpq (e, a) $with";
	my $later = rand() < 0.3;
	$primary->safe_psql('postgres', $indexes) if $later;
	first_rows($_, 90) for grep { $_->{kind} eq 'writer' } @clients;
	$primary->safe_psql('postgres', $indexes) if !$later;
	test_plans() if $round == 1;
	$primary->wait_for_catchup($standby);

	my @jobs = begin_clients($folder, @clients, @tending);
	my $end = time + $seconds;
	do
	{
		usleep(1e6 * $seconds * (0.2 + 0.4 * rand));
		$act{$fault}->($sync);
		usleep(1e6 * $seconds * 0.3) if $fault eq 'promote';
	} until $fault eq 'promote' || time > $end;
	usleep(1e6 * $seconds * 0.3);
	end_clients($folder, @jobs);

	if ($fault eq 'promote')
	{
		$primary = $standby;
		$clients[-2]{connstr} = $primary->connstr('postgres');
		final_read($clients[-2]);
		$standby = new_standby();
	}
	else
	{
		$primary->wait_for_catchup($standby);
		final_read($_) for @clients[ -2, -1 ];
	}
	my ($problems, $counts) = violations($sync, map { history_of($_) } @clients);
	is(join("\n", @$problems[ 0 .. ($#$problems < 9 ? $#$problems : 9) ]), '', $what);
	cmp_ok($counts->{queries}, '>', 10, "$what: $counts->{statements} statements, $counts->{queries} queries, "
		  . join ', ', map { $counts->{$_} // 0 } qw(rows writes committed aborted unknown));
	$sums{$_} += $counts->{$_} for keys %$counts;
	is_sound($primary, $_, $what, warnings => 1) for 'h_e', 'h_k';
	$sums{served} += served($primary);
	# (PG_TEST_NOCLEAN=1 keeps what a failed round's clients printed)
	system_or_bail('rm', '-rf', $folder) unless @$problems;
}
note(join ', ', "$rounds rounds", "$kills kills", map { "$sums{$_} $_" } sort keys %sums);
$_->stop for $standby, $primary;
done_testing();
