# ACLs of version 4 by the tools that administrators know, which the host lends.
m
cd $M
echo text >file
chmod 644 file
t=$M/tools
$t/nfs4_getfacl file
is "first" "$($t/nfs4_getfacl file | grep -v '^#' | sed -n 1p)" "A::OWNER@:rwatTcCy"
$t/nfs4_setfacl -a A::1000:RW file
$t/nfs4_getfacl file
$t/nfs4_getfacl file | grep '^A::1000:rwa' >/dev/null || die "no entry of 1000"
is "mode" "$(stat -c %a file)" 664
$t/nfs4_setfacl -x A::1000:RW file || $t/nfs4_setfacl -s "A::OWNER@:RW,A:g:GROUP@:R,A::EVERYONE@:R" file
$t/nfs4_getfacl file
mkdir dir
$t/nfs4_setfacl -R -a A:fd:1000:RWX dir
echo x >dir/new
$t/nfs4_getfacl dir/new
$t/nfs4_getfacl dir/new | grep '^A::1000:' >/dev/null || die "nothing inherited"
$t/nfs4_setfacl -s "A::OWNER@:RW,A:g:GROUP@:R,A::EVERYONE@:R" file
is "mode" "$(stat -c %a file)" 644
cd /
umount $M
