# One sequence of requests (test/rdma/requests), played by verbs.c between guests b
# and a, guest a and the host, and the host and guest a.
verbs=/run/host/verbs
await programs
play() { timeout 60 "$verbs" "$@" || die "verbs $*"; }
for part in /run/host/part.*; do
	n=${part##*.}
	if [ "$GUEST" = b ]; then
		await "kernel-listens.$n"
		play "$part" connect "$FIRST"
		continue
	fi
	play "$part" listen "$FIRST" "/run/host/at.kernel-listens.$n"
	await "ours-listens.$n"
	play "$part" connect "$HOST"
	tell "ours-served.$n"
	play "$part" listen "$FIRST" "/run/host/at.kernel-listens-again.$n"
done
