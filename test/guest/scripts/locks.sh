# Locks without nolock: two guests, and a server that is killed while one of them
# holds a lock.
rpcbind
rpc.statd --no-notify
mkdir -p $M
timeout 40 mount -t nfs -o "rdma,port=20049,vers=3" "$HOST:/e" $M
! grep " $M nfs .*nolock" /proc/mounts
rpcinfo -T tcp "$HOST" 100021 4
other=$([ "$GUEST" = a ] && echo b || echo a)
step=0
both() {
	step=$((step + 1))
	tell "$GUEST.$step"
	await "$other.$step" 120
}
# lock OPTIONS: holds the lock on $M/file until release.
lock() {
	exec 9<>$M/file
	timeout 100 flock $1 9
}
release() { exec 9<&-; }
busy() { if flock $1 -n $M/file true; then die "a lock with $1 was free"; fi; }

[ "$GUEST" != a ] || echo content >$M/file
both
if [ "$GUEST" = a ]; then lock -x; fi
both
if [ "$GUEST" = b ]; then busy -x; busy -s; fi
both
# One waits, the other gives up the lock two seconds later.
if [ "$GUEST" = b ]; then
	tell waits
	before=$SECONDS
	lock -x
	[ $((SECONDS - before)) -lt 12 ] || die "waited for $((SECONDS - before)) seconds: nobody told that the lock was free"
	say "after $((SECONDS - before)) s"
else
	await waits
	sleep 2
	release
fi
both
if [ "$GUEST" = a ]; then busy -s; fi
both
if [ "$GUEST" = b ]; then release; fi
both
lock -s # shared, by both
both
busy -x
both
release
both
# What is read under a lock is what was written under it.
for i in $($B seq 10); do
	lock -x
	echo $(($(cat $M/count 2>/dev/null || echo 0) + 1)) >$M/count
	release
done
both
forget
is "counted" "$(cat $M/count)" 20
both
if [ "$GUEST" = a ]; then lock -x; fi
both
[ "$GUEST" != a ] || tell loaded
await restarted 60
both
# The lock was reclaimed: the other waits for the end of the grace period, and then for the lock.
if [ "$GUEST" = b ]; then
	busy -x
	tell still-busy
	lock -x
	say "locked by the other at last"
else
	await still-busy 120
	release
fi
both
[ "$GUEST" != b ] || release
both
umount $M
