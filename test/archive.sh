# Source packages of the Debian or Ubuntu archive that this machine's apt is
# configured for, also those of its later releases.  Sourced after lib.sh; bash.
#
# apt's own state is left alone: all of it is in a folder of ours.
# shellcheck shell=bash

# 'URI keyring' of every archive of the distribution ($1) that apt uses here
gv_archives() {
	{ cat /etc/apt/sources.list.d/*.sources 2>/dev/null || :; } |
		awk -v id="$1" '
		function out() {
			if (uri ~ ("/" id "/?$")) print uri, key
			uri = key = ""
		}
		/^URIs:/ { uri = $2 }
		/^Signed-By: *\// { key = $2 }
		/^[ \t]*$/ { out() }
		END { out() }'
	{ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
		2>/dev/null || :; } |
		awk -v id="$1" '
		$1 == "deb" {
			key = ""
			if (match($0, /signed-by=[^] ]*/))
				key = substr($0, RSTART + 10, RLENGTH - 10)
			sub(/\[[^]]*\]/, "")
			if ($2 ~ ("/" id "/?$")) print $2, key
		}'
}

# Fetches source package $1 into the folder $2, which must not exist, from
# suite $4 of archive $5, whose keyring is $6; $3 = --download-only or nothing
# (then it is unpacked, patches applied).  The log is in $2.log.
gv_fetch_from() {
	local apt=$2.apt partial=$2.partial options components='main universe'
	rm -rf "$apt" "$partial"
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$partial"
	[[ $5 == */ubuntu* ]] || components=main
	echo "deb-src ${6:+[signed-by=$6]} $5 $4 $components" >"$apt/sources.list"
	options=(-o "Dir::Etc::sourcelist=$apt/sources.list"
		-o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
		-o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root
		-o Acquire::Languages=none -o Acquire::Retries=2)
	{
		apt-get -qq "${options[@]}" update &&
			(cd "$partial" &&
				apt-get -qq "${options[@]}" ${3:+"$3"} source "$1")
	} >>"$2.log" 2>&1 || return 1
	rm -rf "$apt"
	mv "$partial" "$2"
}

# The same from the first of the distribution's suites that has it: $4 names
# Debian's, $5 Ubuntu's.  False if there is none; then the last line of $2.log
# says why.
gv_fetch_source() {
	local id suites suite uri key
	mkdir -p "$(dirname "$2")"
	rm -rf "$2"
	echo "neither Debian nor Ubuntu, or no archive of it is known to apt" \
		>"$2.log"
	id=$(. /etc/os-release 2>/dev/null && echo "$ID") || :
	case $id in
	debian) suites=$4 ;;
	ubuntu) suites=$5 ;;
	*) return 1 ;;
	esac
	while read -r uri key; do
		for suite in $suites; do
			if gv_fetch_from "$1" "$2" "$3" "$suite" "$uri" "$key" \
				</dev/null; then
				return
			fi
		done
	done < <(gv_archives "$id" | sort -u)
	return 1
}
