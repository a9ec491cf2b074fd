# Damaged indexes: queries, inserts and VACUUM say so or go on, and never take the server
# down; gpuvec_verify_index names what is wrong, and goes on.  Bytes of index files are
# changed while the server is stopped (GpuvecDamage.pm); random_damage.pl changes any.
# And gpuvec_verify_index(index, mirror => true) finds what of gpuvecd's mirror is not
# as the pages are.

use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Gpuvec;
use GpuvecDamage;
use GpuvecRemote;
use IO::Socket::UNIX;
use Socket qw(SOCK_STREAM);

use constant {
	CONTENTS => 24,    # of a page, behind its header
	NO_BLOCK => 0xFFFFFFFF,

	# offsets in the metapage's contents
	META_MAGIC => 0,
	META_METRIC => 6,
	META_DIMS => 16,
	META_PQ_DIM => 20,
	META_NPARENTS => 28,
	META_STARTS => 52,
	META_CENTROIDS => 56,
	META_CODES => 60,
	META_DIRECTORY => 64,
	META_PENDING_HEAD => 184,
	META_PENDING_TAIL => 188,
	META_PENDING_SEQ => 192,
	META_REFINE_HEAD => 204,
	META_DEPTHS => 208,
	META_TARGETS_FOR => 212,
	META_TARGETS => 216,
	META_KEY_KINDS => 552,
	META_ROTATED => 568,
	META_ROTATION => 572,

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
	SLOT_TIDS => 32,
	SLOT_T => 32 + 192,
	SLOT_CODES => 32 + 320,

	# offsets in a pending page
	PENDING_NEXT_SEQ => 8,
	PENDING_NEXT => 16,
	PENDING_COUNT => 20,
	PENDING_TIDS => 24,

	# offsets in a refine page, for 9 dimensions, and of addresses in a slot
	REFINE_NEXT => 0,
	REFINE_FIRST => 8,
	REFINE_BYTES => 28,
	REFINE_MIN => 0,
	REFINE_ERROR => 8,
	REFINE_TID => 12,
	REFINED_SLOT_BYTES => 640,
	SLOT_ADDRESSES => 32 + 320,

	# offsets in a slot with keys of 4 bytes, an ordered one and a hash
	KEYED_SLOT_BYTES => 768,
	SLOT_HEADS => 32 + 320,
	HEAD_BYTES => 24,
	HEAD_NULLS => 16,
	HEAD_UNUSED => 20,
	SLOT_IMAGES => 32 + 320 + 2 * 24,
};

my @tables = qw(lists refined keyed pending turned);
my $node = new_damage_node();
$node->start;
# (the statements that meet damages ask for vec(17))
$node->safe_psql('postgres', q{
	SET client_min_messages = warning;
	CREATE EXTENSION gpuvec;
	CREATE FUNCTION vec(i int) RETURNS real[] LANGUAGE sql IMMUTABLE AS
		$$ SELECT array_agg(sin(i * (j + 0.3))::real ORDER BY j) FROM generate_series(1, 9) j $$;
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
	CREATE TABLE turned AS SELECT * FROM lists;
	CREATE INDEX turned_v ON turned USING gpuivfpq (v)
		WITH (lists = 4, pq_dim = 5, probes = 4, spill = 0, rotate);
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

# Changes of an index's bytes: a number, bytes, a page of zeros.
sub put
{
	my ($at, $value) = @_;
	return sub { put32($_[0], $at, $value) };
}

sub put_bytes
{
	my ($at, $bytes) = @_;
	return sub { substr(${ $_[0] }, $at, length $bytes) = $bytes };
}

sub zero_page
{
	my ($page) = @_;
	return put_bytes($page * BLCKSZ, "\0" x BLCKSZ);
}

my $rows = qr/^500$/m;
my $bad_lists = damaged_at('\d+');

# ---- sound

damage_index($_, "$_: nothing", $rows, qr/^\s*$/, sub { }) for qw(lists pending turned refined);

# ---- metapage

damage_index('lists', 'bad magic', damaged_at(0), found(0, 'bad magic number 0x12345678'),
	put(CONTENTS + META_MAGIC, 0x12345678));
# what one number or another of a metapage may be
my @out_of_range = (
	[ 'lists', 'sub-quantizers', put(CONTENTS + META_PQ_DIM, 60000) ],
	[ 'lists', 'depths', sub {
			put32($_[0], CONTENTS + META_DEPTHS, 40);
			put32($_[0], CONTENTS + META_TARGETS + 4 * $_, 1 + $_) for 0 .. 83;
		} ],
	[ 'lists', 'targets', sub { put32($_[0], CONTENTS + META_TARGETS + 4 * $_, -5) for 0 .. 13 } ],
	[ 'lists', 'what targets are for', put(CONTENTS + META_TARGETS_FOR, 7) ],
	[ 'turned', 'rotated', put(CONTENTS + META_ROTATED, 2) ],
	[ 'keyed', 'kinds of keys', put_bytes(CONTENTS + META_KEY_KINDS, chr(9)) ]);
for (@out_of_range)
{
	my ($table, $what, $change) = @$_;

	damage_index($table, "out of range: $what", damaged_at(0, $table), found(0, 'its parameters are out of range'), $change);
}
damage_index('lists', 'directory beyond the end', damaged_at(4711),
	found(0, 'arrays and directory are not in their places'), put(CONTENTS + META_DIRECTORY, 4711));
damage_index('lists', 'no such metric', damaged_at(0), found(0, 'metric is 77, but the operator class has 1'),
	put_bytes(CONTENTS + META_METRIC, chr(77)));
damage_index('lists', 'metapage zeroed', damaged_at(0), found(0, 'it is not a metapage'), zero_page(0));

# ---- arrays and directory

damage_index('lists', 'centroids zeroed', damaged_at($centroids),
	found($centroids, 'it does not hold centroids'), zero_page($centroids));
damage_index('lists', 'centroid not finite', qr//,
	found($centroids, 'a value of centroids is not finite'),
	put($centroids * BLCKSZ + CONTENTS, 0x7FC00000));
damage_index('lists', 'parents without lists', qr/XX002.*parents have \d+ lists of 4/,
	found($starts, "the parents' lists do not follow each other"), sub {
		my $nparents = get32(\$sound{lists}, CONTENTS + META_NPARENTS);
		put32($_[0], $starts * BLCKSZ + CONTENTS + 4 * $nparents, 77);
	});
damage_index('lists', 'codes zeroed', qr//, found($codes, "it does not hold the centroids' codes"),
	zero_page($codes));
damage_index('lists', 'directory zeroed', damaged_at($directory),
	found($directory, 'it is not a page of the directory'), zero_page($directory));
damage_index('lists', 'too many postings', qr/XX002/, qr/error\|slot \d+ does not hold block/,
	put(entry(1) + ENTRY_NITEMS, 0xFFFFFFF0));
damage_index('lists', 'newest block beyond the end', damaged_at(123456),
	found(123456, 'slot \d+ does not hold block \d+'), put(entry(1) + ENTRY_PAGE, 123456));
damage_index('lists', 'slot out of range', qr/XX002/, qr/error\|slot 99 does not hold block/,
	put(entry(2) + ENTRY_SLOT, 99));
damage_index('lists', 'dead postings not counted', $rows,
	found($directory, '0 postings are dead, but the directory counts 5'), put(entry(0) + ENTRY_NDEAD, 5));
damage_index('lists', 'more postings dead than there are', damaged_at($directory), qr/error/,
	put(entry(0) + ENTRY_NDEAD, 0x7FFFFFF0));

# ---- chains

my ($head_page, $head) = head(0);
my (undef, $other) = head(1);

damage_index('lists', 'chain cut', damaged_at($directory),
	found($directory, 'the chain ends before block'), put($head + SLOT_PREV_PAGE, NO_BLOCK), sub {
		like($_[0]{verify}, qr/^-\|error\|row \(\d+,\d+\) of table "lists" is not in the index/m,
			'chain cut: rows behind the cut are missing');
	});
damage_index('lists', 'wrong owner', damaged_at($head_page),
	found($head_page, 'slot \d+ does not hold block'), put($head + SLOT_LIST, 3));
damage_index('lists', 'owner out of range', damaged_at($head_page),
	found($head_page, 'slot \d+ belongs to list 77 of 4'), put($head + SLOT_LIST, 77));
damage_index('lists', 'two damages', qr/XX002/,
	qr/(?=.*T of posting 0 of block \d+ is not finite).*slot \d+ does not hold block/s, sub {
		put32($_[0], $head + SLOT_GEN, 3);
		put32($_[0], $other + SLOT_T, 0x7FC00000);
	});

# ---- pages

damage_index('lists', 'page header', qr/ERROR:  XX001: invalid page in block $head_page/,
	found($head_page, 'could not read the block: invalid page in block'),
	put_bytes($head_page * BLCKSZ + 12, "\xFF" x 8));
# the next record of the page would clear the hole
damage_index('lists', 'page with a hole', damaged_at($head_page),
	found($head_page, 'slot \d+ does not hold block'),
	put_bytes($head_page * BLCKSZ + 12, pack('S', CONTENTS)));
# a session that locks the page again waits for itself, and cannot be canceled
damage_index('lists', 'newest block on the page of its entry', damaged_at($directory),
	found($directory, 'slot \d+ does not hold block'),
	sub { put32($_[0], entry($_) + ENTRY_PAGE, $directory) for 0 .. 3 }, sub {
		like($_[0]{insert}, $bad_lists, 'newest block on the page of its entry: insert');
	});

# ---- postings

damage_index('lists', 'code out of range', damaged_at($head_page),
	found($head_page, 'code of posting 0 of block \d+ is out of range'), sub {
		my $at = $head + SLOT_CODES + 2 * 32;
		substr(${ $_[0] }, $at, 1) =
		  chr(ord(substr(${ $_[0] }, $at, 1)) | 0xF0);
	});
damage_index('lists', 'T not finite', qr//, found($head_page, 'T of posting 0 of block \d+ is not finite'),
	put($head + SLOT_T, 0x7F800000));
damage_index('lists', 'TID of no row', qr//,
	found($head_page, 'posting 0 of block \d+ points to \(\d+,0\), which is not in the table'),
	put_bytes($head + SLOT_TIDS + 4, "\0\0"));
damage_index('lists', 'TID beyond the table', qr//,
	found($head_page, 'posting 0 of block \d+ points to \(65535,\d+\), which is not in the table'),
	put_bytes($head + SLOT_TIDS, pack('SS', 0, 65535)));
damage_index('lists', 'posting flagged dead', $rows,
	found($directory, '1 postings are dead, but the directory counts 0'), put($head + SLOT_DEAD, 1));
damage_index('lists', 'row twice', $rows,
	qr/^-\|warning\|row \(\d+,\d+\) of table "lists" is in the index 2 times/m, sub {
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
damage_index('lists', 'slot left over', $rows, qr/^$last_page\|warning\|slot 17 is left over/m, sub {
		put32($_[0], $free + SLOT_LIST, 2);
		put32($_[0], $free + SLOT_GEN, 9);
	},
	sub { like($_[0]{again}, qr/^\s*$/, 'slot left over: VACUUM frees it') });
damage_index('lists', 'slot in no chain', $rows,
	found($last_page, 'slot 17 says that it holds block 500 of its list'), sub {
		put32($_[0], $free + SLOT_LIST, 2);
		put32($_[0], $free + 8, 500);
	});

# ---- the pending list

my $first = get32(\$sound{pending}, CONTENTS + META_PENDING_HEAD);
my $pending = $first * BLCKSZ + CONTENTS;

my $bad_pending = qr/ERROR:  XX002: index "pending_v" is damaged at block/;

damage_index('pending', 'pending: other dimensions', qr/ERROR:  22000: expected 162 dimensions, not 9/,
	qr/^-\|error\|row \(0,1\) of table "pending" has 9 dimensions, but the index has 162/m,
	put(CONTENTS + META_DIMS, 162));
damage_index('pending', 'pending: tail is the metapage', qr//,
	found(0, 'the pending list does not reach its tail, block 0'),
	put(CONTENTS + META_PENDING_TAIL, 0),
	sub { like($_[0]{insert}, $bad_pending, 'pending: tail is the metapage: insert') });
damage_index('pending', 'pending: head beyond the end', $bad_pending,
	found(4711, 'it is not the next page of the pending list'),
	put(CONTENTS + META_PENDING_HEAD, 4711));
damage_index('pending', 'pending: list leads back', qr//,
	found($first, "the pending list has a cycle at block $first"), sub {
		put32($_[0], $pending + PENDING_NEXT_SEQ, 1);
		put32($_[0], $pending + PENDING_NEXT, $first);
	});
damage_index('pending', 'pending: too many entries', $bad_pending,
	found($first, 'it is not the next page of the pending list'), put($pending + PENDING_COUNT, 60000));
damage_index('pending', 'pending: TID of no row', qr//,
	found($first, 'pending entry 1 points to \(\d+,0\), which is not in the table'),
	put_bytes($pending + PENDING_TIDS + 6 + 4, "\0\0"));
# in a segment that the table's file does not have: not even asked for
damage_index('pending', 'pending: TID far beyond the table',
	qr/points to row \(655359,\d+\), which cannot exist in table "pending"/,
	found($first, 'pending entry 1 points to \(655359,\d+\), which is not in the table'),
	put_bytes($pending + PENDING_TIDS + 6, pack('SS', 9, 65535)));

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
damage_index('lists', 'pending: rows of lists', qr//, qr/^\s*(?:$twice){3}\s*$/,
	sub { add_pending($_[0], NO_BLOCK) });
# There is no way to the list's end: the damage found until then is told.
damage_index('lists', 'pending: rows of lists, and cut', qr/index "lists_v" is damaged at block/,
	qr/error\|it is not the next page of the pending list\n(?:.*\n)*?(?:$twice){3}/,
	sub { add_pending($_[0], 1) });

# ---- rotation

my $rotation = get32(\$sound{turned}, CONTENTS + META_ROTATION);

damage_index('turned', 'rotation zeroed', damaged_at($rotation, 'turned'),
	found($rotation, 'it does not hold the rotation'), zero_page($rotation));
damage_index('turned', 'rotation changed', $rows, found($rotation, 'the rotation is not orthogonal'),
	put_bytes($rotation * BLCKSZ + CONTENTS + 40, pack('f', 0.75)));
damage_index('turned', 'rotation not a number', qr//,
	found($rotation, 'a value of the rotation is not finite'),
	put($rotation * BLCKSZ + CONTENTS + 40, 0x7FC00000));
damage_index('turned', 'rotation elsewhere', qr//,
	found(0, 'arrays and directory are not in their places'), put(CONTENTS + META_ROTATION, 4711));

# ---- refine records: pages 1 and on, the last of which has free slots

my $refine_head = get32(\$sound{refined}, CONTENTS + META_REFINE_HEAD);
my $record = BLCKSZ + CONTENTS + REFINE_FIRST;
my $refined_directory = get32(\$sound{refined}, CONTENTS + META_DIRECTORY);
my $refined_entry = $refined_directory * BLCKSZ + CONTENTS;
my $refined_page = get32(\$sound{refined}, $refined_entry + ENTRY_PAGE);
my $addresses = $refined_page * BLCKSZ + CONTENTS + SLOT_ADDRESSES +
  REFINED_SLOT_BYTES * get32(\$sound{refined}, $refined_entry + ENTRY_SLOT);
my $bad_refine = damaged_at('\d+', 'refined');
my $no_record =
  qr/^-\|error\|row \(\d+,\d+\) of table "refined" is in the index without its refine record/m;

damage_index('refined', 'refine: page zeroed', damaged_at(1, 'refined'), $no_record, zero_page(1));
damage_index('refined', 'refine: free slot that is used', $rows,
	qr/(?=.*$no_record).*^1\|error\|290 refine records are in use, but the page counts 291/ms,
	put_bytes($record + REFINE_TID + 4, "\0\0"));
damage_index('refined', 'refine: record of another row', $rows, $no_record, sub {
		substr(${ $_[0] }, $record + REFINE_TID, 6) =
		  substr(${ $_[0] }, $record + REFINE_BYTES + REFINE_TID, 6);
	});
damage_index('refined', 'refine: TID beyond the table', qr//,
	found(1, 'refine record 1 belongs to \(65535,\d+\), which is not in the table'),
	put_bytes($record + REFINE_TID, pack('SS', 0, 65535)));
damage_index('refined', 'refine: numbers of no row', qr//,
	found(1, 'refine record 1 does not bound row \(0,\d+\) of table "refined"'),
	put($record + REFINE_MIN, unpack('L', pack('f', 3))));
damage_index('refined', 'refine: error is no number', $rows,
	found(1, 'values of refine record 1 are out of range'), put($record + REFINE_ERROR, 0x7FC00000));
damage_index('refined', 'refine: address of no slot', $bad_refine,
	found($refined_page, 'posting 0 of block \d+ points to refine record \(\d+,999\), which cannot exist'),
	put_bytes($addresses + 4, pack('S', 999)));
damage_index('refined', 'refine: address beyond the end', damaged_at(4711, 'refined'),
	found($refined_page, 'posting 0 of block \d+ points to refine record \(4711,\d+\), which cannot exist'),
	put_bytes($addresses, pack('SS', 0, 4711)));
damage_index('refined', 'refine: chain of full pages', $rows,
	found(1, 'it is not the next refine page with free slots'),
	put(CONTENTS + META_REFINE_HEAD, 1),
	sub { like($_[0]{insert}, damaged_at(1, 'refined'), 'refine: chain of full pages: insert') });
damage_index('refined', 'refine: chain leads in a circle', $rows,
	found($refine_head, 'it is not the next refine page with free slots'), sub {
		put32($_[0], $refine_head * BLCKSZ + CONTENTS + REFINE_NEXT, $refine_head);
	});

# ---- keys

my $keyed_entry = get32(\$sound{keyed}, CONTENTS + META_DIRECTORY) * BLCKSZ + CONTENTS;
my $keyed_page = get32(\$sound{keyed}, $keyed_entry + ENTRY_PAGE);
my $keyed = $keyed_page * BLCKSZ + CONTENTS
  + get32(\$sound{keyed}, $keyed_entry + ENTRY_SLOT) * KEYED_SLOT_BYTES;

my $other_keys = qr/^-\|error\|row \(\d+,\d+\) of table "keyed" is in the index with other keys/m;

damage_index('keyed', 'keys: nothing', $rows, qr/^\s*$/, sub { },
	sub { like($_[0]{conditions}, qr/^111$/m, 'keys: nothing: conditions') });
damage_index('keyed', 'keys: nearly all are dead', qr//, qr/error/, sub {
		for my $list (0 .. 3)
		{
			my $at = $keyed_entry + $list * ENTRY_BYTES;
			put32($_[0], $at + ENTRY_NDEAD, get32($_[0], $at + ENTRY_NITEMS) - 5);
		}
	},
	sub { like($_[0]{conditions}, qr/^111$/m, 'keys: nearly all are dead: conditions') });
damage_index('keyed', 'keys: other than columns', qr//,
	found(0, 'its keys are not those of its columns'), put_bytes(CONTENTS + META_KEY_KINDS, "\2\1"),
	sub {
		like($_[0]{$_}, damaged_at(0, 'keyed'), "keys: other than columns: $_") for qw(insert conditions);
	});
# the least bit of an id: the head may still tell of it
damage_index('keyed', 'keys: image of another value', $rows, $other_keys, sub {
		my $at = $keyed + SLOT_IMAGES;
		put32($_[0], $at, get32($_[0], $at) ^ 1);
	});
damage_index('keyed', 'keys: hash of another value', $rows, $other_keys, sub {
		# one of which the head has no bit
		my $bits = unpack('Q', substr(${ $_[0] }, $keyed + SLOT_HEADS + HEAD_BYTES, 8));
		my ($free) = grep { !($bits >> $_ & 1) } 0 .. 63;
		put32($_[0], $keyed + SLOT_IMAGES + 4 * 32, $free);
	},
	sub {
		like($_[0]{verify}, qr/error\|the header of key 2 of block \d+ does not cover posting 0/,
			'keys: hash of another value: head');
	});
damage_index('keyed', 'keys: head too narrow', $rows,
	found($keyed_page, 'the header of key 1 of block \d+ does not cover posting \d+'),
	put($keyed + SLOT_HEADS, get32(\$sound{keyed}, $keyed + SLOT_HEADS) + 1));
damage_index('keyed', 'keys: NULL with a value', $rows,
	found($keyed_page, 'key 1 of posting 0 of block \d+ is NULL and has a value'),
	put($keyed + SLOT_HEADS + HEAD_NULLS, 1),
	sub { like($_[0]{verify}, $other_keys, 'keys: NULL with a value: row') });
damage_index('keyed', 'keys: head with what does not belong there', $rows,
	found($keyed_page, 'the header of key 2 of block \d+ is out of range'),
	put($keyed + SLOT_HEADS + HEAD_BYTES + HEAD_UNUSED, 1));

meet_waiting();

# ---- REINDEX repairs

$node->start;
for my $database (map { "damaged_$_" } 1, 2)
{
	$node->safe_psql($database, join '; ', map { "REINDEX INDEX ${_}_v" } @tables);
	is($node->safe_psql($database, join '; ', map { "SELECT * FROM gpuvec_verify_index('${_}_v')" } @tables),
		'', 'REINDEX repairs');
}
$node->stop;
no_crash($node);

# ---- gpuvecd's mirror: whatever part of a posting is not as on pages is found, and
# nothing is said of mirrors that are only behind

# gv_protocol.h
my $MAGIC = 0x43507667;
my ($VERSION) = slurp_file("$FindBin::RealBin/../../src/protocol/gv_protocol.h") =~
  /^#define GV_PROTOCOL_VERSION\s+(\d+)/m;
my $LOADER = 2;
my $STATUS_BYTES = 312;
my $MIRROR_BYTES = 112;
my $KEY_BYTES = 24;
my $CHUNK_BYTES = 28;
my $LIVE_ONLY = 1;

my $served = new_remote_node('served');
my $socket;

# Send a request, return its answer.
sub ask
{
	my ($type, $body) = @_;

	syswrite($socket, pack('LSS', length $body, $MESSAGE{$type}, 0) . $body)
	  == 8 + length $body or die "$type: $!";
	my ($length, $answered, $request) = unpack('LSS', receive(8));
	my $answer = receive($length);
	die "$type: " . substr($answer, 4) if $answered != $MESSAGE{OK};
	die "$type: an answer to $request" if $request != $MESSAGE{$type};
	return $answer;
}

sub receive
{
	my ($length) = @_;
	my $bytes = '';

	while (length $bytes < $length)
	{
		sysread($socket, $bytes, $length - length $bytes, length $bytes)
		  or die "gpuvecd hung up: $!";
	}
	return $bytes;
}

# The key of an index's mirror.
sub key_of
{
	my ($index) = @_;
	my $oid = $served->safe_psql('postgres', "SELECT '$index'::regclass::oid");
	my $status = ask('STATUS', '');

	for (my $at = $STATUS_BYTES; $at < length $status; $at += $MIRROR_BYTES)
	{
		my $key = substr($status, $at, $KEY_BYTES);
		return $key if (unpack('L4', $key))[3] == $oid;
	}
	die "no mirror of $index";
}

# Test: what verify finds in the mirror.
sub is_verified
{
	my ($index, $expected, $what) = @_;

	return gives($served, "SELECT severity, block, list, problem FROM gpuvec_verify_index('$index', mirror => true)",
		$expected, "$what: $index");
}

# Its message on a list in which $n postings are wrong.
sub wrong
{
	my ($list, $n) = @_;

	return "error||$list|$n postings of the list differ between the mirror of gpuvecd and the pages of the index";
}

$served->safe_psql('postgres', q{
	CREATE TABLE plain (id int, e real[]);
	INSERT INTO plain SELECT g, point(g, 8) FROM generate_series(1, 3000) AS g;
	CREATE INDEX plain_e ON plain USING gpuivfpq (e) WITH (lists = 10);
	CREATE TABLE refined (id int, e real[]);
	INSERT INTO refined SELECT * FROM plain;
	CREATE INDEX refined_e ON refined USING gpuivfpq (e) WITH (lists = 10, pq_dim = 7, refine = sq8);
	CREATE TABLE untrained (id int, e real[]);
	CREATE INDEX untrained_e ON untrained USING gpuivfpq (e);
	INSERT INTO untrained SELECT * FROM plain LIMIT 10;
});
is_verified('untrained_e', '', 'untrained');
like($served->safe_psql('postgres', "SELECT * FROM gpuvec_verify_index('plain_e', true)"),
	qr/^warning\|\|\|could not compare the mirror of gpuvecd: .*$/, 'without a mirror');
is_mirrored($served, "${_}_e", "SELECT FROM $_ ORDER BY e <-> point(1, 8) LIMIT 10", 'new')
  for 'plain', 'refined';
is_verified($_, '', 'as it was loaded') for 'plain_e', 'refined_e';

# another loader, which brings nonsense
chdir $served->data_dir or die $!;
$socket = IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => 'pgsql_tmp.gpuvec.sock')
  or die $!;
my ($incarnation) = slurp_file('pgsql_tmp.gpuvec.lock') =~ /^\d+\n([0-9a-f]+)$/m;
ask('HELLO', pack('L4', $MAGIC, $VERSION, $LOADER, $$) . reverse(pack('H16', $incarnation)));

# Put a list as it is into the mirror, but for a bit changed at a byte of its
# chunk, which $where gives for the number of its blocks.
my $plain = key_of('plain_e');
sub spoil
{
	my ($list, $where) = @_;
	my $chunk = ask('READ_LISTS', $plain . pack('l4', $list, 1, 0, 0));
	my $nblocks = (unpack('l4', $chunk))[2];

	substr($chunk, $CHUNK_BYTES + $where->($nblocks), 1) ^= "\1";
	ask('LISTS', $plain . pack('ll', 1, 0) . $chunk);
	return;
}

my @found;
my %parts = (
	2 => sub { 4 },	# `live` of block 1
	3 => sub { $_[0] * 4 + 33 * 4 },	# T of posting 1 there
	4 => sub { $_[0] * (4 + 32 * 4) + 2 * 6 + 3 },	# row id of posting 2
	5 => sub { $_[0] * (4 + 32 * (4 + 6)) + 3 });	# code of posting 3
for my $list (sort keys %parts)
{
	spoil($list, $parts{$list});
	push @found, wrong($list, 1);
	is_verified('plain_e', join("\n", @found), 'spoiled');
}

# a posting that the mirror takes for dead, by its own word
my ($gen, $nitems, $del_seq) = unpack('L3', ask('LIST_STATES', $plain . pack('l4', 7, 1, 0, 0)));
my $nblocks = int(($nitems + 31) / 32);
my @live = (0xFFFFFFFF) x $nblocks;
$live[-1] = 0xFFFFFFFF >> (32 * $nblocks - $nitems);
$live[0] = 0xFFFFFFF0;
ask('LISTS', $plain . pack('ll', 1, 0)
	. pack('l3L4', 7, 0, $nblocks, $LIVE_ONLY, $gen, $nitems, $del_seq)
	. pack('L*', @live));
push @found, wrong(7, 4);
is_verified('plain_e', join("\n", @found), 'dead for the mirror');
is_verified('untrained_e', '', 'untrained');

# a refine record, of a live posting that is the oldest of list 0
my $refined = key_of('refined_e');
my $chunk = ask('READ_LISTS', $refined . pack('l4', 0, 1, 0, 0));
my $address = substr($chunk, $CHUNK_BYTES + (unpack('l4', $chunk))[2] * (4 + 32 * 4), 6);
my $item = ask('READ_REFINE', $refined . pack('ll', 1, 0) . $address);
is(substr($item, 0, 6), $address, 'the record that was asked for');
substr($item, 24, 1) ^= "\1";
ask('REFINE', $refined . pack('ll', 1, 0) . $item);
is_verified('refined_e', 'error|||1 refine records differ between the mirror of gpuvecd and the pages of the index',
	'a spoiled record');

# a list that is longer than a message: a posting near its end; with little memory
# the sample is small, and training short
$served->safe_psql('postgres', q{
	SET maintenance_work_mem = '4MB';
	CREATE TABLE long (id int, e real[]);
	INSERT INTO long SELECT g, array_fill((g % 50)::real, ARRAY[983]) || g::real
	FROM generate_series(1, 36000) AS g;
	CREATE INDEX long_e ON long USING gpuivfpq (e) WITH (lists = 1, pq_dim = 984)});
is_mirrored($served, 'long_e', 'SELECT FROM long ORDER BY e <-> array_fill(1::real, ARRAY[984]) LIMIT 10', 'long');
is_verified('long_e', '', 'as it was loaded');
my $long = key_of('long_e');
($gen, $nitems, $del_seq) = unpack('L3', ask('LIST_STATES', $long . pack('l4', 0, 1, 0, 0)));
my $last = int(($nitems - 1) / 32);
my $end = ask('READ_LISTS', $long . pack('l4', 0, 1, $last, 0));
is(length $end, $CHUNK_BYTES + 4 + 32 * (10 + 492), 'the last block alone');
substr($end, -32 * 492, 1) ^= "\1";
ask('LISTS', $long . pack('ll', 1, 0) . $end);
is_verified('long_e', wrong(0, 1), 'spoiled at its end');

# behind is not wrong, and only what is not behind can be compared
$served->safe_psql('postgres', q{
	INSERT INTO plain SELECT g, point(g, 8) FROM generate_series(3001, 3100) AS g});
is_verified('plain_e', join("\n", @found), 'rows came');
$served->safe_psql('postgres', 'DELETE FROM plain WHERE id % 7 = 1; VACUUM plain');
is_verified('plain_e', '', 'dead flags');
is_sound($served, 'plain_e', 'the index itself');
$served->stop;

done_testing();
