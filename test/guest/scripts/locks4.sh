# Locks of two guests, by version 4: they need no further program.
m
PATIENCE=120
contend 15
# Ranges: each has every other record; what one holds the other may not.
cat >/tmp/ranges.py <<'P'
import fcntl, os, sys
path, who = sys.argv[1], sys.argv[2]
fd = os.open(path, os.O_RDWR)
mine = 0 if who == "a" else 1
print("ready", flush=True)
sys.stdin.readline()
for i in range(50):
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10 * (2 * i + mine))
print("locked", flush=True)
sys.stdin.readline()
for i in range(50):
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 10 * (2 * i + 1 - mine) + 9)
        sys.exit("record %d was free" % i)
    except BlockingIOError:
        pass
print("refused", flush=True)
sys.stdin.readline()
fcntl.lockf(fd, fcntl.LOCK_UN, 500, 0)
print("unlocked", flush=True)
sys.stdin.readline()
for i in range(25):
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10 * (2 * i + 1 - mine))
print("had", flush=True)
sys.stdin.readline()
P
coproc P { python3 /tmp/ranges.py $M/file "$GUEST"; }
p=$P_PID
for what in ready locked refused unlocked had; do
	read -r -t 60 got <&"${P[0]}" || die "no answer to $what"
	is "stage" "$got" $what
	both
	[ $what = had ] || echo go >&"${P[1]}"
done
# One process ends with its locks, and the other guest has the whole file.
if [ "$GUEST" = a ]; then
	kill -9 $P_PID
	wait "$p" || true
fi
both
if [ "$GUEST" = b ]; then
	echo go >&"${P[1]}"
	wait "$p"
	flock -n -x $M/file true || die "the locks of a process that has ended are still there"
fi
both
# Locks of open file descriptions: two of one process are in each other's way as two guests are,
# a process that ends keeps nothing, and a descriptor that was inherited keeps all.
cat >/tmp/ofd.py <<'P'
import fcntl, os, struct, subprocess, sys
path, holds = sys.argv[1], sys.argv[2] == "a"
SETLK, GETLK = 37, 36
def lock(fd, kind, start=0, length=10):
    fcntl.fcntl(fd, SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
def busy(fd, kind):
    try:
        lock(fd, kind)
    except OSError as e:
        assert e.errno in (11, 13), e
        return True
    return False
one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
def stage(what):
    print(what, flush=True)
    sys.stdin.readline()
if holds:
    lock(one, fcntl.F_WRLCK)
    assert busy(two, fcntl.F_RDLCK), "two descriptions of one process have one lock"
stage("held")
if not holds:
    assert busy(one, fcntl.F_RDLCK), "the other guest's lock is not in the way"
    kind = struct.unpack("hhqqi4x", fcntl.fcntl(one, GETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 10, 0)))[0]
    assert kind == fcntl.F_WRLCK, kind
stage("seen")
if holds:
    # The child has the description; that this one closes it changes nothing.
    child = subprocess.Popen(["/bin/busybox", "sleep", "100"], pass_fds=[one], stdin=subprocess.DEVNULL)
    os.close(one)
    assert busy(two, fcntl.F_RDLCK), "closed by one of two processes"
stage("inherited")
if not holds:
    assert busy(one, fcntl.F_RDLCK), "closed by one of two processes of the other guest"
stage("inherited seen")
if holds:
    child.kill()
    child.wait()
    lock(two, fcntl.F_RDLCK)
stage("gone")
if not holds:
    lock(one, fcntl.F_RDLCK)
    assert busy(two, fcntl.F_WRLCK)
stage("shared")
P
coproc Q { python3 /tmp/ofd.py $M/file "$GUEST"; }
q=$Q_PID # bash forgets it when the process has ended
for what in held seen inherited "inherited seen" gone shared; do
	read -r -t 60 got <&"${Q[0]}" || die "no answer to $what"
	is "stage" "$got" "$what"
	both
	[ "$what" = shared ] || echo go >&"${Q[1]}"
done
echo go >&"${Q[1]}"
wait "$q"
both
count_locked
umount $M
