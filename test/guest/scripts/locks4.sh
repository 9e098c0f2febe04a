# Locks of two guests, by version 4: they need no further program.
m
PATIENCE=120
contend 60
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
for what in ready locked refused unlocked had; do
	read -r -t 60 got <&"${P[0]}" || die "no answer to $what"
	is "stage" "$got" $what
	both
	[ $what = had ] || echo go >&"${P[1]}"
done
# One process ends with its locks, and the other guest has the whole file.
if [ "$GUEST" = a ]; then
	kill -9 $P_PID
	wait $P_PID || true
fi
both
if [ "$GUEST" = b ]; then
	echo go >&"${P[1]}"
	wait $P_PID
	flock -n -x $M/file true || die "the locks of a process that has ended are still there"
fi
both
count_locked
umount $M
