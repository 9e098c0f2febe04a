# The client goes without a word, and the server's device under it; the host reads what the server keeps of it.
m
random /tmp/big 16
cp /tmp/big $M/big
reads() {
	while [ ! -e /run/host/at.stop ]; do
		forget
		cat $M/big >/dev/null
	done
}
reads &
reader=$!
tell loaded
await cut
# As if the host was killed: no frame leaves it any more.
ip link set eth0 down
tell down
await restore 120
ip link set eth0 up
say "up again"
await removed 120
wait $reader
forget
same /tmp/big $M/big
umount $M
