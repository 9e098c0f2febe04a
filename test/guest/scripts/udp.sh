# MOUNT and the port mapper by UDP: at the port that the server's port mapper names.
rpcinfo -T udp "$HOST" 100000 2
rpcinfo -T udp "$HOST" 100005 3
rpcinfo -T udp "$HOST" 100021 4
! rpcinfo -T udp "$HOST" 100003 3
for proto in rdma,port=20049 proto=tcp; do
	timeout 40 mount -t nfs -o "$proto,vers=3,nolock,mountproto=udp" "$HOST:/e" $M
	grep " $M .*mountproto=udp" /proc/mounts
	there_and_back 1
	umount $M
done
# The client said by UDP that it has unmounted.
showmount -a --no-headers "$HOST" >/tmp/mounted
! grep . /tmp/mounted
