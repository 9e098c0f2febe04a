# A client of a pair: this guest mounts over $CARRIER in each of $VERSIONS. In each mount one program changes names
# and holds a lock, and fio writes, reads back and compares. The test says when to stop.
HOST=$PAIR
rpcbind
rpc.statd --no-notify
for v in $VERSIONS; do
	VERS=$v opts=
	[ $v != 3 ] || { VERS=; opts=${LOCK3:+lock}; } # instead of nolock
	m "$opts" "$EXPORT" /mnt/$v
done
pids=
for v in $VERSIONS; do
	lock=lock
	[ $v != 3 ] || lock=$LOCK3
	/run/host/steady "$REPORT" "linux-$v-$KIND" /mnt/$v $lock & pids="$pids $!"
	(
		n=0
		until [ -e /run/host/at.stop ]; do
			fio --name=held-fio-$GUEST-$v --directory=/mnt/$v --size=1m --rw=randwrite --bsrange=4k-64k --bs_unaligned=0 \
				--direct=1 --ioengine=psync --thinktime=20ms --verify=crc32c --verify_fatal=1 --do_verify=1 --minimal \
				>/tmp/fio.$v 2>&1 || { cat /tmp/fio.$v; die "fio, version $v"; }
			n=$((n + 1))
		done
		say "version $v: fio has written and compared $n times"
	) & pids="$pids $!"
done
tell "mounted.$GUEST"
failed=
for p in $pids; do wait "$p" || failed=1; done
! dmesg | grep -i 'reclaim' || failed=1
[ -z "$failed" ] || die "not all that was begun has succeeded"
for v in $VERSIONS; do umount /mnt/$v; done
