# Extended attributes by version 4.2.
m
cd $M
touch file
mkdir dir
for f in file dir; do
	setfattr -n user.one -v first $f
	setfattr -n user.two -v "$(printf 'v%.0s' $($B seq 2000))" $f
	setfattr -n user.empty $f
	forget
	is "value" "$(getfattr --only-values -n user.one $f)" first
	is "length" "$(getfattr --only-values -n user.two $f | wc -c)" 2000
	is "names" "$(getfattr $f | grep ^user | sort | tr '\n' ' ')" "user.empty user.one user.two "
	setfattr -n user.one -v changed $f
	forget
	is "value" "$(getfattr --only-values -n user.one $f)" changed
	setfattr -x user.one $f
	refused "No such attribute" getfattr -n user.one $f
	refused "No such attribute" setfattr -x user.one $f
done
refused "Operation not supported" setfattr -n trusted.x -v y file
chmod 600 file
refused "Permission denied" setpriv --reuid 1000 --regid 1000 --clear-groups -- getfattr -n user.two file
cp --preserve=all file copy
is "copied" "$(getfattr --only-values -n user.two copy | wc -c)" 2000
cd /
umount $M
