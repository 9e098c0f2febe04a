# Copies between two servers, in both directions, by copy_file_range in guest a: rstored of the host,
# and in guest b the kernel's server, or another rstored.
PATIENCE=280
VERS=4.2
if [ "$OTHER" = rstored ]; then await programs; fi
if [ "$GUEST" = b ]; then
	case $OTHER in
	knfsd)
		kernel_serves
		echo Y >/sys/module/nfsd/parameters/inter_copy_offload_enable
		;;
	rstored)
		mkdir /run/e
		mount -t tmpfs -o size=300m,mode=777 tmpfs /run/e
		own_server --copy-partners 10.99.0.1 --export "/run/e=/e(rw) 10.99.0.0/24" --lease-time 15s
		;;
	esac
	both
	both
	exit 0
fi
both
counted() { # OP DIR: how often it was sent to the server of a mount
	$B awk -v op="$1:" -v dir="$2" '$1 == "device" { here = $5 == dir } here && $1 == op { print $2; exit }' /proc/self/mountstats
}
cat >/tmp/copy.py <<'P'
import os, sys
a, b = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
left = os.fstat(a).st_size
while left > 0:
    n = os.copy_file_range(a, b, left)
    assert n > 0, n
    left -= n
P
# alone FROM TO: the client reads and writes by itself.
alone() {
	local reads
	say "from $1 to $2, by this client"
	$B head -c 20000003 /dev/urandom >"$1/file"
	forget
	reads=$(counted READ "$1")
	timeout 60 python3 /tmp/copy.py "$1/file" "$2/copied"
	[ "$(counted READ "$1")" -gt "$reads" ] || die "no READs"
	forget
	cmp "$1/file" "$2/copied"
	rm "$1/file" "$2/copied"
}
user() { setpriv --reuid 7000 --regid 7000 --clear-groups -- "$@"; }
# copies FROM TO: a file that its user alone may read is copied by the two servers.
copies() {
	local from=$1 to=$2 copy notify reads
	say "from $from to $to"
	user $B head -c 20000003 /dev/urandom | user tee "$from/file" >/dev/null
	user $B chmod 600 "$from/file"
	sync
	copy=$(counted COPY "$to") notify=$(counted COPY_NOTIFY "$from") reads=$(counted READ "$from")
	user timeout 60 python3 /tmp/copy.py "$from/file" "$to/copied"
	[ "$(counted COPY "$to")" -gt "$copy" ] || die "no COPY"
	[ "$(counted COPY_NOTIFY "$from")" -gt "$notify" ] || die "no COPY_NOTIFY"
	is "READs of this client" "$(counted READ "$from")" "$reads"
	forget
	user cmp "$from/file" "$to/copied"
	user rm "$from/file" "$to/copied"
}
for CARRIER in $CARRIERS; do
	say "$CARRIER"
	m "" /e
	HOST=$SECOND m "" /e /kn
	chmod 777 $M
	touch /kn/ready $M/ready
	sleep 1 # the servers call nobody that has not answered before
	case $CAN in *in*) copies /kn $M ;; esac
	case $CAN in *out*) copies $M /kn ;; esac
	if [ -z "$CAN" ]; then
		alone /kn $M
		alone $M /kn
	fi
	umount /kn $M
done
both
