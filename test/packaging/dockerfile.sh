#!/bin/bash
# Runs in a bare folder of Debian (test/packaging/run.sh): does what the
# Dockerfile says, line by line, as far as a folder is an image.
set -uo pipefail
cd /srv/source/test/packaging || exit
rm /etc/apt/sources.list.d/gpuvec.list
compgen -G '/srv/gpuvec/postgresql*' >/dev/null || exit
rm -f /srv/gpuvec/*dbgsym*
version=$(basename /srv/gpuvec/postgresql-*-gpuvec_*.deb |
	sed 's/postgresql-\([0-9]*\)-.*/\1/')

ok() {
	local what=$1
	shift
	if "$@"; then echo "ok: $what"; else echo "not ok: $what"; fi
}

# The Dockerfile's instructions, one a line.
instructions() { sed -e '/^ *#/d' -e '/^$/d' Dockerfile | sed -e ':a' -e '/\\$/N;s/\\\n */ /;ta'; }

# shellcheck disable=SC2034
SUITE='' user=root stage='' image='' cmd=''
# Does `COPY [--from=stage] source... target`, in the image or in $image.
copy() {
	local from=$1 to=${*: -1} file
	if [ "$from" = --from=server ]; then
		shift
		mkdir -p "$image$( [[ $to == */ ]] && echo "$to" || dirname "$to")"
		# shellcheck disable=SC2048,SC2086
		cp -r ${*:1:$#-1} "$image$to"
	else
		mkdir -p "$to"
		for file in /srv/gpuvec/${*:1:$#-1}; do cp "$file" "$to"; done
	fi
}

# shellcheck disable=SC2034
VERSION=$version
while read -r word rest; do
	case $word in
	ARG) : "${rest%%=*}" ;;
	FROM) stage=${rest##* } image=$([ "$stage" = server ] || echo "/srv/$stage") ;;
	ENV) eval "export $rest" ;;
	USER) user=$rest ;;
	VOLUME | EXPOSE | STOPSIGNAL) ;;
	CMD) cmd=$rest ;;
	RUN) ok "Dockerfile: RUN" sh -c "$rest" ;;
	COPY)
		# shellcheck disable=SC2046
		ok "Dockerfile: COPY ${rest//\$VERSION/$version}" copy $(eval "set -f; echo $rest")
		;;
	*) ok "Dockerfile: $word is known" false ;;
	esac
done < <(instructions)

ask() { PGPASSWORD=secret psql -XAt -v ON_ERROR_STOP=1 -h 127.0.0.1 -U postgres "$@"; }

wait_for() {
	local n
	for ((n = 0; n < 600; n++)); do
		! ask -c "$1" 2>/dev/null | grep -qx "$2" || return 0
		sleep .1
	done
	return 1
}

# -- the server
mkdir -p /run/secrets
echo secret >/run/secrets/password
chmod 644 /run/secrets/password
run_server() {
	setpriv --reuid="$user" --regid="$user" --init-groups sh -c "$cmd" &
	server=$!
}

# as `docker stop` does
stop_server() {
	kill -INT "$server"
	wait "$server"
}
run_server
ok "server: answers" wait_for 'SELECT 1' 1
cp -r /srv/source /tmp/source
cd /tmp/source || exit
awk '/^##/{on = /^### Real vectors to try/} on && /^```/{k++; next} on && k == 1' \
	README.md >/tmp/statements.sql
ok "server: six statements" eval \
	"ask -f /tmp/statements.sql | tee /tmp/out; grep -q 'Index Scan using words_embedding_idx' /tmp/out"
ok "server: gpuvecd was looked for, and found no card" \
	wait_for 'SELECT state FROM gpuvec_stat' 'no GPU'
stop_server
run_server
ok "server: starts again with its data" wait_for \
	"SELECT word FROM words ORDER BY embedding <=> (SELECT embedding FROM words WHERE id = 5796) LIMIT 1" cheese
ok "server: ... and pg_hba.conf is as it was" \
	eval '[ "$(grep -c "^host all all all" "$PGDATA/pg_hba.conf")" = 1 ]'
ask -c 'DROP EXTENSION gpuvec CASCADE'
stop_server

# -- the image of the extension, beside a server without it
[ "$version" -ge 18 ] || exit 0
dpkg --purge gpuvecd "postgresql-$version-gpuvec"
mkdir -p /extensions/gpuvec
mount --bind "$image" /extensions/gpuvec
mount -o remount,bind,ro /extensions/gpuvec
ok "extension: its folder is read-only" eval '! touch /extensions/gpuvec/x'
cat >>"$PGDATA/postgresql.conf" <<'SETTINGS'
extension_control_path = '/extensions/gpuvec/share:$system'
dynamic_library_path = '/extensions/gpuvec/lib:$libdir'
gpuvec.server = 'cuda'
SETTINGS
run_server 2>/tmp/extension.log
ok "extension: the server starts" wait_for 'SELECT 1' 1
ask -c 'CREATE DATABASE six'
ok "extension: six statements" eval \
	"ask -d six -f /tmp/statements.sql | tee /tmp/out; grep -q 'Index Scan using words_embedding_idx' /tmp/out"
# there is no other one; without a card it ends
ok "extension: the image's gpuvecd was started" \
	grep 'gpuvecd: this gpuvecd was built without CUDA' /tmp/extension.log
stop_server
