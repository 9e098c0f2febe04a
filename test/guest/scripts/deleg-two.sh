# A file delegated to one guest is wanted by the other: read after the one has written, written
# while the one reads, removed, renamed, truncated. Each time the one gives it back, and
# the other waits no longer than that takes.
m
PATIENCE=30
# quick SECONDS COMMAND...
quick() {
	local before=$SECONDS most=$1
	shift
	timeout 30 "$@"
	[ $((SECONDS - before)) -le "$most" ] || die "$* took $((SECONDS - before)) s"
}
write() { echo "$1" >"$2"; }
# By turns, so that a file for whose delegation somebody waited is not the next one.
for round in 1 2 3 4; do
	one=a two=b
	[ $((round % 2)) = 1 ] || one=b two=a
	f=$M/file$round
	if [ "$GUEST" = $one ]; then
		echo mine >$f
		delegated $f
		returned=$(calls DELEGRETURN)
	fi
	both
	if [ "$GUEST" = $two ]; then
		case $round in
		1) quick 3 $B sh -c "echo theirs >$f" ;;
		2) quick 3 $B truncate -s 2 $f ;;
		3) quick 3 mv $f $f.away; echo theirs >$f ;;
		4) quick 3 rm $f; echo theirs >$f ;;
		esac
	fi
	both
	if [ "$GUEST" = $one ]; then
		[ "$(calls DELEGRETURN)" -gt "$returned" ] || die "round $round: the delegation was not returned"
	fi
	# The kernel opens by file handle what it knows by name, and believes the name for
	# as long as it believes what it knows of the directory.
	[ $round != 3 ] || forget
	want=theirs
	[ $round != 2 ] || want=mi
	is "round $round" "$(cat $f)" "$want"
	both
done
if [ "$VERS" = 4.0 ]; then # which has no delegations for writing here
	umount $M
	exit 0
fi
say "for writing"
if [ "$GUEST" = a ]; then
	exec 7<>$M/written
	echo first >&7
	delegated $M/written
fi
both
if [ "$GUEST" = b ]; then is "what the other has not closed" "$(quick 5 cat $M/written)" first; fi
both
if [ "$GUEST" = a ]; then
	echo second >&7
	exec 7>&-
fi
both
is "written" "$(cat $M/written)" "$(printf 'first\nsecond')"
both
umount $M
