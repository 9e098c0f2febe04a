# The kernel's client with TLS: tlshd makes the handshakes, the kernel the rest.
NAME=server.example
echo "$HOST $NAME" >>/etc/hosts
pid=

# tlshd_with AUTHORITIES [CERTIFICATE]: starts it anew; it reads its settings once.
tlshd_with() {
	[ -z "$pid" ] || { kill "$pid"; wait "$pid" 2>/dev/null || true; }
	{
		printf '[debug]\nloglevel=1\n[authenticate]\n[authenticate.client]\nx509.truststore=/run/host/tls/%s.pem\n' "$1"
		[ -z "${2:-}" ] || printf 'x509.certificate=/tmp/%s.pem\nx509.private_key=/tmp/%s.key\n' "$2" "$2"
	} >/tmp/tlshd.conf
	[ -z "${2:-}" ] || { cp "/run/host/tls/$2.pem" "/run/host/tls/$2.key" /tmp; chmod 600 "/tmp/$2.key"; }
	tlshd -c /tmp/tlshd.conf -s >>/tmp/tlshd.log 2>&1 &
	pid=$!
	$B usleep 300000 # it tells nobody that it listens
}

# mnt SECURITY PATH: by the name that the certificate has.
mnt() {
	local how="proto=tcp,port=2049,vers=$VERS,xprtsec=$1"
	[ "$VERS" != 3 ] || how="$how,nolock,mountproto=tcp,mountport=2049"
	timeout 60 mount -t nfs -o "$how" "$NAME:$2" $M || { cat /tmp/tlshd.log; return 1; }
	grep " $M nfs4* " /proc/mounts
}

# not SECURITY PATH: is refused, whenever that comes out.
not() {
	if mnt "$1" "$2" >/tmp/refused 2>&1; then
		if ls $M >/dev/null 2>&1 || stat $M/file >/dev/null 2>&1; then die "$2 can be used by xprtsec=$1"; fi
		say "$2 is mounted by xprtsec=$1, and of no use"
		umount -f $M
		return
	fi
	say "$2 by xprtsec=$1: $(tail -n 1 /tmp/refused)"
}

tlshd_with ca
mnt tls /tls
is "the security" "$(option xprtsec $M)" tls
there_and_back 8
echo "the secret of the guest" >$M/secret
sync
forget
is "a secret" "$(cat $M/secret)" "the secret of the guest"
tell tls
await looked
umount $M

say "without TLS"
not none /tls
not none /mtls
mnt none /open
echo "what everybody may see" >$M/seen
sync
umount $M

say "with TLS, but without a certificate"
mnt tls /open
umount $M
not tls /mtls

say "with a certificate"
tlshd_with ca client
mnt mtls /mtls
is "the security" "$(option xprtsec $M)" mtls
there_and_back 8
tell mtls
await renewed

say "connections that live go on, and new ones see another certificate"
there_and_back 1
umount $M
mnt mtls /mtls
there_and_back 1
umount $M
mnt mtls /tls # it is more than is asked for
umount $M

say "a certificate of others"
tlshd_with ca stranger
not mtls /mtls
say "a server of others"
tlshd_with other
not tls /tls
tlshd_with ca
NAME=$HOST # which is not in the certificate
not tls /tls
NAME=server.example

say "both at once, and the server goes away and comes back"
mnt tls /tls
random /tmp/src 4
cp /tmp/src $M/file
tell restart
await restarted
forget
same /tmp/src $M/file
rm $M/file
umount $M
kill "$pid"
