# A delegation is wanted back while the connection is gone: the guest is called by the
# next one, which it binds when it hears that it cannot be called.
m
calls() {
	$B awk -v ops=" $* " '$1 == "device" {here = $5 == "'$M'"} here && $1 ~ /:$/ && index(ops, " " substr($1, 1, length($1) - 1) " ") {n += $2} END {print n + 0}' /proc/self/mountstats
}
needs() {
	local before
	before=$(calls OPEN OPEN_NOATTR)
	"$@" >/dev/null
	echo $(($(calls OPEN OPEN_NOATTR) - before))
}

echo one >$M/file
for i in $($B seq 60); do
	[ "$(needs cat $M/file)" != 0 ] || break
	$B usleep 100000
done
is "OPENs" "$(needs cat $M/file)" 0
tell delegated
await cut
# The guest has nothing to do with the file until somebody else has changed it, but it
# is alive.
for i in $($B seq 300); do
	ls $M >/dev/null
	[ ! -e /run/host/at.changed ] || break
	$B usleep 200000
done
await changed 5
is "content" "$(cat $M/file)" two
[ "$(calls BIND_CONN_TO_SESSION)" -gt 0 ] || die "no connection was bound"
umount $M
