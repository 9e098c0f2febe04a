# ACLs of version 4: read and set in the client's own form, which is an nfsace4<> in
# system.nfs4_acl, and kept by the host as POSIX ACLs.

# acl TYPE:FLAGS:MASK:WHO...: an nfsace4<> in hexadecimal. Forks are slow here.
acl() {
	local IFS=: out one who i
	printf -v out '0x%08x' $#
	for one; do
		set -- $one
		who=
		for ((i = 0; i < ${#4}; i++)); do printf -v who '%s%02x' "$who" "'${4:i:1}"; done
		while [ $((${#who} % 8)) -ne 0 ]; do who=${who}00; done
		printf -v out '%s%08x%08x%08x%08x%s' "$out" "$1" "$2" "$3" ${#4} "$who"
	done
	echo "$out"
}
get() { getfattr --absolute-names -e hex -n system.nfs4_acl "$1" | sed -n 's/^system.nfs4_acl=//p'; }
set4() { setfattr -n system.nfs4_acl -v "$2" "$1"; }
holds() {
	forget
	is "ACL of $1" "$(get "$1")" "$2"
}

# What permissions are in a mask.
R=0x1 W=0x6 X=0x20 D=0x40 T=0x120080 O=0x160180

m
cd $M
umask 022
echo text >file
mkdir dir
# of the modes 644 and 755
holds file "$(acl "0:0:$((R | W | O)):OWNER@" "0:0:$((R | T)):GROUP@" "0:0:$((R | T)):EVERYONE@")"
holds dir "$(acl "0:0:$((R | W | X | D | O)):OWNER@" "0:0:$((R | X | T)):GROUP@" "0:0:$((R | X | T)):EVERYONE@")"

# users and groups by number; the mode follows
rich() { acl "0:0:$((R | W | O)):OWNER@" "0:0:$1:1000" "0:0:$((R | T)):GROUP@" "0:0x40:$((R | T)):2000" "0:0:$((T)):EVERYONE@"; }
set4 file "$(rich $((R | W | T)))"
holds file "$(rich $((R | W | T)))"
is "mode" "$(stat -c %a file)" 660
user="setpriv --reuid 1000 --regid 1000 --clear-groups --"
group="setpriv --reuid 1001 --regid 1001 --groups 2000 --"
other="setpriv --reuid 1002 --regid 1002 --clear-groups --"
is "read by the user" "$($user cat file)" text
$user sh -c 'echo more >>file'
is "read by a member" "$($group cat file)" "$(printf 'text\nmore')"
refused "Permission denied" $group sh -c 'echo no >>file'
refused "Permission denied" $other cat file
refused "Operation not permitted" $user setfattr -n system.nfs4_acl -v "$(rich $((R | W | T)))" file
# what the host makes of it is seen here: the user denied what the groups have
tell acl
await changed
holds file "$(acl "0:0:$((R | W | O)):OWNER@" "1:0:$R:1000" "0:0:$T:1000" "0:0:$((R | T)):GROUP@" \
	"0:0x40:$((R | T)):2000" "0:0:$T:EVERYONE@")"
set4 file "$(rich $((R | W | T)))"
# and the ACL follows the mode
chmod 640 file
holds file "$(rich $((R | T)))"
refused "Permission denied" $user sh -c 'echo no >>file'
chmod 660 file

# what new objects begin with, in the place of the umask
inherited() { acl "0:0:$((R | W | X | D | O)):OWNER@" "0:0:$((R | X | T)):GROUP@" "0:0:$((T)):EVERYONE@" \
	"0:0xb:$((R | W | X | D | O)):OWNER@" "0:0xb:$((R | W | X | D | T)):1000" "0:0xb:$((R | X | T)):GROUP@" "0:0xb:$((T)):EVERYONE@"; }
set4 dir "$(inherited)"
holds dir "$(inherited)"
umask 077
echo new >dir/file
mkdir dir/dir
mktemp -p dir >/run/name
umask 022
is "mode" "$(stat -c %a dir/file)" 660
is "mode" "$(stat -c %a dir/dir)" 770
is "mode" "$(stat -c %a "$(cat /run/name)")" 600
refused "Permission denied" $user sh -c 'echo by 1000 >>dir/file' # dir itself lets nobody else in
chmod 755 dir
$user sh -c 'echo by 1000 >>dir/file'
cp --preserve=all file dir/copy

# what has no POSIX ACL is refused: the client has no word for ATTRNOTSUPP
refused "Input/output error" setfattr -n system.nfs4_acl -v "$(acl "2:0:1:EVERYONE@")" file
refused "Input/output error" setfattr -n system.nfs4_acl -v "$(acl "0:3:1:EVERYONE@")" file
refused "Invalid argument" setfattr -n system.nfs4_acl -v "$(acl "0:0:1:nobody@example.org")" file
holds file "$(rich $((R | W | T)))"
cd /
umount $M
