# A real tree with everything that cp -a and tar keep.
m
say "cp -a of $($B find /usr/include | wc -l) names"
cp -a /usr/include $M/
forget
diff -r /usr/include $M/include
list() { (cd "$1" && $B find . -type f -exec stat -c '%n %a %s %Y %u %g' {} + | sort); }
list /usr/include >/tmp/here
list $M/include >/tmp/there
same /tmp/here /tmp/there
say "tar"
tar -C $M -cf $M/t.tar include
mkdir $M/x
tar -C $M/x -xf $M/t.tar
forget
diff -r $M/include $M/x/include
say "removing"
rm -r $M/include $M/x $M/t.tar
umount $M
