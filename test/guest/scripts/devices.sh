# RDMA devices made, listed and removed by rstorectl, and a mount over one.
ctl() { /run/host/rstorectl "$@"; }
await programs
is "what init has made" "$(ctl device list | $B awk 'NR == 2 { print $1, $2, $3, $4, $5 }')" "rxe0 1 rdma_rxe Ethernet ACTIVE"
ctl device show rxe0
refused "unknown kind of soft device" ctl device add ib eth0
refused "has such a device" ctl device add rxe eth0
refused "no network interface" ctl device add rxe eth7
refused "no RDMA device" ctl device show rxe7
ctl device remove rxe0
is "none" "$(ctl device list)" "the kernel has no RDMA device"
[ -z "$(rdma link show)" ] || die "rdma link show still has one"
refused "" ctl device remove rxe0
ctl device add rxe eth0
rdma link show rxe_eth0/1 | grep 'state ACTIVE.*netdev eth0'
ctl device list
ctl -o json device list | grep '"driver": "rdma_rxe"'
m
echo over >$M/file
is "content" "$(cat $M/file)" over
umount $M
ctl device remove rxe_eth0
ctl device add rxe eth0 --name other
is "device" "$(ls /sys/class/infiniband)" other
