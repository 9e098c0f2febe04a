# Names are made, linked, renamed and removed while the server is killed again and again. Every call has a name of its
# own. A call that the server carries out twice therefore fails with EEXIST or ENOENT. Files are opened with a mode that
# keeps their owner from opening them again, which would be EACCES. After a restart of the server a client of version 4.0
# that had a file open may change nothing for a whole lease, so that it opens none.
m
mkdir -m 777 $M/once
cat >/tmp/once.py <<'END'
import os, sys

top, stop, version = sys.argv[1:]

def create(path, flags):
    """Make a file that cannot be opened for writing, and write into it."""
    f = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o400)
    os.write(f, b"content")
    os.close(f)

def load(worker):
    """Change names until the host says stop. Return 1 if a call failed."""
    os.setuid(1000)
    failed = n = 0
    while not os.path.exists(stop):
        p = "%s/%d.%d." % (top, worker, n)
        n += 1
        opens = () if version == "4.0" else (
            (create, (p + "exclusive", os.O_EXCL)),
            (create, (p + "file", 0)),
            (create, (p + "truncated", os.O_TRUNC)),
            (os.unlink, (p + "exclusive",)),
            (os.unlink, (p + "file",)),
            (os.unlink, (p + "truncated",)),
        )
        for call, args in opens + (
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
    print("%d rounds of %d calls" % (n, 7 + len(opens)), flush=True)
    return failed

children = []
for worker in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(load(worker))
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
END
python3 /tmp/once.py $M/once /run/host/at.stop "$VERS" & x=$!
tell loaded
wait $x || die "a call was carried out twice"
is "what is left" "$(ls $M/once)" ""
umount $M
