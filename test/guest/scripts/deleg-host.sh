# Files delegated to this guest by version 4, which programs on the server's host use.
m
# calls OP...: how often the kernel has sent them.
calls() {
	$B awk -v ops=" $* " '$1 == "device" {here = $5 == "'$M'"} here && index(ops, " " substr($1, 1, length($1) - 1) " ") && $1 ~ /:$/ {n += $2} END {print n + 0}' /proc/self/mountstats
}
# delegated FILE: waits until it can be opened without an OPEN.
delegated() {
	local i before
	for i in $($B seq 60); do
		before=$(calls OPEN OPEN_NOATTR)
		cat "$1" >/dev/null
		[ "$(calls OPEN OPEN_NOATTR)" != "$before" ] || return 0
		$B usleep 100000
	done
	die "$1 is not delegated after $i times"
}

echo one >$M/file
delegated $M/file
tell readable
await changed
is "content" "$(cat $M/file)" "two from the host"
is "size" "$(stat -c %s $M/file)" 18

exec 7<>$M/other
echo mine >&7
delegated $M/other
echo kept >&7
tell written
await read
exec 7>&-
is "content" "$(cat $M/other)" "$(printf 'mine\nkept')"
umount $M
