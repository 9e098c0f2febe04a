# The kernel is the server in guest b, and rstorectl on libibverbs its client in guest a.
rdma_device
PATIENCE=240
if [ "$GUEST" = b ]; then
	kernel_serves
	both
	both
	(cd /srv/e && sums tree) >/run/host/sums.b
	is "the link" "$(readlink /srv/e/tree/link)" "sub/one"
	is "the mode" "$(stat -c %a /srv/e/tree/sub/one)" 640
	is "holes" "$(($(stat -c %b /srv/e/sparse) < 20480))" 1
	both
	both
	is "what is left" "$(ls /srv/e)" ""
	settled "connections of the server" 0 connections
	exit 0
fi

await programs
both
client() { /run/host/rstorectl -q "$1" --provider verbs --nfs-version "$VERS" "${@:2}"; }
before=$(resources)
say "before: $before"
dir=/e
[ "$VERS" != 3 ] || dir=/srv/e
there=nfs+rdma://$SERVER$dir
mkdir -p /tmp/src/tree/sub/deeper /tmp/src/tree/many /tmp/back
cd /tmp/src
head -c 104857607 /dev/urandom >tree/big
head -c 3000 /dev/urandom >tree/inline
head -c 1 /dev/urandom >tree/sub/one
head -c 1048577 /dev/urandom >tree/sub/deeper/odd
chmod 640 tree/sub/one
: >tree/empty
ln -s sub/one tree/link
for i in $($B seq 300); do head -c $((i * 17)) /dev/urandom >tree/many/$i; done
truncate -s 64M sparse
echo "behind a hole" | dd of=sparse bs=1 seek=40M conv=notrunc status=none
say "in"
client put -r tree "$there/tree"
client put sparse "$there/sparse"
client ls -l "$there/tree/sub"
client stat "$there/tree/big"
client df "$there/"
sums tree >/run/host/sums.a
both
both
same /run/host/sums.a /run/host/sums.b
say "out"
client get -r "$there/tree" /tmp/back/tree
(cd /tmp/back && sums tree) >/tmp/sums
same /run/host/sums.a /tmp/sums
client cat "nfs+rdma://$SERVER$dir/sparse?provider=verbs" >/tmp/back/sparse
same sparse /tmp/back/sparse
client mkdir "$there/dir"
client mv "$there/tree/big" "$there/dir/moved"
client cp --verify "$there/dir/moved" "$there/dir/copy"
client get "$there/dir/copy" /tmp/back/copy
same tree/big /tmp/back/copy
refused "o such file" client cat "$there/nothing"
refused "" /run/host/rstorectl -q cat --provider soft "$there/sparse"
client rm -r "$there/tree" "$there/dir" "$there/sparse"
settled "what the kernel has" "$before" resources
both
