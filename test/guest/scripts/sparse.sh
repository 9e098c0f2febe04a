# Holes, space set aside, and copies that the server makes, by version 4.2.
m
cd $M
say "holes"
truncate -s 64M sparse
random /tmp/src 1
dd if=/tmp/src of=sparse bs=1M seek=40 conv=notrunc status=none
sync
cat >/tmp/seek.py <<'P'
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
data = os.lseek(fd, 0, os.SEEK_DATA)
print(data, os.lseek(fd, data, os.SEEK_HOLE))
try:
    os.lseek(fd, 50 << 20, os.SEEK_DATA)
    print("data")
except OSError as e:
    print(e.errno)
P
is "where the data is" "$(python3 /tmp/seek.py sparse | tr '\n' ' ')" "$((40 << 20)) $((41 << 20)) 6 "
[ "$(stat -c %b sparse)" -lt $((4 << 11)) ] || die "the file takes $(stat -c %b sparse) blocks"

cp sparse sparser
cp --sparse=always sparse sparsest
forget
for f in sparser sparsest; do
	same sparse $f
	[ "$(stat -c %b $f)" -lt $((4 << 11)) ] || die "a copy of the file, $f, takes $(stat -c %b $f) blocks"
done

say "fallocate"
fallocate -l 8M space
forget
is "size" "$(stat -c %s space)" $((8 << 20))
[ "$(stat -c %b space)" -ge $((8 << 11)) ] || die "8 MiB take $(stat -c %b space) blocks"
head -c 8M /dev/zero | tr '\0' y >space
fallocate -p -o 1M -l 4M space
forget
is "bytes that are left" "$(tr -d '\0' <space | wc -c)" $((4 << 20))
[ "$(stat -c %b space)" -le $((5 << 11)) ] || die "4 MiB take $(stat -c %b space) blocks"

say "copy_file_range"
random /tmp/big 48
cp /tmp/big big
cat >/tmp/copy.py <<'P'
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
left = os.fstat(a).st_size
while left > 0:
    n = os.copy_file_range(a, b, left)
    assert n > 0, n
    left -= n
P
before=$(awk '/^[[:space:]]*COPY:/ {print $2}' /proc/self/mountstats)
python3 /tmp/copy.py big copy
forget
same /tmp/big copy
after=$(awk '/^[[:space:]]*COPY:/ {print $2}' /proc/self/mountstats)
[ "$after" -gt "$before" ] || die "the server was not asked to copy ($before COPYs, then $after)"
cp --reflink=auto big clone
same /tmp/big clone
cd /
umount $M
