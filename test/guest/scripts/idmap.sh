# Users and groups by name: they have other numbers here than on the server's host.
echo N >/sys/module/nfs/parameters/nfs4_disable_idmapping
cover() { cp "$1" /tmp/"$(basename "$1")" && mount --bind /tmp/"$(basename "$1")" "$1"; }
[ -e /etc/idmapd.conf ] || : >/etc/idmapd.conf
cover /etc/passwd
cover /etc/group
cover /etc/idmapd.conf
$B sed -i 's/^games:x:[0-9]*:/games:x:4242:/; s/^mail:x:[0-9]*:/mail:x:4243:/' /tmp/passwd
$B sed -i 's/^games:x:[0-9]*:/games:x:5242:/' /tmp/group
echo 'ghost:x:4244:4244::/:/bin/sh' >>/tmp/passwd
cat /tmp/passwd >/etc/passwd
cat /tmp/group >/etc/group
printf '[General]\nDomain = guests.example\n[Translation]\nMethod = nsswitch\n' >/etc/idmapd.conf
is "games here" "$(id -u games)" 4242
m
touch $M/file
chown games:games $M/file
tell owned
await host-owns
forget
$B sleep 1 # attributes of before
is "owner" "$(stat -c '%u %U %G' $M/host)" "4243 mail games"
is "owner without a name" "$(stat -c '%u %g' $M/nameless)" "12345 54321"
is "one's own" "$(stat -c '%u %g' $M/file)" "4242 5242"
refused "Invalid argument" chown ghost $M/file
is "still" "$(stat -c '%u %g' $M/file)" "4242 5242"
# By number, as root is told, whatever there is of a name.
touch $M/number
chown 34567:34568 $M/number
forget
is "by number" "$(stat -c '%u %g' $M/number)" "34567 34568"
tell done
umount $M
