m ro
is content "$(cat $M/file)" "made on the host"
refused "Read-only file system" touch $M/new
refused "Read-only file system" rm $M/file
umount $M
m
echo more >>$M/file
umount $M
