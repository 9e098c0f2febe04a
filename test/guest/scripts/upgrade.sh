# Another process takes the server's place, several times, while files are written and read: connections,
# open files and locks stay, and nothing is lost. RECONNECTS says that connections do not stay, as on a
# device of the kernel.
m
mkdir -m 777 $M/d
sources
connects() { sed -n "/ on ${M//\//\\/} /,\$p" /proc/self/mountstats | $B awk '$1 == "xprt:" {print $2, $5; exit}'; }
echo first >$M/held
exec 8>>$M/held
exec 9<>$M/locked
flock -x 9
before=$(connects)
reader() {
	while [ ! -e /run/host/at.stop ]; do
		dd if=$M/large of=/tmp/large bs=1M iflag=direct 2>/dev/null
		same /tmp/src.large /tmp/large
	done
}
random /tmp/src.large 16
cp /tmp/src.large $M/large
writer x & x=$!
AS="setpriv --reuid 1000 --regid 1000 --groups 1000,2000 --" writer y & y=$!
reader & r=$!
tell loaded
wait $x
wait $y
wait $r
say "$(cat /tmp/count.x) and $(cat /tmp/count.y) files"
if [ -z "${RECONNECTS:-}" ]; then
	is "connections made" "$(connects)" "$before"
else
	say "connections made: $(connects), before: $before"
fi
echo second >&8
exec 8>&-
exec 9>&-
forget
is "the file that was open" "$(cat $M/held)" "first
second"
for w in x y; do
	for ((n = 0; n < $(cat /tmp/count.$w); n++)); do same /tmp/src$((n % 4)) "$M/d/$w.$n"; done
done
is "owner" "$(stat -c %u:%g $M/d/y.0)" 1000:1000
umount $M
