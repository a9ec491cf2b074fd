# A damaged index: queries, inserts and VACUUM say so or go on, and never take
# the server down; gpuvec_verify_index names what is wrong, and goes on.
#
# Bytes of the index file are changed while the server is stopped
# (GpuvecDamage.pm).  Damaged rotations, refine records and keys are in
# 045_damaged_records.pl.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDamage;
use PostgreSQL::Test::Utils;
use Test::More;

use constant {
	CONTENTS => 24,    # of a page, behind its header
	NO_BLOCK => 0xFFFFFFFF,

	# offsets in the metapage's contents
	META_MAGIC => 0,
	META_VERSION => 4,
	META_METRIC => 6,
	META_DIMS => 16,
	META_PQ_DIM => 20,
	META_NPARENTS => 28,
	META_SCALE => 36,
	META_STARTS => 52,
	META_CENTROIDS => 56,
	META_CODES => 60,
	META_DIRECTORY => 64,
	META_PENDING_HEAD => 184,
	META_PENDING_TAIL => 188,
	META_PENDING_SEQ => 192,
	META_DEPTHS => 208,
	META_TARGETS_FOR => 212,
	META_TARGETS => 216,

	# offsets in a directory entry
	ENTRY_BYTES => 28,
	ENTRY_NITEMS => 4,
	ENTRY_NDEAD => 8,
	ENTRY_PAGE => 20,
	ENTRY_SLOT => 24,

	# offsets in a slot, for 5 sub-quantizers
	SLOT_BYTES => 448,
	SLOTS_PER_PAGE => 18,
	SLOT_LIST => 0,
	SLOT_GEN => 4,
	SLOT_DEAD => 12,
	SLOT_PREV_PAGE => 20,
	SLOT_PREV_SLOT => 24,
	SLOT_TIDS => 32,
	SLOT_T => 32 + 192,
	SLOT_CODES => 32 + 320,

	# offsets in a pending page
	PENDING_NEXT_SEQ => 8,
	PENDING_NEXT => 16,
	PENDING_COUNT => 20,
	PENDING_TIDS => 24,
};

my @tables = qw(lists refined keyed pending);
my $node = new_damage_node();
$node->start;
create_vec($node);
$node->safe_psql(
	'postgres', q{
	SET client_min_messages = warning;
	CREATE TABLE lists (id int, v real[]);
	INSERT INTO lists SELECT i, vec(i) FROM generate_series(1, 2000) i;
	CREATE INDEX lists_v ON lists USING gpuivfpq (v)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0);
	CREATE TABLE refined AS SELECT * FROM lists;
	CREATE INDEX refined_v ON refined USING gpuivfpq (v)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0, refine = sq8);
	CREATE TABLE keyed AS SELECT id, v, 'n' || id % 9 AS name FROM lists;
	CREATE INDEX keyed_v ON keyed USING gpuivfpq (v, id, name)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0);
	CREATE TABLE pending (id int, v real[]);
	CREATE INDEX pending_v ON pending USING gpuivfpq (v);
	INSERT INTO pending SELECT i, vec(i) FROM generate_series(1, 4000) i;
});

begin_damages($node, @tables);

# Where something is in the file of table lists.
my $directory = get32(\$sound{lists}, CONTENTS + META_DIRECTORY);
my $centroids = get32(\$sound{lists}, CONTENTS + META_CENTROIDS);
my $starts = get32(\$sound{lists}, CONTENTS + META_STARTS);
my $codes = get32(\$sound{lists}, CONTENTS + META_CODES);
my $last_page = length($sound{lists}) / BLCKSZ - 1;

sub entry
{
	my ($list) = @_;
	return $directory * BLCKSZ + CONTENTS + $list * ENTRY_BYTES;
}

sub slot
{
	my ($page, $slot) = @_;
	return $page * BLCKSZ + CONTENTS + $slot * SLOT_BYTES;
}

# The newest block of a list: its page and its offset.
sub head
{
	my ($list) = @_;
	my $page = get32(\$sound{lists}, entry($list) + ENTRY_PAGE);
	my $slot = get32(\$sound{lists}, entry($list) + ENTRY_SLOT);
	return ($page, slot($page, $slot));
}

sub damage
{
	return damage_index('lists', @_);
}

my $rows = qr/^500$/m;
my $bad_lists = damaged_at('\d+');

# ---- sound

damage('nothing', $rows, qr/^\s*$/, sub { });

# ---- metapage

damage(
	'bad magic', damaged_at(0), found(0, 'bad magic number 0x12345678'),
	sub { put32($_[0], CONTENTS + META_MAGIC, 0x12345678) });
damage(
	'other version', qr/ERROR:  55000: .*format version 9/,
	found(0, 'format version 9'),
	sub { substr(${ $_[0] }, CONTENTS + META_VERSION, 2) = pack('S', 9) });
damage(
	'pq_dim out of range', damaged_at(0),
	found(0, 'its parameters are out of range'),
	sub { put32($_[0], CONTENTS + META_PQ_DIM, 60000) });
damage(
	'directory beyond the end', damaged_at(4711),
	found(0, 'arrays and directory are not in their places'),
	sub { put32($_[0], CONTENTS + META_DIRECTORY, 4711) });
damage(
	'no such metric', damaged_at(0), found(0, 'metric 77, the operator class has 1'),
	sub { substr(${ $_[0] }, CONTENTS + META_METRIC, 1) = chr(77) });
damage(
	'more depths than there are', damaged_at(0),
	found(0, 'its parameters are out of range'),
	sub {
		put32($_[0], CONTENTS + META_DEPTHS, 40);
		put32($_[0], CONTENTS + META_TARGETS + 4 * $_, 1 + $_) for 0 .. 83;
	});
damage(
	'targets below zero', damaged_at(0),
	found(0, 'its parameters are out of range'),
	sub { put32($_[0], CONTENTS + META_TARGETS + 4 * $_, -5) for 0 .. 13 });
damage(
	'targets for nothing', damaged_at(0),
	found(0, 'its parameters are out of range'),
	sub { put32($_[0], CONTENTS + META_TARGETS_FOR, 7) });
damage(
	'metapage zeroed', damaged_at(0), found(0, 'it is not a metapage'),
	sub { substr(${ $_[0] }, 0, BLCKSZ) = "\0" x BLCKSZ });

# ---- arrays and directory

damage(
	'centroids zeroed', damaged_at($centroids),
	found($centroids, 'it does not hold centroids'),
	sub { substr(${ $_[0] }, $centroids * BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage(
	'centroid not finite', qr//,
	found($centroids, 'a value of centroids is not finite'),
	sub { put32($_[0], $centroids * BLCKSZ + CONTENTS, 0x7FC00000) });
damage(
	'parents without lists', qr/XX002.*parents have \d+ lists of 4/,
	found($starts, "the parents' lists do not follow each other"),
	sub {
		my $nparents = get32(\$sound{lists}, CONTENTS + META_NPARENTS);
		put32($_[0], $starts * BLCKSZ + CONTENTS + 4 * $nparents, 77);
	});
damage(
	'codes zeroed', qr//,
	found($codes, "it does not hold the centroids' codes"),
	sub { substr(${ $_[0] }, $codes * BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage(
	'directory zeroed',
	damaged_at($directory),
	found($directory, 'it is not a page of the directory'),
	sub { substr(${ $_[0] }, $directory * BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage(
	'too many copies', qr/XX002/, qr/error\|slot \d+ does not hold block/,
	sub { put32($_[0], entry(1) + ENTRY_NITEMS, 0xFFFFFFF0) });
damage(
	'newest block beyond the end', damaged_at(123456),
	found(123456, 'slot \d+ does not hold block \d+'),
	sub { put32($_[0], entry(1) + ENTRY_PAGE, 123456) });
damage(
	'no newest block', damaged_at($directory),
	found($directory, 'the chain ends before block'),
	sub { put32($_[0], entry(2) + ENTRY_PAGE, NO_BLOCK) });
damage(
	'slot out of range', qr/XX002/, qr/error\|slot 99 does not hold block/,
	sub { put32($_[0], entry(2) + ENTRY_SLOT, 99) });
damage(
	'dead copies not counted', $rows,
	found($directory, '0 copies are dead, the directory says 5'),
	sub { put32($_[0], entry(0) + ENTRY_NDEAD, 5) });
damage(
	'more copies dead than there are', damaged_at($directory), qr/error/,
	sub { put32($_[0], entry(0) + ENTRY_NDEAD, 0x7FFFFFF0) });

# ---- chains

my ($head_page, $head) = head(0);
my ($other_page, $other) = head(1);

damage(
	'chain cut', damaged_at($directory),
	found($directory, 'the chain ends before block'),
	sub { put32($_[0], $head + SLOT_PREV_PAGE, NO_BLOCK) },
	sub {
		like($_[0]{verify}, qr/^-\|error\|row \(\d+,\d+\) of table "lists" is not in the index/m,
			'chain cut: rows behind the cut are missing');
	});
damage(
	'chain leads back', damaged_at($head_page),
	found($head_page, 'slot \d+ does not hold block'),
	sub {
		put32($_[0], $head + SLOT_PREV_PAGE, $head_page);
		substr(${ $_[0] }, $head + SLOT_PREV_SLOT, 2) =
		  pack('S', get32(\$sound{lists}, entry(0) + ENTRY_SLOT));
	});
damage(
	'chain leads into another list', damaged_at($other_page),
	found($other_page, 'slot \d+ does not hold block'),
	sub {
		put32($_[0], $head + SLOT_PREV_PAGE, $other_page);
		substr(${ $_[0] }, $head + SLOT_PREV_SLOT, 2) =
		  pack('S', get32(\$sound{lists}, entry(1) + ENTRY_SLOT));
	});
damage(
	'wrong owner', damaged_at($head_page),
	found($head_page, 'slot \d+ does not hold block'),
	sub { put32($_[0], $head + SLOT_LIST, 3) });
damage(
	'owner out of range', damaged_at($head_page),
	found($head_page, 'slot \d+ belongs to list 77 of 4'),
	sub { put32($_[0], $head + SLOT_LIST, 77) });
damage(
	'two damages', qr/XX002/,
	qr/(?=.*T of copy 0 of block \d+ is not finite).*slot \d+ does not hold block/s,
	sub {
		put32($_[0], $head + SLOT_GEN, 3);
		put32($_[0], $other + SLOT_T, 0x7FC00000);
	});

# ---- pages

damage(
	'slab page zeroed', damaged_at($head_page),
	found($head_page, 'slot \d+ does not hold block'),
	sub { substr(${ $_[0] }, $head_page * BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage(
	'page header', qr/ERROR:  XX001: invalid page in block $head_page/,
	found($head_page, 'it cannot be read: invalid page in block'),
	sub {
		substr(${ $_[0] }, $head_page * BLCKSZ + 12, 8) = "\xFF" x 8;
	});
# the next record of the page would clear the hole
damage(
	'page with a hole', damaged_at($head_page),
	found($head_page, 'slot \d+ does not hold block'),
	sub { substr(${ $_[0] }, $head_page * BLCKSZ + 12, 2) = pack('S', CONTENTS) });
# a session that locks the page again waits for itself, and cannot be canceled
damage(
	'newest block on the page of its entry', damaged_at($directory),
	found($directory, 'slot \d+ does not hold block'),
	sub { put32($_[0], entry($_) + ENTRY_PAGE, $directory) for 0 .. 3 },
	sub {
		like($_[0]{insert}, $bad_lists, 'newest block on the page of its entry: insert');
	});
damage(
	'file cut short', qr/XX002/, qr/error\|slot \d+ does not hold block/,
	sub { substr(${ $_[0] }, $last_page * BLCKSZ) = '' });

# ---- copies

damage(
	'code out of range', damaged_at($head_page),
	found($head_page, 'code of copy 0 of block \d+ is out of range'),
	sub {
		my $at = $head + SLOT_CODES + 2 * 32;
		substr(${ $_[0] }, $at, 1) =
		  chr(ord(substr(${ $_[0] }, $at, 1)) | 0xF0);
	});
damage(
	'T not finite', qr//,
	found($head_page, 'T of copy 0 of block \d+ is not finite'),
	sub { put32($_[0], $head + SLOT_T, 0x7F800000) });
damage(
	'TID of no row', qr//,
	found($head_page, 'copy 0 of block \d+ points to \(\d+,0\), which is not in the table'),
	sub { substr(${ $_[0] }, $head + SLOT_TIDS + 4, 2) = "\0\0" });
damage(
	'TID beyond the table', qr//,
	found($head_page, 'copy 0 of block \d+ points to \(65535,\d+\), which is not in the table'),
	sub { substr(${ $_[0] }, $head + SLOT_TIDS, 4) = pack('SS', 0, 65535) });
damage(
	'copy flagged dead', $rows,
	found($directory, '1 copies are dead, the directory says 0'),
	sub { put32($_[0], $head + SLOT_DEAD, 1) });
damage(
	'row twice', $rows,
	qr/^-\|warning\|row \(\d+,\d+\) of table "lists" is in the index 2 times/m,
	sub {
		substr(${ $_[0] }, $head + SLOT_TIDS, 6) =
		  substr(${ $_[0] }, $other + SLOT_TIDS, 6);
	},
	sub {
		like($_[0]{verify}, qr/^-\|error\|row .* is not in the index/m,
			'row twice: the row in whose place it is is missing');
	});

# ---- what a crash may leave: a slot of another generation

my $free = slot($last_page, SLOTS_PER_PAGE - 1);
is(get32(\$sound{lists}, $free + SLOT_LIST), NO_BLOCK, 'last slot is free');
damage(
	'slot left over', $rows,
	qr/^$last_page\|warning\|slot 17 is left over/m,
	sub {
		put32($_[0], $free + SLOT_LIST, 2);
		put32($_[0], $free + SLOT_GEN, 9);
	},
	sub { like($_[0]{again}, qr/^\s*$/, 'slot left over: VACUUM frees it') });
damage(
	'slot in no chain', $rows,
	found($last_page, 'slot 17 says that it holds block 500 of its list'),
	sub {
		put32($_[0], $free + SLOT_LIST, 2);
		put32($_[0], $free + 8, 500);
	});

# ---- the pending list

my $first = get32(\$sound{pending}, CONTENTS + META_PENDING_HEAD);
my $pending = $first * BLCKSZ + CONTENTS;

sub damage_pending
{
	return damage_index('pending', @_);
}

my $bad_pending = qr/ERROR:  XX002: index "pending_v" is damaged at block/;

damage_pending('pending: nothing', $rows, qr/^\s*$/, sub { });
damage_pending(
	'pending: other dimensions', qr/ERROR:  22000: expected 162 dimensions, not 9/,
	qr/^-\|error\|row \(0,1\) of table "pending" has 9 dimensions, the index 162/m,
	sub { put32($_[0], CONTENTS + META_DIMS, 162) });
damage_pending(
	'pending: tail is the metapage', qr//,
	found(0, 'the pending list does not come by its tail, block 0'),
	sub { put32($_[0], CONTENTS + META_PENDING_TAIL, 0) },
	sub { like($_[0]{insert}, $bad_pending, 'pending: tail is the metapage: insert') });
damage_pending(
	'pending: head beyond the end', $bad_pending,
	found(4711, 'it is not the next page of the pending list'),
	sub { put32($_[0], CONTENTS + META_PENDING_HEAD, 4711) });
damage_pending(
	'pending: wrong sequence number', $bad_pending,
	qr/error\|it is not the next page of the pending list/,
	sub { put32($_[0], $pending + PENDING_NEXT_SEQ, 9) });
damage_pending(
	'pending: list leads back', qr//,
	found($first, "the pending list leads back to block $first"),
	sub {
		put32($_[0], $pending + PENDING_NEXT_SEQ, 1);
		put32($_[0], $pending + PENDING_NEXT, $first);
	});
damage_pending(
	'pending: number of the tail',
	$bad_pending, qr/error\|it is not the next page of the pending list/,
	sub {
		my $tail = get32(\$sound{pending}, CONTENTS + META_PENDING_TAIL) * BLCKSZ + CONTENTS;
		put32($_[0], $tail + 4, 0x80000000);
	});
damage_pending(
	'pending: list cut', qr//,
	found(0, 'the pending list does not come by its tail'),
	sub { put32($_[0], $pending + PENDING_NEXT, NO_BLOCK) });
damage_pending(
	'pending: too many entries', $bad_pending,
	found($first, 'it is not the next page of the pending list'),
	sub { put32($_[0], $pending + PENDING_COUNT, 60000) });
damage_pending(
	'pending: page zeroed', $bad_pending,
	found($first, 'it is not the next page of the pending list'),
	sub { substr(${ $_[0] }, $first * BLCKSZ, BLCKSZ) = "\0" x BLCKSZ });
damage_pending(
	'pending: TID of no row', qr//,
	found($first, 'pending entry 1 points to \(\d+,0\), which is not in the table'),
	sub { substr(${ $_[0] }, $pending + PENDING_TIDS + 6 + 4, 2) = "\0\0" });
# in a segment that the table's file does not have: not even asked for
damage_pending(
	'pending: TID far beyond the table',
	qr/points to row \(655359,\d+\), which table "pending" cannot have/,
	found($first, 'pending entry 1 points to \(655359,\d+\), which is not in the table'),
	sub { substr(${ $_[0] }, $pending + PENDING_TIDS + 6, 4) = pack('SS', 9, 65535) });

# a page of pending rows where there is none, with three that lists have
sub add_pending
{
	my ($bytes, $next) = @_;
	my $page = length($$bytes) / BLCKSZ;
	$$bytes .= substr($sound{pending}, $first * BLCKSZ, BLCKSZ);
	put32($bytes, $page * BLCKSZ + CONTENTS + PENDING_NEXT, $next);
	put32($bytes, $page * BLCKSZ + CONTENTS + PENDING_COUNT, 3);
	put32($bytes, CONTENTS + $_, $page) for META_PENDING_HEAD, META_PENDING_TAIL;
	substr($$bytes, CONTENTS + META_PENDING_SEQ, 8) =
	  substr($sound{pending}, CONTENTS + META_PENDING_SEQ, 8);
}

my $twice = qr/-\|warning\|row \(\d+,\d+\) of table "lists" is in the index 2 times\n/;
damage_index(
	'lists', 'pending: rows of lists', qr//, qr/^\s*(?:$twice){3}\s*$/,
	sub { add_pending($_[0], NO_BLOCK) });
# There is no way to the list's end: the damage found until then is told.
damage_index(
	'lists', 'pending: rows of lists, and cut', qr/index "lists_v" is damaged at block/,
	qr/error\|it is not the next page of the pending list\n(?:.*\n)*?(?:$twice){3}/,
	sub { add_pending($_[0], 1) });

# ---- anything anywhere: only the server's life matters

srand(20240607);
my $rounds = long_test() ? 200 : 10;
my $alive = 0;
for my $round (1 .. $rounds)
{
	my $table = (qw(lists refined keyed))[ $round % 3 ];
	my $bytes = $sound{$table};
	for (1 .. 1 + int(rand(20)))
	{
		# half of it where structure is
		my $at =
		  rand() < 0.5
		  ? int(rand(length($bytes) - 4))
		  : (rand() < 0.5 ? CONTENTS + int(rand(96))
			: entry(int(rand(4))) + int(rand(24)));
		substr($bytes, $at, 1) = chr(int(rand(256)));
	}
	damage_later($table, $bytes, sub { $alive += $_[0]{alive} });
}
meet_waiting();
is($alive, $rounds, 'the server lives through random damage');

# ---- REINDEX repairs

$node->start;
for my $database (map { "damaged_$_" } 1, 2)
{
	$node->safe_psql($database,
		'REINDEX INDEX lists_v; REINDEX INDEX refined_v; REINDEX INDEX keyed_v; REINDEX INDEX pending_v');
	is( $node->safe_psql(
			$database, q{
		SELECT count(*) FROM gpuvec_verify_index('lists_v')
		UNION ALL SELECT count(*) FROM gpuvec_verify_index('refined_v')
		UNION ALL SELECT count(*) FROM gpuvec_verify_index('keyed_v')
		UNION ALL SELECT count(*) FROM gpuvec_verify_index('pending_v')}),
		"0\n0\n0\n0",
		'REINDEX repairs');
}
$node->stop;

my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|terminated by signal/, 'nothing crashed');

done_testing();
