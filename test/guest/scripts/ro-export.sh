# The client believes that it may write; the server says no each time.
m
is content "$(cat $M/file)" "made on the host"
refused "Read-only file system" touch $M/new
refused "Read-only file system" mkdir $M/dir
refused "Read-only file system" ln -s x $M/link
refused "Read-only file system" ln $M/file $M/link
refused "Read-only file system" mv $M/file $M/other
refused "Read-only file system" rm $M/file
refused "Read-only file system" chmod 600 $M/file
# Opening by version 3 asks ACCESS first, which has no reason to give.
why="Permission denied"
[ -z "${VERS:-}" ] || why="Read-only file system"
refused "$why" truncate -s 0 $M/file
if (echo x >>$M/file) 2>/dev/null; then die "a write was not refused"; fi
forget
is content "$(cat $M/file)" "made on the host"
umount $M
