#!/bin/bash
# Makes the fixture of an on-disk format with the code of this tree.
#
# usage: test/formats/make.sh FOLDER
#
# Runs the statements in test/formats/FOLDER on a cluster of its own, stops
# it, and writes the files of the indexes, main forks and free space maps, to
# test/formats/FOLDER/files.tar.xz: without what depends on the cluster, LSNs
# and checksums of pages.  A fixture is made once, by the code that introduced
# the format, and never again.
set -euo pipefail
# shellcheck source=test/lib.sh
. "$(dirname "$0")/../lib.sh"

FORMAT=${1:?usage: test/formats/make.sh FOLDER}
FOLDER=$GV_ROOT/test/formats/$FORMAT
[ ! -e "$FOLDER/files.tar.xz" ] || gv_die "$FOLDER/files.tar.xz is there already"

run() {
	local part
	for part in "$@"; do
		gv_psql -o /dev/null -f "$FOLDER/$part.sql"
	done
}

# Nothing of the cluster is in the page: LSN 0, checksum 0.
neutralize() {
	perl -0777 -pi -e '
		for (my $at = 0; $at < length; $at += 8192) {
			substr($_, $at, 10) = "\0" x 10;
		}' "$1"
}

gv_begin
gv_copy_server "$(gv_find_pg_config)"
gv_copy_source src
gv_build src
# no worker trains what is to stay untrained
gv_start data 'autovacuum = off' 'max_worker_processes = 0' \
	'max_logical_replication_workers = 0' 'client_min_messages = warning'
gv_psql -c 'CREATE EXTENSION gpuvec'
run tables rows indexes changes train deletes
gv_psql -A -t -F ' ' -o "$GV_TMP/paths" -c "SELECT c.relname,
	pg_relation_filepath(c.oid) FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
	WHERE a.amname = 'gpuivfpq' ORDER BY 1"
gv_stop data

mkdir "$GV_TMP/files"
while read -r name path; do
	for fork in '' _fsm; do
		if [ -e "$GV_TMP/data/$path$fork" ]; then
			cp "$GV_TMP/data/$path$fork" "$GV_TMP/files/$name$fork"
			neutralize "$GV_TMP/files/$name$fork"
		fi
	done
done <"$GV_TMP/paths"
(
	cd "$GV_TMP/files"
	tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 \
		-cf - -- * | xz -9e >"$FOLDER/files.tar.xz"
)
ls -l "$FOLDER/files.tar.xz"
