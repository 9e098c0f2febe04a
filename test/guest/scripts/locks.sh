# Locks without nolock: two guests, and a server that is killed while one of them
# holds a lock.
rpcbind
rpc.statd --no-notify
mkdir -p $M
timeout 40 mount -t nfs -o "rdma,port=20049,vers=3" "$HOST:/e" $M
! grep " $M nfs .*nolock" /proc/mounts
rpcinfo -T tcp "$HOST" 100021 4
PATIENCE=120
contend 12
count_locked
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
