# Writes of 8 MiB on a link that loses packets, and how long each takes. Where KNFSD is set the kernel of guest b is
# the server: it is there to compare with, and only says how long it takes.
if [ "${GUEST:-a}" = b ]; then
	kernel_serves
	both
	PATIENCE=$((WRITES * 120)) both
	exit 0
fi
path=/e
if [ -n "${KNFSD:-}" ]; then
	HOST=$KNFSD path=/srv/e
	both
	mkdir -p $M
	mount -t nfs -o rdma,port=20049,vers=3,nolock "$HOST:$path" $M
	moving() { "$@"; }
else
	m
fi
lose "$LOSS"
random /tmp/src 8
stored() { dd if=/tmp/src of=$M/w bs=1M conv=fsync 2>/dev/null; }
slowest=0
for i in $($B seq "$WRITES"); do
	begin=$(date +%s%N)
	moving stored
	ms=$((($(date +%s%N) - begin) / 1000000))
	say "write $i: $ms ms"
	[ "$ms" -le "$slowest" ] || slowest=$ms
done
say "the slowest: $slowest ms"
forget
same /tmp/src $M/w
tc -s qdisc show | grep -E 'qdisc netem|dropped' || true
umount $M
[ -z "${KNFSD:-}" ] || both
