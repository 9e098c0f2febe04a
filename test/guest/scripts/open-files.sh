# Files that lose their name while somebody has them open.
m
cd $M
echo old >file
exec 3<file
rm file
is "the name" "$(ls)" ""
is "the hidden name" "$(ls -A | grep -c '^\.nfs')" 1
forget
is "what is read" "$(cat <&3)" old
exec 3<&-
is "after the close" "$(ls -A)" ""

echo old >file
echo new >other
exec 3<>file
mv other file
is "by name" "$(cat file)" new
is "by the open file" "$(cat <&3)" old
echo more >&3
forget
is "by name" "$(cat file)" new
exec 3<&-
is "after the close" "$(ls -A)" file

# An open file that is renamed, its directory too.
mkdir d
exec 3>d/file
echo one >&3
mv d/file d/file2
mv d e
echo two >&3
exec 3>&-
forget
is "what was written" "$(tr '\n' ' ' <e/file2)" "one two "

# A working directory that is gone.
mkdir gone
(cd gone; rmdir ../gone; refused "" touch x)
cd /
umount $M
