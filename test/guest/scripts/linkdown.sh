# Twenty seconds without a link in the middle of a copy.
m
random /tmp/src 256
cp /tmp/src $M/file &
p=$!
sleep 1.5
ip link set eth0 down
say "down"
sleep 20
ip link set eth0 up
say "up"
wait $p
say "copied"
forget
same /tmp/src $M/file
umount $M
