# A guest is frozen for longer than its lease. As long as nobody wants what it has, it keeps
# it; who wants it then has it, and the guest, back, hears that it has lost it and does not write.
m
PATIENCE=100
if [ "$GUEST" = a ]; then
	echo content >$M/file
	exec 9<>$M/file
	flock -x 9
	exec 8<>$M/other
fi
both
if [ "$GUEST" = b ]; then busy -x; fi
both
if [ "$GUEST" = a ]; then
	tell first
	await first.over
	echo kept >&9
	sync $M/file
fi
both
if [ "$GUEST" = b ]; then busy -x; fi
both
if [ "$GUEST" = a ]; then
	tell second
	await second.over
	if echo lost >&9 && sync $M/file; then
		forget
		[ "$(cat $M/file)" = theirs ] || die "wrote to what somebody else has locked: '$(cat $M/file)'"
		die "a write under a lock that is lost was not refused"
	fi
	exec 9<&- || true
	say "refused, as it should be"
else
	await second.frozen
	before=$SECONDS
	lock -x
	say "after $((SECONDS - before)) s"
	echo theirs >$M/file
	tell taken
fi
both
forget
is "file" "$(cat $M/file)" theirs
if [ "$GUEST" = a ]; then busy -x; fi
both
if [ "$GUEST" = b ]; then release; fi
both
if [ "$GUEST" = a ]; then
	timeout 60 flock -x $M/file sh -c "echo mine again >$M/file"
	echo new >&8 || true
	exec 8<&- || true
fi
both
forget
is "file" "$(cat $M/file)" "mine again"
both
umount -f $M || umount -l $M
