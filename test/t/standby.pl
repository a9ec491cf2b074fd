# Replicas.  A streaming standby gives the primary's answers, the same ids in the same
# order, through cycles of insert, delete, VACUUM and rewrites, for blocks of one, two
# and three pages and for pending rows, be it by the index or by gpuvec_search, and
# goes on after promotion.  Every replayed page is compared with the primary's
# (wal_consistency_checking).  Each of the two has a gpuvecd and mirrors of its own,
# and neither needs the other's.
#
# A page that redo is making is waited for.  A logical replica of a server without
# gpuvec, set up as sql/docs/scaling.md prints it, is asked for what is written there.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecHosts qw(printed);
use GpuvecRemote;
use IPC::Run qw(start finish);
use Time::HiRes qw(time usleep);

my $rows = long_test() ? 20_000 : 1500;
my $cycles = long_test() ? 10 : 2;
my @tables = (
	[ 'narrow', '<->', 8 ],
	[ 'wide', '<=>', 1400 ],
	[ 'wider', '<#>', 1400, [ 'id < 100', 'id BETWEEN 200 AND 400', 'id = 250' ] ],
	[ 'refined', '<->', 8, [ 'id < 900', 'id % 3 = 1', 'id >= 300 AND id % 3 = 2', 'id IS NULL' ] ],
	[ 'waiting', '<->', 4 ]);
# those that gpuvec_search is asked of, too
my %searched = (narrow => 8, refined => 8, waiting => 4);

my $primary = new_remote_node(
	'primary',
	allows_streaming => 1,
	conf => "wal_consistency_checking = 'generic'\nwal_keep_size = '8GB'\n");
my $standby = new_standby($primary, 'standby', conf => "max_standby_streaming_delay = '100ms'\n");

# The answers of a server for each table.
sub all_answers
{
	my ($node) = @_;

	return split /\n/, $node->safe_psql(
		'postgres',
		join '',
		map {
			my ($name, $operator, $dims) = @$_;
			my $n = $dims > 1000 ? 5 : 20;
			"SELECT translate(answers('$name', '$operator', $dims, 20, $n), E'\n', ' ');"
		} @tables);
}

# gpuvec_search of 200 queries in a table, with these settings.
sub many
{
	my ($table, $set) = @_;

	return "SET gpuvec.probes = 1000; $set; SELECT string_agg(n::text, ' ') FROM gpuvec_search('${table}_e',
		(SELECT array_agg(point(7 * g, $searched{$table}) ORDER BY g) FROM generate_series(1, 200) AS g), 10) AS n";
}

# Both give the same answers now, by indexes and by gpuvec_search.
sub test_same
{
	my ($what) = @_;

	$primary->wait_for_catchup($standby);
	my @expected = all_answers($primary);
	my @found = all_answers($standby);
	for my $i (0 .. $#tables)
	{
		isnt($expected[$i], '', "$what: there are answers");
		is($found[$i], $expected[$i], "$what: standby answers for $tables[$i][0] as primary does");
	}
	# few rows pass, and hardly any
	for my $condition ('id % 7 = 3', "id % 400 = 3")
	{
		my $query = "SET enable_seqscan = off; SELECT string_agg(id::text, ' ') FROM
			(SELECT id FROM narrow WHERE $condition ORDER BY e <-> point(5, 8) LIMIT 20) AS x";

		gives($standby, $query,
			$primary->safe_psql('postgres', $query), "$what: standby answers where $condition as primary does");
	}
	for my $name (sort keys %searched)
	{
		my $expected = $primary->safe_psql('postgres', many($name, 'SET gpuvec.engine = cpu'));

		like($expected, qr/^(\S+ ){1999}\S+$/, "$what: gpuvec_search finds rows of $name");
		for my $set ('gpuvec.engine = cpu', 'gpuvec.engine = gpu', 'gpuvec.engine = cpu; SET gpuvec.recall = 1')
		{
			$expected = $primary->safe_psql('postgres', many($name, "SET $set")) if $set =~ /recall/;
			ok($standby->safe_psql('postgres', many($name, "SET $set")) eq $expected,
				"$what: the standby's gpuvec_search of $name, $set");
		}
	}
	are_whole($standby, "$what: standby", [ map { [ "$_->[0]_e", @$_ ] } @tables ], exact => 0);
	return;
}

# Vectors of a wide table differ in their first elements only.
my $wide = 'point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])';
my $few = int($rows / 5);

$primary->safe_psql('postgres', qq{
	SET client_min_messages = warning;
	CREATE TABLE narrow (id int, e real[]);
	INSERT INTO narrow SELECT g, point(g, 8) FROM generate_series(1, $rows) AS g;
	CREATE INDEX narrow_e ON narrow USING gpuivfpq (e) WITH (lists = 20, probes = 5);
	CREATE TABLE wide (id int, e real[]);
	INSERT INTO wide SELECT g, $wide FROM generate_series(1, $few) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e real_cosine_ops)
		WITH (lists = 5, pq_dim = 600);
	CREATE TABLE wider (id int, e real[]);
	INSERT INTO wider SELECT * FROM wide;
	CREATE INDEX wider_e ON wider USING gpuivfpq (e real_ip_ops, id)
		WITH (lists = 5, pq_dim = 900);
	CREATE TABLE refined (id int, e real[]);
	INSERT INTO refined SELECT * FROM narrow;
	CREATE INDEX refined_e ON refined USING gpuivfpq (e, id, (id % 3))
		WITH (lists = 20, probes = 5, refine = sq8, rotate);
	CREATE TABLE waiting (id int, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e);
	INSERT INTO waiting SELECT g, point(g, 4) FROM generate_series(1, $rows) AS g;
});
comes($standby, "SELECT state = 'up' FROM gpuvec_stat", 'the standby has a gpuvecd');
test_same('built');
like(
	$standby->safe_psql('postgres', q{SET enable_seqscan = off;
		EXPLAIN SELECT id FROM narrow ORDER BY e <-> point(1, 8) LIMIT 1}),
	qr/Index Scan using narrow_e/,
	'standby uses the index');

my $next = $rows + 1;
for my $cycle (1 .. $cycles)
{
	my $last = $next + $few - 1;

	for my $table (qw(narrow wide wider refined waiting))
	{
		my ($dims) = map { $_->[2] } grep { $_->[0] eq $table } @tables;
		my $value = $dims > 1000 ? $wide : "point(g, $dims)";

		$primary->safe_psql('postgres',
			"INSERT INTO $table SELECT g, $value FROM generate_series($next, $last) AS g");
	}
	test_same("cycle $cycle, inserted");

	# some dead; the index learns of them by VACUUM only
	$primary->safe_psql('postgres', "DELETE FROM $_->[0] WHERE id % 10 = $cycle % 10")
	  for @tables;
	test_same("cycle $cycle, deleted");
	$primary->safe_psql('postgres', "VACUUM $_->[0]") for @tables;
	test_same("cycle $cycle, vacuumed");

	# most dead: lists are rewritten, blocks freed and used again
	$primary->safe_psql('postgres',
		"DELETE FROM $_->[0] WHERE id % 3 <> $cycle % 3; VACUUM $_->[0]")
	  for @tables;
	test_same("cycle $cycle, rewritten");
	$next = $last + 1;
}

# everything dead, and new
$primary->safe_psql('postgres', q{
	DELETE FROM narrow; VACUUM narrow; DELETE FROM waiting; VACUUM waiting;
	DELETE FROM refined; VACUUM refined;
	INSERT INTO narrow SELECT g, point(g, 8) FROM generate_series(1, 1500) AS g;
	INSERT INTO refined SELECT * FROM narrow;
	INSERT INTO waiting SELECT g, point(g, 4) FROM generate_series(1, 500) AS g;
});
test_same('filled again');

# another training
$primary->safe_psql('postgres', 'REINDEX INDEX narrow_e; REINDEX INDEX CONCURRENTLY wide_e');
test_same('reindexed');

# -- each has a gpuvecd and mirrors of its own
my $natural = 'SELECT id FROM narrow ORDER BY e <-> point(%d, 8) LIMIT 10';
my $by_gpuvecd = 'SET enable_seqscan = off; SET gpuvec.engine = gpu;';

# Test: both answer by their gpuvecds, and alike.
sub test_mirrors
{
	my ($what) = @_;
	my @found;

	$primary->wait_for_catchup($standby);
	for my $node ($primary, $standby)
	{
		my $name = $node->name;

		is_mirrored($node, 'narrow_e', sprintf($natural, 1), "$what: $name");
		my $before = served($node);
		push @found, join "\n", map { $node->safe_psql('postgres', "$by_gpuvecd " . sprintf($natural, $_)) } 1 .. 5;
		cmp_ok(served($node), '>=', $before + 5, "$what: the $name\'s gpuvecd has answered");
		differs($node, sprintf($natural, 77), "$what: $name: rows are those of a session", stale => 1);
	}
	is($found[1], $found[0], "$what: the same rows");
	return;
}

test_mirrors('mirrored');
is_mirrored($standby, 'refined_e', 'SELECT FROM refined ORDER BY e <-> point(1, 8) LIMIT 1', 'standby');
isnt(gpuvecd_pid($primary), gpuvecd_pid($standby), 'each has a gpuvecd of its own');
my $before = served($standby);
test_same('mirrored');
cmp_ok(served($standby), '>', $before, "gpuvec_search asks the standby's gpuvecd");
$primary->safe_psql('postgres', 'INSERT INTO narrow SELECT -g, point(g, 8) FROM generate_series(1, 300) AS g;
	DELETE FROM narrow WHERE id % 7 = 1; VACUUM narrow; INSERT INTO narrow VALUES (0, point(1, 8))');
test_mirrors('written');
kill 'KILL', gpuvecd_pid($standby);
gives($standby, "$by_gpuvecd " . sprintf($natural, 1),
	$primary->safe_psql('postgres', "$by_gpuvecd " . sprintf($natural, 1)), 'the standby without its gpuvecd has the same rows');
is($primary->safe_psql('postgres', 'SELECT state FROM gpuvec_stat'), 'up', "the primary's gpuvecd does not mind");
ok(revive($standby), 'the standby has a gpuvecd again');

# -- a conflict: rows that a statement may still see are to be removed
my $long = q{SET gpuvec.recall = 1; SELECT count(*) FROM gpuvec_search('narrow_e',
	(WITH asked AS MATERIALIZED (SELECT point(7 * g, 8) AS v FROM generate_series(1, 200) AS g)
		SELECT array_agg(v) FROM asked, generate_series(1, 3000)), 100)};
my $took;
# or the primary's loader may keep VACUUM from the rows
pause_loaders($primary);
# the best of three tries counts
for my $rest (3 .. 5)
{
	my $job = background($standby, $long);
	comes($standby, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active'
			AND backend_xmin IS NOT NULL AND query LIKE '%gpuvec_search%' AND pid <> pg_backend_pid()},
		'a long search on the standby');
	my $begun = time;
	$primary->safe_psql('postgres', "DELETE FROM narrow WHERE id % 7 = $rest; VACUUM narrow");
	isnt(end_of($job), 0, 'it was ended');
	like(errors_of($job), qr/canceling statement due to conflict with recovery/, '... by the conflict');
	$took = time - $begun;
	last if $took < 20;
}
cmp_ok($took, '<', 20, '... soon');
resume_loaders($primary);
test_same('after a conflict');

# -- promotion
my $expected = answers($primary, 'narrow', '<->', 8, 20, 20);
$primary->wait_for_catchup($standby);
$primary->stop;
is_mirrored($standby, 'narrow_e', sprintf($natural, 1), 'without a primary');
$standby->promote;
is(answers($standby, 'narrow', '<->', 8, 20, 20),
	$expected, 'promoted: the same answers');
$standby->safe_psql('postgres',
	'INSERT INTO narrow SELECT g, point(g, 8) FROM generate_series(90001, 90500) AS g;
	 DELETE FROM narrow WHERE id < 200; VACUUM narrow');
is_whole($standby, 'promoted', 'narrow', '<->', 8);
is_mirrored($standby, 'narrow_e', sprintf($natural, 1), 'promoted');
differs($standby, sprintf($natural, 5), 'promoted: rows are those of a session');
gives($standby, many('narrow', 'SET gpuvec.engine = gpu'),
	$standby->safe_psql('postgres', many('narrow', 'SET gpuvec.engine = cpu')), 'promoted: so are those of gpuvec_search');
$standby->stop;

# -- A page that redo is making from its image in the WAL is waited for: its buffer is
# valid and all zero before.  The debugger stops redo there, for each of the first
# pages that a row's insert changes.  Long runs only.

# Wait for a file, which has to have something in it, perhaps.
sub wait_for_file
{
	my ($name, $full) = @_;

	for (1 .. 300)
	{
		last if $full ? -s $name : -e $name;
		usleep(100_000);
	}
	return;
}

SKIP:
{
	skip 'needs a long run and gdb', 1 if !long_test() || system('command -v gdb >/dev/null') != 0;

	my $primary = new_node('images', allows_streaming => 1);
	$primary->safe_psql('postgres', '
		CREATE TABLE t AS SELECT g AS id, ARRAY[g % 7, g % 11, g % 13, g]::real[] AS e FROM generate_series(1, 2000) AS g;
		CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 4);');
	my $standby = new_standby($primary, 'images_standby');

	my $folder = PostgreSQL::Test::Utils::tempdir;
	my $query = "SELECT count(*) FROM (SELECT id FROM t ORDER BY e <-> '{1,2,3,400}' LIMIT 10) AS x";

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
		wait_for_file("$folder/attached");
		$primary->safe_psql('postgres', "INSERT INTO t VALUES (5000 + $image, '{1,2,3,4}')");
		finish $gdb;
	  SKIP:
		{
			skip "gdb did not stop redo at image $image: " . (slurp_file("$folder/log") =~ /([^\n]*)\s*\z/)[0], 1
				if !-e "$folder/stopped";
			$primary->wait_for_catchup($standby);
			wait_for_file("$folder/answer", 1);
			is(slurp_file("$folder/answer"), "10\n", "stopped at image $image: the query waited, and has its rows");
		}
	}

	$standby->stop;
	$primary->stop;
}

# -- a logical replica of a server without gpuvec
my ($on_service, $on_replica, $afterwards) = printed('sql/docs/scaling.md', 'A replica beside a service without gpuvec');
my ($service, $replica) = map { PostgreSQL::Test::Cluster->new($_) } 'service', 'replica';
for ($service, $replica)
{
	$_->init(allows_streaming => 'logical');
	$_->append_conf('postgresql.conf', "autovacuum = off\n");
	$_->start;
	$_->safe_psql('postgres', 'CREATE DATABASE shop');
}
my $rows_of = "(SELECT array_agg(((g * (i + 3) * 2654435761) % 1009 + 1)::real ORDER BY i) FROM generate_series(1, 16) AS i)::vector(16)";

# A printed statement for these two.
sub filled
{
	my ($statement) = @_;
	my ($host, $port) = ($service->host, $service->port);

	return $statement =~ s/host=service\.example/host=$host port=$port/r =~ s/vector\(384\)/vector(16)/r;
}

# Test: the replica's index finds what a sort on the service finds.
sub test_replica
{
	my ($what) = @_;

	$service->wait_for_catchup('searched');
	for my $g (3, 500, 6000)
	{
		my $query = "SELECT string_agg(body, ', ') FROM (SELECT body FROM docs ORDER BY embedding <=>
			(SELECT $rows_of FROM (VALUES (${g}::bigint)) AS q (g)), id LIMIT 10) AS n";

		is($replica->safe_psql('shop', "SET enable_seqscan = off; SET gpuvec.recall = 1; $query"), $service->safe_psql('shop', $query),
			"$what: the replica finds what is nearest on the service");
	}
	return;
}

SKIP:
{
	skip 'pgvector is missing', 1 unless $service->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'});

	$service->safe_psql('shop', q{CREATE EXTENSION vector; CREATE ROLE app LOGIN REPLICATION PASSWORD 'secret'});
	$service->safe_psql('shop', filled($_)) for @$on_service;
	$service->safe_psql('shop', "GRANT SELECT ON docs TO app;
		INSERT INTO docs SELECT g, 'row ' || g, $rows_of FROM generate_series(1, 3000) AS g");
	is($service->safe_psql('shop', q{SELECT count(*) FROM pg_extension WHERE extname LIKE 'gpuvec%'}), '0', 'the service has no gpuvec');
	$replica->safe_psql('shop', filled($_)) for @$on_replica;
	ok($replica->poll_query_until('shop', q{SELECT coalesce(bool_and(srsubstate = 'r'), false) FROM pg_subscription_rel}),
		'all rows are copied');
	$replica->safe_psql('shop', filled($_)) for @$afterwards;
	like($replica->safe_psql('shop', 'SET enable_seqscan = off; EXPLAIN SELECT id FROM docs ORDER BY embedding <=> (SELECT embedding FROM docs WHERE id = 5) LIMIT 10'),
		qr/Index Scan using docs_embedding_idx/, 'by the index');
	test_replica('copied');
	$service->safe_psql('shop', "INSERT INTO docs SELECT g, 'new ' || g, $rows_of FROM generate_series(3001, 3200) AS g;
		UPDATE docs SET embedding = (SELECT embedding FROM docs WHERE id = 3), body = 'moved' WHERE id = 500;
		DELETE FROM docs WHERE id % 11 = 0; UPDATE docs SET body = 'renamed' WHERE id % 50 = 1");
	test_replica('changed');
	is($replica->safe_psql('shop', q{SELECT * FROM gpuvec_verify_index('docs_embedding_idx')}), '', 'the index is sound');
}
$replica->stop;
$service->stop;
done_testing();
