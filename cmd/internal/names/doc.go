// Package names asks the host who users, groups and clients are: the files and resolver of the Go
// library first, and getent(1) for what else nsswitch.conf(5) names. It provides the sources of
// nfs/idmap and nfs/hosts, which cache the answers. A question has a time limit, as a directory
// service may not answer.
package names
