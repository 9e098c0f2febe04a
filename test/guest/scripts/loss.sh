# Packets are lost in both directions, in the guest: what it sends, and what it receives.
ip link set ifb0 up
tc qdisc add dev eth0 root netem loss "$LOSS%" limit 20000
tc qdisc add dev eth0 ingress
tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0
tc qdisc add dev ifb0 root netem loss "$LOSS%" limit 20000
m
there_and_back "$MIB"
mkdir $M/d
for i in $($B seq 100); do echo "$i" >$M/d/$i; done
is names "$(ls $M/d | wc -l)" 100
forget
for i in $($B seq 100); do is "file $i" "$(cat $M/d/$i)" "$i"; done
tc -s qdisc show | grep -E 'qdisc netem|dropped' || true
umount $M
