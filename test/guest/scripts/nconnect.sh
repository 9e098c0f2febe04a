m nconnect=4
there_and_back 64
# Four writers at once, so that all four connections carry something.
for i in 1 2 3 4; do
	random /tmp/src$i 8
	cp /tmp/src$i $M/f$i &
done
wait
forget
for i in 1 2 3 4; do same /tmp/src$i $M/f$i; done
is "connections of the mount" "$(sed -n "/ on ${M//\//\\/} /,\$p" /proc/self/mountstats | grep -c '^[[:space:]]*xprt:[[:space:]]*\(rdma\|tcp\) ')" 4
umount $M
