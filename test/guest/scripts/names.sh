m
cd $M
long=$(printf 'n%.0s' $($B seq 255))
echo x >"$long"
is "long name" "$(ls)" "$long"
refused "File name too long" touch "${long}n"
rm "$long"
# symbolic links up to what fits a page
for n in 1 100 255 1000 1023 1024 2048 3000 4000 4094 4095; do
	target=$(head -c $n /dev/zero | tr '\0' t)
	ln -s "$target" link
	forget
	is "target of $n" "$(readlink link)" "$target"
	is "size" "$(stat -c %s link)" $n
	rm link
done
# names that are unusual
touch $'a\nb' 'a b' -- '-x' "*" '\' $'\xff\xfe' 'ümläut' '...'
is "how many" "$($B find . -mindepth 1 -print0 | tr -dc '\0' | wc -c)" 8
forget
is "how many" "$($B find . -mindepth 1 -print0 | tr -dc '\0' | wc -c)" 8
rm -- *  ...
# times, sizes, special files
touch -d '2001-02-03 04:05:06.789012345' t
forget
is mtime "$(stat -c %y t)" "2001-02-03 04:05:06.789012345 +0000"
truncate -s 8E t 2>/dev/null || truncate -s 1T t
rm t
mkfifo fifo
mknod null c 1 3
forget
is "kind of fifo" "$(stat -c %F fifo)" fifo
is "device" "$(stat -c %F:%t:%T null)" "character special file:1:3"
ln null null2
is links "$(stat -c %h null2)" 2
refused "Directory not empty" sh -c 'mkdir -p d/e; rmdir d'
refused "cannot overwrite" mv -T fifo d
refused "Not a directory" ls null/x
touch t2
[ -n "${VERS:-}" ] || refused "Operation not supported" setfattr -n user.x -v y t2
cd /
umount $M
