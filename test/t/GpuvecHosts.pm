# Rows divided among servers: the statements of sql/docs/scaling.md as they are printed, made-up rows, and what a search over all has to
# show: the order in every server's statement, an index scan behind it, and the
# rows of one big table.
#
# A server is a hash: name; ask, a function that runs SQL and returns status,
# output and error; log, its file, where auto_explain writes plans.

package GpuvecHosts;

use strict;
use warnings;
use Exporter 'import';
use File::Basename;
use Test::More;

our @EXPORT = qw($LOGGED page printed for_server here_sql there_sql indexes_sql good rows_sql natural
  is_ordered is_same fails test_writes test_roles test_lost);

# Settings of a server whose plans are looked at.
our $LOGGED = "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n"
  . "log_min_messages = warning\n";

# The text of a page.
sub page
{
	my ($page) = @_;
	my $root = dirname(dirname(dirname(__FILE__)));

	open my $in, '<', "$root/$page" or die "$page: $!";
	local $/;
	return <$in>;
}

# The blocks of SQL under a heading of a page, which are lists of statements.
sub printed
{
	my ($page, $heading) = @_;
	my ($section) = page($page) =~ /^##+ \Q$heading\E\n(.*?)(?=^##+ |\z)/ms
	  or die "$page: no $heading";
	return map {
		[ grep { /\S/ } split /;[^\n']*\n/, $_ ]
	} $section =~ /^```sql\n(.*?)^```/msg;
}

# A printed statement for the server of that number: its name, its address, its part
# of the rows, and shorter vectors.
sub for_server
{
	my ($statement, $i, $n, $address, $dims) = @_;

	$statement =~ s/\b(SERVER s|docs_|REMAINDER )0\b/$1$i/g;
	$statement =~ s/MODULUS 2\b/MODULUS $n/;
	$statement =~ s/host 'db0\.example'/$address/;
	$statement =~ s/vector\(384\)/vector($dims)/;
	return $statement;
}

# The table of real[] items on a server, which keeps rows by id as docs does.
sub there_sql
{
	return 'CREATE EXTENSION IF NOT EXISTS gpuvec;
		CREATE TABLE items (id bigint PRIMARY KEY, body text, v real[]);
		GRANT SELECT, INSERT, UPDATE, DELETE ON items TO app';
}

# items where it is asked: the first part is here, the others are on $n servers.
sub here_sql
{
	my ($n) = @_;
	my $all = $n + 1;

	return "CREATE TABLE items (id bigint, body text, v real[]) PARTITION BY HASH (id);
		CREATE TABLE items_here PARTITION OF items FOR VALUES WITH (MODULUS $all, REMAINDER 0);"
	  . join '', map {
		"CREATE FOREIGN TABLE items_$_ PARTITION OF items FOR VALUES WITH (MODULUS $all, REMAINDER "
		  . ($_ + 1) . ") SERVER s$_ OPTIONS (table_name 'items');"
	  } 0 .. $n - 1;
}

# Indexes of a table for all three distances, TABLE_l2 and so on, but for those
# that are there.
sub indexes_sql
{
	my ($table, $column, $type, @metrics) = @_;

	return join '', map { "CREATE INDEX ${table}_$_ ON $table USING gpuivfpq ($column ${type}_${_}_ops);" } @metrics;
}

# A server's answer to statements that shall not fail.
sub good
{
	my ($server, $sql) = @_;
	my ($status, $out, $err) = $server->{ask}->($sql);

	diag("$server->{name}: $err$sql") if $status;
	die if $status;
	return $out;
}

# SQL that makes the table whole: rows of an id, a number below ten, a text, and a
# vector, the sum of four of a thousand each, so that near ones are found by their
# structure; and asked, which has vectors of the same kind.
sub rows_sql
{
	my ($nrows, $dims) = @_;
	my $row = join ' ', map {
		"JOIN book AS b$_ ON b$_.s = $_ AND b$_.n = abs(hashint8extended(g, $_) % 1000)"
	} 1 .. 4;
	my $sum = 'SELECT array_agg(v1 + v2 + v3 + v4 ORDER BY i) FROM unnest(b1.v, b2.v, b3.v, b4.v)
		WITH ORDINALITY AS u (v1, v2, v3, v4, i)';

	return qq{
		SELECT setseed(0.5);
		CREATE TABLE book AS SELECT s, n, ARRAY(SELECT ((random() + random() - 1) / s)::real
			FROM generate_series(1, $dims) AS i WHERE s + n > 0) AS v
			FROM generate_series(1, 4) AS s, generate_series(0, 999) AS n;
		ALTER TABLE book ADD PRIMARY KEY (s, n);
		ANALYZE book;
		CREATE TABLE whole AS SELECT g AS id, (g % 10)::int AS topic, 'row ' || g AS body, ($sum) AS v
			FROM generate_series(0::bigint, $nrows - 1) AS g $row;
		CREATE TABLE asked AS SELECT (-g)::int AS n, ($sum) AS v
			FROM generate_series(-200::bigint, -1) AS g $row;
		ALTER TABLE asked ADD PRIMARY KEY (n);
		CREATE TABLE topics AS SELECT g AS topic, 'topic ' || g AS name FROM generate_series(0, 9) AS g;
		CREATE FUNCTION known_here(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN \$1 ~ ''1''; END';
		ANALYZE whole; ANALYZE asked; ANALYZE topics};
}

# Statements of a table {t} with a column {v}, nearest by {op} first: [ what it
# shows, statement, statements before, whether it takes many rows to be planned
# so ].  {q} is a vector as it is written.
sub natural
{
	my @forms = (
		[ 'a constant', 'SELECT id FROM {t} ORDER BY {v} {op} {q} LIMIT 10' ],
		[ 'a list of numbers', 'SELECT id FROM {t} ORDER BY {v} {op} {list} LIMIT 10' ],
		[ 'a sub-select', 'SELECT id FROM {t} ORDER BY {v} {op} (SELECT v FROM asked WHERE n = 7) LIMIT 10' ],
		[ 'a sub-select of the same table', 'SELECT id FROM {t} ORDER BY {v} {op} (SELECT {v} FROM {t} WHERE id = 7) LIMIT 10' ],
		[ 'its distance', 'SELECT id, {v} {op} {q} AS d FROM {t} ORDER BY d LIMIT 10' ],
		[ 'a text', 'SELECT id, body FROM {t} ORDER BY {v} {op} {q} LIMIT 10 OFFSET 5' ],
		[ 'a parameter', 'EXECUTE p ({list})', 'PREPARE p (real[]) AS SELECT id FROM {t} ORDER BY {v} {op} $1 LIMIT 10' ],
		[ 'a parameter of a generic plan', 'EXECUTE p ({list})', 'SET plan_cache_mode = force_generic_plan;
			PREPARE p (real[]) AS SELECT id FROM {t} ORDER BY {v} {op} $1 LIMIT 10' ],
		[ 'a parameter of the type of the column', 'EXECUTE p ({q})', 'SET plan_cache_mode = force_generic_plan;
			PREPARE p ({type}) AS SELECT id FROM {t} ORDER BY {v} {op} $1 LIMIT 10' ],
		[ 'LIMIT as a parameter', 'EXECUTE p ({list}, 10)',
			'PREPARE p (real[], int) AS SELECT id FROM {t} ORDER BY {v} {op} $1 LIMIT $2' ],
		[ 'a condition for the servers', q{SELECT id FROM {t} WHERE id % 10 < 3 AND body <> 'x' ORDER BY {v} {op} {q} LIMIT 10} ],
		[ 'a condition in a generic plan', q{EXECUTE p ({list}, 3)}, q{SET plan_cache_mode = force_generic_plan;
			PREPARE p (real[], int) AS SELECT id FROM {t} WHERE id % 10 < $2 ORDER BY {v} {op} $1 LIMIT 10} ],
		[ 'a condition that servers do not know', q{SELECT id FROM {t} WHERE known_here(body) ORDER BY {v} {op} {q} LIMIT 10} ],
		[ 'a join', q{SELECT id, name FROM {t} JOIN topics ON topic = id % 10 WHERE name > 'topic 4' ORDER BY {v} {op} {q} LIMIT 10}, '', 1 ],
		[ 'the nearest of a few joined', q{WITH n AS MATERIALIZED (SELECT id FROM {t} ORDER BY {v} {op} {q} LIMIT 10)
			SELECT id, name FROM n JOIN topics ON topic = id % 10 ORDER BY id} ],
		[ 'LATERAL', 'SELECT n, id FROM asked AS a, LATERAL (SELECT id FROM {t} ORDER BY {v} {op} a.v LIMIT 3) AS x WHERE n < 4' ]);

	return @forms;
}

# A form filled in.
sub filled
{
	my ($text, $table, $op, $query) = @_;

	return '' unless $text;
	my %value = (t => $table->{name}, v => $table->{column}, op => $op, type => $table->{type},
		q => "'" . ($table->{type} eq 'vector' ? "[$query]" : "{$query}") . "'::$table->{type}",
		list => "'{$query}'::real[]");
	$text =~ s/\{(\w+)\}/$value{$1}/g;
	return $text;
}

sub size_of { return -s $_[0] // 0; }

# The text that has been written to a log since.
sub added
{
	my ($log, $from) = @_;

	open my $in, '<', $log or die "$log: $!";
	seek $in, $from, 0;
	local $/;
	return <$in> // '';
}

# Test: a form's plan has its order in every server's statement, and sorts nothing
# where it was asked; the servers answered by the index $index.
sub is_ordered
{
	my ($asked, $servers, $what, $form, $table, $op, $query, $index) = @_;
	my ($name, $sql, $before) = ($form->[0], map { filled($_, $table, $op, $query) } @$form[ 1, 2 ]);
	$before = "$before;" if $before;
	my $plan = good($asked, "$before EXPLAIN (VERBOSE, COSTS OFF) $sql");
	my @ordered = grep { /ORDER BY .*OPERATOR\(\w+\.\Q$op\E\)/ } $plan =~ /Remote SQL: (.*)/g;
	my $sorts = $plan =~ /^ *-> +Sort$/m;

	$what .= ": $op: $name";
	ok(@ordered == @$servers && !$sorts, "$what: the order is the servers'") or diag($plan);
	my %from = map { $_->{name} => size_of($_->{log}) } @$servers;
	good($asked, "$before $sql");
	for my $server (@$servers)
	{
		my @plans = grep { /^\s*Query Text:.*ORDER BY/s } split /^\S.*\n/m, added($server->{log}, $from{ $server->{name} });

		ok(@plans && !(grep { !/Index Scan using \Q$index\E on/ || /Sort  \(|Seq Scan on/ } @plans),
			"$what: $server->{name} answers by the index")
		  or diag(@plans);
	}
	return;
}

# Test: a form gives the rows of one big table.
sub is_same
{
	my ($asked, $what, $form, $table, $op, $query) = @_;
	my ($name, $sql, $before) = ($form->[0], map { filled($_, $table, $op, $query) } @$form[ 1, 2 ]);
	my %all = (%$table, name => $table->{all});
	my ($sql_all, $before_all) = map { filled($_, \%all, $op, $query) } @$form[ 1, 2 ];
	my $found = good($asked, "$before; $sql");

	isnt($found, '', "$what: $op: $name: there are rows");
	is($found, good($asked, "$before_all; $sql_all"), "$what: $op: $name: the rows of one big table");
	return;
}

# Test: a statement fails with such an error.
sub fails
{
	my ($server, $sql, $error, $what) = @_;
	my ($status, undef, $err) = $server->{ask}->($sql);

	isnt($status, 0, "$what: fails");
	like($err, $error, "$what: and says why");
	return;
}

# Test: rows written where it is asked are found at once.
sub test_writes
{
	my ($asked, $table, $dims) = @_;
	my ($t, $v) = @$table{ 'name', 'column' };
	my $at = sub { my ($sign) = @_; "array_fill(($sign 1000)::real, ARRAY[$dims])::$table->{type}" };
	my $nearest = sub {
		my ($sign) = @_;
		good($asked, "SELECT string_agg(id || ' ' || body, ', ') FROM
			(SELECT id, body FROM $t ORDER BY $v <=> " . $at->($sign) . ' LIMIT 3) AS n');
	};

	good($asked, "INSERT INTO $t SELECT -g, 'new ' || g, " . $at->('+') . ' FROM generate_series(1, 3) AS g');
	is(join(', ', sort split /, /, $nearest->('+')), '-1 new 1, -2 new 2, -3 new 3', "$t: inserted rows are found");
	good($asked, "UPDATE $t SET $v = " . $at->('-') . ", body = 'turned' WHERE id = -2");
	like($nearest->('-'), qr/^-2 turned, /, "$t: a vector changed is found where it is");
	unlike($nearest->('+'), qr/-2 /, '... and not where it was');
	good($asked, "DELETE FROM $t WHERE id < 0");
	unlike($nearest->('+') . $nearest->('-'), qr/-\d /, "$t: deleted rows are not found");
	return;
}

# Test: what a role may not do, and what servers are not made for.
sub test_roles
{
	my ($asked, $servers, $table) = @_;
	my $search = "SELECT count(*) FROM (SELECT id FROM $table->{name} ORDER BY $table->{column} <=> (SELECT v FROM asked WHERE n = 1) LIMIT 10) AS n";

	good($asked, "CREATE ROLE guest; GRANT SELECT ON $table->{name}, asked TO guest");
	fails($asked, "SET ROLE guest; $search", qr/user mapping not found for (user )?"guest"/, 'a role that no server knows');
	good($servers->[0], "REVOKE SELECT ON $table->{name} FROM app");
	fails($asked, $search, qr/permission denied for table $table->{name}\nCONTEXT: +remote SQL command: SELECT/, 'a role without rights on a server');
	good($servers->[0], "GRANT SELECT ON $table->{name} TO app");
	fails($asked, 'ALTER SERVER s0 OPTIONS (ADD gpuvec_recall \'1\')', qr/invalid option "gpuvec_recall"/, 'an option that is none');
	fails($asked, 'ALTER SERVER s0 OPTIONS (SET fetch_size \'0\')', qr/fetch_size.*must be .*greater than zero/, 'no row at once');
	# the order, and a condition, that a server does not take are done where it is asked
	my $extensions = good($asked, q{SELECT option_value FROM pg_foreign_server, pg_options_to_table(srvoptions)
		WHERE srvname = 's0' AND option_name = 'extensions'});
	good($asked, 'ALTER SERVER s0 OPTIONS (DROP extensions)');
	my @unordered = grep { !/ORDER BY/ } good($asked, "EXPLAIN (VERBOSE, COSTS OFF) $search") =~ /Remote SQL: (.*)/g;
	ok(@unordered > 0, 'without the option extensions a server is not asked for the order');
	my $doctor = "SELECT state, advice FROM gpuvec_doctor(\$\$$search\$\$) WHERE subject = '$table->{name}_0'";
	like(good($asked, $doctor), qr/^the foreign server does not provide the order, .*\|Run ALTER SERVER s0 OPTIONS \(ADD extensions '\Q$extensions\E'\)\.$/,
		'the doctor says what to do');
	good($asked, good($asked, $doctor =~ s/state, //r) =~ s/^Run (.*)\.$/$1/r);
	is(good($asked, $doctor), 'the foreign server provides the order|', '... which helps');
	return;
}

# Test: a server that is lost, before a statement and within one, is an error that
# names it, and nothing is written elsewhere; when it is back, so are all rows.  The
# server has shell commands: stop, which is sudden, and start.
sub test_lost
{
	my ($asked, $servers, $lost, $table, $query) = @_;
	my ($name, $stop, $start) = @{ $servers->[$lost] }{qw(name stop start)};
	my ($t, $v) = @$table{ 'name', 'column' };
	my $search = "SELECT string_agg(id::text, ' ') FROM (SELECT id FROM $t ORDER BY $v <-> '{$query}'::real[] LIMIT 10) AS n;";
	my $cursor = "SET cursor_tuple_fraction = 0.001; BEGIN; DECLARE c CURSOR FOR SELECT id FROM $t ORDER BY $v <-> '{$query}'::real[]; MOVE 5 FROM c;";
	my $expected = good($asked, $search);
	my $gone = qr/could not connect to server "s$lost"|server closed the connection|no connection to the server|terminating connection/;

	my (undef, $out, $err) = $asked->{ask}->("\\set ON_ERROR_STOP 0
		$search
		\\! $stop
		$search
		INSERT INTO $t SELECT -g, 'lost', ARRAY(SELECT 1 FROM generate_series(1, (SELECT max(array_length(v, 1)) FROM asked)))::real[]
			FROM generate_series(1, 20) AS g;
		\\! $start
		$search
		$cursor
		\\! $stop
		FETCH 500 FROM c;
		ROLLBACK;
		\\! $start
		$search");
	is($out, "$expected\n$expected\n$expected", "$name lost: right rows before and afterwards, by the same session");
	my @errors = $err =~ /ERROR: +(.*)/g;
	is(scalar(@errors), 3, "$name lost: each statement meanwhile fails") or diag($err);
	is(scalar(grep { !/$gone/ } @errors), 0, "$name lost: and says what is gone") or diag($err);
	is(good($asked, "SELECT count(*) FROM $t WHERE id < 0"), '0', "$name lost: nothing is written");
	return;
}

1;
