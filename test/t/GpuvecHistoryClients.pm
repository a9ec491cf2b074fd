# Clients whose history is checked (GpuvecHistory): psql, fed with scripts that are
# made before, so that nothing runs beside them that could put events in another
# order.  Each statement stands between two marks; what it is to do is said before.

package GpuvecHistoryClients;

use strict;
use warnings;
use Exporter 'import';
use IPC::Run ();
use PostgreSQL::Test::Utils;

our @EXPORT = qw($DIMS new_client first_rows final_read begin_clients end_clients history_of);

our $DIMS = 8;
# clients' points are so far from each other in the first dimension
my $APART = 1000;

sub one_of
{
	return $_[ rand @_ ];
}

sub some
{
	my ($from, $to) = @_;

	return $from + int rand($to - $from + 1);
}

# A client: name, kind (writer, reader), folder, connstr, and, where it is not the
# table's own server, foreign; center: the number of its point; once: no
# transaction asks twice in one snapshot.
sub new_client
{
	my (%client) = @_;

	return { %client, next => 100_000 * $client{center} + 1000, version => 1000, rows => {} };
}

# -- statements

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

	return [ $center * $APART + some(-20, 20), map { some(-20, 20) } 2 .. $DIMS ];
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
		a => some(0, 3),
		w => some(0, 3),
		e => near(rand() < 0.9 ? $client->{center} : some(1, 3)) };
}

sub returning
{
	my ($client) = @_;

	return "RETURNING 'wrote', id, v, " . ($client->{foreign} ? '0' : 'pg_current_xact_id()');
}

# -- writes; each changes what the client takes for its rows

sub insert
{
	my ($client) = @_;
	my %rows = map { $client->{next}++ => new_row($client) } 1 .. one_of(1, 1, 1, 6);

	%{ $client->{rows} } = (%{ $client->{rows} }, %rows);
	return say([ map { intent($client, $_, $rows{$_}) } sort keys %rows ],
		'INSERT INTO h (id, v, a, w, e) VALUES '
		  . join(', ', map { "($_, " . join(', ', @{ $rows{$_} }{qw(v a w)}, vector($rows{$_}{e})) . ')' } sort keys %rows)
		  . ' ' . returning($client));
}

sub copy
{
	my ($client, $n) = @_;
	my $file = "$client->{folder}/$client->{name}.copy" . ++$client->{copies};
	my %rows = map { $client->{next}++ => new_row($client) } 1 .. $n // some(2, 10);

	append_to_file($file, join '', map {
			join("\t", $_, @{ $rows{$_} }{qw(v a w)}, '{' . join(',', @{ $rows{$_}{e} }) . '}') . "\n"
		} sort keys %rows);
	%{ $client->{rows} } = (%{ $client->{rows} }, %rows);
	return say([ (map { intent($client, $_, $rows{$_}) } sort keys %rows), 'copy' ],
		"COPY h (id, v, a, w, e) FROM '$file'")
	  . ($client->{foreign} ? '' : say(['ask'], q{SELECT 'xid', pg_current_xact_id()}));
}

# All columns are set, so that a version is known whatever the row was; what is not
# changed is the same, and if neither vector nor keys are the update is HOT.
sub update
{
	my ($client) = @_;
	my ($id) = one_of(sort keys %{ $client->{rows} }) // return insert($client);
	my %row = (%{ $client->{rows}{$id} }, v => ++$client->{version});
	my $what = one_of(qw(v v a w e e e));

	$row{$what} = new_row($client)->{$what} if $what ne 'v';
	$client->{rows}{$id} = \%row;
	return say([ intent($client, $id, \%row) ],
		"UPDATE h SET v = $row{v}, a = $row{a}, w = $row{w}, e = " . vector($row{e}) . " WHERE id = $id " . returning($client));
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
		  . ' WHERE id IN (' . join(', ', @ids) . ') ' . returning($client));
}

sub delete_some
{
	my ($client) = @_;
	my $share = keys %{ $client->{rows} } > 100 ? 0.15 : 0.02;
	my @ids = grep { rand() < $share } sort keys %{ $client->{rows} };

	return insert($client) if !@ids;
	delete @{ $client->{rows} }{@ids};
	return say([ map { intent($client, $_) } @ids ],
		'DELETE FROM h WHERE id IN (' . join(', ', @ids) . q{) RETURNING 'wrote', id, 0, }
		  . ($client->{foreign} ? '0' : 'pg_current_xact_id()'));
}

sub write_one
{
	return one_of(\&insert, \&insert, \&update, \&update, \&update, \&update_many, \&delete_some)->(@_);
}

# -- reads

# What is asked: k, condition, point.
sub question
{
	return {
		k => one_of(1, 5, 10, 10, 20, 300),
		filter => rand() < 0.5 ? '' : one_of('a', 'w') . '=' . some(0, 3),
		q => near(some(1, 3)) };
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
	my $snapshot = $client->{foreign} ? q{'-'} : 'pg_current_snapshot()';
	my $many = $client->{many} && !$question->{filter} && rand() < 0.3;
	my $rows = $many
	  ? "SELECT h.id || ':' || h.v || ':' || s.distance FROM gpuvec_search('h_e', $q, $k) AS s
		JOIN h ON h.ctid = s.tid ORDER BY s.distance"
	  : "SELECT id || ':' || v || ':' || (e <-> $q) FROM h " . where($question) . " ORDER BY e <-> $q LIMIT $k";

	return say([ join '|', 'read', $k, $question->{filter}, join(',', @{ $question->{q} }) ],
		"SELECT 'got', $snapshot, ARRAY($rows)");
}

# A cursor, held open while its own transaction (not on another server, whose cursor
# begins with the first FETCH) and others write; or beyond its transaction.
sub cursor
{
	my ($client) = @_;
	my $question = question();
	my $q = vector($question->{q});
	my $snapshot = $client->{foreign} ? q{'-'} : 'pg_current_snapshot()';
	my $hold = !$client->{foreign} && rand() < 0.2;
	my $fetch = sub {
		my $n = one_of(1, 3, 10, 40);
		say(["fetch|$n"], "FETCH $n FROM c");
	};

	return say(['begin|rc'], 'BEGIN')
	  . (rand() < 0.3 && $client->{kind} eq 'writer' ? write_one($client) : '')
	  . say([ join '|', 'cursor', $question->{filter}, join(',', @{ $question->{q} }) ],
		'DECLARE c CURSOR ' . ($hold ? 'WITH HOLD ' : '') . "FOR SELECT 'row', id, v, e <-> $q, $snapshot FROM h "
		  . where($question) . " ORDER BY e <-> $q")
	  . ($hold ? say(['commit'], 'COMMIT') : '')
	  . join('', map {
			$fetch->() . (rand() < 0.5 && $client->{kind} eq 'writer' && !$client->{foreign} ? write_one($client) : '')
		  } 1 .. some(1, 3))
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

# -- scripts

# Settings with which a search is exact: one that reads the table in the end, one
# that reads all lists and no more.
sub settings
{
	my ($client) = @_;

	return 'SET enable_seqscan = off; SET enable_sort = off; SET gpuvec.request_timeout = 5000;'
	  . " SET gpuvec.engine = $client->{engine}; SET gpuvec.enable_custom_scan = " . one_of('on', 'on', 'off') . ";\n"
	  . one_of('SET gpuvec.recall = 1;', 'SET gpuvec.probes = 16777216; SET gpuvec.candidates = 1000000;
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

	return script($client, join '', map { one_of(@acts)->($client) } 1 .. 20);
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
		read_one({ %$client, many => 0 }, { k => 1_000_000, filter => '', q => [ (0) x $DIMS ] })));
	return;
}

# Begin the clients, each with so many scripts (chunks), or with one of its own that
# is said again and again; they go on until end_clients.  One that cannot connect
# tries again, one whose session is lost goes on with its next script.
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

sub end_clients
{
	my ($folder, @jobs) = @_;

	append_to_file("$folder/stop", '');
	IPC::Run::finish($_) for @jobs;
	return;
}

# What a client printed, as violations takes it.
sub history_of
{
	my ($client) = @_;

	return [ $client->{name}, join('', map { slurp_file($_) } sort glob "$client->{folder}/$client->{name}.*.out"), $client->{foreign} ];
}

1;
