# Quotas of projects, on ext4 and on XFS of this guest: rstored serves here, and the kernel's client mounts
# over the loopback interface. One directory is put into a project by the tools of Linux, another by the
# option quota of its export.
# A volume of the CSI driver has its size as the quota.
HOST=127.0.0.1 CARRIER=proto=tcp,port=2049
await programs
D=/run/exports S=/tmp/csi.sock
mkdir -p $D /run/r
cp /run/host/rstored-csi /run/host/csicall /tmp
/tmp/rstored-csi --endpoint unix://$S --controller --node --node-id here --address $HOST --control-ca /run/host/ca.pem \
	--control-cert /run/host/driver.pem --control-key /run/host/driver.key >/run/host/keep.csi.log 2>&1 &
call() { /tmp/csicall $S "$@"; }

serve_quotas() {
	local i
	/run/host/rstored --log-format console --state-dir /run/r/state --control /run/r/control --rdma-listen "" \
		--tcp-listen $HOST:2049 --control-tls-listen $HOST:9048 --control-tls-certificate /run/host/server.pem \
		--control-tls-key /run/host/server.key --control-tls-client-ca /run/host/ca.pem \
		--control-tls-admins csi.example.org --export "$D=/e(rw,no_root_squash)" 2>>/run/host/keep.rstored.log &
	DAEMON=$!
	for i in $($B seq 200); do
		if [ -S /run/r/control ] && ctl status >/dev/null 2>&1; then return 0; fi
		$B usleep 50000
	done
	die "rstored does not serve"
}

# size DIR: of its file system, in KiB, as df shows it.
size() { df -k --output=size "$1" | $B tail -n 1 | $B tr -d ' '; }

# full DIR WHO ERROR: WHO writes 12 MiB into a directory of 8 MiB, and gets that error.
full() {
	local said
	if said=$(setpriv --reuid "$2" --regid "$2" --clear-groups \
		dd if=/dev/zero of="$1/more.$2" bs=1M count=12 conv=fsync 2>&1); then die "12 MiB were taken into $1"; fi
	case $said in *"$3"*) ;; *) die "$1: '$said' instead of '$3'" ;; esac
	rm -f "$1/more.$2"
}

# volume ERROR: one of 8 MiB, which becomes one of 40.
volume() {
	mkdir $D/csi
	call create pvc-1 8388608 server=$HOST share=/e/csi control=$HOST transport=tcp mode=0777 >/tmp/v
	refused "exports it to others" call publish /tmp/v /tmp/pod tcp
	call attach /tmp/v here@$HOST
	call publish /tmp/v /tmp/pod
	is "size of the volume" "$(size /tmp/pod)" 8192
	call stats /tmp/v /tmp/pod | grep '"total":8388608'
	full /tmp/pod 1000 "$1"
	full /tmp/pod 0 "$1" # root is squashed
	is "new size" "$(call expand /tmp/v 41943040)" 41943040
	is "size after the expansion" "$(size /tmp/pod)" 40960
	dd if=/dev/zero of=/tmp/pod/more bs=1M count=12 conv=fsync 2>/dev/null
	call unpublish /tmp/v /tmp/pod
	call detach /tmp/v here@$HOST
	call delete /tmp/v
	if ctl export list | grep /csi/; then die "the volume is exported still"; fi
	[ ! -e $D/csi/pvc-1 ] || die "the volume is there still"
}

# quotas FS ERROR
quotas() {
	local fs=$1 error=$2
	mkdir -p $D/hand $D/option $D/plain
	chmod 777 $D/hand $D/option $D/plain
	case $fs in
	ext4)
		chattr +P -p 42 $D/hand
		setquota -P 42 0 8192 0 100 $D
		;;
	xfs) xfs_quota -x -c "project -s -p $D/hand 42" -c "limit -p bhard=8m ihard=100 42" $D ;;
	esac
	mkdir $D/hand/below # is in the project 42
	serve_quotas
	ctl export add "$D/hand/below=/below(quota=20M)" --client "$HOST(rw)"
	is "size of a directory below one with a project" "$(size $D/hand/below)" 20480
	is "size above it" "$(size $D/hand)" 8192
	ctl export set /below --unset quota
	ctl export remove /below
	mkdir $D/hand/full
	touch $D/hand/full/file
	refused "has files and only the project 42" ctl export add "$D/hand/full=/full(quota=20M)"
	is "size above it still" "$(size $D/hand)" 8192
	rm -r $D/hand/below $D/hand/full
	ctl export add "$D/option=/option(quota=8M)" --client "$HOST(rw)"

	volume "$error"

	VERS=4.2 m
	is "size of the directory" "$(size $M/hand)" 8192
	is "size on the server" "$(size $D/hand)" 8192
	[ "$(size $M)" -gt 100000 ] || die "the file system has $(size $M) KiB"
	full $M/hand 1000 "$error"
	full $M/hand 1001 "$error"
	setpriv --reuid 1000 --regid 1000 --clear-groups dd if=/dev/zero of=$M/hand/fits bs=1M count=3 conv=fsync 2>/dev/null
	/run/host/rstorectl quota nfs+tcp://$HOST/e/hand | tee /tmp/q
	grep -q "^directory *[34][.][0-9] MiB *none *8.0 MiB" /tmp/q
	/run/host/rstorectl quota nfs+tcp://$HOST/e >/tmp/q
	if grep directory /tmp/q; then die "the export has a quota of a project"; fi
	/run/host/rstorectl stat nfs+tcp://$HOST/e/hand | grep "^quota  *[34][.][0-9] MiB of 8.0 MiB used"
	/run/host/rstorectl df nfs+tcp://$HOST/e/hand | tee /tmp/q
	grep -q "8.0 MiB" /tmp/q
	# A file is not moved out of its project, but copied.
	setpriv --reuid 1000 --regid 1000 --clear-groups mv $M/hand/fits $M/plain/fits
	is "moved" "$(stat -c %s $M/plain/fits)" 3145728
	umount $M

	VERS= m "" /option
	is "size of the export" "$(size $M)" 8192
	full $M 1000 "$error"
	full $M 0 "$error" # root is squashed
	if setpriv --reuid 1000 --regid 1000 --clear-groups \
		/run/host/rstorectl put /run/host/rstorectl nfs+tcp://$HOST/option/big 2>/tmp/err; then die "the program was stored"; fi
	cat /tmp/err
	ctl export set /option --option quota=40M
	is "size after the expansion" "$(size $M)" 40960
	setpriv --reuid 1000 --regid 1000 --clear-groups dd if=/dev/zero of=$M/more bs=1M count=12 conv=fsync 2>/dev/null
	kill -9 "$DAEMON"
	wait "$DAEMON" || true
	serve_quotas
	is "size after a restart" "$(size $M)" 40960
	ctl export set /option --unset quota
	[ "$(size $M)" -gt 100000 ] || die "without a quota the export has $(size $M) KiB"
	umount $M
	kill "$DAEMON"
	wait "$DAEMON"
	rm -rf /run/r/state
}

truncate -s 400M /tmp/ext4 /tmp/xfs
mkfs.ext4 -q -F -O quota,project -E quotatype=prjquota /tmp/ext4
mount -o loop,prjquota /tmp/ext4 $D
say ext4
quotas ext4 "Disk quota exceeded"
umount $D
mkfs.xfs -q -f /tmp/xfs
mount -o loop,pquota /tmp/xfs $D
say xfs
# XFS calls a full project a full file system.
quotas xfs "No space left on device"
umount $D

# Where nothing can be enforced the option is refused.
truncate -s 64M /tmp/plain
mkfs.ext4 -q -F /tmp/plain
mount -o loop /tmp/plain $D
mkdir $D/option
serve_quotas
refused "projects" ctl export add "$D/option=/option(quota=8M)"
if ctl export list | grep /option; then die "it is exported nevertheless"; fi
kill "$DAEMON"
wait "$DAEMON"
