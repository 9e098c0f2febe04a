m
# Appending processes of one client: every line is there, whole.
for w in 1 2 3 4; do
	(for i in $($B seq 200); do echo "$w line $i of the one who appends" >>$M/log; done) &
done
wait
forget
is lines "$(wc -l <$M/log)" 800
is "whole lines" "$(grep -c '^[1-4] line [0-9]* of the one who appends$' $M/log)" 800
is "different lines" "$(sort -u $M/log | wc -l)" 800
umount $M
