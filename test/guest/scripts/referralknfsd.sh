# An export that moves while it is in use, of rstored on the host and of the kernel's server in guest b:
# guest a sees the same of both.
PATIENCE=200
VERS=4.2
CARRIER=proto=tcp
if [ "$GUEST" = b ]; then
	kernel_serves
	mkdir /srv/moving
	mount -t tmpfs -o size=1m,mode=777 tmpfs /srv/moving
	echo "at the old place" >/srv/moving/file
	exportfs -o rw,no_root_squash,insecure,fsid=9,no_subtree_check "*:/srv/moving"
	both
	both # mounted
	exportfs -u "*:/srv/moving"
	exportfs -o "rw,no_root_squash,insecure,fsid=9,no_subtree_check,refer=/home@$HOST" "*:/srv/moving"
	exportfs -f
	both
	both
	exit 0
fi
both
m "" /moving
HOST=$SECOND m "" /moving /kn
is "before" "$(cat $M/file)" "at the old place"
is "before, of the kernel's server" "$(cat /kn/file)" "at the old place"
both
tell mounted
await moved
both
seen() { # DIR: what programs get there
	local dir=$1
	shift
	timeout 60 "$@" 2>&1 | sed "s:$dir:DIR:g" || true
}
for what in "cat DIR/file" "ls DIR"; do
	forget
	ours=$(seen $M ${what//DIR/$M})
	forget
	theirs=$(seen /kn ${what//DIR//kn})
	say "$what: $ours"
	is "$what" "$ours" "$theirs"
done
# With which error depends on what the new place says about handles of the old one.
for dir in $M /kn; do
	if timeout 60 cat $dir/file || timeout 60 stat $dir/file || timeout 60 touch $dir/new; then die "the old place is there still"; fi
done
umount $M /kn
m "" /
HOST=$SECOND m "" / /kn
is "after" "$(timeout 60 cat $M/moving/inside)" "in the new home"
is "after, of the kernel's server" "$(timeout 60 cat /kn/moving/inside)" "in the new home"
umount $M/moving $M /kn/moving /kn
both
