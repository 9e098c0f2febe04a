# Clients of versions 3, 4.0 and 4.1 of one guest, which wait for one lock: who has waited longest gets it
# first.
rpcbind
rpc.statd --no-notify
mkdir -p /mnt3 /mnt40 /mnt41 /mnt42
timeout 40 mount -t nfs -o "rdma,port=20049,vers=3" "$HOST:/e" /mnt3
! grep " /mnt3 nfs .*nolock" /proc/mounts
timeout 40 mount -t nfs -o "rdma,port=20049,vers=4.0" "$HOST:/e" /mnt40
timeout 40 mount -t nfs -o "rdma,port=20049,vers=4.1" "$HOST:/e" /mnt41
# Who holds the lock first is another client: the kernel does not ask the server for a lock that a process
# has by the same mount.
timeout 40 mount -t nfs -o "rdma,port=20049,vers=4.2" "$HOST:/e" /mnt42
cat >/tmp/wait.py <<'P'
import fcntl, os, sys, time
path, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
fd = os.open(path, os.O_RDWR)
print(name, "asks", time.time(), flush=True)
with open("/tmp/asked", "a") as f:
    f.write(name + "\n")
fcntl.lockf(fd, fcntl.LOCK_EX)
with open("/tmp/order", "a") as f:
    f.write(name + "\n")
time.sleep(seconds)
P
asked() { $B awk '{ printf "%s%s", sep, $0; sep = " " }' /tmp/asked; }
# ordered WAITER...: mounts by their numbers; each waiter asks when the one before it waits.
ordered() {
	local v pids=() holder=42 before
	say "wait: $*"
	echo content >"/mnt$holder/file.$*"
	local file="file.$*"
	for v in "$@"; do cat "/mnt$v/$file" >/dev/null; done
	: >/tmp/order
	: >/tmp/asked
	coproc H { exec python3 /tmp/wait.py "/mnt$holder/$file" "$holder" 1000; }
	local h=$H_PID
	settled "order" "$holder" cat /tmp/order
	local asked=$holder
	for v in "$@"; do
		python3 /tmp/wait.py "/mnt$v/$file" "$v" 3 &
		pids+=($!)
		asked="$asked $v"
		settled "who asked" "$asked" asked
		sleep 3 # until the server has the request
	done
	before=$SECONDS
	kill "$h"
	wait "$h" || true
	for v in "${pids[@]}"; do wait "$v"; done
	say "all had it after $((SECONDS - before)) s"
	is "order" "$($B tr '\n' ' ' </tmp/order)" "$holder $* "
	rm "/mnt$holder/$file"
}
# A client of version 4.0 polls more and more rarely, and may lose a place before others. It overtakes
# nobody.
ordered 3 41 40
ordered 41 3 40
ordered 3 41 3 41 40
umount /mnt3 /mnt40 /mnt41 /mnt42
