# The same files by both carriers at once.
timeout 40 mount -t nfs -o proto=tcp,port=2049,vers=3,nolock,mountproto=tcp,mountport=2049,nosharecache "$HOST:/e" $M
there_and_back 16
m nosharecache /e /mnt2
random /tmp/src 4
cp /tmp/src $M/by-tcp
cp /tmp/src /mnt2/by-rdma
forget
same /tmp/src $M/by-rdma
same /tmp/src /mnt2/by-tcp
umount $M /mnt2
