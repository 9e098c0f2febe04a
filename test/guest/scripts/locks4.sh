# Locks of two guests, by version 4: they need no further program.
m
other=$([ "$GUEST" = a ] && echo b || echo a)
step=0
both() {
	step=$((step + 1))
	tell "$GUEST.$step"
	await "$other.$step" 120
}
# lock OPTIONS: holds the lock on $M/file until release.
lock() {
	exec 9<>$M/file
	timeout 100 flock $1 9
}
release() { exec 9<&-; }
busy() { if flock $1 -n $M/file true; then die "a lock with $1 was free"; fi; }

[ "$GUEST" != a ] || echo content >$M/file
both
if [ "$GUEST" = a ]; then lock -x; fi
both
if [ "$GUEST" = b ]; then busy -x; busy -s; fi
both
# One waits, the other gives up the lock two seconds later.
if [ "$GUEST" = b ]; then
	tell waits
	before=$SECONDS
	lock -x
	[ $((SECONDS - before)) -lt 60 ] || die "waited for $((SECONDS - before)) seconds"
	say "after $((SECONDS - before)) s"
else
	await waits
	sleep 2
	release
fi
both
if [ "$GUEST" = a ]; then busy -s; fi
both
if [ "$GUEST" = b ]; then release; fi
both
lock -s # shared, by both
both
busy -x
both
release
both
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
# What is read under a lock is what was written under it.
for i in $($B seq 10); do
	lock -x
	echo $(($(cat $M/count 2>/dev/null || echo 0) + 1)) >$M/count
	release
done
both
forget
is "counted" "$(cat $M/count)" 20
both
umount $M
