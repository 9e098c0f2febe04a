# State protection: the kernel's client asks for it by krb5i, whatever the mount's flavor is. It closes
# files and gives locks back by the machine's credential when the user's ticket has expired.
kerberos
mnt() {
	local how="$CARRIER,vers=$VERS,sec=$1,nconnect=3"
	[ "$CARRIER" != proto=tcp ] || how="$how,port=2049"
	timeout 60 mount -t nfs -o "$how" "$NAME:/$1" $M
}
login() { echo secret | as "$1" kinit ${2:-} -c "FILE:/tmp/krb5cc_$(id -u "$1")" "$1" >/dev/null; }

echo 1024 >/proc/sys/sunrpc/nfs_debug # NFSDBG_MOUNT
for flavor in krb5 krb5i krb5p; do
	say "$flavor"
	dmesg -c >/dev/null
	mnt $flavor
	dmesg | grep "minimal mode enabled" || die "no state protection"
	dmesg | grep "cleanup mode enabled" || die "no clean-up by the machine"
	login mail
	login games "-l 15s"
	as mail bash -c "umask 000; echo of mail >$M/open"
	tell $flavor.made
	await $flavor.kept
	as games bash -c "exec 7<>$M/open; flock -n 7; touch /tmp/holding; while [ ! -e /tmp/close ]; do sleep 0.2; done" &
	holder=$!
	settled "the lock" yes bash -c "[ ! -e /tmp/holding ] || echo yes"
	tell $flavor.holding
	await $flavor.seen
	forget
	is "content" "$(as mail cat $M/open)" "of mail"
	settled "games" refused bash -c "$B echo 3 >/proc/sys/vm/drop_caches; setpriv --reuid=games --regid=games --clear-groups timeout 20 cat $M/open >/dev/null 2>&1 || echo refused"
	touch /tmp/close
	wait $holder
	tell $flavor.closed
	await $flavor.released 30
	is "content" "$(as mail cat $M/open)" "of mail"
	rm -f /tmp/krb5cc_* /tmp/holding /tmp/close
	umount $M
	tell $flavor.unmounted
	await $flavor.gone 30
done
tell done
