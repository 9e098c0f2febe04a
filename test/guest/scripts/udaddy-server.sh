# test/rdma/udaddy asks udaddy of rdma-core for queue pairs, and sends to them.
timeout 50 stdbuf -oL udaddy -b "$ME" -c 8 -C 10 -S "$SIZE" >/tmp/out &
p=$!
sleep 1
tell listening
wait $p || { cat /tmp/out; die "udaddy"; }
tail -n 5 /tmp/out
grep -q "data transfers complete" /tmp/out
