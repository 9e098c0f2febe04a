# An export that refers to another one, over RDMA and over TCP; and the addresses of the server, which
# trunkdiscovery finds.
leave() { # submounts first
	local at
	for at in $($B awk -v m="$M/" 'index($2, m) == 1 {print $2}' /proc/mounts | $B tac); do umount "$at"; done
	umount $M
}
for CARRIER in rdma,port=20049 proto=tcp; do
	say "$CARRIER"
	m "" /
	is "listed" "$(ls $M/pub | tr '\n' ' ')" "away file "
	is "through the referral" "$(cat $M/pub/away/inside)" "in the new home"
	grep " $M/pub/away nfs4 " /proc/mounts
	is "where it leads" "$($B awk -v m="$M/pub/away" '$2 == m {print $1}' /proc/mounts)" "$HOST:/home"
	echo more >$M/pub/away/made
	forget
	is "content" "$(cat $M/pub/away/made)" more
	rm $M/pub/away/made
	leave
done

# What is mounted directly is referred too.
CARRIER=proto=tcp
m "" /pub/away
is "mounted" "$(cat $M/inside)" "in the new home"
leave

say "an export that moves while it is in use: what is mounted fails, and what is mounted anew is there"
m "" /
is "before" "$(cat $M/moving/file)" "at the old place"
tell mounted
await moved
forget
if timeout 60 cat $M/moving/file; then die "the old place is there still"; fi
leave
m "" /
is "after" "$(timeout 60 cat $M/moving/inside)" "in the new home"
leave

say "trunkdiscovery"
CARRIER=proto=tcp
m trunkdiscovery,max_connect=4 /
ls $M/home >/dev/null
ways=$(cat /sys/kernel/sunrpc/xprt-switches/*/xprt-*-tcp/dstaddr | sort -u)
echo "$ways"
is "addresses" "$(echo "$ways" | grep -c -x -e "$HOST" -e "$HOST6")" 2
leave
