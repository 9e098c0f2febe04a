# One node of a cluster of two: corosync and pacemakerd in namespaces of their own, as on a host.
#
#   pacemaker.sh DIRECTORY NODE ADDRESS
#
# DIRECTORY has corosync.conf and cib.xml. It becomes the node's host name, /run, /var and /dev/shm are its own.
set -eu
dir=$1 node=$2
mount --make-rprivate /
if [ ! -d "$dir/$node" ]; then
	cp -a /usr/lib/ocf/resource.d "$dir/$node"
	mkdir "$dir/$node/rstored"
	cp "$dir/rstored" "$dir/$node/rstored/rstored"
fi
mount --bind "$dir/$node" /usr/lib/ocf/resource.d
hostname "$node"
for d in /run /var/lib/corosync /var/lib/pacemaker /var/log /dev/shm /etc/corosync; do
	mount -t tmpfs none "$d"
done
mkdir -p /run/crm /run/lock /run/resource-agents /var/log/corosync /var/log/cluster /var/log/pacemaker \
	/var/lib/pacemaker/cib /var/lib/pacemaker/pengine /var/lib/pacemaker/cores /var/lib/pacemaker/blackbox
chown -R hacluster:haclient /var/lib/pacemaker /var/log/pacemaker /run/crm
chmod 750 /var/lib/pacemaker /var/lib/pacemaker/*
cp "$dir/$node.yaml" /run/rstored.yaml
cp "$dir/corosync.conf" /etc/corosync/corosync.conf
corosync -f >>"$dir/$node.corosync" 2>&1 &
until corosync-cmapctl runtime.members >/dev/null 2>&1; do sleep 0.2; done
exec pacemakerd -f >>"$dir/$node.pacemakerd" 2>&1
