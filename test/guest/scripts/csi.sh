# The driver of the Container Storage Interface with the kernel's client: csi-sanity, then a volume over RDMA
# and over TCP with files in it. The programs are the host's, and are run from memory.
VERS=4.2 m "" /e/tools
cp $M/rstored-csi $M/csicall $M/csi-sanity /tmp
umount $M
S=/tmp/csi.sock
T=/tmp/pods
mkdir $T
/tmp/rstored-csi --endpoint unix://$S --controller --node --address "$(my_address)" >/tmp/csi.log 2>&1 &
driver=$!
trap 'echo "line $((LINENO)): $BASH_COMMAND failed"; tail -n 5 /tmp/csi.log' ERR
call() { /tmp/csicall $S "$@"; }
for i in $($B seq 200); do [ ! -S $S ] || break; $B usleep 50000; done

printf 'server: %s\nshare: /e/volumes\n' "$HOST" >/tmp/class
say "csi-sanity"
/tmp/csi-sanity --csi.endpoint unix://$S --csi.testvolumeparameters /tmp/class --csi.mountdir $T/mount --csi.stagingdir $T/stage \
	--ginkgo.no-color >/tmp/sanity.log 2>&1 || { grep -A 3 FAIL /tmp/sanity.log; die "csi-sanity"; }
tail -n 4 /tmp/sanity.log | grep Passed
grep ' 0 Failed' /tmp/sanity.log >/dev/null
! grep " nfs4* " /proc/mounts || die "csi-sanity has left a mount"

# A volume over RDMA, at a second path read-only.
call create pvc-1 1048576 server=$HOST share=/e/volumes mode=0770 uid=1000 gid=1000 >/tmp/v
cat /tmp/v
call publish /tmp/v $T/1 noatime,hard
call publish /tmp/v $T/1 noatime,hard # again is the same
is "mounts" "$(grep -c " $T/1 " /proc/mounts)" 1
grep " $T/1 nfs4 rw,noatime.*vers=4.2.*,proto=rdma,port=20049" /proc/mounts
is "owner" "$(stat -c '%u %g %a' $T/1)" "1000 1000 770"
if call publish /tmp/v $T/1 ro 2>/tmp/err; then die "published twice, in two ways"; fi
grep AlreadyExists /tmp/err
random /tmp/file 8
cp /tmp/file $T/1/file
cp /tmp/file /run/host/file
call publish /tmp/v $T/2 ro
refused "Read-only file system" touch $T/2/new
forget
same /tmp/file $T/2/file
is "total" "$(call stats /tmp/v $T/1 | sed 's/.*"total":\([0-9]*\).*"unit":1.*/\1/')" "$(($(stat -f -c '%b * %S' $T/1)))"
tell written
await seen

# What a person reads when something is wrong.
sed 's,"directory":"pvc-1","directory":"none",; s,"directory": *"pvc-1","directory":"none",' /tmp/v >/tmp/w
if call publish /tmp/w $T/4 2>/tmp/err; then die "published what is not there"; fi
grep 'NotFound.*/e/volumes/none: .*the server has no such directory' /tmp/err || { cat /tmp/err; die "what is not there"; }

# A file that is open keeps its volume; the pod's end frees it.
exec 8<$T/1/file
if call unpublish /tmp/v $T/1 2>/tmp/err; then die "unmounted under an open file"; fi
grep "still used" /tmp/err
exec 8<&-
for i in 1 2 4; do call unpublish /tmp/v $T/$i; done
call unpublish /tmp/v $T/1 # again is the same
# Over TCP, when nothing of the server is mounted over RDMA: the kernel would know it again, and use that.
call publish /tmp/v $T/3 tcp
grep " $T/3 nfs4 rw,.*,proto=tcp" /proc/mounts
same /tmp/file $T/3/file
call unpublish /tmp/v $T/3
is "paths" "$(ls -A $T)" ""
! grep " nfs4* " /proc/mounts || die "still mounted"
call delete /tmp/v
call delete /tmp/v
tell deleted
kill $driver
wait $driver
