# One export on several carriers at once: verbs and TCP at $HOST, and soft at $SECOND if there is that, each
# mounted by version 3 and by 4.2. rxe0 is on vec1 then and siw0 on eth0, so that routing decides by which one
# a server is reached.
CARRIERS="verbs tcp"
if [ -n "${SECOND:-}" ]; then
	CARRIERS="soft $CARRIERS"
	ip link set vec1 mtu "$(cat /sys/class/net/eth0/mtu)" up
	ip addr add "$BESIDE/24" dev vec1
	rdma link add rxe0 type rxe netdev vec1
fi
rdma link show
before=$(rdma resource show)
rpcbind
rpc.statd --no-notify
cat >/tmp/handle.c <<'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
	int mount;
	struct file_handle *h = malloc(sizeof(*h) + MAX_HANDLE_SZ);
	h->handle_bytes = MAX_HANDLE_SZ;
	if (argc < 2 || name_to_handle_at(AT_FDCWD, argv[1], h, &mount, 0)) {
		perror("name_to_handle_at");
		return 1;
	}
	for (unsigned i = 0; i < h->handle_bytes; i++)
		printf("%02x", h->f_handle[i]);
	puts("");
}
C
gcc -O1 -Wall -o /tmp/handle /tmp/handle.c

# as NAME COMMAND...: on a host of that name, as far as servers can tell: the kernel takes mounts of one
# server by several addresses for one client otherwise, and has one connection for all.
as() { unshare --uts bash -c 'hostname "$0"; exec "$@"' "$@"; }
ALL=
for vers in 3 4.2; do
	for carrier in $CARRIERS; do
		at=$HOST how=rdma,port=20049
		case $carrier in
		soft) at=$SECOND ;;
		tcp) how=proto=tcp,port=2049 ;;
		esac
		[ $vers != 3 ] || how=$how,mountproto=tcp,mountport=2049
		x=$carrier-$vers
		mkdir -p /m/$x
		as $x timeout 40 mount -t nfs -o "$how,vers=$vers" "$at:/e" /m/$x
		ALL="$ALL $x"
	done
done
grep " /m/" /proc/mounts
n=$(wc -w <<<"$ALL")
is "mounts" "$(grep -c " /m/[a-z0-9.-]* nfs4* " /proc/mounts)" "$n"
# The connections that carry them.
is "connections by verbs" "$(connections)" 2
[ -z "${SECOND:-}" ] || is "connections by rxe" "$(DEVICE=rxe0 connections)" 2
tell mounted
await seen

say "data"
mkdir /m/tcp-3/d
for x in $ALL; do
	random /tmp/$x 4
	head -c 3000 /tmp/$x >/tmp/$x.small
	cp /tmp/$x /m/$x/d/$x
	cp /tmp/$x.small /m/$x/d/$x.small
done
forget
for x in $ALL; do
	is "names by $x" "$(ls /m/$x/d | wc -l)" $((2 * n))
	for y in $ALL; do
		same /tmp/$y /m/$x/d/$y
		same /tmp/$y.small /m/$x/d/$y.small
	done
done

say "handles"
for f in . d d/verbs-3 d/verbs-4.2 d/tcp-3.small; do
	want=
	for x in $ALL; do
		got=$(/tmp/handle /m/$x/$f)
		ino=$(stat -c %i /m/$x/$f)
		: "${want:=$got $ino}"
		is "the handle and number of $f by $x" "$got $ino" "$want"
	done
	say "$f: $want"
done

say "renames"
for x in $ALL; do
	for y in $ALL; do : <"/m/$y/d/$x"; done # everybody knows it by its old name
	mv /m/$x/d/$x /m/$x/d/moved
	forget
	for y in $ALL; do
		refused "No such file" cat /m/$y/d/$x
		same /tmp/$x /m/$y/d/moved
	done
	mv /m/$x/d/moved /m/$x/d/$x
done
forget
# A file that is open by one carrier, and removed by another.
exec 3</m/verbs-4.2/d/tcp-4.2
rm /m/tcp-4.2/d/tcp-4.2
forget
refused "No such file" cat /m/tcp-3/d/tcp-4.2
exec 3<&-

say "locks"
echo content >/m/tcp-3/file
for x in $ALL; do
	rm -f /tmp/has
	(exec unshare --uts bash -c 'hostname "$0"; exec "$@"' $x timeout 60 flock -F -x /m/$x/file sh -c ': >/tmp/has; exec sleep 100') &
	holder=$!
	for i in $($B seq 600); do
		[ ! -e /tmp/has ] || break
		$B usleep 50000
	done
	[ -e /tmp/has ] || die "no lock by $x"
	for y in $ALL; do
		[ $y != $x ] || continue
		! as $y timeout 40 flock -n -x /m/$y/file true || die "by $x it is locked, and by $y locked as well"
		! as $y timeout 40 flock -n -s /m/$y/file true || die "by $x it is locked, and by $y shared"
	done
	kill $holder
	wait $holder || true
	for y in $ALL; do as $y timeout 60 flock -x /m/$y/file true || die "the lock by $x is not free for $y"; done
	say "locked by $x"
done

say "the Go client"
tell mixed
await mixed-seen
for x in $ALL; do umount /m/$x; done
settled "what the kernel has" "$before" rdma resource show
