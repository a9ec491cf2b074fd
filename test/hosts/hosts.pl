# test/hosts/run.sh's tests of its servers: plans, rows, rights, losses and, in
# a long run, times.  GpuvecHosts has the statements and their expected results;
# test/t/hosts.pl asks the same of small tables.

use strict;
use warnings;
use GpuvecHosts;
use GpuvecServers;
use IPC::Run ();
use Test::More;
use Time::HiRes 'time';

my ($network, $links, $dims) = @ENV{ map { "HOSTS_$_" } qw(NETWORK LINKS DIMS) };
my $long = $ENV{GPUVEC_TEST_LONG};
my $rows = $ENV{ROWS} // ($long ? 250_000 : 5000);
my @ops = ([ '<->', 'l2' ], [ '<#>', 'ip' ], [ '<=>', 'cosine' ]);
my $OPTIONS = '-c jit=off -c cursor_tuple_fraction=0.001';

my ($asked, @servers) = map { server($_, $_ ? "data $_" : 'asked') } 0 .. $n;
my @addresses = map { "host '$network." . ($_ + 1) . "', port '" . ($port + $_) . "'" } 1 .. $n;
my @tables = ({ name => 'items', column => 'v', type => 'real[]', all => 'items_all' });
my $pgvector = good($asked, q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});

# Copies rows of the asked server to server $i.
sub copy_rows
{
	my ($i, $query, $table) = @_;

	IPC::Run::run([ psql(0, 'shop', '-c', "COPY ($query) TO STDOUT (FORMAT binary)") ],
		'|', [ psql($i, 'shop', '-c', "COPY $table FROM STDIN (FORMAT binary)") ]) or die "rows of $table";
	return;
}

# The statements of sql/docs/scaling.md, with pgvector; items beside it.
sub set_up
{
	my ($on_each, $on_asked) = printed('sql/docs/scaling.md', 'Rows divided among servers');
	my @once = $pgvector ? grep { !/s0/ } @$on_asked : ('CREATE EXTENSION gpuvec', 'CREATE EXTENSION postgres_fdw');
	my @of_each = grep { /s0/ && ($pgvector || !/TABLE/) } @$on_asked;

	for my $i (0 .. $n - 1)
	{
		good($servers[$i], ($pgvector ? join '', map { for_server($_, $i, $n, '', $dims) . ';' } @$on_each : '') . there_sql());
	}
	good($asked, for_server($_, 0, $n, '', $dims)) for @once;
	for my $i (0 .. $n - 1)
	{
		for my $statement (@of_each)
		{
			$statement =~ s/vector, gpuvec, gpuvec_pgvector/gpuvec/ if !$pgvector;
			good($asked, for_server($statement, $i, $n, $addresses[$i], $dims));
		}
	}
	return;
}

sub fill
{
	my $all = $n + 1;

	good($asked, here_sql($n) . rows_sql($rows * $all, $dims) . ';
		CREATE VIEW items_all AS SELECT id, body, v FROM whole');
	for my $i (0 .. $n)
	{
		copy_rows($i, "SELECT id, body, v FROM whole WHERE satisfies_hash_partition('items'::regclass, $all, $i, id)",
			$i ? 'items' : 'items_here');
	}
	good($_, indexes_sql('items', 'v', 'real', qw(l2 ip cosine)) . 'VACUUM ANALYZE items') for @servers;
	good($asked, indexes_sql('items_here', 'v', 'real', qw(l2 ip cosine)) . 'VACUUM ANALYZE items_here');
	return if !$pgvector;

	unshift @tables, { name => 'docs', column => 'embedding', type => 'vector', all => 'docs_all' };
	good($asked, "CREATE VIEW docs_all AS SELECT id, body, v::vector($dims) AS embedding FROM whole WHERE id < $rows * $n");
	for my $i (1 .. $n)
	{
		copy_rows($i, "SELECT * FROM docs_all WHERE satisfies_hash_partition('docs'::regclass, $n, $i - 1, id)", 'docs');
		good($servers[ $i - 1 ], 'REINDEX INDEX docs_embedding_idx; ALTER INDEX docs_embedding_idx RENAME TO docs_cosine;'
			  . indexes_sql('docs', 'embedding', 'vector', qw(l2 ip)) . 'VACUUM ANALYZE docs');
	}
	return;
}

# Test: rows are where inserts will be sent, and none is lost.
sub test_places
{
	for my $table (@tables)
	{
		my $there = join ' + ', map { good($_, "SELECT count(*) FROM $table->{name}") } @servers;
		my $here = $table->{name} eq 'items' ? good($asked, 'SELECT count(*) FROM items_here') : 0;

		is(eval "$there + $here", good($asked, "SELECT count(*) FROM $table->{all}"), "$table->{name}: $there + $here rows");
		is(good($asked, "SELECT count(*) FROM $table->{name} WHERE id IN (5, 77, 1234)"), '3', '... and by their ids');
	}
	return;
}

# An option of all servers.
sub set_option
{
	my ($name, $value, $verb) = @_;
	my $what = defined $value ? ($verb // 'SET') . " $name '$value'" : "DROP $name";

	good($asked, join ';', map { "ALTER SERVER s$_ OPTIONS ($what)" } 0 .. $n - 1);
	return;
}

# The share of the ten nearest rows that are found at the default recall.
sub test_recall
{
	my ($table) = @_;
	my $queries = 40;
	my $of = sub {
		my ($name) = @_;
		"SELECT n, id FROM (SELECT * FROM asked WHERE n <= $queries) AS a,
			LATERAL (SELECT id FROM $name ORDER BY $table->{column} <-> a.v LIMIT 10) AS x";
	};
	my $share = good($asked, "SELECT count(*) / ($queries * 10.0) FROM ("
		  . $of->($table->{name}) . ' INTERSECT ' . $of->($table->{all}) . ') AS found');

	cmp_ok($share, '>', .93, "$table->{name}: recall " . ($share + 0));
	return;
}

# Test: a role of the asked server that is no superuser searches by a mapping of its
# own, which needs its password.
sub test_mapping
{
	my ($table) = @_;
	my $search = "SELECT count(*) FROM (SELECT id FROM $table->{name} ORDER BY $table->{column} <=> (SELECT v FROM asked WHERE n = 1) LIMIT 10) AS n";
	my $mappings = join ';', map { "CREATE USER MAPPING FOR web SERVER s$_ OPTIONS (user 'app')" } 0 .. $n - 1;

	good($asked, "CREATE ROLE web; GRANT SELECT ON $table->{name}, asked TO web; $mappings");
	fails($asked, "SET ROLE web; $search", qr/password/, 'a role of no password');
	good($asked, join ';', map { "ALTER USER MAPPING FOR web SERVER s$_ OPTIONS (ADD password 'secret')" } 0 .. $n - 1);
	is(good($asked, "SET ROLE web; $search"), '10', 'a role with its password searches');
	return;
}

# Test: a server whose link is cut is an error after the time that options allow.
sub test_cut
{
	my ($table, $query) = @_;
	my ($limits) = page('sql/docs/scaling.md') =~ /^(connect_timeout .*)$/m;
	my %limits = $limits =~ /(\w+) '(\d+)'/g;
	my $search = "SELECT string_agg(id::text, ' ') FROM (SELECT id FROM $table->{name} ORDER BY $table->{column} <-> '{$query}'::real[] LIMIT 10) AS n;";
	my $expected = good($asked, $search);

	set_option($_, $limits{$_}, 'ADD') for sort keys %limits;
	my $begun = time;
	my (undef, $out, $err) = $asked->{ask}->("\\set ON_ERROR_STOP 0
		$search\n\\! $servers[0]{cut}\n$search\n$search\n\\! $servers[0]{mend}\n$search");
	my $took = time - $begun;

	is($out, "$expected\n$expected", 'a link cut: right rows before and afterwards');
	is(scalar(my @errors = $err =~ /ERROR: +(.*)/g), 2, '... each statement meanwhile fails');
	like($err, qr/(could not receive data from server|could not connect to server "s0"|timed out|timeout)/, '... and says why');
	cmp_ok($took, '<', 30, sprintf '... in %.1f s both', $took);
	set_option($_) for sort keys %limits;
	return;
}

# Median ms of a statement, with \$n for a random number of asked.
sub milliseconds
{
	my ($sql, $seconds) = @_;
	my $file = "$folder/tmp/bench.sql";

	my ($text, $err);

	open my $out, '>', $file or die "$file: $!";
	print $out "\\set n random(1, 200)\n$sql;\n";
	close $out;
	IPC::Run::run([ 'pgbench', '-n', '-T', $seconds, '-h', "$folder/sock", '-p', $port, '-U', 'postgres', '-f', $file, 'shop' ],
		'>', \$text, '2>', \$err) or die $err;
	return $text =~ /latency average = ([\d.]+)/ ? $1 : die $text;
}

sub median { return (sort { $a <=> $b } @_)[ @_ / 2 ]; }

# Prints what the natural statement takes on one table here, on $n servers, and
# without each of the options.
sub print_times
{
	my ($table) = @_;
	my $from = sub { "SELECT id FROM $_[0] ORDER BY $_[1] <=> (SELECT v FROM asked WHERE n = :n) LIMIT 10" };
	my %ms;

	good($_, 'ALTER SYSTEM SET auto_explain.log_min_duration = -1; SELECT pg_reload_conf()') for @servers;
	for (1 .. 3)
	{
		push @{ $ms{here} }, milliseconds($from->('items_here', 'v'), 3);
		push @{ $ms{all} }, milliseconds($from->($table->{name}, $table->{column}), 3);
	}
	my ($here, $all) = map { median(@{ $ms{$_} }) } qw(here all);
	printf "# %d rows x %d: one table here %.2f ms; %s on %d servers %.2f ms, %.2f a server\n",
	  $rows, $dims, $here, $table->{name}, $n, $all, $all / $n;
	# the processor's time of the asked session for a server and query
	my $used = 'SELECT split_part(pg_read_file(\'/proc/self/schedstat\'), \' \', 1)';
	my ($before, $after) = split /\n/, good($asked, "DO \$\$ BEGIN FOR i IN 1 .. 10 LOOP PERFORM id FROM $table->{name} ORDER BY $table->{column} <=> (SELECT v FROM asked WHERE n = i) LIMIT 10; END LOOP; END \$\$;
		$used; DO \$\$ BEGIN FOR i IN 1 .. 500 LOOP PERFORM id FROM $table->{name} ORDER BY $table->{column} <=> (SELECT v FROM asked WHERE n = i % 200 + 1) LIMIT 10; END LOOP; END \$\$; $used");
	printf "# the asked session's processor: %.3f ms a server and query\n", ($after - $before) / 500 / $n / 1e6;
	for my $without (
		[ 'fetch_size 100', sub { set_option('fetch_size', 100) }, sub { set_option('fetch_size', 10) } ],
		[ 'jit', sub { set_option('options', $OPTIONS =~ s/-c jit=off//r) }, sub { set_option('options', $OPTIONS) } ],
		[ 'no cursor_tuple_fraction', sub { set_option('options', '-c jit=off') }, sub { set_option('options', $OPTIONS) } ],
		[ 'neither', sub { set_option('options', '-c geqo=on') }, sub { set_option('options', $OPTIONS) } ],
		[ 'no extensions', sub { set_option('extensions') },
			sub { set_option('extensions', $pgvector ? 'vector, gpuvec, gpuvec_pgvector' : 'gpuvec', 'ADD') } ])
	{
		my ($name, $set, $reset) = @$without;

		$set->();
		printf "# %s: %.2f ms\n", $name, milliseconds($from->($table->{name}, $table->{column}), 3);
		$reset->();
	}
	return;
}

if (!good($asked, q{SELECT count(*) FROM pg_available_extensions WHERE name = 'postgres_fdw'}))
{
	print "ok 1 - all # skip this PostgreSQL has no postgres_fdw\n1..1\n";
	exit;
}
print "# skipped: no network namespaces here, addresses of the loopback instead\n" if !$links;
set_up();
fill();
test_places();
good($servers[ $n - 1 ], "SELECT gpuvec_prewarm('items_$_')") for map { $_->[1] } @ops;
my $query = good($asked, q{SELECT array_to_string(v, ',') FROM asked WHERE n = 3});
for my $table (@tables)
{
	test_recall($table);
	for my $op (@ops)
	{
		is_ordered($asked, \@servers, $table->{name}, $_, $table, $op->[0], $query, "$table->{name}_$op->[1]")
		  for grep { !$_->[3] || $long || $table->{name} eq 'docs' } natural();
	}
}
cmp_ok(good($servers[ $n - 1 ], 'SELECT searches_by_server FROM gpuvec_stat'), '>', 20, 'gpuvecd of one server has answered');
print_times($tables[0]) if $long;
set_option('options', "$OPTIONS -c gpuvec.recall=1");
for my $table (@tables)
{
	for my $op (@ops)
	{
		is_same($asked, $table->{name}, $_, $table, $op->[0], $query) for natural();
	}
	test_writes($asked, $table, $dims);
	test_lost($asked, \@servers, 1, $table, $query);
}
test_mapping($tables[0]);
test_roles($asked, \@servers, $tables[0]);
if ($links)
{
	test_cut($tables[0], $query);
}
else
{
	ok(1, 'a link cut # skip no network namespaces');
}
done_testing();
