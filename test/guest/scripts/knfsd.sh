# The kernel is the server, and the Go client of the host its client.
mount -t tmpfs -o size=1m,mode=755 tmpfs /srv
mkdir /srv/e
mount -t tmpfs -o size=700m,mode=777 tmpfs /srv/e
rpcbind
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
exportfs -o rw,no_root_squash,insecure,fsid=7,no_subtree_check "*:/srv/e"
if [ "$VERS" != 3 ]; then
	exportfs -o ro,insecure,fsid=0,no_subtree_check,crossmnt "*:/srv" # the root of version 4
fi
rpc.mountd
if [ "$VERS" = 3 ]; then
	rpc.nfsd --no-udp --no-nfs-version 4 4
else
	# The shortest that the kernel takes: nobody has anything to reclaim.
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	rpc.nfsd --no-udp --nfs-version "$VERS" 4
fi
cat /proc/fs/nfsd/versions
echo "rdma 20049" >/proc/fs/nfsd/portlist
cat /proc/fs/nfsd/portlist
tell serving
await stored 120
(cd /srv/e && find tree -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum | cut -d' ' -f1 >/run/host/sum.tree
sha256sum </srv/e/big | cut -d' ' -f1 >/run/host/sum.big
is "the link" "$(readlink /srv/e/tree/link)" "sub/one"
is "the mode" "$(stat -c %a /srv/e/tree/sub/one)" 640
is "the names" "$(ls /srv/e/tree/many | wc -l)" 300
tell summed
await done 120
is "what is left" "$(ls /srv/e)" ""
if [ "$VERS" = 4.2 ]; then
	# The counts of operations begin with that of operation 0.
	is "copies made here" "$(awk '/^proc4ops/ { print ($(60 + 3) > 0) }' /proc/net/rpc/nfsd)" 1
	is "seeks" "$(awk '/^proc4ops/ { print ($(69 + 3) > 0) }' /proc/net/rpc/nfsd)" 1
fi
