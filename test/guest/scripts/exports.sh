# Exports of a table as /etc/exports: one below another, something mounted below it, one for
# RDMA alone, and rules that change under a mount.
TOP=$(cat /run/host/top)
leave() { # submounts first
	local at
	for at in $($B awk -v m="$M/" 'index($2, m) == 1 {print $2}' /proc/mounts | $B tac); do umount "$at"; done
	umount $M
}
m "" $TOP/top
is "below a mount" "$(cat $M/a/mnt/inside)" "on another file system"
is "below an export" "$(cat $M/sub/own/file)" "made on the host"
is "file systems" "$(stat -c %d $M/a $M/a/mnt/inside $M/sub/own/file | sort -u | wc -l)" 3
touch $M/new $M/a/mnt/new
refused "Read-only file system" touch $M/sub/own/new
is "listed" "$(ls $M/a/mnt | tr '\n' ' ')" "inside new "
leave

m "" $TOP/fast
touch $M/file
umount $M
if CARRIER=proto=tcp m "" $TOP/fast 2>/tmp/refused; then die "mounted by TCP"; fi
cat /tmp/refused

m noac $TOP/top
echo before >$M/file
exec 9>>$M/file
echo open >&9
tell mounted
await readonly
refused "Read-only file system" mkdir $M/dir
refused "Read-only file system" rm $M/file
if dd if=/dev/zero of=$M/file conv=notrunc,fsync bs=4096 count=1 2>/tmp/why; then die "a write was not refused"; fi
forget
is "content" "$(cat $M/file)" "$(printf 'before\nopen')"
tell refused
await writable
mkdir $M/dir
echo after >&9
exec 9>&-
forget
is "content" "$(tail -n 1 $M/file)" "after"
tell wrote
await gone
refused "Permission denied" ls $M/dir
tell denied
await back
ls $M/dir
leave
