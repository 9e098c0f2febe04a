# NFS version 4.2, or WANT, on the pseudo-root, across into an export: no MOUNT, no port mapper.
mkdir -p $M
timeout 40 mount -t nfs -o "$OPTS" "$HOST:/" $M
grep " $M nfs4 " /proc/mounts
is version "$(sed -n "s/^[^ ]* ${M//\//\\/} nfs4 .*[, ]vers=\([^, ]*\).*/\1/p" /proc/mounts)" "${WANT:-4.2}"
ls -la $M
[ -d $M/e ] || die "the export is not in the pseudo-root"
refused "Read-only file system" mkdir $M/new
cd $M/e
[ "$(stat -c %d .)" != "$(stat -c %d ..)" ] || die "the export has the device number of the pseudo-root"
grep " $M/e nfs4 " /proc/mounts

for mib in 1 64; do
	random /tmp/src $mib
	say "writing $mib MiB"
	cp /tmp/src file
	forget
	say "reading"
	same /tmp/src file
done
say "attributes"
chmod 640 file
chown 1000:1001 file
touch -d '2001-02-03 04:05:06.789' file
forget
is "attributes" "$(stat -c '%a %u %g %Y %s' file)" "640 1000 1001 $(date -d '2001-02-03 04:05:06' +%s) $((64 << 20))"
truncate -s 12345 file
is "size" "$(stat -c %s file)" 12345
forget
head -c 12345 /tmp/src >/tmp/cut
same /tmp/cut file

say "names"
mkdir -p d/deep/er
echo one >d/one
ln d/one d/two
ln -s ../one d/deep/link
mkfifo d/fifo
mknod d/null c 1 3
forget
is "links" "$(stat -c %h d/one)" 2
is "content" "$(cat d/deep/link)" one
is "types" "$(stat -c %F d/fifo d/null d/deep/link | tr '\n' ' ')" "fifo character special file symbolic link "
mv d/one d/deep/three
forget
is "content" "$(cat d/deep/three)" one
refused "No such file" cat d/one
refused "File exists" mkdir d/deep
refused "Directory not empty" rmdir d
refused "Not a directory" mkdir d/two/x
echo replaced >d/four
mv -f d/four d/two
is "content" "$(cat d/two)" replaced
(
	set -o noclobber
	echo new >d/excl
	! echo again >d/excl
) 2>/dev/null
is "content" "$(cat d/excl)" new
[ $(($(date +%s) - $(stat -c %Y d/excl))) -lt 600 ] || die "the time of a file made by O_EXCL is $(stat -c %y d/excl)"
for i in $($B seq 300); do echo $i >d/deep/er/file-$i; done
forget
is "names in a directory" "$(ls d/deep/er | wc -l)" 300
is "sum" "$(cat d/deep/er/* | $B awk '{s+=$1} END {print s}')" 45150
$B find d | sort >/tmp/names
ls -lR d >/tmp/list

say "a file removed while it is open"
exec 9<>d/excl
rm d/excl
echo more >&9
is "content" "$(cat /proc/self/fd/9)" "$(printf 'more')"
exec 9<&-
refused "No such file" cat d/excl

say "locks"
exec 8<>d/two
flock -x 8
refused "" flock -n -x d/two true
exec 8<&-
flock -n -x d/two true

say "who may do what"
echo secret >private
chmod 600 private
refused "Permission denied" setpriv --reuid 1000 --regid 1000 --clear-groups -- cat private
df -h .
stat -f . | grep -q "Namelen: 255"
rm -r d private file
forget
is "names left" "$(ls | wc -l)" 0
cd /
umount $M/e $M
