# The server is killed and started again while one guest holds a lock: it keeps it, and
# goes on writing to what it has open. The other gets nothing before.
m
PATIENCE=150
if [ "$GUEST" = a ]; then
	echo content >$M/file
	exec 9<>$M/file
	flock -x 9
	exec 8>>$M/log
	echo before >&8
fi
both
if [ "$GUEST" = b ]; then
	if flock -n -x $M/file true; then die "the lock was free"; fi
	exec 7<$M/file
fi
both
[ "$GUEST" != a ] || tell loaded
await restarted 60
before=$SECONDS
if [ "$GUEST" = b ]; then
	if timeout 120 flock -n -x $M/file true; then die "the lock was free after the restart"; fi
	is "content" "$(cat <&7)" content
	echo new >$M/new
	say "served again after $((SECONDS - before)) s"
	[ $((SECONDS - before)) -lt ${GRACE:-80} ] || die "the grace period went on for $((SECONDS - before)) s, though both were back"
else
	echo after >&8
	exec 8>&-
	say "written after $((SECONDS - before)) s"
fi
both
forget
is "log" "$(tr '\n' ' ' <$M/log)" "before after "
is "new" "$(cat $M/new)" new
if [ "$GUEST" = a ]; then exec 9<&-; fi
both
if [ "$GUEST" = b ]; then timeout 60 flock -x $M/file true; exec 7<&-; fi
both
umount $M
