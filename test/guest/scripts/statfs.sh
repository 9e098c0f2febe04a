# The directory of the run is on the file system that is exported.
m
# The client counts in blocks of 1 MiB and rounds up.
total() { echo $((($(stat -f -c '%S*%b' "$1") + (1 << 20) - 1) >> 20)); }
free() { echo $(($(stat -f -c '%S*%f' "$1") >> 26)); }
is "MiB in all" "$(total $M)" "$(total /run/host)"
is "files in all" "$(stat -f -c %c $M)" "$(stat -f -c %c /run/host)"
is "longest name" "$(stat -f -c %l $M)" 255
a=$(free $M) b=$(free /run/host)
[ $((a > b ? a - b : b - a)) -le 16 ] || die "free is $a here and $b there (64 MiB each)"
df -h $M
umount $M
