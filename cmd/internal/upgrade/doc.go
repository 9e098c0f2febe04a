// Package upgrade is the protocol by which a process hands over to another one, the executable on
// disk, while clients notice only a pause. The two processes speak over a pair of sockets
// (cmd/internal/handover):
//
//	old: hello                         new: prepared
//	(stands still) parts, restore           restored
//	go                                      serving
//
// Until the old process has sent go, it can go on as if nothing had been: the new one has sent no
// packet, taken no call, and written nothing that counts. From then on the old process never serves
// again, whatever becomes of the new one. So the two never serve at once.
//
// Successor is the new process as the old one sees it, Predecessor the old one as the new one sees
// it. The package does not know what is handed over.
package upgrade
