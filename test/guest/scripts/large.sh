# More than the guest's memory, and more than 32 bits in offsets.
m
say "1200 MiB in"
head -c 1200M /dev/urandom | tee >(sha256sum >/tmp/sum) >$M/large
forget
say "out"
is sum "$(sha256sum <$M/large)" "$(cat /tmp/sum)"
rm $M/large
say "around 4 GiB and 1 TiB"
random /tmp/src 2
for at in 4294963200 4294967295 1099511627775; do
	dd if=/tmp/src of=$M/sparse bs=1M oflag=seek_bytes seek=$at conv=notrunc status=none
	forget
	dd if=$M/sparse of=/tmp/back bs=1M iflag=skip_bytes skip=$at count=2 status=none
	same /tmp/src /tmp/back
	is size "$(stat -c %s $M/sparse)" $((at + (2 << 20)))
done
umount $M
