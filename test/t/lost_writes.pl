# The machine loses power: whatever was written to a file since its last sync is
# lost (GpuvecDisk).  The server comes back by what it had synced, and every
# transaction that was told to have committed is there: indexes are sound, find
# every row once, and answers with all lists are those of exact search.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDisk;
use Time::HiRes qw(usleep);

my $rounds = long_test() ? 100 : 4;
my @indexes = (
	[ 'plain_e', 'plain', '<->', 8 ],
	[ 'keyed_e', 'keyed', '<=>', 8, [ 'id < 300', 'id % 3 = 1' ] ],
	[ 'wide_e', 'wide', '<#>', 1400, [ 'id < 100' ] ],
	[ 'waiting_e', 'waiting', '<->', 8, [ 'id < 200' ] ]);
my $node = PostgreSQL::Test::Cluster->new('main');

$node->init;
# Cluster.pm turns this off
$node->append_conf('postgresql.conf',
	"fsync = on\nautovacuum = off\njit = off\ncheckpoint_timeout = 30s\nmax_wal_size = 64MB\n");
start_on_bad_disk($node);
load_gpuvec($node);
$node->safe_psql('postgres', q{
	CREATE TABLE plain (id bigserial, e real[]);
	INSERT INTO plain (e) SELECT point(g, 8) FROM generate_series(1, 1000) AS g;
	CREATE INDEX plain_e ON plain USING gpuivfpq (e) WITH (lists = 10);
	CREATE TABLE keyed (id bigserial, e real[]);
	INSERT INTO keyed (e) SELECT e FROM plain;
	CREATE INDEX keyed_e ON keyed USING gpuivfpq (e real_cosine_ops, id, (id % 3))
		WITH (lists = 10, refine = sq8, rotate);
	CREATE FUNCTION wide_point(g int) RETURNS real[] LANGUAGE sql
		AS 'SELECT point(g, 8) || array_fill((g % 13)::real, ARRAY[1392])';
	CREATE TABLE wide (id bigserial, e real[]);
	INSERT INTO wide (e) SELECT wide_point(g) FROM generate_series(1, 200) AS g;
	CREATE INDEX wide_e ON wide USING gpuivfpq (e real_ip_ops, id) WITH (lists = 5, pq_dim = 900);
	CREATE TABLE waiting (id bigserial, e real[]);
	CREATE INDEX waiting_e ON waiting USING gpuivfpq (e, id);
	CREATE TABLE done (who int, n bigint, PRIMARY KEY (who, n))});

# Transactions, each of which says its number when it has committed.
sub transactions
{
	my ($who, $round) = @_;

	return join '', map {
		my $n = 100_000 * $round + $_;
		qq{BEGIN;
			INSERT INTO plain (e) SELECT point((random() * 1e6)::int, 8) FROM generate_series(1, 20);
			DELETE FROM plain WHERE id IN
				(SELECT id FROM plain ORDER BY e <-> point((random() * 1e6)::int, 8) LIMIT 12);
			INSERT INTO keyed (e) SELECT point((random() * 1e6)::int, 8) FROM generate_series(1, 10);
			DELETE FROM keyed WHERE id IN
				(SELECT id FROM keyed ORDER BY e <-> point((random() * 1e6)::int, 8) LIMIT 6);
			INSERT INTO waiting (e) SELECT point((random() * 1e6)::int, 8) FROM generate_series(1, 30);
			INSERT INTO wide (e) VALUES (wide_point($n));
			DELETE FROM wide WHERE id = (SELECT min(id) FROM wide WHERE id % 2 = $who % 2);
			INSERT INTO done VALUES ($who, $n);
			COMMIT;
			SELECT $n;
		}
	} 1 .. 5000;
}

my $others = join '', map {
	qq{VACUUM plain; VACUUM keyed; VACUUM wide; DELETE FROM waiting WHERE id % 3 = 0; VACUUM waiting;
		CHECKPOINT;
		REINDEX INDEX keyed_e;
		SELECT gpuvec_train('plain_e');
	}
} 1 .. 1000;

for my $round (1 .. $rounds)
{
	my @jobs = map { background($node, $_) }
	  transactions(1, $round), transactions(2, $round), $others;

	usleep(700_000 + 330_000 * ($round % 7));
	# what is built last is in WAL alone, or synced with its commit
	$node->safe_psql('postgres', 'REINDEX INDEX plain_e');
	$node->stop('immediate');
	end_of($_) for @jobs;
	my $lost = lose_unsynced($node);
	cmp_ok($lost, '>', 0, "round $round: $lost writes are lost");
	$node->adjust_conf('postgresql.conf', 'wal_level', $round % 2 ? 'replica' : 'minimal');
	start_on_bad_disk($node);
	for my $who (1, 2)
	{
		my @told = split /\n/, slurp_file($jobs[ $who - 1 ]{output});

		gives($node, "SELECT count(*) >= " . @told . " FROM done WHERE who = $who AND n / 100000 = $round",
			't', "round $round: client $who has the " . @told . ' transactions that it was told of');
	}
	are_whole($node, "round $round", \@indexes, warnings => 1);
}

# what crashes left behind, VACUUM takes away: the next fill needs no more room than
# the file has, if that is enough for it
my $pages = q{SELECT pg_relation_size('plain_e') / 8192};
$node->safe_psql('postgres', 'DELETE FROM plain; VACUUM plain');
my $before = $node->safe_psql('postgres', $pages);
$node->safe_psql('postgres', 'INSERT INTO plain (e) SELECT point(g, 8) FROM generate_series(1, 2000) AS g');
my $size = $node->safe_psql('postgres', $pages);
$node->safe_psql('postgres', 'REINDEX INDEX plain_e');
my $fresh = $node->safe_psql('postgres', $pages);
ok($size <= $before || $size <= 1.5 * $fresh,
	"space is used again: $before pages, $size when filled, $fresh when new");
$node->stop;
done_testing();
