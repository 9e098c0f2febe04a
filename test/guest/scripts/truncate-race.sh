# One guest writes records, the other truncates. Afterwards every record is whole,
# zero, or cut at the end; and the server still has the size that both see.
m
other=$([ "$GUEST" = a ] && echo b || echo a)
cat >/tmp/race.py <<'P'
import os, random, sys
path, who = sys.argv[1], sys.argv[2]
random.seed(who)
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_SYNC)
rec = 4096
for i in range(1500):
    if who == "a" or i % 3:
        at = random.randrange(256)
        os.pwrite(fd, (who + "%015d" % at).encode() * (rec // 16), at * rec)
    else:
        os.ftruncate(fd, random.randrange(256) * rec)
os.close(fd)
P
cat >/tmp/check.py <<'P'
import sys
b = open(sys.argv[1], "rb").read()
for at in range(0, len(b), 4096):
    r = b[at:at + 4096]
    ok = {bytes(len(r))} | {((w + "%015d" % (at // 4096)).encode() * 256)[:len(r)] for w in "ab"}
    if r not in ok:
        sys.exit("the record at %d is mixed: %r..." % (at, r[:64]))
print(len(b), "bytes")
P
for round in 1 2 3; do
	tell "$GUEST.begin$round"
	await "$other.begin$round"
	python3 /tmp/race.py $M/file "$GUEST"
	tell "$GUEST.end$round"
	await "$other.end$round"
	forget
	python3 /tmp/check.py $M/file | tee /tmp/size
	cp /tmp/size "$M/size.$GUEST"
	tell "$GUEST.size$round"
	await "$other.size$round"
	is "size here and there" "$(cat "$M/size.$GUEST")" "$(cat "$M/size.$other")"
	tell "$GUEST.next$round"
	await "$other.next$round"
done
umount $M
