# Guest s: the daemon on its device for the other guests, until they are done. Beside that it does
# what the host orders.
rdma_device
[ -z "${SECOND:-}" ] || ip addr add "$SECOND/24" dev eth0
mkdir -p /run/exports
if [ -n "${EXPORTS_EXT4:-}" ]; then
	truncate -s "$EXPORTS_EXT4" /tmp/exports.ext4
	mkfs.ext4 -q -F /tmp/exports.ext4
	mount -o loop /tmp/exports.ext4 /run/exports
else
	mount -t tmpfs -o "${EXPORTS_FS:-size=90%,mode=755}" exports /run/exports
fi
cp -a /run/host/exports/. /run/exports/
stat -f -c '%S %b %f %c' /run/exports >/run/host/statfs
before=$(resources)
say "before: $before"
serve
idle_qps=$(resource qp) idle_files=$(open_files)
tell serving
order=1
for client in $CLIENTS; do
	while [ ! -e "/run/host/$client.rc" ]; do
		if [ -e "/run/host/do.$order" ]; then
			status=0
			. "/run/host/do.$order" >"/run/host/did.$order" 2>&1 || status=$?
			echo $status >"/run/host/done.$order"
			sync -f /run/host
			mv "/run/host/done.$order" "/run/host/at.did.$order"
			order=$((order + 1))
			continue
		fi
		[ -z "$DAEMON" ] || kill -0 "$DAEMON" || die "rstored has ended"
		$B usleep 100000
	done
done
# The clients have gone: what they had is given back.
say "after the clients: $(resources)"
settled "queue pairs" "$idle_qps" resource qp
files=$(open_files)
[ "$files" -le $((idle_files + 5)) ] || die "$files open files instead of $idle_files"
unserve TERM
settled "what the kernel has" "$before" resources
# Its devices take nothing from a thread whose credentials were changed.
! $B dmesg | grep "changed security contexts" || die "a thread with other credentials came to the device"
