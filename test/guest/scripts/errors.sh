# What mount says when something is wrong; docs/kernel-client.md explains each.
try() {
	local what=$1 want=$2 got
	shift 2
	mkdir -p $M
	if got=$(timeout 60 mount -t nfs "$@" 2>&1); then
		umount $M
		die "$what: mounted"
	fi
	say "$what: $got"
	case $got in *"$want"*) ;; *) die "$what: '$got', not '$want'" ;; esac
}
base=vers=3,nolock,mountproto=tcp,mountport=2049
try "wrong RDMA port" "Connection refused" -o rdma,port=20050,retry=0,$base "$HOST:/e" $M
try "wrong mount port" "Connection refused" -o rdma,port=20049,retry=0,vers=3,nolock,mountproto=tcp,mountport=2050 "$HOST:/e" $M
try "no port mapper" "Connection refused" -o rdma,port=20049,retry=0,vers=3,nolock "$HOST:/e" $M
try "no such export" "access denied by server" -o rdma,port=20049,retry=0,$base "$HOST:/nothing" $M
try "export for others" "access denied by server" -o rdma,port=20049,retry=0,$base "$HOST:/other" $M
try "no such export by 4.2" "No such file or directory" -o rdma,port=20049,retry=0,vers=4.2 "$HOST:/nothing" $M
try "export for others by 4.2" "No such file or directory" -o rdma,port=20049,retry=0,vers=4.2 "$HOST:/other" $M
mount -t nfs -o rdma,port=20049 "$HOST:/e" $M # the version that the client likes best
is "version without being told" "$(option vers $M)" 4.2
umount $M
try "no rpc.statd" "rpc.statd is not running" -o rdma,port=20049,retry=0,vers=3,mountproto=tcp,mountport=2049 "$HOST:/e" $M
mount -t nfs -o rdma,$base "$HOST:/e" $M # 20049 without being told
umount $M
rdma link delete $DEVICE
try "no RDMA device" "Protocol error" -o rdma,port=20049,retry=0,$base "$HOST:/e" $M
rdma link add $DEVICE type ${RDMA:-rxe} netdev eth0
mount -t nfs -o rdma,$base "$HOST:/e" $M
umount $M
