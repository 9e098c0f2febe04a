# The server goes away three times while files are written and read; a hard mount
# waits, goes on, and nothing is lost.
m
mkdir $M/d
sources
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
