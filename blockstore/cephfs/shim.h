#ifndef RSTORED_CEPHFS_H
#define RSTORED_CEPHFS_H

#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <cephfs/libcephfs.h>

#define RC_WANT (CEPH_STATX_BASIC_STATS | CEPH_STATX_BTIME)

// rc_load opens libcephfs. It returns NULL, or why the library cannot be used.
const char *rc_load(void);

// Each function is the one of libcephfs of the same name. Those that return an inode return one with a
// reference, which rc_put gives back.
int rc_create(struct ceph_mount_info **m, const char *id);
int rc_conf_read_file(struct ceph_mount_info *m, const char *path);
int rc_conf_parse_env(struct ceph_mount_info *m);
int rc_conf_set(struct ceph_mount_info *m, const char *option, const char *value);
int rc_conf_get(struct ceph_mount_info *m, const char *option, char *buf, size_t n);
int rc_init(struct ceph_mount_info *m);
int rc_select_filesystem(struct ceph_mount_info *m, const char *name);
int rc_mount(struct ceph_mount_info *m, const char *root);
int64_t rc_get_fs_cid(struct ceph_mount_info *m);
int rc_unmount(struct ceph_mount_info *m);
int rc_release(struct ceph_mount_info *m);
UserPerm *rc_userperm_new(uid_t uid, gid_t gid, int n, gid_t *list);
void rc_userperm_destroy(UserPerm *p);
int rc_lookup_root(struct ceph_mount_info *m, struct Inode **out);
int rc_lookup_vino(struct ceph_mount_info *m, uint64_t ino, uint64_t snap, struct Inode **out);
int rc_lookup(struct ceph_mount_info *m, struct Inode *dir, const char *name, struct Inode **out, struct ceph_statx *stx, const UserPerm *p);
void rc_put(struct ceph_mount_info *m, struct Inode *in);
int rc_getattr(struct ceph_mount_info *m, struct Inode *in, struct ceph_statx *stx, const UserPerm *p);
int rc_setattr(struct ceph_mount_info *m, struct Inode *in, struct ceph_statx *stx, int mask, const UserPerm *p);
int rc_readlink(struct ceph_mount_info *m, struct Inode *in, char *buf, size_t n, const UserPerm *p);
int rc_mknod(struct ceph_mount_info *m, struct Inode *dir, const char *name, mode_t mode, dev_t dev, struct Inode **out, struct ceph_statx *stx, const UserPerm *p);
int rc_mkfile(struct ceph_mount_info *m, struct Inode *dir, const char *name, mode_t mode, struct Inode **out, Fh **fh, struct ceph_statx *stx, const UserPerm *p);
int rc_mkdir(struct ceph_mount_info *m, struct Inode *dir, const char *name, mode_t mode, struct Inode **out, struct ceph_statx *stx, const UserPerm *p);
int rc_symlink(struct ceph_mount_info *m, struct Inode *dir, const char *name, const char *target, struct Inode **out, struct ceph_statx *stx, const UserPerm *p);
int rc_link(struct ceph_mount_info *m, struct Inode *in, struct Inode *dir, const char *name, const UserPerm *p);
int rc_unlink(struct ceph_mount_info *m, struct Inode *dir, const char *name, const UserPerm *p);
int rc_rmdir(struct ceph_mount_info *m, struct Inode *dir, const char *name, const UserPerm *p);
int rc_rename(struct ceph_mount_info *m, struct Inode *from, const char *name, struct Inode *to, const char *newname, const UserPerm *p);
int rc_open(struct ceph_mount_info *m, struct Inode *in, int flags, Fh **fh, const UserPerm *p);
int rc_close(struct ceph_mount_info *m, Fh *fh);
int rc_read(struct ceph_mount_info *m, Fh *fh, int64_t off, void *p, uint64_t n);
int rc_write(struct ceph_mount_info *m, Fh *fh, int64_t off, const void *p, uint64_t n);
int rc_sync_fs(struct ceph_mount_info *m);
int rc_sync_inode(struct ceph_mount_info *m, struct Inode *in);
int64_t rc_lseek(struct ceph_mount_info *m, Fh *fh, int64_t off, int whence);
int rc_fallocate(struct ceph_mount_info *m, Fh *fh, int mode, int64_t off, int64_t n);
int rc_statfs(struct ceph_mount_info *m, struct Inode *in, struct statvfs *st);
int rc_getxattr(struct ceph_mount_info *m, struct Inode *in, const char *name, void *p, size_t n, const UserPerm *perm);
int rc_setxattr(struct ceph_mount_info *m, struct Inode *in, const char *name, const void *p, size_t n, int flags, const UserPerm *perm);
int rc_listxattr(struct ceph_mount_info *m, struct Inode *in, char *list, size_t n, size_t *got, const UserPerm *perm);
int rc_removexattr(struct ceph_mount_info *m, struct Inode *in, const char *name, const UserPerm *perm);
int rc_opendir(struct ceph_mount_info *m, struct Inode *in, struct ceph_dir_result **d, const UserPerm *p);
void rc_seekdir(struct ceph_mount_info *m, struct ceph_dir_result *d, int64_t off);
int rc_releasedir(struct ceph_mount_info *m, struct ceph_dir_result *d);

// RC_OWNER owns all locks of a mount. The high bit says that the number alone tells owners of one
// session apart, and not the process, too.
#define RC_OWNER (1ULL << 63 | 1)
int rc_getlk(struct ceph_mount_info *m, Fh *fh, struct flock *fl);
int rc_setlk(struct ceph_mount_info *m, Fh *fh, struct flock *fl); // waits for no lock
int rc_set_deleg_timeout(struct ceph_mount_info *m, uint32_t seconds);

// rc_delegation takes or, with CEPH_DELEGATION_NONE, returns a delegation. When it is recalled,
// rcRecalled is called with lease, on a thread and with locks of libcephfs.
int rc_delegation(struct ceph_mount_info *m, Fh *fh, unsigned cmd, uintptr_t lease);
void rcRecalled(uintptr_t lease);

void rc_set_uuid(struct ceph_mount_info *m, const char *uuid);

// rc_reset_session ends the session of the client with that uuid, and waits until the MDS and the OSDs
// have forgotten it. It returns -ENOENT if there is none. m is started and not mounted.
int rc_reset_session(struct ceph_mount_info *m, const char *uuid);

// An entry of a directory. The name ends with NUL.
struct rc_entry {
	char name[256];
	uint64_t ino;
	int64_t next; // where a listing continues after the entry
	int has;      // stx is known
	struct ceph_statx stx;
};

// rc_readdir reads up to n entries. It returns how many there were, or a negative errno. With plus
// the entries have attributes.
int rc_readdir(struct ceph_mount_info *m, struct ceph_dir_result *d, struct rc_entry *list, int n, int plus);

#endif
