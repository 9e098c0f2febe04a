# Something happens on the host in the middle of a copy: see the cases.
m
random /tmp/src 256
tell loaded
cp /tmp/src $M/file
say "copied"
forget
same /tmp/src $M/file
umount $M
