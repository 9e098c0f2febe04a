# The kernel is the server, with tlshd, and the Go client of the host its client.
mkdir -p /srv/e /srv/m
mount -t tmpfs -o size=1m,mode=755 tmpfs /srv
mkdir /srv/e /srv/m
mount -t tmpfs -o size=100m,mode=777 tmpfs /srv/e
mount -t tmpfs -o size=100m,mode=777 tmpfs /srv/m
cp /run/host/tls/server.pem /run/host/tls/server.key /tmp
chmod 600 /tmp/server.key
cat >/tmp/tlshd.conf <<END
[debug]
loglevel=1
[authenticate]
[authenticate.server]
x509.truststore=/run/host/tls/ca.pem
x509.certificate=/tmp/server.pem
x509.private_key=/tmp/server.key
END
tlshd -c /tmp/tlshd.conf -s >/tmp/tlshd.log 2>&1 &
pid=$!
rpcbind
mount -t nfsd nfsd /proc/fs/nfsd 2>/dev/null || true
exportfs -o ro,insecure,fsid=0,no_subtree_check,crossmnt "*:/srv" # the root of version 4
exportfs -o rw,no_root_squash,insecure,fsid=7,no_subtree_check,xprtsec=tls "*:/srv/e"
exportfs -o rw,no_root_squash,insecure,fsid=8,no_subtree_check,xprtsec=mtls "*:/srv/m"
rpc.mountd
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd --nfs-version 4.2 4
tell serving
await stored 60 || { cat /tmp/tlshd.log; exit 1; }
sha256sum </srv/e/big | cut -d' ' -f1 >/run/host/sum.e
tell summed
await done 60 || { cat /tmp/tlshd.log; exit 1; }
is "what is left" "$(ls /srv/e /srv/m | tr -d '\n')" "/srv/e:/srv/m:"
kill "$pid"
