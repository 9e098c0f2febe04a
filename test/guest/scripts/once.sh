# Names are made, linked, renamed and removed while the server is killed again and again. Every call has a name of its
# own. A call that the server carries out twice therefore fails with EEXIST or ENOENT.
m
mkdir $M/once
cat >/tmp/once.py <<'END'
import os, sys

top, stop = sys.argv[1:]

def load(worker):
    """Change names until the host says stop. Return 1 if a call failed."""
    failed = n = 0
    while not os.path.exists(stop):
        p = "%s/%d.%d." % (top, worker, n)
        n += 1
        for call, args in (
            (os.mkdir, (p + "dir",)),
            (os.symlink, ("nowhere", p + "symlink")),
            (os.link, (p + "symlink", p + "link")),
            (os.rename, (p + "dir", p + "renamed")),
            (os.rmdir, (p + "renamed",)),
            (os.unlink, (p + "link",)),
            (os.unlink, (p + "symlink",)),
        ):
            try:
                call(*args)
            except OSError as e:
                print("%s %s: %s" % (call.__name__, args, e), flush=True)
                failed = 1
    print("%d rounds of 7 calls" % n, flush=True)
    return failed

children = []
for worker in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(load(worker))
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
END
python3 /tmp/once.py $M/once /run/host/at.stop & x=$!
tell loaded
wait $x || die "a call was carried out twice"
is "what is left" "$(ls $M/once)" ""
umount $M
