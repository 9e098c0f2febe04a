# Guest b serves by rstored, and its clock is set a day forward, two days back, and right. What
# guest a has open, locked and delegated stays its, leases are neither lost nor endless, what changes meanwhile is seen, and
# guest a, whose bandwidth is limited, goes on writing.
PATIENCE=120
LEASE=10
M3=/mnt3
nobody_gone() {
	if grep -E 'nfs4_client_ended|panic' /run/host/keep.rstored.log; then die "a client was given up"; fi
}
await programs
if [ "$GUEST" = b ]; then
	mkdir /run/data
	own_server --lease-time ${LEASE}s --export "/run/data=/data(rw,no_root_squash,bandwidth=50M) $SECOND/24"
fi
both
if [ "$GUEST" = a ]; then
	HOST=$SECOND
	VERS=4.2 m actimeo=1 /data
	m actimeo=1,proto=rdma /data $M3
	exec 8>>$M/log
	echo 0 >&8
	lock -x
fi
both
n=0
for by in "+86400" "-172800" "+86400"; do
	n=$((n + 1))
	if [ "$GUEST" = b ]; then
		date -s "@$(($(date +%s) + by))"
		echo $n >/run/data/by-server
		mkdir /run/data/dir.$n
	fi
	both
	if [ "$GUEST" = a ]; then
		echo $n >&8
		sync $M/log
		sleep 2 # attributes of the client's cache are old now
		is "what the server wrote, version 4.2" "$(cat $M/by-server)" $n
		is "what the server wrote, version 3" "$(cat $M3/by-server)" $n
		[ -d $M/dir.$n ] && [ -d $M3/dir.$n ] || die "a new directory is not seen"
		echo $n >$M3/by-client
		mv $M3/by-client $M3/by-client.$n
		# Within the limit of the export, whose times are as long as ever.
		timeout 30 dd if=/dev/zero of=$M/limited.$n bs=64k count=32 conv=fsync 2>/dev/null || die "no more writes under the limit, version 4.2"
		timeout 30 dd if=/dev/zero of=$M3/limited3.$n bs=64k count=32 conv=fsync 2>/dev/null || die "no more writes under the limit, version 3"
		[ $n != 2 ] || sleep $((LEASE + 2)) # the lease is renewed meanwhile, or is lost
	fi
	both
	if [ "$GUEST" = b ]; then
		nobody_gone
		in_r /run/host/rstorectl --control /run/r/control client list | grep 'Linux NFSv4.2 a' || die "the client is not known any more"
		is "by the client" "$(cat /run/data/by-client.$n)" $n
	fi
	both
done
if [ "$GUEST" = a ]; then
	release
	exec 8>&-
	is "log" "$(tr '\n' ' ' <$M/log)" "0 1 2 3 "
	umount $M $M3
fi
both
