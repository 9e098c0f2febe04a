# Random operations on one file against a model of it.
m
cat >/tmp/fsx.py <<'P'
import mmap, os, random, sys
path, seed, ops = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(seed)
most = 1 << 20
flags = os.O_RDWR | os.O_CREAT
fd = os.open(path, flags)
model = bytearray()
last = []

def check(what, at, got, want):
    if got != want:
        n = next(i for i in range(max(len(got), len(want))) if got[i:i+1] != want[i:i+1])
        print("\n".join(last[-20:]))
        sys.exit("seed %d: %s at %d: differs from byte %d on (%d and %d bytes)" % (seed, what, at, at + n, len(got), len(want)))

for i in range(ops):
    op = random.choice(("write",) * 4 + ("read",) * 4 + ("truncate", "mapread", "mapwrite", "append", "reopen", "sync", "stat"))
    at = random.randrange(most)
    n = random.choice((1, 511, 4096, 4097, 65536, 200000))
    n = random.randrange(1, n + 1)
    last.append("%d %s %d %d" % (i, op, at, n))
    if op in ("write", "append"):
        if op == "append":
            at = len(model)
            n = min(n, 5000)
            if at + n > most: continue
        n = min(n, most - at)
        b = random.randbytes(n)
        assert os.pwrite(fd, b, at) == n
        if at > len(model): model.extend(bytes(at - len(model)))
        model[at:at+n] = b
    elif op == "read":
        check("read", at, os.pread(fd, n, at), bytes(model[at:at+n]))
    elif op == "truncate":
        os.ftruncate(fd, at)
        if at < len(model): del model[at:]
        else: model.extend(bytes(at - len(model)))
    elif op in ("mapread", "mapwrite") and model:
        m = mmap.mmap(fd, len(model))
        at = random.randrange(len(model))
        n = min(n, len(model) - at)
        if op == "mapread": check("mapping", at, m[at:at+n], bytes(model[at:at+n]))
        else:
            b = random.randbytes(n)
            m[at:at+n] = b
            model[at:at+n] = b
        m.close()
    elif op == "reopen":
        os.close(fd)
        if random.randrange(3) == 0:
            open("/proc/sys/vm/drop_caches", "w").write("3")
        fd = os.open(path, flags | (os.O_SYNC if random.randrange(4) == 0 else 0))
    elif op == "sync": os.fsync(fd)
    elif op == "stat":
        if os.fstat(fd).st_size != len(model): check("size", 0, b"", bytes(model))
os.close(fd)
open("/proc/sys/vm/drop_caches", "w").write("3")
check("all", 0, open(path, "rb").read(), bytes(model))
P
for seed in 1 2 3 4; do
	say "seed $seed"
	python3 /tmp/fsx.py $M/f$seed $seed 2000 || { keep $M/f$seed; exit 1; }
done
umount $M
m rsize=4096,wsize=4096
python3 /tmp/fsx.py $M/small 5 1000
umount $M
m sync
python3 /tmp/fsx.py $M/sync 6 500
umount $M
