# The port goes away and comes back under load, by rstorectl.
m
random /tmp/src 4
mkdir $M/d
n=0
tell loaded
while [ ! -e /run/host/at.stop ]; do
	cp /tmp/src $M/d/$n
	same /tmp/src $M/d/$n
	n=$((n + 1))
done
say "$n files"
[ "$n" -gt 3 ] || die "only $n files"
forget
for ((i = 0; i < n; i++)); do same /tmp/src $M/d/$i; done
umount $M
