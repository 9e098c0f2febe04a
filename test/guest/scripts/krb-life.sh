# What happens to tickets, clocks and keys while the kernel's client uses a mount with Kerberos.
kerberos

# mnt also ends the contexts of users that an earlier mount had.
mnt() {
	local how="$CARRIER,vers=$VERS,sec=$SEC"
	! grep -q " $M nfs" /proc/mounts || umount $M
	[ "$VERS" != 3 ] || how="$how,nolock,mountproto=tcp,mountport=2049"
	[ "$CARRIER" != proto=tcp ] || how="$how,port=2049"
	timeout 60 mount -t nfs -o "$how" "$NAME:/$SEC" $M
}
# login USER [OPTIONS]; ticket USER gets a ticket for the server as well.
login() { echo secret | as "$1" kinit ${2:-} -c "FILE:/tmp/krb5cc_$(id -u "$1")" "$1" >/dev/null; }
ticket() { as "$1" kvno -c "FILE:/tmp/krb5cc_$(id -u "$1")" "nfs/$NAME"; }
# reads USER: the user's own file, from the server.
reads() {
	forget
	as "$1" timeout 20 cat $M/"$1" 2>/tmp/why
}
# until_reads and until_refused USER: within two minutes.
until_reads() {
	local i
	for ((i = 0; i < 240; i++)); do
		[ "$(reads "$1")" != "of $1" ] || return 0
		$B usleep 500000
	done
	die "$1 cannot read: $(cat /tmp/why)"
}
until_refused() {
	local i
	for ((i = 0; i < 240; i++)); do
		if ! reads "$1" >/dev/null; then
			say "$1: $(cat /tmp/why)"
			grep -E 'Permission denied|expired' /tmp/why || die "$1 is refused otherwise"
			return 0
		fi
		$B usleep 500000
	done
	die "$1 can still read"
}
# refused_until USER EVENT: the user tries again until the host has seen why the server refuses.
refused_until() {
	local i
	for ((i = 0; i < 240; i++)); do
		if reads "$1"; then die "$1 can read"; fi
		[ ! -e "/run/host/at.$2" ] || return 0
		$B usleep 500000
	done
	die "the server did not say $2: $(cat /tmp/why)"
}

mnt
for user in games mail; do
	login $user
	as $user bash -c "umask 077; echo of $user >$M/$user"
done

say "a ticket expires"
mnt
rm /tmp/krb5cc_5
login games "-l 15s"
is "content" "$(reads games)" "of games"
until_refused games
is "content" "$(reads mail)" "of mail"
refused "" as mail cat $M/games
login games
until_reads games

say "a clock is wrong"
for user in games mail; do
	login $user
	ticket $user
done
mnt
date -s "@$(($(date +%s) + 1230))" >/dev/null
tell skewed
refused_until games skew-seen
date -s "@$(($(date +%s) - 1230))" >/dev/null
until_reads games

say "a keytab is renewed"
rm /tmp/krb5cc_5 /tmp/krb5cc_8
login mail
is "version" "$(ticket mail)" "nfs/$NAME@RSTORED.TEST: kvno = 2"
tell renew
await renewed
login games
is "version" "$(ticket games)" "nfs/$NAME@RSTORED.TEST: kvno = 3"
mnt
until_reads games
until_reads mail

say "the server has no key of this version"
tell change
await changed
rm /tmp/krb5cc_5
login games
is "version" "$(ticket games)" "nfs/$NAME@RSTORED.TEST: kvno = 4"
mnt
refused_until games kvno-seen
until_reads mail
tell bring
await brought
until_reads games

say "the server restarts"
tell restart
await restarted
until_reads mail
until_reads games
refused "Permission denied" as mail cat $M/games
refused "Permission denied" as games cat $M/mail
umount $M
tell done
