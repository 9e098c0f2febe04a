// Package migrate makes a configuration of rstored from the files of other NFS servers:
// ganesha.conf of NFS-Ganesha, nfs.conf and /etc/exports of the Linux kernel's server. No client
// gets more access than the other server gave it: the package leaves out what rstored cannot
// express exactly, and adds a note. It looks at nothing of the host but the files, and starts
// nothing. Begin reading at Import.Add.
//
//	im := migrate.New()
//	err := im.Add("/etc/ganesha/ganesha.conf", "")
//	yaml, err := im.YAML() // rstored.yaml, with im.Notes as comments
//
// One goroutine at a time may use an Import.
package migrate
