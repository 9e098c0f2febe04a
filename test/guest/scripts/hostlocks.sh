# Locks that a program on the server's host sees, and those of such a program.
mkdir -p $M
if [ -n "${VERS:-}" ]; then
	m
else
	rpcbind
	rpc.statd --no-notify
	timeout 40 mount -t nfs -o "rdma,port=20049,vers=3" "$HOST:/e" $M
	! grep " $M nfs .*nolock" /proc/mounts
fi
cat >/tmp/locks.py <<'P'
import errno, fcntl, os, sys, time
host = "/run/host/at."
def tell(name):
    open(host + name, "w").close()
def wait(name):
    for _ in range(1200):
        if os.path.exists(host + name):
            return
        time.sleep(0.05)
    sys.exit("nobody told of " + name)
fd = os.open("/mnt/file", os.O_RDWR)
def busy(how, n, at):
    try:
        fcntl.lockf(fd, how | fcntl.LOCK_NB, n, at)
    except OSError as e:
        assert e.errno in (errno.EAGAIN, errno.EACCES), e
        return
    sys.exit("%d bytes at %d are not locked by the host" % (n, at))
# What is locked here the host sees.
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 10)
tell("locked")
wait("seen")
fcntl.lockf(fd, fcntl.LOCK_UN, 5, 0)
tell("half")
wait("half-seen")
fcntl.lockf(fd, fcntl.LOCK_UN, 0, 0)
tell("unlocked")
# What the host has locked is locked here.
wait("host-locked")
busy(fcntl.LOCK_EX, 1, 9)
busy(fcntl.LOCK_SH, 0, 0)
busy(fcntl.LOCK_EX, 1, 15)
fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 10, 10)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)
fcntl.lockf(fd, fcntl.LOCK_UN, 0, 0)
tell("waiting")
before = time.time()
fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
took = time.time() - before
print("waited for %.1f s" % took)
assert os.path.exists(host + "host-unlocking"), "had what the host has"
assert took < 60, took
tell("had")
wait("had-seen")
os.close(fd)
P
echo content >$M/file
python3 -c 'open("/mnt/file", "r+").read()'
tell made
await ready
python3 /tmp/locks.py
umount $M
