# Options of CREATE INDEX and settings with odd names and values, thousands of
# them: each is taken or refused with a reason, and the index goes on answering.
# SEED=N makes others.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecRandom;

my $rounds = long_test() ? 50_000 : 2_000;
my $seed = $ENV{SEED} // 4711;

my $node = new_node('main');
$node->safe_psql('postgres', q{
	CREATE TABLE t AS SELECT g AS id, point(g, 4) AS e FROM generate_series(1, 200) g;
	CREATE INDEX t_e ON t USING gpuivfpq (e) WITH (lists = 2);
	CREATE TABLE odd (state text, told text, what text);
});
srand($seed);

my @options = qw(lists pq_dim probes candidates dims spill train_rows refine calibrated_for);
my @settings = split /\n/,
  $node->safe_psql('postgres',
	q{LOAD 'gpuvec'; SELECT name FROM pg_settings WHERE name LIKE 'gpuvec.%' AND name NOT LIKE 'gpuvec.fault\_%' AND context IN ('user', 'superuser')});
cmp_ok(scalar @settings, '>', 8, 'settings are found');
my @values = (
	qw(0 1 -1 2 7 16777216 16777217 2147483647 -2147483648 2147483648 1e3 0x10 1.5 .95 1e-300 nan infinity),
	qw(none sq8 rows queries auto cpu gpu strict relaxed portable avx512 on off true 5ms 3GB),
	'', ' 7 ', "7\t", '7;', "o'", '"', '%s%n', 'x' x 300, '1,2', '{1}', 'sq8 ', '--');

# A value, some of it changed.
sub value
{
	my $value = pick(@values);

	if (chance(0.3) && length $value)
	{
		substr($value, number(length $value), 1) = chr(32 + number(95));
	}
	$value .= pick(@values) if chance(0.1);
	return "'" . $value =~ s/'/''/gr . "'";
}

sub name
{
	my $name = pick(@options);

	$name .= chr(97 + number(26)) if chance(0.05);
	return "\"$name\"";
}

# Options are tried where they can be changed, and where they are given.
sub statement
{
	my $options = join ', ', map { name() . ' = ' . value() } 0 .. number(3);

	return "ALTER INDEX t_e SET ($options)" if chance(0.3);
	return "ALTER INDEX t_e RESET (" . name() . ')' if chance(0.05);
	return "CREATE INDEX t_odd ON t USING gpuivfpq (e) WITH ($options)" if chance(0.2);
	return 'SET ' . pick(@settings) . ' = ' . value();
}

my @statements = map { statement() } 1 .. $rounds;
my $sql = join ",\n", map { "(\$odd\$$_\$odd\$)" } @statements;
my $script = qq{
SET enable_seqscan = off;
SET client_min_messages = error;
CREATE TEMP TABLE statements (n int GENERATED ALWAYS AS IDENTITY, what text);
INSERT INTO statements (what) VALUES $sql;
DO \$do\$
DECLARE
	s text;
BEGIN
	FOR s IN SELECT what FROM statements ORDER BY n LOOP
		BEGIN
			EXECUTE s;
			PERFORM id FROM t ORDER BY e <-> point(3, 4) LIMIT 3;
			-- so that the next one begins as this one did
			INSERT INTO odd VALUES ('00000', '', s);
			IF s NOT LIKE 'SET %' THEN RAISE EXCEPTION 'undone' USING ERRCODE = 'ZZ000'; END IF;
		EXCEPTION WHEN OTHERS THEN
			INSERT INTO odd VALUES (SQLSTATE, SQLERRM, s);
		END;
	END LOOP;
END
\$do\$;
};
my ($rc, undef, $err) = $node->psql('postgres', $script, timeout => 600);
is($rc, 0, "the session lives: $err");
# taken; other dimensions than the rows have; a value that is none or out of
# range; a name that is none; one that is there twice, or a wrong place for it
is($node->safe_psql('postgres',
		q{SELECT DISTINCT state, left(told, 80), left(what, 200) FROM odd
			WHERE state NOT IN ('ZZ000', '00000', '22000', '22023', '42704', '42601') LIMIT 20}),
	'', "seed $seed: what is refused is refused for a reason");
cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM odd WHERE state = 'ZZ000'}),
	'>', $rounds / 50, 'some are taken');
cmp_ok($node->safe_psql('postgres', q{SELECT count(*) FROM odd WHERE state = '22023'}),
	'>', $rounds / 10, 'many are refused');
is($node->safe_psql('postgres',
		q{SELECT count(*) FROM gpuvec_verify_index('t_e');
		SET enable_seqscan = off; SELECT count(*) FROM (SELECT FROM t ORDER BY e <-> point(3, 4) LIMIT 50) AS x}),
	"0\n50",
	'the index is sound, and answers');
$node->stop;
no_crash($node);

done_testing();
