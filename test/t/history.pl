# Clients on a primary and on its standby write and search, while servers crash, gpuvecd
# is killed, the table is vacuumed, trained and reindexed, the standby is restarted or
# promoted; GpuvecHistory then looks whether every answer has the rows that were
# committed, and no others.  Histories that are wrong are found so.
#
# HISTORY_ROUNDS=N, SEED=N and HISTORY_FAULTS="NAME ..." choose what is done.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecHistory;
use GpuvecRandom;
use GpuvecRemote;
use IPC::Run ();
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

sub inserted { my ($id, $v, $xid, @e) = @_; return ("write|$id|$v|0|0|" . join(',', @e), "wrote|$id|$v|$xid"); }
my @made = ([ 10, 20, inserted(1, 1, 5, 0, 0), inserted(2, 1, 5, 3, 4), inserted(3, 1, 5, 6, 8) ]);
my @gone = (@made, [ 30, 40, 'write|1|0', 'wrote|1|0|6' ]);
my @moved = (@made, [ 30, 40, 'write|1|2|0|0|9,0', 'wrote|1|2|6' ]);
my @undone = (@made, [ 21, 22, 'begin|rc' ], [ 23, 24, 'savepoint' ], [ 25, 26, inserted(4, 1, 7, 1, 0) ],
	[ 27, 28, 'undo' ], [ 29, 30, 'commit' ]);
my @aborted = (@made, [ 21, 22, 'begin|rc' ], [ 25, 26, inserted(4, 1, 7, 1, 0) ], [ 29, 30, 'rollback' ]);
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
	[ 'a row that fails the condition', 'row 1 does not satisfy a=1', \@made, [ asked(50, 60, '-', '{1:1:0}', 3, 'a=1') ] ],
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
	[ 'own rows are missing', 'row 4 is missing', [ @made, [ 21, 22, 'begin|rc' ], [ 23, 24, inserted(4, 1, 7, 1, 0) ],
			asked(25, 26, '5:5:', $all), [ 27, 28, 'commit' ] ], [] ],
	[ 'rows are there after a crash', '', [ @made, [ 30, 0, 'write|4|1|0|0|1,0', 'lost' ] ], [ asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}') ] ],
	[ '... and gone later', 'row 4 is missing', [ @made, [ 30, 0, 'write|4|1|0|0|1,0', 'lost' ] ],
		[ asked(50, 60, '-', '{1:1:0,4:1:1,2:1:5}'), asked(70, 80, '-', $all) ] ],
	[ 'another answer in the same transaction', 'not those of the query before', \@moved, [ [ 31, 32, 'begin|rr' ],
			asked(33, 34, '-', $all), asked(35, 36, '-', '{2:1:5,1:2:9,3:1:10}'), [ 37, 38, 'commit' ] ] ],
	[ 'a later row in an older snapshot', 'row 4 has version 1', [ @made, [ 33, 34, inserted(4, 1, 7, 1, 0) ] ],
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

# -- clients: psql, fed with scripts that are made before, so that nothing runs beside
# them that could put events in another order.  Each statement stands between two
# marks; what it is to do is said before.

my $DIMS = 8;
# clients' points are so far from each other in the first dimension
my $APART = 1000;

# A number of these and all between.
sub between
{
	my ($from, $to) = @_;

	return $from + number($to - $from + 1);
}

# A client: name, kind (writer, reader), folder, connstr; center: the number of its
# point; once: no transaction asks twice in one snapshot; rows: those that it has
# written; next and version: the last numbers of these.

# ---- statements

# A statement: what it is to do, and its SQL.
sub say
{
	my ($intent, $sql) = @_;

	return join("", map { "\\echo $_\n" } @$intent)
	  . "$sql;\n\\echo done|:SQLSTATE\nEXECUTE at;\n\\echo marked|:SQLSTATE\n";
}

# A point near a client's.
sub near
{
	my ($center) = @_;

	return [ $center * $APART + between(-20, 20), map { between(-20, 20) } 2 .. $DIMS ];
}

sub vector
{
	my ($e) = @_;

	return "'{" . join(',', @$e) . "}'::real[]";
}

# What a row becomes, as it is said and remembered.
sub intent
{
	my ($client, $id, $row) = @_;

	return "write|$id|0" if !$row;
	return join '|', 'write', $id, @$row{qw(v a w)}, join(',', @{ $row->{e} });
}

sub new_row
{
	my ($client) = @_;

	return {
		v => ++$client->{version},
		a => between(0, 3),
		w => between(0, 3),
		e => near(rand() < 0.9 ? $client->{center} : between(1, 3)) };
}

my $RETURNING = "RETURNING 'wrote', id, v, pg_current_xact_id()";

# ---- writes; each changes what the client takes for its rows

sub insert
{
	my ($client) = @_;
	my %rows = map { $client->{next}++ => new_row($client) } 1 .. pick(1, 1, 1, 6);

	%{ $client->{rows} } = (%{ $client->{rows} }, %rows);
	return say([ map { intent($client, $_, $rows{$_}) } sort keys %rows ],
		'INSERT INTO h (id, v, a, w, e) VALUES '
		  . join(', ', map { "($_, " . join(', ', @{ $rows{$_} }{qw(v a w)}, vector($rows{$_}{e})) . ')' } sort keys %rows)
		  . " $RETURNING");
}

sub copy
{
	my ($client, $n) = @_;
	my $file = "$client->{folder}/$client->{name}.copy" . ++$client->{copies};
	my %rows = map { $client->{next}++ => new_row($client) } 1 .. $n // between(2, 10);

	append_to_file($file, join '', map {
			join("\t", $_, @{ $rows{$_} }{qw(v a w)}, '{' . join(',', @{ $rows{$_}{e} }) . '}') . "\n"
		} sort keys %rows);
	%{ $client->{rows} } = (%{ $client->{rows} }, %rows);
	return say([ (map { intent($client, $_, $rows{$_}) } sort keys %rows), 'copy' ],
		"COPY h (id, v, a, w, e) FROM '$file'")
	  . say(['ask'], q{SELECT 'xid', pg_current_xact_id()});
}

# All columns are set, so that a version is known whatever the row was; what is not
# changed is the same, and if neither vector nor keys are the update is HOT.
sub update
{
	my ($client) = @_;
	my ($id) = pick(sort keys %{ $client->{rows} }) // return insert($client);
	my %row = (%{ $client->{rows}{$id} }, v => ++$client->{version});
	my $what = pick(qw(v v a w e e e));

	$row{$what} = new_row($client)->{$what} if $what ne 'v';
	$client->{rows}{$id} = \%row;
	return say([ intent($client, $id, \%row) ],
		"UPDATE h SET v = $row{v}, a = $row{a}, w = $row{w}, e = " . vector($row{e}) . " WHERE id = $id $RETURNING");
}

# Several rows become the same one, but for their ids.
sub update_many
{
	my ($client) = @_;
	my @ids = grep { rand() < 0.05 } sort keys %{ $client->{rows} };
	my $row = new_row($client);

	return update($client) if !@ids;
	$client->{rows}{$_} = $row for @ids;
	return say([ map { intent($client, $_, $row) } @ids ],
		"UPDATE h SET v = $row->{v}, a = $row->{a}, w = $row->{w}, e = " . vector($row->{e})
		  . ' WHERE id IN (' . join(', ', @ids) . ") $RETURNING");
}

sub delete_some
{
	my ($client) = @_;
	my $share = keys %{ $client->{rows} } > 100 ? 0.15 : 0.02;
	my @ids = grep { rand() < $share } sort keys %{ $client->{rows} };

	return insert($client) if !@ids;
	delete @{ $client->{rows} }{@ids};
	return say([ map { intent($client, $_) } @ids ],
		'DELETE FROM h WHERE id IN (' . join(', ', @ids) . q{) RETURNING 'wrote', id, 0, pg_current_xact_id()});
}

sub write_one
{
	return pick(\&insert, \&insert, \&update, \&update, \&update, \&update_many, \&delete_some)->(@_);
}

# ---- reads

# What is asked: k, condition, point.
sub question
{
	return {
		k => pick(1, 5, 10, 10, 20, 300),
		filter => rand() < 0.5 ? '' : pick('a', 'w') . '=' . between(0, 3),
		q => near(between(1, 3)) };
}

sub where
{
	my ($question) = @_;

	return $question->{filter} ? "WHERE $question->{filter}" : '';
}

sub read_one
{
	my ($client, $question) = @_;

	$question //= question();
	my ($k, $q) = ($question->{k}, vector($question->{q}));
	my $many = !$question->{filter} && $k <= 300 && rand() < 0.3;
	my $rows = $many
	  ? "SELECT h.id || ':' || h.v || ':' || s.distance FROM gpuvec_search('h_e', $q, $k) AS s
		JOIN h ON h.ctid = s.tid ORDER BY s.distance"
	  : "SELECT id || ':' || v || ':' || (e <-> $q) FROM h " . where($question) . " ORDER BY e <-> $q LIMIT $k";

	return say([ join '|', 'read', $k, $question->{filter}, join(',', @{ $question->{q} }) ],
		"SELECT 'got', pg_current_snapshot(), ARRAY($rows)");
}

# A cursor, held open while its own transaction and others write; or beyond its
# transaction.
sub cursor
{
	my ($client) = @_;
	my $question = question();
	my $q = vector($question->{q});
	my $hold = rand() < 0.2;
	my $fetch = sub {
		my $n = pick(1, 3, 10, 40);
		say(["fetch|$n"], "FETCH $n FROM c");
	};

	return say(['begin|rc'], 'BEGIN')
	  . (rand() < 0.3 && $client->{kind} eq 'writer' ? write_one($client) : '')
	  . say([ join '|', 'cursor', $question->{filter}, join(',', @{ $question->{q} }) ],
		'DECLARE c CURSOR ' . ($hold ? 'WITH HOLD ' : '') . "FOR SELECT 'row', id, v, e <-> $q, pg_current_snapshot() FROM h "
		  . where($question) . " ORDER BY e <-> $q")
	  . ($hold ? say(['commit'], 'COMMIT') : '')
	  . join('', map {
			$fetch->() . (rand() < 0.5 && $client->{kind} eq 'writer' ? write_one($client) : '')
		  } 1 .. between(1, 3))
	  . ($hold ? say(['ask'], 'CLOSE c') : say(['commit'], 'COMMIT'));
}

# The same question twice in one snapshot, or before and after own writes.
sub repeatable
{
	my ($client) = @_;
	my $question = question();

	return say(['begin|rr'], 'BEGIN ISOLATION LEVEL REPEATABLE READ')
	  . read_one($client, $question)
	  . say(['ask'], 'SELECT FROM pg_sleep(0.01)')
	  . read_one($client, $question)
	  . ($client->{kind} eq 'writer' ? write_one($client) . read_one($client, $question) : '')
	  . say(['commit'], 'COMMIT');
}

# Several writes, of which a savepoint may take some back, and a read among them.
sub transaction
{
	my ($client) = @_;
	my %before = %{ $client->{rows} };
	my $sql = say(['begin|rc'], 'BEGIN') . (rand() < 0.3 ? copy($client) : write_one($client));

	if (rand() < 0.6)
	{
		my %saved = %{ $client->{rows} };

		$sql .= say(['savepoint'], 'SAVEPOINT s') . write_one($client);
		$sql .= read_one($client, { %{ question() }, q => near($client->{center}) }) if rand() < 0.7;
		if (rand() < 0.7)
		{
			$sql .= say(['undo'], 'ROLLBACK TO s');
			%{ $client->{rows} } = %saved;
		}
	}
	$sql .= write_one($client) if rand() < 0.5;
	$sql .= read_one($client, { %{ question() }, q => near($client->{center}) }) if rand() < 0.7;
	return $sql . say(['commit'], 'COMMIT') if rand() < 0.8;
	%{ $client->{rows} } = %before;
	return $sql . say(['rollback'], 'ROLLBACK');
}

# ---- scripts

# Settings with which a search is exact: one that reads the table in the end, one
# that reads all lists and no more.
sub settings
{
	my ($client) = @_;

	return 'SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.request_timeout = 5000;'
	  . " SET gpuvec.engine = $client->{engine}; SET gpuvec.enable_custom_scan = " . pick('on', 'on', 'off') . ";\n"
	  . pick('SET gpuvec.recall = 1;', 'SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000;
		SET gpuvec.max_probes = 16777216;') . "\n";
}

# A session's script.
sub script
{
	my ($client, $statements) = @_;

	return "\\echo connect\n" . settings($client) . q{PREPARE at AS SELECT 'at', (extract(epoch FROM clock_timestamp()) * 1e6)::bigint,
		CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END, pg_is_in_recovery();
		EXECUTE at;} . "\n$statements";
}

sub chunk
{
	my ($client) = @_;
	my @acts = $client->{kind} eq 'writer'
	  ? (\&write_one, \&write_one, \&write_one, \&write_one, \&transaction, \&transaction, \&read_one, \&read_one, \&cursor, \&repeatable)
	  : (\&read_one, \&read_one, \&read_one, \&cursor, $client->{once} ? () : \&repeatable);

	return script($client, join '', map { pick(@acts)->($client) } 1 .. 20);
}

# Run a script to its end; the client's output has what it prints.
sub run_script
{
	my ($client, $name, $sql) = @_;
	my $file = "$client->{folder}/$client->{name}.$name";

	append_to_file("$file.sql", $sql);
	system_or_bail('sh', '-c', 'psql -XAtq -d "$0" -f "$1.sql" >"$1.out" 2>"$1.err"', $client->{connstr}, $file);
	return;
}

# The rows that each client has in the beginning, written by it.
sub first_rows
{
	my ($client, $n) = @_;

	run_script($client, '0000', script($client,
		say(['begin|rc'], 'BEGIN') . copy($client, $n) . say(['commit'], 'COMMIT')));
	return;
}

# A read of everything.
sub final_read
{
	my ($client) = @_;

	run_script($client, '9999', script($client,
		read_one($client, { k => 1_000_000, filter => '', q => [ (0) x $DIMS ] })));
	return;
}

# Begin the clients, each with so many scripts (chunks), or with one of its own that
# is said again and again; they go on until there is a file "stop".  One that cannot
# connect tries again, one whose session is lost goes on with its next script.
sub begin_clients
{
	my ($folder, @clients) = @_;

	return map {
		my $client = $_;
		my $file = "$folder/$client->{name}";

		append_to_file(sprintf('%s.%04d.sql', $file, $_), $client->{script} // chunk($client))
		  for 1 .. ($client->{script} ? 1 : $client->{chunks});
		IPC::Run::start(
			[
				'sh', '-c', q{n=1
					while [ ! -e "$0" ]; do
						file=$2.$(printf %04d $n)
						[ -e "$file.sql" ] || break
						psql -XAtq -d "$1" -f "$file.sql" >"$file.out" 2>>"$2.err"
						if [ $? = 2 ] && [ ! -s "$file.out" ]; then sleep 0.05
						elif [ "$3" = once ]; then n=$((n + 1)); fi
					done
				}, "$folder/stop", $client->{connstr}, $file, $client->{script} ? 'again' : 'once'
			],
			'<' => \undef);
	} @clients;
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
my $standby = begin_standby();

# A standby of the primary, which commits from now on when it has what is asked of it.
sub begin_standby
{
	my $node = new_standby($primary, 'server' . ++$servers,
		conf => "synchronous_standby_names = ''\nmax_standby_streaming_delay = '100ms'\n"
		  . 'hot_standby_feedback = ' . ($servers % 2 ? 'on' : 'off') . "\n");

	$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'\n");
	$primary->reload;
	return $node;
}

# Where one of both is that takes such sessions.
sub connstr
{
	my ($attributes) = @_;

	return 'dbname=postgres host=' . join(',', map { $_->host } $primary, $standby)
	  . ' port=' . join(',', map { $_->port } $primary, $standby) . " target_session_attrs=$attributes";
}

# -- what happens while clients are at work

sub kill_backend
{
	my @pids = split /\n/, $primary->safe_psql('postgres', q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name = 'psql'});

	return if !@pids;
	$kills++;
	kill 'KILL', $pids[ rand @pids ];
	usleep(100_000);
	return ok(wait_until($primary, 'SELECT true'), $primary->name . ' answers');
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

# Searches are made by the index.
sub test_plans
{
	my $search = q{SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.recall = 1;
		EXPLAIN (VERBOSE, COSTS OFF) SELECT ARRAY(SELECT id || ':' || v FROM h %s ORDER BY e <-> %s LIMIT 5)};
	my $q = "'{" . join(',', 1 .. $DIMS) . "}'::real[]";

	for ('', 'WHERE a = 1', 'WHERE w = 1')
	{
		like($primary->safe_psql('postgres', sprintf $search, $_, $q), qr/Index Scan using h_[ek] on/, "the index is used $_");
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
	my $connstr = connstr('read-write');
	my @of_all = (folder => $folder, engine => $engine, chunks => long_test() ? 40 : 10, connstr => $connstr);
	my @clients = map { +{ @of_all, next => 100_000 * $_->{center} + 1000, version => 1000, rows => {}, %$_ } } (
		(map { { name => "writer$_", kind => 'writer', center => $_ } } 1 .. 3),
		{ name => 'reader', kind => 'reader', center => 0 },
		{ name => 'standby', kind => 'reader', center => 0, once => $reindexes, connstr => connstr('standby') });
	my @tending = ({ name => 'tend', connstr => $connstr, script => $reindexes ? $tend : $tend =~ s/REINDEX.*//gr });

	$primary->safe_psql('postgres', 'ALTER DATABASE postgres SET synchronous_commit = ' . ($sync ? 'remote_apply' : 'local') . ';
		SET client_min_messages = warning;
		DROP TABLE IF EXISTS h;
		CREATE TABLE h (id int, v int, a int, w int, e real[]) WITH (fillfactor = 70);
		CREATE INDEX h_id ON h (id); CREATE INDEX h_w ON h (w)');
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
	append_to_file("$folder/stop", '');
	IPC::Run::finish($_) for @jobs;

	if ($fault eq 'promote')
	{
		$primary = $standby;
		$clients[-2]{connstr} = $primary->connstr('postgres');
		final_read($clients[-2]);
		$standby = begin_standby();
	}
	else
	{
		$primary->wait_for_catchup($standby);
		final_read($_) for @clients[ -2, -1 ];
	}
	my ($problems, $counts) = violations($sync, map {
			[ $_->{name}, join('', map { slurp_file($_) } sort glob "$folder/$_->{name}.*.out") ]
	} @clients);
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
