# ucmatose of rdma-core calls a port of test/rdma/cmatose that nobody listens on,
# and makes many connections to the one that it does listen on.
sleep 1
if timeout 10 stdbuf -oL ucmatose -s "$HOST" -p 7472 -c 1 -C 1 >/tmp/out 2>&1; then die "connected to nobody"; fi
cat /tmp/out
# 8 is the reason of the reject: invalid service ID.
grep -q "RDMA_CM_EVENT_REJECTED, error: 8" /tmp/out
timeout 50 stdbuf -oL ucmatose -s "$HOST" -c 64 -C 10 -S 5000 >/tmp/out || { cat /tmp/out; die "ucmatose"; }
tail -n 5 /tmp/out
grep -q "data transfers complete" /tmp/out
