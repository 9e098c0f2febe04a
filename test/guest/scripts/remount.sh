for i in $($B seq 30); do
	m >/dev/null
	echo "$i" >>$M/log
	is lines "$(wc -l <$M/log)" "$i"
	umount $M
done
m
mount -o remount,ro $M
refused "Read-only file system" touch $M/new
mount -o remount,rw $M
touch $M/new
# Busy, then by force.
exec 3>$M/open
refused "busy" umount $M
exec 3>&-
umount $M
refused "No such file or directory" m "" /nothing
refused "No such file or directory" m "" /e/missing
sleep 1.5
tell gone
await checked
