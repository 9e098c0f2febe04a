# Guest b is the server of each measurement and guest a the client. rdma_rxe has the port of RoCEv2 on
# eth0, so the stack in user space is on vec1, in a network namespace of its own. Both do
# what the host asks for, one after the other.

mount -t tmpfs -o mode=755 tmpfs /mnt
ip netns add r
ip link set vec1 netns r
ip netns exec r ip link set lo up
ip netns exec r ip link set vec1 mtu "$MTU" up
if [ "$GUEST" = a ]; then addr=$SOFT_CLIENT; else addr=$SOFT_SERVER; fi
ip netns exec r ip addr add "$addr/24" dev vec1

# perftest wants to know the frequency of its clock, which it also measures. Guests do not tell it.
grep -q 'cpu MHz' /proc/cpuinfo || {
	{ cat /proc/cpuinfo; printf 'cpu MHz\t\t: %s\n' "$MHZ"; } >/mnt/cpuinfo
	mount --bind /mnt/cpuinfo /proc/cpuinfo
}

# listening PORT: a program has the TCP port, within ten seconds.
listening() {
	local i
	for ((i = 0; i < 200; i++)); do
		! grep -q "$(printf ':%04X 0*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6 || return 0
		pause 0.05
	done
	echo "nobody listens at port $1"
	return 1
}

# pause SECONDS, without a process that a measurement would meet.
mkfifo /mnt/never
exec 9<>/mnt/never
pause() { read -r -t "$1" -u 9 || true; }

# serving LOG: a server waits for measurements, within a minute.
serving() {
	local i
	for ((i = 0; i < 600; i++)); do
		! grep -q 'waiting for measurements' "$1" || return 0
		pause 0.1
	done
	die "no server: $(cat "$1")"
}

await programs
cp /run/host/rstorectl /mnt/rstorectl
if [ "$GUEST" = b ]; then
	/mnt/rstorectl perf serve "verbs://$VERBS_SERVER" >/run/host/keep.verbs.log 2>&1 &
	/mnt/rstorectl perf serve --busy-poll -p "$POLLING_PORT" "verbs://$VERBS_SERVER" >/run/host/keep.polling.log 2>&1 &
	ip netns exec r /mnt/rstorectl perf serve "soft://$SOFT_SERVER" >/run/host/keep.soft.log 2>&1 &
	for log in verbs polling soft; do serving "/run/host/keep.$log.log"; done
fi
set +e
trap - ERR
for ((n = 0; ; n++)); do
	while [ ! -e "/run/host/at.$GUEST.$n" ]; do pause 0.1; done
	[ ! -e /run/host/at.done ] || break
	. "/run/host/job.$GUEST.$n" >"/run/host/out.$GUEST.$n" 2>&1
	echo $? >"/run/host/rc.$GUEST.$n"
	tell "ran.$GUEST.$n"
done
exit 0
