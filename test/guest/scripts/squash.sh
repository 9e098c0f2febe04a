as() { setpriv --reuid "$1" --regid "$1" --groups "$2" -- "${@:3}"; }

# /root: no_root_squash. What users may do is what the modes say.
m "" /root
cd $M
mkdir -m 755 mine
chown 1000:1000 mine
is owner "$(stat -c %u:%g mine)" 1000:1000
as 1000 1000 sh -c 'echo secret >mine/file; chmod 600 mine/file'
is owner "$(stat -c %u:%g:%a mine/file)" 1000:1000:600
refused "Permission denied" as 1001 1001 cat mine/file
refused "Permission denied" as 1001 1001 touch mine/new
refused "Permission denied" as 1001 1001 rm -f mine/file
refused "Operation not permitted" as 1001 1001 chmod 777 mine/file
refused "Operation not permitted" as 1000 1000 chown 1001 mine/file
is "what root reads" "$(cat mine/file)" secret
# further groups
echo shared >group
chgrp 5000 group
chmod 640 group
is "what the group reads" "$(as 1001 1001,5000 cat group)" shared
refused "Permission denied" as 1001 1001 cat group
refused "Permission denied" as 1001 1001,5000 sh -c 'echo x >group'
# directories that give their group away, and sticky ones
mkdir -m 2777 setgid
chgrp 5000 setgid
chmod 2777 setgid
as 1000 1000 touch setgid/file
is "group of a setgid directory's file" "$(stat -c %g setgid/file)" 5000
mkdir -m 1777 sticky
as 1000 1000 touch sticky/file
refused "Operation not permitted" as 1001 1001 rm -f sticky/file
# a write takes the set-user-ID bit away
cp /bin/true suid
chmod 6755 suid
chown 1000:1000 suid
chmod 6755 suid
as 0 0 true
chmod 6777 suid
as 1001 1001 sh -c 'echo x >>suid'
is "mode after a write" "$(stat -c %a suid)" 777
# search permission on the way
mkdir -m 700 closed
touch closed/file
refused "Permission denied" as 1000 1000 stat closed/file
cd /
umount $M

# /squash: root is nobody.
m "" /squash
is "owner of the export" "$(stat -c %u:%a $M)" 0:755
refused "Permission denied" touch $M/new
touch $M/open/new
is "root's file" "$(stat -c %u:%g $M/open/new)" 65534:65534
refused "Operation not permitted" chown 1000 $M/open/new
refused "Permission denied" cat $M/secret
as 1000 1000 touch $M/open/user
is "a user's file" "$(stat -c %u:%g $M/open/user)" 1000:1000
umount $M

# /all: everyone is 7000:7001.
m "" /all
as 1000 1000 touch $M/open/user
touch $M/open/root
is "a user's file" "$(stat -c %u:%g $M/open/user)" 7000:7001
is "root's file" "$(stat -c %u:%g $M/open/root)" 7000:7001
umount $M

# /other is for somebody else.
denied="access denied"
[ -z "${VERS:-}" ] || denied="No such file" # what is not for a client is not there
refused "$denied" m "" /other
