# Under conditions on keys gpuvecd's answers are brief where the mirror is known
# to be of the directory's version that the session saw, and full where it is
# not: after inserts, VACUUM, draining.  Then they say what lacks, and are brief
# again when the mirror has caught up.  Rows are right all the time, on a standby,
# too, and with wal_level = minimal.  Where changes are not logged answers are
# never brief.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRemote;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $lists = 300;
# what a full answer has of lists, and brief ones are shorter
my $full = 24 * $lists;

my $functions = qq{
	-- rows by gpuvecd, of all lists, and the bytes that came from there
	CREATE FUNCTION ask(tab text, condition text, g int, OUT ids int[], OUT bytes bigint,
		OUT scan text)
	LANGUAGE plpgsql SET gpuvec.probes = 1000 SET gpuvec.candidates = 20000
	SET enable_seqscan = off SET gpuvec.engine = gpu AS \$\$
	BEGIN
		bytes = (SELECT bytes_received FROM gpuvec_stat);
		EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM %s WHERE %s
			ORDER BY e <-> \$1 LIMIT 10) AS x', tab, condition) INTO ids USING point(g, 8);
		bytes = (SELECT bytes_received FROM gpuvec_stat) - bytes;
		scan = (SELECT s::text FROM gpuvec_last_scan() AS s);
	END
	\$\$;
	-- '' when rows are those of a sort, and answers brief or full.  Messages
	-- beside them, once in a while, make them longer; no answer is neither.
	CREATE FUNCTION wrong(tab text, brief bool) RETURNS text
	LANGUAGE plpgsql AS \$\$
	DECLARE
		a record;
		b int[];
		n int = 0;
		m int = 0;
	BEGIN
		FOR g IN 1..10 LOOP
			SELECT * INTO a FROM ask(tab, 'k = 3', 31 * g);
			EXECUTE format('SELECT array_agg(id) FROM (SELECT id FROM %s WHERE (k = 3) IS TRUE
				ORDER BY (e <-> \$1) + 0 LIMIT 10) AS x', tab) INTO b USING point(31 * g, 8);
			IF a.ids IS DISTINCT FROM b THEN
				RETURN format('%s, not %s: %s', a.ids, b, a.scan);
			END IF;
			n = n + (a.bytes BETWEEN 1 AND $full)::int;
			m = m + (a.bytes > $full)::int;
		END LOOP;
		RETURN CASE WHEN NOT brief AND (n > 0 OR m < 8) OR brief AND n < 8 THEN
			format('%s brief answers, %s full ones; %s bytes: %s', n, m, a.bytes, a.scan) ELSE '' END;
	END
	\$\$;
	-- ask until the answer is brief
	CREATE FUNCTION await_brief(tab text) RETURNS bool LANGUAGE plpgsql AS \$\$
	DECLARE
		a record;
	BEGIN
		FOR i IN 1..1800 LOOP
			SELECT * INTO a FROM ask(tab, 'k = 3', i);
			IF a.bytes BETWEEN 1 AND $full AND a.scan NOT LIKE '%session%' THEN
				RETURN true;
			END IF;
			PERFORM pg_sleep(0.05);
		END LOOP;
		RETURN false;
	END
	\$\$;
};

# A table of 60 rows that fulfill the condition, of 6,000.
sub table
{
	my ($name, $kind) = @_;

	return "CREATE $kind TABLE $name (id serial, e real[], k int);
		INSERT INTO $name (e, k) SELECT point(g, 8), g % 100 FROM generate_series(1, 6000) AS g;
		CREATE INDEX ${name}_e ON $name USING gpuivfpq (e, k) WITH (lists = $lists);";
}

# Test: the mirror catches up, and answers are brief.
sub is_brief
{
	my ($node, $what, $name) = @_;

	is($node->safe_psql('postgres', "SELECT await_brief('$name')"), 't', "$what: $name is current");
	is($node->safe_psql('postgres', "SELECT wrong('$name', true)"), '', "$what: brief answers, $name");
	return;
}

# Test: answers are full, and right.
sub is_full
{
	my ($node, $what, $name) = @_;

	is($node->safe_psql('postgres', "SELECT wrong('$name', false)"), '', "$what: full answers, $name");
	return;
}

my $primary = new_remote_node('primary', allows_streaming => 1, conf => "wal_keep_size = '1GB'\n");
$primary->safe_psql('postgres', $functions . table('plain', '') . table('refined', '') .
	"DROP INDEX refined_e; CREATE INDEX refined_e ON refined USING gpuivfpq (e, k)
		WITH (lists = $lists, refine = sq8);" . table('unlogged', 'UNLOGGED'));
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
my @nodes = ([ 'primary', $primary ], [ 'standby', $standby ]);

# Changes of a table that its mirrors first miss, and then follow.
my %changes = (
	'1 insert' => 'INSERT INTO TABLE (e, k) SELECT point(31 * g, 8), 3 FROM generate_series(1, 10) AS g',
	'2 insert elsewhere' => "INSERT INTO TABLE (e, k) VALUES (point(77777, 8), 4)",
	'3 delete and VACUUM' => 'DELETE FROM TABLE WHERE k = 3 AND id % 3 = 0; VACUUM (INDEX_CLEANUP on) TABLE',
	'4 lists rewritten' => 'DELETE FROM TABLE WHERE id % 2 = 0 AND k <> 3; VACUUM (INDEX_CLEANUP on) TABLE',
	'5 rows in their places' => 'INSERT INTO TABLE (e, k) SELECT point(31 * g + 1, 8), 3 FROM generate_series(1, 10) AS g');

for my $node (@nodes)
{
	is_brief($node->[1], "new, $node->[0]", $_) for qw(plain refined);
}
for my $change (sort keys %changes)
{
	pause_loaders($_->[1]) for @nodes;
	for my $name (qw(plain refined))
	{
		(my $sql = $changes{$change}) =~ s/TABLE/$name/g;
		$primary->safe_psql('postgres', $_) for split /; /, $sql;
	}
	$primary->wait_for_catchup($standby);
	for my $node (@nodes)
	{
		is_full($node->[1], "$change, $node->[0]", $_) for qw(plain refined);
		resume_loaders($node->[1]);
		is_brief($node->[1], "$change, $node->[0]", $_) for qw(plain refined);
	}
}

# Rows of a transaction that is under way while the index is trained stay pending;
# they come to lists when it is trained again.
$primary->safe_psql('postgres', "CREATE TABLE go (id int);
	CREATE TABLE drained (id serial, e real[], k int);
	CREATE INDEX drained_e ON drained USING gpuivfpq (e, k) WITH (lists = $lists, dims = 8);
	INSERT INTO drained (e, k) SELECT point(g, 8), g % 100 FROM generate_series(1, 6000) AS g");
my $open = background($primary, q{
	BEGIN;
	INSERT INTO drained (e, k) SELECT point(31 * g, 8), 3 FROM generate_series(1, 10) AS g;
	SET application_name = 'inserted';
	DO 'BEGIN WHILE NOT EXISTS (SELECT FROM go) LOOP PERFORM pg_sleep(0.02); END LOOP; END';
	COMMIT});
ok(wait_until($primary, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'inserted'"),
	'rows that are not committed');
$primary->safe_psql('postgres', "SELECT gpuvec_train('drained_e')");
$primary->wait_for_catchup($standby);
is_brief($_->[1], "trained, $_->[0]", 'drained') for @nodes;
pause_loaders($_->[1]) for @nodes;
$primary->safe_psql('postgres', 'INSERT INTO go VALUES (1)');
is(end_of($open), 0, 'committed');
$primary->wait_for_catchup($standby);
is($primary->safe_psql('postgres', "SELECT pending FROM gpuvec_index_info('drained_e')"),
	'10', 'they are pending');
for my $node (@nodes)
{
	is($node->[1]->safe_psql('postgres', "SELECT wrong('drained', true)"), '',
		"pending rows, $node->[0]: brief answers");
}
$primary->safe_psql('postgres', "SELECT gpuvec_train('drained_e')");
$primary->wait_for_catchup($standby);
for my $node (@nodes)
{
	is_full($node->[1], "from pending to lists, $node->[0]", 'drained');
	resume_loaders($node->[1]);
	is_brief($node->[1], "from pending to lists, $node->[0]", 'drained');
}

# another index, and a mirror of it
$primary->safe_psql('postgres', 'REINDEX INDEX plain_e');
$primary->wait_for_catchup($standby);
is_brief($_->[1], "REINDEX, $_->[0]", 'plain') for @nodes;

# pages that are only written whole, for the sake of their checksums or hints, are
# the same; whatever that leads to, it ends
$primary->safe_psql('postgres', 'CHECKPOINT; DELETE FROM plain WHERE id % 5 = 0; VACUUM plain');
$primary->wait_for_catchup($standby);
is_brief($_->[1], "CHECKPOINT, $_->[0]", 'plain') for @nodes;

# a standby that is one no more
$primary->stop;
$standby->promote;
is_brief($standby, 'promoted', $_) for qw(plain refined);
pause_loaders($standby);
$standby->safe_psql('postgres', 'INSERT INTO plain (e, k) SELECT point(31 * g + 2, 8), 3 FROM generate_series(1, 10) AS g');
is_full($standby, 'promoted, insert', 'plain');
resume_loaders($standby);
is_brief($standby, 'promoted, insert', 'plain');
$standby->stop;

# changes that are not logged, and tables that were not while they were made
$primary->append_conf('postgresql.conf', "wal_level = minimal\nmax_wal_senders = 0\n");
$primary->start;
is_mirrored($primary, 'unlogged_e', 'SELECT FROM unlogged ORDER BY e <-> point(1, 8) LIMIT 10', 'unlogged');
is_full($primary, 'unlogged', 'unlogged');
$primary->safe_psql('postgres', 'BEGIN; ' . table('skipped', '') . ' COMMIT');
is_brief($primary, 'wal_level = minimal', 'skipped');
pause_loaders($primary);
$primary->safe_psql('postgres', $changes{'1 insert'} =~ s/TABLE/$_/r) for qw(skipped unlogged);
is_full($primary, 'wal_level = minimal, insert', $_) for qw(skipped unlogged);
resume_loaders($primary);
is_brief($primary, 'wal_level = minimal, insert', 'skipped');
$primary->stop;

done_testing();
