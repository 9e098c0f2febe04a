# rping of rdma-core serves; test/rdma/rping is the client.
for n in 1 2 3; do
	timeout 30 rping -s -v -a "$ME" -C 10 -S "$SIZE" >/tmp/out &
	p=$!
	sleep 0.5
	tell listening.$n
	wait $p
	is "pings of round $n" "$(grep -c 'rdma-ping-' /tmp/out)" 10
done
