# What every script in a guest begins with. A command that fails ends it.
set -eEuo pipefail
trap 'echo "line $((LINENO)): $BASH_COMMAND failed"' ERR
B=/bin/busybox
M=/mnt

say() { echo "[$(date +%T.%N | cut -c1-12)] $*"; }
die() { echo "FAIL: $*"; exit 1; }

# is WHAT GOT WANT
is() { [ "$2" = "$3" ] || die "$1 is '$2', not '$3'"; }

# refused ERROR COMMAND...: the command fails, with this text in its message.
refused() {
	local want=$1 got
	shift
	if got=$("$@" 2>&1); then die "$* was not refused"; fi
	case $got in *"$want"*) ;; *) die "$*: '$got' instead of '$want'" ;; esac
}

# tests PROGRAM...: a program of Go tests, of which some are run.
tests() {
	"$@" | tee /tmp/tests
	grep -q '^--- PASS' /tmp/tests || die "no test was run: $*"
}

# tell and await: what has happened, between guests and the host.
tell() { : >"/run/host/at.$1"; }
await() {
	local i
	for ((i = 0; i < ${2:-60} * 20; i++)); do
		[ ! -e "/run/host/at.$1" ] || return 0
		$B usleep 50000
	done
	die "nobody told of $1"
}

# both: guest a and guest b wait for each other, PATIENCE seconds at most.
step=0
both() {
	step=$((step + 1))
	tell "$GUEST.$step"
	local other=a
	[ "$GUEST" != a ] || other=b
	await "$other.$step" "${PATIENCE:-60}"
}

# rdma_device: the RDMA device of this guest is of the kind $RDMA, rxe if that is not said. Memory may be
# locked without a limit, which siw holds root to as well.
rdma_device() {
	ulimit -l unlimited
	DEVICE=${RDMA:-rxe}0
	case ${RDMA:-rxe} in
	rxe) return 0 ;;
	siw | none) ;;
	*) die "no kind of RDMA device: $RDMA" ;;
	esac
	# A kernel that was told to do without rdma_rxe has none.
	[ ! -e /sys/class/infiniband/rxe0 ] || rdma link delete rxe0
	[ "$RDMA" = none ] || rdma link add siw0 type siw netdev eth0
}

# addresses: eth0 has two further ones, for programs with more than one end of a connection, which
# find all three in RDMA_TEST_ADDRS.
addresses() {
	local me i
	me=$(my_address)
	RDMA_TEST_ADDRS=$me
	for i in 1 2; do
		ip addr add "${me%.*}.$i${me##*.}/24" dev eth0
		RDMA_TEST_ADDRS=$RDMA_TEST_ADDRS,${me%.*}.$i${me##*.}
	done
	export RDMA_TEST_ADDRS
}
my_address() { ip -4 -o addr show dev eth0 | $B awk '{ sub("/.*", "", $4); print $4; exit }'; }

# resource NAME [DEVICE]: how many qp, cq, mr, pd, cm_id or ctx the kernel has on $DEVICE.
resource() {
	rdma resource show "${2:-$DEVICE}" | $B awk -v name="$1" '{ for (i = 1; i < NF; i++) if ($i == name) n = $(i + 1) } END { print n + 0 }'
}
# resources: all of them, to be compared.
resources() { rdma resource show "$DEVICE" | sed 's/^[0-9]*: //'; }

# settled WHAT WANT COMMAND...: it prints that within a minute.
settled() {
	local what=$1 want=$2 got i
	shift 2
	for ((i = 0; i < 600; i++)); do
		got=$("$@")
		[ "$got" != "$want" ] || return 0
		$B usleep 100000
	done
	die "$what is '$got', not '$want'"
}

# connections: how many queue pairs of connections the kernel has on $DEVICE.
connections() { rdma resource show qp | $B awk -v dev="$DEVICE/" '$2 == "link" && index($3, dev) == 1 || index($0, "link " dev) { if ($0 ~ /type RC/) n++ } END { print n + 0 }'; }

# sums DIR: of all files below it.
sums() { find "$1" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum; }

# serve: guest s has the daemon on $DEVICE, with the flags of the case in $FLAGS and its exports in
# /run/exports. serve again starts it once more; unserve SIGNAL ends it.
serve() {
	local i
	rm -f /run/r/control
	mkdir -p /run/r /run/exports
	/run/host/rstored --log-format console --state-dir /run/r/state --control /run/r/control \
		--rdma-listen "verbs://$HOST:20049" --tcp-listen "$HOST:2049" "${FLAGS[@]}" 2>>/run/host/keep.rstored.log &
	DAEMON=$!
	for i in $($B seq 200); do
		if [ -S /run/r/control ] && ctl status >/dev/null 2>&1; then return 0; fi
		$B usleep 50000
	done
	die "rstored does not serve"
}
unserve() {
	local rc=0 pid=$DAEMON
	DAEMON=
	kill -"$1" "$pid"
	if [ -n "$HEIR" ]; then
		HEIR=
		# It is no child of this shell.
		settled "the executable of rstored" "" executable "$pid"
		return 0
	fi
	wait "$pid" || rc=$?
	[ "$1" = 9 ] || is "status of rstored" "$rc" 0
}
# executable PID: of a process; nothing if it has ended.
executable() { readlink "/proc/$1/exe" || true; }

# upgraded: another process has taken the daemon's place, and the old one has ended.
HEIR=
upgraded() {
	local said pid
	said=$(ctl upgrade -o json) || return
	echo "$said"
	pid=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' <<<"$said")
	[ -n "$pid" ] || return
	if [ -n "$HEIR" ]; then
		settled "the executable of the old process" "" executable "$DAEMON"
	else
		wait "$DAEMON" || return
	fi
	DAEMON=$pid HEIR=1
}
ctl() { /run/host/rstorectl --control /run/r/control "$@"; }
# rss: memory of the daemon that is there, in KiB.
rss() { $B awk '$1 == "VmRSS:" { print $2 }' "/proc/$DAEMON/status"; }
# open_files: of the daemon, without those of the exports, which it keeps for the next call.
open_files() { { ls -l "/proc/$DAEMON/fd" 2>/dev/null || true; } | grep -vc " /run/exports"; }

# own_server FLAGS...: this guest serves by rstored at $SECOND, on its second interface and in a
# network namespace, since rdma_rxe has the port of RoCEv2 outside. in_r runs commands there.
own_server() {
	local i
	mkdir -p /run/r
	ip netns add r
	ip link set vec1 netns r
	in_r ip link set lo up
	in_r ip link set vec1 up
	in_r ip addr add "$SECOND/24" dev vec1
	in_r /run/host/rstored --log-format console --state-dir /run/r/state --control /run/r/control \
		--rdma-listen "$SECOND:20049" --tcp-listen "$SECOND:2049" "$@" 2>/run/host/keep.rstored.log &
	for i in $($B seq 200); do
		[ ! -S /run/r/control ] || return 0
		$B usleep 50000
	done
	die "rstored does not serve"
}
in_r() { ip netns exec r "$@"; }

# kernel_serves: the kernel's server has the export /srv/e, in memory, in version $VERS over RDMA and
# TCP.
kernel_serves() {
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
}

# lock OPTIONS: holds the lock on $M/file until release; busy OPTIONS: it cannot be had.
lock() {
	exec 9<>$M/file
	timeout 100 flock $1 9
}
release() { exec 9<&-; }
busy() { if flock $1 -n $M/file true; then die "a lock with $1 was free"; fi; }

# contend SECONDS: two guests lock a file against each other. Who waits has the lock that
# long after it was asked for, the 2 seconds that the other keeps it among them.
contend() {
	[ "$GUEST" != a ] || echo content >$M/file
	both
	if [ "$GUEST" = a ]; then lock -x; fi
	both
	if [ "$GUEST" = b ]; then busy -x; busy -s; fi
	both
	# One waits, the other gives up the lock two seconds later.
	if [ "$GUEST" = b ]; then
		tell waits
		local before=$SECONDS
		lock -x
		[ $((SECONDS - before)) -lt $1 ] || die "waited for $((SECONDS - before)) seconds: nobody told that the lock was free"
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
}

# count_locked: what is read under a lock is what was written under it.
count_locked() {
	local i
	for i in $($B seq 10); do
		lock -x
		echo $(($(cat $M/count 2>/dev/null || echo 0) + 1)) >$M/count
		release
	done
	both
	forget
	is "counted" "$(cat $M/count)" 20
	both
}

# calls OP...: how often the kernel has sent them.
calls() {
	$B awk -v ops=" $* " '$1 == "device" {here = $5 == "'$M'"} here && index(ops, " " substr($1, 1, length($1) - 1) " ") && $1 ~ /:$/ {n += $2} END {print n + 0}' /proc/self/mountstats
}
opens() { calls OPEN OPEN_NOATTR; }
# needs COMMAND...: how many OPENs that takes.
needs() {
	local before
	before=$(opens)
	"$@" >/dev/null
	echo $(($(opens) - before))
}

# delegated FILE: waits until it can be opened without an OPEN: the server gives nothing
# until it knows that it can call.
delegated() {
	local i
	for i in $($B seq 60); do
		[ "$(needs cat "$1")" != 0 ] || return 0
		$B usleep 100000
	done
	die "$1 is not delegated after $i times"
}

# lose PERCENT: that many packets are lost in both directions, in the guest: of what it sends, and what it receives.
lose() {
	ip link set ifb0 up
	tc qdisc add dev eth0 root netem loss "$1%" limit 20000
	tc qdisc add dev eth0 ingress
	tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0
	tc qdisc add dev ifb0 root netem loss "$1%" limit 20000
}

# sent_packets: of RDMA, where the mount is over RDMA and the device counts them, or of the interface.
sent_packets() {
	local of=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
	case ${CARRIER:-rdma} in
	rdma*) [ -e $of ] || of=/sys/class/net/eth0/statistics/tx_packets ;;
	*) of=/sys/class/net/eth0/statistics/tx_packets ;;
	esac
	cat $of
}

# moving COMMAND...: it fails if the guest sends nothing for more than 5 seconds meanwhile.
moving() {
	local pid last='' now still=0
	"$@" &
	pid=$!
	while kill -0 $pid 2>/dev/null; do
		now=$(sent_packets)
		if [ "$now" != "$last" ]; then
			last=$now still=$SECONDS
		elif [ $((SECONDS - still)) -gt 5 ]; then
			die "nothing was sent for $((SECONDS - still)) s: $*"
		fi
		$B usleep 100000
	done
	wait $pid
}

# m [OPTIONS [PATH [DIR]]]: mounts without asking a port mapper, over RDMA and version
# 3 if CARRIER and VERS do not say otherwise.
m() {
	local opts=${1:-} path=${2:-/e} dir=${3:-$M} how="vers=${VERS:-3}"
	[ -n "${VERS:-}" ] || how="$how,nolock,mountproto=tcp,mountport=2049"
	mkdir -p "$dir"
	timeout 40 mount -t nfs -o "${CARRIER:-rdma,port=20049},$how${opts:+,$opts}" "$HOST:$path" "$dir"
	grep " $dir nfs4* " /proc/mounts
}

# forget: what is read next comes from the server.
forget() {
	sync
	echo 3 >/proc/sys/vm/drop_caches
}

# option NAME [DIR]: of the mount, as the kernel settled it.
option() { sed -n "s/^[^ ]* ${2//\//\\/} nfs4* .*[, ]$1=\([^, ]*\).*/\1/p" /proc/mounts; }

# same A B: both have the same bytes.
same() {
	local a b
	a=$(sha256sum <"$1")
	b=$(sha256sum <"$2")
	[ "$a" = "$b" ] || { keep "$1" "$2"; die "$1 and $2 differ: $(cmp "$1" "$2" 2>&1 | head -1)"; }
}

# keep FILE...: for whoever looks at the failure.
keep() {
	local f
	for f; do cp "$f" "/run/host/keep.$GUEST.$(basename "$f")" || true; done
}

# random FILE MIB
random() { head -c "$(($2 << 20))" /dev/urandom >"$1"; }

# sources makes the files that writer NAME copies to $M/d and compares there, until the host tells stop;
# /tmp/count.NAME says how many it were.
sources() {
	local i
	for i in 0 1 2 3; do random /tmp/src$i 4; done
}
writer() {
	local n=0
	while [ ! -e /run/host/at.stop ]; do
		${AS:-} cp /tmp/src$((n % 4)) "$M/d/$1.$n"
		same /tmp/src$((n % 4)) "$M/d/$1.$n"
		n=$((n + 1))
	done
	echo $n >"/tmp/count.$1"
}

# there_and_back MIB: a file in, read back from the server, removed.
there_and_back() {
	random /tmp/src "$1"
	say "writing $1 MiB"
	cp /tmp/src $M/file
	forget
	say "reading"
	same /tmp/src $M/file
	rm $M/file
	say "same"
}

# kerberos: this guest is of the realm of the host's KDC, and has rpc.gssd. The server is $NAME.
kerberos() {
	NAME=server.rstored.test
	{ echo "$HOST $NAME"; echo "$(my_address) guest.rstored.test guest"; } >>/etc/hosts
	$B hostname guest.rstored.test
	cp /run/host/krb/krb5.conf /etc/krb5.conf
	cp /run/host/krb/guest.keytab /etc/krb5.keytab
	await kdc
	rpc.gssd -f -vv -p /var/lib/nfs/rpc_pipefs >/run/host/keep.gssd.log 2>&1 &
	$B usleep 500000
}
# as USER COMMAND...
as() {
	local user=$1
	shift
	setpriv --reuid="$user" --regid="$user" --clear-groups -- "$@"
}
