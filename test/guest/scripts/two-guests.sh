# Close-to-open: what one guest has written and closed, the other sees at its next open.
m
both
if [ "$GUEST" = a ]; then random /tmp/src 4; cp /tmp/src $M/file; sha256sum <$M/file >$M/sum; fi
both
is "sum" "$(sha256sum <$M/file)" "$(cat $M/sum)"
both
# the same size, other content: attributes alone would not tell by the size
if [ "$GUEST" = b ]; then random /tmp/src 4; cat /tmp/src >$M/file; sha256sum <$M/file >$M/sum; fi
both
is "sum" "$(sha256sum <$M/file)" "$(cat $M/sum)"
both
for i in $($B seq 20); do
	if [ $((i % 2)) = 0 ]; then w=a; else w=b; fi
	[ "$GUEST" != $w ] || echo "round $i by $w" >$M/ping
	both
	is "round $i" "$(cat $M/ping)" "round $i by $w"
	both
done
# A name that one removes or replaces.
[ "$GUEST" != a ] || { echo 1 >$M/new; mv $M/new $M/ping; }
both
is "after the rename" "$(cat $M/ping)" 1
both
[ "$GUEST" != b ] || rm $M/ping
both
refused "No such file" cat $M/ping
both
# One removes what the other has open: stale, or still readable from the cache, but no hang.
if [ "$GUEST" = a ]; then echo x >$M/open; exec 3<$M/open; fi
both
[ "$GUEST" != b ] || rm $M/open
both
if [ "$GUEST" = a ]; then cat <&3 || say "stale, as it should be"; exec 3<&-; fi
both
# Both in one directory at once; the sum of both is there.
mkdir -p $M/d
for i in $($B seq 200); do echo "$GUEST" >$M/d/$GUEST.$i; done
both
is "names" "$(ls $M/d | wc -l)" 400
both
[ "$GUEST" != a ] || rm -r $M/d
both
# mkdir and O_EXCL: exactly one succeeds each time.
won=0
for i in $($B seq 100); do
	if mkdir $M/x.$i 2>/dev/null; then won=$((won + 1)); fi
done
for i in $($B seq 100); do
	if (set -C; : >$M/y.$i) 2>/dev/null; then won=$((won + 1)); fi
done
echo $won >$M/won.$GUEST
both
is "won by both" $(($(cat $M/won.a) + $(cat $M/won.b))) 200
both
umount $M
