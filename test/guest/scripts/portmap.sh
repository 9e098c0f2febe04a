# Nothing is said about ports: the client asks the daemon's own port mapper.
rpcinfo -p "$HOST"
rpcinfo -s "$HOST"
rpcinfo -T tcp "$HOST" 100003 3
rpcinfo -T tcp "$HOST" 100005 3
showmount -e "$HOST" | tee /tmp/exports
grep -q '^/e ' /tmp/exports
timeout 40 mount -t nfs -o rdma,port=20049,vers=3,nolock "$HOST:/e" $M
grep " $M " /proc/mounts
there_and_back 1
umount $M
# And over TCP, where the port of NFS is asked for too.
timeout 40 mount -t nfs -o proto=tcp,vers=3,nolock "$HOST:/e" $M
grep " $M " /proc/mounts
there_and_back 1
umount $M
