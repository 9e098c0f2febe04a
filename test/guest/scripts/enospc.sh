# The file system of the export has 16 MiB and 200 files.
m
random /tmp/src 12
cp /tmp/src $M/fits
if dd if=/dev/zero of=$M/more bs=1M count=20 conv=fsync 2>/tmp/err; then die "20 MiB more were taken"; fi
grep -q "No space left on device" /tmp/err
forget
same /tmp/src $M/fits
rm $M/more
if (for i in $($B seq 300); do : >$M/$i; done) 2>/tmp/err; then die "300 files were taken"; fi
grep -q "No space left on device" /tmp/err
rm $M/[0-9]*
random /tmp/src 2
cp /tmp/src $M/again
forget
same /tmp/src $M/again
umount $M
