# Packets are lost in both directions. Nothing may stand still for long.
lose "$LOSS"
m
moving there_and_back "$MIB"
mkdir $M/d
names() { for i in $($B seq 100); do echo "$i" >$M/d/$i; done; }
moving names
is names "$(ls $M/d | wc -l)" 100
forget
compare() { for i in $($B seq 100); do is "file $i" "$(cat $M/d/$i)" "$i"; done; }
moving compare
tc -s qdisc show | grep -E 'qdisc netem|dropped' || true
umount $M
