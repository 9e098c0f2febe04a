# The kernel's client with Kerberos: rpc.gssd gets the contexts, the kernel uses them.
kerberos

# mnt FLAVOR PATH
mnt() {
	local how="$CARRIER,vers=$VERS,sec=$1"
	[ "$VERS" != 3 ] || how="$how,${3:-nolock},mountproto=tcp,mountport=2049"
	[ "$CARRIER" != proto=tcp ] || how="$how,port=2049"
	timeout 60 mount -t nfs -o "$how" "$NAME:$2" $M
}
login() { echo secret | as "$1" kinit -c "FILE:/tmp/krb5cc_$(id -u "$1")" "$1"; }

refused "" mnt sys /krb5
refused "" mnt krb5 /krb5p
for flavor in krb5 krb5i krb5p; do
	say "$flavor"
	mnt $flavor /$flavor
	grep " $M nfs" /proc/mounts
	is "the flavor" "$(option sec $M)" $flavor
	there_and_back 16
	refused "" as games cat $M/file
	login games
	login mail
	as games bash -c "umask 077; head -c 3000001 /dev/urandom >/tmp/games; cp /tmp/games $M/games"
	as mail bash -c "umask 077; echo of mail >$M/mail"
	forget
	is "sum" "$(as games cat $M/games | sha256sum)" "$(sha256sum </tmp/games)"
	is "content" "$(as mail cat $M/mail)" "of mail"
	refused "Permission denied" as games cat $M/mail
	refused "Permission denied" as mail cat $M/games
	is "names" "$(as games ls $M | tr '\n' ' ')" "games mail "
	as mail bash -c "for i in \$(seq 200); do echo \$i >$M/mail-\$i; done"
	forget
	is "names in a directory" "$(as games ls $M | wc -l)" 202
	tell $flavor
	if [ $flavor = krb5p ]; then
		tell written
		await restarted
		say "after a restart"
		forget
		is "content" "$(as mail cat $M/mail)" "of mail"
		refused "Permission denied" as mail cat $M/games
	fi
	rm -f /tmp/krb5cc_*
	umount $M
done
if [ "$VERS" = 3 ]; then
	say "locks of version 3"
	rpcbind
	rpc.statd --no-notify
	login games
	mnt krb5 /krb5 lock
	as games touch $M/games
	refused "No locks available" as games flock -n $M/games true
	umount $M
	mnt krb5 /locks lock
	as games touch $M/locked
	as games bash -c "exec 9<>$M/locked; flock -n 9; touch /tmp/holding; while [ ! -e /tmp/free ]; do sleep 0.2; done" &
	settled "the lock" yes bash -c "[ ! -e /tmp/holding ] || echo yes"
	tell locked
	await lock-seen
	touch /tmp/free
	wait $!
	umount $M
fi
if [ "$VERS" = 4.0 ]; then
	say "delegations of version 4.0"
	rpc.svcgssd -f -n -vv >/run/host/keep.svcgssd.log 2>&1 &
	login games
	mnt krb5i /krb5i
	as games bash -c "umask 022; echo one >$M/delegated"
	delegated $M/delegated
	before=$(calls DELEGRETURN)
	tell recallable
	await recalled
	is "content" "$(as games cat $M/delegated)" two
	[ "$(calls DELEGRETURN)" -gt "$before" ] || die "the delegation was not returned"
	umount $M
fi
tell done
