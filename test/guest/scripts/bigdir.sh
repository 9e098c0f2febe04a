m
mkdir $M/d
say "making 20000 names"
python3 - <<'P'
import os
for i in range(20000):
    os.close(os.open("/mnt/d/a-name-of-usual-length-%05d.dat" % i, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
P
say "listing"
forget
is names "$(ls -U $M/d | wc -l)" 20000
is "different names" "$(ls -U $M/d | sort -u | wc -l)" 20000
forget
say "listing with attributes"
is files "$(ls -lU $M/d | grep -c '^-rw-r--r--')" 20000
say "removing every second while listing"
python3 - <<'P'
import os
n = 0
seen = set()
with os.scandir("/mnt/d") as it:
    for e in it:
        assert e.name not in seen, e.name
        seen.add(e.name)
        if n % 2 == 0:
            os.unlink(e.path)
        n += 1
assert n == 20000, n
P
forget
is names "$(ls -U $M/d | wc -l)" 10000
say "removing"
rm -r $M/d
say "gone"
umount $M
