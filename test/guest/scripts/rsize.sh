for size in 4096 8192 12288 32768 65536 131072 262144 524288 1048576; do
	m rsize=$size,wsize=$size >/dev/null
	is rsize "$(option rsize $M)" $size
	is wsize "$(option wsize $M)" $size
	there_and_back 3
	umount $M
done
# More than the server takes, and nothing at all: both become what it prefers.
m rsize=4194304,wsize=4194304 >/dev/null
is rsize "$(option rsize $M)" 1048576
umount $M
m
is wsize "$(option wsize $M)" 1048576
umount $M
