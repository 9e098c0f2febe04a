# test/rdma/cmatose makes many connections to ucmatose of rdma-core.
timeout 50 stdbuf -oL ucmatose -b "$ME" -c 64 -C 10 -S 5000 >/tmp/out &
p=$!
sleep 1
tell listening
wait $p || { cat /tmp/out; die "ucmatose"; }
tail -n 5 /tmp/out
grep -q "data transfers complete" /tmp/out
