# The server goes away three times while files are written and read; a hard mount
# waits, goes on, and nothing is lost.
m
mkdir $M/d
for i in 0 1 2 3; do random /tmp/src$i 4; done
writer() {
	local n=0
	while [ ! -e /run/host/at.stop ]; do
		cp /tmp/src$((n % 4)) "$M/d/$1.$n"
		same /tmp/src$((n % 4)) "$M/d/$1.$n"
		n=$((n + 1))
	done
	echo $n >"/tmp/count.$1"
}
writer x & x=$!
writer y & y=$!
tell loaded
wait $x
wait $y
say "$(cat /tmp/count.x) and $(cat /tmp/count.y) files"
forget
for w in x y; do
	for ((n = 0; n < $(cat /tmp/count.$w); n++)); do same /tmp/src$((n % 4)) "$M/d/$w.$n"; done
done
umount $M
