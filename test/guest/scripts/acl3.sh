# ACLs of version 3 by NFSACL: getfacl and setfacl of the guest, kept by the host as POSIX ACLs.

get() { getfacl -n -p -c "$1" | tr '\n' ' '; }
holds() {
	forget
	is "ACL of $1" "$(get "$1")" "$2  "
}

m
cd $M
umask 022
echo text >file
mkdir dir
# of the modes 644 and 755
holds file "user::rw- group::r-- other::r--"
holds dir "user::rwx group::r-x other::r-x"

# users and groups by number; the mode follows
setfacl -m u:1000:rw,g:2000:r,g::r,o::- file
rich="user::rw- user:1000:rw- group::r-- group:2000:r-- mask::rw- other::---"
holds file "$rich"
is "mode" "$(stat -c %a file)" 660
user="setpriv --reuid 1000 --regid 1000 --clear-groups --"
group="setpriv --reuid 1001 --regid 1001 --groups 2000 --"
other="setpriv --reuid 1002 --regid 1002 --clear-groups --"
is "read by the user" "$($user cat file)" text
$user sh -c 'echo more >>file'
is "read by a member" "$($group cat file)" "$(printf 'text\nmore')"
refused "Permission denied" $group sh -c 'echo no >>file'
refused "Permission denied" $other cat file
refused "Operation not permitted" $user setfacl -m u:1000:rwx file
# what the host makes of it is seen here
tell acl
await changed
holds file "user::rw- user:1000:--- group::r-- group:2000:r-- mask::rw- other::---"
setfacl -b file
holds file "user::rw- group::r-- other::---"
# a mask that says no more than the group stays
setfacl -m m::r file
is "mode" "$(stat -c %a file)" 640

# what new objects begin with, in the place of the umask
setfacl -d -m u::rwx,u:1000:rwx,g::r-x,o::- dir
inherited="user::rwx user:1000:rwx group::r-x mask::rwx other::---"
is "default ACL" "$(getfacl -n -p -c -d dir | tr '\n' ' ')" "$inherited  "
umask 077
echo new >dir/file
mkdir dir/dir
umask 022
is "mode of a file" "$(stat -c %a dir/file)" 660
is "mode of a directory" "$(stat -c %a dir/dir)" 770
is "inherited default ACL" "$(getfacl -n -p -c -d dir/dir | tr '\n' ' ')" "$inherited  "
setfacl -k dir
is "no default ACL" "$(getfacl -n -p -c -d dir | tr '\n' ' ')" ""

# more than an inline message takes, both ways
for ((i = 0; i < 300; i++)); do echo "u:$((3000 + i)):r--"; done >/tmp/many
setfacl -M /tmp/many file
forget
is "entries" "$(getfacl -n -p -c file | grep -c '^user:3')" 300
cp --preserve=all file copy
is "entries of a copy" "$(getfacl -n -p -c copy | grep -c '^user:3')" 300
cd /
umount $M
