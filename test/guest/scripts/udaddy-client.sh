# udaddy of rdma-core asks for a queue pair where nobody serves datagrams, then
# test/rdma/udaddy for eight, and sends to them.
await nobody
if timeout 20 stdbuf -oL udaddy -s "$TO" -c 1 -C 1 >/tmp/out 2>&1; then die "found nobody's queue pair"; fi
cat /tmp/out
# 1 is the status of the SIDR REP: service ID not supported.
grep -q "RDMA_CM_EVENT_UNREACHABLE, error: 1$" /tmp/out
tell refused
await somebody
sleep 1
timeout 50 stdbuf -oL udaddy -s "$TO" -c 8 -C 10 -S "$SIZE" >/tmp/out || { cat /tmp/out; die "udaddy"; }
cat /tmp/out
grep -q "data transfers complete" /tmp/out
