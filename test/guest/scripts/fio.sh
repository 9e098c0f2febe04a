m
f() {
	say "$*"
	fio --name=x --directory=$M --size="${SIZE}m" --verify=crc32c --verify_fatal=1 --do_verify=1 --group_reporting \
		--ioengine=psync --minimal "$@" >/tmp/fio.out 2>&1 || { cat /tmp/fio.out; die "fio $*"; }
	rm -f $M/x.*
}
f --rw=write --bs=1m
f --rw=write --bs=1m --direct=1
f --rw=randwrite --bs=4k --io_size=16m
f --rw=randwrite --bs=4k --direct=1 --io_size=8m
f --rw=randwrite --bsrange=512-256k --direct=0 --numjobs=4 --verify_backlog=64
f --rw=randwrite --bsrange=4k-512k --bs_unaligned=0 --direct=1 --numjobs=4
f --rw=write --bs=64k --ioengine=libaio --iodepth=16 --direct=1 --numjobs=2
f --rw=randrw --bs=16k --direct=1 --ioengine=libaio --iodepth=8 --verify_backlog=32
umount $M
