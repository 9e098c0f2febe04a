# Guest b serves: the kernel by rdma_rxe on eth0, and rstored on another interface in a network
# namespace of its own, since rdma_rxe has the port of RoCEv2 in the first. Guest a is the
# client of both, and of rstored on the host.

KNFSD=knfsd.rstored.test

serve() {
	local d i rstored
	mount -t tmpfs -o size=1m,mode=755 tmpfs /srv
	mkdir -p /srv/memory /srv/disk /run/r /run/memory
	mount -t tmpfs -o mode=755 tmpfs /srv/memory
	mount -t tmpfs -o mode=755 tmpfs /run/memory
	mount -t tmpfs -o mode=755 tmpfs /run/r
	mount -t ext4 -o noatime /dev/ubdb /srv/disk
	mkdir -p /srv/disk/rstored
	random /tmp/some "$SIZE"
	for d in /srv/memory /run/memory /srv/disk /srv/disk/rstored; do
		for i in $($B seq 0 $((JOBS - 1))); do cp /tmp/some "$d/j.$i.0"; done
		chmod 666 "$d"/j.* # with Kerberos the client's root is anonymous
	done
	sync
	rm /tmp/some

	ip netns add r
	ip link set vec1 netns r
	in_r() { ip netns exec r "$@"; }
	in_r ip link set lo up
	in_r ip link set vec1 mtu "$MTU" up
	in_r ip addr add "$SECOND/24" dev vec1
	in_r /run/host/rstored --log-format console --log-level warn --state-dir /run/r/state --control /run/r/control \
		--rdma-listen "$SECOND:20049" --tcp-listen "$SECOND:2049" \
		--export "/run/memory=/memory(rw,no_root_squash) $SECOND/24" --export "/srv/disk/rstored=/disk(rw,no_root_squash) $SECOND/24" &
	rstored=$!

	echo "$FIRST $KNFSD" >>/etc/hosts
	$B hostname $KNFSD
	cp /run/host/krb/krb5.conf /etc/krb5.conf
	cp /run/host/krb/$KNFSD.keytab /etc/krb5.keytab
	rpcbind
	mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
	rpc.svcgssd -f >/run/host/keep.svcgssd.log 2>&1 &
	# The root of version 4.
	exportfs -o ro,insecure,no_subtree_check,fsid=0,crossmnt,sec=sys:krb5:krb5i:krb5p "*:/srv"
	exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=11,sec=sys:krb5:krb5i:krb5p "*:/srv/memory"
	exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=12 "*:/srv/disk"
	rpc.mountd -p 2050
	# The shortest that the kernel takes: nobody has anything to reclaim.
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	echo 1048576 >/proc/fs/nfsd/max_block_size
	rpc.nfsd --no-udp --nfs-version 4.2 "$JOBS"
	echo "rdma 20049" >/proc/fs/nfsd/portlist
	for i in $($B seq 200); do
		[ ! -S /run/r/control ] || break
		kill -0 $rstored || die "rstored has ended"
		$B usleep 50000
	done
	tell serving
	# Not await, which would look for it too often beside what is measured.
	while [ ! -e /run/host/at.done ]; do $B sleep 2; done
	in_r /run/host/rstorectl --control /run/r/control stats >/run/host/keep.guest.log
}

# mounts of each server, version and file system: /mnt/knfsd/4.2/disk. With Kerberos /mnt/knfsd/krb5i/memory,
# made last: the mounts of version 4 with sec=sys would use the machine's key otherwise.
mounts() {
	local v d how mount path
	{ echo "$FIRST $KNFSD"; echo "$HOST server.rstored.test"; } >>/etc/hosts
	for v in 3 4.2; do
		for d in memory disk; do
			how="rdma,port=20049,nconnect=1,rsize=1048576,wsize=1048576,vers=$v" path=/$d
			mount=
			if [ $v = 3 ]; then mount=nolock,mountproto=tcp,mountport= path=/srv/$d; fi
			mkdir -p /mnt/{knfsd,guest,host}/$v/$d
			timeout 40 mount -t nfs -o "$how${mount:+,${mount}2050}" "$KNFSD:$path" /mnt/knfsd/$v/$d
			timeout 40 mount -t nfs -o "$how${mount:+,${mount}2049}" "$SECOND:/$d" /mnt/guest/$v/$d
			timeout 40 mount -t nfs -o "$how${mount:+,${mount}2049}" "server.rstored.test:/$d" /mnt/host/$v/$d
		done
	done
	kerberos
	for v in krb5 krb5i krb5p; do
		how="rdma,port=20049,nconnect=1,rsize=1048576,wsize=1048576,vers=4.2,sec=$v"
		mkdir -p /mnt/{knfsd,host}/$v/memory
		timeout 60 mount -t nfs -o "$how" "$NAME:/memory" /mnt/host/$v/memory
		# This kernel's server does not understand calls with krb5p.
		[ $v = krb5p ] || timeout 60 mount -t nfs -o "$how" "$KNFSD:/memory" /mnt/knfsd/$v/memory
	done
	grep ' nfs4* ' /proc/mounts
}

if [ "$GUEST" = b ]; then
	serve
else
	await serving
	mounts
	tell mounted
	# What the host asks for, one after the other.
	for ((n = 0; ; n++)); do
		await "job.$n" 600
		. /run/host/job.$n >/run/host/out.$n
		[ ! -e /run/host/at.done ] || break
		tell "ran.$n"
	done
fi
