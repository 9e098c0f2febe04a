timeout 40 mount -t nfs -o proto=rdma6,port=20049,vers=3,nolock,mountproto=tcp6,mountport=2049 "[$HOST6]:/e" $M
grep " $M " /proc/mounts | tee /tmp/mount
grep -q "addr=$HOST6" /tmp/mount
there_and_back 1
there_and_back 64
umount $M
