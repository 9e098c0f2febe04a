# Of the export's file system 8 MiB may be used.
m
random /tmp/src 4
cp /tmp/src $M/fits
if dd if=/dev/zero of=$M/more bs=1M count=8 conv=fsync 2>/tmp/err; then die "8 MiB more were taken"; fi
cat /tmp/err
grep -q "Disk quota exceeded\|Quota exceeded" /tmp/err
forget
same /tmp/src $M/fits
rm $M/more
random /tmp/src 2
cp /tmp/src $M/again
forget
same /tmp/src $M/again
umount $M
