# What is exported is on the file system that the directory of the run is on, or where guest s has said.
m
[ -e /run/host/statfs ] || stat -f -c '%S %b %f %c' /run/host >/run/host/statfs
read -r size blocks unused files </run/host/statfs
# The client counts in blocks of 1 MiB and rounds up.
is "MiB in all" $((($(stat -f -c '%S*%b' $M) + (1 << 20) - 1) >> 20)) $(((size * blocks + (1 << 20) - 1) >> 20))
is "files in all" "$(stat -f -c %c $M)" "$files"
is "longest name" "$(stat -f -c %l $M)" 255
a=$(($(stat -f -c '%S*%f' $M) >> 26)) b=$((size * unused >> 26))
[ $((a > b ? a - b : b - a)) -le 16 ] || die "free is $a here and $b there (64 MiB each)"
df -h $M
umount $M
