# A file delegated to this guest by version 4: it is opened again without an OPEN on the
# wire, until somebody else changes it.
m
# calls OP: how often the kernel has sent it for this mount.
calls() { $B awk -v op="$1:" '$1 == "device" {here = $5 == "'$M'"} here && $1 == op {print $2}' /proc/self/mountstats; }
# wire COMMAND...: how many OPENs a command needs.
wire() {
	local before
	before=$(calls OPEN)
	"$@" >/dev/null
	echo $(($(calls OPEN) + $(calls OPEN_NOATTR) - before - noattr))
	noattr=$(calls OPEN_NOATTR)
}
noattr=$(calls OPEN_NOATTR)

echo one >$M/file
say "reading"
cat $M/file
for try in $($B seq 100); do # until the server has found out that it can call
	[ "$(calls OPEN_NOATTR)" != "$noattr" ] || true
	n=$(wire cat $M/file)
	[ "$n" != 0 ] || break
	$B usleep 100000
done
is "OPENs for a file that is delegated" "$(wire cat $M/file)" 0
is "returned" "$(calls DELEGRETURN)" "$(calls DELEGRETURN)"
before=$(calls DELEGRETURN)
tell delegated
await changed
is "content" "$(cat $M/file)" two
after=$(calls DELEGRETURN)
[ "$after" -gt "$before" ] || die "the delegation was not returned: $before, $after"
say "returned: $before, $after"
umount $M
