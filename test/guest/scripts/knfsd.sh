# The kernel is the server, and the Go client of the host its client.
kernel_serves
tell serving
await stored 120
(cd /srv/e && find tree -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum | cut -d' ' -f1 >/run/host/sum.tree
sha256sum </srv/e/big | cut -d' ' -f1 >/run/host/sum.big
is "the link" "$(readlink /srv/e/tree/link)" "sub/one"
is "the mode" "$(stat -c %a /srv/e/tree/sub/one)" 640
is "the names" "$(ls /srv/e/tree/many | wc -l)" 300
tell summed
await done 420
is "what is left" "$(ls /srv/e)" ""
if [ "$VERS" = 4.2 ]; then
	# The counts of operations begin with that of operation 0.
	is "copies made here" "$(awk '/^proc4ops/ { print ($(60 + 3) > 0) }' /proc/net/rpc/nfsd)" 1
	is "seeks" "$(awk '/^proc4ops/ { print ($(69 + 3) > 0) }' /proc/net/rpc/nfsd)" 1
fi
