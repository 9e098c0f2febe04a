# Clones on a file system that shares blocks, by version 4.2.
m
cd $M
ops() { $B awk -v op="$1:" '$1 == op {n = $2} END {print n + 0}' /proc/self/mountstats; }
random /tmp/big 24
cp /tmp/big big
sync
before=$(df --output=used -k . | tail -1)
clones=$(ops CLONE)
cp --reflink=always big clone
[ "$(ops CLONE)" -gt "$clones" ] || die "the server was not asked to clone"
forget
same /tmp/big clone
after=$(df --output=used -k . | tail -1)
[ $((after - before)) -lt 8192 ] || die "a clone of 24 MiB took $((after - before)) KiB"

say "what is changed is not shared"
dd if=/dev/zero of=clone bs=1M seek=3 count=1 conv=notrunc status=none
cp /tmp/big /tmp/want
dd if=/dev/zero of=/tmp/want bs=1M seek=3 count=1 conv=notrunc status=none
forget
same /tmp/big big
same /tmp/want clone

say "a part of a file"
cat >/tmp/range.py <<'P'
import errno, fcntl, os, struct
FICLONERANGE = 0x4020940d
a, b = os.open("big", os.O_RDONLY), os.open("part", os.O_RDWR | os.O_CREAT)
def clone(src, n, dst): fcntl.ioctl(b, FICLONERANGE, struct.pack("qQQQ", a, src, n, dst))
clone(1 << 20, 2 << 20, 4096)
os.fsync(b)
try:
    clone(1000, 4096, 0)
    raise AssertionError("an unaligned clone")
except OSError as e:
    assert e.errno == errno.EINVAL, e
P
python3 /tmp/range.py
forget
head -c 4096 /dev/zero >/tmp/want
dd if=/tmp/big bs=1M skip=1 count=2 status=none >>/tmp/want
same /tmp/want part

say "copies that the server makes of shared blocks"
copies=$(ops COPY)
cat >/tmp/copy.py <<'P'
import os
a, b = os.open("big", os.O_RDONLY), os.open("copy", os.O_RDWR | os.O_CREAT)
left = os.fstat(a).st_size
while left > 0:
    n = os.copy_file_range(a, b, left)
    assert n > 0, n
    left -= n
P
python3 /tmp/copy.py
[ "$(ops COPY)" -gt "$copies" ] || die "the server was not asked to copy"
forget
same /tmp/big copy
cd /
umount $M
