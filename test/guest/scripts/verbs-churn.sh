# Connections by the thousand: mounts by the kernel beside connections of the Go client, some of which are refused,
# given up half-way, killed, or vanish. The server's guest holds what its kernel has against what it had
# before, and so does this one.
await programs
again() { /run/host/reconnect -to "$HOST:20049" "$@"; }
# mounts N: by version 3 and 4.2 in turn.
mounts() {
	local i v
	for i in $($B seq "$1"); do
		v=
		[ $((i % 2)) = 0 ] || v=4.2
		VERS=$v m >/dev/null
		umount $M
	done
}
# under_way AT_ONCE WHAT: a process that connects until it is killed, and has connected before. $client is its number.
under_way() {
	rm -f /tmp/ready
	/run/host/reconnect -to "$HOST:20049" -count 0 -at-once "$1" -ready /tmp/ready "$2" >/dev/null &
	client=$!
	while [ ! -e /tmp/ready ]; do
		kill -0 $client 2>/dev/null || die "no $2 was made"
		$B usleep 10000
	done
}
# killed N [WHAT]: a process with eight connections under way is killed, N times.
killed() {
	local i
	for i in $($B seq "$1"); do
		under_way 8 "${2:-call}"
		$B usleep $((RANDOM % 20000))
		kill -9 $client
		wait $client 2>/dev/null || true
	done
}
# every N: those of the Go client, N or a part of that of each kind.
every() {
	again -count "$1" -at-once 8 call
	again -count $(($1 / 4)) -at-once 4 files
	again -count $(($1 / 5)) -at-once 8 abandoned
	again -count $(($1 / 50)) -at-once 2 device
	/run/host/reconnect -to "$HOST:20048" -count $(($1 / 10)) -at-once 8 refused
}
# full N: as many as one client may have are kept, and N more are refused.
full() { again -count "$1" -at-once 8 full; }
# steps: the client is killed at each of its calls to the connection manager. REQ, RTU and DREQ are among them.
steps() {
	local i rc
	for i in $($B seq 40); do
		rc=0
		strace -f -o /tmp/strace -P /dev/infiniband/rdma_cm -e trace=write -e inject=write:signal=KILL:when=$i \
			/run/host/reconnect -to "$HOST:20049" -count 1 -at-once 1 call >/dev/null || rc=$?
		[ $rc = 137 ] || break
	done
	say "killed at $((i - 1)) steps"
	[ $rc = 0 ] && [ $i -gt 8 ] || die "killed at $((i - 1)) steps, and then $rc"
}
# vanish: nothing comes in any more, so that requests are sent and answers are not heard, and then nothing goes
# out, so that nobody hears of the end of those who asked.
vanish() {
	under_way 16 call
	tc qdisc add dev ifb0 root netem loss 100%
	$B usleep 500000
	tc qdisc add dev eth0 root netem loss 100%
	kill -9 $client
	wait $client 2>/dev/null || true
}
ip link set ifb0 up
tc qdisc add dev eth0 ingress
tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0

before=$(resources)
every 200
full 40
mounts 6
killed 2
tell warm
await measured 300
mounts "$MOUNTS" &
mounting=$!
every "$CONNECTIONS"
say "connections"
killed $((CONNECTIONS / 100))
killed $((CONNECTIONS / 200)) files
say "killed"
steps
wait $mounting
say "$MOUNTS mounts"
full $((CONNECTIONS / 10))
settled "what the kernel has" "$before" resources
vanish
tell over
await compared 400
settled "what the kernel has" "$before" resources
