# A delegation is wanted back while the connection is gone: the guest is called by the
# next one, which it binds when it hears that it cannot be called.
m
echo one >$M/file
delegated $M/file
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
