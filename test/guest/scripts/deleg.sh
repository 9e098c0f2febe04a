# A file delegated to this guest by version 4: it is opened again without an OPEN on the
# wire, until somebody else changes it.
m
say "reading"
echo one >$M/file
delegated $M/file
say "delegated"
for i in 1 2 3; do is "OPENs" "$(needs cat $M/file)" 0; done
before=$(calls DELEGRETURN)
tell delegated
await changed
is "content" "$(cat $M/file)" two
after=$(calls DELEGRETURN)
[ "$after" -gt "$before" ] || die "the delegation was not returned: $before, $after"

if [ "$VERS" != 4.0 ]; then # which has no delegations for writing here
say "writing"
exec 7<>$M/other
echo mine >&7
delegated $M/other
echo more >>$M/other
exec 7>&-
# What is not written yet counts all the same, and nothing is given back for that.
exec 8>>$M/other
echo kept >&8
before=$(calls DELEGRETURN)
tell unwritten
await measured
is "delegations returned" "$(($(calls DELEGRETURN) - before))" 0
exec 8>&-
before=$(calls DELEGRETURN)
tell written
await read
is "content" "$(cat /run/host/got)" "$(printf 'mine\nmore\nkept')"
[ "$(calls DELEGRETURN)" -gt "$before" ] || die "the delegation was not returned"
fi

say "removed by somebody else"
echo last >$M/third
delegated $M/third
tell removable
await removed
refused "No such file" cat $M/third
umount $M
