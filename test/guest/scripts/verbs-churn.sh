# Mounts and short connections by the hundred; the server's guest holds what its kernel has against
# what it had before. The Go client keeps nothing either.
for i in $($B seq 5); do
	m
	umount $M
done
client() { /run/host/rstorectl -q stat --provider verbs "nfs+rdma://$HOST/e" >/dev/null; }
for i in $($B seq 5); do client; done
before=$(resources)
tell warm
await measured
for i in $($B seq "$MOUNTS"); do
	m >/dev/null
	umount $M
done
say "$MOUNTS mounts"
for i in $($B seq "$CONNECTIONS"); do client; done
say "$CONNECTIONS clients"
settled "what the kernel has" "$before" resources
tell over
await compared
