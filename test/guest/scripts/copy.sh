# Long copies that the server makes after it has answered, within an export and between two.
m "" /
cd $M
# counted OP: how often it was sent, over all mounts.
counted() { $B awk -v op="$1:" '$1 == op {n += $2} END {print n + 0}' /proc/self/mountstats; }
cat >/tmp/copy.py <<'P'
import os, signal, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
if len(sys.argv) > 3:
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[3]))
left = os.fstat(a).st_size
while left > 0:
    n = os.copy_file_range(a, b, left)
    assert n > 0, n
    left -= n
P
size=$(stat -c %s one/big)
# The server calls nobody that has not answered before.
ls one two
sleep 1

for to in one/copy two/copy; do
	say "copy_file_range to $to"
	before=$(counted COPY)
	python3 /tmp/copy.py one/big $to
	is "COPYs" "$(($(counted COPY) - before))" 1
	is "size" "$(stat -c %s $to)" "$size"
	tail -c 100000 one/big >/tmp/a
	tail -c 100000 $to >/tmp/b
	same /tmp/a /tmp/b
done

say "cp --reflink=auto"
before=$(counted COPY)
cp --reflink=auto one/big one/cp
[ "$(counted COPY)" -gt "$before" ] || die "the server was not asked to copy"

say "killed in the middle"
before=$(counted OFFLOAD_CANCEL)
for after in 0.01 0.02 0.05 0.1 0.2 0.03 0.07; do
	if python3 /tmp/copy.py one/big two/killed $after; then continue; fi
	sleep 0.5 # it is sent behind the process
	[ "$(counted OFFLOAD_CANCEL)" = "$before" ] || break
done
[ "$(counted OFFLOAD_CANCEL)" -gt "$before" ] || die "no OFFLOAD_CANCEL"
rm two/killed
tell copied
await compared
cd /
umount $M/one $M/two $M
