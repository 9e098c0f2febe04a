m
cat >/tmp/maps.py <<'P'
import mmap, os, random, sys
random.seed(int(sys.argv[2]))
size = 8 << 20
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, size)
m = mmap.mmap(fd, size)
model = bytearray(size)
for i in range(3000):
    at = random.randrange(size)
    n = min(random.choice((1, 7, 100, 4096, 20000)), size - at)
    b = random.randbytes(n)
    if i % 10 == 9:
        os.pwrite(fd, b, at)  # both ways to the same pages
    else:
        m[at:at + n] = b
    model[at:at + n] = b
    if i % 500 == 0:
        m.flush()
assert m[:] == model, "the mapping itself differs"
m.flush()
m.close()
os.close(fd)
open("/tmp/model", "wb").write(model)
P
for seed in 1 2 3; do
	python3 /tmp/maps.py $M/mapped $seed
	forget
	same /tmp/model $M/mapped
	rm $M/mapped
done
# A program that runs from the mount is mapped, too.
cp /bin/bash $M/bash
forget
is "a program of the mount" "$($M/bash -c 'echo runs')" runs
umount $M
