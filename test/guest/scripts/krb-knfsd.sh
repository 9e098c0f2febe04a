# The kernel is the server, with rpc.svcgssd, and the Go client of the host its client. Without krb5p:
# the server of this kernel cannot decode the arguments of such calls, of its own client neither.
echo "$(my_address) server.rstored.test server" >>/etc/hosts
$B hostname server.rstored.test
cp /run/host/krb/krb5.conf /etc/krb5.conf
cp /run/host/krb/server.keytab /etc/krb5.keytab
printf '[Mapping]\nNobody-User = nobody\nNobody-Group = nogroup\n[General]\nDomain = rstored.test\nLocal-Realms = RSTORED.TEST\n' >/etc/idmapd.conf
await kdc
mkdir -p /srv
mount -t tmpfs -o size=1m,mode=755 tmpfs /srv
for flavor in krb5 krb5i; do
	mkdir /srv/$flavor
	mount -t tmpfs -o size=100m,mode=1777 tmpfs /srv/$flavor
done
rpcbind
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
rpc.svcgssd -f -vv >/run/host/keep.svcgssd.log 2>&1 &
exportfs -o ro,insecure,fsid=0,no_subtree_check,crossmnt,sec=sys:krb5:krb5i "*:/srv"
n=1
for flavor in krb5 krb5i; do
	exportfs -o rw,insecure,fsid=$((n += 1)),no_subtree_check,sec=$flavor "*:/srv/$flavor"
done
rpc.mountd
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd 4
echo rdma 20049 >/proc/fs/nfsd/portlist
tell serving
for flavor in krb5 krb5i; do
	await $flavor.stored 120
	sha256sum </srv/$flavor/big | cut -d' ' -f1 >/run/host/sum.$flavor
	is "the owner" "$(stat -c %U /srv/$flavor/big)" games
	tell $flavor.summed
done
await done 60
