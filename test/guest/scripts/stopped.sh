# The server stands still for thirty seconds in the middle of a copy.
m
random /tmp/src 256
tell loaded
cp /tmp/src $M/file
say "copied"
forget
same /tmp/src $M/file
umount $M
