# A user of 40 groups, of which AUTH_SYS tells 16: with manage_gids the server asks its host's
# database, and takes nobody's word for it.
PATIENCE=60
await programs
if [ "$GUEST" = b ]; then
	echo 'many:x:7000:7000::/:/bin/sh' >>/etc/passwd
	echo 'many:x:7000:' >>/etc/group
	for n in $($B seq 1 40); do
		echo "many$n:x:$((7100 + n)):many" >>/etc/group
	done
	echo 'not:x:7200:' >>/etc/group
	mkdir /run/data
	for n in 1 30 40 100; do # 7200 is not one of the user's
		echo "for $n" >/run/data/$n
		chgrp $((7100 + n)) /run/data/$n
		chmod 640 /run/data/$n
	done
	own_server --export "/run/data=/asked(rw,manage_gids) $SECOND/24" --export "/run/data=/told(rw) $SECOND/24"
fi
both
if [ "$GUEST" = a ]; then
	HOST=$SECOND
	groups=$($B seq -s, 7101 7140)
	many() { setpriv --reuid 7000 --regid 7000 --groups "$groups,7200" -- "$@"; }
	VERS=4.2 m "" /told
	is "told, the first" "$(many cat $M/1)" "for 1"
	refused "Permission denied" many cat $M/30
	umount $M
	for v in 4.2 3; do
		VERS=${v#3} m "" /asked
		for n in 1 30 40; do
			is "asked, version $v, group $n" "$(many cat $M/$n)" "for $n"
		done
		refused "Permission denied" many cat $M/100
		# As with the kernel's server, who is not in the database has what the client says.
		is "of a stranger" "$(setpriv --reuid 7001 --regid 7001 --groups 7101 -- cat $M/1)" "for 1"
		umount $M
	done
fi
both
