# Pages of real indexes, damaged at random: bytes, bits, numbers, sectors, torn,
# zeroed, swapped and misplaced pages, files cut short.  Every statement then ends,
# with an error that tells of damage or without one; the server lives; and where
# gpuvec_verify_index has nothing to say, answers are those of a sort.
#
# In `make test-long` 100,000 pages, else some hundred.  A damage is repeated
# by its number: GPUVEC_DAMAGE=NUMBER begins there.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDamage;

use constant SECTOR => 512;

my $wanted = long_test() ? 100_000 : 400;
my $copies = long_test() ? 30 : 10;    # of every kind of index

# Kinds of indexes, and their tables.
my %kinds = (
	lists => {
		dims => 9, rows => 500,
		options => 'lists = 4, pq_dim = 5, spill = 1' },
	refined => {
		dims => 9, rows => 500,
		options => 'lists = 4, pq_dim = 5, spill = 1, refine = sq8' },
	halved => {
		dims => 9, rows => 500,
		options => 'lists = 4, pq_dim = 5, spill = 1, refine = half' },
	parts => {
		dims => 500, rows => 120,
		options => 'lists = 2, pq_dim = 490, spill = 0' },
	pending => { dims => 9, rows => 3000, options => 'train_rows = 1000000' },
	keyed => {
		dims => 9, rows => 500, keys => ', id, k, name, tags, size, on_it',
		options => 'lists = 4, pq_dim = 5, spill = 1, refine = sq8' },
	keyed_parts => {
		dims => 500, rows => 120, keys => ', size, name, k',
		options => 'lists = 2, pq_dim = 450, spill = 0' });
my @tables = map { my $kind = $_; map { "${kind}_$_" } 1 .. $copies } sort keys %kinds;

my $node = new_damage_node();
$node->start;
load_gpuvec($node);
$node->safe_psql('postgres', q{
SET client_min_messages = warning;
CREATE TABLE notes (tab text, act text, result text);

-- Do something and tell what came of it: an SQLSTATE, or what it returns.
CREATE FUNCTION try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE statement INTO result;
	RETURN coalesce(result, '-');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END
$$;

-- rows first to last of a table, each with what keys are made of
CREATE FUNCTION fill(tab text, first int, last int, dims int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s SELECT i, point(i, %s), nullif(i %% 7, 0), ''n'' || i %% 9,
		ARRAY[i %% 5, i %% 3], i / 8.0, i %% 2 = 0 FROM generate_series(%s, %s) AS i', tab, dims, first, last);
	RETURN last - first;
END
$$;

-- All that can be asked of a table with a damaged index, but for VACUUM.
CREATE FUNCTION meet(tab text, dims int) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
	verify text = format('SELECT coalesce(min(severity), ''sound'') FROM gpuvec_verify_index(%L)', tab || '_e');
	asked text[] = ARRAY['k = 3', 'k IS NULL', 'id < 40', 'name = ANY (''{n1,n4}'') AND on_it',
		'size BETWEEN 3 AND 9.5 AND tags @> ''{2}''', 'tags && ''{0,4}'' AND k IS NOT NULL'];
	conditions text = ' WHERE k > 2 AND name = ''n3''';
	query text = format('SELECT count(*) FROM (SELECT FROM %s%%s ORDER BY e <-> %L LIMIT 300) AS x', tab, point(5, dims));
BEGIN
	RETURN concat_ws(E'\n', 'verify: ' || try(verify),
		'recall 1: ' || try(format('SELECT inexact_in_pass(%L, ''<->'', %s, 10, 2)', tab, dims)),
		'all lists: ' || try(format('SELECT inexact(%L, ''<->'', %s, 10, 2)', tab, dims)),
		'conditions at recall 1: ' || try(format('SELECT missing_in_pass(%L, ''<->'', %s, %L)', tab, dims, asked)),
		'conditions in all lists: ' || try(format('SELECT missing_in_lists(%L, ''<->'', %s, %L)', tab, dims, asked)),
		'at once at recall 1: ' || try(format('SELECT missing_at_once_in_pass(%L, %s)', tab, dims)),
		'at once in all lists: ' || try(format('SELECT missing_at_once_in_lists(%L, %s)', tab, dims)),
		'at once: ' || try(format('SELECT count(*) FROM gpuvec_search(%L, %L, 300)', tab || '_e', ARRAY[point(5, dims), point(6, dims)])),
		'query: ' || try(format(query, '')),
		'conditions: ' || try(format(query, conditions)),
		'relaxed: ' || try(format('SELECT complete(%L, ''<->'', %s)', tab, dims)),
		'info: ' || try(format('SELECT advice FROM gpuvec_index_info(%L)', tab || '_e')),
		'insert: ' || try(format('SELECT fill(%L, 10001, 10040, %s)', tab, dims)),
		'query: ' || try(format(query, '')),
		'conditions: ' || try(format(query, conditions)));
END
$$;

-- queries at once of which something is missed
CREATE FUNCTION missing_at_once(tab text, dims int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	wrong int;
BEGIN
	EXECUTE format('SELECT count(*) FROM unnest(ARRAY[%1$L, %2$L]) WITH ORDINALITY AS q (v, n)
		WHERE (SELECT array_agg(distance) FROM gpuvec_search(%3$L, ARRAY[%1$L::real[], %2$L::real[]], 10) WHERE query = n)
			IS DISTINCT FROM (SELECT array_agg(d) FROM (SELECT (e <-> v::real[]) + 0 AS d
				FROM %4$s WHERE e IS NOT NULL ORDER BY 1 LIMIT 10) AS y)',
		point(1, dims), point(2, dims), tab || '_e', tab) INTO wrong;
	RETURN wrong;
END
$$;
CREATE FUNCTION missing_at_once_in_pass(tab text, dims int) RETURNS int LANGUAGE sql
SET gpuvec.recall = 1 AS 'SELECT missing_at_once(tab, dims)';
CREATE FUNCTION missing_at_once_in_lists(tab text, dims int) RETURNS int LANGUAGE sql
SET gpuvec.probes = 16777216 SET gpuvec.candidates = 1000000 AS 'SELECT missing_at_once(tab, dims)';
} . join(
		'',
		map {
			my ($kind) = /(.*)_/;
			my ($dims, $rows, $options) = @{ $kinds{$kind} }{qw(dims rows options)};
			my $keys = $kinds{$kind}{keys} // '';
			my $create = "CREATE INDEX ${_}_e ON $_ USING gpuivfpq (e$keys) WITH ($options);";
			my $fill = "SELECT fill('$_', 1, $rows, $dims);";
			"CREATE TABLE $_ (id int, e real[], k smallint, name text, tags int[], size float8, on_it bool);
				ALTER TABLE $_ ALTER e SET STORAGE PLAIN, ALTER name SET STORAGE PLAIN, ALTER tags SET STORAGE PLAIN;"
			  . ($kind eq 'pending' ? $create . $fill : $fill . $create)
		} @tables));

my (%file, %sound);
for (@tables)
{
	@{ $file{$_} } = map { $node->data_dir . "/$_" } split /\|/,
	  $node->safe_psql('postgres',
		"SELECT pg_relation_filepath('$_'), pg_relation_filepath('${_}_e')");
}
$node->stop;
$sound{$_} = [ map { slurp_bytes($_) } @{ $file{$_} } ] for @tables;

# ---- damage

my @numbers = (0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF);

# A place on a page: anywhere, or where headers are.
sub place { return int(rand(rand() < 0.4 ? 200 : BLCKSZ - 4)) }

# Each changes a page, of which there are several in $$bytes, in one way.
my @damages = (
	# bytes, bits, numbers
	sub {
		my ($bytes, $at) = @_;
		substr($$bytes, $at + place(), 1) = chr(int(rand(256))) for 0 .. int(rand(8));
	},
	sub {
		my ($bytes, $at) = @_;
		$at += place();
		substr($$bytes, $at, 1) = chr(ord(substr($$bytes, $at, 1)) ^ 1 << int(rand(8)));
	},
	sub {
		my ($bytes, $at) = @_;
		$at += place() & ~3;
		my $number = rand() < 0.5 ? $numbers[ rand @numbers ] : int(rand(length($$bytes) / BLCKSZ));
		substr($$bytes, $at, 4) = pack('L', $number);
	},
	sub {
		my ($bytes, $at) = @_;
		$at += place() & ~3;
		my $number = unpack('L', substr($$bytes, $at, 4)) + int(rand(5)) - 2;
		substr($$bytes, $at, 4) = pack('L', $number & 0xFFFFFFFF);
	},
	# a sector, the rest of a page, a page
	sub {
		my ($bytes, $at) = @_;
		substr($$bytes, $at + SECTOR * int(rand(16)), SECTOR) = "\0" x SECTOR;
	},
	sub {
		my ($bytes, $at, $other) = @_;
		my $from = SECTOR * (1 + int(rand(15)));
		substr($$bytes, $at + $from, BLCKSZ - $from) = substr($other, $from);
	},
	sub {
		my ($bytes, $at) = @_;
		substr($$bytes, $at, BLCKSZ) = "\0" x BLCKSZ;
	},
	sub {
		my ($bytes, $at, $other) = @_;
		substr($$bytes, $at, BLCKSZ) = $other;
	});

# Some page of some index of the same kind, and its place.
sub other_page
{
	my ($table) = @_;
	my ($kind) = $table =~ /(.*)_/;
	my $bytes = $sound{ "${kind}_" . (1 + int(rand($copies))) }[1];
	my $at = BLCKSZ * int(rand(length($bytes) / BLCKSZ));

	return (substr($bytes, $at, BLCKSZ), $at);
}

# The index of a table, damaged; and how many of its pages are.
sub damaged
{
	my ($table) = @_;
	my $bytes = $sound{$table}[1];
	my $n = 1 + int(rand(8));

	for (1 .. $n)
	{
		my $at = BLCKSZ * int(rand(length($bytes) / BLCKSZ));

		$damages[ rand @damages ]->(\$bytes, $at, (other_page($table))[0]);
	}
	# swapped, or cut short
	if (rand() < 0.1)
	{
		my ($a, $b) = map { BLCKSZ * int(rand(length($bytes) / BLCKSZ)) } 1 .. 2;
		my $kept = substr($bytes, $a, BLCKSZ);

		substr($bytes, $a, BLCKSZ) = substr($bytes, $b, BLCKSZ);
		substr($bytes, $b, BLCKSZ) = $kept;
		$n += 2;
	}
	if (rand() < 0.05)
	{
		substr($bytes, BLCKSZ * int(rand(length($bytes) / BLCKSZ))) = '';
		$n++;
	}
	return ($bytes, $n);
}

# ---- what comes of it

# damage told as such, a version that there is not, other dimensions than rows
# have
my $clean = qr/^(?:XX002|XX001|55000|22000) /;

# Faults in what a table's statements said.
sub faults
{
	my ($said) = @_;
	my @faults;
	my %first;

	for (split /\n/, $said)
	{
		my ($act, $result) = /^([\w ]+): (.*)/ or next;
		$first{$act} //= $result;
		push @faults, $_ if $result =~ /^[0-9A-Z]{5} / && $result !~ $clean;
	}
	push @faults, 'no end: ' . substr($said, -200) if $said !~ /^again: /m;
	if ($first{verify} =~ /^(?:sound|warning)$/)
	{
		push @faults, map { "$_: $first{$_}, verify: $first{verify}" }
		  grep { $first{$_} !~ /^0?$/ } 'recall 1', 'all lists',
		  'conditions at recall 1', 'conditions in all lists', 'at once at recall 1', 'at once in all lists';
	}
	push @faults, "verify: $first{verify}" if $first{verify} =~ $clean;
	return @faults;
}

# One start of the server: a damage to each table's index.  Returns how many
# pages were damaged, and the faults.
sub meet_damages
{
	my ($number) = @_;
	my $npages = 0;
	my @faults;

	for my $table (@tables)
	{
		srand($number++);
		my ($bytes, $n) = damaged($table);
		restore_table($file{$table}[0], $sound{$table}[0]);
		restore_table($file{$table}[1], $bytes);
		$npages += $n;
	}
	$node->start;
	my $timed_out;
	my (undef, $out, $err) = $node->psql(
		'postgres',
		join('', "\\set VERBOSITY verbose\n",
			map {
				my ($kind) = /(.*)_/;
				my $dims = $kinds{$kind}{dims};
				"\\echo \@$_\n\\warn \@$_\nSELECT meet('$_', $dims);\n"
				  . "DELETE FROM $_ WHERE id % 5 = 2;\nVACUUM (INDEX_CLEANUP ON) $_;\n"
				  . "SELECT 'again: ' || try('SELECT count(*) FROM gpuvec_verify_index(''${_}_e'')'),"
				  . " 'query: ' || try('SELECT count(*) FROM (SELECT FROM $_ ORDER BY e <-> point(5, $dims) LIMIT 300) AS x');\n"
			} @tables),
		on_error_stop => 0,
		timeout => 600,
		timed_out => \$timed_out);
	my (undef, %said) = split /^\@(\w+)\n/m, $out // '';
	my (undef, %warned) = split /^(?:psql:\S*\s*)?\@(\w+)\n/m, $err // '';
	$number -= @tables;
	for my $table (@tables)
	{
		my $errors = join "\n",
		  map { /ERROR:  (\w{5}): (.*)/ ? "vacuum: $1 $2" : () } split /\n/, $warned{$table} // '';
		push @faults, map { "$number, $table: $_" }
		  faults(($said{$table} // '') =~ s/\|/\n/gr . "\n$errors");
		$number++;
	}
	push @faults, 'a statement has no end' if $timed_out;
	# one that waits for itself does not end otherwise
	$node->stop($timed_out ? 'immediate' : 'fast');
	return ($npages, @faults);
}

my $number = $ENV{GPUVEC_DAMAGE} // 1;
my $npages = 0;
my @faults;
while ($npages < $wanted && @faults < 20)
{
	my ($n, @found) = meet_damages($number);

	$npages += $n;
	$number += @tables;
	push @faults, @found;
}
is(join("\n", @faults), '', "$npages damaged pages");

no_crash($node);

done_testing();
