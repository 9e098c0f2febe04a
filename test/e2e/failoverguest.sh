# A client of a pair: this guest mounts over $CARRIER in versions 3 and 4.2. In each mount one program changes names
# and holds a lock, and fio writes, reads back and compares. The test says when to stop.
HOST=$PAIR
sysctl -qw kernel.hung_task_timeout_secs=0 2>/dev/null || true
for v in 3 4.2; do
	VERS=$v
	[ $v != 3 ] || VERS=
	m "" "$EXPORT" /mnt/$v
done
pids=
for v in 3 4.2; do
	lock=lock
	[ $v != 3 ] || lock=
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
[ -z "$failed" ] || die "not all that was begun has succeeded"
umount /mnt/3 /mnt/4.2
